"""TensorFlow checkpoints: Google's BERTs, adapter-bert's and our own."""

import contextlib
from typing import Iterator

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from errors import UserError, first_line
from weights.base import Weights, as_floats
from weights.checkpoint_index import check_index


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


def open_reader(prefix: str) -> tf.compat.v1.train.NewCheckpointReader:
    """TensorFlow's reader of a checkpoint, whose entries are as they can be.

    Raises:
        UserError: there is none, or it is damaged.
    """
    with guard(prefix):
        try:
            check_index(prefix)
        except UserError as error:
            raise ValueError(str(error)) from error
        return tf.compat.v1.train.NewCheckpointReader(prefix)


def open_tensorflow(prefix: str) -> Weights:
    """Opens a TensorFlow checkpoint, as `bert_model.ckpt`.

    Raises:
        UserError: there is none, or it is damaged; reading a tensor from a
            damaged one raises it too.
    """
    reader = open_reader(prefix)

    def read(name: str) -> np.ndarray:
        with guard(prefix):
            return as_floats(np.asarray(reader.get_tensor(name)))

    shapes = {
        name: tuple(shape)
        for name, shape in reader.get_variable_to_shape_map().items()
    }
    return Weights(prefix, shapes, read)


def read_whole(prefix: str) -> None:
    """Reads every tensor of a checkpoint, of any type.

    Raises:
        UserError: there is none, or it is damaged.
    """
    reader = open_reader(prefix)
    with guard(prefix):
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)


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
