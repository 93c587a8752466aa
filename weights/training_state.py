"""The state of a training in its folder: `model.ckpt-<step>`, `checkpoint`.

Written and read here alone, for both engines.
"""

import dataclasses
import os
import re
from typing import Any, Dict, Optional, Tuple

import numpy as np
import tensorflow as tf

import files
from errors import UserError, first_line
from weights.base import check_shape
from weights.google import open_tensorflow

# As many as TensorFlow's own savers keep.
KEPT_CHECKPOINTS = 5


def check_training_checkpoint(path: str, table: Any) -> None:
    """Reads a training checkpoint whole.

    Raises:
        UserError: it is damaged, or of another model.
    """
    weights = open_tensorflow(path)
    weights.read("global_step")
    for p in table.trained:
        for name in (p.name, f"{p.name}/adam_m", f"{p.name}/adam_v"):
            check_shape(weights, dataclasses.replace(p, name=name))
            weights.read(name)


def save_tensors(prefix: str, values: Dict[str, np.ndarray]) -> None:
    """Writes a TensorFlow checkpoint whole: a killed program leaves no half.

    Raises:
        tf.errors.OpError, OSError: it cannot be written.
    """
    part = os.path.join(f"{prefix}_temp", "part-00000-of-00001")
    names = sorted(values)
    tf.raw_ops.SaveV2(
        prefix=part,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[values[name] for name in names],
    )
    # Renames.
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[part],
        destination_prefix=prefix,
        delete_old_dirs=True,
    )


def save_training(
    output_dir: str, step: int, values: Dict[str, np.ndarray]
) -> None:
    """Saves `model.ckpt-<step>` and forgets all but the newest few.

    Args:
        output_dir: folder of the checkpoints.
        step: training steps done.
        values: arrays by name, the step as `global_step`.

    Raises:
        UserError: it cannot be written.
    """
    prefix = os.path.join(output_dir, f"model.ckpt-{step}")
    try:
        save_tensors(prefix, values)
        state = tf.train.get_checkpoint_state(output_dir)
        kept = [
            path
            for path in (state.all_model_checkpoint_paths if state else ())
            if step_of(path) < step
        ] + [prefix]
        # Relative, so that the folder may be moved.
        names = [os.path.basename(p) for p in kept[-KEPT_CHECKPOINTS:]]
        lines = [f'model_checkpoint_path: "{names[-1]}"'] + [
            f'all_model_checkpoint_paths: "{name}"' for name in names
        ]
        files.write_text(
            os.path.join(output_dir, "checkpoint"), "\n".join(lines) + "\n"
        )
        forgotten = {os.path.basename(p) for p in kept[:-KEPT_CHECKPOINTS]}
        for name in tf.io.gfile.listdir(output_dir):
            if ".".join(name.split(".")[:2]) in forgotten:
                tf.io.gfile.remove(os.path.join(output_dir, name))
    except (tf.errors.OpError, OSError) as error:
        raise UserError(
            f"cannot write the checkpoint {prefix}: {first_line(error)}"
        ) from error


def latest_step(output_dir: str) -> Tuple[Optional[str], int]:
    """The newest training checkpoint of a folder and its step, or (None, 0).

    Raises:
        UserError: the folder's `checkpoint` file is not one of a training.
    """
    try:
        path = tf.train.latest_checkpoint(output_dir)
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {os.path.join(output_dir, 'checkpoint')}: "
            f"{first_line(error)}"
        ) from error
    if path is None:
        return None, 0
    return path, step_of(path)


def count_kept(output_dir: str) -> int:
    """How many training checkpoints a folder holds."""
    state = tf.train.get_checkpoint_state(output_dir)
    return len(state.all_model_checkpoint_paths) if state else 0


def step_of(path: str) -> int:
    """The step of a training checkpoint, `model.ckpt-<step>`; 0 of others."""
    match = re.search(r"-(\d+)$", path)
    return int(match.group(1)) if match else 0
