"""Adapters that learn labels which they never saw."""

import contextlib
import json
import logging
import shutil

import numpy as np
import pytest
import tensorflow as tf
from conftest import SENTENCES, entry_point, make_flags, write_table
from run_folders import artifact_bytes, read
from task_files import make_rows, refusal

from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.commands import run_classifier
from adapter_bert.errors import UserError
from adapter_bert.tasks import new_labels
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.new_labels import NewLabelsHead, extend_labels

OLD = ("bad", "good")
# Sorted with the old labels they would come first.
NEW = tuple((text + " a mat", "about mats") for text, _ in SENTENCES[:4])
NEW += tuple((text + " a dog", "!") for text, _ in SENTENCES[:4])


# Mathematics


def test_first_rows_by_hand():
    features = np.float32([[3, 4], [5, 0], [9, 9]])
    logits = np.float32([[1, 2, 0], [6, 3, 0], [9, 9, 0]])
    weights = np.float32([[0, 2], [4, 0], [0, 0]])
    labels = np.array([2, 2, 0])
    rows, bias = new_labels.imprint(features, labels, logits, weights, 2)
    # The mean (4, 2), as long as the old rows are on average, which is 3.
    np.testing.assert_allclose(rows, [[12 / 20**0.5, 6 / 20**0.5]], rtol=1e-6)
    # The label's rows have their best old logits, 2 and 6, on average.
    own = features[:2] @ rows[0] + bias[0]
    np.testing.assert_allclose(own.mean(), 4, rtol=1e-6)
    assert rows.dtype == bias.dtype == np.float32


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
    found = new_labels.forgetting(labels[:3], begun[:3], after[:3], 2)
    assert found["new_labels"] == {"rows": 0, "imprinted": None, "after": None}


def test_distillation_is_the_cross_entropy_of_softened_answers(tiny_config):
    head = NewLabelsHead(
        2, 0.5, 3, tiny_config, lambda _, shape, __: tf.zeros(shape)
    )
    features = {"label_ids": tf.constant([2])}
    logits = tf.constant([[2.0, 0.0, 1.0]])
    old = {new_labels.OLD_LOGITS: tf.constant([[0.0, 2.0]])}
    plain = head.loss({"logits": logits}, features)
    whole = head.loss({"logits": logits}, {**features, **old})
    # Logits are halved.
    target = np.exp([0, 1]) / np.exp([0, 1]).sum()
    guess = np.exp([1, 0]) / np.exp([1, 0]).sum()
    expected = 0.5 * -(target @ np.log(guess))
    np.testing.assert_allclose(whole - plain, [expected], rtol=1e-5)


# Runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_bert, tiny_data):
    """`old`, a trained adapter of two labels, and `data` with more labels."""
    found = tmp_path_factory.mktemp("new_labels")
    with entry_point(run_classifier) as run:
        run(**make_flags(tiny_bert, tiny_data, found / "old"), do_eval=True)
    (found / "data").mkdir()
    write_table(found / "data" / "train.tsv", NEW * 3)
    write_table(found / "data" / "dev.tsv", SENTENCES + NEW)
    write_table(found / "replay.tsv", SENTENCES)
    return found


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
    return adapter_artifact.read(str(run / "adapter")).weights


def test_old_rows_keep_their_bits_and_all_else_is_learned(
    classify, folder, flags, engine, caplog
):
    """The distilled and the replaying run, with either engine."""
    adapters = {}
    before = weights_of(folder / "old")
    for name, more in (
        ("distilled", {}),
        ("replayed", {"replay_file": folder / "replay.tsv"}),
    ):
        out = flags["output_dir"].with_name(name)
        with caplog.at_level(logging.INFO, "absl"):
            classify(**{**flags, **more, "output_dir": out}, engine=engine)
        after = weights_of(out)
        for variable in ("output_weights", "output_bias"):
            old, new = before.read(variable), after.read(variable)
            assert new[:2].tobytes() == old.tobytes()
            assert len(new) == 4 and np.abs(new[2:]).min(axis=-1).all()
        changed = [
            variable
            for variable in before.shapes
            if before.read(variable).tobytes() != after.read(variable).tobytes()
        ]
        assert len(changed) == len(before.shapes)
        config = read(out, "adapter", "adapter_config.json")
        assert config["task"]["labels"] == [*OLD, "!", "about mats"]
        adapters[name] = artifact_bytes(out)
        found = read(out, "forgetting.json")
        assert found["old_labels"]["rows"] == found["new_labels"]["rows"] == 8
        scores = read(folder / "old", "eval_results.json")
        assert found["old_labels"]["before"] == scores["eval_accuracy"]
        scores = read(out, "eval_results.json")
        assert scores["eval_accuracy"] == np.mean(
            [found[of]["after"] for of in ("old_labels", "new_labels")]
        )
        assert "accuracy on 8 dev rows of old labels: " in caplog.text
    assert adapters["distilled"] != adapters["replayed"]
