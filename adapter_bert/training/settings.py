"""Declares the settings that all training programs share, named as BERT's."""

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from adapter_bert.checkpoints.bert_flags import BertFiles, LetterCase
from adapter_bert.data.table_flags import POOL_BATCHES
from adapter_bert.flags import (
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_NUMBER,
    PROBABILITY,
    Range,
    Topic,
)
from adapter_bert.methods import registry
from adapter_bert.tasks import kinds

if TYPE_CHECKING:
    from adapter_bert.methods.base import TuningMethod
    from adapter_bert.tasks.task import Task

# The folder of a trained adapter, in its run's folder.
ADAPTER = "adapter"
# Engine name -> module and class.
ENGINES: dict[str, str] = {
    "estimator": "adapter_bert.training.estimator:EstimatorEngine",
    "strategy": "adapter_bert.training.strategy:StrategyEngine",
}
AUTO = "auto"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
# Values of `--compute_dtype`.
DTYPES = (FLOAT32, BFLOAT16, AUTO)
# Values of `--base_dtype`.
INT8 = "int8"
BASE_DTYPES = (FLOAT32, INT8)
# Value of `--eval_steps`.
EPOCH = "epoch"
# Meaning of `--tuning_method`.
METHOD = (
    "Method that decides what is added and trained, with its arguments as in "
    f"houlsby(size=64); one of {registry.NAMES}."
)
OWN_FILE = "a .tsv, .csv, .jsonl or .json file"
# Values of `--recompute`.
OPERATIONS, LAYERS = "operations", "layers"


@dataclasses.dataclass(frozen=True)
class SplitFlags:
    """Names the files of a task's rows."""

    data_dir: str = Topic.DATA.setting(
        "",
        "Folder of the task's files: train, dev, test, with an ending of "
        "tables (.tsv, .csv, .jsonl, .json), tags (.conll, .conllu, .jsonl, "
        ".json) or SQuAD (.json). For several tasks, a folder with such a "
        "folder for each, of the task's name.",
    )
    train_file: str = Topic.DATA.setting(
        "", "Own file to train on, in place of --data_dir's."
    )
    eval_file: str = Topic.DATA.setting(
        "", "Own file to evaluate on, in place of --data_dir's."
    )


@dataclasses.dataclass(frozen=True)
class PredictedFlags(SplitFlags):
    """Names the files of a task that answers rows."""

    predict_file: str = Topic.DATA.setting(
        "", "Own file to predict, in place of --data_dir's."
    )


@dataclasses.dataclass(frozen=True)
class RowFlags:
    """Says how rows are made and scored."""

    max_seq_length: int = Topic.DATA.setting(
        128,
        "Longest row in tokens. A text is cut off there; a line or sentence "
        "makes several rows. --adapter, or a run that is evaluated, supplies "
        "its own default.",
    )
    eval_batch_size: int = Topic.EVALUATION.setting(
        8, "Rows evaluated at once.", POSITIVE
    )


@dataclasses.dataclass(frozen=True)
class Training:
    """Says how a task is trained."""

    batch_size: int = Topic.TRAINING.setting(
        32,
        "Examples of a training step.",
        POSITIVE,
        flag="train_batch_size",
        recorded=True,
    )
    learning_rate: Optional[float] = Topic.TRAINING.setting(
        None,
        "Peak learning rate; default: the method's own.",
        POSITIVE_NUMBER,
        recorded=True,
    )
    adam_bias_correction: bool = Topic.TRAINING.setting(
        False,
        "Correct Adam's averages in the first steps. Most programs do, BERT's "
        "does not.",
        recorded=True,
    )
    epochs: float = Topic.TRAINING.setting(
        3.0,
        "Passes over the training set.",
        POSITIVE_NUMBER,
        flag="num_train_epochs",
        alias="epochs",
        recorded=True,
    )
    num_train_steps: Optional[int] = Topic.TRAINING.setting(
        None,
        "Steps of the training; default: those of --num_train_epochs.",
        Range(lambda value: 0 < value < 2**31, "expected 1 to 2147483647"),
        recorded=True,
    )
    warmup_proportion: float = Topic.TRAINING.setting(
        0.1,
        "Share of the steps that warm up (0-1).",
        Range(lambda value: 0 <= value <= 1, "expected a number from 0 to 1"),
        recorded=True,
    )
    num_warmup_steps: Optional[int] = Topic.TRAINING.setting(
        None,
        "Steps that warm up; default: those of --warmup_proportion.",
        NOT_NEGATIVE,
        recorded=True,
    )
    gradient_accumulation_steps: int = Topic.TRAINING.setting(
        1,
        "Parts of a training batch that are computed one after the other, for "
        "the same update in less memory.",
        POSITIVE,
    )
    length_pool_batches: int = Topic.TRAINING.setting(
        POOL_BATCHES,
        "Training batches within which rows of similar length are grouped. 1 "
        "groups none, as --few_shot does: more padding, more shuffling.",
        POSITIVE,
        recorded=True,
    )
    save_checkpoints_steps: int = Topic.TRAINING.setting(
        1000, "Steps between two checkpoints.", POSITIVE
    )
    seed: int = Topic.TO_DO.setting(
        1,
        "Seed of all random choices.",
        Range(lambda value: 0 <= value < 2**31, "expected 0 to 2147483647"),
        recorded=True,
    )
    eval_steps: str = Topic.TRAINING.setting(
        "",
        "Steps between two scorings of the dev set in training, or epoch. "
        "Default: epoch with --keep_best or --early_stopping, else no scoring.",
        Range(
            lambda value: (
                value in ("", EPOCH) or re.fullmatch("[1-9][0-9]{0,8}", value)
            ),
            f"expected a number of steps or {EPOCH}",
        ),
        recorded=True,
    )
    keep_best: str = Topic.TRAINING.setting(
        "",
        "Score that chooses the step to keep, as f1 or loss. Default: the "
        "task's main score with --early_stopping, else the last step is kept.",
        recorded=True,
    )
    early_stopping: int = Topic.TRAINING.setting(
        0,
        "Scored steps in a row without a new best that end training; 0: never.",
        NOT_NEGATIVE,
        recorded=True,
    )


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Tuning method's text, and flags for arguments of the method."""

    tuning_method: str = Topic.METHOD.setting("houlsby", METHOD)
    size: Optional[int] = Topic.METHOD.setting(
        None,
        "Bottleneck size; default: the method's, 64 for houlsby.",
        flag="adapter_size",
    )
    init_scale: Optional[float] = Topic.METHOD.setting(
        None,
        "Standard deviation of fresh adapter weights; default: the method's, "
        "0.01 for houlsby.",
        flag="adapter_init_scale",
    )


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Devices, under the names of google-research/bert's flags."""

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
class TaskAndMethod:
    """Holds what a run trains.

    `method` is what the flags and their defaults say. A trained checkpoint or
    an adapter brings its own method, which `named_method` (None if the user
    named none) and `named_arguments` must not contradict.
    """

    task: "Task"
    method: "TuningMethod"
    named_method: Optional[str]
    named_arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Classification:
    """Settings of `run_classifier.py` alone."""

    class_weights: Optional[str] = Topic.TRAINING.setting(
        None,
        "Weights of the labels' losses in training: balanced (rare labels "
        'count as much as common ones), or JSON as {"spam": 2.5}. A label '
        "that is not named has weight 1.",
    )
    rank_loss: Optional[str] = Topic.TRAINING.setting(
        None,
        f"{kinds.RERANK}: cross entropy of each label from 0 to 1 (bce), of "
        "the order of two documents (ranknet) or of a query's documents "
        "(listnet), or the squared error of the difference of two documents' "
        "scores by a teacher (margin_mse). A row of a batch is a query with "
        "all its documents, for bce a document. Default: the adapter's, else "
        "bce.",
        choices=kinds.RANK_LOSSES,
    )
    few_shot: bool = Topic.TRAINING.setting(
        False,
        "For 8 to 64 rows of each label: train vectors, alike for equal "
        "labels, then fit a linear head to the rows' vectors. An epoch passes "
        "16 times over the rows.",
        needs=("do_train|describe",),
    )
    extend_labels: bool = Topic.METHOD.setting(
        False,
        "Train --adapter to answer the new labels of the training file too. "
        "The old rows of the head's last layer keep their bits.",
        needs=("adapter", "do_train|describe"),
    )
    replay_file: str = Topic.METHOD.setting(
        "",
        f"--extend_labels: {OWN_FILE} of rows with old labels, in the columns "
        "of the training file, to train on too.",
        needs=("extend_labels",),
    )
    distill_weight: Optional[float] = Topic.METHOD.setting(
        None,
        "--extend_labels without --replay_file: factor of the loss that keeps "
        "the old adapter's answers to the new rows; 0 for none. Default: 1.",
        Range(lambda x: 0 <= x < math.inf, "expected 0 or a positive number"),
        needs=("extend_labels",),
    )
    calibrate: bool = Topic.EVALUATION.setting(
        False,
        "Fit a temperature to half of the dev rows after training, measure it "
        "on the other half, and keep it in the adapter, whose probabilities "
        "are of logits over the temperature.",
        needs=("do_train", "do_eval"),
    )
    abstain_at: Optional[float] = Topic.EVALUATION.setting(
        None,
        "--calibrate: share of right answers, as 0.9, that answers with a "
        "label shall have. The adapter keeps the least probability that "
        "reaches it on the same half, and gives rows below it no label.",
        PROBABILITY,
        needs=("calibrate",),
    )
    score_novelty: bool = Topic.EVALUATION.setting(
        False,
        "Describe the training rows after training, and keep the description "
        "in the adapter, whose answers have a novelty: the share of training "
        "rows that are nearer than the text, by frozen BERT's features.",
        needs=("do_train",),
    )
    fit_thresholds: bool = Topic.EVALUATION.setting(
        False,
        "custom, --multi_label: fit each label's least probability to the dev "
        "rows after training, for the greatest F1, and keep them in the "
        "adapter.",
        needs=("do_train", "do_eval"),
    )


@dataclasses.dataclass(frozen=True)
class Experiment(LetterCase, BertFiles, TaskAndMethod):
    """One run."""

    data_dir: str = ""
    max_seq_length: int = 128
    eval_batch_size: int = 8
    # A type in quotes is not followed, so other programs lack these flags.
    classification: "Classification" = Classification()
    do_train: bool = Topic.TO_DO.setting(False, "Train.")
    do_eval: bool = Topic.TO_DO.setting(
        False, "Score the model on labelled data."
    )
    do_predict: bool = Topic.TO_DO.setting(
        False, "Predict, and write the predictions."
    )
    describe: bool = Topic.TO_DO.setting(
        False, "Print what would be added, trained and frozen, then stop."
    )
    output_dir: str = Topic.TO_DO.setting(
        "", "Folder for checkpoints and results."
    )
    max_train_examples: Optional[int] = Topic.DATA.setting(
        None,
        "Train on the first N examples only, of a reranker on all of their "
        "queries; default: all.",
        POSITIVE,
    )
    max_eval_examples: Optional[int] = Topic.DATA.setting(
        None,
        "Score the first N examples only, of a search or a reranker all of "
        "their queries; default: all.",
        POSITIVE,
    )
    new_tokens: str = Topic.METHOD.setting(
        "",
        "File of new words, one on each line. Their embeddings are trained "
        "next to what the method trains, and kept in the adapter.",
    )
    adapter: str = Topic.METHOD.setting(
        "", "Folder of a trained adapter to evaluate, predict with or train on."
    )
    init_adapter: str = Topic.METHOD.setting(
        "",
        "Folder of a trained adapter, of any task, whose values the training "
        "begins with; the head is new. It brings its method.",
        needs=("do_train|describe",),
    )
    library: str = Topic.METHOD.setting(
        "",
        "Folder of the trained adapters that a composition names, as in "
        "--tuning_method='fusion(mrpc, rte)'.",
    )
    exchange_part: Mapping[str, str] = Topic.METHOD.setting(
        {},
        "Trained adapters that take the places of others in a composition: "
        "english=german puts german in the place of english.",
    )
    carry_parts: bool = Topic.METHOD.setting(
        True,
        "Store a composition's trained adapters within the new adapter, which "
        "needs --library otherwise.",
    )
    training: Training = dataclasses.field(default_factory=Training)
    engine: str = Topic.HARDWARE.setting(
        "auto",
        f"Engine that trains and predicts: auto or {', '.join(ENGINES)}.",
    )
    compute_dtype: str = Topic.HARDWARE.setting(
        FLOAT32,
        "Type of products and activations; trained weights stay float32. auto "
        "measures which type is faster when a run begins.",
        choices=DTYPES,
        recorded=True,
    )
    base_dtype: str = Topic.HARDWARE.setting(
        FLOAT32,
        "Type in which BERT's frozen matrices are kept in memory. int8 takes "
        "a quarter of the bytes; what is trained stays float32.",
        choices=BASE_DTYPES,
        recorded=True,
    )
    use_xla: bool = Topic.HARDWARE.setting(
        False,
        "Compile the model with XLA; pads every batch to --max_seq_length.",
    )
    recompute: str = Topic.HARDWARE.setting(
        OPERATIONS,
        "Results that a backward pass computes again on a TPU or with "
        "--use_xla instead of keeping them in memory. operations: dropout "
        "masks, attention's probabilities, gelu, LayerNorm, on TPUs and GPUs. "
        "layers: whole layers, for up to half more computation.",
        choices=(OPERATIONS, LAYERS),
    )
    hardware: Hardware = dataclasses.field(default_factory=Hardware)
    cache_frozen_layers: bool = Topic.TRAINING.setting(
        False,
        "Compute the layers below everything trained once per row, without "
        "dropout, and keep their outputs in a file.",
        recorded=True,
    )
    frozen_layers_dir: str = Topic.TRAINING.setting(
        "",
        "Folder of the files of --cache_frozen_layers; default: frozen_layers "
        "next to the training file.",
    )
    frozen_layers_gb: float = Topic.TRAINING.setting(
        20.0, "Most that this folder may hold, in 10^9 bytes.", POSITIVE_NUMBER
    )
    predict_batch_size: int = Topic.EVALUATION.setting(
        8, "Examples predicted at once.", POSITIVE
    )
    predict_batch_tokens: int = Topic.EVALUATION.setting(
        4096,
        "Short examples share larger batches of evaluation and prediction, up "
        "to this many tokens; 0 keeps the batch sizes as they are.",
        NOT_NEGATIVE,
    )

    @property
    def adapter_folder(self) -> str:
        """Names the folder of the adapter that a run begins with, or has."""
        has = os.path.join(self.output_dir, ADAPTER)
        return self.adapter or self.init_adapter or has


# Settings of all training programs; most have those of rows too.
OF_ALL = (Tuning, Experiment)
WITH_ROWS = (RowFlags, *OF_ALL)
