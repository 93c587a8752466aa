r"""Keeps trained adapters in a library; exchanges them with other programs.

    .venv/bin/adapter-bert library add shelf out/mrpc
    .venv/bin/adapter-bert library list shelf
    .venv/bin/adapter-bert library export shelf mrpc hub/mrpc \
        --to=adapterhub

`AdapterLibrary` does the same from Python. docs/adapter_library.md tells more.
"""

import argparse
import dataclasses
import json
import os
from typing import Any, Dict, List, Optional, Sequence

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert import command_line, files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import (
    adapter_artifact,
    exchange,
    parts,
    run_record,
    sources,
)
from adapter_bert.checkpoints.card import make_card
from adapter_bert.checkpoints.foreign import exported
from adapter_bert.checkpoints.sources import open_init_checkpoint
from adapter_bert.checkpoints.weights import identify
from adapter_bert.errors import UserError
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.library import ALL, AdapterLibrary, check, check_name
from adapter_bert.serving.loaded_task import load_task
from adapter_bert.tasks import task_model
from adapter_bert.tasks.restored import restore_task

__all__ = ["ALL", "AdapterLibrary", "export_adapter", "import_adapter"]

COLUMNS = (
    "name",
    "task",
    "kind",
    "labels",
    "method",
    "MB",
    "score",
    "data",
    "added",
    "base",
)


def import_adapter(
    library: AdapterLibrary,
    folder: str,
    name: str,
    init_checkpoint: str,
    bert_config_file: str = "",
    vocab_file: str = "",
    pairs: Optional[bool] = None,
    labels: Sequence[str] = (),
    do_lower_case: Optional[bool] = None,
) -> str:
    """Takes another program's adapter into a library.

    Args:
        library: that it goes into.
        folder: as AdapterHub's `adapters` or peft has written it.
        name: that it gets.
        init_checkpoint: the BERT that it was trained upon; its files do not
            say which that was.
        bert_config_file: of that BERT; "" for the one beside it.
        vocab_file: the same.
        pairs: whether its texts are pairs; None for either.
        labels: in the order of the logits; default: those of its files.
        do_lower_case: whether texts are lower-cased; None for what the BERT's
            files or its vocabulary say.

    Returns:
        The program that had written it.

    Raises:
        UserError: it is damaged, a pickle, of another BERT, or computes what
            no method of this project's does; or as of `AdapterLibrary.add`.
    """
    check_name(name)
    opened = open_init_checkpoint(init_checkpoint)
    config = sources.read_config(opened, bert_config_file)
    foreign = exchange.read(folder, config, pairs, labels)
    tokenizer = sources.read_tokenizer(
        opened, config, vocab_file, do_lower_case
    )
    task = restore_task(foreign.task, {}, folder)
    table = task_model.list_parameters(config, foreign.method, task.build_head)
    base = identify(opened.weights, encoder.list_variables(config))
    description = {
        "method": str(foreign.method),
        "task": foreign.task,
        "base": base.describe(),
        "tokenizer": tokenizer.describe(),
        "bert_config": dataclasses.asdict(config),
        "parameters": {
            "total": table.total_count,
            "trained": table.trained_count,
            "kept": adapter_artifact.count(foreign.values),
        },
        "versions": run_record.versions(),
        "imported": foreign.origin,
    }
    with files.temporary_folder() as place:
        adapter_artifact.write(place, description, foreign.values)
        library.add(place, name)
    return foreign.origin["program"]


def export_adapter(
    library: AdapterLibrary,
    name: str,
    folder: str,
    program: str,
    base_model: str = "",
) -> None:
    """Writes an adapter of a library for another program.

    Args:
        library: that it is in.
        name: of the adapter.
        folder: that is not there yet, or is empty.
        program: `adapterhub` or `peft`.
        base_model: by which that program finds the BERT; default: the name of
            its folder.

    Raises:
        UserError: the adapter is damaged, the program cannot compute it, or
            the folder is not empty.
    """
    entry = library.entry(name)
    artifact = check(library.folder(name))
    ours = exported(artifact, name)
    if base_model:
        ours = dataclasses.replace(ours, base_name=base_model)
    card = make_card(
        program,
        ours,
        os.path.basename(os.path.abspath(folder)),
        artifact.config,
        entry.scores,
        entry.data,
    )
    exchange.write(program, folder, ours, card)


def _add(arguments: argparse.Namespace) -> None:
    library = AdapterLibrary(arguments.library, create=True)
    name = library.add(arguments.folder, arguments.name)
    print(f"added {name}")


def _list(arguments: argparse.Namespace) -> None:
    library = AdapterLibrary(arguments.library)
    entries: List[Dict[str, Any]] = []
    for name in library.names():
        try:
            entries.append(dataclasses.asdict(library.entry(name)))
        except UserError as error:
            # Another process may have removed it by now.
            if name in library.names():
                entries.append({"name": name, "problem": str(error)})
    if arguments.json:
        print(_plain_json(entries), end="")
        return
    print(_table([_row(entry) for entry in entries]), end="")


def _row(entry: Dict[str, Any]) -> List[str]:
    """The columns of an entry."""
    if "problem" in entry:
        return [entry["name"], f"DAMAGED: {entry['problem']}"]
    labels = ",".join(
        json.dumps(x, ensure_ascii=False) for x in entry["labels"]
    )
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
        entry["added"][:10],
        f"{entry['base']} {entry['base_fingerprint'][:8]}",
    ]


def _plain_json(value: Any) -> str:
    """A value as JSON, in which control characters are written as numbers."""
    return "".join(
        c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1]
        for c in files.json_text(value)
    )


def _table(rows: List[List[str]]) -> str:
    """Rows under a header, in columns as wide as they need.

    Without the control characters that an adapter's description may hold: they
    could tell a terminal to do something.
    """
    table = [list(COLUMNS)]
    for row in rows:
        table.append(
            ["".join(c if c.isprintable() else " " for c in t) for t in row]
        )
    widths = [
        max(len(row[i]) for row in table if len(row) == len(COLUMNS))
        for i in range(len(COLUMNS))
    ]
    lines = (
        "  ".join(text.ljust(width) for text, width in zip(row, widths))
        for row in table
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _show(arguments: argparse.Namespace) -> None:
    library = AdapterLibrary(arguments.library)
    entry = dataclasses.asdict(library.entry(arguments.name))
    config = adapter_artifact.read_config(library.folder(arguments.name))
    print(_plain_json({**entry, "adapter_config": config}), end="")


def _verify(arguments: argparse.Namespace) -> None:
    library = AdapterLibrary(arguments.library)
    bert = None
    if arguments.init_checkpoint:
        bert = FrozenBert.open(
            arguments.init_checkpoint,
            arguments.bert_config_file,
            arguments.vocab_file,
        )
    problems = looked_at = 0
    for name in library.names():
        try:
            library.entry(name)
            check(library.folder(name))
            parts.check_parts(library.folder(name))
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
            f"{problems} of {looked_at} adapters of {library.path} cannot be "
            "used; remove those that are damaged, and add them or the missing "
            "ones again"
        )


def _remove(arguments: argparse.Namespace) -> None:
    AdapterLibrary(arguments.library).remove(arguments.name, arguments.force)
    print(f"removed {arguments.name}")


def _rename(arguments: argparse.Namespace) -> None:
    library = AdapterLibrary(arguments.library)
    library.rename(arguments.name, arguments.new_name)
    print(f"{arguments.name} is called {arguments.new_name} now")


def _import(arguments: argparse.Namespace) -> None:
    program = import_adapter(
        AdapterLibrary(arguments.library, create=True),
        arguments.folder,
        arguments.name,
        arguments.init_checkpoint,
        arguments.bert_config_file,
        arguments.vocab_file,
        {"one": False, "two": True, None: None}[arguments.texts],
        arguments.label,
        {"true": True, "false": False, None: None}[arguments.do_lower_case],
    )
    print(f"added {arguments.name}, of {program}")


def _export(arguments: argparse.Namespace) -> None:
    export_adapter(
        AdapterLibrary(arguments.library),
        arguments.name,
        arguments.folder,
        arguments.to,
        arguments.base_model,
    )
    print(f"wrote {arguments.folder}")


def parse(given: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Reads a command line, by default that of this process.

    Raises:
        UserError: it is none.
    """
    parser = command_line.Parser(
        description=__doc__.split("\n")[0], allow_abbrev=False
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND"
    )

    def command(name, function, help, *positional):
        made = commands.add_parser(
            name, help=help, description=help, allow_abbrev=False
        )
        made.set_defaults(function=function)
        made.add_argument("library", help="folder of the library")
        for argument, text in positional:
            made.add_argument(argument, help=text)
        return made

    def bert_flags(made, required):
        made.add_argument(
            "--init_checkpoint",
            required=required,
            help="the BERT that the adapters were trained on",
        )
        made.add_argument(
            "--bert_config_file",
            default="",
            help="BERT's sizes; default: beside the BERT",
        )
        made.add_argument(
            "--vocab_file",
            default="",
            help="the vocabulary; default: beside the BERT",
        )

    name = ("name", "name of the adapter")
    folder = ("folder", "folder of an adapter, or of the run that trained it")
    made = command(
        "add", _add, "Copy a trained adapter into the library.", folder
    )
    made.add_argument(
        "--name",
        help="name of the adapter; default: its task's, or for your own data "
        "the name of their folder or file",
    )
    made = command("list", _list, "List the adapters.")
    made.add_argument(
        "--json", action="store_true", help="print JSON, for programs"
    )
    command(
        "show", _show, "Print all that is known of an adapter, as JSON.", name
    )
    made = command("verify", _verify, "Check that every adapter is whole.")
    bert_flags(made, required=False)
    made = command("remove", _remove, "Delete an adapter.", name)
    made.add_argument(
        "--force",
        action="store_true",
        help="delete it even if it is a part of another adapter",
    )
    new = ("new_name", "its new name")
    command("rename", _rename, "Give an adapter another name.", name, new)
    made = command(
        "import",
        _import,
        "Copy an adapter of AdapterHub or peft into the library.",
        ("folder", "folder of safetensors that this program wrote"),
    )
    made.add_argument("--name", required=True, help="name of the adapter")
    bert_flags(made, required=True)
    made.add_argument(
        "--do_lower_case",
        type=str.lower,
        choices=("true", "false"),
        help="whether texts are lower-cased; default: what the BERT's files or "
        "its vocabulary say",
    )
    made.add_argument(
        "--texts",
        choices=("one", "two"),
        help="texts of a row; default: one or two",
    )
    made.add_argument(
        "--label",
        action="append",
        default=[],
        help="a label; repeat it for each, in the order of the logits; "
        "default: the labels in its files",
    )
    made = command(
        "export",
        _export,
        "Write an adapter for another program.",
        name,
        ("folder", "folder to write, new or empty"),
    )
    made.add_argument(
        "--to",
        required=True,
        choices=sorted(exchange.PROGRAMS),
        help="the other program",
    )
    made.add_argument(
        "--base_model",
        default="",
        help="name by which that program finds the BERT, as "
        "bert-base-uncased; default: the name of the BERT's folder",
    )
    return parser.parse_args(given)


def main() -> None:
    """Does what the command line says."""
    arguments = parse()
    arguments.function(arguments)
