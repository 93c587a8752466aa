"""Progress of long work: a bar on a terminal, log lines elsewhere, curves.

Curves are TensorBoard's scalars. Its own writer would make a deleted folder
again, report failed writes from another thread, and name its files, whose order
the curves follow, by the clock.
"""

import functools
import os
import re
import socket
import sys
import time
from typing import Optional

import numpy as np
import tensorflow as tf
import tqdm
from absl import logging

from adapter_bert import files
from adapter_bert.optimization import Schedule

EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d{1,18})\..*")
# As TensorBoard expects, see <tensorboard/plugins/scalar/metadata.py>.
PLUGIN = "scalars"
FILE_VERSION = "brain.Event:2"
# Seconds between log lines where no terminal shows a bar.
LOG_INTERVAL = 10.0


class Curves:
    """A new file of events in a folder, read after all older ones."""

    def __init__(self, folder: str):
        files.prepare_folder(folder)
        # Greater than any older name, even if the clock has gone back.
        there = filter(None, map(EVENT_FILE.fullmatch, files.listed(folder)))
        numbers = [int(time.time()), *(int(match[1]) + 1 for match in there)]
        self.path = os.path.join(
            folder,
            f"events.out.tfevents.{max(numbers):010d}.{socket.gethostname()}"
            f".{os.getpid()}",
        )
        self._writing = functools.partial(
            files.writing, f"the curves {self.path}"
        )
        self._next_flush = 0.0
        with self._writing():
            self._writer = tf.io.TFRecordWriter(self.path)
        self._write(file_version=FILE_VERSION)
        self.flush()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        metadata = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
        metadata.plugin_data.plugin_name = PLUGIN
        summary = tf.compat.v1.Summary()
        summary.value.add(
            tag=name,
            tensor=tf.make_tensor_proto(np.float32(value)),
            metadata=metadata,
        )
        self._write(step=step, summary=summary)

    def flush(self) -> None:
        # A remote file is written anew each time.
        if "://" in self.path and time.monotonic() < self._next_flush:
            return
        self._next_flush = time.monotonic() + LOG_INTERVAL
        with self._writing():
            self._writer.flush()

    def close(self) -> None:
        with self._writing():
            self._writer.close()

    def _write(self, **parts) -> None:
        event = tf.compat.v1.Event(wall_time=time.time(), **parts)
        with self._writing():
            self._writer.write(event.SerializeToString())


class Progress:
    """Counts work done, with its rate and the time left."""

    def __init__(
        self,
        what: str,
        total: int,
        unit: str,
        done: int = 0,
        shown_from: int = 0,
    ):
        """Counts a work of `total` units, `done` by other processes.

        Nothing is shown of a work of fewer than `shown_from` units.
        """
        self._is_shown = total >= shown_from
        self._bar = tqdm.tqdm(
            desc=what,
            total=total,
            unit=f" {unit}",
            initial=done,
            disable=not (self._is_shown and sys.stderr.isatty()),
            smoothing=0.1,
        )
        self._what, self._unit, self._total = what, unit, total
        self._done = self._first = done
        self._began = self._logged = time.monotonic()

    def update(self, done: int, note: str = "") -> None:
        self._done += done
        if not self._bar.disable:
            if time.time() < self._bar.last_print_t:
                # The clock has gone back; the bar would freeze.
                self._bar.unpause()
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done)
            return
        now = time.monotonic()
        is_due = now - self._logged >= LOG_INTERVAL or self._done == self._total
        if is_due and self._is_shown:
            self._logged = now
            rate = (self._done - self._first) / max(now - self._began, 1e-9)
            left = (self._total - self._done) / max(rate, 1e-9)
            logging.info(
                "%s: %d/%d %s, %.1f/s, %s left%s",
                self._what,
                self._done,
                self._total,
                self._unit,
                rate,
                tqdm.tqdm.format_interval(left),
                note and f", {note}",
            )

    def close(self) -> None:
        self._bar.close()


class TrainingProgress:
    """Shows a training; with `log_dir` writes its scalars for TensorBoard."""

    def __init__(
        self,
        schedule: Schedule,
        first_step: int,
        batch_size: int,
        log_dir: Optional[str],
        every_steps: int = 10,
    ):
        """Begins after `first_step`, with a point each `every_steps`."""
        self._schedule, self._batch_size = schedule, batch_size
        self._every_steps = every_steps
        self._curves = Curves(log_dir) if log_dir else None
        self._progress = Progress(
            "train",
            schedule.num_train_steps * batch_size,
            "examples",
            first_step * batch_size,
        )
        self._step = self._point_step = self._rate_step = first_step
        self._rate_time: Optional[float] = None

    def update(self, step: int, loss: float, is_timed: bool = True) -> None:
        """Shows that `step` steps are done, and the loss of the last.

        `is_timed` is False for all but the last of steps reported at once.
        """
        self._progress.update(
            (step - self._step) * self._batch_size, f"loss {loss:.4f}"
        )
        self._step = step
        if self._curves is None:
            return
        last = step == self._schedule.num_train_steps
        if last or step - self._point_step >= self._every_steps:
            self._curves.add_scalar("loss", loss, step)
            self._curves.add_scalar("learning_rate", self._schedule(step), step)
            self._point_step = step
        if is_timed and self._rate_step < self._point_step:
            now = time.monotonic()
            # The first interval includes the tracing of the graph.
            if self._rate_time is not None:
                done = (step - self._rate_step) * self._batch_size
                rate = done / (now - self._rate_time)
                self._curves.add_scalar("examples_per_second", rate, step)
            self._rate_step, self._rate_time = step, now
            self._curves.flush()

    def close(self) -> None:
        self._progress.close()
        if self._curves is not None:
            self._curves.close()
