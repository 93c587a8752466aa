"""The benchmark of vectors; a stand-in takes the library's place."""

import argparse
import sys

import pytest
from conftest import ROOT, write_table

from adapter_bert.errors import UserError
from lab import report
from lab.speed import measuring, vectors

pytestmark = pytest.mark.newer_stack

# Answers each request with all that the library's worker ever answers.
STAND_IN = """
import json, sys
import numpy as np
options = json.loads(sys.argv[1])
with open(options["rows"]) as file:
    rows = json.load(file)
assert len(rows["train"]["score"]) == 32 and rows["dev"]["text"][0] == "a cat"
for line in sys.stdin:
    steps = json.loads(line)["steps"]
    assert options["steps"] == 2 * (steps + 1)
    made = np.random.default_rng(0).normal(size=(32, 2, 16))
    np.save(options["vectors"], made)
    found = {"examples": 32, "seconds": 1, "peak_bytes": 2**30, "trained": 7}
    print(json.dumps(found), flush=True)
"""


@pytest.mark.gate
def test_both_sides_train_as_many_steps(tiny_bert, tmp_path, monkeypatch):
    (tmp_path / "vectors_worker.py").write_text(STAND_IN)
    monkeypatch.setattr(vectors, "PEERS", tmp_path)
    monkeypatch.setattr(
        measuring, "open_model", lambda model: {"model": str(tiny_bert)}
    )
    shorter = {**vectors.SHARED, "max_seq_length": 16}
    monkeypatch.setattr(vectors, "SHARED", shorter)
    monkeypatch.chdir(ROOT)
    folder = tmp_path / "STS-B"
    folder.mkdir()
    names = ("sentence1", "sentence2", "score")
    rows = [
        ("a cat", text, str(score))
        for score, text in enumerate(["a dog", "the cat"] * 16)
    ]
    for split in ("train", "dev"):
        write_table(folder / f"{split}.tsv", rows, names)
    given = argparse.Namespace(
        model="", rounds=1, dtype="float32", peer_python=sys.executable
    )
    found = vectors.compare("STS-B", str(folder), 2, given)
    [ours] = found["measurements"]["ours"]
    assert ours["examples"] == 2 * 32 and ours["seconds"] > 0
    assert found["steps"] == 6 and found["trained"] == 7
    assert set(found["scores"]) == {"ours", vectors.PEER}
    table = vectors.to_markdown(
        {
            **report.environment(),
            "rounds": 1,
            "dtype": "float32",
            "tasks": {"STS-B": found},
        }
    )
    header, _, row = table.splitlines()[2:]
    assert header.count("|") == row.count("|")
    assert "| 32.0 (32.0 to 32.0) |" in row and " / 1.00 GiB |" in row


def test_ratios_are_of_neighbours():
    rounds = [(2.0, 1.0), (1.0, 2.0), (4.0, 1.0)]
    measured = {
        side: [
            {"examples": 32, "seconds": each[place], "peak_bytes": 2**20}
            for each in rounds
        ]
        for place, side in enumerate(("ours", vectors.PEER))
    }
    found = vectors.summarize(measured)
    assert found["ratio"] == {"median": 0.5, "lowest": 0.25, "highest": 2}
    assert found["seconds_per_step"] == {"ours": 2, vectors.PEER: 1}


def test_rows_are_needed(monkeypatch):
    words = ["", "--peer_python", sys.executable, "--glue_dir", ""]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(UserError, match="the folder of STS-B and MRPC"):
        vectors.main()
