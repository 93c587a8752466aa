"""Adapters that learn labels which they never saw."""

import logging
import shutil
from unittest import mock

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    SENTENCES,
    entry_point,
    make_flags,
    module_fixture,
    read_adapter,
    read_json,
    write_table,
)
from numpy.testing import assert_allclose
from run_folders import artifact_bytes, interrupt
from task_files import refusal

from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.commands import run_classifier
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.tasks import metrics, new_labels
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.new_labels import (
    OLD_LOGITS,
    NewLabelsHead,
    extend_labels,
)
from adapter_bert.training import imprinting

NEWER = pytest.mark.newer_stack
OLD = ("bad", "good")
NEW_LABELS = ("!", "about mats")
# Sorted with the old labels they would come first.
NEW = tuple((text + " a mat", "about mats") for text, _ in SENTENCES[:4])
NEW += tuple((text + " a dog", "!") for text, _ in SENTENCES[:4])


# Mathematics


@NEWER
def test_first_rows_by_hand():
    features = np.float32([[3, 4], [5, 0], [9, 9]])
    logits = np.float32([[1, 2, 0], [6, 3, 0], [9, 9, 0]])
    weights = np.float32([[0, 2], [4, 0], [0, 0]])
    labels = np.array([2, 2, 0])
    rows, bias = new_labels.imprint(features, labels, logits, weights, 2)
    # The mean (4, 2), as long as the old rows are on average, which is 3.
    assert_allclose(rows, [[12 / 20**0.5, 6 / 20**0.5]], rtol=1e-6)
    # The label's rows have their best old logits, 2 and 6, on average.
    of_label = features[:2] @ rows[0] + bias[0]
    assert_allclose(of_label.mean(), 4, rtol=1e-6)
    assert rows.dtype == bias.dtype == np.float32


@NEWER
def test_forgetting_by_hand():
    labels = np.array([0, 1, 1, 2])
    begun = np.float32([[3, 1, 0], [0, 2, 4], [1, 0, 0], [1, 0, 0]])
    after = np.float32([[1, 2, 0], [0, 2, 4], [0, 1, 0], [0, 0, 1]])
    assert new_labels.forgetting(labels, begun, after, 2) == {
        "old_labels": {
            "rows": 3,
            "before": 2 / 3,
            "imprinted": 1 / 3,
            "after": 1 / 3,
            "after_among_old": 2 / 3,
        },
        "new_labels": {"rows": 1, "imprinted": 0, "after": 1},
    }
    forgotten = new_labels.forgetting(labels[:3], begun[:3], after[:3], 2)
    assert forgotten["new_labels"] == {
        "rows": 0,
        "imprinted": None,
        "after": None,
    }


@NEWER
def test_the_distilling_loss_by_hand(tiny_config):
    """Labels compete with those of their age, old answers are softened."""

    def cross_entropy(logits, target):
        return -(target * metrics.log_softmax(np.array(logits))).sum()

    head = NewLabelsHead(
        2, 0.5, 4, tiny_config, lambda _, shape, __: tf.zeros(shape)
    )
    logits, old_logits = [2.0, 0.0, 1.0, 3.0], [0.0, 2.0]
    predictions = {"logits": tf.constant([logits] * 2)}
    features = {"label_ids": tf.constant([2, 0])}
    target = np.exp(metrics.log_softmax(np.array(old_logits) / 2))
    kept = 0.5 * cross_entropy([1, 0], target)
    old = {OLD_LOGITS: tf.constant([old_logits] * 2)}
    assert_allclose(
        head.loss(predictions, {**features, **old}),
        [
            cross_entropy([1, 3], [1, 0]) + kept,
            cross_entropy([2, 0], [1, 0]) + kept,
        ],
        rtol=1e-5,
    )
    # With replayed rows, or without old answers, all labels compete.
    assert_allclose(
        head.loss(predictions, features),
        [cross_entropy(logits, np.eye(4)[place]) for place in (2, 0)],
        rtol=1e-5,
    )


# Runs


@module_fixture
def folder(tmp_path_factory, tiny_bert, tiny_data):
    """`old`, a trained adapter of two labels, and `data` with more labels."""
    place = tmp_path_factory.mktemp("new_labels")
    with entry_point(run_classifier) as run:
        run(**make_flags(tiny_bert, tiny_data, place / "old"), do_eval=True)
    (place / "data").mkdir()
    write_table(place / "data" / "train.tsv", NEW * 3)
    write_table(place / "data" / "dev.tsv", SENTENCES + NEW)
    write_table(place / "replay.tsv", SENTENCES)
    return place


@pytest.fixture
def flags(folder, tiny_bert, tmp_path):
    """Flags of a run that learns the new labels."""
    return {
        **make_flags(tiny_bert, folder / "data", tmp_path / "out"),
        "adapter": folder / "old" / "adapter",
        "extend_labels": True,
        "do_eval": True,
    }


def weights_of(run):
    return read_adapter(run / "adapter").weights


def check_old_rows(before, after):
    """Compares the heads of an old adapter and of its extension."""
    for name in ("output_weights", "output_bias"):
        old, new = before.read(name), after.read(name)
        assert new[:2].tobytes() == old.tobytes()
        assert len(new) == 4 and np.abs(new[2:]).min(axis=-1).all()


@pytest.mark.gate
@pytest.mark.older_stack
def test_old_rows_keep_their_bits_and_all_else_is_learned(
    classify, folder, flags, caplog
):
    """With old rows, and without them by both engines, which agree."""
    before = weights_of(folder / "old")
    adapters = {}
    for name, more in (
        ("replayed", {"replay_file": folder / "replay.tsv"}),
        *((engine, {"engine": engine}) for engine in ("estimator", "strategy")),
    ):
        out = flags["output_dir"].with_name(name)
        with caplog.at_level(logging.INFO, "absl"):
            classify(**{**flags, **more, "output_dir": out})
        after = weights_of(out)
        check_old_rows(before, after)
        for variable in before.shapes:
            values = after.read(variable).tobytes()
            assert values != before.read(variable).tobytes()
        config = read_json(out, "adapter", "adapter_config.json")
        assert config["task"]["labels"] == [*OLD, *NEW_LABELS]
        forgotten = read_json(out, "forgetting.json")
        assert (
            forgotten["old_labels"]["rows"]
            == forgotten["new_labels"]["rows"]
            == 8
        )
        scores = read_json(folder / "old", "eval_results.json")
        assert forgotten["old_labels"]["before"] == scores["eval_accuracy"]
        scores = read_json(out, "eval_results.json")
        assert scores["eval_accuracy"] == np.mean(
            [forgotten[of]["after"] for of in ("old_labels", "new_labels")]
        )
        assert "accuracy on 8 dev rows of old labels: " in caplog.text
        adapters[name] = artifact_bytes(out)
    assert adapters["estimator"] == adapters["strategy"]
    assert adapters["estimator"] != adapters["replayed"]


@pytest.mark.gate
@NEWER
def test_a_killed_run_ends_in_the_same_bits(classify, folder, flags):
    """The training stops after a checkpoint, and goes on."""
    flags.update(save_checkpoints_steps=4, engine="strategy")
    classify(**{**flags, "output_dir": flags["output_dir"].with_name("whole")})
    interrupt(lambda: classify(**flags))
    out = flags["output_dir"]
    assert not (out / "adapter" / "adapter.safetensors").exists()
    classify(**flags)
    check_old_rows(weights_of(folder / "old"), weights_of(out))
    whole = out.with_name("whole")
    assert artifact_bytes(out) == artifact_bytes(whole)
    assert read_json(out, "forgetting.json") == read_json(
        whole, "forgetting.json"
    )
    # It is evaluated like any run, though no training row has an old label.
    scores = read_json(out, "eval_results.json")
    (out / "eval_results.json").unlink()
    more = {"do_train": False, "extend_labels": False, "adapter": ""}
    classify(**{**flags, **more})
    assert read_json(out, "eval_results.json") == scores
    # Another weight, or no flag, is another run.
    for change in ({"distill_weight": 0.5}, {"extend_labels": False}):
        with pytest.raises(UserError, match="another|unknown label"):
            classify(**{**flags, **change})


@NEWER
def test_what_an_adapter_loses_is_told(
    classify, flags, folder, tmp_path, caplog
):
    adapter = shutil.copytree(folder / "old" / "adapter", tmp_path / "old")
    fitted = {"temperature": 2.0, "abstain_below": 0.0}
    settings = adapter_artifact.settings_of(str(adapter))
    settings.update(calibration=fitted, novelty={})
    adapter_artifact.change_settings(str(adapter), settings)
    write_table(tmp_path / "train.tsv", NEW)
    write_table(tmp_path / "dev.tsv", NEW)
    flags.update(adapter=adapter, data_dir=tmp_path, num_train_epochs=1)
    classify(**flags)
    for message in (
        f"the calibration of {adapter}",
        "--calibrate=true fits another one",
        f"the novelty of {adapter}",
        "--score_novelty=true fits another one",
        "no dev row has an old label",
    ):
        assert message in caplog.text
    out = str(flags["output_dir"] / "adapter")
    kept = adapter_artifact.settings_of(out)
    assert not {"calibration", "novelty"} & kept.keys()


@NEWER
@pytest.mark.parametrize(
    "change, words",
    [
        ({"adapter": ""}, "without --adapter"),
        ({"do_train": False}, "without --do_train or --describe"),
        (
            {"extend_labels": False, "replay_file": "a"},
            "without --extend_labels",
        ),
        ({"replay_file": "a.tsv"}, "--replay_file is a.tsv, which does not"),
        ({"replay_file": "a.tsv", "distill_weight": 1}, "leave one of them"),
        ({"multi_label": True}, "one label for each row, which custom with"),
        ({"task_name": "sst-2"}, "pass --task_name=custom and the columns"),
        ({"max_train_examples": 1}, "no training row has the new label '!'"),
    ],
)
def test_what_cannot_be_extended_is_one_line(classify, flags, change, words):
    refusals.check(lambda: classify(**{**flags, **change}), words)
    assert not flags["output_dir"].exists()


@NEWER
def test_files_without_a_new_label_are_refused(
    classify, flags, folder, tmp_path
):
    write_table(tmp_path / "train.tsv", SENTENCES)
    write_table(tmp_path / "dev.tsv", SENTENCES)
    flags["data_dir"] = tmp_path
    refusals.check(lambda: classify(**flags), "expects rows of a new label")
    write_table(tmp_path / "train.tsv", NEW)
    replay = tmp_path / "replay.tsv"
    for rows, words in (
        ([("a", "other")], "replay.tsv:2: unknown label 'other'"),
        ([], "replay.tsv holds no rows"),
        ([("a", "!")], "replay.tsv has no row of an old label"),
    ):
        write_table(replay, rows)
        with pytest.raises(UserError, match=words):
            classify(**flags, replay_file=replay)
    write_table(replay, SENTENCES)
    more = {"replay_file": replay, "max_train_examples": len(NEW)}
    refusals.check(lambda: classify(**flags, **more), "of --replay_file")
    flags["replay_file"] = tmp_path / "train.tsv"
    refusals.check(lambda: classify(**flags), "which is the training file too")
    flags["replay_file"] = shutil.copy(replay, tmp_path / "dev.tsv")
    flags["do_eval"] = True
    refusals.check(lambda: classify(**flags), "which is the eval file too")


REPLAYED = [(f"text {i}", OLD[i % 2]) for i in range(16)]
DIVIDED = custom_task(dev_share=0.25, split_seed=3)


def extended(folder, rows):
    """The task of an adapter of old labels that learns these rows' labels."""
    write_table(folder / "replay.tsv", REPLAYED)
    write_table(folder / "train.tsv", rows)
    task = extend_labels(DIVIDED, str(folder / "replay.tsv"), None)
    return task.restore(
        {"name": "custom", "labels": list(OLD), "pairs": False}, "an adapter"
    )


@NEWER
def test_held_out_rows_are_of_both_files(tmp_path):
    """Replayed rows are divided as in the old adapter's own training."""
    write_table(tmp_path / "train.tsv", REPLAYED)
    _, before = DIVIDED.read(str(tmp_path), ["train", "dev"])
    task = extended(tmp_path, NEW)
    task, rows = task.read(str(tmp_path), ["train", "dev"])
    assert task.labels == (*OLD, *NEW_LABELS)
    for split, count in (("train", 6), ("dev", 2)):
        of_split = rows[split]
        assert len(of_split) == count + len(before[split])
        assert {*of_split.label[:count]} == {*NEW_LABELS}
        assert of_split.label[count:] == before[split].label
        assert of_split.text_a[count:] == before[split].text_a


@NEWER
@pytest.mark.parametrize("count", [8, 16])
def test_a_text_of_both_files_is_on_one_side(tmp_path, count):
    new = [(f"{text} ", "!") for text, _ in REPLAYED[:count]] + [*NEW]
    task = extended(tmp_path, new)
    _, rows = task.read(str(tmp_path), ["train", "dev"])
    train, dev = (
        {" ".join(text.split()) for text in rows[split].text_a}
        for split in ("train", "dev")
    )
    assert dev and not train & dev
    assert sum(map(len, rows.values())) == len(REPLAYED) + len(new)
    # Nor do training rows depend on who asks for dev rows.
    _, alone = task.read(str(tmp_path), ["train"])
    assert {*alone} == {"train"} and alone["train"].text_a == (
        rows["train"].text_a
    )


@NEWER
@pytest.mark.parametrize("side", ["train", "dev"])
def test_all_texts_of_the_file_may_be_on_one_side(tmp_path, side):
    write_table(tmp_path / "train.tsv", REPLAYED)
    _, before = DIVIDED.read(str(tmp_path), ["train", "dev"])
    new = [(text, "!") for text in before[side].text_a]
    _, rows = extended(tmp_path, new).read(str(tmp_path), ["train", "dev"])
    for split, of_split in rows.items():
        texts = before[split].text_a * (1 + (split == side))
        assert sorted(of_split.text_a) == sorted(texts)
        assert len(of_split.label) == len(of_split) == len(texts)


@NEWER
def test_a_composition_is_refused():
    run = mock.MagicMock()
    run.model.method = registry.parse("union(lora, prefix)")
    run.model.trained.weights.source = "old"
    assert "old is the composition union(" in refusal(
        imprinting.Imprinting().check, run
    )
