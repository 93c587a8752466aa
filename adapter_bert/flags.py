"""Flags: fields of dataclasses that declare, parse, show and read them.

A field made by `setting` is the only declaration of its flag. The program's
flags, its `--help`, docs/flags.md, the values that its code reads and the part
of `run.json` about its settings come from the field.
"""

import argparse
import dataclasses
import enum
import functools
import os
import re
import sys
import typing
import unicodedata
from types import ModuleType
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
)

from absl import app, flags

from adapter_bert import command_line
from adapter_bert.errors import UserError

FLAGS = flags.FLAGS
Declared = TypeVar("Declared")


class Topic(enum.Enum):
    """Topics of `--help` in their order."""

    TO_DO = "What to do"
    DATA = "Task and data"
    TABLES = "Your own tables, with --task_name=custom"
    MODEL = "Pretrained model"
    METHOD = "Tuning method and trained adapters"
    TRAINING = "Training"
    EVALUATION = "Evaluation and prediction"
    SERVED = "Served model"
    LIMITS = "Limits of the server"
    HARDWARE = "Hardware"


class Range(NamedTuple):
    """Values that a flag may have, and what an error says of others."""

    holds: Callable[[Any], bool]
    problem: str


POSITIVE = Range(lambda value: value >= 1, "expected >= 1")
NOT_NEGATIVE = Range(lambda value: value >= 0, "expected >= 0")
POSITIVE_NUMBER = Range(
    lambda value: 0 < value < float("inf"), "expected a positive number"
)


def setting(
    topic: Topic,
    default: Any,
    meaning: str,
    within: Optional[Range] = None,
    *,
    flag: str = "",
    alias: str = "",
    choices: Sequence[str] = (),
    repeated: bool = False,
    recorded: bool = False,
) -> Any:
    """A dataclass's field that is a flag.

    The field's type decides the flag's: a bool, int, float or str, optional
    or not, else a list with commas.

    Args:
        topic: under which `--help` shows the flag.
        default: the value without the flag.
        meaning: one or two sentences for `--help`, with the unit.
        within: the values that are allowed; None is always.
        flag: the flag's name, if it is not the field's.
        alias: a second name of the flag.
        choices: all values that a str may have.
        repeated: whether the flag is repeated to give several values.
        recorded: whether `run.json` has the value, and another is another run.
    """
    about = {
        "topic": topic,
        "meaning": meaning,
        "within": within,
        "flag": flag,
        "alias": alias,
        "choices": choices,
        "repeated": repeated,
        "recorded": recorded,
    }
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=about)
    return dataclasses.field(default=default, metadata=about)


def _flag_of(field: dataclasses.Field) -> str:
    return field.metadata["flag"] or field.name


def declared(classes: Sequence[type]) -> Iterator[dataclasses.Field]:
    """The fields that are flags, those of nested dataclasses in their place."""
    for declaring in classes:
        for field in dataclasses.fields(declaring):
            if dataclasses.is_dataclass(field.type):
                yield from declared([field.type])
            elif "topic" in field.metadata:
                yield field


def define(
    classes: Sequence[type], known: flags.FlagValues = FLAGS
) -> flags.FlagValues:
    """Defines the flags of dataclasses among the known flags."""
    plain = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    for field in declared(classes):
        about, kind = field.metadata, field.type
        if typing.get_origin(kind) is typing.Union:
            [kind] = set(typing.get_args(kind)) - {type(None)}
        make = plain.get(kind, flags.DEFINE_list)
        if about["repeated"]:
            make = flags.DEFINE_multi_string
        if about["choices"]:
            make = functools.partial(
                flags.DEFINE_enum, enum_values=about["choices"]
            )
        name, default = _flag_of(field), field.default
        if default is dataclasses.MISSING:
            default = []
        make(name, default, help=about["meaning"], flag_values=known)
        if about["alias"]:
            flags.DEFINE_alias(about["alias"], name, flag_values=known)
    return known


def read(declaring: Type[Declared], **given: Any) -> Declared:
    """A dataclass with the flags' values.

    Args:
        declaring: the dataclass.
        given: values of fields that are no flags, or that need more than
            their flag.

    Raises:
        UserError: a value is not within its range.
    """
    for field in dataclasses.fields(declaring):
        if field.name in given:
            continue
        if dataclasses.is_dataclass(field.type):
            given[field.name] = read(field.type)
        elif "topic" in field.metadata:
            name, within = _flag_of(field), field.metadata["within"]
            value = FLAGS[name].value
            if within and value is not None and not within.holds(value):
                raise UserError(f"--{name} is {value!r}, {within.problem}")
            given[field.name] = value
    return declaring(**given)


def is_given(name: str) -> bool:
    """Whether the command line has a flag."""
    return bool(FLAGS[name].present)


def recorded(values: Any) -> Dict[str, Any]:
    """A dataclass's settings that belong to `run.json`, by their fields."""
    return {
        field.name: getattr(values, field.name)
        for field in dataclasses.fields(values)
        if field.metadata.get("recorded")
    }


# --help

# What stands for the value of each type of flag.
VALUES = {"int": "N", "float": "X", "comma separated list of strings": "A,B"}
END = """\
--helpfull also shows the flags of absl, as --flagfile=FILE, a file with one
flag per line."""


def by_topic(
    classes: Sequence[type], known: flags.FlagValues = FLAGS
) -> Iterator[Tuple[str, List[flags.Flag]]]:
    """Topics that have flags, in their order, and these flags."""
    fields = list(declared(classes))
    for topic in Topic:
        names = [
            name
            for field in fields
            if field.metadata["topic"] is topic
            for name in (_flag_of(field), field.metadata["alias"])
            if name
        ]
        if names:
            yield topic.value, [known[name] for name in names]


def default_of(flag: flags.Flag) -> str:
    """A flag's default for its readers, "" where its meaning tells it."""
    is_told = "default:" in flag.help.lower()
    # An empty default, as a list's, would say nothing.
    if is_told or flag.default in (None, "", []):
        return ""
    return flag.default_as_str.strip("'")


def page(
    program: str,
    doc: str,
    classes: Sequence[type],
    known: flags.FlagValues = FLAGS,
) -> str:
    """What `--help` prints: what a program does, and its flags by topic."""
    parser = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s [flags]",
        description=doc.strip(),
        epilog=END,
        formatter_class=functools.partial(
            argparse.RawDescriptionHelpFormatter, width=80, max_help_position=30
        ),
        add_help=False,
    )
    for topic, shown in by_topic(classes, known):
        group = parser.add_argument_group(topic)
        for flag in shown:
            meaning, default = flag.help, default_of(flag)
            if default:
                meaning = f"{meaning.rstrip('.')}; default: {default}."
            meaning = meaning.replace("%", "%%")
            if flag.boolean:
                name = f"--[no]{flag.name}"
                group.add_argument(name, action="store_true", help=meaning)
            else:
                value = VALUES.get(flag.flag_type(), "TEXT")
                group.add_argument(
                    f"--{flag.name}", metavar=value, help=meaning
                )
    return parser.format_help()


class _HelpFlag(flags.BooleanFlag):
    """Prints a program's page and ends it; replaces absl's flag."""

    def __init__(self, module: ModuleType, name: str, short: Optional[str]):
        super().__init__(name, False, "", short_name=short, allow_override=True)
        self._module = module

    def parse(self, argument: Any) -> None:
        super().parse(argument)
        if self.value:
            program = os.path.basename(sys.argv[0])
            doc, classes = self._module.__doc__, self._module.SETTINGS
            print(page(program, doc, classes), end="")
            sys.exit(0)


# Command lines

# By a flag's type, which values there are.
EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
}
# More than any flag's name has, in characters.
LONGEST_NAME = 40
# Categories of characters: bytes that are no text, and line breaks.
BROKEN = {"Cc", "Cs", "Zl", "Zp"}


def parse(known: flags.FlagValues, arguments: List[str]) -> List[str]:
    """Gives flags the values of a command line.

    Args:
        known: the flags.
        arguments: the program's name, then its arguments.

    Returns:
        The program's name.

    Raises:
        UserError: an argument is not a flag, or its value is of another type.
    """
    for argument in arguments:
        if BROKEN & set(map(unicodedata.category, argument)):
            raise UserError(f"unreadable argument {argument[:200]!a}")
    try:
        arguments = known.read_flags_from_files(arguments, force_gnu=False)
        for argument in arguments[1:]:
            if argument == "--":
                break
            # absl takes long to find names that resemble a long one.
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
    # ValueError: of "--noflag=value".
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


def define_all(module: ModuleType) -> None:
    """Defines the flags of a program's `SETTINGS`, and `--help`."""
    define(module.SETTINGS)
    app.define_help_flags()
    for name, short in (("help", "?"), ("helpshort", None)):
        flags.DEFINE_flag(_HelpFlag(module, name, short))


def run(module: ModuleType) -> None:
    """Runs the `main` of a program with flags; ends as `command_line.run`."""
    define_all(module)
    command_line.run(
        lambda: app.run(
            lambda _: module.main(),
            flags_parser=lambda given: parse(FLAGS, given),
        )
    )
