"""Flags: fields of dataclasses that declare, parse, show and read them.

A field made by `Topic.setting` is the only declaration of its flag: the flag,
`--help`, docs/flags.md, the value that code reads, and the setting in
`run.json` come from the field. A caller in Python gives the same flags as
keywords (`keywords.py`), and `flag_page.py` has the text of `--help`.
"""

import contextlib
import contextvars
import dataclasses
import enum
import functools
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from absl import flags

from adapter_bert.errors import UserError

# The flags of this process, or of a caller (`as_current`).
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


def at_least(least: int) -> Range:
    """Allows numbers from this one on."""
    return Range(lambda value: value >= least, f"expected >= {least}")


POSITIVE, NOT_NEGATIVE = at_least(1), at_least(0)
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
    TABLES = "Your own tables"
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
        """Makes a dataclass's field a flag; `About` has the arguments.

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
    """Makes a dataclass of the flags' values.

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
    """Lists a dataclass's recorded settings, by their fields' names."""
    return {
        field.name: getattr(values, field.name)
        for field in dataclasses.fields(values)
        if "about" in field.metadata and field.metadata["about"].recorded
    }


# Command lines

# Expected values by a flag's type, for errors.
EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
}
# More than any flag's name has, in characters.
LONGEST_NAME = 40
HELP = re.compile(r"--?(h|help|helpshort|\?)(=(true|t|1|yes|y))?", re.I)


def of_wrong_value(
    values: flags.FlagValues, error: flags.IllegalFlagValueError
) -> UserError:
    """Gives the error about a value that its flag does not take."""
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
        for before, argument in zip(arguments, arguments[1:]):
            if argument == "--":
                break
            name, flag = argument.partition("=")[0], before.lstrip("-")
            is_value = flag in values and not values[flag].boolean
            # absl compares an unknown name with all others, by recursion.
            is_long = len(name) > LONGEST_NAME and name[0] == "-"
            if is_long and not is_value and names is not None:
                raise UserError(
                    f"no flag has so long a name as {name[:LONGEST_NAME]}..."
                )
        left = values(arguments, known_only=names is None)
        for flag in map(values.__getitem__, values):
            if flag.present:
                flag.value = at_home(flag.value)
    except UnicodeError as error:
        raise UserError(f"the --flagfile is not UTF-8 text: {error}") from error
    except flags.IllegalFlagValueError as error:
        raise of_wrong_value(values, error) from error
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


@contextlib.contextmanager
def as_current(values: flags.FlagValues) -> Iterator[None]:
    """Makes code in the block read these flags."""
    token = _current.set(values)
    try:
        yield
    finally:
        _current.reset(token)
