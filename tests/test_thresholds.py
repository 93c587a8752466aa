"""Thresholds of several labels, `--fit_thresholds`, and scores of rankings."""

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
from conftest import (
    cells,
    load_predictor,
    read_adapter_config,
    read_json,
    write_table,
)
from run_folders import artifact_bytes
from sklearn import metrics as peer

from adapter_bert.tasks import metrics
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.training.thresholds import fit, measure

pytestmark = pytest.mark.older_stack

# Few values, so that many are equal.
SCORES = st.sampled_from([0.0, 0.1, 0.3, 0.45, 0.5, 0.55, 0.7, 0.9, 1.0])
SETS = {"name": "custom", "labels": ["cat", "dog"], "multi_label": True}


@st.composite
def rows(draw):
    """Labels, bool [N, C], and probabilities [N, C]."""
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 4)))
    labels = draw(hnp.arrays(bool, shape))
    return labels, draw(hnp.arrays(float, shape, elements=SCORES))


@pytest.mark.filterwarnings("error")
def test_rankings_by_hand():
    """No row has the last label."""
    labels = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]], bool)
    scores = np.array([[0.9, 0.1, 0.2], [0.8, 0.7, 0.05], [0.3, 0.6, 0.4]])
    assert metrics.ranking_scores(labels, scores) == pytest.approx(
        {
            "macro_average_precision": (5 / 6 + 1 + 0) / 3,
            "micro_average_precision": (1 + 2 / 3 + 3 / 4 + 2 / 3) / 4,
            "label_ranking_average_precision": (1 + 1 / 2 + 5 / 6) / 3,
            "macro_roc_auc": (1 / 2 + 1) / 2,
        }
    )
    # Without a label, each row's order is right, and no row is told apart.
    none = metrics.ranking_scores(np.zeros((3, 3), bool), scores)
    assert none == dict(zip(metrics.RANKINGS, (0, 0, 1)))
    every = metrics.ranking_scores(np.ones((3, 3), bool), scores)
    assert every == dict(zip(metrics.RANKINGS, (1, 1, 1)))


@hypothesis.settings(deadline=None)
@hypothesis.given(rows(), st.sampled_from([0.2, 0.5]))
def test_no_threshold_has_a_greater_f1(rows, usual):
    """Every cut between two rows is tried; the usual one wins at equal F1."""
    labels, scores = rows
    for has, of, threshold in zip(labels.T, scores.T, fit(*rows, usual)):

        def f1(least, has=has, of=of):
            return peer.f1_score(has, of >= least, zero_division=0)

        cuts = [usual, *of, *(of + 1e-6)]
        best = max(map(f1, cuts))
        assert f1(threshold) == best
        assert 0 <= threshold <= 1
        assert (threshold == usual) == (f1(usual) == best)
        # It lies between probabilities, so that rounding changes no answer.
        apart = np.abs(of - threshold)
        assert threshold == usual or threshold == 0 or min(apart) > 0.01


def test_of_equal_thresholds_the_nearest_to_the_usual_one_counts():
    # 2/3 both above 0.8 and below 0.3: 0.85 and 0.2 are as near to 0.525.
    labels = np.array([[1], [0], [0], [1]], bool)
    scores = np.array([[0.9], [0.8], [0.3], [0.1]])
    assert fit(labels, scores, 0.7) == [pytest.approx(0.85)]
    assert fit(labels, scores, 0.3) == [pytest.approx(0.05)]


def test_halves_are_measured_by_thresholds_of_the_others():
    labels = np.array([[1], [1], [0], [0]], bool)
    scores = np.array([[0.4], [0.3], [0.35], [0.1]])
    half = np.array([True, False, True, False])
    fitted = fit(labels, scores, 0.5)
    record = measure(labels, scores, 0.5, fitted, half)
    # 0.375 of one half leaves out 0.3, 0.2 of the other takes 0.35.
    assert record["macro_f1"] == pytest.approx(
        {"before": 0, "after": 0.8, "held_out": 0.5}
    )
    assert record["labels"][0]["threshold"] == fitted[0] == 0.2


@pytest.mark.parametrize(
    "fitted",
    [
        [0.5, 0.5],
        {"cat": 0.5},
        {"cat": 0.5, "dog": 2},
        {"cat": 0.5, "dog": "x"},
    ],
)
def test_settings_are_checked(fitted):
    refusals.check(
        lambda: restore_task(SETS, {"label_thresholds": fitted}, "x"),
        "x: task_settings.label_thresholds is",
    )


@pytest.fixture
def flags(tiny_flags, tmp_path):
    """A training of three labels, of which no dev row has one."""
    texts = [f"the {x} is {y} ." for x in ("cat", "dog", "film") for y in "ab"]
    labels = ["cat", "cat|film", "dog", "dog", "film", ""]
    write_table(tmp_path / "train.tsv", list(zip(texts, labels)) * 3)
    some = [
        (x, y.replace("film", "").strip("|")) for x, y in zip(texts, labels)
    ]
    for split in ("dev", "test"):
        write_table(tmp_path / f"{split}.tsv", some)
    return {
        **tiny_flags,
        "data_dir": tmp_path,
        "multi_label": True,
        "num_train_epochs": 1,
        "do_eval": True,
    }


@pytest.mark.gate
def test_an_adapter_keeps_thresholds_that_later_runs_follow(
    classify, flags, tiny_bert, tmp_path
):
    out = flags["output_dir"]
    classify(**flags)
    plain = read_json(out / "eval_results.json")
    weights = artifact_bytes(out)
    classify(**flags, fit_thresholds=True, do_predict=True)
    assert artifact_bytes(out) == weights
    fitted = read_json(out / "eval_results.json")
    assert fitted["eval_macro_f1"] > plain["eval_macro_f1"]
    same = "loss", "eval_macro_average_precision", "eval_macro_roc_auc"
    assert [fitted[x] for x in same] == [plain[x] for x in same]
    record = read_json(out / "label_thresholds.json")
    assert record["macro_f1"]["after"] == fitted["eval_macro_f1"]
    assert record["macro_f1"]["before"] == plain["eval_macro_f1"]
    least = {n: one["threshold"] for n, one in record["labels"].items()}
    # No dev row is of a film.
    assert least["film"] == 0.5 != least["cat"]
    settings = read_adapter_config(out / "adapter")["task_settings"]
    assert settings["label_thresholds"] == least
    _, *answers = cells(out / "test_predictions.tsv")
    texts = [row[0] for row in cells(tmp_path / "dev.tsv")]
    answered = load_predictor(tiny_bert, [out / "adapter"])("custom", texts[1:])
    assert any(answer.labels for answer in answered)
    for row, answer in zip(answers, answered):
        assert row[1] == "|".join(answer.labels)
        kept = [x for x, p in answer.scores.items() if p >= least[x]]
        assert answer.labels == kept
    later = {**flags, "do_train": False}
    other = {"adapter": out / "adapter", "output_dir": tmp_path / "b"}
    for more, expected in (
        ({}, fitted),
        (other, fitted),
        ({**other, "label_threshold": 0.5}, plain),
    ):
        classify(**{**later, **more})
        folder = more.get("output_dir", out)
        results = read_json(folder / "eval_results.json")
        assert results["eval_macro_f1"] == expected["eval_macro_f1"]
    # The same command without the flag takes them back.
    classify(**flags)
    settings = read_adapter_config(out / "adapter")["task_settings"]
    assert settings["label_threshold"] == 0.5
    assert "label_thresholds" not in settings
    assert not (out / "label_thresholds.json").exists()


@pytest.mark.parametrize(
    "change, part",
    [
        ({"multi_label": False}, "--fit_thresholds is for a task that gives"),
        ({"label_threshold": 0.3}, "--fit_thresholds and --label_threshold ex"),
        ({"do_eval": False}, "--fit_thresholds means nothing without"),
    ],
)
def test_what_fits_no_thresholds_is_refused(classify, flags, change, part):
    flags = {**flags, "fit_thresholds": True, **change}
    refusals.check(lambda: classify(**flags), part)
