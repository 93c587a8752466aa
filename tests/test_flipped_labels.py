"""`lab.flipped_labels`: precision where flipped labels can be found."""

import numpy as np
import pytest
from conftest import SENTENCES, write_table

from lab import flipped_labels

pytestmark = pytest.mark.newer_stack


def test_flips_are_found_and_vectors_are_kept(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(flipped_labels, "SEEDS", (1,))
    monkeypatch.setattr(flipped_labels, "LENGTH", 32)
    path = tmp_path / "train.tsv"
    write_table(path, SENTENCES * 10, ("sentence", "label"))
    found = flipped_labels.measure("sst2", str(path), str(tiny_bert), tmp_path)
    # 4 of 80 rows get the other label.
    assert found == {"rows": 80, "heads": [1.0], "words": [1.0]}
    vectors = tmp_path / "sst2.npy"
    np.save(vectors, np.zeros_like(np.load(vectors)))
    again = flipped_labels.measure("sst2", str(path), "missing", tmp_path)
    assert again["heads"] != [1.0] and again["words"] == [1.0]


def test_the_flipped_rows_are_drawn_by_the_seed():
    labels = np.zeros(100, int)
    rows = flipped_labels.flip(labels, 1)
    assert len(set(rows.tolist())) == 5
    assert (flipped_labels.flip(labels, 1) == rows).all()
    assert set(flipped_labels.flip(labels, 2).tolist()) != set(rows.tolist())
