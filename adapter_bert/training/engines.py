"""How training and prediction run on devices.

An engine is a class with `check_devices`, `train` and `predictor`, which makes
a `prediction.Predictor`; with `shards`, the devices that a batch is divided
among, `lanes`, the groups of rows that each of them computes at the same time,
`workers`, the processes that take part, and `is_chief`, whether this one writes
the files, which hold after `check_devices`. `can_pause` says whether a training
may be looked at (`Pause`). All see the same batches, model,
optimizer and initial values, which a `Job` holds.
"""

import dataclasses
import importlib
from typing import Any, Callable, Dict, FrozenSet, Optional, Tuple

import tensorflow as tf

from adapter_bert.bert.encoder import CreateVariable
from adapter_bert.checkpoints.weights import InitialValues
from adapter_bert.errors import UserError
from adapter_bert.flags import NOT_NEGATIVE, POSITIVE, Topic
from adapter_bert.tasks.task_model import ParameterTable, TaskModel
from adapter_bert.training import multi_worker

# Engine name -> module and class.
ENGINES: Dict[str, str] = {
    "estimator": "adapter_bert.training.estimator.EstimatorEngine",
    "strategy": "adapter_bert.training.strategy.StrategyEngine",
}


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The devices, under the names of google-research/bert's flags."""

    num_devices: int = Topic.HARDWARE.setting(
        0,
        "GPUs to train on, 0 for all; logical CPU devices without a GPU.",
        NOT_NEGATIVE,
    )
    cpu_lanes: int = Topic.HARDWARE.setting(
        0,
        "Groups of a batch's rows that CPU cores compute at the same time; 0: "
        "one group per core, at most 8.",
        NOT_NEGATIVE,
    )
    use_tpu: bool = Topic.HARDWARE.setting(
        False, "Run on a TPU instead of a GPU or the CPU."
    )
    tpu_name: str = Topic.HARDWARE.setting(
        "",
        "The TPU: local on a TPU VM, or the name of that VM's own TPU. The "
        "error for any other TPU tells its state.",
    )
    num_tpu_cores: int = Topic.HARDWARE.setting(
        8,
        "TPU cores (8 on a v2-8 or v3-8). The error for a wrong number states "
        "the right one.",
        POSITIVE,
    )
    iterations_per_loop: int = Topic.HARDWARE.setting(
        1000, "Steps of one call to the TPU.", POSITIVE
    )
    tpu_zone: str = Topic.HARDWARE.setting(
        "", "Google Cloud zone of that other TPU."
    )
    gcp_project: str = Topic.HARDWARE.setting(
        "", "Google Cloud project of that other TPU."
    )
    master: str = Topic.HARDWARE.setting(
        "", "Another --tpu_name, for published commands."
    )


@dataclasses.dataclass(frozen=True)
class Job:
    """What an engine needs to build a model.

    Attributes:
        build_model: makes the model's variables with the given `create`.
        table: those variables, and which are trained.
        initial_values: their first values.
        output_dir: folder of the training checkpoints `model.ckpt-<step>`.
        seed: of dropout.
        length: static number of tokens of every batch, or None to pad each
            batch to its longest row.
        parts: into which each device's rows are divided, to be computed one
            after the other in less memory.
        lanes: into which each part is divided, to be computed at the same
            time.
        share_layers: whether layers of one kind are calls of one function, so
            that one is traced; a TPU must see them all in one. With `use_xla`
            they never are.
        use_xla: whether XLA compiles the model.
        compute_dtype: of products and activations.
        adam_bias_correction: whether the optimizer corrects young averages.
        observes: whether prediction also gives what `Hooks.observe` shows.
        narrow: names of frozen variables that are kept in `compute_dtype`,
            since they are cast to it wherever they are read.
        predict_tokens: tokens up to which a batch of prediction may have more
            rows than were asked for, if batches have no static length.
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
    compute_dtype: str = "float32"
    adam_bias_correction: bool = False
    observes: bool = False
    narrow: FrozenSet[str] = frozenset()
    predict_tokens: int = 0

    def dtype_of(self, name: str) -> tf.DType:
        """The type in which a variable is kept."""
        kept = self.compute_dtype if name in self.narrow else "float32"
        return tf.as_dtype(kept)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What prediction alone needs of a job; attributes as there."""

    lanes: int = 1
    share_layers: bool = True
    use_xla: bool = False
    compute_dtype: str = "float32"
    observes: bool = False


@dataclasses.dataclass(frozen=True)
class Pause:
    """Where a training is looked at.

    Attributes:
        steps: after which it is saved, then looked at.
        look: is given the step and a `prediction.Predictor` with the values of
            that step, which the engine gives out again when the training is
            over; says whether the training is to end here. Called on the
            chief alone.
    """

    steps: FrozenSet[int]
    look: Callable[[int, Any], bool]


# A training that is not looked at.
NO_PAUSE = Pause(frozenset(), lambda step, predictor: False)


def choose_engine(name: str) -> Tuple[type, str]:
    """The engine called `name`, and why, if `auto` chose it.

    TPUEstimator runs on one machine and ended with TensorFlow 2.15; it is
    chosen where it can run.

    Raises:
        UserError: no engine has this name, or it cannot run here, or
            TF_CONFIG cannot be used.
    """
    if name not in ("auto", *ENGINES):
        raise UserError(
            f"unknown engine {name!r}; expected auto or one of "
            f"{', '.join(ENGINES)}"
        )
    if multi_worker.is_cluster():
        found, why = "strategy", "TF_CONFIG names several processes"
    elif hasattr(tf, "estimator"):
        found, why = "estimator", f"TensorFlow {tf.__version__} has it"
    else:
        found, why = (
            "strategy",
            f"TensorFlow {tf.__version__} has no TPUEstimator",
        )
    if name == "estimator" and found != name:
        raise UserError(
            f"--engine=estimator cannot run here: {why}; use --engine=strategy"
        )
    if name != "auto":
        found, why = name, "--engine names it"
    module, _, attribute = ENGINES[found].rpartition(".")
    return getattr(importlib.import_module(module), attribute), why


def check_batch_size(batch_size: int, devices: int, parts: int) -> None:
    """Checks that every device and part gets equally many rows.

    Raises:
        UserError: they do not.
    """
    if batch_size % (devices * parts):
        raise UserError(
            f"--train_batch_size {batch_size} cannot be divided evenly among "
            f"{devices} devices and {parts} --gradient_accumulation_steps; "
            "change one of them, or --num_devices"
        )
