"""`adapter-bert beam` as its user runs it, in Beam's environment."""

import json
import os
import random

import pytest
from conftest import ROOT, TINY_WORDS, flag_words, read_lines, run_command

PYTHON = os.environ.get("BEAM_PYTHON", str(ROOT / ".venv-beam/bin/python"))
MARKS = [
    pytest.mark.newer_stack,
    pytest.mark.skipif(
        not os.path.exists(PYTHON),
        reason=f"no {PYTHON}; `make beam` makes it, BEAM_PYTHON names another",
    ),
]
TWO_PROCESSES = (
    "--direct_num_workers=2",
    "--direct_running_mode=multi_processing",
)
# Longer than any run takes.
LONG = 120


def command(*flags, **named):
    named = flag_words(named)
    return [PYTHON, "-m", "adapter_bert", "beam", *named, *flags]


def run(*flags, **named):
    return run_command(*command(*flags, **named), cwd=ROOT, timeout=LONG)


def shards(output):
    """The files of answers and those of refusals."""
    paths = sorted(output.parent.glob(f"{output.name}-*.jsonl"))
    refused = [path for path in paths if "-refused-" in path.name]
    return [path for path in paths if path not in refused], refused


def read(paths):
    """The lines of whole files."""
    counts = [len(paths)] * len(paths)
    numbers = [path.stem.split("-")[-3::2] for path in paths]
    assert [tuple(map(int, x)) for x in numbers] == list(enumerate(counts)), (
        paths
    )
    return [json.loads(line) for path in paths for line in read_lines(path)]


def write_rows(path, count):
    """Writes rows of several tasks; returns (task, texts) of each."""
    chance = random.Random(0)

    def text():
        return " ".join(chance.choices(TINY_WORDS[5:], k=chance.randint(1, 20)))

    rows = []
    with path.open("w") as file:
        for number in range(count):
            name = chance.choice(["small", "pair", "score"])
            texts = [text() for _ in range(1 + (name == "pair"))]
            row = {"id": number, "task": name}
            row.update(zip(("text", "text_b"), texts))
            file.write(json.dumps(row) + "\n")
            rows.append((name, tuple(texts)))
    return rows
