"""`lab.chosen_rows`: what a selection saves is counted right."""

import json
import math

import numpy as np
import pytest
from conftest import SENTENCES

from adapter_bert.commands import select
from adapter_bert.tasks import metrics
from lab import chosen_rows, flipped_labels

pytestmark = pytest.mark.newer_stack

SIZES = [4, 6, 10]


@pytest.mark.parametrize(
    "scores, wanted, needed",
    [
        ([60, 70, 90], 80, 8),
        ([60, 70, 90], 60, 4),
        ([60, 90, 70], 75, 5),
        ([60, 70, 90], 91, math.nan),
    ],
)
def test_rows_needed_are_on_the_line(scores, wanted, needed):
    found = chosen_rows.rows_needed(SIZES, scores, wanted)
    assert found == pytest.approx(needed, nan_ok=True)


def test_each_way_labels_rows_of_the_pool_once():
    rng = np.random.default_rng(1)
    probabilities = rng.dirichlet([1, 1], 30)
    margins = abs(probabilities[:, 0] - probabilities[:, 1])
    labels = np.arange(30) % 2
    ways = chosen_rows.ways(rng.normal(size=(20, 3)), SIZES[0], SIZES[-1], 1)
    assert (ways["random"][0] == ways["margin"][0]).all()
    for way, (first, choose) in ways.items():
        learned = []

        def learn(labelled, learned=learned):
            learned.append(labelled.tolist())
            return probabilities

        scores = chosen_rows.curve(
            learn, first, choose, SIZES, labels, 20, metrics.accuracy
        )
        right = probabilities[20:].argmax(axis=1) == labels[20:]
        assert scores == [100 * right.mean()] * len(SIZES)
        assert list(map(len, learned)) == SIZES
        assert len(set(learned[-1])) == SIZES[-1] and max(learned[-1]) < 20
        assert learned[-1][: SIZES[1]] == learned[1]
        if way == select.MARGIN:
            rest = np.setdiff1d(np.arange(20), first)
            expected = rest[np.argsort(margins[rest])]
            assert learned[-1][SIZES[0] :] == expected[:6].tolist()


@pytest.mark.parametrize("method", [None, "head"])
def test_curves_are_recorded_and_drawn(
    method, tiny_bert, tmp_path, monkeypatch
):
    monkeypatch.setattr(chosen_rows, "SEEDS", (1,))
    monkeypatch.setattr(flipped_labels, "LENGTH", 32)
    monkeypatch.setitem(chosen_rows.SETTINGS, "num_train_steps", 2)
    monkeypatch.setitem(chosen_rows.SETTINGS, "max_seq_length", 32)
    spelt = {"good": "spam", "bad": "ham"}
    lines = [f"{spelt[label]}\t{text}\n" for text, label in SENTENCES[:7] * 6]
    (tmp_path / "rows").write_text("".join(lines))
    words = [f"sms={tmp_path / 'rows'}", f"--init_checkpoint={tiny_bert}"]
    words += [f"--kept={tmp_path / 'kept'}", f"--figure={tmp_path / 'c.png'}"]
    words += ["--sizes=12,30"]
    words += [f"--tuning_method={method}", "--ways=random"] if method else []
    monkeypatch.setattr("sys.argv", ["chosen_rows", *words])
    chosen_rows.main()
    record = json.loads((tmp_path / "kept/chosen_rows.json").read_text())
    [(name, found)] = record.items()
    assert name == f"sms, {method or 'linear heads'}"
    assert (found["pool"], found["held_out"]) == (32, 10)
    ways = ["random"] if method else ["random", "margin", "k_centre"]
    assert list(found["curves"]) == ways
    for scores in found["curves"].values():
        assert np.shape(scores) == (1, 2)
        assert all(0 <= score <= 100 for score in scores[0])
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
