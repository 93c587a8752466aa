"""Dev scores of a training's steps, the best step, and when to stop."""

import os

from absl import logging

from adapter_bert.checkpoints import dev_scores, google, training_state
from adapter_bert.data.input_pipeline import exact
from adapter_bert.errors import UserError
from adapter_bert.optimization import Schedule
from adapter_bert.training import evaluation, run_files
from adapter_bert.training.engines import Engine, Pause
from adapter_bert.training.prediction import RowPredictor
from adapter_bert.training.settings import EPOCH
from adapter_bert.training.setup import Setup
from adapter_bert.training.training_step import Job


def steps_to_score(setup: Setup, schedule: Schedule) -> frozenset[int]:
    """Gives the steps after which dev sets are scored, with the last one."""
    training, last = setup.experiment.training, schedule.num_train_steps
    if not training.eval_steps:
        return frozenset()
    if training.eval_steps == EPOCH:
        count = int(training.epochs)
        epochs = exact(training.epochs)
        steps = {int(last * n / epochs) for n in range(1, count + 1)}
    else:
        every = int(training.eval_steps)
        steps = set(range(every, last, every))
    return frozenset({step for step in steps if 0 < step < last} | {last})


class Watch:
    """Scores a training's steps on the dev sets, and keeps the best one."""

    def __init__(
        self,
        setup: Setup,
        schedule: Schedule,
        rows: evaluation.Rows,
        first_step: int,
    ):
        self._setup, self._rows = setup, rows
        self._folder = setup.experiment.output_dir
        self._keep_best = setup.experiment.training.keep_best
        self._last = schedule.num_train_steps
        self.steps = steps_to_score(setup, schedule)
        recorded = dev_scores.read(self._folder)
        self._scores = recorded or dev_scores.DevScores(self._keep_best, {})
        unknown = self.steps - set(self._scores.by_step)
        lost = [step for step in unknown if step < first_step]
        if self._keep_best and lost:
            raise UserError(
                f"{os.path.join(self._folder, dev_scores.SCORES_FILE)} lacks "
                f"the scores of step {min(lost)}, by which the best step is "
                "chosen; copy the file again, or choose another --output_dir"
            )

    @property
    def pause(self) -> Pause:
        return Pause(self.steps, self._look)

    def is_over(self, step: int) -> bool:
        patience = self._setup.experiment.training.early_stopping
        return step >= self._last or bool(
            patience and self._scores.count_since_best(step) >= patience
        )

    def catch_up(self, engine: Engine, job: Job, step: int) -> None:
        """Scores a step that a killed process saved; keeps the best alone."""
        if not self._scores.by_step:
            # So that the file's loss is noticed.
            dev_scores.write(self._folder, self._scores, {})
        dev_scores.forget_others(self._folder, self._scores)
        if step in self.steps and step not in self._scores.by_step:
            with engine.predictor(job) as predictor:
                self._look(step, predictor)

    def _look(self, step: int, predictor: RowPredictor) -> bool:
        if step in self._scores.by_step:
            return self.is_over(step)
        dev = evaluation.Splits(self._rows.splits.dev, ())
        answers, _ = evaluation.answer(self._setup, predictor, self._rows, dev)
        measured, _ = evaluation.score(self._setup, self._rows, answers)[""]
        if self._keep_best and self._keep_best not in measured:
            raise UserError(
                f"the dev set has no {self._keep_best}, by which --keep_best "
                f"chooses; it has {', '.join(measured)}"
            )
        self._scores = self._scores.add(step, measured)
        values = {}
        if self._keep_best:
            newest, _ = training_state.latest_step(self._folder)
            saved = google.open_tensorflow(newest)
            values = {
                p.name: saved.read(p.name) for p in self._setup.table.trained
            }
        dev_scores.write(self._folder, self._scores, values)
        run_files.write_curves(self._folder, measured, step)
        logging.info(
            "step %d of %d on the dev set: %s%s",
            step,
            self._last,
            ", ".join(
                f"{name} {value:.4f}" for name, value in measured.items()
            ),
            "; the best so far" if self._scores.best_step == step else "",
        )
        return self.is_over(step)
