r"""Measures `adapter-bert library move`, from MiniLM to half of its layers.

    .venv/bin/python -m lab.moved_shelf sst2=FOLDER sms=FILE mrpc=FOLDER \
        stsb=FOLDER --squad=FILE --kept=out/moved

The second BERT is made from MiniLM: all of it is trained on masked words of
SQuAD's paragraphs, and every second layer is left out. Of each task the first
rows train an adapter on MiniLM, and others score it. The shelf is moved with
the texts of the training rows, without labels. For comparison an adapter is
trained on the second BERT with the labels. Prints a table, and writes
`moved_library.json` into --kept, a new folder or that of a killed run.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import sys

import adapter_bert
from adapter_bert import command_line, files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import adapter_artifact, written_form
from adapter_bert.checkpoints.sources import open_init_checkpoint, read_config
from adapter_bert.commands import library, minilm
from adapter_bert.data.tables import Layout, read_rows
from adapter_bert.serving.moved_library import RECORD_FILE

LAYOUTS = {
    "sst2": Layout("sentence", label="label"),
    "sms": Layout(1, label=0, header=False),
    "mrpc": Layout(3, 4, label=0),
    "stsb": Layout(7, 8, label=9),
}
# Rows that train, and rows that score, of each task.
ROWS, DEV_ROWS = 2000, 400
METHOD = "houlsby(size=64)"
SETTINGS = {
    "tuning_method": METHOD,
    "train_batch_size": 32,
    "max_seq_length": 96,
    "eval_batch_size": 32,
    "adam_bias_correction": True,
    "compute_dtype": "bfloat16",
}
# Of trainings on MiniLM, and of moves and trainings on the second BERT.
OLD = {"num_train_epochs": 3, "learning_rate": 1e-3}
NEW = {"num_train_epochs": 6, "learning_rate": 3e-4}
# Of the training on masked words.
STEPS = 60


def read(name: str, path: str, kept: pathlib.Path) -> dict:
    """Writes a task's rows as JSON Lines; the files by use."""
    if name == "sms":
        # The published file's name has no ending.
        sources = {"train": kept / "sms.tsv"}
        shutil.copyfile(path, sources["train"])
    else:
        folder = pathlib.Path(path)
        sources = {"train": folder / "train.tsv", "dev": folder / "dev.tsv"}
    tables = {
        use: read_rows(str(place), LAYOUTS[name])
        for use, place in sources.items()
    }
    parts = {"train": (tables["train"], 0, ROWS)}
    # SMS spam has no dev file: later rows score.
    parts["dev"] = (
        (tables["dev"], 0, DEV_ROWS)
        if "dev" in tables
        else (tables["train"], ROWS, ROWS + DEV_ROWS)
    )
    found = {}
    for use, (rows, first, last) in parts.items():
        lines = []
        for row in range(first, min(last, len(rows))):
            line = {"text": rows.text_a[row], "label": rows.label[row]}
            if rows.text_b:
                line["text_b"] = rows.text_b[row]
            lines.append(json.dumps(line) + "\n")
        found[use] = str(kept / f"{name}-{use}.jsonl")
        files.write_text(found[use], "".join(lines))
    return found


def train(
    bert, name: str, data: dict, folder: pathlib.Path, length: dict
) -> dict:
    """Trains an adapter with labels; its scores on the dev rows.

    `length` is `OLD` or `NEW`.
    """
    run = adapter_bert.train(
        bert,
        train_file=data["train"],
        eval_file=data["dev"],
        text_a_column="text",
        text_b_column="text_b" if LAYOUTS[name].text_b is not None else None,
        label_column="label",
        regression=name == "stsb",
        output_dir=folder,
        **SETTINGS,
        **length,
    )
    return run.scores


def halve(folder: str, run: pathlib.Path, target: pathlib.Path) -> None:
    """Writes every second layer of a BERT that a run has trained."""
    opened = open_init_checkpoint(folder)
    config = read_config(opened)
    trained = adapter_artifact.read(str(run / "adapter"), opened.weights)
    half = dataclasses.replace(
        config, num_hidden_layers=config.num_hidden_layers // 2
    )
    values = {}
    for name in encoder.list_variables(half):
        source = name
        for layer in range(half.num_hidden_layers):
            scope = f"/layer_{layer}/"
            if scope in name:
                source = name.replace(scope, f"/layer_{2 * layer}/")
        # A head of masked words reads no pooler, which stays as it was.
        is_trained = source in trained.weights.shapes
        weights = trained.weights if is_trained else opened.weights
        values[name] = weights.read(source)
    target.mkdir(exist_ok=True)
    written_form.write_model(
        str(target), written_form.HUGGING_FACE, half, values, {}
    )
    for name in ("vocab.txt", "tokenizer_config.json"):
        if os.path.exists(os.path.join(folder, name)):
            shutil.copyfile(os.path.join(folder, name), target / name)


def call(*arguments: object) -> None:
    """Runs `adapter-bert library`."""
    sys.argv = ["library", *map(str, arguments)]
    library.main()


def main() -> None:
    """Measures the named tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--squad", required=True)
    parser.add_argument("--kept", type=pathlib.Path, required=True)
    asked = parser.parse_args()
    kept = asked.kept
    kept.mkdir(parents=True, exist_ok=True)
    old, half = minilm.folder(), kept / "half"
    document = json.loads(pathlib.Path(asked.squad).read_text())
    paragraphs = [
        paragraph["context"]
        for article in document["data"]
        for paragraph in article["paragraphs"]
    ]
    bert = adapter_bert.load_bert(old)
    if not half.exists():
        adapter_bert.train(
            bert,
            paragraphs,
            task_name="masked_lm",
            tuning_method="full",
            learning_rate=5e-5,
            num_train_steps=STEPS,
            train_batch_size=16,
            max_seq_length=96,
            output_dir=kept / "mlm",
        )
        halve(old, kept / "mlm", half)
    new = adapter_bert.load_bert(half)
    shelf, data, labelled = kept / "shelf", {}, {}
    for name, path in (text.split("=", 1) for text in asked.data):
        data[name] = read(name, path, kept)
        train(bert, name, data[name], kept / "old" / name, OLD)
        if not (shelf / name).exists():
            call("add", shelf, kept / "old" / name, "--name", name)
        place = kept / "new" / name
        labelled[name] = train(new, name, data[name], place, NEW)
    flags = [
        f"--{flag}={name}={paths[use]}"
        for name, paths in data.items()
        for flag, use in (("texts", "train"), ("dev", "dev"))
    ]
    moved = kept / "moved"
    call(
        "move",
        shelf,
        f"--init_checkpoint={old}",
        f"--to={half}",
        f"--output_dir={moved}",
        *(f"--{name}={value}" for name, value in NEW.items()),
        *flags,
    )
    record = json.loads((moved / RECORD_FILE).read_text())
    for one in record["adapters"]:
        score = next(iter(one["old"]))
        one["with_labels"] = {score: labelled[one["name"]][score]}
        print(one["name"], score, one["with_labels"][score])
    files.write_json(str(kept / "moved_library.json"), record)


if __name__ == "__main__":
    command_line.run(main)
