"""TensorFlow checkpoints: Google's BERTs, adapter-bert's and our own."""

import contextlib
import re
from typing import Any, Dict, Iterator

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from errors import UserError, first_line
from modeling import Shape
from storage import files
from weights.base import Weights, as_floats
from weights.checkpoint_index import check_index

# Ends of a checkpoint's files; all begin with its prefix.
FILE_ENDS = re.compile(r"\.(?:index|meta|data-\d{5}-of-\d{5})$")
# What a training's checkpoints hold, beside what is trained.
STEP = "global_step"


@contextlib.contextmanager
def guard(prefix: str) -> Iterator[None]:
    """Makes one line of whatever a damaged checkpoint raises.

    Raises:
        UserError: instead of TensorFlow's errors.
    """
    try:
        yield
    # TensorFlow's reader raises Python's errors for some damages.
    except (
        tf.errors.OpError,
        DecodeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(
            f"the checkpoint {prefix} is damaged or incomplete: "
            f"{first_line(error)}"
        ) from error


class Reader:
    """TensorFlow's reader of a checkpoint, whose entries are as they can be.

    Attributes:
        shapes: of all variables by name.
    """

    def __init__(self, prefix: str):
        """Opens a checkpoint.

        Raises:
            UserError: there is none, or it is damaged.
        """
        self._prefix = prefix
        with guard(prefix):
            try:
                self._partitioned = check_index(prefix)
            except UserError as error:
                raise ValueError(str(error)) from error
            self._reader = tf.compat.v1.train.NewCheckpointReader(prefix)
            found = self._reader.get_variable_to_shape_map()
        self.shapes: Dict[str, Shape] = {
            name: tuple(shape) for name, shape in found.items()
        }

    def tensor(self, name: str) -> Any:
        """The value of a variable: an array, or bytes of a single text.

        Raises:
            UserError: it is damaged, or partitioned.
        """
        if name in self._partitioned:
            raise UserError(
                f"the checkpoint {self._prefix}: {name} is partitioned, which "
                "is not read here; save it again without a partitioner"
            )
        with guard(self._prefix):
            return self._reader.get_tensor(name)


def open_tensorflow(prefix: str) -> Weights:
    """Opens a TensorFlow checkpoint, as `bert_model.ckpt`.

    Raises:
        UserError: there is none, or it is damaged; reading a tensor from a
            damaged one raises it too.
    """
    reader = Reader(prefix)
    if STEP in reader.shapes:
        # The training that has written it may go on, and delete it. TensorFlow
        # opens the values with the first one that is read, and holds them.
        reader.tensor(STEP)

    def read(name: str) -> np.ndarray:
        value = reader.tensor(name)
        with guard(prefix):
            return as_floats(np.asarray(value))

    return Weights(prefix, reader.shapes, read)


def read_whole(prefix: str) -> None:
    """Reads every tensor of a checkpoint, of any type.

    Raises:
        UserError: there is none, or it is damaged.
    """
    reader = Reader(prefix)
    for name in reader.shapes:
        reader.tensor(name)


def refusal(path: str) -> str:
    """Why no TensorFlow checkpoint can be opened by this path."""
    prefix = FILE_ENDS.sub("", path)
    if prefix != path and files.exists(f"{prefix}.index"):
        return (
            f"--init_checkpoint {path} is one file of a checkpoint; pass what "
            f"all of them begin with, --init_checkpoint={prefix}"
        )
    if tf.io.gfile.glob(f"{prefix}.data-*") or files.exists(f"{prefix}.meta"):
        return (
            f"the checkpoint {prefix} lacks {prefix}.index; copy that file, "
            "too, from where its others come from"
        )
    found = "is no checkpoint" if files.exists(path) else "does not exist"
    return (
        f"--init_checkpoint {path} {found}; expected a TensorFlow checkpoint's "
        "prefix (as bert_model.ckpt), a .safetensors file, a module of TF-Hub "
        "or a folder with one"
    )


def check_name(path: str, flag: str) -> None:
    """Checks that TensorFlow can find checkpoints under a name.

    Raises:
        UserError: it would take the name for a pattern.
    """
    odd = "".join(sorted(set(path) & set("*?[\\")))
    if odd:
        raise UserError(
            f"{flag} is {path}; TensorFlow finds no checkpoint under a name "
            f"with {odd}, choose another"
        )
