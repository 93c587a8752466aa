"""`lab.suggested_adapters`: what its record is made of."""

import pytest
from conftest import write_table

from adapter_bert.data.tables import Layout, read_rows
from lab import suggested_adapters
from lab.suggested_adapters import NOTHING

pytestmark = pytest.mark.newer_stack


def test_regrets_are_to_the_best_start():
    scores = {NOTHING: 0.5, "sst2": 0.6, "mrpc": 0.9}
    logme = {"sst2": -0.1, NOTHING: -0.3, "mrpc": -0.2}
    found = suggested_adapters.summarize(scores, logme)
    assert found["suggested"] == "sst2"
    assert found["regret"] == pytest.approx(
        {
            "suggested": 0.3,
            "random": 0.9 - 2 / 3,
            "biggest": 0.3,
            NOTHING: 0.4,
        }
    )
    # Of three pairs two have one order.
    assert found["tau"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ([1, 2, 3], [4, 5, 6], 1),
        ([1, 2, 3], [6, 5, 4], -1),
        ([1, 2, 3], [5, 5, 5], 0),
        ([1, 2, 3, 4], [1, 2, 4, 3], 2 / 3),
    ],
)
def test_rank_correlation(first, second, expected):
    assert suggested_adapters.tau(first, second) == pytest.approx(expected)


def test_rows_of_dev_sets_are_others(tmp_path, monkeypatch):
    for name, count in (("MANY", 20), ("FEW", 5), ("DEV", 8)):
        monkeypatch.setattr(suggested_adapters, name, count)
    rows = [(f"a{n}", f"b{n}", str(n % 5)) for n in range(40)]
    path = tmp_path / "train"
    write_table(path, rows, ("sentence1", "sentence2", "score"))
    suggested_adapters.divide("stsb", str(path), tmp_path)
    layout = Layout("text", "text_b", label="label")
    many, few, dev = (
        read_rows(str(tmp_path / f"stsb_{part}.tsv"), layout)
        for part in ("many", "few", "dev")
    )
    assert [len(many), len(few), len(dev)] == [20, 5, 8]
    assert few.text_a == many.text_a[:5]
    assert not set(many.text_a) & set(dev.text_a)
    known = {a: (b, label) for a, b, label in rows}
    for a, b, label in zip(dev.text_a, dev.text_b, dev.label):
        assert known[a] == (b, label)
    task = suggested_adapters.task_of("stsb", tmp_path, "few")
    assert task.columns == ("text", "text_b") and not task.chooses_one
