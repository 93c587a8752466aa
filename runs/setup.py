"""Opens what a run names, and checks that it all fits together.

In here: `Experiment`, what the flags say; `Setup`, what was opened; the
table of `--describe`; the description of a run for `run.json`.
"""

import dataclasses
import os
from typing import Any, Dict, Optional, Tuple

from absl import logging

import files
import modeling
import task_model
from engines import Hardware
from errors import UserError
from input_pipeline import Features
from methods import parsing
from methods.base import TuningMethod
from modeling import BertConfig
from optimization import Schedule
from tasks.base import Task
from tokenization import FullTokenizer
from weights import adapter_artifact, run_record, sources, training_state
from weights.base import (
    Base,
    InitialValues,
    Weights,
    choose_initial_values,
    identify,
    start_fingerprint,
)

VOCABULARY_FILE = "vocab.txt"
CONFIG_FILES = ("bert_config.json", "config.json")


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
    do_lower_case: bool
    max_seq_length: int
    do_train: bool
    do_eval: bool
    do_predict: bool
    eval_batch_size: int
    predict_batch_size: int


@dataclasses.dataclass(frozen=True)
class Setup:
    """What has been opened and found to fit together.

    Attributes:
        experiment: what was asked for.
        task: with its labels.
        method: of the flags, or of what was trained.
        config: of the BERT.
        tokenizer: of the BERT.
        table: every variable.
        base: the pretrained model.
        start: fingerprint of trained values to start from, or None.
        step: training steps of those values.
        trained: where those values come from, or None.
        learning_rate: peak of the schedule.
        initial_values: every variable's first value.
    """

    experiment: Experiment
    task: Task
    method: TuningMethod
    config: BertConfig
    tokenizer: FullTokenizer
    table: task_model.ParameterTable
    base: Base
    start: Optional[str]
    step: int
    trained: Optional[str]
    learning_rate: float
    initial_values: InitialValues


@dataclasses.dataclass(frozen=True)
class Sources:
    """The model that a run starts from.

    Attributes:
        opened: what `--init_checkpoint` names, or None if nothing does.
        trained: values of an adapter or a training checkpoint, or None.
        description: of those.
        step: training steps of those.
    """

    opened: Optional[sources.InitCheckpoint]
    trained: Optional[Weights]
    description: Optional[Dict[str, Any]]
    step: int


def _open_sources(experiment: Experiment) -> Sources:
    """Opens `--init_checkpoint` (default: a used folder's) and `--adapter`."""
    path = experiment.init_checkpoint
    run_file = os.path.join(experiment.output_dir, run_record.RUN_FILE)
    if not path and experiment.output_dir and files.exists(run_file):
        path = run_record.place_of_base(experiment.output_dir)
    opened = sources.open_init_checkpoint(path) if path else None
    if experiment.adapter:
        artifact = adapter_artifact.read(
            experiment.adapter, opened.weights if opened else None
        )
        step = training_state.step_of(str(artifact.config.get("checkpoint")))
        return Sources(opened, artifact.weights, artifact.config, step)
    if opened is None or opened.trained is None:
        return Sources(opened, None, None, 0)
    step = training_state.step_of(opened.path)
    return Sources(opened, opened.trained, opened.run, step)


def _read_config(
    experiment: Experiment, opened: Optional[sources.InitCheckpoint]
) -> BertConfig:
    """Reads the BERT config that is named, or lies beside the model."""
    path = experiment.bert_config_file
    if not path and opened is None:
        raise UserError("--bert_config_file is missing: the sizes of the BERT")
    return BertConfig.from_json_file(
        path or _beside(opened, CONFIG_FILES, "--bert_config_file")
    )


def _task_and_method(
    experiment: Experiment, sources: Sources
) -> Tuple[Task, TuningMethod]:
    """What the flags say, or what was trained, if that does not contradict."""
    task, method = experiment.task, experiment.method
    if sources.description is not None:
        source = sources.trained.source
        task = task.restore(sources.description["task"], source)
        method = _trained_method(experiment, sources.description, source)
    if not task.is_complete and not experiment.data_dir:
        raise UserError(
            f"the labels of the task {task.name} come from its data: pass "
            "--data_dir"
        )
    return task.complete(experiment.data_dir), method


def describe_parameters(experiment: Experiment) -> str:
    """The table of parameters of a run, without data or checkpoint.

    Raises:
        UserError: the config, the method or the task's labels are missing or
            do not fit.
    """
    sources = _open_sources(experiment)
    config = _read_config(experiment, sources.opened)
    task, method = _task_and_method(experiment, sources)
    return task_model.list_parameters(config, method, task.build_head).to_text()


def open_all(experiment: Experiment) -> Setup:
    """Opens model, vocabulary and adapter, and checks that they fit.

    Raises:
        UserError: one is missing, damaged, or does not fit the others.
    """
    sources = _open_sources(experiment)
    opened, trained = sources.opened, sources.trained
    if opened is None:
        raise UserError(
            "--init_checkpoint is missing: the pretrained BERT to start from"
        )
    config = _read_config(experiment, opened)
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
    if experiment.do_lower_case and tokenizer.is_cased:
        raise UserError(
            "the vocabulary has words with capital letters, which texts in "
            "lower case never use; pass --do_lower_case=false"
        )
    if experiment.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length is {experiment.max_seq_length}, but the model "
            f"has only {config.max_position_embeddings} positions"
        )
    task, method = _task_and_method(experiment, sources)
    table = task_model.list_parameters(config, method, task.build_head)
    if experiment.do_train and method.first_phase:
        _check_two_phases(method, trained)
    base = identify(opened.weights, modeling.list_variables(config))
    if sources.description is not None:
        _check_same_model(sources, base, config, tokenizer)
        logging.info(
            "%s: trained on the task %s with %s",
            trained.source,
            sources.description["task"]["name"],
            sources.description.get("trained_with") or method,
        )
    initial_values = choose_initial_values(
        table.parameters,
        opened.weights,
        trained,
        experiment.training.seed,
        fresh_head=experiment.do_train,
    )
    if not experiment.do_train:
        weights = trained or opened.weights
        run_step = training_state.latest_step(experiment.output_dir)[1]
        if not run_step:
            task_model.check_is_trained(table, weights.shapes, weights.source)
    return Setup(
        experiment=experiment,
        task=task,
        method=method,
        config=config,
        tokenizer=tokenizer,
        table=table,
        base=base,
        start=start_fingerprint(table.parameters, opened.weights, trained),
        step=sources.step,
        trained=trained.source if trained else None,
        learning_rate=experiment.training.learning_rate or method.learning_rate,
        initial_values=initial_values,
    )


def _check_two_phases(method: TuningMethod, trained: Optional[Weights]) -> None:
    """Refuses where a method of two phases cannot be trained."""
    if trained is not None:
        raise UserError(
            f"{trained.source} cannot be trained further with {method.name}, "
            "which compares with the pretrained BERT; pass that as "
            "--init_checkpoint"
        )
    if os.environ.get("TF_CONFIG"):
        raise UserError(
            f"{method.name} trains in two phases, on one machine only, but "
            "TF_CONFIG is set"
        )


def _check_same_model(
    sources: Sources,
    base: Base,
    config: BertConfig,
    tokenizer: FullTokenizer,
) -> None:
    """Compares the model with the one that something was trained upon."""
    source, description = sources.trained.source, sources.description
    expected = description["base"]["fingerprint"]
    if not base.is_known_as(expected):
        raise UserError(
            f"{source} was trained upon another BERT (fingerprint "
            f"{expected[:12]}) than {base.path} (fingerprint "
            f"{base.fingerprint[:12]})"
        )
    if description["tokenizer"] != tokenizer.describe():
        raise UserError(
            f"{source} was trained with another vocabulary or another "
            "--do_lower_case; pass those of its base"
        )
    for name, value in dataclasses.asdict(config).items():
        before = description["bert_config"].get(name)
        if before != value and not name.endswith("dropout_prob"):
            raise UserError(
                f"{source} was trained with {name} {before!r}, but the BERT "
                f"config says {value!r}; check --bert_config_file"
            )


def _trained_method(
    experiment: Experiment, description: Dict[str, Any], source: str
) -> TuningMethod:
    """The method of something trained, which the flags must not contradict."""
    kept = parsing.parse(description["method"])
    # What is kept of a training may be another method's.
    text = description.get("trained_with") or description["method"]
    method = parsing.parse(text)
    for argument in experiment.named_arguments:
        if not experiment.named_method and not hasattr(method, argument):
            raise UserError(
                f"{source} was trained with {method}, which has no {argument}; "
                "leave out its flag"
            )
    wanted = parsing.parse(
        experiment.named_method or text.split("(")[0],
        {**dataclasses.asdict(method), **experiment.named_arguments},
    )
    if wanted == method:
        if experiment.do_train and kept != method:
            raise UserError(
                f"{source} holds what {method} came to, in the form of {kept}; "
                f"pass --tuning_method='{kept}' to train that further"
            )
        return kept
    if not wanted.fits(kept):
        raise UserError(
            f"{source} was trained with {method}, but --tuning_method and its "
            f"flags say {wanted}"
        )
    return wanted


def _beside(
    opened: sources.InitCheckpoint, names: Tuple[str, ...], flag: str
) -> str:
    """The path of the first of `names` that lies beside a checkpoint."""
    for name in names:
        path = os.path.join(opened.folder, name)
        if files.exists(path):
            return path
    raise UserError(
        f"no {' or '.join(names)} lies beside {opened.path}; pass {flag}"
    )


def describe_run(
    setup: Setup,
    engine: Any,
    train_features: Optional[Features],
    schedule: Optional[Schedule],
) -> Dict[str, Any]:
    """What `run.json` says of this run; the last two are of its training."""
    folder = setup.experiment.data_dir
    training = dataclasses.asdict(setup.experiment.training)
    # How often a run is saved, and in how many parts a batch is computed, may
    # change while it goes on.
    del training["save_checkpoints_steps"]
    parts = training.pop("gradient_accumulation_steps")
    training["learning_rate"] = setup.learning_rate
    training["start"] = setup.start
    training["compute_dtype"] = setup.experiment.compute_dtype
    if train_features is not None:
        training.update(
            steps=schedule.num_train_steps,
            max_seq_length=setup.experiment.max_seq_length,
            examples=len(train_features),
            data=train_features.fingerprint(),
        )
    return {
        "base": setup.base.describe(),
        "data_name": folder
        and os.path.basename(os.path.normpath(files.absolute(folder))),
        "tokenizer": setup.tokenizer.describe(),
        "method": str(setup.method),
        "task": {"name": setup.task.name, **setup.task.describe()},
        "bert_config": dataclasses.asdict(setup.config),
        "training": training,
        "parameters": {
            "total": setup.table.total_count,
            "trained": setup.table.trained_count,
        },
        "versions": {
            **run_record.versions(),
            "engine": type(engine).__name__,
            "devices": engine.shards,
            "cpu_lanes": engine.lanes,
            "gradient_accumulation_steps": parts,
            "use_xla": setup.experiment.use_xla,
        },
    }
