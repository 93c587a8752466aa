"""Long texts as windows: `--window_stride`, `--pool_windows`."""

from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
from conftest import (
    cells,
    load_predictor,
    open_bert,
    read_adapter_config,
    read_json,
    trained_task,
    write_table,
)
from numpy.testing import assert_allclose, assert_array_equal
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.answering.explanations import check_explained
from adapter_bert.data.table_flags import POOLS
from adapter_bert.graph import runtimes
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.long_texts import TextWindows, cut_windows

pytestmark = pytest.mark.older_stack

WORDS = "the cat sat on the mat . it is not a good dog".split()
TEXT = st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join)
LONG = " ".join(WORDS * 4)
POOL = {
    "mean": lambda x: x.astype(np.float64).mean(axis=0).astype(np.float32),
    "max": lambda x: x.max(axis=0),
    "first": lambda x: x[0],
}


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(TEXT, st.none() | TEXT), min_size=1, max_size=4),
    st.integers(5, 20),
    st.integers(1, 40),
)
def test_windows_cover_every_token(tokenizer, pairs, length, stride):
    """Those of a pair repeat the first text; all but the last are full."""
    has_b = all(b is not None for _, b in pairs)
    texts = [(a, b) if has_b else (a,) for a, b in pairs]
    rows = custom_task(text_b_column="b" if has_b else None).make_rows(texts)
    labels = {"label_ids": np.arange(len(pairs))}
    made = cut_windows(rows, labels, tokenizer, length, stride)
    assert max(made.lengths) <= length
    assert_array_equal(made.answer_labels["label_ids"], labels["label_ids"])
    for number, row in enumerate(texts):
        mine = made.labels["label_ids"] == number
        read, first = [], None
        for start, end in zip(made.starts[:-1][mine], made.starts[1:][mine]):
            tokens = made.tokens[start:end].tolist()
            part = tokens[1:-1]
            if has_b:
                middle = part.index(tokenizer.separate_id)
                assert first in (None, part[:middle])
                first, part = part[:middle], part[middle + 1 :]
            read.append(part)
        *before, last = read
        ids = tokenizer.encode_ids(list(row))
        if has_b:
            assert first == ids[0][: len(first)]
        room = max(map(len, read))
        step = min(room, stride)
        assert all(len(part) == room for part in before)
        assert [x for part in before for x in part[:step]] + last == ids[-1]
        # None is needless, and a text that fits has one.
        assert len(before) * step < len(ids[-1]) or not before
        assert len(last) > room - step or not before


def test_a_row_of_one_window_is_as_it_was(word_pieces):
    tokenizer, task = word_pieces, custom_task(text_b_column="b")
    rows = [("the cat", "sat on the mat"), ("", ""), (LONG, "a cat")]
    rows = task.make_rows(rows)
    plain = task.featurize(rows, tokenizer, 12)
    made = cut_windows(rows, {}, tokenizer, 12, 3)
    assert made.unlabelled().fingerprint() == plain.fingerprint()


@pytest.mark.parametrize("pool", POOLS)
def test_outputs_of_a_text_are_those_of_its_windows_pooled(pool):
    values = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    made = TextWindows.from_rows([], {})
    pooled = replace(made, first=np.array([0, 1, 5])).pool(values, pool)
    expected = [POOL[pool](part) for part in np.split(values, [1, 5])]
    assert_allclose(pooled, expected, rtol=1e-6)


@pytest.mark.gate
def test_a_run_scores_texts_and_its_adapter_keeps_windows(
    classify, tiny_flags, tiny_bert, tmp_path
):
    """The 9 dev rows are 9 answers, and later runs follow the adapter."""
    rows = [(LONG[n * 5 :], str(n % 2)) for n in range(9)]
    for split in ("train", "dev", "test"):
        write_table(tmp_path / f"{split}.tsv", rows)
    out = tiny_flags["output_dir"]
    flags = {**tiny_flags, "data_dir": tmp_path, "do_eval": True}
    windows = {"window_stride": 6, "pool_windows": "max"}
    flags.update(num_train_epochs=1, do_predict=True)
    classify(**flags, **windows)
    kept = read_adapter_config(out / "adapter")["task_settings"]
    run = read_json(out / "run.json")
    for settings in (kept, run["training"]):
        assert settings.items() >= windows.items()
    assert run["training"]["examples"] > len(rows)
    results = read_json(out / "eval_results.json")
    _, *answers = cells(out / "test_predictions.tsv")
    answered = load_predictor(tiny_bert, [out / "adapter"])(
        "custom", [text for text, _ in rows]
    )
    assert [row[1] for row in answers] == [x.label for x in answered]
    flags.update(do_train=False, do_predict=False)
    for more in (
        {},
        {"adapter": out / "adapter", "output_dir": tmp_path / "b"},
        {"init_checkpoint": out, "output_dir": tmp_path / "c"},
    ):
        classify(**{**flags, **more})
        again = read_json(more.get("output_dir", out) / "eval_results.json")
        assert again["loss"] == pytest.approx(results["loss"], rel=1e-6)
    refusals.check(
        lambda: classify(**{**flags, "do_train": True}, window_stride=7),
        "training.window_stride was 6, now 7",
    )


STRIDE = {"window_stride": 4}


@pytest.mark.parametrize(
    "change, parts",
    [
        (
            {"choice_columns": "a,b", **STRIDE},
            ["--window_stride: window_stride is for", "leave it out"],
        ),
        ({"score_novelty": True, **STRIDE}, ["--score_novelty", "--window_st"]),
        ({"pool_windows": "max"}, ["--pool_windows means nothing without"]),
    ],
)
def test_what_cannot_read_windows_is_refused(
    classify, tiny_flags, change, parts
):
    refusals.check(lambda: classify(**{**tiny_flags, **change}), *parts)


@pytest.mark.parametrize(
    "settings, part",
    [({"window_stride": -1}, ">= 0"), ({"pool_windows": "sum"}, "mean, max")],
)
def test_an_adapter_s_settings_are_checked(settings, part):
    refusals.check(lambda: restore_task(CLASSIFICATION, settings, "x"), part)


def test_other_runtimes_and_explanations_refuse_windows(tiny_bert, tmp_path):
    make_artifact(tmp_path / "a", tiny_bert, "bitfit", task_settings=STRIDE)
    bert = open_bert(tiny_bert)
    loaded = trained_task(bert, tmp_path / "a")
    refusals.check(lambda: check_explained(loaded, "a"), "a cannot be expl")
    to = str(tmp_path / "b")
    refusals.check(
        lambda: runtimes.export(bert, "a", loaded, to, "tflite"),
        "a reads long texts in windows",
        "export a SavedModel",
    )
