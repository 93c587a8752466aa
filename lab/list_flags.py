"""Prints docs/flags.md: every flag, and every method's arguments.

.venv/bin/python -m scripts.list_flags > docs/flags.md
"""

import dataclasses
import pathlib
import subprocess
import sys
from typing import Dict, Iterable, List, Tuple
from xml.etree import ElementTree

from adapter_bert import command_line
from adapter_bert.methods.registry import METHODS
from adapter_bert.training.help_page import TOPICS

ROOT = pathlib.Path(__file__).parents[1]
# Programs that have most flags in common.
GROUPS = (
    ("run_classifier.py", "run_squad.py", "run_tagger.py", "run_mlm.py"),
    ("predict.py", "export_model.py"),
)
OTHERS = ("serve.py",)

# Name -> (default, meaning)
Flags = Dict[str, Tuple[str, str]]


def flags_of(program: str) -> Flags:
    """The flags of an entry point, without those of absl."""
    text = subprocess.run(
        [sys.executable, program, "--helpxml"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,  # absl ends with 1 after any help.
    ).stdout
    return {
        flag.findtext("name"): (
            flag.findtext("default") or "",
            " ".join(flag.findtext("meaning").split()).replace("|", r"\|"),
        )
        for flag in ElementTree.fromstring(text).iter("flag")
        if flag.findtext("key") == "yes"
    }


def table(header: Tuple[str, ...], rows: Iterable[Tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
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
    return table(("topic", "flag", "default", ""), rows)


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
    return table(("method", "arguments", ""), rows).replace("| `` |", "| |")


def main() -> None:
    """Prints the page."""
    print("# Flags\n")
    print("`.venv/bin/python -m scripts.list_flags` prints this page.\n")
    for programs in GROUPS:
        first, *others = found = list(map(flags_of, programs))
        shared = {
            name: flag
            for name, flag in first.items()
            if all(flag == other.get(name) for other in others)
        }
        *names, last = (f"`{program}`" for program in programs)
        print(f"## Of {', '.join(names)} and {last}\n\n{flag_table(shared)}")
        for program, flags in zip(programs, found):
            own = {k: flag for k, flag in flags.items() if k not in shared}
            print(f"## Of `{program}`\n\n{flag_table(own)}")
    for program in OTHERS:
        print(f"## Of `{program}`\n\n{flag_table(flags_of(program))}")
    print("## Arguments of `--tuning_method`\n")
    print("As in `--tuning_method='lora(rank=16, alpha=16.0)'`.\n")
    print(method_table(), end="")


if __name__ == "__main__":
    command_line.run(main)
