"""How long work is shown: a bar on a terminal, plain log lines elsewhere."""

import sys
import time
from typing import Optional

import tqdm
from absl import logging

from monitoring.curves import Curves
from optimization import Schedule

# Seconds between log lines where no terminal shows a bar.
LOG_INTERVAL = 10.0


class Progress:
    """Counts work done, with its rate and the time left."""

    def __init__(self, what: str, total: int, unit: str, done: int = 0):
        """Starts to count.

        Args:
            what: the work, as `train`.
            total: units of the whole work.
            unit: what is counted, as `examples`.
            done: units that were done before.
        """
        self._what = what
        self._bar = tqdm.tqdm(
            desc=what,
            total=total,
            unit=f" {unit}",
            initial=done,
            disable=not sys.stderr.isatty(),
            smoothing=0.1,
        )
        self._unit = unit
        self._total = total
        self._done = self._first = done
        self._began = self._logged = time.monotonic()

    def update(self, done: int, note: str = "") -> None:
        """Shows that `done` units are finished, with a note beside."""
        self._done += done
        if not self._bar.disable:
            if time.time() < self._bar.last_print_t:
                # The clock has gone back, and the bar would stand still.
                self._bar.unpause()
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done)
            return
        now = time.monotonic()
        if now - self._logged >= LOG_INTERVAL or self._done == self._total:
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
        """Ends the bar."""
        self._bar.close()


class TrainingProgress:
    """The progress of a training, and its curves for TensorBoard.

    Writes the scalars `loss`, `learning_rate` and `examples_per_second`.
    """

    def __init__(
        self,
        schedule: Schedule,
        first_step: int,
        batch_size: int,
        log_dir: Optional[str],
        every_steps: int = 10,
    ):
        """Opens the curves' file.

        Args:
            schedule: tells the number of steps and the learning rates.
            first_step: steps that were done before.
            batch_size: examples of a step.
            log_dir: folder of the curves, or None for none.
            every_steps: distance of the curves' points, in steps.

        Raises:
            UserError: the curves cannot be written.
        """
        self._schedule = schedule
        self._batch_size = batch_size
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
        """Takes note that `step` steps are done, the last with this loss.

        Args:
            step: steps done.
            loss: of the last of them.
            is_timed: whether it has just been done; not where several are
                told at once, but for the last of these.

        Raises:
            UserError: the curves cannot be written.
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
            # The first interval holds the building of the graph: no rate.
            if self._rate_time is not None:
                self._curves.add_scalar(
                    "examples_per_second",
                    (step - self._rate_step)
                    * self._batch_size
                    / (now - self._rate_time),
                    step,
                )
            self._rate_step, self._rate_time = step, now
            self._curves.flush()

    def close(self) -> None:
        """Ends the bar and the curves."""
        self._progress.close()
        if self._curves is not None:
            self._curves.close()
