"""Measures the memory and time of a large file's way to the first step.

    .venv/bin/python -m lab.speed.preparation

A training file of a task over the user's own table is generated, and
`run_classifier.py` reads it, tokenizes it and trains one step, in a process of
its own, which says what it took. The fewest rows show what does not grow with
them: TensorFlow, the model and the step. Fails where the most rows take more
memory than they may. Writes `lab/results/preparation.json`.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any, Dict, List

import numpy as np

from adapter_bert import command_line, files
from adapter_bert.commands import minilm
from adapter_bert.errors import UserError
from lab.speed.compare import ROOT, environment

RESULTS = ROOT / "lab" / "results" / "preparation.json"

ROWS = (1_000, 200_000, 1_000_000)
WORDS = 60
# What the most of them may take.
MOST_BYTES = 2_500_000_000
# Rows that are written at once.
CHUNK = 10_000


def read_words(vocabulary: pathlib.Path) -> List[str]:
    """The whole words of a vocabulary, which are one token each."""
    lines = vocabulary.read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line.isascii() and line.isalpha()]


def write_table(path: pathlib.Path, words: List[str], rows: int) -> None:
    """Writes a table of random texts with one of two labels each."""
    rng = np.random.default_rng(1)
    with open(path, "w", encoding="utf-8") as file:
        file.write("text\tlabel\n")
        for first in range(0, rows, CHUNK):
            count = min(CHUNK, rows - first)
            chosen = rng.integers(0, len(words), (count, WORDS)).tolist()
            file.writelines(
                f"{' '.join([words[place] for place in row])}\t{number % 2}\n"
                for number, row in enumerate(chosen)
            )


def measure(model: pathlib.Path, rows: int) -> Dict[str, Any]:
    """Prepares so many rows as a run does, and trains one step.

    Args:
        model: folder of a pretrained BERT.
        rows: of the training file.

    Returns:
        `file_bytes`, `peak_memory_bytes` and `seconds`.

    Raises:
        UserError: the run has failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        table = folder / "train.tsv"
        write_table(table, read_words(model / "vocab.txt"), rows)
        done = subprocess.run(
            [
                sys.executable,
                "run_classifier.py",
                "--task_name=custom",
                f"--data_dir={folder}",
                f"--init_checkpoint={model}",
                f"--output_dir={folder / 'out'}",
                "--do_train",
                # One step.
                "--num_train_epochs=1e-9",
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise UserError(f"the run has failed: {done.stderr[-500:]}")
        cost = json.loads((folder / "out" / "cost.json").read_text())
        return {
            "file_bytes": table.stat().st_size,
            "peak_memory_bytes": cost["peak_memory_bytes"],
            "seconds": round(cost["seconds"], 1),
        }


def run(model: pathlib.Path, counts: List[int], results: str) -> None:
    """Measures files of so many rows each, and writes what was found.

    Raises:
        UserError: a run has failed, or took more memory than it may.
    """
    measured = {}
    for rows in counts:
        measured[str(rows)] = found = measure(model, rows)
        print(
            f"{rows:,} rows: {found['peak_memory_bytes'] / 1e9:.2f} GB, "
            f"{found['seconds']:.0f} s",
            flush=True,
        )
    files.write_json(
        results, {**environment(), "words": WORDS, "rows": measured}
    )
    if found["peak_memory_bytes"] > MOST_BYTES:
        raise UserError(
            f"{rows:,} rows took {found['peak_memory_bytes'] / 1e9:.2f} GB, "
            f"expected at most {MOST_BYTES / 1e9:.2f}"
        )


def main() -> None:
    """Measures all counts of rows, or those that are named.

    Raises:
        UserError: the model is missing, or a run failed or took too much.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--results", default=str(RESULTS))
    arguments = parser.parse_args()
    run(pathlib.Path(minilm.folder()), arguments.rows, arguments.results)


if __name__ == "__main__":
    command_line.run(main)
