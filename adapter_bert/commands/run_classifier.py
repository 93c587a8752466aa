r"""Tunes BERT for a text classification task, evaluates it, predicts with it.

    .venv/bin/python run_classifier.py --task_name=MRPC --do_train=true \
        --do_eval=true --data_dir=$GLUE_DIR/MRPC \
        --init_checkpoint=$BERT/bert_model.ckpt --learning_rate=3e-4 \
        --num_train_epochs=5 --output_dir=out/mrpc

All flags of google-research/bert's `run_classifier.py` are here too.
"""

from typing import Any, Dict, Mapping, Optional, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

from absl import flags, logging

from adapter_bert.data.tables import READERS, SEPARATOR
from adapter_bert.errors import UserError
from adapter_bert.tasks import TASKS, get_task
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.multi_label import THRESHOLD
from adapter_bert.tasks.multi_task import SAMPLINGS, multi_task
from adapter_bert.tasks.restored import custom_arguments
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.text_classification import weigh_classes
from adapter_bert.training import data_flags
from adapter_bert.training import flags as run_flags

FLAGS = flags.FLAGS

CUSTOM = "custom"
# Those that say of which kind labels are.
KIND_FLAGS = ("regression", "multi_label", "choice_columns")
# Those that say what labels are.
LABEL_FLAGS = (
    *KIND_FLAGS,
    "label_separator",
    "label_threshold",
    "label_columns",
)
# Arguments of `custom_task`.
CUSTOM_FLAGS = (
    "text_a_column",
    "text_b_column",
    "label_column",
    "id_column",
    "header",
    "dev_share",
    "split_seed",
    *LABEL_FLAGS,
)


def define_flags() -> None:
    """Defines the flags of classification alone, after the shared ones."""
    run_flags.define_flags()
    # So that --help shows them too.
    flags.adopt_module_key_flags(run_flags)
    define_task_flags()
    flags.DEFINE_integer(
        "max_seq_length",
        128,
        "Longest input in tokens; the rest is cut off. --adapter supplies its "
        "own default.",
    )
    flags.DEFINE_integer("eval_batch_size", 8, "Examples evaluated at once.")
    flags.DEFINE_string(
        "class_weights",
        None,
        "Weights of the labels' losses in training: balanced (rare labels "
        'count as much as common ones), or JSON as {"spam": 2.5}. A label '
        "that is not named has weight 1.",
    )


def define_task_flags() -> None:
    """Defines the flags of which task it is, and where its data."""
    data_flags.define_data_flags(
        "Folder with train, dev, ... as .tsv, .csv or .jsonl; or with one such "
        "folder per task, of the task's name, for several tasks.",
        "custom: a .tsv, .csv or .jsonl file",
    )
    flags.adopt_module_key_flags(data_flags)
    flags.DEFINE_string(
        "task_name",
        None,
        f"The task: {', '.join(TASKS)}, or custom for your own files. Several "
        "names, as mrpc,rte,custom:FOLDER, are trained together. Default: "
        "the task of --adapter.",
    )
    flags.DEFINE_enum(
        "task_sampling",
        "annealed",
        list(SAMPLINGS),
        "How often each of several tasks is drawn: in proportion to its rows, "
        "to their square root, equally often (uniform), or first in "
        "proportion and nearly equally often at the end (annealed).",
    )
    flags.DEFINE_string("text_a_column", "text", "custom: column of the text.")
    flags.DEFINE_string(
        "text_b_column", None, "custom: column of the second text, for pairs."
    )
    flags.DEFINE_string("label_column", "label", "custom: column of the label.")
    flags.DEFINE_string(
        "id_column",
        None,
        "custom: column that names a row in the predictions; default: the "
        "row's number from 0.",
    )
    flags.DEFINE_bool(
        "header",
        True,
        "custom: .tsv and .csv files begin with the names of the columns. "
        "Columns are numbers from 0 otherwise.",
    )
    flags.DEFINE_float(
        "dev_share",
        0.0,
        "custom: share of the training file, 0 to 1, that is held out as dev "
        "set, of each label alike; 0 if there is a dev file.",
    )
    flags.DEFINE_integer(
        "split_seed", 1, "custom: seed that chooses the rows of --dev_share."
    )
    flags.DEFINE_bool("regression", False, "custom: labels are numbers.")
    flags.DEFINE_bool(
        "multi_label",
        False,
        "custom: rows have any number of labels, with --label_separator "
        "between them in a cell (.tsv, .csv), or as a list (.jsonl).",
    )
    flags.DEFINE_string(
        "label_separator",
        None,
        "custom, --multi_label: one character that separates labels; "
        f"default: {SEPARATOR}.",
    )
    flags.DEFINE_float(
        "label_threshold",
        None,
        "custom, --multi_label: least probability of the labels that a row "
        f"is given; default: {THRESHOLD}.",
    )
    flags.DEFINE_list(
        "label_columns",
        [],
        "custom: a column of 0 and 1 for each label, as a,b,c, in place of "
        "--label_column; rows have any number of labels.",
    )
    flags.DEFINE_list(
        "choice_columns",
        [],
        "custom: columns of the choices, as a,b,c. The label is the right "
        "choice's number from 0, or its column.",
    )


def task_from_flags(trained: Optional[Mapping[str, Any]] = None) -> Task:
    """The task that `--task_name` names, or the several ones.

    Args:
        trained: what `--adapter` says of its training, or None. It tells the
            task if no name is given, and how tables are read unless a flag
            says otherwise.

    Raises:
        UserError: it is missing or unknown, or a flag does not fit it.
    """
    task_name = FLAGS.task_name or (trained and trained["task"]["name"])
    if not task_name:
        raise UserError(
            f"--task_name is missing; expected one of {', '.join(TASKS)}, or "
            "custom"
        )
    if not FLAGS.task_name and task_name not in (CUSTOM, *TASKS):
        raise UserError(
            f"--adapter={FLAGS.adapter} was trained on the task {task_name}, "
            f"expected one of {', '.join(TASKS)}, or custom"
        )
    names = [name.strip() for name in task_name.split(",")]
    named = [name for name in CUSTOM_FLAGS if FLAGS[name].present]
    if named and not any(map(_is_custom, names)):
        raise UserError(
            f"--{named[0]} is for --task_name=custom; the columns of the task "
            f"{task_name} are known"
        )
    split_files = data_flags.named_files(READERS)
    if split_files.named and task_name.strip().lower() != CUSTOM:
        raise UserError(
            "--train_file, --eval_file and --predict_file are for "
            f"--task_name=custom; the files of {task_name} are in --data_dir"
        )
    if len(names) > 1:
        return multi_task(
            list(map(_one_of_several, names)), FLAGS.task_sampling
        )
    if FLAGS["task_sampling"].present:
        raise UserError(
            "--task_sampling is for several tasks, as --task_name=mrpc,rte"
        )
    if names[0].lower() == CUSTOM:
        return custom_task(
            **_custom_arguments(trained), split_files=split_files
        )
    return get_task(names[0])


def _is_custom(name: str) -> bool:
    """Whether a name of `--task_name` means the user's own files."""
    return name.lower().partition(":")[0] == CUSTOM


def _custom_arguments(trained: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Arguments of `custom_task`: those of flags, of an adapter, defaults."""
    if FLAGS["label_column"].present and FLAGS.label_columns:
        raise UserError("--label_column and --label_columns exclude each other")
    arguments = {name: FLAGS[name].value for name in CUSTOM_FLAGS}
    if trained and trained["task"]["name"] == CUSTOM:
        known = custom_arguments(
            trained["task"],
            trained.get("task_settings", {}),
            f"the adapter {FLAGS.adapter}",
        )
        # A flag may name another kind of labels than the adapter's, which is
        # then refused when the two are compared.
        is_other_kind = any(
            FLAGS[name].present and bool(FLAGS[name].value) != bool(known[name])
            for name in KIND_FLAGS
        ) or (FLAGS.label_columns and not known["multi_label"])
        if FLAGS["label_column"].present:
            del known["label_columns"]
        for name, value in known.items():
            if FLAGS[name].present or is_other_kind and name in LABEL_FLAGS:
                continue
            arguments[name] = value
    return arguments


def _one_of_several(name: str) -> Tuple[str, Task]:
    """The folder and the task of one of several names."""
    if _is_custom(name):
        return name.partition(":")[2], custom_task(**_custom_arguments(None))
    task = get_task(name)
    return task.name, task


def main() -> None:
    """Runs what the flags describe."""
    logging.set_verbosity(logging.INFO)
    task = task_from_flags(run_flags.adapter_description())
    if FLAGS.class_weights is not None:
        task = weigh_classes(task, FLAGS.class_weights)
    run_flags.run_or_describe(task, FLAGS.eval_batch_size)
