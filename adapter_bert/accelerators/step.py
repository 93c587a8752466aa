"""One step of a run as functions of tensors, taken out before it is computed.

`StepEngine` stands where a run has its engine. The run opens its files as
always; instead of the first step it ends with `StepTaken`.
"""

import dataclasses
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import tensorflow as tf

from adapter_bert import optimization
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.progress import TrainingProgress
from adapter_bert.training.engines import Course, Engine
from adapter_bert.training.prediction import Predictor
from adapter_bert.training.training_step import Job, loss_and_gradients, predict

Arrays = Dict[str, np.ndarray]
Tensors = Dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a training, or of prediction.

    Attributes:
        frozen: values of frozen variables, float32 or the job's dtype.
        trained: values of trained variables, float32; none for prediction.
        slots: values of the optimizer's slots, float32.
        batch: the first batch, of all cores.
        cores: that divide the batch.
        compute: of prediction, `(frozen, batch)` -> outputs; of training,
            `(frozen, trained, batch, step)` -> loss and gradients by name, a
            core's shares.
        update: of training, `(trained, slots, gradients, step)` -> trained
            and slots.
        compute_dtype: of products and activations.
    """

    frozen: Arrays
    trained: Arrays
    slots: Arrays
    batch: Batch
    cores: int
    compute: Callable
    update: Optional[Callable]
    compute_dtype: str


class StepTaken(Exception):
    """Ends a run whose step is known."""

    def __init__(self, step: Step):
        """Takes the step."""
        super().__init__()
        self.step = step


class StepEngine(Engine):
    """Ends the run with its first step; computes nothing."""

    cores = 1

    def check_devices(self) -> None:
        """Takes the number of cores that was asked for."""
        self.shards = self.cores

    def train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:
        """Ends the run.

        Raises:
            StepTaken: always.
        """
        values, frozen = _values(job)
        batch = next(
            input_pipeline.train_batches(
                course.features, course.plan, range(1), job.length
            )
        )
        names = [p.name for p in job.table.trained]
        trained = {name: values[name] for name in names}
        slots = {
            f"{name}/{slot}": np.zeros_like(value)
            for name, value in trained.items()
            for slot in optimization.SLOTS
        }

        def compute(
            frozen: Tensors, trained: Tensors, batch: Tensors, step: tf.Tensor
        ) -> Tuple[tf.Tensor, Tensors]:
            model = _model(job, {**frozen, **trained})
            loss, gradients = loss_and_gradients(
                job,
                model,
                [(name, trained[name]) for name in names],
                batch,
                step,
                course.batch_size,
            )
            return loss, dict(zip(names, gradients))

        optimizer = optimization.AdamWeightDecay(
            [], {}, course.schedule, job.table.recipe, job.adam_bias_correction
        )

        def update(
            trained: Tensors, slots: Tensors, gradients: Tensors, step: tf.Tensor
        ) -> Tuple[Tensors, Tensors]:
            return _adam(
                optimizer, job.table.recipe, trained, slots, gradients, step
            )

        raise StepTaken(
            Step(
                frozen,
                trained,
                slots,
                batch,
                self.cores,
                compute,
                update,
                job.compute_dtype,
            )
        )

    def _new_predictor(self, job: Job) -> Predictor:
        return _Taking(job, self.cores)


class _Taking(Predictor):
    """Ends the run with the first batch of prediction."""

    def _run(self, groups: Any, features: Features) -> Any:
        job = self._job
        group: List[Batch] = next(iter(groups))
        batch = {
            name: np.concatenate([part[name] for part in group])
            for name in group[0]
        }
        values, frozen = _values(job)

        def compute(frozen: Tensors, batch: Tensors) -> Tensors:
            return predict(job, _model(job, frozen), batch)

        raise StepTaken(
            Step(
                {**values, **frozen},
                {},
                {},
                batch,
                len(group),
                compute,
                None,
                job.compute_dtype,
            )
        )

    def _assign(self, values: Arrays) -> None:
        raise AssertionError("nothing is trained")

    def _release(self) -> None:
        pass


def _values(job: Job) -> Tuple[Arrays, Arrays]:
    """First values of trained and of frozen variables."""
    names = {p.name for p in job.table.trained}
    trained, frozen = {}, {}
    for p in job.table.parameters:
        value = np.asarray(job.initial_values[p.name]())
        if p.name in names:
            trained[p.name] = value
        else:
            frozen[p.name] = value.astype(job.dtype_of(p.name).as_numpy_dtype)
    return trained, frozen


def _model(job: Job, values: Tensors) -> Any:
    """The job's model over given values."""
    return job.build_model(lambda name, shape, initializer: values[name])


def _adam(optimizer, recipe, trained, slots, gradients, step):
    """`optimization.update_variable` for values in place of variables."""
    names = list(trained)
    clipped = optimization.clip([gradients[name] for name in names])
    rate, *corrections = optimizer._rates(step + 1)
    values, kept = {}, {}
    for name, gradient in zip(names, clipped):
        own = rate * recipe.rate_scale_of(name)
        epsilon = optimization.EPSILON
        decay = 1.0 - recipe.decay_of(name) * own
        if corrections:
            root = tf.sqrt(corrections[1])
            own, epsilon = own * root / corrections[0], epsilon * root
        m, v = (slots[f"{name}/{slot}"] for slot in optimization.SLOTS)
        m += (gradient - m) * (1.0 - optimization.BETA_1)
        v += (tf.square(gradient) - v) * (1.0 - optimization.BETA_2)
        values[name] = trained[name] * decay - own * m / (tf.sqrt(v) + epsilon)
        kept.update(zip((f"{name}/{s}" for s in optimization.SLOTS), (m, v)))
    return values, kept
