"""Opens what a run names, and checks that it all fits together.

In here: `Experiment`, what the flags say; `Setup`, what was opened; the
table of `--describe`; the description of a run for `run.json`.
"""

import dataclasses
import os
from typing import Any, Dict, Optional, Tuple

from absl import logging

import adapter_modeling
import checkpoints
import run_record
import task_model
from engines import Hardware
from errors import UserError
from input_pipeline import Features
from modeling import BertConfig
from tasks.base import Task
from tokenization import FullTokenizer

VOCABULARY_FILE = "vocab.txt"
CONFIG_FILES = ("bert_config.json", "config.json")


@dataclasses.dataclass(frozen=True)
class Training:
    """How a task is trained.

    Attributes:
        batch_size: examples of a step, over all devices.
        learning_rate: peak of the schedule.
        epochs: passes over the training split, may be a fraction.
        warmup_proportion: share of the steps that warm up, 0 to 1.
        save_checkpoints_steps: distance of checkpoints, in steps.
        seed: of everything random.
    """

    batch_size: int
    learning_rate: float
    epochs: float
    warmup_proportion: float
    save_checkpoints_steps: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One run, as its flags describe it; see `run_flags.py` for each.

    `method` is what the flags and their defaults say. A trained checkpoint or
    an adapter brings its own method, which `named_method` (None if the user
    named none) and `named_arguments` must not contradict.
    """

    task: Task
    method: adapter_modeling.TuningMethod
    named_method: Optional[str]
    named_arguments: Dict[str, Any]
    training: Training
    hardware: Hardware
    engine: str
    data_dir: str
    output_dir: str
    init_checkpoint: str
    adapter: str
    bert_config_file: str
    vocab_file: str
    do_lower_case: bool
    max_seq_length: int
    do_train: bool
    do_eval: bool
    do_predict: bool
    eval_batch_size: int
    predict_batch_size: int


@dataclasses.dataclass(frozen=True)
class Setup:
    """What has been opened and found to fit together."""

    experiment: Experiment
    task: Task
    method: adapter_modeling.TuningMethod
    config: BertConfig
    tokenizer: FullTokenizer
    table: task_model.ParameterTable
    base: Dict[str, str]
    initial_values: checkpoints.InitialValues
    head_source: Tuple[Any, str]


def describe(experiment: Experiment) -> str:
    """The table of parameters of a run, without data or checkpoint.

    Raises:
        UserError: the config, the method or the task's labels are missing or
            do not fit.
    """
    config_file = experiment.bert_config_file
    if not config_file:
        if not experiment.init_checkpoint:
            raise UserError("--describe needs --bert_config_file")
        opened = checkpoints.open_init_checkpoint(experiment.init_checkpoint)
        config_file = _beside(opened, CONFIG_FILES, "--bert_config_file")
    task = experiment.task
    if not task.is_complete and not experiment.data_dir:
        raise UserError(
            f"the labels of the task {task.name} come from its data: pass "
            "--data_dir"
        )
    task = task.complete(experiment.data_dir)
    table = task_model.list_parameters(
        BertConfig.from_json_file(config_file),
        experiment.method,
        task.build_head,
    )
    return table.to_text()


def open_all(experiment: Experiment) -> Setup:
    """Opens model, vocabulary and adapter, and checks that they fit.

    Raises:
        UserError: one is missing, damaged, or does not fit the others.
    """
    path = experiment.init_checkpoint
    if not path and experiment.output_dir:
        # A used folder knows its base.
        path, _ = checkpoints.latest_step(experiment.output_dir)
    if not path:
        raise UserError(
            "--init_checkpoint is missing: the pretrained BERT to start from"
        )
    opened = checkpoints.open_init_checkpoint(path)
    config = BertConfig.from_json_file(
        experiment.bert_config_file
        or _beside(opened, CONFIG_FILES, "--bert_config_file")
    )
    tokenizer = FullTokenizer(
        experiment.vocab_file
        or _beside(opened, (VOCABULARY_FILE,), "--vocab_file"),
        experiment.do_lower_case,
    )
    if tokenizer.vocab_size != config.vocab_size:
        raise UserError(
            f"the vocabulary has {tokenizer.vocab_size} entries, but the BERT "
            f"config says {config.vocab_size}; check --vocab_file"
        )
    if experiment.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length is {experiment.max_seq_length}, but the model "
            f"has only {config.max_position_embeddings} positions"
        )
    trained, description = opened.trained, opened.run
    if experiment.adapter:
        artifact = checkpoints.open_artifact(experiment.adapter)
        trained, description = artifact.weights, artifact.config
    task, method = experiment.task, experiment.method
    if description is not None:
        task = task.restore(description["task"], trained.source)
        method = _trained_method(experiment, description, trained.source)
        if description["tokenizer"] != tokenizer.describe():
            raise UserError(
                f"{trained.source} was trained with another vocabulary or "
                "another --do_lower_case; pass those of its base"
            )
        logging.info(
            "%s: trained on the task %s with %s",
            trained.source,
            description["task"]["name"],
            method,
        )
    task = task.complete(experiment.data_dir)
    table = task_model.list_parameters(config, method, task.build_head)
    base = {
        "path": os.path.abspath(opened.weights.source)
        if "://" not in opened.weights.source
        else opened.weights.source,
        "fingerprint": checkpoints.fingerprint(opened.weights, table),
    }
    if description is not None:
        expected = description["base"]["fingerprint"]
        if base["fingerprint"] != expected:
            raise UserError(
                f"{trained.source} was trained upon another BERT (fingerprint "
                f"{expected[:12]}) than {base['path']} (fingerprint "
                f"{base['fingerprint'][:12]})"
            )
    source = trained or opened.weights
    return Setup(
        experiment,
        task,
        method,
        config,
        tokenizer,
        table,
        base,
        checkpoints.choose_initial_values(
            table, opened.weights, trained, experiment.training.seed
        ),
        (source.shapes, source.source),
    )


def _trained_method(
    experiment: Experiment, description: Dict[str, Any], source: str
) -> adapter_modeling.TuningMethod:
    """The method of something trained, which the flags must not contradict."""
    method = adapter_modeling.parse(description["method"])
    wanted = adapter_modeling.parse(
        experiment.named_method or description["method"].split("(")[0],
        {**dataclasses.asdict(method), **experiment.named_arguments},
    )
    if wanted != method:
        raise UserError(
            f"{source} was trained with {method}, but --tuning_method and its "
            f"flags say {wanted}"
        )
    return method


def _beside(
    opened: checkpoints.InitCheckpoint, names: Tuple[str, ...], flag: str
) -> str:
    """The path of the first of `names` that lies beside a checkpoint."""
    for name in names:
        path = os.path.join(opened.folder, name)
        if os.path.exists(path):
            return path
    raise UserError(
        f"no {' or '.join(names)} lies beside {opened.path}; pass {flag}"
    )


def record(setup: Setup, train_features: Optional[Features]) -> Dict[str, Any]:
    """What `run.json` says of this run."""
    training = dataclasses.asdict(setup.experiment.training)
    # How often a run is saved may change while it goes on.
    del training["save_checkpoints_steps"]
    if train_features is not None:
        training.update(
            max_seq_length=setup.experiment.max_seq_length,
            examples=len(train_features),
            data=train_features.fingerprint(),
        )
    return {
        "base": setup.base,
        "tokenizer": setup.tokenizer.describe(),
        "method": str(setup.method),
        "task": {"name": setup.task.name, **setup.task.describe()},
        "bert_config": dataclasses.asdict(setup.config),
        "training": training,
        "parameters": {
            "total": setup.table.total_count,
            "trained": setup.table.trained_count,
        },
        "versions": run_record.versions(),
    }
