"""Trains, evaluates and predicts one task once: the order of things.

Nothing in here knows an engine or a flag. Whatever can be wrong with the
user's input is found before the first long step.
"""

import contextlib
import dataclasses
import os
import time
from typing import Any, Dict, Iterator, List, Tuple

from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.checkpoints import (
    dev_scores,
    google,
    run_record,
    training_state,
)
from adapter_bert.data.input_pipeline import Features
from adapter_bert.errors import UserError
from adapter_bert.methods import fusion
from adapter_bert.optimization import Schedule
from adapter_bert.tasks import task_model
from adapter_bert.training import (
    evaluation,
    frozen_layers,
    fusion_report,
    loop,
    multi_worker,
    results,
    two_phases,
)
from adapter_bert.training.compute_dtype import AUTO, choose_dtype
from adapter_bert.training.engines import Job, check_batch_size, choose_engine
from adapter_bert.training.evaluation import Splits
from adapter_bert.training.settings import Experiment
from adapter_bert.training.setup import (
    Model,
    Setup,
    complete,
    describe_run,
    describe_settings,
    open_model,
)


def run(experiment: Experiment) -> Dict[str, float]:
    """Does what the experiment asks for: train, evaluate, predict.

    Returns:
        The evaluation's results under BERT's key names; empty without one.

    Raises:
        UserError: anything that the user can mend.
    """
    _check_request(experiment)
    began = time.monotonic()
    splits = _choose_splits(experiment)
    experiment.task.check_files(experiment.data_dir, _names(experiment, splits))
    engine = _start_engine(experiment)
    experiment = dataclasses.replace(
        experiment, compute_dtype=_choose_dtype(experiment)
    )
    model = open_model(experiment)
    _compare_settings(model)
    setup, rows = _read(model, splits)
    _compare_settings(setup)
    frozen_layers.check(setup)
    logging.info("%s", "\n" + setup.table.to_text())
    with _own_folder(engine, setup):
        return _run_in_folder(engine, setup, splits, rows, began)


def _run_in_folder(
    engine: Any,
    setup: Setup,
    splits: Splits,
    rows: Dict[str, Any],
    began: float,
) -> Dict[str, float]:
    """Does what needs the texts (`rows`, by split), and writes the files."""
    experiment = setup.experiment
    checkpoint, first_step = _find_checkpoint(setup)
    resumed = bool(
        checkpoint or two_phases.first_phase_step(experiment.output_dir)
    )
    features = _tokenize(setup, rows)
    schedule = None
    if experiment.do_train:
        schedule = loop.make_schedule(setup, features["train"])
    record = describe_run(setup, engine, features.get("train"), schedule)
    record["cut_rows"] = {name: f.cut_rows for name, f in features.items()}
    if experiment.do_train and experiment.training.keep_best:
        # They decide what the training comes to.
        record["training"]["dev_data"] = evaluation.fingerprints(
            splits, features
        )
    run_record.check(
        experiment.output_dir, record, setup.base, experiment.do_train
    )
    job = _make_job(engine, setup)
    read = evaluation.Rows(splits, rows, features)
    if experiment.do_train:
        job = _train(
            engine, setup, job, record, features.pop("train"), schedule, read
        )
    elif engine.is_chief:
        training_state.recover(experiment.output_dir)
    if not engine.is_chief:
        logging.info("the chief evaluates and writes the results")
        return {}
    with engine.predictor(job) as predictor:
        evaluation.load_best(setup, predictor)
        answers, shown = evaluation.answer(setup, predictor, read, splits)
    found = _evaluate(setup, read, answers)
    _write_shown(setup, splits, shown)
    _write_predictions(setup, splits, rows, answers)
    # Of several workers none knows what the others took.
    if schedule and training_state.latest_step(experiment.output_dir)[1] > (
        first_step
    ):
        if engine.workers == 1:
            results.write_cost(
                experiment.output_dir, resumed, time.monotonic() - began
            )
    return found


@contextlib.contextmanager
def _own_folder(engine: Any, setup: Setup) -> Iterator[None]:
    """Keeps others out of the output folder.

    Raises:
        UserError: another run is in it, or it cannot be written.
    """
    output_dir = setup.experiment.output_dir
    with contextlib.ExitStack() as until_end:
        if engine.is_chief:
            files.prepare_folder(output_dir)
            until_end.enter_context(folder_lock.hold(output_dir))
            for member in filter(None, setup.task.members):
                files.prepare_folder(os.path.join(output_dir, member))
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
    training = experiment.training
    if experiment.do_train and training.eval_steps and not engine.can_pause:
        raise UserError(
            "--eval_steps, --keep_best and --early_stopping cannot be used "
            "with TPUEstimator on a TPU; pass --engine=strategy"
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


def _choose_dtype(experiment: Experiment) -> str:
    """What the run computes in: of `auto`, as it began.

    Raises:
        UserError: several processes would choose, each for itself.
    """
    if experiment.compute_dtype == AUTO and multi_worker.is_cluster():
        raise UserError(
            "--compute_dtype=auto needs one process, but TF_CONFIG names "
            "several; pass float32 or bfloat16"
        )
    run = run_record.read_run(experiment.output_dir) or {}
    known = (run.get("training") or {}).get("compute_dtype")
    use_tpu = experiment.hardware.use_tpu
    return choose_dtype(experiment.compute_dtype, use_tpu, known)


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
    if experiment.max_eval_examples and {*dict(dev).values()} & {
        *dict(test).values()
    }:
        raise UserError(
            "--max_eval_examples would leave out predictions, since the same "
            "file is evaluated and predicted; do one after the other"
        )
    return Splits(dev, test)


def _names(experiment: Experiment, splits: Splits) -> List[str]:
    """The splits, after that of training if it is asked for."""
    return [*(["train"] if experiment.do_train else []), *splits.names]


def _read(model: Model, splits: Splits) -> Tuple[Setup, Dict[str, Any]]:
    """Reads the splits, and that of training if it is asked for.

    Returns:
        The model for the task with its labels; the rows by split.
    """
    names = _names(model.experiment, splits)
    task, rows = model.task.read(model.experiment.data_dir, names)
    most = dict.fromkeys(
        (name for _, name in splits.dev), model.experiment.max_eval_examples
    )
    most["train"] = model.experiment.max_train_examples
    for name in names:
        if most.get(name):
            rows[name] = task.first(rows[name], most[name])
    if "train" in rows:
        task = task.learn(rows["train"])
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
        result = dev_scores.best_checkpoint(experiment.output_dir) or checkpoint
        if not experiment.do_train and named not in (
            None,
            files.absolute(result),
        ):
            raise UserError(
                f"{experiment.output_dir} holds a training's {result}; "
                f"pass another --output_dir to use {named}"
            )
    return checkpoint, step


def _tokenize(setup: Setup, rows: Dict[str, Any]) -> Dict[str, Features]:
    """Makes the features of every split.

    Of `rows`, those of training are taken out, of the others stays what the
    task keeps.
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


def _make_job(engine: Any, setup: Setup) -> Job:
    """What the engine needs to build the model."""
    experiment = setup.experiment
    is_compiled = experiment.hardware.use_tpu or experiment.use_xla
    layers = setup.config.num_hidden_layers
    lowest = frozen_layers.lowest_layer(setup.table, layers)
    return Job(
        build_model=lambda create: task_model.TaskModel(
            setup.config, setup.method, setup.task.build_head, create, lowest
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
        observes=bool(setup.method.observes),
        # Workers send one another first values, which they cannot in bfloat16.
        narrow=frozenset()
        if engine.workers > 1
        else task_model.narrow_variables(setup.table),
        predict_tokens=experiment.predict_batch_tokens,
    )


def _train(
    engine: Any,
    setup: Setup,
    job: Job,
    record: Dict[str, Any],
    features: Features,
    schedule: Schedule,
    rows: evaluation.Rows,
) -> Job:
    """Trains, or goes on with it, and writes `run.json` and the artifact.

    Steps are scored on `rows`, those of the other splits.

    Returns:
        The job that was trained, with the values that it started from.

    Raises:
        UserError: the disk is too full, or as of `FrozenLayers`.
    """
    _, first_step = training_state.latest_step(job.output_dir)
    frozen = None
    if setup.keeps_frozen_outputs and first_step < schedule.num_train_steps:
        frozen = frozen_layers.FrozenLayers(setup, job, features)
    watch = evaluation.Watch(setup, schedule, rows)
    has_first_phase = bool(
        setup.method.first_phase and first_step < schedule.num_train_steps
    )
    if has_first_phase:
        two_phases.check_first_phase(
            engine, setup, job.output_dir, features, schedule
        )
    if engine.is_chief:
        files.check_disk_space(
            job.output_dir, _needed_space(setup, schedule, first_step)
        )
        for member in setup.task.members:
            files.prepare_folder(
                results.artifact_folder(os.path.join(job.output_dir, member))
            )
        # What refuses the folder has done so before anything in it is changed.
        training_state.recover(job.output_dir)
        run_record.write(
            job.output_dir, record, setup.base, setup.parts.folders
        )
    if has_first_phase:
        job = two_phases.train_first_phase(
            engine, setup, job, features, schedule
        )
    if engine.is_chief:
        watch.catch_up(engine, job, first_step)
    if watch.is_over(first_step):
        logging.info("already trained to step %d", first_step)
    else:
        known = frozen.read(engine) if frozen else features
        loop.run_steps(
            engine,
            setup,
            job,
            features,
            schedule,
            first_step,
            watch.pause,
            known,
        )
    if engine.is_chief:
        results.write_artifact(setup, job, record, schedule)
    return job


def _needed_space(setup: Setup, schedule: Schedule, first_step: int) -> int:
    """Bytes that a training from `first_step` on needs for what it writes."""
    output_dir = setup.experiment.output_dir
    every = setup.experiment.training.save_checkpoints_steps
    scored = evaluation.steps_to_score(setup, schedule)

    def of(table: task_model.ParameterTable, folder: str, first: int) -> int:
        left = schedule.num_train_steps - first
        if not left:
            return 0
        # At every interval and at the end; one more than are kept, while it is
        # written. Each variable has two slots.
        kept = training_state.count_checkpoints(folder)
        # Damaged ones are never deleted, so that there may be any number.
        more = max(1, training_state.KEPT_CHECKPOINTS + 1 - kept)
        new = min(1 + (left - 1) // every + len(scored), more)
        return new * table.trained_count * 4 * 3

    # Artifacts are written in any case, and the best step beside the last.
    needed = setup.table.trained_count * 4 * len(setup.task.members)
    if setup.experiment.training.keep_best:
        needed += setup.table.trained_count * 4 * 2
    needed += of(setup.table, output_dir, first_step)
    if setup.method.first_phase and not first_step:
        needed += of(
            two_phases.first_phase_table(setup),
            os.path.join(output_dir, two_phases.FIRST_PHASE),
            two_phases.first_phase_step(output_dir),
        )
    return needed


def _evaluate(
    setup: Setup, rows: evaluation.Rows, answers: Dict[str, Any]
) -> Dict[str, float]:
    """Scores the dev splits, if there are any, and writes the results.

    Returns:
        The results under BERT's key names.
    """
    dev, output_dir = rows.splits.dev, setup.experiment.output_dir
    if not dev:
        return {}
    tables = evaluation.score(setup, rows, answers)
    for suffix, name in dev:
        for path in setup.task.write_report(
            output_dir,
            rows.kept[name],
            rows.features[name],
            answers[name],
            suffix,
        ):
            logging.info("more of the evaluation is in %s", path)
    _, step = training_state.latest_step(output_dir)
    best = dev_scores.best_checkpoint(output_dir)
    if best:
        step = training_state.step_of(best)
    found = dev_scores.read(output_dir)
    if not found or step not in found.by_step:
        results.write_curves(output_dir, tables[""][0], step or setup.step)
    written = {
        part: results.write_results(
            os.path.join(output_dir, part), scores, step or setup.step, data
        )
        for part, (scores, data) in tables.items()
    }
    results.log_results(written[""])
    return written[""]


def _write_shown(
    setup: Setup, splits: Splits, shown: Dict[str, evaluation.Shown]
) -> None:
    """Writes what the method's hooks show of the dev splits."""
    for suffix, name in splits.dev:
        if fusion.ATTENTION in shown[name]:
            attention = fusion_report.shares(
                setup.method, setup.config, shown[name][fusion.ATTENTION]
            )
            paths = fusion_report.write(
                setup.experiment.output_dir, attention, suffix, setup.task.name
            )
            logging.info("how much of each adapter is used: %s", paths[1])


def _write_predictions(
    setup: Setup, splits: Splits, rows: Dict[str, Any], answers: Dict[str, Any]
) -> None:
    """Writes the predictions for the test splits."""
    for suffix, name in splits.test:
        for path in setup.task.write_predictions(
            setup.experiment.output_dir, rows[name], answers[name], suffix
        ):
            logging.info("predictions written to %s", path)
