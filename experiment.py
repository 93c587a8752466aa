"""Trains, evaluates and predicts one task once: the order of things.

Nothing in here knows an engine or a flag. Whatever can be wrong with the
user's input is found before the first long step.
"""

import dataclasses
import os
import time
from typing import Any, Dict, List, Optional, Tuple

from absl import logging
from tensorboard.summary import Writer

import adapter_modeling
import checkpoints
import files
import input_pipeline
import run_record
import task_model
from engines import Hardware, Job, engine_class
from errors import UserError
from modeling import BertConfig
from optimization import Schedule
from progress import TrainingProgress
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

    `method` is None where the user named none: then a trained checkpoint or
    an adapter says it, or it is the default.
    """

    task: Task
    method: Optional[adapter_modeling.TuningMethod]
    default_method: adapter_modeling.TuningMethod
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
        experiment.method or experiment.default_method,
        task.build_head,
    )
    return table.to_text()


def run(experiment: Experiment) -> Dict[str, float]:
    """Does what the experiment asks for: train, evaluate, predict.

    Returns:
        The evaluation's results under BERT's key names; empty without one.

    Raises:
        UserError: anything that the user can mend.
    """
    if not (experiment.do_train or experiment.do_eval or experiment.do_predict):
        raise UserError(
            "nothing to do: pass --do_train, --do_eval or --do_predict"
        )
    engine = engine_class(experiment.engine)(experiment.hardware)
    engine.check_devices()
    setup = _open(experiment)
    splits = [
        split
        for split, wanted in (
            ("train", experiment.do_train),
            ("dev", experiment.do_eval),
            ("test", experiment.do_predict),
        )
        if wanted
    ]
    examples, features = {}, {}
    for split in splits:
        examples[split] = setup.task.examples(experiment.data_dir, split)
        features[split] = setup.task.featurize(
            examples[split], setup.tokenizer, experiment.max_seq_length
        )
        logging.info("%s: %d examples", split, len(examples[split]))
    logging.info("%s", "\n" + setup.table.to_text())
    # Five checkpoints with two slots each, while a sixth is written.
    needed = setup.table.trained_count * 4 * 3 * 6 if experiment.do_train else 0
    files.prepare_folder(experiment.output_dir, needed + 2**20)
    job = Job(
        build_model=lambda create: task_model.TaskModel(
            setup.config, setup.method, setup.task.build_head, create
        ),
        table=setup.table,
        initial_values=setup.initial_values,
        output_dir=experiment.output_dir,
        seed=experiment.training.seed,
        length=experiment.max_seq_length
        if experiment.hardware.use_tpu
        else None,
    )
    record = _record(setup, features.get("train"))
    run_record.check(experiment.output_dir, record, experiment.do_train)
    if experiment.do_train:
        run_record.write(experiment.output_dir, record)
        _train(engine, setup, job, features["train"])
    checkpoint, step = checkpoints.latest_step(experiment.output_dir)
    if checkpoint is None:
        task_model.check_head_is_known(setup.table, *setup.head_source)
    elif experiment.adapter and not experiment.do_train:
        raise UserError(
            f"{experiment.output_dir} holds the checkpoints of a training; "
            "pass another --output_dir to use --adapter"
        )
    results: Dict[str, float] = {}
    if experiment.do_eval:
        predictions = engine.predict(
            job, features["dev"], experiment.eval_batch_size, "eval"
        )
        scores = setup.task.evaluate(
            examples["dev"], features["dev"], predictions
        )
        results = _write_results(experiment.output_dir, scores, step)
    if experiment.do_predict:
        predictions = engine.predict(
            job, features["test"], experiment.predict_batch_size, "predict"
        )
        for path in setup.task.write_predictions(
            experiment.output_dir, examples["test"], predictions
        ):
            logging.info("predictions written to %s", path)
    return results


def _open(experiment: Experiment) -> Setup:
    """Opens model, vocabulary and adapter, and checks that they fit."""
    if not experiment.init_checkpoint:
        raise UserError(
            "--init_checkpoint is missing: the pretrained BERT to start from"
        )
    opened = checkpoints.open_init_checkpoint(experiment.init_checkpoint)
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
        trained_method = adapter_modeling.parse(description["method"])
        if method not in (None, trained_method):
            raise UserError(
                f"{trained.source} was trained with {trained_method}, but "
                f"--tuning_method and its flags say {method}"
            )
        method = trained_method
    task = task.complete(experiment.data_dir)
    method = method or experiment.default_method
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


def _record(
    setup: Setup, train_features: Optional[input_pipeline.Features]
) -> Dict[str, Any]:
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


def _train(
    engine: Any, setup: Setup, job: Job, features: input_pipeline.Features
) -> None:
    """Trains, or goes on training, and writes the adapter artifact."""
    training = setup.experiment.training
    steps = input_pipeline.count_train_steps(
        len(features), training.batch_size, training.epochs
    )
    schedule = Schedule(
        training.learning_rate, steps, int(steps * training.warmup_proportion)
    )
    _, first_step = checkpoints.latest_step(job.output_dir)
    if first_step < steps:
        logging.info(
            "training: %d steps of %d examples, from step %d",
            steps,
            training.batch_size,
            first_step,
        )
        plan = input_pipeline.TrainPlan(
            features.lengths, training.batch_size, steps, training.seed
        )
        progress = TrainingProgress(
            schedule, first_step, training.batch_size, job.output_dir
        )
        began = time.monotonic()
        engine.train(
            job,
            features,
            plan,
            schedule,
            first_step,
            training.batch_size,
            training.save_checkpoints_steps,
            progress,
        )
        progress.close()
        seconds = time.monotonic() - began
        logging.info(
            "trained in %.1f s, %.1f examples per second",
            seconds,
            (steps - first_step) * training.batch_size / seconds,
        )
    else:
        logging.info("already trained to step %d", first_step)
    checkpoint, _ = checkpoints.latest_step(job.output_dir)
    weights = checkpoints.open_tensorflow(checkpoint)
    record = _record(setup, features)
    folder = os.path.join(job.output_dir, "adapter")
    checkpoints.write_artifact(
        folder,
        {"format": 1, "checkpoint": os.path.basename(checkpoint), **record},
        {p.name: weights.read(p.name) for p in job.table.trained},
    )
    logging.info("the trained adapter is in %s", folder)


def _write_results(
    output_dir: str, scores: Dict[str, float], step: int
) -> Dict[str, float]:
    """Writes `eval_results.txt` and `.json`, and the scores as curves."""
    results: Dict[str, float] = {
        f"eval_{name}": value for name, value in scores.items()
    }
    results["global_step"] = step
    results["loss"] = scores["loss"]
    lines: List[str] = [f"{key} = {results[key]}" for key in sorted(results)]
    files.write_text(
        os.path.join(output_dir, "eval_results.txt"), "\n".join(lines) + "\n"
    )
    files.write_json(os.path.join(output_dir, "eval_results.json"), results)
    writer = Writer(os.path.join(output_dir, "eval"))
    for name, value in scores.items():
        writer.add_scalar(name, value, step)
    writer.close()
    logging.info("***** Eval results *****\n  %s", "\n  ".join(lines))
    return results
