"""TensorFlow checkpoints: Google's BERTs, adapter-bert's and our own."""

import numpy as np
import tensorflow as tf

from errors import UserError, first_line
from weights.base import Weights


def open_tensorflow(prefix: str) -> Weights:
    """Opens a TensorFlow checkpoint, as `bert_model.ckpt`.

    Raises:
        UserError: there is none, or it is damaged; reading a tensor from a
            damaged one raises it too.
    """

    def guard(action):
        try:
            return action()
        # TensorFlow's reader raises Python's errors for some damages.
        except (tf.errors.OpError, LookupError, ValueError, RuntimeError) as e:
            raise UserError(
                f"the checkpoint {prefix} is damaged or incomplete: "
                f"{first_line(e)}"
            ) from e

    reader = guard(lambda: tf.train.load_checkpoint(prefix))
    shapes = {
        name: tuple(shape)
        for name, shape in reader.get_variable_to_shape_map().items()
    }
    return Weights(
        prefix,
        shapes,
        lambda name: guard(
            lambda: np.asarray(reader.get_tensor(name), np.float32)
        ),
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
