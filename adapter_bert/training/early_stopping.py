"""Dev scores of a training's steps, the best step, and when to stop."""

import os

from absl import logging

from adapter_bert.checkpoints import dev_scores, google, training_state
from adapter_bert.data.input_pipeline import exact
from adapter_bert.errors import UserError
from adapter_bert.training import run_files
from adapter_bert.training.engines import check_alone
from adapter_bert.training.extras import Extra
from adapter_bert.training.prediction import RowPredictor
from adapter_bert.training.run import Run
from adapter_bert.training.settings import EPOCH, Training


def steps_to_score(training: Training, last: int) -> frozenset[int]:
    """Gives the steps after which dev sets are scored, with the last one."""
    if training.eval_steps == EPOCH:
        count = int(training.epochs)
        epochs = exact(training.epochs)
        steps = {int(last * n / epochs) for n in range(1, count + 1)}
    else:
        every = int(training.eval_steps)
        steps = set(range(every, last, every))
    return frozenset({step for step in steps if 0 < step < last} | {last})


class EarlyStopping(Extra):
    """Scores a training's steps on the dev sets, and keeps the best one."""

    def check(self, run: Run) -> None:
        """Refuses several processes, of which one alone would know the end."""
        if run.experiment.training.early_stopping:
            check_alone("--early_stopping")

    def reserve(self, run: Run) -> int:
        training = run.experiment.training
        steps = steps_to_score(training, run.schedule.num_train_steps)
        run.stops |= steps
        self._steps = steps
        recorded = dev_scores.read(run.folder)
        self._scores = recorded or dev_scores.DevScores(training.keep_best, {})
        run.is_over = self._is_over(run, run.step)
        if not training.keep_best:
            return 0
        lost = [s for s in steps - {*self._scores.by_step} if s < run.step]
        if lost:
            raise UserError(
                f"{os.path.join(run.folder, dev_scores.SCORES_FILE)} lacks "
                f"the scores of step {min(lost)}, by which the best step is "
                "chosen; copy the file again, or choose another --output_dir"
            )
        return run.job.table.trained_count * 4 * 2

    def begin(self, run: Run) -> None:
        """Scores a step that a killed process saved; keeps the best alone."""
        if run.engine.is_chief:
            if not self._scores.by_step:
                # So that the file's loss is noticed.
                dev_scores.write(run.folder, self._scores, {})
            dev_scores.forget_others(run.folder, self._scores)
            if run.step in self._steps and run.step not in self._scores.by_step:
                with run.engine.predictor(run.job) as predictor:
                    self.look(run, run.step, predictor)
        run.is_over = self._is_over(run, run.step)

    def look(self, run: Run, step: int, predictor: RowPredictor) -> bool:
        if step in self._steps and step not in self._scores.by_step:
            self._score(run, step, predictor)
        return self._is_over(run, step)

    def _is_over(self, run: Run, step: int) -> bool:
        patience = run.experiment.training.early_stopping
        return step >= run.schedule.num_train_steps or bool(
            patience and self._scores.count_since_best(step) >= patience
        )

    def _score(self, run: Run, step: int, predictor: RowPredictor) -> None:
        answers = run.answer_splits(predictor, dict(run.dev).values())
        measured, _ = run.score(answers)[""]
        keep_best, values = run.experiment.training.keep_best, {}
        if keep_best and keep_best not in measured:
            raise UserError(
                f"the dev set has no {keep_best}, by which --keep_best "
                f"chooses; it has {', '.join(measured)}"
            )
        self._scores = self._scores.add(step, measured)
        if keep_best:
            newest, _ = training_state.latest_step(run.folder)
            saved = google.open_tensorflow(newest)
            values = {p.name: saved.read(p.name) for p in run.job.table.trained}
        dev_scores.write(run.folder, self._scores, values)
        run_files.write_curves(run.folder, measured, step)
        logging.info(
            "step %d of %d on the dev set: %s%s",
            step,
            run.schedule.num_train_steps,
            ", ".join(f"{name} {x:.4f}" for name, x in measured.items()),
            "; the best so far" if self._scores.best_step == step else "",
        )
