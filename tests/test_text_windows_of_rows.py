"""Long texts as windows: `--window_stride`, `--pool_windows`."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
from conftest import (
    load_predictor,
    open_bert,
    read_adapter_config,
    read_json,
    read_lines,
    trained_task,
    write_table,
)
from numpy.testing import assert_array_equal
from tiny_artifacts import CLASSIFICATION, make_artifact, outputs_of

from adapter_bert.answering.explanations import check_explained
from adapter_bert.data.table_flags import POOLS
from adapter_bert.graph import runtimes
from adapter_bert.tasks import metrics
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.long_texts import cut_windows

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
def test_logits_are_those_of_single_windows_pooled(tiny_bert, tmp_path, pool):
    """Whatever else is in the batch; here windows are rows of their own."""
    texts = ["a cat", LONG, "", f"dog {LONG} {LONG[:40]}", LONG[:70]]
    settings = {"window_stride": 5, "pool_windows": pool}
    folder = tmp_path / "x"
    method, values = make_artifact(
        folder,
        tiny_bert,
        "houlsby(size=4)",
        None,
        CLASSIFICATION,
        0,
        task_settings=settings,
    )
    loaded = trained_task(open_bert(tiny_bert), folder)
    task, length = loaded.task, loaded.max_seq_length
    expected = []
    for ids in loaded.tokenizer.encode_ids(texts):
        last = max(0, len(ids) - length + 2) + 5
        alone = [
            [
                loaded.tokenizer.classify_id,
                *ids[first : first + length - 2],
                loaded.tokenizer.separate_id,
            ]
            for first in range(0, last, 5)
        ]
        rows = [(tokens, [0] * len(tokens)) for tokens in alone]
        outputs = outputs_of(tiny_bert, method, values, task, rows)
        expected.append(POOL[pool](np.stack([x["logits"] for x in outputs])))
    shares = np.exp(metrics.log_softmax(np.stack(expected)))
    assert len(np.unique(shares.round(5), axis=0)) == len(texts)
    for size in (1, 3, 64):
        predictor = load_predictor(tiny_bert, {"x": folder}, batch_size=size)
        together = predictor("x", texts)
        for answer, text, row in zip(together, texts, shares):
            for one in (answer, predictor("x", text)):
                assert list(one.scores.values()) == pytest.approx(row, abs=1e-6)


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
    config, run = (
        read_adapter_config(out / "adapter"),
        read_json(out / "run.json"),
    )
    for settings in (config["task_settings"], run["training"]):
        assert settings.items() >= windows.items()
    assert run["training"]["examples"] > len(rows)
    results = read_json(out / "eval_results.json")
    answers = read_lines(out / "test_predictions.tsv")
    assert len(answers) == 1 + len(rows)
    answered = load_predictor(tiny_bert, [out / "adapter"])(
        "custom", [text for text, _ in rows]
    )
    cells = [line.split("\t")[1] for line in answers[1:]]
    assert cells == [answer.label for answer in answered]
    flags.update(do_train=False, do_predict=False)
    for more in (
        {},
        {"adapter": out / "adapter", "output_dir": tmp_path / "b"},
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


@refusals.table(
    {
        name: (lambda x=(task, settings): restore_task(*x, "x"), *parts)
        for name, task, settings, parts in (
            ("stride", CLASSIFICATION, {"window_stride": -1}, [">= 0"]),
            ("pool", CLASSIFICATION, {"pool_windows": "sum"}, ["mean, max"]),
            (
                "choices",
                {"name": "custom", "choices": 2},
                {**STRIDE, "columns": ["a", "b", "c"]},
                ["x: window_stride is for"],
            ),
        )
    }
)
def test_an_adapter_s_settings_are_checked(call, parts):
    refusals.check(call, *parts)


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
