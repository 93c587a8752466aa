"""Trains, evaluates and predicts one task once, with any engine."""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.bert import onednn
from adapter_bert.checkpoints import (
    adapter_artifact,
    dev_scores,
    google,
    run_record,
    training_state,
)
from adapter_bert.checkpoints.weights import check_shape
from adapter_bert.data.input_pipeline import Features
from adapter_bert.errors import UserError
from adapter_bert.optimization import Schedule
from adapter_bert.tasks import calibration, novelty, task_model
from adapter_bert.tasks.new_labels import NewLabels
from adapter_bert.tasks.task import Task
from adapter_bert.training import (
    devices,
    evaluation,
    loop,
    multi_worker,
    run_files,
)
from adapter_bert.training.compute_dtype import (
    AUTO,
    FLOAT32,
    INT8,
    choose_dtype,
)
from adapter_bert.training.engines import (
    NO_PAUSE,
    Engine,
    check_batch_size,
    choose_engine,
)
from adapter_bert.training.evaluation import Splits
from adapter_bert.training.settings import LAYERS, Experiment
from adapter_bert.training.setup import (
    Model,
    Setup,
    complete,
    describe_run,
    describe_settings,
    lowest_layer,
    open_model,
)
from adapter_bert.training.training_step import Job


@dataclasses.dataclass(frozen=True)
class State:
    """Holds a run folder's newest checkpoint, its step, and the best one."""

    newest: Optional[str]
    step: int
    best: Optional[str]


def run(experiment: Experiment) -> dict[str, float]:
    """Trains, evaluates and predicts; gives dev scores under BERT's names."""
    began = time.monotonic()
    if not (experiment.do_train or experiment.do_eval or experiment.do_predict):
        raise UserError(
            "nothing to do: pass --do_train, --do_eval or --do_predict"
        )
    google.check_name(experiment.output_dir, "--output_dir")
    splits = _choose_splits(experiment)
    names = [*(["train"] if experiment.do_train else []), *splits.names]
    experiment.task.check_files(experiment.data_dir, names)
    engine = start_engine(experiment)
    if experiment.compute_dtype != FLOAT32:
        experiment = dataclasses.replace(
            experiment, compute_dtype=_choose_dtype(experiment)
        )
    model = open_model(experiment)
    if isinstance(model.task, NewLabels):
        from adapter_bert.training import imprinting

        imprinting.check(model)
    # As soon as more is known, each before a longer step.
    refuse_others = functools.partial(
        run_record.check,
        experiment.output_dir,
        do_train=experiment.do_train,
    )
    refuse_others(record=describe_settings(experiment, model), partial=True)
    task, rows = _read(experiment, model.task, splits, names)
    if experiment.calibrate:
        _measured_rows(task, rows, splits)
    if experiment.score_novelty:
        _check_novelty(model, rows["train"])
    if experiment.do_train and model.sources.description:
        _warn_of_loss(experiment, model)
    setup = complete(experiment, model, task)
    refuse_others(
        record=describe_settings(experiment, model, setup), partial=True
    )
    if experiment.do_train and experiment.cache_frozen_layers:
        from adapter_bert.training import frozen_outputs

        frozen_outputs.check(setup)
    logging.info("%s", "\n" + setup.table.to_text())
    with _own_folder(engine, setup):
        state = _find_state(setup)
        features = _tokenize(setup, rows)
        record, schedule = _describe(engine, setup, features, splits)
        refuse_others(record=record)
        job = make_job(engine, setup)
        first_step, resumed = state.step, False
        read = evaluation.Rows(splits, rows, features)
        train = features.pop("train", None)
        if experiment.do_train:
            job, state, resumed = _train(
                engine,
                setup,
                job,
                record,
                train,
                schedule,
                read,
                state,
            )
        elif engine.is_chief:
            training_state.recover(experiment.output_dir)
        if not engine.is_chief:
            logging.info("the chief evaluates and writes the results")
            return {}
        results = _answer(engine, setup, job, read, state, train)
        # Of several workers none knows what the others took.
        if state.step > first_step and engine.workers == 1:
            run_files.write_cost(
                experiment.output_dir, resumed, time.monotonic() - began
            )
    return results


@contextlib.contextmanager
def _own_folder(engine: Engine, setup: Setup) -> Iterator[None]:
    if not engine.is_chief:
        yield
        return
    output_dir = setup.experiment.output_dir
    files.prepare_folder(output_dir)
    with folder_lock.hold(output_dir):
        for member in filter(None, setup.task.members):
            files.prepare_folder(os.path.join(output_dir, member))
        yield


def start_engine(experiment: Experiment) -> Engine:
    """Makes the engine, whose devices can take the training's batches."""
    if experiment.base_dtype == INT8:
        _check_int8(experiment)
    make_engine, why = choose_engine(experiment.engine)
    logging.info("engine: %s (%s)", make_engine.__name__, why)
    engine = make_engine(experiment.hardware)
    training = experiment.training
    if experiment.do_train and training.eval_steps and not engine.can_pause:
        raise UserError(
            "--eval_steps, --keep_best and --early_stopping cannot be used "
            "with TPUEstimator on a TPU; pass --engine=strategy"
        )
    if (
        experiment.do_train
        and experiment.task.compares_rows
        and not engine.can_compare
    ):
        raise UserError(
            f"the task {experiment.task.name} compares the rows of all "
            "devices, which TPUEstimator cannot on a TPU; pass "
            "--engine=strategy"
        )
    engine.check_devices()
    if experiment.do_train:
        check_batch_size(
            training.batch_size,
            engine.shards,
            training.gradient_accumulation_steps,
        )
        if training.early_stopping and engine.workers > 1:
            raise UserError(
                "--early_stopping needs one process, but TF_CONFIG names "
                f"{engine.workers}"
            )
    return engine


def _check_int8(experiment: Experiment) -> None:
    if experiment.hardware.use_tpu:
        raise UserError(
            "--base_dtype=int8 is for CPUs and GPUs; leave it out on a TPU"
        )
    if multi_worker.is_cluster():
        raise UserError(
            "--base_dtype=int8 needs one process, but TF_CONFIG names several"
        )


def _choose_dtype(experiment: Experiment) -> str:
    if experiment.compute_dtype == AUTO and multi_worker.is_cluster():
        raise UserError(
            "--compute_dtype=auto needs one process, but TF_CONFIG names "
            "several; pass float32 or bfloat16"
        )
    run = run_record.read_run(experiment.output_dir) or {}
    begun_with = (run.get("training") or {}).get("compute_dtype")
    use_tpu = experiment.hardware.use_tpu
    return choose_dtype(experiment.compute_dtype, use_tpu, begun_with)


def _choose_splits(experiment: Experiment) -> Splits:
    task = experiment.task
    dev = task.dev_splits if experiment.do_eval else ()
    test = task.test_splits if experiment.do_predict else ()
    if test and dev and task.test_is_dev:
        test = dev
    if experiment.max_eval_examples and {*dict(dev).values()} & {
        *dict(test).values()
    }:
        raise UserError(
            "--max_eval_examples would leave out predictions, since the same "
            "file is evaluated and predicted; do one after the other"
        )
    return Splits(dev, test)


def _read(
    experiment: Experiment, task: Task, splits: Splits, names: list[str]
) -> tuple[Task, dict[str, Any]]:
    task, rows = task.read(experiment.data_dir, names)
    most = dict.fromkeys(
        (name for _, name in splits.dev), experiment.max_eval_examples
    )
    most["train"] = experiment.max_train_examples
    for name in names:
        if most.get(name):
            rows[name] = task.first(rows[name], most[name])
    if "train" in rows:
        task = task.learn(rows["train"])
    return task, rows


def _measured_rows(
    task: Task, rows: dict[str, Any], splits: Splits
) -> tuple[str, np.ndarray]:
    """Names the dev set of a calibration, and the rows that measure it."""
    _, name = splits.dev[0]
    dev = rows[name]
    return name, calibration.measured_rows(dev.texts, task.strata(dev))


def _warn_of_loss(experiment: Experiment, model: Model) -> None:
    settings = model.sources.description.get("task_settings") or {}
    for key, flag, is_made in (
        (calibration.CALIBRATION, "calibrate", experiment.calibrate),
        (novelty.NOVELTY, "score_novelty", experiment.score_novelty),
    ):
        if key in settings and not is_made:
            logging.warning(
                "the %s of %s is of what it was trained on before, and left "
                "out; --%s=true fits another one",
                key,
                model.sources.trained.source,
                flag,
            )


def _check_novelty(model: Model, rows: Any) -> None:
    if len(rows) < novelty.LEAST_ROWS:
        raise UserError(
            f"--score_novelty: found {len(rows)} training rows, expected at "
            f"least {novelty.LEAST_ROWS}"
        )
    if model.tokenizer.new_tokens:
        raise UserError(
            "--score_novelty reads texts as BERT without the adapter does, "
            "which has no new tokens; leave out --score_novelty or --new_tokens"
        )


def _find_state(setup: Setup) -> State:
    experiment, best = setup.experiment, None
    newest, step = training_state.latest_step(experiment.output_dir)
    if newest:
        training_state.check_training_checkpoint(newest, setup.table.saved)
    if experiment.training.keep_best or not experiment.do_train:
        best = dev_scores.best_checkpoint(experiment.output_dir)
    trained = setup.model.sources.trained
    if newest and trained and not experiment.do_train:
        result, named = best or newest, files.absolute(trained.source)
        if named != files.absolute(result):
            raise UserError(
                f"{experiment.output_dir} holds a training's {result}; "
                f"pass another --output_dir to use {named}"
            )
    return State(newest, step, best)


def _tokenize(setup: Setup, rows: dict[str, Any]) -> dict[str, Features]:
    """Makes features by split; `rows` keep what the task needs of others."""
    features = {}
    for split in list(rows):
        read = rows.pop(split)
        about = setup.task.summarize(read)
        logging.info(
            "%s: %d examples%s", split, len(read), about and f": {about}"
        )
        features[split] = setup.task.featurize(
            read, setup.model.tokenizer, setup.experiment.max_seq_length
        )
        cut = features[split].cut_rows, len(read), setup.task.cut_at
        if cut[0]:
            logging.warning("%s: %d of %d examples are cut (--%s)", split, *cut)
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


def make_job(engine: Engine, setup: Setup) -> Job:
    """Gives the job of the run's own method."""
    experiment, model = setup.experiment, setup.model
    config, method = model.config, model.method
    is_compiled = experiment.hardware.use_tpu or experiment.use_xla
    lowest = lowest_layer(setup.table, config.num_hidden_layers)
    parts = experiment.training.gradient_accumulation_steps
    if not is_compiled:
        rows = experiment.training.batch_size // engine.shards // parts
        parts *= devices.divide(rows, engine.lanes)
    return Job(
        build_model=lambda create: task_model.TaskModel(
            config, method, setup.task.build_head, create, lowest
        ),
        table=setup.table,
        initial_values=setup.initial_values,
        output_dir=experiment.output_dir,
        seed=experiment.training.seed,
        # Compilers need one shape.
        length=experiment.max_seq_length if is_compiled else None,
        parts=parts,
        lanes=engine.lanes,
        share_layers=not experiment.hardware.use_tpu,
        # A TPU's graph is compiled as it is.
        use_xla=experiment.use_xla and not experiment.hardware.use_tpu,
        for_accelerator=is_compiled and engine.has_accelerators,
        use_onednn=not is_compiled
        and onednn.is_available(experiment.compute_dtype),
        recompute_layers=experiment.recompute == LAYERS,
        compute_dtype=experiment.compute_dtype,
        adam_bias_correction=experiment.training.adam_bias_correction,
        observes=bool(method.observes),
        # Workers send one another first values, which they cannot in bfloat16.
        narrow=frozenset()
        if engine.workers > 1
        else task_model.narrow_variables(setup.table),
        quantized=setup.quantized,
        predict_tokens=experiment.predict_batch_tokens,
    )


def _describe(
    engine: Engine, setup: Setup, features: dict[str, Features], splits: Splits
) -> tuple[dict[str, Any], Optional[Schedule]]:
    train_features, schedule = features.get("train"), None
    if train_features is not None:
        schedule = loop.make_schedule(setup, train_features)
    record = describe_run(setup, engine, train_features, schedule)
    record["cut_rows"] = {name: f.cut_rows for name, f in features.items()}
    if schedule and setup.experiment.training.keep_best:
        # These rows decide which step is the result.
        record["training"]["dev_data"] = evaluation.fingerprints(
            splits, features
        )
    return record, schedule


def _train(
    engine: Engine,
    setup: Setup,
    job: Job,
    record: dict[str, Any],
    features: Features,
    schedule: Schedule,
    rows: evaluation.Rows,
    state: State,
) -> tuple[Job, State, bool]:
    """Trains, or goes on with it, and writes `run.json` and the artifact.

    `rows` are those of the splits that score steps. Gives the job with the
    values that it started from, the folder's state, and whether an earlier
    process began the training.
    """
    experiment, model, first_step = setup.experiment, setup.model, state.step
    is_over = first_step >= schedule.num_train_steps
    resumed = bool(state.newest)
    if isinstance(setup.task, NewLabels):
        from adapter_bert.training import imprinting

        job, features = imprinting.begin(engine, setup, job, features)
    # Only some runs have these.
    frozen = watch = first_phase = None
    if experiment.cache_frozen_layers and not is_over:
        from adapter_bert.training import frozen_outputs

        frozen = frozen_outputs.FrozenLayers(setup, job, features)
    if experiment.training.eval_steps:
        from adapter_bert.training import early_stopping

        watch = early_stopping.Watch(setup, schedule, rows, first_step)
    if model.method.first_phase and not is_over:
        from adapter_bert.training import two_phases

        first_phase = two_phases.FirstPhase(
            engine, setup, job, features, schedule
        )
        resumed = resumed or first_phase.step > 0
    if engine.is_chief:
        every = experiment.training.save_checkpoints_steps
        left = schedule.num_train_steps - first_step
        scored = len(watch.steps) if watch else 0
        # Every run writes artifacts; the best step is kept in addition.
        copies = len(setup.task.members)
        copies += 2 if experiment.training.keep_best else 0
        needed = setup.table.trained_count * 4 * copies
        needed += setup.table.saved_count * training_state.bytes_per_value(
            job.output_dir, left, every, scored
        )
        if first_phase and not first_step:
            left = schedule.num_train_steps - first_phase.step
            needed += (
                first_phase.table.saved_count
                * training_state.bytes_per_value(
                    first_phase.folder, left, every, scored
                )
            )
        files.check_disk_space(job.output_dir, needed)
        for member in setup.task.members:
            files.prepare_folder(
                os.path.join(job.output_dir, member, run_files.ADAPTER)
            )
        # All refusals of the folder precede the first change in it.
        training_state.recover(job.output_dir)
        run_record.write(
            job.output_dir, record, model.base, model.parts.folders
        )
    if first_phase:
        job = first_phase.train()
    if watch and engine.is_chief:
        watch.catch_up(engine, job, first_step)
    if is_over or watch and watch.is_over(first_step):
        logging.info("already trained to step %d", first_step)
    else:
        newest, step = loop.run_steps(
            engine,
            setup,
            job,
            features,
            schedule,
            first_step,
            watch.pause if watch else NO_PAUSE,
            frozen.read(engine) if frozen else features,
        )
        state = State(newest, step, None)
    if experiment.training.keep_best and engine.is_chief:
        best = dev_scores.best_checkpoint(job.output_dir)
        state = dataclasses.replace(state, best=best)
    if engine.is_chief:
        run_files.write_artifact(
            setup, job, record, schedule, state.best or state.newest
        )
    return job, state, resumed


def _calibrate(
    setup: Setup, rows: evaluation.Rows, answers: dict[str, Any]
) -> Setup:
    """Gives the setup a calibration by dev `answers`, or its adapter's."""
    experiment, task = setup.experiment, setup.task
    output_dir = experiment.output_dir
    if experiment.calibrate:
        name, measured = _measured_rows(task, rows.kept, rows.splits)
        fitted, record = calibration.fit(
            answers[name]["logits"],
            rows.features[name].labels["label_ids"],
            measured,
            experiment.abstain_at,
        )
        task = dataclasses.replace(task, calibration=fitted)
        run_files.write_calibration(output_dir, task.settings, record)
    elif experiment.do_train:
        run_files.forget_calibration(output_dir)
    else:
        trained_here = os.path.join(output_dir, run_files.ADAPTER)
        folder = experiment.adapter or trained_here
        settings = adapter_artifact.settings_of(folder)
        task = calibration.calibrated(task, settings, folder)
    return dataclasses.replace(setup, task=task)


def _score_novelty(
    engine: Engine, setup: Setup, job: Job, train: Features
) -> Setup:
    from adapter_bert.training import frozen_features

    texts = train.unlabelled()
    distinct = novelty.distinct(texts)
    some = texts.take(distinct[novelty.evenly_spaced(len(distinct))])
    sketch = novelty.fit(frozen_features.compute(engine, setup, job, some))
    task = dataclasses.replace(setup.task, novelty=sketch)
    folder = os.path.join(setup.experiment.output_dir, run_files.ADAPTER)
    adapter_artifact.change_settings(folder, task.settings)
    logging.info("answers have a novelty, by %d training texts", len(some))
    return dataclasses.replace(setup, task=task)


def _answer(
    engine: Engine,
    setup: Setup,
    job: Job,
    rows: evaluation.Rows,
    state: State,
    train: Optional[Features],
) -> dict[str, float]:
    output_dir = setup.experiment.output_dir
    with engine.predictor(job) as predictor:
        if state.best:
            weights = google.open_tensorflow(state.best)
            for p in setup.table.trained:
                check_shape(weights, p.name, p.shape)
            predictor.load(
                {p.name: weights.read(p.name) for p in setup.table.trained}
            )
        answers, shown = evaluation.answer(setup, predictor, rows, rows.splits)
        if isinstance(setup.task, NewLabels) and rows.splits.dev:
            from adapter_bert.training import imprinting

            imprinting.measure_forgetting(setup, job, predictor, rows, answers)
    setup = _calibrate(setup, rows, answers)
    if setup.experiment.score_novelty:
        setup = _score_novelty(engine, setup, job, train)
    task = setup.task
    results: dict[str, float] = {}
    if rows.splits.dev:
        tables = evaluation.score(setup, rows, answers)
        for suffix, name in rows.splits.dev:
            about = rows.kept[name], rows.features[name], answers[name]
            for path in task.write_report(output_dir, *about, suffix):
                logging.info("more of the evaluation is in %s", path)
        step = training_state.step_of(state.best) if state.best else state.step
        curve, last_step = dev_scores.read(output_dir), step
        step = step or setup.model.sources.step
        if not curve or last_step not in curve.by_step:
            run_files.write_curves(output_dir, tables[""][0], step)
        written = {
            part: run_files.write_results(
                os.path.join(output_dir, part), scores, step, data
            )
            for part, (scores, data) in tables.items()
        }
        results = written[""]
        run_files.log_results(results)
    for suffix, name in rows.splits.dev:
        if shown[name]:
            from adapter_bert.training import fusion_report

            model, attention = setup.model, shown[name][fusion_report.ATTENTION]
            shares = fusion_report.shares(model.method, model.config, attention)
            paths = fusion_report.write(output_dir, shares, suffix, task.name)
            logging.info("how much of each adapter is used: %s", paths[1])
    for suffix, name in rows.splits.test:
        for path in task.write_predictions(
            output_dir, rows.kept[name], answers[name], suffix
        ):
            logging.info("predictions written to %s", path)
    return results
