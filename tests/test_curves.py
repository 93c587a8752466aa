"""Curves: what TensorBoard reads, and in which order."""

import os

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)
from tensorboard.util import tensor_util

from adapter_bert import folder_lock, progress
from adapter_bert.errors import UserError
from adapter_bert.progress import Curves


def read(folder):
    """[(step, value)] of the curve `loss`, as TensorBoard reads it."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return [
        (event.step, float(tensor_util.make_ndarray(event.tensor_proto)))
        for event in events.Tensors("loss")
    ]


def write(folder, *points):
    written = Curves(str(folder))
    for step, value in points:
        written.add_scalar("loss", value, step)
    written.close()
    return os.path.basename(written.path)


def test_tensorboard_reads_scalars(tmp_path):
    write(tmp_path, (1, 0.5), (2, 0.25))
    assert read(tmp_path) == [(1, 0.5), (2, 0.25)]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    metadata = events.SummaryMetadata("loss")
    assert metadata.plugin_data.plugin_name == "scalars"
    assert metadata.data_class == 1
    assert abs(events.FirstEventTimestamp() - os.stat(tmp_path).st_mtime) < 60


@pytest.mark.parametrize("years", [1, 20, 60])
def test_a_clock_that_goes_back_changes_no_order(tmp_path, monkeypatch, years):
    """By the names of the files curves are put together."""
    now = progress.time.time()
    first = write(tmp_path, (1, 0.5), (2, 0.25))
    # As before the year 1970, too.
    monkeypatch.setattr(progress.time, "time", lambda: now - years * 3.2e7)
    second = write(tmp_path, (2, 0.125), (3, 0.0625))
    third = write(tmp_path, (4, 0.0))
    assert sorted([third, second, first]) == [first, second, third]
    assert read(tmp_path) == [
        (1, 0.5),
        (2, 0.25),
        (2, 0.125),
        (3, 0.0625),
        (4, 0.0),
    ]


def test_a_standing_clock_overwrites_nothing(tmp_path, monkeypatch):
    """As of a container, whose process has the same number each time."""
    monkeypatch.setattr(progress.time, "time", lambda: 0.0)
    for step in range(3):
        write(tmp_path, (step, 0.5))
    assert read(tmp_path) == [(0, 0.5), (1, 0.5), (2, 0.5)]


def test_what_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    written = Curves(str(tmp_path))

    class Full:
        def __getattr__(self, name):
            def fail(*_):
                raise tf.errors.ResourceExhaustedError(None, None, "no space")

            return fail

    monkeypatch.setattr(written, "_writer", Full())
    for fails in (
        lambda: written.add_scalar("loss", 1.0, 1),
        written.flush,
        written.close,
    ):
        with pytest.raises(UserError, match="cannot write the curves .*space"):
            fails()


def test_a_folder_that_is_gone_is_not_made_anew(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with folder_lock.hold(str(folder)):
        folder.rename(tmp_path / "away")
        with pytest.raises(UserError, match="is not there any more"):
            Curves(str(folder / "eval"))
    assert not folder.exists()


def test_a_folder_that_may_not_be_read_is_one_line(tmp_path, plain_user):
    tmp_path.chmod(0o300)
    found = plain_user(Curves, str(tmp_path))
    tmp_path.chmod(0o700)
    assert found.startswith(f"cannot read {tmp_path}: ")
