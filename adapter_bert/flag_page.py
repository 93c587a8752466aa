"""The text of `--help`, and command lines that are read at once."""

import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from types import ModuleType
from typing import Optional

from absl import flags
from absl.flags import Flag, FlagValues

from adapter_bert.flags import (
    HELP,
    Declared,
    Topic,
    as_current,
    declared,
    define,
    parse,
    read,
)

# Placeholders for values, by the flag's type.
VALUES = {"int": "N", "float": "X", "comma separated list of strings": "A,B"}
END = """\
--helpfull also shows the flags of absl, as --flagfile=FILE, a file with one
flag per line."""
END_OF_ONE = "--flagfile=FILE reads flags from a file, one per line."
# Columns of a line, and at most before a meaning.
WIDTH, MOST = 80, 30


def by_topic(
    classes: Sequence[type],
    values: FlagValues = flags.FLAGS,
    without: Collection[str] = (),
) -> Iterator[tuple[str, list[Flag]]]:
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


def shown_default(flag: Flag) -> str:
    """A flag's default as text, "" if its meaning names the default."""
    has_default = "default:" in flag.help.lower()
    if has_default or flag.default in (None, "", []):
        return ""
    return flag.default_as_str.strip("'")


def page(
    program: str,
    doc: str,
    classes: Sequence[type],
    values: FlagValues = flags.FLAGS,
    without: Collection[str] = (),
    end: str = END,
) -> str:
    """Gets a program's purpose, and its flags by topic.

    `without` names flags that the program refuses.
    """
    rows: list[tuple[str, str]] = []
    for topic, shown in by_topic(classes, values, without):
        rows += [("", ""), (f"{topic}:", "")]
        for flag in shown:
            # absl adds a line to sentences: how some flags are repeated.
            meaning = flag.help.replace(".;\n", ";\n")
            default = shown_default(flag)
            if default:
                meaning = f"{meaning.rstrip('.')}; default: {default}."
            value = VALUES.get(flag.flag_type(), "TEXT")
            name = f"--[no]{flag.name}"
            if not flag.boolean:
                name = f"--{flag.name} {value}"
            rows.append((f"  {name}", " ".join(meaning.split())))
    longest = max((len(name) for name, text in rows if text), default=0)
    indent = min(MOST, longest + 2)
    # Many choices are one long word, which would be broken within a name.
    too_long = re.compile(rf"\S{{{WIDTH - indent + 1},}}")
    lines = [f"usage: {program} [flags]", "", doc.strip()]
    for name, text in rows:
        if not text or len(name) + 2 > indent:
            lines.append(name)
            name = ""
        lines += textwrap.wrap(
            too_long.sub(lambda word: word[0].replace("|", "| "), text),
            WIDTH,
            initial_indent=f"{name:{indent}}",
            subsequent_indent=" " * indent,
        )
    return "\n".join([*lines, "", end, ""])


def page_of(module: ModuleType, program: str) -> str:
    """Gets the page of a subcommand's module."""
    refused = getattr(module, "REFUSED", ())
    return page(program, module.__doc__, module.SETTINGS, without=refused)


def read_command_line(
    declaring: type[Declared],
    doc: str,
    names: Optional[Sequence[str]] = (),
    arguments: Optional[Sequence[str]] = None,
) -> tuple[Declared, list[str]]:
    """Reads a command line, or prints its page and ends the program.

    Args:
        declaring: dataclass of the flags; its `REFUSED` names those that the
            page leaves out.
        doc: the program's purpose, for `--help`.
        names: as of `parse`.
        arguments: the program's name, then its arguments; default: this
            process's.

    Returns:
        The flags' values, and the words.
    """
    program, *words = sys.argv if arguments is None else arguments
    values = define([declaring], FlagValues())
    if any(map(HELP.fullmatch, words)):
        shown = " ".join([program, *(names or ())])
        refused = getattr(declaring, "REFUSED", ())
        classes = [declaring]
        print(page(shown, doc, classes, values, refused, END_OF_ONE), end="")
        sys.exit(0)
    words = parse(values, [program, *words], names)[1:]
    with as_current(values):
        return read(declaring), words
