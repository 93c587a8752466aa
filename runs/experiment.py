"""Trains, evaluates and predicts one task once: the order of things.

Nothing in here knows an engine or a flag. Whatever can be wrong with the
user's input is found before the first long step.
"""

import contextlib
import os
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from absl import logging

import files
import folder_lock
import task_model
from engines import Job, check_batch_size, choose_engine
from engines.prediction import check_finite
from errors import UserError
from input_pipeline import Features
from optimization import Schedule
from runs import results, training, two_phases
from runs.setup import (
    Experiment,
    Model,
    Setup,
    complete,
    describe_run,
    describe_settings,
    open_model,
)
from tasks.base import SplitNames
from weights import google, run_record, training_state


class Splits(NamedTuple):
    """The splits beside the training one.

    Attributes:
        dev: those to evaluate.
        test: those to predict; may be the same.
    """

    dev: SplitNames
    test: SplitNames

    @property
    def names(self) -> List[str]:
        """The name of each one, once."""
        return list(dict.fromkeys(name for _, name in (*self.dev, *self.test)))


def run(experiment: Experiment) -> Dict[str, float]:
    """Does what the experiment asks for: train, evaluate, predict.

    Returns:
        The evaluation's results under BERT's key names; empty without one.

    Raises:
        UserError: anything that the user can mend.
    """
    _check_request(experiment)
    began = time.monotonic()
    engine = _start_engine(experiment)
    model = open_model(experiment)
    _compare_settings(model)
    splits = _choose_splits(experiment)
    setup, rows = _read(model, splits)
    _compare_settings(setup)
    logging.info("%s", "\n" + setup.table.to_text())
    with _own_folder(engine, experiment.output_dir):
        return _run_in_folder(engine, setup, splits, rows, began)


def _run_in_folder(
    engine: Any,
    setup: Setup,
    splits: Splits,
    rows: Dict[str, Any],
    began: float,
) -> Dict[str, float]:
    """Does what needs the texts, which it drops, and writes the files.

    Args:
        engine: what runs the model.
        setup: what was opened.
        splits: those to evaluate and to predict.
        rows: by split.
        began: when the run began, in seconds.
    """
    experiment = setup.experiment
    checkpoint, first_step = _find_checkpoint(setup)
    resumed = bool(
        checkpoint or two_phases.first_phase_step(experiment.output_dir)
    )
    features = _tokenize(setup, rows)
    schedule = None
    if experiment.do_train:
        schedule = training.make_schedule(setup, features["train"])
    record = describe_run(setup, engine, features.get("train"), schedule)
    run_record.check(
        experiment.output_dir, record, setup.base, experiment.do_train
    )
    job = _make_job(engine, setup)
    if experiment.do_train:
        job = _train(
            engine, setup, job, record, features.pop("train"), schedule
        )
    if not engine.is_chief:
        logging.info("the chief evaluates and writes the results")
        return {}
    answers = _answer(engine, setup, job, splits, rows, features)
    found = _evaluate(setup, splits, rows, features, answers)
    _write_predictions(setup, splits, rows, answers)
    # Of several workers none knows what the others took.
    if schedule and first_step < schedule.num_train_steps:
        if engine.workers == 1:
            results.write_cost(
                experiment.output_dir, resumed, time.monotonic() - began
            )
    return found


@contextlib.contextmanager
def _own_folder(engine: Any, output_dir: str) -> Iterator[None]:
    """Keeps others out of the output folder, and its state in order.

    Raises:
        UserError: another run is in it, or it cannot be written.
    """
    with contextlib.ExitStack() as until_end:
        if engine.is_chief:
            files.prepare_folder(output_dir)
            until_end.enter_context(folder_lock.hold(output_dir))
            training_state.recover(output_dir)
        yield


def _check_request(experiment: Experiment) -> None:
    """Refuses what asks for nothing, or for a folder that cannot be one."""
    if not (experiment.do_train or experiment.do_eval or experiment.do_predict):
        raise UserError(
            "nothing to do: pass --do_train, --do_eval or --do_predict"
        )
    google.check_name(experiment.output_dir, "--output_dir")


def _start_engine(experiment: Experiment) -> Any:
    """Makes the engine, whose devices can take the training's batches."""
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
    return engine


def _compare_settings(model: Model) -> None:
    """Refuses a folder of another run, by what is known of this one so far."""
    experiment = model.experiment
    run_record.check(
        experiment.output_dir,
        describe_settings(model),
        model.base,
        experiment.do_train,
        partial=True,
    )


def _choose_splits(experiment: Experiment) -> Splits:
    """The splits that are asked for."""
    task = experiment.task
    dev = task.dev_splits if experiment.do_eval else ()
    test = task.test_splits if experiment.do_predict else ()
    if test and dev and task.test_is_dev:
        test = dev
    return Splits(dev, test)


def _read(model: Model, splits: Splits) -> Tuple[Setup, Dict[str, Any]]:
    """Reads the splits, and that of training if it is asked for.

    Returns:
        The model for the task with its labels; the rows by split.
    """
    names = ["train"] if model.experiment.do_train else []
    names += splits.names
    task, rows = model.task.read(model.experiment.data_dir, names)
    return complete(model, task), rows


def _find_checkpoint(setup: Setup) -> Tuple[Any, int]:
    """The folder's newest checkpoint, found whole, and its step, or (None, 0).

    Raises:
        UserError: it is damaged, or is not what is to be evaluated.
    """
    experiment = setup.experiment
    checkpoint, step = training_state.latest_step(experiment.output_dir)
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
    return checkpoint, step


def _tokenize(setup: Setup, rows: Dict[str, Any]) -> Dict[str, Features]:
    """Makes the features of every split.

    Args:
        setup: task and tokenizer.
        rows: by split; those of training are taken out, of the others stays
            what the task keeps.
    """
    features = {}
    for split in list(rows):
        read = rows.pop(split)
        about = setup.task.summarize(read)
        logging.info(
            "%s: %d examples%s", split, len(read), about and f": {about}"
        )
        features[split] = setup.task.featurize(
            read, setup.tokenizer, setup.experiment.max_seq_length
        )
        if len(features[split]) != len(read):
            logging.info(
                "%s: %d examples make %d windows of at most %d tokens",
                split,
                len(read),
                len(features[split]),
                setup.experiment.max_seq_length,
            )
        if split != "train":
            rows[split] = setup.task.keep(read)
    return features


def _make_job(engine: Any, setup: Setup) -> Job:
    """What the engine needs to build the model."""
    experiment = setup.experiment
    is_compiled = experiment.hardware.use_tpu or experiment.use_xla
    return Job(
        build_model=lambda create: task_model.TaskModel(
            setup.config, setup.method, setup.task.build_head, create
        ),
        table=setup.table,
        initial_values=setup.initial_values,
        output_dir=experiment.output_dir,
        seed=experiment.training.seed,
        # Compilers need one shape.
        length=experiment.max_seq_length if is_compiled else None,
        parts=experiment.training.gradient_accumulation_steps,
        lanes=engine.lanes,
        share_layers=not experiment.hardware.use_tpu,
        # A TPU's graph is compiled as it is.
        use_xla=experiment.use_xla and not experiment.hardware.use_tpu,
        compute_dtype=experiment.compute_dtype,
        adam_bias_correction=experiment.training.adam_bias_correction,
    )


def _train(
    engine: Any,
    setup: Setup,
    job: Job,
    record: Dict[str, Any],
    features: Features,
    schedule: Schedule,
) -> Job:
    """Trains, or goes on with it, and writes `run.json` and the artifact.

    Returns:
        The job that was trained, with the values that it started from.

    Raises:
        UserError: the disk is too full.
    """
    _, first_step = training_state.latest_step(job.output_dir)
    if engine.is_chief:
        files.check_disk_space(
            job.output_dir, _needed_space(setup, schedule, first_step)
        )
        files.prepare_folder(results.artifact_folder(job.output_dir))
        run_record.write(job.output_dir, record, setup.base)
    if first_step < schedule.num_train_steps:
        if setup.method.first_phase:
            job = two_phases.train_first_phase(
                engine, setup, job, features, schedule
            )
        training.run_steps(engine, setup, job, features, schedule, first_step)
    else:
        logging.info("already trained to step %d", first_step)
    if engine.is_chief:
        results.write_artifact(setup, job, record, schedule)
    return job


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
        kept = training_state.count_checkpoints(folder)
        # Damaged ones are never deleted, so that there may be any number.
        more = max(1, training_state.KEPT_CHECKPOINTS + 1 - kept)
        new = min(1 + (left - 1) // every, more)
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


def _answer(
    engine: Any,
    setup: Setup,
    job: Job,
    splits: Splits,
    rows: Dict[str, Any],
    features: Dict[str, Features],
) -> Dict[str, Any]:
    """What the task decodes of the model's outputs, by split.

    Raises:
        UserError: an output is no number.
    """
    sizes = (
        ("predict", splits.test, setup.experiment.predict_batch_size),
        # A split that is both is evaluated.
        ("eval", splits.dev, setup.experiment.eval_batch_size),
    )
    how = {name: (size, what) for what, of, size in sizes for _, name in of}
    answers = {}
    with engine.predictor(job) as predictor:
        for name in splits.names:
            outputs = {}
            # There are no rows where no context has a token.
            if len(features[name]):
                outputs = predictor.predict(features[name], *how[name])
                check_finite(outputs, name)
            answers[name] = setup.task.decode(
                rows[name], features[name], outputs
            )
    return answers


def _evaluate(
    setup: Setup,
    splits: Splits,
    rows: Dict[str, Any],
    features: Dict[str, Features],
    answers: Dict[str, Any],
) -> Dict[str, float]:
    """Scores the dev splits, if there are any, and writes the results.

    Returns:
        The results under BERT's key names.
    """
    if not splits.dev:
        return {}
    task, output_dir = setup.task, setup.experiment.output_dir
    scores: Dict[str, float] = {}
    for suffix, name in splits.dev:
        measured = task.evaluate(rows[name], features[name], answers[name])
        end = f"_{suffix}" if suffix else ""
        scores.update(
            {f"{score}{end}": value for score, value in measured.items()}
        )
        for path in task.write_report(
            output_dir, rows[name], features[name], answers[name], suffix
        ):
            logging.info("more of the evaluation is in %s", path)
    data = {name: features[name].fingerprint() for _, name in splits.dev}
    step = training_state.latest_step(output_dir)[1] or setup.step
    return results.write_results(output_dir, scores, step, data)


def _write_predictions(
    setup: Setup, splits: Splits, rows: Dict[str, Any], answers: Dict[str, Any]
) -> None:
    """Writes the predictions for the test splits."""
    for suffix, name in splits.test:
        for path in setup.task.write_predictions(
            setup.experiment.output_dir, rows[name], answers[name], suffix
        ):
            logging.info("predictions written to %s", path)
