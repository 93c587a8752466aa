"""From a command line to the values of flags."""

import re
import unicodedata
from typing import List

from absl import flags

from errors import UserError
from runs.help_page import HelpFlag

# By a flag's type, which values there are.
EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
}
# More than any flag's name has, in characters.
LONGEST_NAME = 40
# Categories of characters: bytes that are no text, and what would break a line
# of the log.
BROKEN = {"Cc", "Cs", "Zl", "Zp"}


def define_help(known: flags.FlagValues) -> None:
    """Defines the flags that show what flags there are."""
    for name, short in (("help", "?"), ("helpshort", None)):
        flags.DEFINE_flag(HelpFlag(known, name, short))


def parse(known: flags.FlagValues, arguments: List[str]) -> List[str]:
    """Gives flags the values that a command line says.

    Args:
        known: the flags.
        arguments: the program's name and what is said to it.

    Returns:
        The program's name.

    Raises:
        UserError: there is no such flag, or no such value of it, or a word is
            no flag.
    """
    for argument in arguments:
        if BROKEN & set(map(unicodedata.category, argument)):
            raise UserError(f"unreadable argument {argument[:200]!a}")
    try:
        arguments = known.read_flags_from_files(arguments, force_gnu=False)
        for argument in arguments[1:]:
            if argument == "--":
                break
            # Else absl looks for long which names are like it.
            name = argument.partition("=")[0]
            if name.startswith("-") and len(name) > LONGEST_NAME:
                raise UserError(
                    f"no flag has so long a name as {name[:LONGEST_NAME]}..."
                )
        left = known(arguments)
    except UnicodeError as error:
        raise UserError(f"the --flagfile is not UTF-8 text: {error}") from error
    except flags.IllegalFlagValueError as error:
        named = re.match(r"flag --(\w+)=", str(error))
        expected = EXPECTED.get(named and known[named[1]].flag_type())
        if expected is None:
            raise UserError(str(error)) from error
        given = str(error).removesuffix(str(error.__context__))
        raise UserError(f"{given}expected {expected}") from error
    # A flag with "no" before its name that has a value, too.
    except (flags.Error, ValueError, OSError) as error:
        raise UserError(str(error)) from error
    if left[1:]:
        for flag, word in zip(arguments, arguments[1:]):
            for name in (flag.lstrip("-"), flag.lstrip("-").removeprefix("no")):
                if word == left[1] and name in known and known[name].boolean:
                    raise UserError(
                        f"unexpected: {word} after {flag}; write --{name}=true "
                        f"or --{name}=false"
                    )
        raise UserError(
            f"unexpected: {left[1]}; expected --name=value, with commas "
            "between several values"
        )
    return left
