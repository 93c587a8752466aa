"""Trains, evaluates and predicts one task once: the order of things.

Nothing in here knows an engine or a flag. Whatever can be wrong with the
user's input is found before the first long step.
"""

import contextlib
import dataclasses
import functools
import os
import resource
import time
from typing import Any, Dict, List, Sequence

import numpy as np
from absl import logging
from tensorboard.summary import Writer

import adapter_artifact
import checkpoints
import files
import input_pipeline
import modeling
import preparation
import run_record
import task_model
from engines import Job, check_batch_size, choose_engine
from errors import UserError
from optimization import Schedule
from preparation import Experiment, Setup
from progress import TrainingProgress

# Folder of the training that comes before a method of two phases.
FIRST_PHASE = "phase_1"


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
    checkpoints.check_name(experiment.output_dir, "--output_dir")
    began = time.monotonic()
    make_engine, why = choose_engine(experiment.engine)
    logging.info("engine: %s (%s)", make_engine.__name__, why)
    engine = make_engine(experiment.hardware)
    engine.check_devices()
    if experiment.do_train:
        check_batch_size(
            experiment.training.batch_size,
            engine.shards,
            experiment.training.gradient_accumulation_steps,
        )
    setup = preparation.open_all(experiment)
    task = setup.task
    dev_splits = task.dev_splits if experiment.do_eval else ()
    test_splits = task.test_splits if experiment.do_predict else ()
    if test_splits and dev_splits and task.test_is_dev:
        test_splits = dev_splits
    splits = ["train"] if experiment.do_train else []
    splits += [split for _, split in (*dev_splits, *test_splits)]
    examples = {
        split: task.examples(experiment.data_dir, split) for split in splits
    }
    if engine.is_chief:
        files.prepare_folder(experiment.output_dir)
    features = {}
    for split, rows in examples.items():
        about = task.summarize(rows)
        logging.info(
            "%s: %d examples%s", split, len(rows), about and f": {about}"
        )
        features[split] = task.featurize(
            rows, setup.tokenizer, experiment.max_seq_length
        )
    logging.info("%s", "\n" + setup.table.to_text())
    schedule = None
    if experiment.do_train:
        schedule = _schedule(setup, examples["train"], features["train"])
    job = Job(
        build_model=lambda create: task_model.TaskModel(
            setup.config, setup.method, setup.task.build_head, create
        ),
        table=setup.table,
        initial_values=setup.initial_values,
        output_dir=experiment.output_dir,
        seed=experiment.training.seed,
        # Compilers need one shape.
        length=experiment.max_seq_length
        if experiment.hardware.use_tpu or experiment.use_xla
        else None,
        parts=experiment.training.gradient_accumulation_steps,
        lanes=engine.lanes,
        # A TPU's graph is compiled as it is.
        use_xla=experiment.use_xla and not experiment.hardware.use_tpu,
        compute_dtype=experiment.compute_dtype,
        adam_bias_correction=experiment.training.adam_bias_correction,
    )
    record = preparation.record(setup, engine, features.get("train"), schedule)
    run_record.check(experiment.output_dir, record, experiment.do_train)
    checkpoint, first_step = checkpoints.latest_step(experiment.output_dir)
    if checkpoint:
        checkpoints.check_training_checkpoint(checkpoint, setup.table)
        named = setup.trained and checkpoints.absolute(setup.trained)
        if not experiment.do_train and named not in (
            None,
            checkpoints.absolute(checkpoint),
        ):
            raise UserError(
                f"{experiment.output_dir} holds a training's {checkpoint}; "
                f"pass another --output_dir to use {named}"
            )
    resumed = bool(checkpoint or _first_phase_step(experiment.output_dir))
    if experiment.do_train:
        if engine.is_chief:
            files.check_room(
                experiment.output_dir, _room(setup, schedule, first_step)
            )
            files.prepare_folder(_artifact_folder(experiment.output_dir))
            run_record.write(experiment.output_dir, record)
        _train(engine, setup, job, features["train"], schedule, first_step)
    if not engine.is_chief:
        logging.info("the chief evaluates and writes the results")
        return {}
    _, step = checkpoints.latest_step(experiment.output_dir)
    step = step or setup.step
    results: Dict[str, float] = {}
    decoded = {}

    def predict(split: str, batch_size: int, what: str) -> Any:
        if split not in decoded:
            rows = features[split]
            # There are none where no context has a token.
            outputs = (
                engine.predict(job, rows, batch_size, what) if rows else {}
            )
            decoded[split] = task.decode(examples[split], rows, outputs)
        return decoded[split]

    scores: Dict[str, float] = {}
    for suffix, split in dev_splits:
        predictions = predict(split, experiment.eval_batch_size, "eval")
        found = task.evaluate(examples[split], features[split], predictions)
        end = f"_{suffix}" if suffix else ""
        scores.update({f"{name}{end}": found[name] for name in found})
        for path in task.write_report(
            experiment.output_dir, features[split], predictions, suffix
        ):
            logging.info("more of the evaluation is in %s", path)
    if dev_splits:
        data = {split: features[split].fingerprint() for _, split in dev_splits}
        results = _write_results(experiment.output_dir, scores, step, data)
    for suffix, split in test_splits:
        predictions = predict(split, experiment.predict_batch_size, "predict")
        for path in task.write_predictions(
            experiment.output_dir, examples[split], predictions, suffix
        ):
            logging.info("predictions written to %s", path)
    is_new = experiment.do_train and first_step < schedule.num_train_steps
    # Of several workers none knows what the others took.
    if is_new and engine.workers == 1:
        _write_cost(experiment.output_dir, resumed, time.monotonic() - began)
    return results


def _write_cost(output_dir: str, resumed: bool, seconds: float) -> None:
    """Writes `cost.json`: what this process has taken, all that it did."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    files.write_json(
        os.path.join(output_dir, "cost.json"),
        {
            # Then this is not all that the training took.
            "resumed": resumed,
            "seconds": seconds,
            "processor_seconds": usage.ru_utime + usage.ru_stime,
            # Linux counts in KiB.
            "peak_memory_bytes": usage.ru_maxrss * 1024,
        },
    )


def _schedule(
    setup: Setup, examples: Sequence, features: input_pipeline.Features
) -> Schedule:
    """The learning rates of the setup's training over these examples."""
    training = setup.experiment.training
    steps = setup.task.count_train_steps(
        examples, features, training.batch_size, training.epochs
    )
    return Schedule(
        setup.learning_rate, steps, int(steps * training.warmup_proportion)
    )


def _room(setup: Setup, schedule: Schedule, first_step: int) -> int:
    """Bytes that a training from `first_step` on needs for what it writes."""
    output_dir = setup.experiment.output_dir
    every = setup.experiment.training.save_checkpoints_steps

    def of(table: task_model.ParameterTable, folder: str, first: int) -> int:
        left = schedule.num_train_steps - first
        if not left:
            return 0
        # At every interval and at the end; one more than are kept, while it is
        # written. Each variable has two slots.
        new = min(
            1 + (left - 1) // every,
            checkpoints.KEPT_CHECKPOINTS + 1 - checkpoints.count_kept(folder),
        )
        return new * table.trained_count * 4 * 3

    # The artifact is written in any case.
    needed = setup.table.trained_count * 4
    needed += of(setup.table, output_dir, first_step)
    if setup.method.first_phase and not first_step:
        needed += of(
            _first_phase_table(setup),
            os.path.join(output_dir, FIRST_PHASE),
            _first_phase_step(output_dir),
        )
    return needed


def _artifact_folder(output_dir: str) -> str:
    return os.path.join(output_dir, "adapter")


def _train(
    engine: Any,
    setup: Setup,
    job: Job,
    features: input_pipeline.Features,
    schedule: Schedule,
    first_step: int,
) -> None:
    """Trains, or goes on at `first_step`, and writes the adapter artifact."""
    if first_step < schedule.num_train_steps:
        if setup.method.first_phase:
            job = _train_first_phase(engine, setup, job, features, schedule)
        _run_steps(engine, setup, job, features, schedule, first_step)
    else:
        logging.info("already trained to step %d", first_step)
    if engine.is_chief:
        _write_artifact(engine, setup, job, features, schedule)


def _run_steps(
    engine: Any,
    setup: Setup,
    job: Job,
    features: input_pipeline.Features,
    schedule: Schedule,
    first_step: int,
) -> None:
    """Trains a job from `first_step` to the schedule's end."""
    training, steps = setup.experiment.training, schedule.num_train_steps
    logging.info(
        "training: %d steps of %d examples, from step %d, learning rate %g%s",
        steps,
        training.batch_size,
        first_step,
        schedule.learning_rate,
        "" if training.learning_rate else f" (of {job.table.method})",
    )
    plan = input_pipeline.TrainPlan(
        features.lengths,
        training.batch_size,
        steps,
        training.seed,
        training.length_pool_batches,
    )
    began = time.monotonic()
    with contextlib.closing(
        TrainingProgress(
            schedule,
            first_step,
            training.batch_size,
            job.output_dir if engine.is_chief else None,
        )
    ) as progress:
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
    seconds = time.monotonic() - began
    logging.info(
        "trained in %.1f s, %.1f examples per second",
        seconds,
        (steps - first_step) * training.batch_size / seconds,
    )


def _first_phase_step(output_dir: str) -> int:
    """How far the first of two trainings has come."""
    _, step = checkpoints.latest_step(os.path.join(output_dir, FIRST_PHASE))
    return step


def _first_phase_table(setup: Setup) -> task_model.ParameterTable:
    """The variables of what is trained before the setup's method."""
    return task_model.list_parameters(
        setup.config, setup.method.first_phase, setup.task.build_head
    )


def _train_first_phase(
    engine: Any,
    setup: Setup,
    job: Job,
    features: input_pipeline.Features,
    schedule: Schedule,
) -> Job:
    """Trains what comes before the method, in a folder of its own.

    A first phase that was interrupted goes on; one that is over is read.

    Returns:
        The job of the method itself, with the values that it starts from.
    """
    method, table = setup.method.first_phase, _first_phase_table(setup)
    folder = os.path.join(job.output_dir, FIRST_PHASE)
    files.prepare_folder(folder)
    initial_values = {
        p.name: setup.initial_values.get(p.name)
        or functools.partial(
            modeling.initial_values, p.name, p.shape, p.initializer, job.seed
        )
        for p in table.parameters
    }
    record = preparation.record(setup, engine, features, schedule)
    record["method"] = str(method)
    run_record.check(folder, record, do_train=True)
    run_record.write(folder, record)
    checkpoint, step = checkpoints.latest_step(folder)
    if checkpoint:
        checkpoints.check_training_checkpoint(checkpoint, table)
    logging.info("phase 1 of 2: %s", method)
    if step < schedule.num_train_steps:
        first = dataclasses.replace(
            job,
            build_model=lambda create: task_model.TaskModel(
                setup.config, method, setup.task.build_head, create
            ),
            table=table,
            initial_values=initial_values,
            output_dir=folder,
        )
        _run_steps(engine, setup, first, features, schedule, step)
    checkpoint, _ = checkpoints.latest_step(folder)
    logging.info("phase 2 of 2: %s", setup.method)
    start = setup.method.second_start(
        [p.name for p in table.parameters if not p.is_added],
        [p.name for p in table.parameters if p.group == "head"],
        lambda name: setup.initial_values[name](),
        checkpoints.open_tensorflow(checkpoint).read,
    )
    values = {
        name: functools.partial(np.asarray, value, np.float32)
        for name, value in start.items()
    }
    return dataclasses.replace(
        job, initial_values={**job.initial_values, **values}
    )


def _write_artifact(
    engine: Any,
    setup: Setup,
    job: Job,
    features: input_pipeline.Features,
    schedule: Schedule,
) -> None:
    """Writes what was trained as an adapter artifact, and its size."""
    checkpoint, _ = checkpoints.latest_step(job.output_dir)
    weights = checkpoints.open_tensorflow(checkpoint)
    values = {p.name: weights.read(p.name) for p in job.table.trained}
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise UserError(
                f"{name} is no number any more after training; lower "
                f"--learning_rate ({schedule.learning_rate}) and choose "
                "another --output_dir"
            )
    method, values = setup.method.finish(setup.config, values)
    if setup.method.changes_few:
        values = adapter_artifact.changes(
            values, lambda name: setup.initial_values[name]()
        )
    folder = _artifact_folder(job.output_dir)
    record = preparation.record(setup, engine, features, schedule)
    record["parameters"]["kept"] = adapter_artifact.count(values)
    config = {
        "checkpoint": os.path.basename(checkpoint),
        **record,
        "method": str(method),
        "trained_with": str(setup.method),
    }
    adapter_artifact.write(folder, config, values)
    run_record.write(job.output_dir, record)
    logging.info("the trained adapter is in %s", folder)


def _write_results(
    output_dir: str, scores: Dict[str, float], step: int, data: Dict[str, str]
) -> Dict[str, float]:
    """Writes `eval_results.txt` and `.json`, and the scores as curves.

    The `.json` also has the fingerprints of the data, by split.
    """
    results: Dict[str, float] = {
        f"eval_{name}": value for name, value in scores.items()
    }
    results["global_step"] = step
    if "loss" in scores:
        results["loss"] = scores["loss"]
    lines: List[str] = [f"{key} = {results[key]}" for key in sorted(results)]
    files.write_text(
        os.path.join(output_dir, "eval_results.txt"), "\n".join(lines) + "\n"
    )
    files.write_json(
        os.path.join(output_dir, "eval_results.json"),
        {**results, "dev_data": data},
    )
    writer = Writer(os.path.join(output_dir, "eval"))
    for name, value in scores.items():
        writer.add_scalar(name, value, step)
    writer.close()
    logging.info("***** Eval results *****\n  %s", "\n  ".join(lines))
    return results
