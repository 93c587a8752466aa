"""Progress: log lines without a terminal, a bar on one, TensorBoard curves."""

import os
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import refusals
import tensorflow as tf
import tqdm
from absl import logging
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)
from tensorboard.util import tensor_util

from adapter_bert import folder_lock, progress
from adapter_bert.optimization import Schedule
from adapter_bert.progress import Curves


@pytest.fixture
def clock(monkeypatch):
    """Stands in for `time` in `progress`."""
    clock = SimpleNamespace(now=1000.0, time=time.time)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def screen(monkeypatch):
    """Stands in for `sys` in `progress`: no terminal, unless a test says so."""
    screen = SimpleNamespace(is_terminal=False)
    screen.isatty = lambda: screen.is_terminal
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=screen))
    return screen


@pytest.fixture
def lines(monkeypatch):
    """The log's lines."""
    lines = []
    monkeypatch.setattr(
        logging, "info", lambda text, *values: lines.append(text % values)
    )
    return lines


@pytest.mark.parametrize(
    "done, told",
    [
        (0, "20/100 examples, 2.0/s, 00:40 left"),
        # It counts for the total, but not for the rate.
        (60, "80/100 examples, 2.0/s, 00:10 left"),
    ],
)
def test_log_lines_tell_rate_and_time_left(clock, lines, capsys, done, told):
    shown = progress.Progress("eval", total=100, unit="examples", done=done)
    clock.now += 10
    shown.update(20, "loss 0.5")
    shown.close()
    assert lines == [f"eval: {told}, loss 0.5"]
    assert capsys.readouterr().err == ""


def test_log_lines_are_seconds_apart_and_the_last_is_always_shown(clock, lines):
    shown = progress.Progress("eval", total=10, unit="examples")
    for _ in range(10):
        clock.now += 4
        shown.update(1)
    # At 12, 24, 36 and 40 seconds.
    assert [line.split(",")[0] for line in lines] == [
        f"eval: {done}/10 examples" for done in (3, 6, 9, 10)
    ]
    assert lines[-1] == "eval: 10/10 examples, 0.2/s, 00:00 left"


def test_a_terminal_shows_a_bar_and_no_log_lines(screen, lines, capsys):
    screen.is_terminal = True
    shown = progress.Progress("eval", total=10, unit="examples", done=5)
    shown.update(5, "loss 0.5")
    shown.close()
    assert lines == []
    bar = capsys.readouterr().err
    assert "eval" in bar
    assert "10/10" in bar
    assert "loss 0.5" in bar


def test_a_bar_goes_on_when_the_clock_goes_back(screen, monkeypatch, capsys):
    screen.is_terminal = True
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(tqdm.std, "time", lambda: now[0])
    shown = progress.Progress("eval", total=10, unit="examples")
    now[0] -= 5 * 3600
    shown.update(3)
    now[0] += 3
    shown.update(2)
    assert "5/10" in capsys.readouterr().err
    shown.close()


def read_scalars(folder):
    """{name: [(step, value)]} of a folder of curves."""
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        name: [
            (e.step, float(tensor_util.make_ndarray(e.tensor_proto)))
            for e in accumulator.Tensors(name)
        ]
        for name in accumulator.Tags()["tensors"]
    }


SCHEDULE = Schedule(0.5, num_train_steps=25, num_warmup_steps=5)


def train(clock, folder, first_step, last_step):
    """A training of half a second a step, the loss 100 / step."""
    shown = progress.TrainingProgress(SCHEDULE, first_step, 8, str(folder), 10)
    for step in range(first_step + 1, last_step + 1):
        clock.now += 0.5
        shown.update(step, 100 / step)
    shown.close()


def test_tensorboard_reads_loss_learning_rate_and_speed(clock, tmp_path):
    train(clock, tmp_path, 0, 25)
    scalars = read_scalars(tmp_path)
    assert set(scalars) == {"loss", "learning_rate", "examples_per_second"}
    assert scalars["loss"] == [
        (step, pytest.approx(100 / step)) for step in (10, 20, 25)
    ]
    assert scalars["learning_rate"] == [
        (step, pytest.approx(SCHEDULE(step), rel=1e-6)) for step in (10, 20, 25)
    ]
    # The first interval holds the building of the graph.
    assert scalars["examples_per_second"] == [
        (20, pytest.approx(16.0)),
        (25, pytest.approx(16.0)),
    ]


def test_points_are_on_disk_before_the_training_ends(clock, tmp_path):
    shown = progress.TrainingProgress(SCHEDULE, 0, 8, str(tmp_path))
    shown.update(10, 2.0)
    on_disk = read_scalars(tmp_path)
    shown.close()
    assert on_disk["loss"] == [(10, 2.0)]


def test_both_parts_of_a_training_are_one_curve(clock, lines, tmp_path):
    train(clock, tmp_path, 0, 12)
    lines.clear()
    train(clock, tmp_path, 12, 25)
    steps = [step for step, _ in read_scalars(tmp_path)["loss"]]
    assert steps == [10, 22, 25]
    # The second counts from its first step: 104 examples in 6.5 seconds.
    assert lines == ["train: 200/200 examples, 16.0/s, 00:00 left, loss 4.0000"]


def test_steps_that_are_told_at_once_share_one_rate(clock, tmp_path):
    """Losses have points as ever; the last step is in the last call."""
    shown = progress.TrainingProgress(SCHEDULE, 0, 8, str(tmp_path), 3)
    for first, last in ((0, 10), (10, 20), (20, 25)):
        clock.now += last - first
        for step in range(first + 1, last + 1):
            shown.update(step, 1.0, is_timed=step == last)
    shown.close()
    scalars = read_scalars(tmp_path)
    steps = [step for step, _ in scalars["loss"]]
    assert steps == [3, 6, 9, 12, 15, 18, 21, 24, 25]
    assert scalars["examples_per_second"] == [
        (20, pytest.approx(8.0)),
        (25, pytest.approx(8.0)),
    ]


def write(folder, *points):
    written = Curves(str(folder))
    for step, value in points:
        written.add_scalar("loss", value, step)
    written.close()
    return os.path.basename(written.path)


def test_tensorboard_reads_scalars(tmp_path):
    write(tmp_path, (1, 0.5), (2, 0.25))
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
    assert read_scalars(tmp_path)["loss"] == [
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
    assert read_scalars(tmp_path)["loss"] == [(0, 0.5), (1, 0.5), (2, 0.5)]


def test_what_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    written = Curves(str(tmp_path))

    class Full:
        def __getattr__(self, name):
            def fail(*_):
                raise tf.errors.ResourceExhaustedError(None, None, "no space")

            return fail

    monkeypatch.setattr(written, "_writer", Full())
    for call in (
        lambda: written.add_scalar("loss", 1.0, 1),
        written.flush,
        written.close,
    ):
        refusals.check(call, "cannot write the curves", "no space")


def test_a_remote_file_is_not_written_anew_at_each_point(monkeypatch):
    written = Curves("ram://bucket/run")
    monkeypatch.setattr(written, "_writer", mock.Mock())
    now = progress.time.monotonic()
    for seconds, count in ((1, 0), (progress.LOG_INTERVAL + 1, 1), (12, 1)):
        monkeypatch.setattr(
            progress.time, "monotonic", lambda seconds=seconds: now + seconds
        )
        written.flush()
        assert written._writer.flush.call_count == count


def test_a_folder_that_is_gone_is_not_made_anew(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with folder_lock.hold(str(folder)):
        folder.rename(tmp_path / "away")
        refusals.check(
            lambda: Curves(str(folder / "eval")), "is not there any more"
        )
    assert not folder.exists()


def test_a_folder_that_may_not_be_read_is_one_line(tmp_path, plain_user):
    tmp_path.chmod(0o300)
    message = plain_user(Curves, str(tmp_path))
    tmp_path.chmod(0o700)
    assert message.startswith(f"cannot read {tmp_path}: ")
