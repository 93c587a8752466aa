"""The state of a training in its folder: `model.ckpt-<step>`, `checkpoint`.

Written and read here alone, for both engines. What counts is which checkpoints
lie there whole: the newest of these is where a training stands, whatever
`checkpoint` says, which TensorFlow's own programs go by.
"""

import functools
import os
import re
from typing import Dict, List, Mapping, Optional, Set, Tuple

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

CHECKPOINT_FILE = re.compile(r"model\.ckpt-(\d{1,18})\.(index|data-\d+-of-\d+)")
# Each within its line, so that lines of nothing take no time.
NAMED = re.compile(
    r'^[ \t]*(?:all_)?model_checkpoint_paths?: "(.*)"[ \t\r]*$', re.M
)


def check_training_checkpoint(
    path: str, trained: Mapping[str, Tuple[int, ...]]
) -> None:
    """Compares a whole training checkpoint with the shapes that a model trains.

    Raises:
        UserError: it is of another model.
    """
    weights = open_tensorflow(path)
    check_shape(weights, "global_step", ())
    for name, shape in trained.items():
        for variable in (name, f"{name}/adam_m", f"{name}/adam_v"):
            check_shape(weights, variable, shape)


def save_tensors(prefix: str, values: Dict[str, np.ndarray]) -> None:
    """Writes a TensorFlow checkpoint whole.

    A killed program leaves no half, and a loss of power none. What is deleted
    afterwards, or names it, may rely on it.

    Raises:
        UserError: it cannot be written, or the folder that this process holds
            is gone.
    """
    folder_lock.check(prefix)
    part = f"{prefix}_temp/part"
    names = sorted(values)
    with files.writing(f"the checkpoint {prefix}"):
        if os.path.islink(f"{prefix}_temp"):
            # What it leads to would be written, and then deleted.
            os.unlink(f"{prefix}_temp")
        tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[values[name] for name in names],
        )
        # The index comes last: with it a checkpoint is whole. TensorFlow's own
        # merging writes it in place, bit by bit.
        for end in (".data-00000-of-00001", ".index"):
            files.replace(part + end, prefix + end)
        tf.io.gfile.rmtree(f"{prefix}_temp")


def save_training(
    output_dir: str, step: int, values: Dict[str, np.ndarray]
) -> None:
    """Saves `model.ckpt-<step>` and forgets all but the newest few.

    `values` are arrays by name, the step as `global_step`.

    Raises:
        UserError: it cannot be written.
    """
    prefix = _prefix(output_dir, step)
    save_tensors(prefix, values)
    with files.writing(f"the checkpoint {prefix}"):
        # Only what was written down as whole is ever deleted.
        before = {s for s in _named_steps(output_dir) or () if s < step}
        steps = [*sorted(before), step]
        _write_state_file(output_dir, steps[-KEPT_CHECKPOINTS:])
        forgotten = steps[:-KEPT_CHECKPOINTS]
        for name in tf.io.gfile.listdir(output_dir):
            match = CHECKPOINT_FILE.fullmatch(name)
            if match and int(match.group(1)) in forgotten:
                tf.io.gfile.remove(os.path.join(output_dir, name))


def latest_step(output_dir: str) -> Tuple[Optional[str], int]:
    """The newest whole training checkpoint and its step, or (None, 0).

    Raises:
        UserError: there were checkpoints, and none is whole, or the folder
            that this process holds is gone; so a training from the first step
            on is not begun by mistake.
    """
    path, _ = _read_state(output_dir)
    return (path, step_of(path)) if path else (None, 0)


def recover(output_dir: str) -> None:
    """Says what of a training is lost, and makes `checkpoint` right.

    TPUEstimator goes on from where that file says.

    Raises:
        UserError: as `latest_step`, or the file cannot be written.
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
    # TensorFlow reads nothing of a file that is damaged anywhere, and would
    # look for a whole path in the folder that the file names.
    named = sorted(_named_steps(output_dir) or ())
    is_named = named[-1:] == [newest]
    if not is_named or _state_text(output_dir) != _listed(named):
        whole = [
            step
            for step in sorted(_steps_with_files(output_dir))
            if step <= newest and not _damage(output_dir, step)
        ]
        _write_state_file(output_dir, whole[-KEPT_CHECKPOINTS:])


def holds_checkpoints(output_dir: str) -> bool:
    """Whether any program has saved checkpoints in a folder."""
    return bool(
        files.exists(os.path.join(output_dir, STATE_FILE))
        or _steps_with_files(output_dir)
    )


def count_checkpoints(output_dir: str) -> int:
    """How many training checkpoints a folder holds."""
    return len(_steps_with_files(output_dir))


def step_of(path: str) -> int:
    """The step of a training checkpoint, `model.ckpt-<step>`; 0 of others."""
    match = re.search(r"-(\d{1,18})$", path)
    return int(match.group(1)) if match else 0


def _prefix(output_dir: str, step: int) -> str:
    return os.path.join(output_dir, f"model.ckpt-{step}")


def _read_state(output_dir: str) -> Tuple[Optional[str], List[str]]:
    """Looks for the newest whole checkpoint; raises as `latest_step`.

    Returns:
        The path of the checkpoint, or None; and what should be there beside and
        is not, for people to read.
    """
    folder_lock.check(output_dir)
    named = _named_steps(output_dir)
    found = _steps_with_files(output_dir)
    # Before the files are read: another process may be writing the first one.
    has_index = any(
        files.exists(f"{_prefix(output_dir, step)}.index") for step in found
    )
    lost = []
    state_file = os.path.join(output_dir, STATE_FILE)
    if found and not named:
        lost.append(
            f"{state_file} is "
            + ("missing" if named is None else "damaged or of another program")
        )
    for step in sorted(found.union(named or ()), reverse=True):
        damage = (
            _damage(output_dir, step)
            if step in found
            else f"{_prefix(output_dir, step)} is not there any more, which "
            f"{state_file} names"
        )
        if damage is None:
            return _prefix(output_dir, step), lost
        lost.append(damage)
    # A save that is broken off leaves no index, and `checkpoint` says nothing
    # of it; the first leaves no other files.
    if named is None and len(found) <= 1 and not has_index:
        return None, lost
    if lost:
        raise UserError(
            f"no checkpoint in {output_dir} is whole: {'; '.join(lost)}; "
            "choose another --output_dir, or copy the folder's files again"
        )
    return None, lost


def _state_text(output_dir: str) -> Optional[str]:
    """What stands in `checkpoint`; None without it."""
    path = os.path.join(output_dir, STATE_FILE)
    if not files.exists(path):
        return None
    content = files.read_bytes(path, "the list of checkpoints")
    return content.decode("utf-8", "replace")


def _named_steps(output_dir: str) -> Optional[List[int]]:
    """The steps that `checkpoint` names, the newest first; None without it."""
    text = _state_text(output_dir)
    if text is None:
        return None
    names = map(os.path.basename, NAMED.findall(text))
    return [
        step_of(name)
        for name in dict.fromkeys(names)
        if name == f"model.ckpt-{step_of(name)}"
    ]


def _write_state_file(output_dir: str, steps: List[int]) -> None:
    """Writes `checkpoint`: the newest, and all."""
    files.write_text(os.path.join(output_dir, STATE_FILE), _listed(steps))


def _listed(steps: List[int]) -> str:
    """The text of `checkpoint`."""
    # Relative, so that the folder may be moved.
    names = [os.path.basename(_prefix("", step)) for step in steps]
    lines = [f'model_checkpoint_path: "{names[-1]}"'] + [
        f'all_model_checkpoint_paths: "{name}"' for name in names
    ]
    return "\n".join(lines) + "\n"


def _steps_with_files(output_dir: str) -> Set[int]:
    """Steps of which any file lies there, whole or not."""
    if not files.is_folder(output_dir):
        return set()
    matches = map(CHECKPOINT_FILE.fullmatch, files.listed(output_dir))
    return {int(match.group(1)) for match in matches if match}


def _damage(output_dir: str, step: int) -> Optional[str]:
    """What is wrong with a checkpoint, or None."""
    prefix = _prefix(output_dir, step)
    stamps = []
    for end in (".index", ".data-00000-of-00001"):
        try:
            stat = tf.io.gfile.stat(prefix + end)
        except tf.errors.OpError:
            # Other programs may divide the data.
            stamps.append(None)
        else:
            stamps.append((stat.length, stat.mtime_nsec))
    return _damage_of(prefix, tuple(stamps))


# Asked several times in a run; the stamps change with the files.
@functools.lru_cache(maxsize=64)
def _damage_of(prefix: str, stamps: Tuple) -> Optional[str]:
    del stamps
    try:
        read_whole(prefix)
    except UserError as error:
        return str(error)
    return None
