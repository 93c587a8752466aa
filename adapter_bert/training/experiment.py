"""Trains, evaluates and predicts one task once, with any engine."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Optional

import numpy as np
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.checkpoints import google, run_record, training_state
from adapter_bert.checkpoints.weights import check_shape
from adapter_bert.errors import UserError
from adapter_bert.tasks.task import SplitNames
from adapter_bert.training import extras, run_files, setup
from adapter_bert.training.engines import (
    Engine,
    check_alone,
    check_batch_size,
    choose_engine,
)
from adapter_bert.training.run import Answers, Run, make_schedule, run_steps
from adapter_bert.training.settings import (
    ADAPTER,
    AUTO,
    FLOAT32,
    INT8,
    Experiment,
)


def run(experiment: Experiment) -> dict[str, float]:
    """Trains, evaluates and predicts; gives dev scores under BERT's names."""
    began, worked = time.monotonic(), time.process_time()
    this = _prepare(experiment)
    with _locked_folder(this):
        _tokenize(this)
        first_step = this.step
        _train(this)
        if not this.engine.is_chief:
            logging.info("the chief evaluates and writes the results")
            return {}
        results = _answer(this)
        # Of several workers none knows what the others took.
        if this.step > first_step and this.engine.workers == 1:
            run_files.write_cost(
                this.folder,
                this.resumed,
                time.monotonic() - began,
                time.process_time() - worked,
            )
    return results


def _prepare(experiment: Experiment) -> Run:
    if not (experiment.do_train or experiment.do_eval or experiment.do_predict):
        raise UserError(
            "nothing to do: pass --do_train, --do_eval or --do_predict"
        )
    folder = experiment.output_dir
    google.check_name(folder, "--output_dir")
    dev, test = _choose_splits(experiment)
    names = ["train"] if experiment.do_train else []
    names += dict.fromkeys(name for _, name in (*dev, *test))
    experiment.task.check_files(experiment.data_dir, names)
    engine, experiment = start(experiment)
    model = setup.open_model(experiment)
    record = setup.describe_settings(model)
    run_record.check(folder, record, experiment.do_train, partial=True)
    task, rows = model.task.read(experiment.data_dir, names)
    most = dict.fromkeys(
        (name for _, name in dev), experiment.max_eval_examples
    )
    most["train"] = experiment.max_train_examples
    for name in names:
        if most.get(name):
            rows[name] = task.first(rows[name], most[name])
    if experiment.do_train:
        task = task.learn(rows["train"])
    model = dataclasses.replace(model, task=task)
    this = Run(engine, model, setup.make_job(engine, model), dev, test, rows)
    record = setup.describe_settings(model, this.job)
    run_record.check(folder, record, experiment.do_train, partial=True)
    begun = experiment.adapter, experiment.init_adapter
    begun = {*map(files.absolute, filter(None, begun))}
    begun.update(model.part_folders.values())
    for member in model.task.members if experiment.do_train else ():
        made = files.absolute(os.path.join(folder, member, ADAPTER))
        if made in begun:
            raise UserError(
                f"the training would replace {made}, which it begins with; "
                "choose another --output_dir"
            )
    this.extras = extras.of(model)
    for extra in this.extras:
        extra.check(this)
    logging.info("%s", "\n" + this.job.table.to_text())
    return this


def _choose_splits(experiment: Experiment) -> tuple[SplitNames, SplitNames]:
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
    return dev, test


def start(experiment: Experiment) -> tuple[Engine, Experiment]:
    """Makes the engine, and chooses the dtype that it computes in."""
    hardware, training = experiment.hardware, experiment.training
    if hardware.use_tpu:
        check_alone("--use_tpu")
    if experiment.base_dtype == INT8:
        if hardware.use_tpu:
            raise UserError(
                "--base_dtype=int8 is for CPUs and GPUs; leave it out on a TPU"
            )
        check_alone("--base_dtype=int8")
    if experiment.compute_dtype == AUTO:
        check_alone("--compute_dtype=auto")
    make_engine, why = choose_engine(experiment.engine)
    logging.info("engine: %s (%s)", make_engine.__name__, why)
    engine = make_engine(hardware)
    if experiment.do_train:
        engine.check_can(
            bool(training.eval_steps), experiment.task.compares_rows
        )
    engine.check_devices()
    if experiment.do_train:
        check_batch_size(
            training.batch_size,
            engine.shards,
            training.gradient_accumulation_steps,
        )
    dtype = experiment.compute_dtype
    if dtype != FLOAT32:
        run = run_record.read_run(experiment.output_dir) or {}
        begun_with = (run.get("training") or {}).get("compute_dtype")
        from adapter_bert.training.fastest_dtype import choose_dtype

        dtype = choose_dtype(dtype, hardware.use_tpu, begun_with)
    return engine, dataclasses.replace(experiment, compute_dtype=dtype)


@contextlib.contextmanager
def _locked_folder(run: Run) -> Iterator[None]:
    if not run.engine.is_chief:
        yield
        return
    files.prepare_folder(run.folder)
    with folder_lock.hold(run.folder):
        for member in filter(None, run.task.members):
            files.prepare_folder(os.path.join(run.folder, member))
        yield


def _tokenize(run: Run) -> None:
    """Finds the folder's checkpoint; makes features, schedule and record."""
    experiment, model, job = run.experiment, run.model, run.job
    newest, run.step = training_state.latest_step(run.folder)
    if newest:
        training_state.check_training_checkpoint(newest, job.table.saved)
    run.checkpoint = _best_checkpoint(run) or newest
    if newest and model.trained and not experiment.do_train:
        named = files.absolute(model.trained.weights.source)
        if named != files.absolute(run.checkpoint):
            raise UserError(
                f"{run.folder} holds a training's {run.checkpoint}; "
                f"pass another --output_dir to use {named}"
            )
    for split in list(run.rows):
        rows = run.rows.pop(split)
        about = run.task.summarize(rows)
        logging.info(
            "%s: %d examples%s", split, len(rows), about and f": {about}"
        )
        features = run.features[split] = run.task.featurize(
            rows, model.tokenizer, experiment.max_seq_length
        )
        count = len(model.tokenizer.new_tokens) if split == "train" else 0
        new = model.tokenizer.added[-count:] if count else ()
        if new:
            held = np.isin([x.id for x in new], features.tokens)
            absent = [
                x.token.content for x, is_held in zip(new, held) if not is_held
            ]
            if absent:
                words = ", ".join(absent)[:500]
                logging.warning("no training row holds the new words %s", words)
        cut = features.cut_rows, len(rows), run.task.cut_at
        if cut[0]:
            way = ""
            if run.task.can_have_windows and not run.task.window_stride:
                way = "; --window_stride=N reads them whole"
            message = "%s: %d of %d examples are cut (--%s)%s"
            logging.warning(message, split, *cut, way)
        if len(features) > len(rows):
            logging.info(
                "%s: %d examples make %d windows of at most %d tokens",
                split,
                len(rows),
                len(features),
                experiment.max_seq_length,
            )
        if split != "train":
            run.rows[split] = run.task.keep(rows)
    train = run.features.get("train")
    if train is not None:
        run.schedule = make_schedule(model, train)
    run.record = run.describe()
    run.record["cut_rows"] = {
        name: features.cut_rows for name, features in run.features.items()
    }
    if train is not None and experiment.training.keep_best:
        # These rows decide which step is the result.
        run.record["training"]["dev_data"] = run.fingerprints()
    run_record.check(run.folder, run.record, experiment.do_train)
    if run.task.held_out and run.dev:
        _tell_held_out(run)


def _tell_held_out(run: Run) -> None:
    """Records the held out rows; warns if a training held out others."""
    now = run.record["held_out_rows"] = run.fingerprints()
    if run.experiment.do_train:
        return
    trained, before = run.model.trained, run_record.read_run(run.folder)
    if trained is not None:
        before = trained.config
    if (before or {}).get("held_out_rows", now) != now:
        logging.warning(
            "--dev_share held out other rows in the training, or they were "
            "read otherwise (as by --max_seq_length or --max_eval_examples); "
            "if the training file has changed, some that are held out now "
            "were trained on"
        )


def _best_checkpoint(run: Run) -> Optional[str]:
    experiment = run.experiment
    if experiment.do_train and not experiment.training.keep_best:
        return None
    from adapter_bert.checkpoints import dev_scores

    return dev_scores.best_checkpoint(run.folder)


def _train(run: Run) -> None:
    """Trains, or goes on with it, and writes `run.json` and the artifact."""
    is_chief, table = run.engine.is_chief, run.job.table
    if not run.experiment.do_train:
        if is_chief:
            training_state.recover(run.folder)
        return
    run.resumed = run.step > 0
    run.is_over = run.step >= run.schedule.num_train_steps
    # All refusals of the folder precede the first change in it.
    needed = sum([extra.reserve(run) for extra in run.extras])
    if is_chief:
        needed += run.checkpoint_bytes(table, run.folder, run.step)
        # Every run writes artifacts.
        needed += table.trained_count * 4 * len(run.task.members)
        files.check_disk_space(run.folder, needed)
        for member in run.task.members:
            files.prepare_folder(os.path.join(run.folder, member, ADAPTER))
        training_state.recover(run.folder)
        if run.resumed:
            began = run_record.read_run(run.folder) or {}
            run.record["versions"] = began.get("versions", {})
        run_record.write(
            run.folder, run.record, run.model.base, run.model.part_folders
        )
    for extra in run.extras:
        extra.begin(run)
    if run.is_over:
        logging.info("already trained to step %d", run.step)
    else:
        run.checkpoint, run.step = run_steps(
            run.engine,
            run.model,
            run.job,
            run.features["train"],
            run.schedule,
            run.step,
            stops=run.stops,
            look=lambda step, predictor: any(
                [extra.look(run, step, predictor) for extra in run.extras]
            ),
        )
    if is_chief:
        run.checkpoint = _best_checkpoint(run) or run.checkpoint
        run_files.write_artifact(run)


def _answer(run: Run) -> dict[str, float]:
    step = training_state.step_of(run.checkpoint or "")
    with run.engine.predictor(run.job) as predictor:
        if step != run.step:
            # The best one.
            weights = google.open_tensorflow(run.checkpoint)
            trained = run.job.table.trained
            for p in trained:
                check_shape(weights, p.name, p.shape)
            predictor.load({p.name: weights.read(p.name) for p in trained})
        splits = dict.fromkeys(name for _, name in (*run.dev, *run.test))
        answers = run.answer_splits(predictor, splits)
        for extra in run.extras:
            extra.end(run, answers)
    results = _score(run, answers, step) if run.dev else {}
    for suffix, name in run.test:
        for path in run.task.write_predictions(
            run.folder, run.rows[name], answers.by_split[name], suffix
        ):
            logging.info("predictions written to %s", path)
    return results


def _score(run: Run, answers: Answers, step: int) -> dict[str, float]:
    tables = run.score(answers)
    for suffix, name in run.dev:
        about = run.rows[name], run.features[name], answers.by_split[name]
        for path in run.task.write_report(run.folder, *about, suffix):
            logging.info("more of the evaluation is in %s", path)
    is_in_curve = False
    if run.stops or not run.experiment.do_train:
        from adapter_bert.checkpoints import dev_scores

        curve = dev_scores.read(run.folder)
        is_in_curve = curve is not None and step in curve.by_step
    step = step or run.model.step
    if not is_in_curve:
        run_files.write_curves(run.folder, tables[""][0], step)
    results = {
        member: run_files.write_results(
            os.path.join(run.folder, member), scores, step, data
        )
        for member, (scores, data) in tables.items()
    }
    run_files.log_results(results[""])
    return results[""]
