"""From the flags of the training programs to a run."""

import dataclasses
import os
from collections.abc import Collection
from typing import Any, Optional

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact, run_record
from adapter_bert.data.tables import SplitFiles
from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, Declared, declared, is_given, read
from adapter_bert.methods import registry
from adapter_bert.tasks.task import Task
from adapter_bert.training import experiment
from adapter_bert.training.settings import (
    ADAPTER,
    EPOCH,
    LAYERS,
    Experiment,
    RowFlags,
    Training,
    Tuning,
)
from adapter_bert.training.setup import describe_parameters

FILE_FLAGS = ("train_file", "eval_file", "predict_file")


def _value(name: str) -> Any:
    """Reads a flag; "" in a program without it."""
    return FLAGS[name].value if name in FLAGS else ""


def named_files(endings: Collection[str]) -> SplitFiles:
    """Gives the files that flags name, found with these endings."""
    names = list(map(_value, FILE_FLAGS))
    named = SplitFiles(*names)
    if FLAGS.data_dir and named.named:
        flag = next(name for name, path in zip(FILE_FLAGS, names) if path)
        raise UserError(
            f"--{flag} and --data_dir exclude each other; name either the "
            "files or the folder that holds them"
        )
    named.check(endings, can_hold_out="dev_share" in FLAGS)
    return named


def tuning_method() -> dict[str, Any]:
    """Gives the fields of `Experiment` about the method."""
    named = vars(read(Tuning)).copy()
    text = named.pop("tuning_method")
    named = {key: value for key, value in named.items() if value is not None}
    method = registry.parse(text, named)
    for argument, wanted in named.items():
        value = getattr(method, argument, None)
        if value != wanted:
            problem = f"{argument} is {value} there"
            if not hasattr(method, argument):
                problem = f"the method has no {argument}"
            raise UserError(
                f"--adapter_{argument}={wanted} does not fit "
                f"--tuning_method={text}: {problem}"
            )
    return {
        "method": method,
        "named_method": text if is_given("tuning_method") else None,
        "named_arguments": named,
    }


def _training(task: Task) -> Training:
    training = read(Training)
    every, keep_best = training.eval_steps, training.keep_best
    if training.early_stopping and not keep_best:
        keep_best = task.score_names[0]
    if keep_best and keep_best not in task.dev_score_names:
        raise UserError(
            f"--keep_best is {keep_best!r}, expected a score of the task "
            f"{task.name}: {', '.join(task.dev_score_names)}"
        )
    every = every or (EPOCH if keep_best else "")
    if every and FLAGS.do_train and not FLAGS.do_eval:
        raise UserError(
            "--eval_steps, --keep_best and --early_stopping need the dev set: "
            "pass --do_eval=true"
        )
    if every == EPOCH and training.num_train_steps:
        raise UserError(
            "--num_train_steps counts no epochs: pass --eval_steps with the "
            "number of steps between two scorings"
        )
    return dataclasses.replace(training, eval_steps=every, keep_best=keep_best)


def experiment_from_flags(task: Task, **settings: Any) -> Experiment:
    """Reads the experiment of the flags and a program's `settings`."""
    if FLAGS.do_predict and not task.test_splits:
        raise UserError(
            f"--do_predict: a run of {task.name} answers no rows; pass "
            "--do_eval to score it (`adapter-bert predict --embeddings` writes "
            "the vectors of an adapter)"
        )
    exchanged: dict[str, str] = {}
    if FLAGS.exchange_part:
        from adapter_bert.training import composition_parts

        exchanged = composition_parts.exchanged(FLAGS.exchange_part)
    # Questions are scored on what is predicted.
    eval_batch_size = FLAGS.predict_batch_size
    if "eval_batch_size" in FLAGS:
        eval_batch_size = read(RowFlags).eval_batch_size
    values = read(
        Experiment,
        task=task,
        **tuning_method(),
        data_dir=_value("data_dir"),
        eval_batch_size=eval_batch_size,
        max_seq_length=max_seq_length(),
        exchange_part=exchanged,
        training=_training(task),
        **settings,
    )
    sizes = {
        "train_batch_size": values.training.batch_size,
        "eval_batch_size": eval_batch_size,
        "predict_batch_size": values.predict_batch_size,
    }
    cores = values.hardware.num_tpu_cores
    if values.hardware.use_tpu and values.hardware.num_devices:
        raise UserError(
            "--num_devices is for GPUs and CPUs; a TPU has --num_tpu_cores"
        )
    for name, size in sizes.items():
        if values.hardware.use_tpu and size % cores:
            raise UserError(
                f"--{name} {size} is not a multiple of --num_tpu_cores {cores}"
            )
    is_compiled = values.hardware.use_tpu or values.use_xla
    if values.recompute == LAYERS and not is_compiled:
        raise UserError(
            f"--recompute={LAYERS} works under XLA alone; pass --use_xla=true "
            "or --use_tpu=true, or leave --recompute out"
        )
    if values.init_adapter and values.adapter:
        raise UserError(
            "--adapter and --init_adapter exclude each other; --adapter goes "
            "on with a task, --init_adapter begins another one"
        )
    if not values.describe and not values.output_dir:
        raise UserError("--output_dir is missing: the folder for the results")
    if values.library and not files.is_folder(values.library):
        raise UserError(
            f"--library is {values.library}, where there is no folder of "
            "adapters"
        )
    return values


def run_or_describe(task: Task, **own_settings: Any) -> dict[str, float]:
    """Runs the flags' experiment; gives its dev scores.

    With `--describe` it prints the parameters, and gives no scores.
    """
    settings = experiment_from_flags(task, **own_settings)
    if settings.describe:
        print(describe_parameters(settings))
        return {}
    named = any(map(_value, ("data_dir", *FILE_FLAGS)))
    if "data_dir" in FLAGS and not named:
        raise UserError(
            "--data_dir is missing: the folder of the task's files; your own "
            "files can be named too, as --train_file"
        )
    return experiment.run(settings)


def adapter_description() -> Optional[dict[str, Any]]:
    """Gives the description of `--adapter`, or None without one."""
    return (
        adapter_artifact.read_config(FLAGS.adapter) if FLAGS.adapter else None
    )


def trained_settings() -> tuple[dict[str, Any], str]:
    """Reads task_settings of --adapter, or of a run.

    Returns:
        The settings, {} without any, and the adapter's folder.
    """
    for folder in (
        [FLAGS.adapter]
        if FLAGS.adapter
        else [os.path.join(run, ADAPTER) for run in _runs()]
    ):
        if settings := adapter_artifact.settings_of(folder):
            return settings, folder
    return {}, ""


def _runs() -> list[str]:
    """Names --output_dir, and without --do_train --init_checkpoint's folder."""
    start, runs = FLAGS.init_checkpoint, [FLAGS.output_dir]
    if start and not FLAGS.do_train and not start.startswith("http"):
        if files.is_folder(start):
            runs.append(start)
        elif os.path.dirname(start) or files.exists(f"{start}.index"):
            # One of a folder's checkpoints, no name as minilm.
            runs.append(os.path.dirname(start) or ".")
    return [*filter(None, runs)]


def read_recorded(declaring: type[Declared]) -> Declared:
    """Reads flags; those not given are as `trained_settings` has them."""
    values = read(declaring)
    settings, folder = trained_settings()
    if not settings:
        return values
    from adapter_bert.tasks.from_description import recorded_in

    changes = recorded_in(declaring, settings, folder)
    for name, _, field in declared([declaring]):
        if is_given(name):
            changes.pop(field.name, None)
    return dataclasses.replace(values, **changes)


def max_seq_length() -> int:
    """Gives the longest input in tokens: the user's, a training's or default.

    The training is the adapter's; without --do_train also a run's.
    """
    length, source = FLAGS.max_seq_length, "--max_seq_length"
    described = {}
    if FLAGS.adapter:
        described[f"--adapter={FLAGS.adapter}"] = adapter_description()
    elif not FLAGS.do_train:
        described = {run: run_record.read_run(run) for run in _runs()}
    for name, description in described.items():
        training = (description or {}).get("training", {})
        recorded = training.get("max_seq_length")
        # Adapters of other programs have none.
        if recorded is not None and not is_given("max_seq_length"):
            length = recorded
            source = f"{name}: training.max_seq_length"
            break
    if length < 3:
        raise UserError(f"{source} is {length}, expected at least 3")
    return length
