"""Prints docs/flags.md: flags of programs, and every method's arguments.

.venv/bin/python -m lab.list_flags > docs/flags.md
"""

import dataclasses
import importlib

import adapter_bert.start_tensorflow  # noqa: F401

from absl.flags import FlagValues

from adapter_bert import command_line
from adapter_bert.flag_page import by_topic, shown_default
from adapter_bert.flags import define
from adapter_bert.methods.registry import METHODS, PRESETS
from lab.report import markdown

# Programs that have most flags in common.
GROUPS = (
    (
        "run_classifier",
        "run_squad",
        "run_tagger",
        "run_mlm",
        "run_vectors",
        "run_pretraining",
    ),
    ("predict", "export"),
)
OTHERS = (
    "audit",
    "baseline",
    "create_pretraining_data",
    "extract_features",
    "mine",
    "select",
    "serve",
)

# Name -> (topic, default, meaning)
Flags = dict[str, tuple[str, str, str]]


def title(program: str) -> str:
    """Returns the name of a program as users type it."""
    is_file = program.startswith(("run_", "create_", "extract_"))
    return f"{program}.py" if is_file else f"adapter-bert {program}"


def flags_of(program: str) -> Flags:
    """Returns the flags of a subcommand, without those of absl."""
    module = importlib.import_module(f"adapter_bert.commands.{program}")
    values = define(module.SETTINGS, FlagValues())
    refused = getattr(module, "REFUSED", ())
    return {
        flag.name: (
            topic,
            shown_default(flag),
            " ".join(flag.help.split()).replace("|", r"\|"),
        )
        for topic, shown in by_topic(module.SETTINGS, values, refused)
        for flag in shown
    }


def flag_table(flags: Flags) -> str:
    """A row for each flag, by topic as `--help` has them."""
    rows, last = [], ""
    for name, (topic, default, meaning) in flags.items():
        shown = default and f"`{default}`"
        # Once for all of its flags.
        rows.append(
            (topic if topic != last else "", f"`--{name}`", shown, meaning)
        )
        last = topic
    return markdown([("topic", "flag", "default", ""), *rows])


def method_table() -> str:
    """A row for each tuning method."""
    rows: list[tuple[str, ...]] = []
    for name, method in METHODS.items():
        arguments = (
            "parts ..."
            if field.name == "parts"
            else f"{field.name}={field.default!r}"
            for field in dataclasses.fields(method)
        )
        first = " ".join(method.__doc__.split("\n\n")[0].split())
        first = first.replace("|", r"\|")
        rows.append((f"`{name}`", f"`{', '.join(arguments)}`", first))
    for name, text in PRESETS.items():
        rows.append((f"`{name}`", "", f"`{text}`"))
    table = markdown([("method", "arguments", ""), *rows])
    return table.replace("| `` |", "| |")


def main() -> None:
    """Prints the page."""
    print("# Flags\n")
    print("`adapter-bert PROGRAM --help` shows the flags of a program.\n")
    for programs in GROUPS:
        first, *others = pages = list(map(flags_of, programs))
        shared = {
            name: flag
            for name, flag in first.items()
            if all(flag == other.get(name) for other in others)
        }
        *names, last = (f"`{title(program)}`" for program in programs)
        print(f"## Of {', '.join(names)} and {last}\n\n{flag_table(shared)}")
        for program, flags in zip(programs, pages):
            program_flags = {
                k: flag for k, flag in flags.items() if k not in shared
            }
            print(f"## Of `{title(program)}`\n\n{flag_table(program_flags)}")
    for program in OTHERS:
        print(f"## Of `{title(program)}`\n\n{flag_table(flags_of(program))}")
    print("## Arguments of `--tuning_method`\n")
    print("As in `--tuning_method='lora(rank=16, alpha=16.0)'`.\n")
    print(method_table(), end="")


if __name__ == "__main__":
    with command_line.run():
        main()
