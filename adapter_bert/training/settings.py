"""The settings of a run, as its flags describe them."""

import dataclasses
from typing import Any, Dict, Mapping, Optional

from adapter_bert.methods.base import TuningMethod
from adapter_bert.tasks.task import Task
from adapter_bert.training.engines import Hardware


@dataclasses.dataclass(frozen=True)
class Training:
    """How a task is trained.

    Attributes:
        batch_size: examples of a step, over all devices.
        learning_rate: peak of the schedule, or None for the method's own.
        adam_bias_correction: whether Adam corrects its young averages.
        epochs: passes over the training split, may be a fraction.
        warmup_proportion: share of the steps that warm up, 0 to 1.
        save_checkpoints_steps: distance of checkpoints, in steps.
        length_pool_batches: batches within which rows are grouped by length.
        gradient_accumulation_steps: parts of a batch that are computed one
            after the other.
        seed: of everything random.
        eval_steps: "", or when the dev sets are scored while training: `epoch`
            or a number of steps.
        keep_best: the score by which the best of these steps is kept as what
            the training comes to, or "".
        early_stopping: after how many evaluations without a better score the
            training ends; 0 for never.
    """

    batch_size: int
    learning_rate: Optional[float]
    adam_bias_correction: bool
    epochs: float
    warmup_proportion: float
    save_checkpoints_steps: int
    length_pool_batches: int
    gradient_accumulation_steps: int
    seed: int
    eval_steps: str = ""
    keep_best: str = ""
    early_stopping: int = 0


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One run, as its flags describe it; see `flags.py` for each.

    `method` is what the flags and their defaults say. A trained checkpoint or
    an adapter brings its own method, which `named_method` (None if the user
    named none) and `named_arguments` must not contradict.
    """

    task: Task
    method: TuningMethod
    named_method: Optional[str]
    named_arguments: Dict[str, Any]
    training: Training
    hardware: Hardware
    engine: str
    use_xla: bool
    compute_dtype: str
    data_dir: str
    output_dir: str
    init_checkpoint: str
    adapter: str
    bert_config_file: str
    vocab_file: str
    do_lower_case: Optional[bool]
    max_seq_length: int
    do_train: bool
    do_eval: bool
    do_predict: bool
    eval_batch_size: int
    predict_batch_size: int
    max_train_examples: Optional[int] = None
    max_eval_examples: Optional[int] = None
    library: str = ""
    exchange_part: Mapping[str, str] = dataclasses.field(default_factory=dict)
    carry_parts: bool = True
    predict_batch_tokens: int = 0
    cache_frozen_layers: bool = False
    frozen_layers_dir: str = ""
    frozen_layers_gb: float = 20.0
