r"""Keeps trained adapters in a library; exchanges them with other programs.

    .venv/bin/adapter-bert library add shelf out/mrpc
    .venv/bin/adapter-bert library list shelf
    .venv/bin/adapter-bert library export shelf mrpc hub/mrpc \
        --to=adapterhub
    .venv/bin/adapter-bert library push shelf mrpc hf:ORG/mrpc
    .venv/bin/adapter-bert library move shelf --init_checkpoint=$BERT \
        --to=$NEW_BERT --texts=texts.jsonl --output_dir=new_shelf

docs/library.md and docs/exchange.md tell more.
"""

import dataclasses
import inspect
import json
import sys
from collections.abc import Sequence
from typing import Any, Optional

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert import files
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import load_task
from adapter_bert.checkpoints import adapter_artifact, part_values
from adapter_bert.checkpoints.bert_flags import BertFiles
from adapter_bert.data.table_flags import TextColumns
from adapter_bert.data.tables import READERS, SplitFiles
from adapter_bert.errors import UserError
from adapter_bert.flag_page import read_command_line
from adapter_bert.flags import HELP, POSITIVE, Topic
from adapter_bert.library import moved_library, suggestion
from adapter_bert.library.adapter_library import AdapterLibrary, check
from adapter_bert.library.foreign import Export, Import, Push
from adapter_bert.methods import registry
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.novelty import NOVELTY
from adapter_bert.training import saved_steps
from adapter_bert.training.settings import Experiment, Training

COLUMNS = "name task kind labels method MB score data added base".split()


@dataclasses.dataclass(frozen=True)
class Add:
    """Copies a trained adapter into the library.

    FOLDER is of an adapter, or of the run that trained it.
    """

    WORDS = ("FOLDER",)
    name: Optional[str] = Topic.TO_DO.setting(
        None,
        "Name of the adapter; default: its task's, or for your own data the "
        "name of their folder or file.",
    )

    def run(self, library: AdapterLibrary, folder: str) -> None:
        """Adds it."""
        before = library.names()
        name = library.add(folder, self.name)
        print(f"{'kept' if name in before else 'added'} {name}")


@dataclasses.dataclass(frozen=True)
class List:
    """Lists the adapters."""

    json: bool = Topic.TO_DO.setting(False, "Print JSON, for programs.")

    def run(self, library: AdapterLibrary) -> None:
        """Prints a line for each, damaged ones too."""
        entries: list[dict[str, Any]] = []
        for name in library.names():
            try:
                entries.append(dataclasses.asdict(library.entry(name)))
            except UserError as error:
                # Another process may have removed it by now.
                if name in library.names():
                    entries.append({"name": name, "problem": str(error)})
        if self.json:
            print(_plain_json(entries), end="")
        else:
            print(_table([COLUMNS, *map(_row, entries)]), end="")


def _row(entry: dict[str, Any]) -> list[str]:
    if "problem" in entry:
        return [entry["name"], f"DAMAGED: {entry['problem']}"]
    labels = json.dumps(
        entry["labels"], ensure_ascii=False, separators=(",", ":")
    )[1:-1]
    metric, score = next(iter(entry["scores"].items()), ("", 0.0))
    return [
        entry["name"],
        entry["task"],
        entry["kind"],
        (labels or "-")
        if len(labels) <= 30
        else f"{len(entry['labels'])} labels",
        entry["method"],
        f"{entry['bytes'] / 1e6:.3f}",
        f"{metric} {score:.4f}" if metric else "-",
        ",".join(sha[:8] for sha in entry["data"].values()) or "-",
        entry["added"][:10] or "-",
        f"{entry['base']} {entry['base_fingerprint'][:8]}",
    ]


def _plain_json(value: Any) -> str:
    return "".join(
        c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1]
        for c in files.json_text(value)
    )


def _table(table: list[list[str]]) -> str:
    """Aligned columns; the first row is the header.

    Control characters of an adapter's description, which could command a
    terminal, become spaces.
    """
    table = [
        ["".join(c if c.isprintable() else " " for c in t) for t in row]
        for row in table
    ]
    # A damaged adapter's row has two columns, of any width.
    whole = [row for row in table if len(row) == len(table[0])]
    widths = [max(map(len, column)) for column in zip(*whole)]
    lines = (
        "  ".join(text.ljust(width) for text, width in zip(row, widths))
        for row in table
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


@dataclasses.dataclass(frozen=True)
class Show:
    """Prints all that is known of the adapter NAME, as JSON."""

    WORDS = ("NAME",)

    def run(self, library: AdapterLibrary, name: str) -> None:
        """Prints it."""
        config = adapter_artifact.read_config(library.folder(name))
        settings = config.get("task_settings", {})
        if NOVELTY in settings:
            # A sketch is a hundred thousand letters.
            config["task_settings"] = {**settings, NOVELTY: True}
        entry = dataclasses.asdict(library.entry(name))
        print(_plain_json({**entry, "adapter_config": config}), end="")


@dataclasses.dataclass(frozen=True)
class Verify(BertFiles):
    """Checks that every adapter is whole, and fits a BERT if one is named."""

    def run(self, library: AdapterLibrary) -> None:
        """Prints a line for each; refuses a library with damaged ones."""
        bert = _open_bert(self) if self.init_checkpoint else None
        problems = looked_at = 0
        for name in library.names():
            try:
                library.entry(name)
                check(library.folder(name))
                part_values.check_parts(library.folder(name))
                if bert:
                    load_task(bert, library.folder(name), None)
                looked_at += 1
                print(f"{name}: whole")
            except UserError as error:
                if name not in library.names():
                    print(f"{name}: not there any more")
                    continue
                looked_at += 1
                problems += 1
                print(f"{name}: {error}")
        if problems:
            raise UserError(
                f"{problems} of {looked_at} adapters of {library.path} cannot "
                "be used; remove those that are damaged, and add them or the "
                "missing ones again"
            )


def _open_bert(files: BertFiles) -> FrozenBert:
    return FrozenBert.open(
        files.init_checkpoint, files.bert_config_file, files.vocab_file
    )


@dataclasses.dataclass(frozen=True)
class Remove:
    """Deletes the adapter NAME."""

    WORDS = ("NAME",)
    force: bool = Topic.TO_DO.setting(
        False, "Delete it even if it is a part of another adapter."
    )

    def run(self, library: AdapterLibrary, name: str) -> None:
        """Deletes it."""
        library.remove(name, self.force)
        print(f"removed {name}")


@dataclasses.dataclass(frozen=True)
class Rename:
    """Gives the adapter NAME the name NEW_NAME."""

    WORDS = ("NAME", "NEW_NAME")

    def run(self, library: AdapterLibrary, name: str, new_name: str) -> None:
        """Renames it."""
        library.rename(name, new_name)
        print(f"{name} is called {new_name} now")


@dataclasses.dataclass(frozen=True)
class Suggest(BertFiles, TextColumns):
    """Ranks the adapters as beginnings of a new training."""

    REQUIRED = ("init_checkpoint", "train_file")
    REFUSED = ("id_column",)
    train_file: str = Topic.DATA.setting(
        "", "Rows of the new task: .tsv, .csv, .jsonl or .json."
    )
    header: bool = Topic.TABLES.setting(
        True, "Whether the first line names the columns."
    )
    regression: bool = Topic.TABLES.setting(
        False, "Whether labels are numbers."
    )
    rows: int = Topic.DATA.setting(
        1000, "Rows to compare with, drawn at random.", POSITIVE
    )
    max_seq_length: int = Topic.DATA.setting(
        128, "Longest input in tokens.", POSITIVE
    )
    seed: int = Topic.TO_DO.setting(
        1, "Seed of the drawn rows and of trainings.", POSITIVE
    )
    try_steps: Optional[int] = Topic.TRAINING.setting(
        None,
        "Train so many steps from the first adapter that is no composition, "
        "and from nothing, and tell "
        "the steps that it saves; with --eval_file.",
        POSITIVE,
    )
    eval_file: str = Topic.DATA.setting(
        "", "Rows that score the trainings of --try_steps."
    )
    json: bool = Topic.TO_DO.setting(False, "Print JSON, for programs.")

    def run(self, library: AdapterLibrary) -> None:
        """Prints the candidates, and the steps that the first one saves."""
        logging.set_verbosity(logging.INFO)
        if self.id_column:
            raise UserError("--id_column is for predictions; leave it out")
        if bool(self.try_steps) != bool(self.eval_file):
            raise UserError(
                "--try_steps and --eval_file go together: the length of the "
                "trainings, and the dev rows that score them"
            )
        task = custom_task(
            self.text_a_column,
            self.text_b_column,
            self.label_column,
            header=self.header,
            regression=self.regression,
            split_files=SplitFiles(self.train_file, self.eval_file),
        )
        task.split_files.check(READERS, can_hold_out=False)
        splits = ["train", "dev"] if self.try_steps else ["train"]
        learned, rows = task.read("", splits)
        learned = learned.learn(rows["train"])
        bert = _open_bert(self)
        drawn = suggestion.draw(rows["train"], self.rows, self.seed)
        ranked = suggestion.rank(
            bert, library, learned, drawn, self.max_seq_length
        )
        candidates = list(map(dataclasses.asdict, ranked))
        report = {"rows": len(drawn), "candidates": candidates}
        if not self.json:
            lines = [
                [c.name or "-", c.task or "-", c.method or "BERT alone"]
                + [f"{c.logme:.4f}"]
                for c in ranked
            ]
            header = ["name", "task", "method", "LogME"]
            print(_table([header, *lines]), end="")
        if self.try_steps:
            alone = [
                candidate
                for candidate in ranked
                if candidate.name and not registry.parse(candidate.method).parts
            ]
            if not alone:
                raise UserError(
                    "--try_steps begins with one adapter, and all that were "
                    "ranked are compositions; leave it out"
                )
            first = alone[0]
            saved = saved_steps.measure(
                Experiment(
                    task,
                    registry.parse(first.method),
                    first.method,
                    {},
                    max_seq_length=self.max_seq_length,
                    init_checkpoint=self.init_checkpoint,
                    bert_config_file=self.bert_config_file,
                    vocab_file=self.vocab_file,
                    library=library.path,
                    training=Training(
                        num_train_steps=self.try_steps, seed=self.seed
                    ),
                ),
                library.folder(first.name),
            )
            report["saved_steps"] = {"adapter": first.name, **saved}
            if not self.json:
                print(saved_steps.line(saved, first.name))
        if self.json:
            print(_plain_json(report), end="")


@dataclasses.dataclass(frozen=True)
class Move(moved_library.Move):
    """Trains the adapters anew on another BERT, from texts."""

    def run(self, library: AdapterLibrary) -> None:
        """Prints what came of each adapter."""
        logging.set_verbosity(logging.INFO)
        moved = moved_library.move(library, self)
        print(_table(moved_library.table(moved)), end="")


COMMANDS: dict[str, Any] = {
    "add": Add,
    "list": List,
    "show": Show,
    "verify": Verify,
    "suggest": Suggest,
    "remove": Remove,
    "rename": Rename,
    "import": Import,
    "export": Export,
    "push": Push,
    "move": Move,
}


def parse(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Reads the arguments of `adapter-bert library`, or prints its page.

    Returns:
        One of `COMMANDS` with the flags' values, and its words, of which the
        library's folder is the first.
    """
    name, *arguments = words or [""]
    if HELP.fullmatch(name):
        lines = [
            f"  {n:8}  {c.__doc__.splitlines()[0]}\n"
            for n, c in COMMANDS.items()
        ]
        print(
            "usage: adapter-bert library COMMAND LIBRARY [arguments]\n\n"
            f"{__doc__.split(chr(10))[0]}\n\n{''.join(lines)}\n"
            "adapter-bert library COMMAND --help shows a command's arguments."
        )
        sys.exit(0)
    if name not in COMMANDS:
        raise UserError(
            f"expected adapter-bert library COMMAND LIBRARY, not {name!r}; "
            f"commands are {', '.join(COMMANDS)}"
        )
    declaring = COMMANDS[name]
    return read_command_line(
        declaring,
        inspect.getdoc(declaring),
        ["LIBRARY", *getattr(declaring, "WORDS", ())],
        [f"adapter-bert library {name}", *arguments],
    )


def main() -> None:
    """Does what the command line says."""
    command, (folder, *words) = parse(sys.argv[1:])
    is_made = isinstance(command, (Add, Import))
    command.run(AdapterLibrary(folder, create=is_made), *words)
