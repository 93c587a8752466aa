"""Temperatures, errors of calibration, and rows that are left unanswered."""

import math

import numpy as np
import pytest
import refusals
from conftest import (
    SENTENCES,
    TINY_WORDS,
    load_predictor,
    module_fixture,
    open_checkpoint,
    read_adapter_config,
    read_json,
    read_lines,
    write_table,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_exported_kinds import COLUMNS, PLAIN
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.commands import convert, merge
from adapter_bert.exchange import foreign_base
from adapter_bert.tasks import metrics
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.text_task import Calibration
from adapter_bert.training import calibrating
from adapter_bert.training.calibrating import Calibrating

pytestmark = pytest.mark.newer_stack

FITTED = {"calibration": {"temperature": 0.02, "abstain_below": 0.0}}


# Fitting


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 8.0])
def test_a_known_temperature_is_found(temperature):
    """Labels are drawn with the probabilities of the undivided logits."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (20_000, 3))
    odds = np.exp(metrics.log_softmax(logits))
    labels = (odds.cumsum(axis=1) < rng.random((len(odds), 1))).sum(axis=1)
    made = (logits * temperature).astype(np.float32)
    fitted = calibrating.fit_temperature(made, labels)
    assert fitted == pytest.approx(temperature, rel=0.05)
    measured = np.arange(len(labels)) % 2 == 0
    _, record = calibrating.fit(made, labels, measured, None)
    assert record["after"] < 0.02
    assert record["loss_after"] <= record["loss_before"] + 1e-3
    if temperature != 1:
        assert record["before"] > 3 * record["after"]


def test_a_temperature_by_hand():
    """Of logits 0 and 1 three of four rows are right: 1 / T is log 3."""
    logits = np.tile(np.float32([0, 1]), (4, 1))
    fitted = calibrating.fit_temperature(logits, np.array([1, 1, 1, 0]))
    assert fitted == pytest.approx(1 / math.log(3), rel=1e-12)
    # None is best if all are right, or most are wrong.
    for labels in np.ones(4, int), np.array([0, 0, 0, 1]):
        assert calibrating.fit_temperature(logits, labels) is None
    measured = np.array([False, True, False, True])
    fitted, record = calibrating.fit(logits, np.ones(4, int), measured, None)
    assert fitted == Calibration() and record["temperature"] is None
    assert record["before"] == record["after"]


@pytest.mark.parametrize(
    "other, kept", [([1] * 13 + [0] * 7, True), ([1] * 39 + [0], False)]
)
def test_a_temperature_is_kept_if_the_other_half_s_loss_falls(other, kept):
    """Three of four fitted rows are right, where logits promise 95%."""
    labels = np.array([1, 1, 1, 0, *other])
    logits = np.tile(np.float32([0, 3]), (len(labels), 1))
    measured = np.arange(len(labels)) >= 4
    fitted, record = calibrating.fit(logits, labels, measured, None)
    assert (record["temperature"] is not None) == kept
    assert (fitted == Calibration()) == (not kept)
    assert record["loss_after"] <= record["loss_before"]
    assert record["accuracy"] == pytest.approx(np.mean(other))
    for when in ("before", "after"):
        low, high = record[f"interval_{when}"]
        assert 0 <= low < high <= 1
        assert low <= record[when] <= high


def test_the_expected_error_by_hand():
    probabilities = np.array([0.61, 0.65, 0.95, 0.99, 2 / 3])
    is_right = np.array([True, False, True, True, True])
    points = calibrating.reliability(probabilities, is_right)
    # 2 / 3 is the upper edge of its bin.
    assert points == [
        {
            "rows": 3,
            "probability": pytest.approx(np.mean([0.61, 0.65, 2 / 3])),
            "accuracy": pytest.approx(2 / 3),
        },
        {"rows": 2, "probability": pytest.approx(0.97), "accuracy": 1.0},
    ]
    gap = 2 / 3 - np.mean([0.61, 0.65, 2 / 3])
    expected = 0.6 * gap + 0.4 * 0.03
    assert calibrating.calibration_error(points) == pytest.approx(expected)


def test_the_error_s_interval_allows_for_few_rows():
    """The error of rows that are right as often as promised is above 0."""
    errors, lows = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        promised = rng.uniform(0.5, 1, 436)
        is_right = rng.random(436) < promised
        points = calibrating.reliability(promised, is_right)
        errors.append(calibrating.calibration_error(points))
        lows.append(calibrating.error_interval(promised, is_right)[0])
    assert np.mean(errors) > 0.04
    assert np.median(lows) < 0.01


def test_a_threshold_that_is_not_reached_is_told(caplog):
    """The surest rows are wrong, and all are answered."""
    logits = np.float32([[0, 9]] * 4 + [[0, 1]] * 4)
    labels = np.array([0] * 4 + [1] * 4)
    measured = np.arange(8) % 2 == 0
    fitted, record = calibrating.fit(logits, labels, measured, 0.99)
    assert fitted.abstain_below == 0 and record["abstain_below"] is None
    calibrating._log(record, "calibration.json")
    message = "precision of 0.99: the adapter answers all rows; lower --abst"
    assert message in caplog.text


PAIRS = st.lists(
    st.tuples(st.sampled_from([0.5, 0.6, 0.7, 0.8, 0.9, 1.0]), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200)
@given(PAIRS, st.sampled_from([0.5, 0.75, 0.9]))
def test_a_threshold_leaves_out_the_fewest_rows(rows, precision):
    probabilities = np.array([p for p, _ in rows])
    is_right = np.array([right for _, right in rows])
    threshold = calibrating.choose_threshold(probabilities, is_right, precision)
    reached = [
        int(np.sum(probabilities >= least))
        for least in np.unique(probabilities)
        if is_right[probabilities >= least].mean() >= precision
    ]
    if threshold is None:
        assert not reached
        return
    assert int(np.sum(probabilities >= threshold)) == max(reached)
    assert (threshold == 0) == (max(reached) == len(rows))


def test_halves_share_the_labels():
    labels = ["a"] * 40 + ["b"] * 10
    strata = [(label,) for label in labels]
    measured = calibrating.measured_rows(range(50), strata)
    assert measured[:40].sum() == 20 and measured[40:].sum() == 5
    again = calibrating.measured_rows(range(50), strata)
    assert (measured == again).all()
    # Places of right choices are no labels.
    assert calibrating.measured_rows(range(4), [(None,)] * 4).sum() == 2


@refusals.table(
    {
        "one label": ("aaaaaaaaa", "all 9 dev rows have the label 'a'", "two"),
        "few": ("abb", "found 2 and 1 rows, expected at least 2 each"),
        "one each": ("abcdef", "found 6 and 0 rows"),
    }
)
def test_too_few_dev_rows_are_refused(call, parts):
    strata = [(label,) for label in call]
    refusals.check(
        lambda: calibrating.measured_rows(range(len(call)), strata), *parts
    )


# Adapters


@pytest.mark.parametrize(
    "value",
    [
        3,
        {"temperature": 2.0},
        {"temperature": 0.0, "abstain_below": 0.5},
        {"temperature": float("nan"), "abstain_below": 0.5},
        {"temperature": True, "abstain_below": 0.5},
        {"temperature": 1.5, "abstain_below": 1.5},
        {"temperature": 1.5, "abstain_below": 0.5, "more": 1},
    ],
)
def test_a_damaged_calibration_is_refused(value):
    settings = {"calibration": value}
    refusals.check(
        lambda: restore_task(CLASSIFICATION, settings, "head"),
        "head: task_settings.calibration is ",
    )


def test_an_adapter_keeps_its_calibration():
    task = restore_task(CLASSIFICATION, FITTED, "head")
    assert task.calibration == Calibration(0.02, 0.0)
    assert task.settings["calibration"] == FITTED["calibration"]
    plain = restore_task(CLASSIFICATION, {}, "head")
    assert "calibration" not in plain.settings
    for kind in ("multi_label", "regression"):
        other = {**CLASSIFICATION, kind: True}
        assert not restore_task(other, FITTED, "head").chooses_one


TEXTS = [text for text, _ in SENTENCES] + ["a cat", "is it ?", "the", ""]
ROWS = {
    "plain": [(text,) for text in TEXTS],
    "fitted": [(text,) for text in TEXTS],
    "choice": [("a cat", a, b) for a, b in zip(TEXTS[:9], TEXTS[1:10])],
}


@module_fixture
def calibrated(tiny_bert, tmp_path_factory):
    """Folders of adapters, their answers, and their least probabilities.

    `plain` and `fitted` have one set of values. Of the random probabilities
    the least lies in the widest gap.
    """
    place = tmp_path_factory.mktemp("calibrated")
    folders = {name: str(place / name) for name in ROWS}
    for name, described, fitted in (
        ("plain", CLASSIFICATION, {}),
        ("fitted", CLASSIFICATION, FITTED),
        ("choice", PLAIN, {**COLUMNS, **FITTED}),
    ):
        about = "houlsby(size=3)", None, described, 1
        more = {"task_settings": fitted} if fitted else {}
        make_artifact(place / name, tiny_bert, *about, **more)
    predictor = load_predictor(tiny_bert, folders)
    least = {}
    for name in ("fitted", "choice"):
        shares = sorted(x["probability"] for x in predictor(name, ROWS[name]))
        widest = int(np.argmax(np.diff(shares)))
        least[name] = (shares[widest] + shares[widest + 1]) / 2
        settings = adapter_artifact.settings_of(folders[name])
        settings["calibration"]["abstain_below"] = least[name]
        adapter_artifact.change_settings(folders[name], settings)
        predictor.add(folders[name], name)
    answers = {name: predictor(name, rows) for name, rows in ROWS.items()}
    return folders, answers, least


def test_unsure_rows_have_no_label_but_probabilities(calibrated):
    _, answers, least = calibrated
    for plain, fitted in zip(answers["plain"], answers["fitted"]):
        odds = np.log(list(plain["scores"].values())) / 0.02
        odds = np.exp(odds - odds.max())
        expected = odds / odds.sum()
        assert list(fitted["scores"].values()) == pytest.approx(expected)
        assert fitted["probability"] == max(fitted["scores"].values())
        is_sure = fitted["probability"] >= least["fitted"]
        assert fitted["label"] == (plain["label"] if is_sure else None)
    for name, key in (("fitted", "label"), ("choice", "choice")):
        missing = {one[key] is None for one in answers[name]}
        assert missing == {False, True}
        for one in answers[name]:
            assert (one[key] is None) == (one["probability"] < least[name])


def test_other_programs_get_divided_heads(calibrated, caplog):
    heads = []
    for name in ("plain", "fitted"):
        artifact = adapter_artifact.read(calibrated[0][name])
        config = merge.run_record.bert_config(artifact.config, "")
        heads.append(foreign_base.head_of(artifact, config).layers[-1])
        values, _ = merge.head_of(artifact, config)
        for ours, value in zip(heads[-1], map(values.get, OUTPUTS)):
            assert np.array_equal(ours, value)
    for plain, fitted in zip(*heads):
        assert np.array_equal(plain / np.float32(0.02), fitted)
    assert "with no label, which other programs" in caplog.text


OUTPUTS = ("output_weights", "output_bias")


# Runs


@pytest.fixture
def fitting_flags(tiny_flags, tmp_path):
    """Flags of a training of a second, with 24 dev rows.

    One training row of eight is bad, but one dev row of four: the answers are
    too sure.
    """

    def rows(bad):
        return [
            (f"{text} {TINY_WORDS[5 + n // 8]}", "good" if n % bad else "bad")
            for n, (text, _) in enumerate(SENTENCES * 3)
        ]

    data = tmp_path / "data"
    data.mkdir()
    write_table(data / "train.tsv", rows(8))
    write_table(data / "dev.tsv", rows(4))
    write_table(data / "test.tsv", [row[:1] for row in rows(4)], ("text",))
    return {
        **tiny_flags,
        "data_dir": data,
        "num_train_epochs": 8,
        "do_eval": True,
        "calibrate": True,
    }


def stop(*_):
    raise KeyboardInterrupt


def test_a_run_calibrates_its_adapter_and_keeps_the_weights(
    classify, fitting_flags, tiny_bert, tmp_path, run_main
):
    plain = {**fitting_flags, "output_dir": tmp_path / "plain"}
    del plain["calibrate"]
    classify(**plain)
    classify(**fitting_flags, abstain_at=0.75, do_predict=True)
    out, other = fitting_flags["output_dir"], tmp_path / "plain"
    record = read_json(out / "calibration.json")
    assert record["rows_fitted"] + record["rows_measured"] == 24
    assert record["rows_measured"] == sum(
        point["rows"] for point in record["points_before"]
    )
    assert not (other / "calibration.json").exists()
    weights = [one / "adapter" / "adapter.safetensors" for one in (out, other)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    kept, before = (
        read_json(one / "adapter" / "adapter_config.json")
        for one in (out, other)
    )
    fitted = kept["task_settings"].pop("calibration")
    assert fitted["temperature"] == record["temperature"]
    assert fitted["abstain_below"] == (record["abstain_below"] or 0)
    for one in (kept, before):
        del one["content_sha256"]
    assert kept == before
    for one in (run := [read_json(x / "run.json") for x in (out, other)]):
        del one["cut_rows"]
    assert run[0] == run[1]
    # Predict and the run's own predictions say the same.
    results = read_json(out / "eval_results.json")
    assert (
        results["eval_loss"]
        != read_json(other / "eval_results.json")["eval_loss"]
    )
    predictor = load_predictor(tiny_bert, [out / "adapter"])
    texts, lines = (
        read_lines(path)[1:]
        for path in (
            fitting_flags["data_dir"] / "test.tsv",
            out / "test_predictions.tsv",
        )
    )
    for text, line in zip(texts, lines):
        _, label, probability = line.split("\t")
        answer = predictor("custom", text)
        assert (answer["label"] or "") == label
        expected = pytest.approx(float(probability), rel=1e-4)
        assert answer["probability"] == expected
    # Other programs have the same head of the run and of its adapter.
    converted = []
    for named in (
        [f"--init_checkpoint={out}"],
        [f"--init_checkpoint={tiny_bert}", f"--adapter={out / 'adapter'}"],
    ):
        place = tmp_path / f"converted{len(named)}"
        more = "--to=adapter_bert", "--activation=gelu"
        run_main(convert, *named, *more, f"--output_dir={place}")
        converted.append(open_checkpoint(place).weights.read("output_weights"))
    np.testing.assert_array_equal(*converted)
    # Begun again, and killed before it is fitted anew.
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(KeyboardInterrupt),
    ):
        patch.setattr(Calibrating, "fit", stop)
        classify(**fitting_flags, abstain_at=0.75)
    settings = read_adapter_config(out / "adapter")["task_settings"]
    assert settings["calibration"] == fitted
    # The same training without the flag takes the calibration back.
    again = {**fitting_flags}
    del again["calibrate"]
    classify(**again)
    assert not (out / "calibration.json").exists()
    assert (
        read_adapter_config(out / "adapter")["task_settings"]
        == before["task_settings"]
    )


@refusals.table(
    {
        "alone": (
            {"calibrate": False, "abstain_at": 0.9},
            "without --calibrate",
        ),
        "no dev": ({"do_eval": False}, "without --do_eval"),
        "untrained": ({"do_train": False}, "without --do_train"),
        "sets": (
            {"multi_label": True},
            "which custom with these flags is not",
        ),
        "few": ({"max_eval_examples": 3}, "expected at least 2 each"),
        "all": ({"abstain_at": 1.0}, "--abstain_at is 1.0", "a probability"),
        "none": ({"abstain_at": 0.0}, "--abstain_at is 0.0", "a probability"),
    }
)
def test_what_cannot_be_calibrated_is_refused_before_the_training(
    classify, fitting_flags, call, parts
):
    refusals.check(lambda: classify(**{**fitting_flags, **call}), *parts)
    assert not fitting_flags["output_dir"].exists()
