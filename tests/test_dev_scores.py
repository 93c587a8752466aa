"""The scores of a training's steps, and the weights of the best."""

import disk_order
import numpy as np
import pytest
import refusals

from adapter_bert.checkpoints import dev_scores


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"keep_best": "f1", "scores": []}',
        '{"keep_best": "", "scores": {"1": {"accuracy": "a"}}}',
    ],
)
def test_damaged_scores_are_refused(tmp_path, content):
    (tmp_path / "dev_scores.json").write_text(content)
    refusals.check(lambda: dev_scores.read(str(tmp_path)), "dev_scores.json")


def test_how_long_the_best_was_not_bettered():
    scores = dev_scores.DevScores("f1", {})
    assert (scores.best_step, scores.count_since_best(5)) == (None, 0)
    for step, f1 in ((2, 0.5), (4, 0.5), (6, 0.25), (8, 0.75)):
        scores = scores.add(step, {"f1": f1})
    assert [scores.count_since_best(s) for s in (2, 4, 6, 8)] == [0, 1, 2, 0]
    assert scores.best_step == 8
    for name in (
        *("loss", "loss_mismatched", "loss_sts-b", "perplexity"),
        *("masked_lm_loss", "next_sentence_loss"),
    ):
        by_step = {1: {name: 2.0}, 2: {name: 0.5}, 3: {name: 1.0}}
        assert dev_scores.DevScores(name, by_step).best_step == 2


def test_weights_of_which_no_scores_are_left_are_not_deleted(tmp_path):
    path = tmp_path / "best.ckpt-5.index"
    path.touch()
    scores = dev_scores.DevScores("f1", {})
    dev_scores.forget_others(str(tmp_path), scores)
    assert path.exists()
    dev_scores.forget_others(str(tmp_path), scores.add(6, {"f1": 0.5}))
    assert not path.exists()


def test_the_best_is_on_the_disk_before_the_former_goes(tmp_path, monkeypatch):
    events = disk_order.watch(monkeypatch)
    scores = dev_scores.DevScores("accuracy", {})
    for step in (1, 2):
        scores = scores.add(step, {"accuracy": float(step)})
        values = {"x": np.full(3, step, np.float32)}
        dev_scores.write(str(tmp_path), scores, values)
    # Data, index and scores of each.
    assert disk_order.check(events) == 6
    data, index = (
        str(tmp_path / f"best.ckpt-1.{end}")
        for end in ("data-00000-of-00001", "index")
    )
    assert events[-4:] == [
        (disk_order.RENAME, events[-4][1], str(tmp_path / "dev_scores.json")),
        (disk_order.SYNC, str(tmp_path), ""),
        (disk_order.REMOVE, data, ""),
        (disk_order.REMOVE, index, ""),
    ]
