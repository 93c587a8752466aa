"""Flags: fields of dataclasses that declare, parse, show and read them.

A field made by `Topic.setting` is the only declaration of its flag: the flag,
`--help`, docs/flags.md, the value that code reads, and the setting in
`run.json` come from the field. A caller in Python gives the same flags as
keywords.
"""

import argparse
import contextlib
import contextvars
import dataclasses
import difflib
import enum
import functools
import json
import os
import re
import sys
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import (
    Any,
    Callable,
    NamedTuple,
    Optional,
    TypeVar,
)

from absl import flags

from adapter_bert.errors import UserError

# The flags of this process's command line, or of a caller (`of_keywords`).
_current: contextvars.ContextVar = contextvars.ContextVar(
    "current", default=flags.FLAGS
)


class _Current:
    def __getattr__(self, name: str) -> Any:
        return getattr(_current.get(), name)

    def __getitem__(self, name: str) -> flags.Flag:
        return _current.get()[name]

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_current.get(), name, value)

    def __contains__(self, name: str) -> bool:
        return name in _current.get()

    def __iter__(self) -> Iterator[str]:
        return iter(_current.get())


FLAGS = _Current()
Declared = TypeVar("Declared")


class Range(NamedTuple):
    """A flag's allowed values, and the error for others."""

    holds: Callable[[Any], bool]
    problem: str


POSITIVE = Range(lambda value: value >= 1, "expected >= 1")
NOT_NEGATIVE = Range(lambda value: value >= 0, "expected >= 0")
PROBABILITY = Range(
    lambda x: isinstance(x, float) and 0 < x < 1,
    "expected a probability above 0 and below 1",
)
POSITIVE_NUMBER = Range(
    lambda value: 0 < value < float("inf"), "expected a positive number"
)


class Topic(enum.Enum):
    """Topics of `--help` in their order; each makes the fields of its flags."""

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

    def setting(
        self,
        default: Any,
        meaning: str,
        within: Optional[Range] = None,
        **more: Any,
    ) -> Any:
        """A dataclass's field that is a flag; for the arguments see `About`.

        The field's type decides the flag's: a bool, int, float or str, optional
        or not, else a list with commas.
        """
        metadata = {"about": About(self, meaning, within, **more)}
        if isinstance(default, (list, dict)):
            return dataclasses.field(
                default_factory=default.copy, metadata=metadata
            )
        return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class About:
    """A flag's declaration, besides its field's type and default.

    Attributes:
        topic: heading of `--help` for the flag.
        meaning: one or two sentences for `--help`, with the unit.
        within: the allowed values; None is always allowed.
        flag: the flag's name, if it is not the field's.
        alias: a second name of the flag.
        choices: all values that a str may have.
        repeated: whether the flag is repeated to give several values.
        needs: flags without which this one means nothing; `a|b` is either.
        recorded: whether `run.json`, or of a task the adapter's description,
            has the value; another value makes another run.
    """

    topic: Topic
    meaning: str
    within: Optional[Range] = None
    flag: str = ""
    alias: str = ""
    choices: Sequence[str] = ()
    repeated: bool = False
    needs: tuple[str, ...] = ()
    recorded: bool = False


def declared(
    classes: Sequence[type],
) -> Iterator[tuple[str, About, dataclasses.Field]]:
    """Flags by name, those of nested dataclasses in their place."""
    for declaring in classes:
        for field in dataclasses.fields(declaring):
            about = field.metadata.get("about")
            if about:
                yield about.flag or field.name, about, field
            elif dataclasses.is_dataclass(field.type):
                yield from declared([field.type])


def default_of(field: dataclasses.Field) -> Any:
    """Returns a field's default."""
    if field.default is dataclasses.MISSING:
        return field.default_factory()
    return field.default


def define(
    classes: Sequence[type], values: flags.FlagValues = flags.FLAGS
) -> flags.FlagValues:
    """Defines the flags of dataclasses among the known flags."""
    plain = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    for name, about, field in declared(classes):
        kind, default = field.type, default_of(field)
        if typing.get_origin(kind) is typing.Union:
            [kind] = set(typing.get_args(kind)) - {type(None)}
        if isinstance(default, Mapping):
            default = list(default)
        make = plain.get(kind, flags.DEFINE_list)
        if about.repeated:
            make = flags.DEFINE_multi_string
        if about.choices:
            make = functools.partial(
                flags.DEFINE_enum, enum_values=about.choices
            )
        make(name, default, help=about.meaning, flag_values=values)
        if about.alias:
            flags.DEFINE_alias(about.alias, name, flag_values=values)
    return values


def read(declaring: type[Declared], **values: Any) -> Declared:
    """A dataclass with the flags' values.

    Args:
        declaring: the dataclass.
        values: of fields that are no flags, or that need more than their flag.
    """
    for field in dataclasses.fields(declaring):
        about = field.metadata.get("about")
        if field.name in values:
            continue
        if about:
            name = about.flag or field.name
            values[field.name] = FLAGS[name].value
            _check_needs(name, about)
        elif dataclasses.is_dataclass(field.type):
            if any(declared([field.type])):
                values[field.name] = read(field.type)
    return check(declaring(**values))


def _check_needs(name: str, about: About) -> None:
    value = FLAGS[name].value
    if not is_given(name) or value is False or value in ("", []):
        return
    for needed in about.needs:
        others = needed.split("|")
        if not any(FLAGS[other].value for other in others):
            ways_out = " or ".join(f"--{other}" for other in others)
            raise UserError(
                f"--{name} means nothing without {ways_out}; pass {ways_out} "
                f"too, or leave --{name} out"
            )


def check(values: Declared) -> Declared:
    """Refuses a dataclass's values that are out of range; returns them.

    A dataclass may name the fields that need a value in `REQUIRED`.
    """
    required = getattr(values, "REQUIRED", ())
    for name in required:
        if getattr(values, name) in (None, "", []):
            raise UserError(
                f"--{name} is missing; expected "
                + ", ".join(f"--{needed}" for needed in required)
            )
    for field in dataclasses.fields(values):
        about, value = field.metadata.get("about"), getattr(values, field.name)
        within = about and about.within
        if within and value is not None and not within.holds(value):
            name = about.flag or field.name
            raise UserError(f"--{name} is {value!r}, {within.problem}")
    return values


def is_given(name: str) -> bool:
    """Tells whether the command line has a flag."""
    return bool(FLAGS[name].present)


def command_line() -> list[str]:
    """Returns the flags that were given, as words of a command line."""
    flags_by_name = {FLAGS[name].name: FLAGS[name] for name in FLAGS}
    words = []
    for flag in flags_by_name.values():
        if not flag.present or flag.help.startswith("Alias for --"):
            continue
        if isinstance(flag, flags.MultiFlag):
            words += [f"--{flag.name}={value}" for value in flag.value]
        else:
            words.append(flag.serialize())
    return words


def recorded(values: Any) -> dict[str, Any]:
    """A dataclass's own recorded settings, by their fields' names."""
    return {
        field.name: getattr(values, field.name)
        for field in dataclasses.fields(values)
        if "about" in field.metadata and field.metadata["about"].recorded
    }


# --help

# Placeholders for values in --help, by the flag's type.
VALUES = {"int": "N", "float": "X", "comma separated list of strings": "A,B"}
END = """\
--helpfull also shows the flags of absl, as --flagfile=FILE, a file with one
flag per line."""


def by_topic(
    classes: Sequence[type],
    values: flags.FlagValues = flags.FLAGS,
    without: Collection[str] = (),
) -> Iterator[tuple[str, list[flags.Flag]]]:
    """Topics in their order, with the flags of each, `without` some."""
    for topic in Topic:
        names = [
            name
            for first, about, _ in declared(classes)
            if about.topic is topic and first not in without
            for name in (first, about.alias)
            if name
        ]
        if names:
            yield topic.value, [values[name] for name in names]


def shown_default(flag: flags.Flag) -> str:
    """A flag's default as text, "" if its meaning names the default."""
    is_told = "default:" in flag.help.lower()
    if is_told or flag.default in (None, "", []):
        return ""
    return flag.default_as_str.strip("'")


def page(
    program: str,
    doc: str,
    classes: Sequence[type],
    values: flags.FlagValues = flags.FLAGS,
    without: Collection[str] = (),
) -> str:
    """Gets the text of `--help`: a program's purpose, and its flags by topic.

    `without` names flags that the program refuses.
    """
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
    for topic, shown in by_topic(classes, values, without):
        group = parser.add_argument_group(topic)
        for flag in shown:
            meaning, default = flag.help, shown_default(flag)
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


# Command lines

# Expected values by a flag's type, for errors.
EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
}
# More than any flag's name has, in characters.
LONGEST_NAME = 40
HELP = re.compile(r"--?(help|helpshort|\?)(=(true|t|1|yes|y))?", re.I)


def _of_wrong_value(
    values: flags.FlagValues, error: flags.IllegalFlagValueError
) -> UserError:
    named = re.match(r"flag --(\w+)=", str(error))
    expected = EXPECTED.get(named and values[named[1]].flag_type())
    if expected is None:
        return UserError(str(error))
    problem = str(error).removesuffix(str(error.__context__))
    return UserError(f"{problem}expected {expected}")


def at_home(path: Any) -> Any:
    """Replaces `~/` at the start of a path by the home folder's.

    Text alone is changed, and in a list also the path of NAME=PATH.
    """
    if isinstance(path, list):
        parts = (re.match(r"(\w[^=~/]*=)?(.*)", p, re.S) for p in path)
        return [(part[1] or "") + at_home(part[2]) for part in parts]
    is_home = isinstance(path, str) and re.match(r"~[^/\s]*/", path)
    return os.path.expanduser(path) if is_home else path


def _find_home(flag: flags.Flag) -> None:
    if flag.present:
        flag.value = at_home(flag.value)


def parse(
    values: flags.FlagValues,
    arguments: list[str],
    names: Optional[Sequence[str]] = (),
) -> list[str]:
    """Gives flags the values of a command line.

    Args:
        values: the flags.
        arguments: the program's name, then its arguments.
        names: of the words that go with the flags; None takes any words, and
            flags that are not among `values`.

    Returns:
        The program's name, then the words.
    """
    try:
        arguments = values.read_flags_from_files(arguments, force_gnu=False)
        for argument in arguments[1:]:
            if argument == "--":
                break
            # absl recurses over names that it compares.
            name = argument.partition("=")[0]
            if (
                len(name) > LONGEST_NAME
                and name[0] == "-"
                and names is not None
            ):
                raise UserError(
                    f"no flag has so long a name as {name[:LONGEST_NAME]}..."
                )
        left = values(arguments, known_only=names is None)
        for name in values:
            _find_home(values[name])
    except UnicodeError as error:
        raise UserError(f"the --flagfile is not UTF-8 text: {error}") from error
    except flags.IllegalFlagValueError as error:
        raise _of_wrong_value(values, error) from error
    # ValueError: of "--noflag=value".
    except (flags.Error, ValueError, OSError) as error:
        raise UserError(str(error)) from error
    if names is None or len(left) - 1 == len(names):
        return left
    if len(left) - 1 < len(names):
        raise UserError(
            f"{names[len(left) - 1]} is missing; expected "
            f"{' '.join([left[0], *names])}"
        )
    extra = left[1 + len(names)]
    for flag, word in zip(arguments, arguments[1:]):
        for name in (flag.lstrip("-"), flag.lstrip("-").removeprefix("no")):
            if word == extra and name in values and values[name].boolean:
                raise UserError(
                    f"unexpected: {word} after {flag}; write --{name}=true "
                    f"or --{name}=false"
                )
    raise UserError(
        f"unexpected: {extra}; expected --name=value, with commas "
        "between several values"
    )


def parse_or_help(module: ModuleType, arguments: list[str]) -> list[str]:
    """Parses a program's flags, or prints its page and ends the program."""
    if any(map(HELP.fullmatch, arguments[1:])):
        name = os.path.basename(arguments[0])
        shown = page(
            name,
            module.__doc__,
            module.SETTINGS,
            without=getattr(module, "REFUSED", ()),
        )
        print(shown, end="")
        sys.exit(0)
    return parse(flags.FLAGS, arguments)


def read_command_line(
    declaring: type[Declared],
    doc: str,
    names: Optional[Sequence[str]] = (),
    arguments: Optional[Sequence[str]] = None,
) -> tuple[Declared, list[str]]:
    """Reads a command line, or prints its page and ends the program.

    Args:
        declaring: dataclass of the flags.
        doc: the program's purpose, for `--help`.
        names: as of `parse`.
        arguments: the program's name, then its arguments; default: this
            process's.

    Returns:
        The flags' values, and the words.
    """
    program, *words = sys.argv if arguments is None else arguments
    values = define([declaring], flags.FlagValues())
    if any(map(HELP.fullmatch, words)):
        shown = " ".join([program, *(names or ())])
        print(page(shown, doc, [declaring], values), end="")
        sys.exit(0)
    words = parse(values, [program, *words], names)[1:]
    with _as_current(values):
        return read(declaring), words


# Keywords


@contextlib.contextmanager
def of_keywords(
    classes: Sequence[type],
    keywords: Mapping[str, Any],
    caller: str,
    fixed: Mapping[str, Any] = {},
) -> Iterator[None]:
    """A context in which code reads these keywords as its flags.

    The flags of the process are neither read nor changed. Other threads keep
    theirs.

    Args:
        classes: dataclasses that declare the flags.
        keywords: values by the flags' names, as a command line has them, or
            in Python's own types. None stands for the default. A mapping
            stands for NAME=VALUE pairs, or for JSON where a flag is one text.
        caller: name of the function that was called, for messages.
        fixed: further values, which the function's arguments say. They may be
            of any type, as rows in memory.
    """
    values = define(classes, flags.FlagValues())
    values.mark_as_parsed()
    for name, value in (*fixed.items(), *keywords.items()):
        if name in fixed and keywords.get(name) is not None:
            raise UserError(
                f"{caller} takes no keyword {name!r}: its arguments, or "
                "load_bert(), say it"
            )
        if name not in values:
            near = difflib.get_close_matches(name, values, 1)
            raise UserError(
                f"{caller} takes no keyword {name!r}"
                + (f" (did you mean {near[0]}?)" if near else "")
                + "; docs/flags.md lists the keywords of each task"
            )
        if value is None:
            continue
        flag = values[name]
        argument = _as_argument(name, value, flag.flag_type())
        try:
            if name in fixed and flag.flag_type() == "string":
                flag.value = argument
            else:
                flag.parse(argument)
        except flags.IllegalFlagValueError as error:
            raise _of_wrong_value(values, error) from error
        # Of a list that is empty too.
        flag.present = 1
        _find_home(flag)
    with _as_current(values):
        yield


@contextlib.contextmanager
def of_words(
    classes: Sequence[type], program: str, words: Sequence[str]
) -> Iterator[None]:
    """A context in which code reads a command line's words as its flags.

    Else as `of_keywords`.

    Args:
        classes: dataclasses that declare the flags.
        program: name of the program, for messages.
        words: all that follows the program's name.
    """
    values = define(classes, flags.FlagValues())
    parse(values, [program, *words])
    with _as_current(values):
        yield


@contextlib.contextmanager
def _as_current(values: flags.FlagValues) -> Iterator[None]:
    token = _current.set(values)
    try:
        yield
    finally:
        _current.reset(token)


def _as_argument(name: str, value: Any, kind: str) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        if kind == "string":
            return json.dumps(dict(value), ensure_ascii=False)
        return [f"{name}={part}" for name, part in value.items()]
    # Of numpy and pandas: arrays, columns and numbers.
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, tuple):
        value = list(value)
    is_list = "list" in kind or kind.startswith("multi")
    if not is_list or isinstance(value, str):
        return value
    parts = []
    for part in value if isinstance(value, list) else [value]:
        if type(part) in (int, float):
            part = str(part)
        if not isinstance(part, (str, os.PathLike)):
            raise UserError(
                f"--{name} has a {type(part).__name__}, expected a list of "
                "texts or numbers"
            )
        parts.append(os.fspath(part))
    return parts
