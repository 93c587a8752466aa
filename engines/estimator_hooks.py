"""What happens between the steps of an Estimator's session."""

from concurrent import futures
from typing import Callable, Dict, Optional

import numpy as np
import tensorflow as tf

from engines import Job, Pause, training_step
from engines.prediction import Predictor
from monitoring.progress import TrainingProgress
from weights import training_state

v1 = tf.compat.v1


class LoadHook(v1.train.SessionRunHook):
    """Sets variables before a session's next run."""

    def __init__(self, values: Optional[Dict[str, np.ndarray]]):
        """Takes arrays by name, or None to leave all as they are."""
        self.values = values
        self._loaded: Optional[Dict[str, np.ndarray]] = None

    def after_create_session(self, session, coord):
        """Before the first run."""
        self._load(session)

    def before_run(self, run_context):
        """Before every other one."""
        self._load(run_context.session)

    def _load(self, session):
        values = self.values
        if values is self._loaded:
            return
        variables = {v.op.name: v for v in v1.global_variables()}
        for name, value in values.items():
            # The assignment that is there, of another value.
            assign = variables[name].initializer
            session.run(assign, {assign.inputs[1]: value})
        self._loaded = values


class ProgressHook(v1.train.SessionRunHook):
    """Tells a `TrainingProgress` every step's loss.

    Raises `UserError` where the loss is no number any more.
    """

    def __init__(self, progress: TrainingProgress):
        self._progress = progress

    def begin(self):
        """Finds loss and step in the graph."""
        # The Estimator adds the loss that it was given last.
        self._loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]
        self._step = v1.train.get_global_step()

    def before_run(self, run_context):
        """Asks for the loss."""
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        """Tells it."""
        # Fetched with the loss, the step would be read before or after its
        # increment, as it happens.
        step = int(run_context.session.run(self._step))
        loss = float(run_values.results)
        training_step.check_loss(step, loss)
        self._progress.update(step, loss)


class SaverHook(v1.train.SessionRunHook):
    """Saves `model.ckpt-<step>`: trained variables, their slots, the step.

    Unlike TensorFlow's own hook it saves neither the graph, which holds
    nothing of the task, nor the untrained model. Where the training is to be
    looked at, that is done too.

    Attributes:
        predictor: with the values of the last look, or None.
        looked_step: of the last look.
    """

    def __init__(
        self,
        job: Job,
        every_steps: int,
        pause: Pause,
        make_predictor: Callable[[], Predictor],
    ):
        """Takes the job, and when it is saved and looked at."""
        self._job, self._every_steps = job, every_steps
        self._pause, self._make_predictor = pause, make_predictor
        self.predictor: Optional[Predictor] = None
        self.looked_step = 0
        # The training's own cannot run operations outside of its graph. One
        # for all saves: each thread that writes a checkpoint keeps megabytes.
        self._thread = futures.ThreadPoolExecutor(1)

    def begin(self):
        """Finds what is saved in the graph."""
        self._step = v1.train.get_global_step()
        self._values = {
            variable.name.split(":")[0]: variable.read_value()
            for variable in v1.global_variables()
        }

    def after_create_session(self, session, coord):
        """Reads where the training begins."""
        self._saved_step = int(session.run(self._step))

    def after_run(self, run_context, run_values):
        """Saves when it is time."""
        step = int(run_context.session.run(self._step))
        is_looked_at = step in self._pause.steps
        if is_looked_at or step - self._saved_step >= self._every_steps:
            self._save(run_context, step, is_looked_at)

    def end(self, session):
        """Saves the last step."""
        step = int(session.run(self._step))
        if step != self._saved_step:
            self._save(v1.train.SessionRunContext(None, session), step, False)
        self._thread.shutdown()

    def _save(self, run_context, step, is_looked_at):
        values = run_context.session.run(self._values)
        self._thread.submit(
            training_state.save_training, self._job.output_dir, step, values
        ).result()
        self._saved_step = step
        if (
            is_looked_at
            and self._thread.submit(self._look, step, values).result()
        ):
            run_context.request_stop()

    def _look(self, step: int, values: Dict[str, np.ndarray]) -> bool:
        if self.predictor is None:
            self.predictor = self._make_predictor()
        names = [p.name for p in self._job.table.trained]
        self.looked_step = step
        self.predictor.load({name: values[name] for name in names})
        return self._pause.look(step, self.predictor)
