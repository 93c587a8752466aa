"""`lab.unlike_texts`: other tasks' texts in a task's own form."""

import numpy as np
import pytest
from test_novelty import OTHER, OWN, draw_texts

import adapter_bert
from adapter_bert.data.tables import Rows
from lab import unlike_texts

pytestmark = pytest.mark.newer_stack


def rows_of(words, seed, count, pairs=False):
    texts = draw_texts(words, seed, 2 * count)
    label = ["a", "b"] * (count // 2)
    second = texts[count:] if pairs else None
    return Rows("", np.arange(count), texts[:count], second, label)


def test_rows_take_the_form_of_a_task():
    single = Rows("", np.arange(5), list("abcde"))
    pairs = Rows("", np.arange(2), ["a", "b"], ["c", "d"])
    assert unlike_texts.texts_of(single, True) == [("a", "b"), ("c", "d")]
    assert unlike_texts.texts_of(single, False) == [*map(tuple, "abcde")]
    assert unlike_texts.texts_of(pairs, True) == [("a", "c"), ("b", "d")]
    assert unlike_texts.texts_of(pairs, False) == [("a",), ("b",)]


def test_unlike_texts_are_told_from_a_tasks_own(
    tiny_bert, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        unlike_texts,
        "TRAINING",
        {
            **unlike_texts.TRAINING,
            "tuning_method": "bitfit",
            "max_seq_length": 24,
            "cpu_lanes": 1,
        },
    )
    data = {
        "own": (rows_of(OWN, 0, 60), rows_of(OWN, 1, 20)),
        "same": (None, rows_of(OWN, 2, 20, pairs=True)),
        "other": (None, rows_of(OTHER, 3, 20)),
    }
    bert = adapter_bert.load_bert(str(tiny_bert))
    found = unlike_texts.measure("own", data, bert, tmp_path)
    assert found["novelty"]["other"] > 0.95
    assert 0.25 < found["novelty"]["same"] < 0.75
    assert sorted(found["probability"]) == ["other", "same"]
