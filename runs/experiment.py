"""Trains, evaluates and predicts one task once: the order of things.

Nothing in here knows an engine or a flag. Whatever can be wrong with the
user's input is found before the first long step.
"""

import contextlib
import os
import time
from typing import Any, Dict

from absl import logging

import files
import input_pipeline
import task_model
from engines import Job, check_batch_size, choose_engine
from errors import UserError
from optimization import Schedule
from runs import folder_lock, results, training, two_phases
from runs.setup import Experiment, Setup, describe_run, open_all
from weights import google, run_record, training_state


def run(experiment: Experiment) -> Dict[str, float]:
    """Does what the experiment asks for: train, evaluate, predict.

    Returns:
        The evaluation's results under BERT's key names; empty without one.

    Raises:
        UserError: anything that the user can mend.
    """
    with contextlib.ExitStack() as until_end:
        return _run(experiment, until_end)


def _run(
    experiment: Experiment, until_end: contextlib.ExitStack
) -> Dict[str, float]:
    if not (experiment.do_train or experiment.do_eval or experiment.do_predict):
        raise UserError(
            "nothing to do: pass --do_train, --do_eval or --do_predict"
        )
    google.check_name(experiment.output_dir, "--output_dir")
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
    setup = open_all(experiment)
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
        until_end.enter_context(folder_lock.hold(experiment.output_dir))
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
        schedule = training.make_schedule(
            setup, examples["train"], features["train"]
        )
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
    record = describe_run(setup, engine, features.get("train"), schedule)
    run_record.check(
        experiment.output_dir, record, setup.base, experiment.do_train
    )
    if engine.is_chief:
        training_state.recover(experiment.output_dir)
    checkpoint, first_step = training_state.latest_step(experiment.output_dir)
    if checkpoint:
        training_state.check_training_checkpoint(
            checkpoint, {p.name: p.shape for p in setup.table.trained}
        )
        named = setup.trained and files.absolute(setup.trained)
        if not experiment.do_train and named not in (
            None,
            files.absolute(checkpoint),
        ):
            raise UserError(
                f"{experiment.output_dir} holds a training's {checkpoint}; "
                f"pass another --output_dir to use {named}"
            )
    resumed = bool(
        checkpoint or two_phases.first_phase_step(experiment.output_dir)
    )
    if experiment.do_train:
        if engine.is_chief:
            files.check_disk_space(
                experiment.output_dir,
                _needed_space(setup, schedule, first_step),
            )
            files.prepare_folder(results.artifact_folder(experiment.output_dir))
            run_record.write(experiment.output_dir, record, setup.base)
        _train(engine, setup, job, features["train"], schedule, first_step)
    if not engine.is_chief:
        logging.info("the chief evaluates and writes the results")
        return {}
    _, step = training_state.latest_step(experiment.output_dir)
    step = step or setup.step
    found: Dict[str, float] = {}
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
        measured = task.evaluate(examples[split], features[split], predictions)
        end = f"_{suffix}" if suffix else ""
        scores.update(
            {f"{name}{end}": value for name, value in measured.items()}
        )
        for path in task.write_report(
            experiment.output_dir, features[split], predictions, suffix
        ):
            logging.info("more of the evaluation is in %s", path)
    if dev_splits:
        data = {split: features[split].fingerprint() for _, split in dev_splits}
        found = results.write_results(experiment.output_dir, scores, step, data)
    for suffix, split in test_splits:
        predictions = predict(split, experiment.predict_batch_size, "predict")
        for path in task.write_predictions(
            experiment.output_dir, examples[split], predictions, suffix
        ):
            logging.info("predictions written to %s", path)
    is_new = experiment.do_train and first_step < schedule.num_train_steps
    # Of several workers none knows what the others took.
    if is_new and engine.workers == 1:
        results.write_cost(
            experiment.output_dir, resumed, time.monotonic() - began
        )
    return found


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
            job = two_phases.train_first_phase(
                engine, setup, job, features, schedule
            )
        training.run_steps(engine, setup, job, features, schedule, first_step)
    else:
        logging.info("already trained to step %d", first_step)
    if engine.is_chief:
        results.write_artifact(engine, setup, job, features, schedule)


def _needed_space(setup: Setup, schedule: Schedule, first_step: int) -> int:
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
            training_state.KEPT_CHECKPOINTS
            + 1
            - training_state.count_checkpoints(folder),
        )
        return new * table.trained_count * 4 * 3

    # The artifact is written in any case.
    needed = setup.table.trained_count * 4
    needed += of(setup.table, output_dir, first_step)
    if setup.method.first_phase and not first_step:
        needed += of(
            two_phases.first_phase_table(setup),
            os.path.join(output_dir, two_phases.FIRST_PHASE),
            two_phases.first_phase_step(output_dir),
        )
    return needed
