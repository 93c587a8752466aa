"""What `--init_checkpoint` names, in every layout that can start a run."""

import dataclasses
import os
from typing import Any, Dict, Optional, Tuple

import files
from errors import UserError
from weights import dev_scores, run_record, training_state
from weights.base import Weights
from weights.google import check_name, open_tensorflow
from weights.hugging_face import open_safetensors

SAFETENSORS_FILE = "model.safetensors"
GOOGLE_CHECKPOINT = "bert_model.ckpt"


@dataclasses.dataclass(frozen=True)
class InitCheckpoint:
    """What `--init_checkpoint` names.

    Attributes:
        path: as given, with a folder resolved to what it holds.
        folder: where the vocabulary and the config lie by default.
        weights: the model; for a training checkpoint its base.
        trained: a training checkpoint's own variables, else None.
        run: the content of the run's `run.json`, else None.
    """

    path: str
    folder: str
    weights: Weights
    trained: Optional[Weights] = None
    run: Optional[Dict[str, Any]] = None


def open_init_checkpoint(path: str) -> InitCheckpoint:
    """Opens any of the layouts that can start a run.

    Args:
        path: a TensorFlow checkpoint's prefix (Google's, adapter-bert's or a
            training checkpoint of this project), a `.safetensors` file, or a
            folder with `model.safetensors` or `bert_model.ckpt`.

    Raises:
        UserError: nothing of the kind is there, or it is damaged, or the base
            of a training checkpoint is.
    """
    path, weights = open_pretrained(path)
    folder = os.path.dirname(path)
    run_file = os.path.join(folder, run_record.RUN_FILE)
    if path.endswith(".safetensors") or not files.exists(run_file):
        return InitCheckpoint(path, folder, weights)
    run = run_record.read_description(run_file, "the run's description")
    advice = (
        "to use what was trained elsewhere, pass "
        f"{os.path.join(folder, 'adapter')} as --adapter beside it"
    )
    try:
        base_path = run_record.place_of_base(folder)
    except UserError as error:
        raise UserError(f"{error}; {advice}") from error
    if files.absolute(base_path) == files.absolute(path):
        # A run has written its files beside the model that it started from.
        return InitCheckpoint(path, folder, weights)
    try:
        base_path, base = open_pretrained(base_path)
    except UserError as error:
        raise UserError(
            f"{path} was trained upon {base_path}, which cannot be opened: "
            f"{error}; if it lies elsewhere now, pass that as "
            f"--init_checkpoint; {advice}"
        ) from error
    return InitCheckpoint(path, os.path.dirname(base_path), base, weights, run)


def _find_model(folder: str) -> str:
    """The model of a folder: a pretrained one before a training's.

    Of a training that kept its best step that one, else the newest.
    """
    for name, end in ((SAFETENSORS_FILE, ""), (GOOGLE_CHECKPOINT, ".index")):
        path = os.path.join(folder, name)
        if files.exists(path + end):
            return path
    newest, _ = training_state.latest_step(folder)
    path = dev_scores.best_checkpoint(folder) or newest
    if path is None:
        raise UserError(
            f"the folder {folder} holds no {SAFETENSORS_FILE} and no "
            f"{GOOGLE_CHECKPOINT}; pass --init_checkpoint with one, or with a "
            "checkpoint's prefix"
        )
    return path


def open_pretrained(path: str) -> Tuple[str, Weights]:
    """Opens what `open_init_checkpoint` takes, as it is.

    Returns:
        The path, with a folder resolved to what it holds, and the weights.

    Raises:
        UserError: nothing of the kind is there, or it is damaged.
    """
    if not path:
        raise UserError("--init_checkpoint is empty; expected a path")
    if files.is_folder(path):
        path = _find_model(path)
    if path.endswith(".safetensors"):
        return path, open_safetensors(path, translate=True)
    check_name(path, "--init_checkpoint")
    if not files.exists(path + ".index"):
        raise UserError(
            f"--init_checkpoint {path} does not exist; expected a TensorFlow "
            "checkpoint's prefix (as bert_model.ckpt), a .safetensors file or "
            "a folder with one"
        )
    return path, open_tensorflow(path)
