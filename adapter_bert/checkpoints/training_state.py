"""The state of a training in its folder: `model.ckpt-<step>`, `checkpoint`.

Written and read here alone, for both engines. A training stands at its newest
whole checkpoint, whatever `checkpoint` says, which TensorFlow's own programs
read.
"""

import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Optional

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.checkpoints.google import open_tensorflow, read_whole
from adapter_bert.checkpoints.weights import check_shape
from adapter_bert.errors import UserError

STATE_FILE = "checkpoint"
# As many as TensorFlow's own savers keep.
KEPT_CHECKPOINTS = 5

# Before a checkpoint's step.
NAME = "model.ckpt"
CHECKPOINT_FILE = r"{}-(\d{{1,18}})\.(?:index|data-\d+-of-\d+)"
# Within one line, so that no text takes quadratic time.
NAMED = re.compile(
    r'^[ \t]*(?:all_)?model_checkpoint_paths?: "(.*)"[ \t\r]*$', re.M
)


def check_training_checkpoint(
    path: str, saved: Mapping[str, tuple[int, ...]]
) -> None:
    """Compares a training checkpoint with the shapes of variables and slots."""
    weights = open_tensorflow(path)
    check_shape(weights, "global_step", ())
    for name, shape in saved.items():
        check_shape(weights, name, shape)


def save_tensors(prefix: str, values: dict[str, np.ndarray]) -> None:
    """Writes a TensorFlow checkpoint, synced and whole or not at all."""
    folder_lock.check(prefix)
    part = f"{prefix}_temp/part"
    names = sorted(values)
    with files.writing(f"the checkpoint {prefix}"):
        if os.path.islink(f"{prefix}_temp"):
            # Its target would be written, and then deleted.
            os.unlink(f"{prefix}_temp")
        tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[values[name] for name in names],
        )
        # The index comes last: it makes the checkpoint whole. TensorFlow's
        # own merging writes the index in place.
        for end in (".data-00000-of-00001", ".index"):
            files.replace(part + end, prefix + end)
        tf.io.gfile.rmtree(f"{prefix}_temp")


def save_training(
    output_dir: str, step: int, values: dict[str, np.ndarray]
) -> None:
    """Saves `model.ckpt-<step>`, and deletes all but the newest few.

    `values` are arrays by name, the step as `global_step`; raises `UserError`.
    """
    prefix = _prefix(output_dir, step)
    save_tensors(prefix, values)
    with files.writing(f"the checkpoint {prefix}"):
        # Only checkpoints that are listed as whole are ever deleted.
        _, named = _read_list(output_dir)
        steps = [*sorted(s for s in named or () if s < step), step]
        # Listed until it is gone, so that after a kill the next save deletes
        # the rest.
        _write_list(output_dir, steps)
        if forgotten := steps[:-KEPT_CHECKPOINTS]:
            for name, of_step in checkpoint_files(output_dir, NAME):
                if of_step in forgotten:
                    tf.io.gfile.remove(os.path.join(output_dir, name))
            _write_list(output_dir, steps[-KEPT_CHECKPOINTS:])


def latest_step(output_dir: str) -> tuple[Optional[str], int]:
    """Finds the newest whole training checkpoint and its step, or (None, 0)."""
    path, _ = _read_state(output_dir)
    return (path, step_of(path)) if path else (None, 0)


def recover(output_dir: str) -> None:
    """Warns of lost checkpoints, and corrects `checkpoint`.

    TPUEstimator goes on from the checkpoint that this file names.
    """
    path, lost = _read_state(output_dir)
    for text in lost:
        logging.warning("%s", text)
    if path is None:
        if lost:
            logging.warning("%s: the training begins anew", output_dir)
        return
    newest = step_of(path)
    if lost:
        logging.warning("%s is taken, the newest whole one", path)
    # TensorFlow reads no file that is damaged anywhere, and follows absolute
    # paths in it to other folders.
    text, steps = _read_list(output_dir)
    named = sorted(steps or ())
    if named[-1:] != [newest] or text != _listed(named):
        whole = [
            step
            for step in sorted(_steps_with_files(output_dir))
            if step <= newest and not _damage(output_dir, step)
        ]
        listed = {*named, *whole[-KEPT_CHECKPOINTS:]}
        _write_list(output_dir, [step for step in whole if step in listed])


def holds_checkpoints(output_dir: str) -> bool:
    """Tells if any program has saved checkpoints in a folder."""
    return bool(
        files.exists(os.path.join(output_dir, STATE_FILE))
        or _steps_with_files(output_dir)
    )


def bytes_per_value(
    output_dir: str, steps: int, every_steps: int, scored: int
) -> int:
    """Bytes that the checkpoints of a training need for each value in one.

    `steps` are left, checkpoints are `every_steps` apart, and `scored` steps
    are scored, and saved before.
    """
    if not steps:
        return 0
    # At every interval and at the end; one more than are kept, while it is
    # written. Damaged ones are never deleted, so there may be any number.
    more = KEPT_CHECKPOINTS + 1 - len(_steps_with_files(output_dir))
    new = min(1 + (steps - 1) // every_steps + scored, max(1, more))
    return new * 4


def step_of(path: str) -> int:
    """Gives the step of `model.ckpt-<step>`; 0 of others."""
    match = re.search(r"-(\d{1,18})$", path)
    return int(match.group(1)) if match else 0


def _prefix(output_dir: str, step: int) -> str:
    return os.path.join(output_dir, f"{NAME}-{step}")


def _read_state(output_dir: str) -> tuple[Optional[str], list[str]]:
    """Finds the newest whole checkpoint; raises as `latest_step`.

    Returns:
        The path of the checkpoint, or None; messages about what is missing.
    """
    folder_lock.check(output_dir)
    _, named = _read_list(output_dir)
    steps = _steps_with_files(output_dir)
    # Looked up first: another process may be writing the first checkpoint.
    has_index = any(
        files.exists(f"{_prefix(output_dir, step)}.index") for step in steps
    )
    lost = []
    state_file = os.path.join(output_dir, STATE_FILE)
    if steps and not named:
        lost.append(
            f"{state_file} is "
            + ("missing" if named is None else "damaged or of another program")
        )
    for step in sorted(steps.union(named or ()), reverse=True):
        damage = (
            _damage(output_dir, step)
            if step in steps
            else f"{_prefix(output_dir, step)} is not there any more, which "
            f"{state_file} names"
        )
        if damage is None:
            return _prefix(output_dir, step), lost
        lost.append(damage)
    # A first save that was interrupted leaves neither an index nor
    # `checkpoint`, and no other files.
    if named is None and len(steps) <= 1 and not has_index:
        return None, lost
    if lost:
        raise UserError(
            f"no checkpoint in {output_dir} is whole: {'; '.join(lost)}; "
            "choose another --output_dir, or copy the folder's files again"
        )
    return None, lost


def _read_list(output_dir: str) -> tuple[Optional[str], Optional[list[int]]]:
    """Reads the text of `checkpoint`, and its steps from the newest on."""
    path = os.path.join(output_dir, STATE_FILE)
    if not files.exists(path):
        return None, None
    content = files.read_bytes(path, "the list of checkpoints")
    text = content.decode("utf-8", "replace")
    names = map(os.path.basename, NAMED.findall(text))
    return text, [
        step_of(name)
        for name in dict.fromkeys(names)
        if name == f"{NAME}-{step_of(name)}"
    ]


def _write_list(output_dir: str, steps: list[int]) -> None:
    files.write_text(os.path.join(output_dir, STATE_FILE), _listed(steps))


def _listed(steps: list[int]) -> str:
    # Relative paths, so that the folder may be moved.
    names = [os.path.basename(_prefix("", step)) for step in steps]
    lines = [f'model_checkpoint_path: "{names[-1]}"'] + [
        f'all_model_checkpoint_paths: "{name}"' for name in names
    ]
    return "\n".join(lines) + "\n"


def checkpoint_files(output_dir: str, name: str) -> Iterator[tuple[str, int]]:
    """Yields sorted names of files of `<name>-<step>`, and the steps."""
    pattern = re.compile(CHECKPOINT_FILE.format(re.escape(name)))
    if files.is_folder(output_dir):
        for match in map(pattern.fullmatch, sorted(files.listed(output_dir))):
            if match:
                yield match[0], int(match[1])


def _steps_with_files(output_dir: str) -> set[int]:
    return {step for _, step in checkpoint_files(output_dir, NAME)}


def _damage(output_dir: str, step: int) -> Optional[str]:
    prefix = _prefix(output_dir, step)
    stamps = []
    for end in (".index", ".data-00000-of-00001"):
        try:
            stat = tf.io.gfile.stat(prefix + end)
        except tf.errors.OpError:
            # Other programs may split the data into several files.
            stamps.append(None)
        else:
            stamps.append((stat.length, stat.mtime_nsec))
    return _damage_of(prefix, tuple(stamps))


# Called several times in a run; the stamps change with the files.
@functools.lru_cache(maxsize=64)
def _damage_of(prefix: str, stamps: tuple) -> Optional[str]:
    del stamps
    try:
        read_whole(prefix)
    except UserError as error:
        return str(error)
    return None
