r"""Measures `adapter-bert audit` on labels that were flipped at random.

    .venv/bin/python -m lab.flipped_labels sms=FILE sst2=FILE mrpc=FILE \
        --init_checkpoint=$(.venv/bin/adapter-bert minilm) --kept=out/flipped

SMS spam's file is the published one, the others are GLUE's `train.tsv`. Of
each, 5% of the rows get the other label, for each of three seeds. As many of
the worst suspects are taken, and the flipped rows among them are counted. The
same is done with a linear model over the TF-IDF of words and pairs of words.
Chance finds 5%. --kept is a folder that keeps the vectors of rows between runs;
other files or another BERT need another one. Prints a table, and writes
`flipped.json` into this folder.
"""

import argparse
import pathlib
import shutil

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import command_line, files
from adapter_bert.commands import audit, baseline
from adapter_bert.data.divisions import Texts
from adapter_bert.data.tables import Layout, Rows, read_rows
from adapter_bert.reports import label_errors
from adapter_bert.serving.frozen_bert import FrozenBert

LAYOUTS = {
    "sms": Layout(1, label=0, header=False),
    "sst2": Layout("sentence", label="label"),
    "mrpc": Layout(3, 4, label=0),
}
# SST-2 is read so far.
MOST = 5000
# In tokens.
LENGTH = 128
SHARE = 0.05
FOLDS = 5
SEEDS = (1, 2, 3)


def read(name: str, path: str, kept: pathlib.Path) -> Rows:
    """The rows of a published file."""
    # SMS spam's name has no ending.
    table = kept / f"{name}.tsv"
    shutil.copyfile(path, table)
    rows = read_rows(str(table), LAYOUTS[name])
    most = MOST if name == "sst2" else len(rows)
    return rows.take(np.arange(len(rows)) < most)


def flip(labels: np.ndarray, seed: int) -> np.ndarray:
    """The rows, int64 [N], of two labels, that get the other one."""
    rng = np.random.default_rng(seed)
    return rng.permutation(len(labels))[: round(SHARE * len(labels))]


def fit_words(inputs, labels, count, strength):
    """A linear model over words; see `audit.Fit`."""
    model = baseline.fit_classes(inputs, labels, count, strength)
    return lambda asked: np.exp(model(asked))


def measure(
    name: str, path: str, init_checkpoint: str, kept: pathlib.Path
) -> dict:
    """Precisions among the first 5%, by model, a number for each seed."""
    rows = read(name, path, kept)
    vectors_file = kept / f"{name}.npy"
    if not vectors_file.exists():
        bert = FrozenBert.open(init_checkpoint)
        np.save(vectors_file, audit.layer_means(bert, rows, LENGTH))
    own = np.unique(rows.label)
    labels = np.searchsorted(own, rows.label)
    models = {
        "heads": (np.load(vectors_file), audit.fit_head, audit.STRENGTHS),
        "words": (
            baseline.learn_words(rows)(rows),
            fit_words,
            baseline.STRENGTHS,
        ),
    }
    found: dict = {"rows": len(rows), **{model: [] for model in models}}
    for seed in SEEDS:
        flipped = flip(labels, seed)
        given = labels.copy()
        given[flipped] = 1 - given[flipped]
        texts = Texts(rows.texts, given[:, np.newaxis].tolist())
        fold = texts.folds(FOLDS, 1)
        for model, (inputs, fit, strengths) in models.items():
            guessed, _ = audit.guess(inputs, given, fold, 2, fit, strengths)
            order = np.argsort(
                label_errors.margins(guessed, given), kind="stable"
            )
            first = order[: len(flipped)]
            found[model].append(float(np.isin(first, flipped).mean()))
    return found


def main() -> None:
    """Measures the named files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--init_checkpoint", required=True)
    parser.add_argument("--kept", type=pathlib.Path, required=True)
    asked = parser.parse_args()
    asked.kept.mkdir(parents=True, exist_ok=True)
    results = {}
    for name, path in (text.split("=", 1) for text in asked.data):
        found = measure(name, path, asked.init_checkpoint, asked.kept)
        results[name] = found
        for model in ("heads", "words"):
            shown = " ".join(f"{x:.3f}" for x in found[model])
            print(f"{name} {model} {np.mean(found[model]):.3f} ({shown})")
    files.write_json(str(asked.kept / "flipped.json"), results)


if __name__ == "__main__":
    command_line.run(main)
