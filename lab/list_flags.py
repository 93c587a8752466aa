"""Prints docs/flags.md: every flag, and every method's arguments.

.venv/bin/python -m lab.list_flags > docs/flags.md
"""

import dataclasses
import json
import subprocess
import sys
from typing import Dict, List, Tuple

from adapter_bert import command_line
from adapter_bert.methods.registry import METHODS
from adapter_bert.training.help_page import TOPICS

# Programs that have most flags in common.
GROUPS = (
    ("run_classifier", "run_squad", "run_tagger", "run_mlm"),
    ("predict", "export"),
)
OTHERS = ("serve",)
# Prints the flags of a program, in a process of its own: two programs may have
# a flag of the same name.
LIST = """
import importlib, json, sys
from absl import flags
module = importlib.import_module("adapter_bert.commands." + sys.argv[1])
module.define_flags()
found = flags.FLAGS.get_key_flags_for_module(module.__name__)
def default(flag):
    if isinstance(flag.default, bool):
        return str(flag.default).lower()
    if flag.serializer and flag.default is not None:
        return flag.serializer.serialize(flag.default)
    return "" if flag.default is None else str(flag.default)
print(json.dumps({flag.name: [default(flag), flag.help] for flag in found}))
"""

# Name -> (default, meaning)
Flags = Dict[str, Tuple[str, str]]


def title(program: str) -> str:
    """The name of a program as users type it."""
    is_file = program.startswith("run_")
    return f"{program}.py" if is_file else f"adapter-bert {program}"


def flags_of(program: str) -> Flags:
    """The flags of a subcommand, without those of absl."""
    found = json.loads(
        subprocess.run(
            [sys.executable, "-c", LIST, program],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        ).stdout
    )
    return {
        name: (default, " ".join(meaning.split()).replace("|", r"\|"))
        for name, (default, meaning) in found.items()
    }


def table(*lines: Tuple[str, ...]) -> str:
    """A Markdown table, of a header and rows."""
    lines = (lines[0], ("---",) * len(lines[0]), *lines[1:])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def flag_table(flags: Flags) -> str:
    """A row for each flag, by topic as `--help` has them."""
    rows = []
    for topic, names in TOPICS.items():
        for name in (name for name in names if name in flags):
            default, meaning = flags[name]
            # What the meaning says of the default counts, as in --help.
            is_told = "default:" in meaning.lower()
            shown = "" if is_told or default in ("", "[]") else f"`{default}`"
            rows.append((topic, f"`--{name}`", shown, meaning))
            # Once for all of its flags.
            topic = ""
    return table(("topic", "flag", "default", ""), *rows)


def method_table() -> str:
    """A row for each tuning method."""
    rows: List[Tuple[str, ...]] = []
    for name, method in METHODS.items():
        arguments = (
            "parts ..."
            if field.name == "parts"
            else f"{field.name}={field.default!r}"
            for field in dataclasses.fields(method)
        )
        first = " ".join(method.__doc__.split("\n\n")[0].split())
        rows.append((f"`{name}`", f"`{', '.join(arguments)}`", first))
    return table(("method", "arguments", ""), *rows).replace("| `` |", "| |")


def main() -> None:
    """Prints the page."""
    print("# Flags\n")
    print("`.venv/bin/python -m lab.list_flags` prints this page.\n")
    for programs in GROUPS:
        first, *others = found = list(map(flags_of, programs))
        shared = {
            name: flag
            for name, flag in first.items()
            if all(flag == other.get(name) for other in others)
        }
        *names, last = (f"`{title(program)}`" for program in programs)
        print(f"## Of {', '.join(names)} and {last}\n\n{flag_table(shared)}")
        for program, flags in zip(programs, found):
            own = {k: flag for k, flag in flags.items() if k not in shared}
            print(f"## Of `{title(program)}`\n\n{flag_table(own)}")
    for program in OTHERS:
        print(f"## Of `{title(program)}`\n\n{flag_table(flags_of(program))}")
    print("## Arguments of `--tuning_method`\n")
    print("As in `--tuning_method='lora(rank=16, alpha=16.0)'`.\n")
    print(method_table(), end="")


if __name__ == "__main__":
    command_line.run(main)
