"""The flags that say where the files of a task's splits are."""

from typing import Collection

from absl import flags

from adapter_bert.data.tables import SplitFiles
from adapter_bert.errors import UserError

FLAGS = flags.FLAGS

FILE_FLAGS = ("train_file", "eval_file", "predict_file")


def define_data_flags(folder: str, kind: str) -> None:
    """Defines `--data_dir`, and the flags that take its place.

    Args:
        folder: what `--data_dir` means.
        kind: which files may be named.
    """
    string = flags.DEFINE_string
    string("data_dir", None, folder)
    string("train_file", None, f"{kind} to train on, in place of --data_dir's.")
    string(
        "eval_file", None, f"{kind} to evaluate on, in place of --data_dir's."
    )
    string(
        "predict_file", None, f"{kind} to predict, in place of --data_dir's."
    )


def named_files(endings: Collection[str]) -> SplitFiles:
    """The files that the flags name, found to be there.

    Args:
        endings: that a file may have.

    Raises:
        UserError: there is a folder too, or a file cannot be one.
    """
    named = SplitFiles(*(FLAGS[name].value or "" for name in FILE_FLAGS))
    if FLAGS.data_dir and named.named:
        flag = next(name for name in FILE_FLAGS if FLAGS[name].value)
        raise UserError(
            f"--{flag} and --data_dir exclude each other; name either the "
            "files or the folder that holds them"
        )
    named.check(endings)
    return named
