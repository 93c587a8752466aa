r"""Tunes BERT for a text classification task, evaluates it, predicts with it.

    .venv/bin/python run_classifier.py --task_name=MRPC --do_train=true \
        --do_eval=true --data_dir=$GLUE_DIR/MRPC \
        --init_checkpoint=$BERT/bert_model.ckpt --learning_rate=3e-4 \
        --num_train_epochs=5 --output_dir=out/mrpc

All flags of google-research/bert's `run_classifier.py` are here too.
"""

import dataclasses
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional

from absl import logging

from adapter_bert.data.table_flags import LongTexts, OwnTables
from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, Topic, is_given, read
from adapter_bert.tasks import kinds
from adapter_bert.tasks.kinds import TASKS, get_task
from adapter_bert.training.settings import (
    WITH_ROWS,
    Classification,
    PredictedFlags,
)

if TYPE_CHECKING:
    from adapter_bert.tasks.task import Task

CUSTOM = "custom"
# Tasks over the user's own files.
OF_OWN_FILES = CUSTOM, kinds.RERANK
# Settings of the labels' kind.
KIND_FLAGS = ("regression", "multi_label", "choice_columns")
# Settings of the labels.
LABEL_FLAGS = (
    *KIND_FLAGS,
    "label_separator",
    "label_threshold",
    "label_columns",
)


@dataclasses.dataclass(frozen=True)
class Source(PredictedFlags):
    """Task, and where its data are."""

    task_name: str = Topic.DATA.setting(
        "",
        f"The task: {', '.join(TASKS)}, or of your own files custom or "
        f"{kinds.RERANK} (documents of a query). Several "
        "names, as mrpc,rte,custom:FOLDER, are trained together. Default: "
        "the task of --adapter, if there is one.",
    )
    task_sampling: str = Topic.DATA.setting(
        "annealed",
        "How often each of several tasks is drawn: in proportion to its rows, "
        "to their square root, equally often (uniform), or first in "
        "proportion and nearly equally often at the end (annealed).",
        choices=("annealed", "proportional", "square_root", "uniform"),
    )
    table: OwnTables = dataclasses.field(default_factory=OwnTables)


SETTINGS = (Source, Classification, LongTexts, *WITH_ROWS)


def task_from_flags(
    trained: Optional[Mapping[str, Any]] = None,
    processors: Mapping[str, Callable[[], Any]] = {},
    default: str = "",
) -> "Task":
    """Returns the task, or the joined tasks, of `--task_name`.

    Args:
        trained: description of `--adapter`, or None; its task and columns are
            the defaults of flags that are not given.
        processors: a program's own tasks, as for `main`.
        default: the task's name where neither the flag nor `trained` has it.
    """
    from adapter_bert.data.tables import READERS
    from adapter_bert.training import run_from_flags

    source = read(Source)
    processors = {name.lower(): make for name, make in processors.items()}
    task_name = source.task_name or (trained and trained["task"]["name"])
    task_name = task_name or default
    if not task_name:
        raise UserError(
            "--task_name is missing; expected one of "
            f"{', '.join((*processors, *TASKS))}, {CUSTOM} or {kinds.RERANK}"
        )
    names = [name.strip() for name in task_name.split(",")]
    named = [name for name in vars(source.table) if is_given(name)]
    if named and not any(map(_has_own_files, names)):
        raise UserError(
            f"--{named[0]} is for --task_name=custom; the columns of the task "
            f"{task_name} are known"
        )
    split_files = run_from_flags.named_files(READERS)
    if split_files.named and task_name.strip().lower() not in OF_OWN_FILES:
        raise UserError(
            "--train_file, --eval_file and --predict_file are for "
            f"--task_name=custom; the files of {task_name} are in --data_dir"
        )
    if task_name.lower() in processors:
        return _task_of(processors[task_name.lower()]())
    if len(names) > 1:
        from adapter_bert.tasks.multi_task import multi_task

        return multi_task(
            list(map(_one_of_several, names)), source.task_sampling
        )
    if names[0].lower() == CUSTOM:
        from adapter_bert.tasks.custom import custom_task

        return custom_task(
            **_custom_arguments(trained), split_files=split_files
        )
    if names[0].lower() == kinds.RERANK:
        reranking = pkgutil.resolve_name(kinds.OF_PROGRAMS[kinds.RERANK])
        return reranking.from_flags(trained, split_files)
    return get_task(names[0], processors)


def _task_of(processor: Any) -> "Task":
    uses = {"train": "do_train", "dev": "do_eval", "test": "do_predict"}
    splits = [split for split, flag in uses.items() if FLAGS[flag].value]
    from adapter_bert.tasks.from_processor import processor_task

    return processor_task(processor, FLAGS.data_dir, splits)


def _is_custom(name: str) -> bool:
    return name.lower().partition(":")[0] == CUSTOM


def _has_own_files(name: str) -> bool:
    return _is_custom(name) or name.lower() == kinds.RERANK


def _custom_arguments(trained: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    arguments = vars(read(OwnTables)).copy()
    if is_given("label_column") and arguments["label_columns"]:
        raise UserError("--label_column and --label_columns exclude each other")
    if trained and trained["task"]["name"] == CUSTOM:
        from adapter_bert.tasks.from_description import custom_arguments

        adapter_arguments = custom_arguments(
            trained["task"],
            trained.get("task_settings", {}),
            f"the adapter {FLAGS.adapter}",
        )
        # Another kind of labels than the adapter's is refused later, when the
        # two tasks are compared.
        is_other_kind = any(
            is_given(name)
            and bool(arguments[name]) != bool(adapter_arguments[name])
            for name in KIND_FLAGS
        ) or (
            arguments["label_columns"] and not adapter_arguments["multi_label"]
        )
        if is_given("label_column"):
            del adapter_arguments["label_columns"]
        for name, value in adapter_arguments.items():
            if not (is_given(name) or is_other_kind and name in LABEL_FLAGS):
                arguments[name] = value
        is_either = trained["task"].get("pairs", False) is None
        if is_either and not arguments["text_b_column"]:
            logging.warning(
                "%s takes one text or two, and one is read; --text_b_column "
                "names the second",
                FLAGS.adapter,
            )
    return arguments


def _one_of_several(name: str) -> tuple[str, "Task"]:
    if _is_custom(name):
        from adapter_bert.tasks.custom import custom_task

        return name.partition(":")[2], custom_task(**_custom_arguments(None))
    task = get_task(name)
    return task.name, task


def main(
    processors: Mapping[str, Callable[[], Any]] = {},
) -> dict[str, float]:
    """Does what the flags say; results as `run_or_describe` gives them.

    `processors` makes a `DataProcessor`, by the name that `--task_name` takes.
    """
    import adapter_bert.start_tensorflow  # noqa: F401

    from adapter_bert.training import run_from_flags

    classification = read(Classification)
    task = task_from_flags(run_from_flags.adapter_description(), processors)
    if classification.class_weights is not None:
        from adapter_bert.tasks.text_classification import weigh_classes

        task = weigh_classes(task, classification.class_weights)
    if classification.rank_loss is not None:
        if task.name != kinds.RERANK:
            raise UserError(
                f"--rank_loss is for --task_name={kinds.RERANK}, not for "
                f"{task.name}; leave it out"
            )
        task = task.with_loss(classification.rank_loss)
    if classification.extend_labels:
        from adapter_bert.tasks.new_labels import extend_labels

        task = extend_labels(
            task, classification.replay_file, classification.distill_weight
        )
    if classification.few_shot:
        from adapter_bert.tasks.few_rows import few_shot

        task = few_shot(task)
    _check_fits(task, classification)
    windows = run_from_flags.read_recorded(LongTexts)
    if windows.window_stride:
        from adapter_bert.tasks.long_texts import with_windows

        task = with_windows(task, windows, "--window_stride")
        if classification.score_novelty:
            raise UserError(
                "--score_novelty describes whole rows, and --window_stride="
                f"{windows.window_stride} reads windows; leave one of them out"
            )
    return run_from_flags.run_or_describe(task, classification=classification)


def _check_fits(task: "Task", settings: Classification) -> None:
    fits = {
        "calibrate": task.chooses_one,
        "score_novelty": task.scores_novelty,
        "fit_thresholds": getattr(task, "has_sets", False),
    }
    rows = {
        "calibrate": "gives each row one label or one choice",
        "score_novelty": "has texts or pairs with labels or numbers, alone",
        "fit_thresholds": "gives each row any number of labels",
    }
    for name, is_fit in fits.items():
        if getattr(settings, name) and not is_fit:
            raise UserError(
                f"--{name} is for a task that {rows[name]}, which {task.name} "
                f"with these flags is not; leave --{name} out"
            )
    if settings.fit_thresholds and is_given("label_threshold"):
        raise UserError(
            "--fit_thresholds and --label_threshold exclude each other: one "
            "threshold for each label, or one for all; leave one of them out"
        )
