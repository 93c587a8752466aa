"""From a command line to the values of flags."""

import unicodedata
from typing import List

from absl import flags

from errors import UserError
from runs.help_page import HelpFlag

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
        What is no flag.

    Raises:
        UserError: there is no such flag, or no such value of it.
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
        return known(arguments)
    except (flags.Error, OSError) as error:
        raise UserError(str(error)) from error
    except UnicodeError as error:
        raise UserError(f"the --flagfile is not UTF-8 text: {error}") from error
