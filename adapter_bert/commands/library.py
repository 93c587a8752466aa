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

import argparse
import dataclasses
import functools
import itertools
import json
import os
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert import command_line, files, flags
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import load_task
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import (
    adapter_artifact,
    foreign_adapters,
    hugging_face_hub,
    part_values,
    run_record,
    sources,
)
from adapter_bert.checkpoints.foreign_base import base_name, exported
from adapter_bert.checkpoints.model_card import (
    OWN,
    make_card,
    make_own_card,
)
from adapter_bert.checkpoints.peft_words import find_tokens
from adapter_bert.checkpoints.sources import open_init_checkpoint
from adapter_bert.checkpoints.weights import Pretrained, identify
from adapter_bert.checkpoints.written_form import (
    tokenizer_fields,
    tokenizer_files,
)
from adapter_bert.data.tables import READERS, SplitFiles
from adapter_bert.errors import UserError
from adapter_bert.library import moved_library, suggestion
from adapter_bert.library.adapter_library import (
    AdapterLibrary,
    check,
    check_name,
    copy_adapter,
)
from adapter_bert.methods import registry
from adapter_bert.tasks import task_model
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.kinds import VECTORS
from adapter_bert.tasks.masked_lm import WORD_EMBEDDINGS
from adapter_bert.tasks.novelty import NOVELTY
from adapter_bert.training import saved_steps
from adapter_bert.training.settings import Experiment, Training

# Settings of a training that a move has.
OF_MOVES = (
    "temperature",
    "held_out",
    "train_batch_size",
    "learning_rate",
    "num_train_epochs",
    "num_train_steps",
    "save_checkpoints_steps",
    "seed",
)
COLUMNS = "name task kind labels method MB score data added base".split()


def _add(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    print(f"added {library.add(arguments.folder, arguments.name)}")


def _import(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    names = arguments.name.split(",")
    for name in names:
        check_name(name)
    if len(set(map(str.lower, names))) < len(names):
        raise UserError(
            f"--name is {arguments.name}; expected another name for each "
            "adapter (capital letters make no other name)"
        )
    for name in names:
        library.check_free(name, library.names())
    folder, hub = arguments.folder, ""
    if hugging_face_hub.is_named(folder):
        folder, hub = hugging_face_hub.fetch_adapter(folder)
        config = os.path.join(folder, adapter_artifact.CONFIG_FILE)
        if files.exists(config) and not foreign_adapters.detect(folder):
            _add_fetched(arguments, library, folder, hub)
            return
    is_one = len(names) == 1 and not foreign_adapters.detect(folder)
    if arguments.adapter or is_one:
        folder = foreign_adapters.choose(folder, arguments.adapter)
    # The adapter's files do not say which BERT it was trained on.
    opened = open_init_checkpoint(arguments.init_checkpoint)
    config = sources.read_config(opened, arguments.bert_config_file)
    pairs = {"one": False, "two": True, None: None}[arguments.texts]
    adapters = foreign_adapters.read_all(
        folder, config, pairs, arguments.label, arguments.multi_label
    )
    if len(names) != len(adapters):
        raise UserError(
            f"{folder} holds {len(adapters)} adapters, "
            f"{', '.join(adapters)[:200]}, but --name is {arguments.name}; "
            "expected a name for each, with commas between them, or --adapter"
        )
    read_tokenizer = functools.partial(
        sources.read_tokenizer,
        opened,
        config,
        arguments.vocab_file,
        {"true": True, "false": False, None: None}[arguments.do_lower_case],
    )
    tokenizer = read_tokenizer()
    base = identify(opened.weights, encoder.list_variables(config))
    for name, foreign in zip(names, adapters.values()):
        task = restore_task(foreign.task, {}, folder)
        table = task_model.list_parameters(
            config, foreign.method, task.build_head
        )
        values = foreign_adapters.complete(
            foreign, opened.weights, config
        ).values
        adapters_tokenizer, new = tokenizer, foreign.method.new_words
        if new:
            tokens = find_tokens(folder, tokenizer, new)
            adapters_tokenizer = read_tokenizer(tokens)
        description = {
            "method": str(foreign.method),
            "task": foreign.task,
            "base": base.describe(),
            "tokenizer": adapters_tokenizer.describe(),
            "bert_config": dataclasses.asdict(config),
            "parameters": {
                "total": table.total_count,
                "trained": table.trained_count,
                "kept": adapter_artifact.count(values),
            },
            "versions": run_record.versions(),
            "imported": {**foreign.origin, **({"hub": hub} if hub else {})},
        }
        if foreign.max_seq_length:
            length = {"max_seq_length": foreign.max_seq_length}
            description["training"] = length
        with files.temporary_folder() as place:
            adapter_artifact.write(place, description, values)
            library.add(place, name)
        source = f" at {hub}" if hub else ""
        print(f"added {name}, of {foreign.origin['program']}{source}")


def _add_fetched(
    arguments: argparse.Namespace,
    library: AdapterLibrary,
    folder: str,
    hub: str,
) -> None:
    """Adds an adapter of this project that the hub had, if its BERT fits."""
    names = ("adapter", "do_lower_case", "texts", "label", "multi_label")
    passed = [f"--{name}" for name in names if getattr(arguments, name)]
    if passed:
        raise UserError(
            f"{hub} is an adapter of this project, whose files say it all; "
            f"leave out {', '.join(passed)}"
        )
    bert = _open_bert(arguments)
    load_task(bert, folder, None, library.path)
    print(f"added {library.add(folder, arguments.name)}, of {hub}")


def _open_bert(arguments: argparse.Namespace) -> FrozenBert:
    return FrozenBert.open(
        arguments.init_checkpoint,
        arguments.bert_config_file,
        arguments.vocab_file,
    )


def _export(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    name = os.path.basename(os.path.abspath(arguments.folder))
    _write_foreign(arguments, library, arguments.folder, name)
    print(f"wrote {arguments.folder}")


def _push(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    repository = hugging_face_hub.parse(arguments.repository).repository
    with files.temporary_folder() as place:
        folder = os.path.join(place, "adapter")
        if arguments.to == OWN:
            _write_own(arguments, library, folder)
        else:
            _write_foreign(arguments, library, folder, repository)
        commit = hugging_face_hub.push(
            folder,
            arguments.repository,
            arguments.public,
            f"Adapter {arguments.name}",
        )
    print(f"pushed {arguments.name} to {commit}")


def _write_own(
    arguments: argparse.Namespace, library: AdapterLibrary, folder: str
) -> None:
    """Writes an adapter's files as they are, with a card."""
    for name in ("without_head", "init_checkpoint"):
        if getattr(arguments, name):
            raise UserError(
                f"--{name} is for the form of another program; leave it out, "
                "or pass --to"
            )
    name = arguments.name
    entry, config = library.entry(name), check(library.folder(name)).config
    base = arguments.base_model or base_name(config["base"])
    card = make_own_card(
        name, base, arguments.repository, config, entry.scores, entry.data
    )
    with files.new_folder(folder) as new:
        copy_adapter(library.folder(name), new)
        files.write_text(os.path.join(new, "README.md"), card)


def _write_foreign(
    arguments: argparse.Namespace,
    library: AdapterLibrary,
    target: str,
    folder: str,
) -> None:
    """Writes adapters into a new folder, which is called `folder` in a card."""
    if arguments.without_head and arguments.to != "adapterhub":
        raise UserError(
            "--without_head is for --to=adapterhub; leave it out for "
            f"{arguments.to}"
        )
    opened, name = None, arguments.name
    entry = library.entry(name)
    artifact = check(library.folder(name))
    ours = exported(artifact, name, not arguments.without_head)
    if arguments.base_model:
        ours = dataclasses.replace(ours, base_name=arguments.base_model)
    if arguments.init_checkpoint:
        opened = open_init_checkpoint(arguments.init_checkpoint)
        bert = opened.weights
        variables, shapes = encoder.list_variables(ours.config), bert.shapes
        fits = all(shapes.get(n, s) == s for n, s in variables.items())
        expected = artifact.config["base"]["fingerprint"]
        if not fits or identify(bert, variables).fingerprint != expected:
            raise UserError(
                f"{arguments.init_checkpoint} is another BERT than that of "
                f"{name}; expected the BERT of its training"
            )
        if ours.head:
            words = bert.read(WORD_EMBEDDINGS)
            ours = dataclasses.replace(
                ours, head=dataclasses.replace(ours.head, words=words)
            )
    if arguments.to == "peft" and ours.head and ours.head.kind == VECTORS:
        tokenizer = _tokenizer(opened, artifact, name)
        ours = dataclasses.replace(ours, tokenizer=tokenizer)
    card = make_card(
        arguments.to, ours, folder, artifact.config, entry.scores, entry.data
    )
    foreign_adapters.write(arguments.to, target, ours, card)


def _tokenizer(
    opened: Optional[Pretrained],
    artifact: adapter_artifact.Artifact,
    name: str,
) -> dict[str, Any]:
    """Reads tokenizer files of an adapter's BERT, which lie next to vectors."""
    if opened is None:
        raise UserError(
            f"{name} makes vectors, which sentence-transformers reads with the "
            "BERT's vocabulary; pass the BERT as --init_checkpoint"
        )
    path = sources.find_vocabulary(opened)
    trained = artifact.config["tokenizer"]
    lower = bool(trained.get("do_lower_case"))
    config = run_record.bert_config(artifact.config, name)
    tokenizer = sources.read_tokenizer(opened, config, path, lower)
    if tokenizer.describe()["vocabulary"] != trained.get("vocabulary"):
        raise UserError(
            f"{path} is another vocabulary than that of {name}'s training; "
            "expected that one next to the BERT"
        )
    return tokenizer_files(
        path, tokenizer, **tokenizer_fields(config, tokenizer)
    )


def _list(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    entries: list[dict[str, Any]] = []
    for name in library.names():
        try:
            entries.append(dataclasses.asdict(library.entry(name)))
        except UserError as error:
            # Another process may have removed it by now.
            if name in library.names():
                entries.append({"name": name, "problem": str(error)})
    if arguments.json:
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
        entry["added"][:10],
        f"{entry['base']} {entry['base_fingerprint'][:8]}",
    ]


def _plain_json(value: Any) -> str:
    """A value as JSON with escaped control characters."""
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


def _show(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    entry = dataclasses.asdict(library.entry(arguments.name))
    config = adapter_artifact.read_config(library.folder(arguments.name))
    settings = config.get("task_settings", {})
    if NOVELTY in settings:
        # A sketch is a hundred thousand letters.
        config["task_settings"] = {**settings, NOVELTY: True}
    print(_plain_json({**entry, "adapter_config": config}), end="")


def _verify(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    bert = None
    if arguments.init_checkpoint:
        bert = _open_bert(arguments)
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
            f"{problems} of {looked_at} adapters of {library.path} cannot be "
            "used; remove those that are damaged, and add them or the missing "
            "ones again"
        )


def _remove(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    library.remove(arguments.name, arguments.force)
    print(f"removed {arguments.name}")


def _rename(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    library.rename(arguments.name, arguments.new_name)
    print(f"{arguments.name} is called {arguments.new_name} now")


def _suggest(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    """Ranks what a training may begin with; measures the saving on request."""
    logging.set_verbosity(logging.INFO)
    if bool(arguments.try_steps) != bool(arguments.eval_file):
        raise UserError(
            "--try_steps and --eval_file go together: the length of the "
            "trainings, and the dev rows that score them"
        )
    task = custom_task(
        arguments.text_a_column,
        arguments.text_b_column,
        arguments.label_column,
        header=arguments.header == "true",
        regression=arguments.regression == "true",
        split_files=SplitFiles(arguments.train_file, arguments.eval_file),
    )
    task.split_files.check(READERS, can_hold_out=False)
    splits = ["train", "dev"] if arguments.try_steps else ["train"]
    learned, rows = task.read("", splits)
    learned = learned.learn(rows["train"])
    bert = _open_bert(arguments)
    drawn = suggestion.draw(rows["train"], arguments.rows, arguments.seed)
    ranked = suggestion.rank(
        bert, library, learned, drawn, arguments.max_seq_length
    )
    report = {
        "rows": len(drawn),
        "candidates": list(map(dataclasses.asdict, ranked)),
    }
    if not arguments.json:
        lines = [
            [c.name, c.task, c.method, f"{c.logme:.4f}"]
            if c.name
            else ["-", "-", "BERT alone", f"{c.logme:.4f}"]
            for c in ranked
        ]
        header = ["name", "task", "method", "LogME"]
        print(_table([header, *lines]), end="")
    if arguments.try_steps:
        first = next(candidate for candidate in ranked if candidate.name)
        saved = saved_steps.measure(
            Experiment(
                task,
                registry.parse(first.method),
                first.method,
                {},
                max_seq_length=arguments.max_seq_length,
                init_checkpoint=arguments.init_checkpoint,
                bert_config_file=arguments.bert_config_file,
                vocab_file=arguments.vocab_file,
                library=library.path,
                training=Training(
                    num_train_steps=arguments.try_steps, seed=arguments.seed
                ),
            ),
            library.folder(first.name),
        )
        report["saved_steps"] = {"adapter": first.name, **saved}
        if not arguments.json:
            print(saved_steps.line(saved, first.name))
    if arguments.json:
        print(_plain_json(report), end="")


def _positive(text: str) -> int:
    """A number from 1 on; argparse tells the user of others."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _move(arguments: argparse.Namespace, library: AdapterLibrary) -> None:
    """Trains a library's adapters anew on another BERT, by distillation."""
    logging.set_verbosity(logging.INFO)
    plan = moved_library.Move(
        to=arguments.to,
        output_dir=arguments.output_dir,
        texts=_files_by_name("--texts", arguments.texts),
        dev=_files_by_name("--dev", arguments.dev),
        distilling=_read(arguments, moved_library.Distilling),
        training=_read(arguments, Training),
    )
    if "" in plan.dev:
        raise UserError(
            f"--dev is {plan.dev['']}; expected --dev=NAME=FILE, an adapter "
            "and a file of labelled rows of its task"
        )
    bert = _open_bert(arguments)
    moved = moved_library.move(library, bert, plan)
    print(_table(moved_library.table(moved)), end="")


def _files_by_name(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Files of `NAME=FILE`, and under "" of a `FILE` alone."""
    paths: dict[str, str] = {}
    for text in texts:
        name, separator, path = text.partition("=")
        # A path may have an equals sign of its own.
        if not separator or files.exists(text):
            name, path = "", text
        if name in paths:
            raise UserError(
                f"{flag} names two files for {name or 'all adapters'}: "
                f"{paths[name]} and {path}; leave one out"
            )
        paths[name] = path
    return paths


def _settings(
    declaring: type,
) -> Iterator[tuple[str, flags.About, Any]]:
    """Flags of `move`, (name, about, field), that a dataclass declares."""
    for name, about, field in flags.declared([declaring]):
        if name in OF_MOVES:
            yield name, about, field


def _read(arguments: argparse.Namespace, declaring: type) -> Any:
    """Makes a dataclass of the values of `_settings`."""
    fields = _settings(declaring)
    values = {field.name: getattr(arguments, name) for name, _, field in fields}
    return flags.check(declaring(**values))


def parse(words: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Reads a command line, by default this process's."""
    parser = command_line.Parser(
        description=__doc__.split("\n")[0], allow_abbrev=False
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND"
    )

    def command(name, function, help, *positional):
        """Adds a command; returns what adds a flag to it."""
        made = commands.add_parser(
            name, help=help, description=help, allow_abbrev=False
        )
        made.set_defaults(function=function)
        made.add_argument("library", help="folder of the library")
        for argument, text in positional:
            made.add_argument(argument, help=text)
        return made.add_argument

    def bert_flags(flag, required):
        flag(
            "--init_checkpoint",
            required=required,
            help="the BERT that the adapters were trained on",
        )
        for name, what in (
            ("--bert_config_file", "BERT's sizes"),
            ("--vocab_file", "the vocabulary"),
        ):
            flag(name, default="", help=f"{what}; default: next to the BERT")

    def form_flags(flag):
        flag(
            "--without_head",
            action="store_true",
            help="write the adapter alone, as AdapterHub shares languages",
        )
        flag(
            "--base_model",
            default="",
            help="name by which that program finds the BERT, as "
            "bert-base-uncased; default: the name of the BERT's repository or "
            "folder",
        )
        flag(
            "--init_checkpoint",
            default="",
            help="the BERT of the adapter, whose word embeddings peft keeps "
            "with a head of masked words, and whose vocabulary lies next to an "
            "adapter of vectors",
        )

    name = ("name", "name of the adapter")
    folder = ("folder", "folder of an adapter, or of the run that trained it")
    flag = command(
        "add", _add, "Copy a trained adapter into the library.", folder
    )
    flag(
        "--name",
        help="name of the adapter; default: its task's, or for your own data "
        "the name of their folder or file",
    )
    flag = command("list", _list, "List the adapters.")
    flag("--json", action="store_true", help="print JSON, for programs")
    command(
        "show", _show, "Print all that is known of an adapter, as JSON.", name
    )
    flag = command("verify", _verify, "Check that every adapter is whole.")
    bert_flags(flag, required=False)
    flag = command(
        "suggest",
        _suggest,
        "Rank the adapters as beginnings of a new training.",
    )
    bert_flags(flag, required=True)
    flag(
        "--train_file",
        required=True,
        help="rows of the new task: .tsv, .csv or .jsonl",
    )
    flag("--text_a_column", default="text", help="column of the text")
    flag("--text_b_column", help="column of the second text, for pairs")
    flag("--label_column", default="label", help="column of the label")
    for which, default, help in (
        ("--header", "true", "whether the first line names the columns"),
        ("--regression", "false", "whether labels are numbers"),
    ):
        flag(
            which,
            type=str.lower,
            choices=("true", "false"),
            default=default,
            help=f"{help}; default: {default}",
        )
    for which, number, help in (
        ("--rows", 1000, "rows to compare with, drawn at random"),
        ("--max_seq_length", 128, "longest input in tokens"),
        ("--seed", 1, "seed of the drawn rows and of trainings"),
    ):
        flag(
            which,
            type=_positive,
            default=number,
            help=f"{help}; default: {number}",
        )
    flag(
        "--try_steps",
        type=_positive,
        help="train so many steps from the first adapter and from nothing, "
        "and tell the steps that it saves",
    )
    flag("--eval_file", default="", help="rows that score these trainings")
    flag("--json", action="store_true", help="print JSON, for programs")
    flag = command("remove", _remove, "Delete an adapter.", name)
    flag(
        "--force",
        action="store_true",
        help="delete it even if it is a part of another adapter",
    )
    new = ("new_name", "its new name")
    command("rename", _rename, "Give an adapter another name.", name, new)
    flag = command(
        "import",
        _import,
        "Copy an adapter of AdapterHub or peft into the library.",
        (
            "folder",
            "folder that this program wrote, or hf:ORG/NAME[/FOLDER]"
            "[@REVISION] of Hugging Face's hub",
        ),
    )
    flag(
        "--name",
        required=True,
        help="name of the adapter; of several a name for each, with commas "
        "between them",
    )
    flag(
        "--adapter",
        default="",
        help="name of one of several adapters in the folder",
    )
    bert_flags(flag, required=True)
    flag(
        "--do_lower_case",
        type=str.lower,
        choices=("true", "false"),
        help="whether texts are lower-cased; default: what the BERT's files or "
        "its vocabulary say",
    )
    flag(
        "--texts",
        choices=("one", "two"),
        help="texts of a row; default: one or two",
    )
    flag(
        "--label",
        action="append",
        default=[],
        help="a label, tag or choice; repeat it for each, in the order of the "
        "logits; default: the labels in its files",
    )
    flag(
        "--multi_label",
        action="store_true",
        help="rows have any number of labels, which not all files say",
    )
    flag = command(
        "export",
        _export,
        "Write an adapter for another program.",
        name,
        ("folder", "folder to write, new or empty"),
    )
    programs = sorted(foreign_adapters.PROGRAMS)
    flag("--to", required=True, choices=programs, help="the other program")
    form_flags(flag)
    flag = command(
        "push",
        _push,
        "Write an adapter into a repository of Hugging Face's hub.",
        name,
        ("repository", "hf:ORG/NAME, which is made if it is not there"),
    )
    flag(
        "--public",
        action="store_true",
        help="let everyone read the repository; default: it is private",
    )
    flag(
        "--to",
        default=OWN,
        choices=[OWN, *programs],
        help=f"the program that is to read the adapter; default: {OWN}",
    )
    form_flags(flag)
    flag = command(
        "move", _move, "Train the adapters anew on another BERT, from texts."
    )
    bert_flags(flag, required=True)
    flag("--to", required=True, help="the other BERT, as --init_checkpoint")
    flag(
        "--output_dir",
        required=True,
        help="folder of the new library, new or of a move that was killed",
    )
    flag(
        "--texts",
        required=True,
        action="append",
        metavar="[NAME=]FILE",
        help="texts without labels, that the old adapters answer; repeat it "
        "with an adapter's name for texts of its own",
    )
    flag(
        "--dev",
        default=[],
        action="append",
        metavar="NAME=FILE",
        help="labelled rows of an adapter's task, which score the old and the "
        "new one",
    )
    settings = map(_settings, (moved_library.Distilling, Training))
    for name, about, field in itertools.chain(*settings):
        [kind] = {*(typing.get_args(field.type) or [field.type])} - {type(None)}
        shown = about.meaning
        if field.default is not None:
            shown = f"{shown} Default: {field.default}."
        flag(f"--{name}", type=kind, default=field.default, help=shown)
    return parser.parse_args(words)


def main() -> None:
    """Does what the command line says."""
    arguments = parse()
    is_made = arguments.function in (_add, _import)
    library = AdapterLibrary(arguments.library, create=is_made)
    arguments.function(arguments, library)
