"""One training step, the same in every engine.

The gradient is taken of the mean over the whole batch: each device takes the
sum over its own rows, divided by the rows of the whole batch; engines add these
up over devices, and clip what results.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
import tensorflow as tf

from adapter_bert.bert import functional, onednn
from adapter_bert.bert.encoder import CreateVariable
from adapter_bert.bert.hooks import Context, NamedTensors
from adapter_bert.checkpoints.weights import InitialValues
from adapter_bert.errors import UserError
from adapter_bert.tasks.task import BatchHead
from adapter_bert.tasks.task_model import ParameterTable, TaskModel

Gradients = list[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Job:
    """Describes a model to build, and how to compute with it.

    Attributes:
        build_model: makes the model's variables with the given `create`.
        length: static number of tokens of every batch, or None to pad each
            batch to its longest row.
        parts: of each device's rows, computed one after the other.
        lanes: of each part, computed at the same time.
        share_layers: whether layers of one kind call one function, which is
            traced once. A TPU must see every layer; with `use_xla` none are
            shared.
        for_accelerator: whether XLA compiles the training step for a TPU or a
            GPU; see `functional.for_accelerator`.
        use_onednn: whether trainings are built with the kernels of `onednn`.
        recompute_layers: whether the backward pass computes each layer again.
        observes: whether prediction also gives what `Hooks.observe` shows.
        narrow: names of frozen variables that are kept in `compute_dtype`,
            since they are cast to it wherever they are read.
        quantized: names of frozen matrices that are kept in int8.
        start: SHA-256 of the trained values that training starts from, or None.
        about: text of the task and its loss, the same in all workers.
        predict_tokens: tokens up to which a batch of prediction may have more
            rows than asked for, if batches have no static length.
    """

    build_model: Callable[[CreateVariable], TaskModel]
    table: ParameterTable
    initial_values: InitialValues
    output_dir: str
    seed: int
    length: Optional[int]
    parts: int = 1
    lanes: int = 1
    share_layers: bool = True
    use_xla: bool = False
    for_accelerator: bool = False
    use_onednn: bool = False
    recompute_layers: bool = False
    compute_dtype: str = "float32"
    adam_bias_correction: bool = False
    observes: bool = False
    narrow: frozenset[str] = frozenset()
    quantized: frozenset[str] = frozenset()
    predict_tokens: int = 0
    start: Optional[str] = None
    about: str = ""

    def beginning_with(self, values: Mapping[str, Any]) -> "Job":
        """Gives the job other first values, by name."""
        begun = {
            name: functools.partial(np.array, value, np.float32)
            for name, value in values.items()
        }
        initial_values = {**self.initial_values, **begun}
        return dataclasses.replace(self, initial_values=initial_values)

    def first_trained_values(self) -> dict[str, np.ndarray]:
        """Reads the first values of what is trained."""
        return {
            p.name: self.initial_values[p.name]() for p in self.table.trained
        }

    def dtype_of(self, name: str) -> tf.DType:
        kept = self.compute_dtype if name in self.narrow else "float32"
        return tf.as_dtype(kept)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Part of a `Job` that prediction without variables needs."""

    lanes: int = 1
    share_layers: bool = True
    use_xla: bool = False
    use_onednn: bool = False
    compute_dtype: str = "float32"
    observes: bool = False


def loss_and_gradients(
    job: Job,
    model: TaskModel,
    variables: Sequence[tuple[str, tf.Variable]],
    features: NamedTensors,
    step: tf.Tensor,
    batch_size: int,
) -> tuple[tf.Tensor, Gradients]:
    """Computes this device's share of the batch's loss and of its gradients.

    Takes (name, variable) of what is trained; this device's rows, a multiple
    of `job.parts`; `step`, integer [], steps done before; `batch_size`, the
    rows of all devices. Gives float32 [], and a gradient like each variable.
    """

    def make_context(part, prepared):
        return Context(
            part["input_mask"],
            training=True,
            # Each lane has its own first row, so its own dropout.
            seed=tf.stack([job.seed ^ part["row"][0], tf.cast(step, tf.int32)]),
            dtype=tf.as_dtype(job.compute_dtype),
            step_seed=tf.stack([job.seed, tf.cast(step, tf.int32)]),
            handed_on=dict(prepared),
            share_layers=job.share_layers and not job.use_xla,
            recompute_layers=job.recompute_layers,
        )

    hooks = model.bert.hooks
    trained = [variable for _, variable in variables]
    with tf.GradientTape(
        persistent=True, watch_accessed_variables=False
    ) as whole:
        whole.watch(trained)
        prepared = hooks.prepare(make_context(features, {}))
    # Variables that `prepare` reads, and the others.
    behind, direct = [], list(variables)
    if prepared:
        slopes = whole.gradient(list(prepared.values()), trained)
        pairs = list(zip(variables, slopes))
        behind = [pair for pair, gradient in pairs if gradient is not None]
        direct = [pair for pair, gradient in pairs if gradient is None]

    def compute(part: NamedTensors, prepared: NamedTensors):
        context = make_context(part, prepared)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*trained, *prepared.values()])
            predictions = model(part, context)
            losses = model.head.loss(predictions, part)
            for bert in model.berts:
                penalty = bert.hooks.penalty(context)
                if penalty is not None:
                    # Each group of rows adds its share of the whole penalty.
                    losses += penalty
            loss = tf.reduce_sum(losses) / batch_size
        sources = [*direct, *prepared.items()]
        gradients, missed = tape.gradient(
            loss, [[s for _, s in sources], [v for _, v in behind]]
        )
        for (name, _), gradient in zip(sources, gradients):
            if gradient is None:
                raise ValueError(f"the loss does not depend on {name}")
        for (name, _), gradient in zip(behind, missed):
            if gradient is not None:
                raise ValueError(f"{name} is read outside `Hooks.prepare` too")
        return loss, [tf.convert_to_tensor(g) for g in gradients]

    def there(compute: Callable) -> Callable:
        def compute_there(*arguments: Any) -> Any:
            with functional.for_accelerator(job.for_accelerator):
                use = onednn.TRAINING if job.use_onednn else None
                with onednn.built_for(use):
                    return compute(*arguments)

        return _once(job, compute_there)

    if isinstance(model.head, BatchHead):
        from adapter_bert.training import batch_parts

        def vectors_of(lane, prepared):
            vectors = model(lane, make_context(lane, prepared))["vectors"]
            return tf.reshape(vectors, [-1, model.head.width])

        forward = there(vectors_of)
        features = batch_parts.with_batch_loss(
            model.head,
            lambda part: tf.concat(
                [forward(x, prepared) for x in _divide(part, job.lanes)], axis=0
            ),
            features,
            job.parts,
        )
    call = there(compute)

    def compute_in_lanes(part):
        results = [call(lane, prepared) for lane in _divide(part, job.lanes)]
        losses, gradients = zip(*results)
        return tf.add_n(losses), [tf.add_n(g) for g in zip(*gradients)]

    if job.parts == 1:
        loss, gradients = compute_in_lanes(features)
    else:
        from adapter_bert.training import batch_parts

        sources = [*(v for _, v in direct), *prepared.values()]
        loss, gradients = batch_parts.sum_over_parts(
            compute_in_lanes, sources, features, job.parts
        )
    slopes = dict(zip((name for name, _ in direct), gradients))
    if prepared:
        through = whole.gradient(
            list(prepared.values()),
            [variable for _, variable in behind],
            output_gradients=gradients[len(direct) :],
        )
        slopes.update((name, g) for (name, _), g in zip(behind, through))
    return loss, [slopes[name] for name, _ in variables]


def _once(job: Union[Job, Prediction], compute: Callable) -> Callable:
    if job.use_xla:
        return tf.function(compute, autograph=False, jit_compile=True)
    if job.lanes == 1:
        return compute
    return tf.function(
        compute,
        autograph=False,
        # Prepared once by TensorFlow too, not for each lane.
        experimental_attributes={"_noinline": True},
    )


def _divide(features: NamedTensors, lanes: int) -> list[NamedTensors]:
    rows = features["input_ids"].shape[0]
    if rows is None:
        rows = tf.shape(features["input_ids"])[0]
    else:
        lanes = min(lanes, rows)
    edges = [rows * lane // lanes for lane in range(lanes + 1)]
    return [
        {name: value[first:last] for name, value in features.items()}
        for first, last in zip(edges, edges[1:])
    ]


def predict(
    job: Union[Job, Prediction],
    model: Callable[[NamedTensors, Context], NamedTensors],
    features: NamedTensors,
) -> NamedTensors:
    """Gives the outputs of a model for a batch, without dropout, in lanes."""

    def compute(lane: dict[str, Any]) -> NamedTensors:
        context = Context(
            lane["input_mask"],
            dtype=tf.as_dtype(job.compute_dtype),
            # Values that a shared layer hands on are lost after it.
            share_layers=job.share_layers and not (job.use_xla or job.observes),
            observes=job.observes,
        )
        with onednn.built_for(onednn.PREDICTION if job.use_onednn else None):
            return model(lane, context)

    compute = _once(job, compute)
    results = [compute(lane) for lane in _divide(features, job.lanes)]
    return {
        name: tf.concat([lane[name] for lane in results], axis=0)
        for name in results[0]
    }


def check_loss(step: int, loss: float) -> None:
    """Stops a training that has diverged."""
    if not math.isfinite(loss):
        raise UserError(
            f"the loss of step {step} is {loss}; lower --learning_rate and "
            "choose another --output_dir"
        )
