"""Every weight that is read or written.

In here: pretrained and trained models in the layouts of Google (TensorFlow
checkpoints of BERT and of adapter-bert), Hugging Face (safetensors) and this
project (training checkpoints of trained variables only), each read as
`Weights` under Google's variable names; the choice of every variable's initial
value; training checkpoints. Not in here: the adapter artifact
(`adapter_artifact.py`).
"""

import dataclasses
import functools
import hashlib
import os
import re
import struct
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np
import safetensors
import tensorflow as tf
from absl import logging

import files
import modeling
import run_record
from errors import UserError

SAFETENSORS_FILE = "model.safetensors"
GOOGLE_CHECKPOINT = "bert_model.ckpt"
# As many as TensorFlow's own savers keep.
KEPT_CHECKPOINTS = 5


@dataclasses.dataclass(frozen=True)
class Weights:
    """Named tensors that are read when they are asked for.

    Attributes:
        source: where they come from, for messages.
        shapes: shape by Google's variable name.
        read: name -> float32 array of that shape.
    """

    source: str
    shapes: Mapping[str, Tuple[int, ...]]
    read: Callable[[str], np.ndarray]


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
                f"{str(e).splitlines()[0]}"
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


# Hugging Face name -> (Google's name, whether the matrix is transposed)
HUGGING_FACE_NAMES = (
    (r"embeddings\.(\w+_embeddings)\.weight", r"bert/embeddings/\1", False),
    (
        r"embeddings\.LayerNorm\.(?:weight|gamma)",
        "bert/embeddings/LayerNorm/gamma",
        False,
    ),
    (
        r"embeddings\.LayerNorm\.(?:bias|beta)",
        "bert/embeddings/LayerNorm/beta",
        False,
    ),
    (
        r"encoder\.layer\.(\d+)\.(.*)\.LayerNorm\.(?:weight|gamma)",
        r"bert/encoder/layer_\1/\2/LayerNorm/gamma",
        False,
    ),
    (
        r"encoder\.layer\.(\d+)\.(.*)\.LayerNorm\.(?:bias|beta)",
        r"bert/encoder/layer_\1/\2/LayerNorm/beta",
        False,
    ),
    (
        r"encoder\.layer\.(\d+)\.(.*)\.weight",
        r"bert/encoder/layer_\1/\2/kernel",
        True,
    ),
    (
        r"encoder\.layer\.(\d+)\.(.*)\.bias",
        r"bert/encoder/layer_\1/\2/bias",
        False,
    ),
    (r"pooler\.dense\.weight", "bert/pooler/dense/kernel", True),
    (r"pooler\.dense\.bias", "bert/pooler/dense/bias", False),
    (r"classifier\.weight", "output_weights", False),
    (r"classifier\.bias", "output_bias", False),
    (r"qa_outputs\.weight", "cls/squad/output_weights", False),
    (r"qa_outputs\.bias", "cls/squad/output_bias", False),
)


def google_name(hugging_face_name: str) -> Tuple[Optional[str], bool]:
    """Google's name of a Hugging Face tensor, and whether to transpose it.

    Returns:
        (None, False) for tensors that have no part in the encoder or a head.
    """
    name = hugging_face_name
    if name.startswith("bert."):
        name = name[len("bert.") :]
    for pattern, replacement, transposed in HUGGING_FACE_NAMES:
        if re.fullmatch(pattern, name):
            result = re.sub(pattern, replacement, name)
            return result.replace(".", "/"), transposed
    return None, False


def open_safetensors(path: str, translate: bool) -> Weights:
    """Opens a safetensors file.

    Args:
        path: of the file.
        translate: whether its names are Hugging Face's; else they are
            Google's already.

    Raises:
        UserError: the file is missing, damaged or of another kind.
    """
    try:
        file = safetensors.safe_open(path, framework="np")
        names = list(file.keys())
        found = {
            name: tuple(file.get_slice(name).get_shape()) for name in names
        }
    except (OSError, safetensors.SafetensorError, struct.error) as error:
        raise UserError(
            f"{path} is missing, damaged or no safetensors file: {error}"
        ) from error
    sources: Dict[str, Tuple[str, bool]] = {}
    for name in names:
        target, transposed = google_name(name) if translate else (name, False)
        if target:
            sources[target] = (name, transposed)

    def read(name: str) -> np.ndarray:
        source, transposed = sources[name]
        try:
            value = np.asarray(file.get_tensor(source), np.float32)
        except (TypeError, safetensors.SafetensorError) as error:
            raise UserError(
                f"{path}: the tensor {source} cannot be read ({error}); save "
                "it as float32"
            ) from error
        return np.ascontiguousarray(value.T if transposed else value)

    shapes = {
        name: found[source][::-1] if transposed else found[source]
        for name, (source, transposed) in sources.items()
    }
    return Weights(path, shapes, read)


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
    base_path = run["base"]["path"]
    if absolute(base_path) == absolute(path):
        # A run has written its files beside the model that it started from.
        return InitCheckpoint(path, folder, weights)
    try:
        base_path, base = open_pretrained(base_path)
    except UserError as error:
        raise UserError(
            f"{path} was trained upon {base_path}, which cannot be opened: "
            f"{error}"
        ) from error
    return InitCheckpoint(path, os.path.dirname(base_path), base, weights, run)


def open_pretrained(path: str) -> Tuple[str, Weights]:
    """Opens what `open_init_checkpoint` takes, as it is.

    Returns:
        The path, with a folder resolved to what it holds, and the weights.

    Raises:
        UserError: nothing of the kind is there, or it is damaged.
    """
    if files.is_folder(path):
        candidates = [
            os.path.join(path, SAFETENSORS_FILE),
            os.path.join(path, GOOGLE_CHECKPOINT),
            latest_step(path)[0] or "",
        ]
        found = [
            c
            for c in candidates
            if c and (files.exists(c) or files.exists(c + ".index"))
        ]
        if not found:
            raise UserError(
                f"the folder {path} holds no {SAFETENSORS_FILE} and no "
                f"{GOOGLE_CHECKPOINT}; pass --init_checkpoint with one"
            )
        path = found[0]
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


def absolute(path: str) -> str:
    """The path from the root, so that it holds from another folder."""
    return path if "://" in path else os.path.abspath(path)


def fingerprint(weights: Weights, table: Any) -> str:
    """SHA-256 of a BERT's own variables: equal in every file format.

    Args:
        weights: holds every BERT variable of the table.
        table: a `ParameterTable`; adapters and head do not count.

    Raises:
        UserError: a variable is missing, of another shape, or unreadable.
    """
    digest = hashlib.sha256()
    for p in sorted(table.parameters, key=lambda p: p.name):
        if not p.is_added:
            check_shape(weights, p)
            digest.update(p.name.encode() + b"\0")
            digest.update(np.ascontiguousarray(weights.read(p.name)).data)
    return digest.hexdigest()


def check_shape(weights: Weights, parameter: Any) -> None:
    """Compares what a source holds with what the model needs.

    Raises:
        UserError: the variable is missing or of another shape.
    """
    name = parameter.name
    found = weights.shapes.get(name)
    if found is None:
        raise UserError(
            f"{weights.source} lacks the variable {name}: it is no checkpoint "
            "of this BERT config"
        )
    if found != parameter.shape:
        raise UserError(
            f"{weights.source}: {name} has the shape {list(found)}, but the "
            f"config and method need {list(parameter.shape)}; check "
            "--bert_config_file, the labels and the adapter size"
        )


InitialValues = Dict[str, Callable[[], np.ndarray]]


def choose_initial_values(
    table: Any,
    base: Weights,
    trained: Optional[Weights],
    seed: int,
    fresh_head: bool = False,
) -> InitialValues:
    """Says for every variable where its first value comes from.

    Args:
        table: a `ParameterTable`.
        base: the pretrained model; may hold adapters and a head as well.
        trained: an adapter artifact or a training checkpoint, or None; must
            hold every trained variable.
        seed: of fresh adapters and heads.
        fresh_head: whether a head of the base that has another shape is
            replaced by a fresh one, to be trained.

    Returns:
        Name -> function that makes the float32 array.

    Raises:
        UserError: a variable is missing or of another shape.
    """

    def choose(p: Any) -> Callable[[], np.ndarray]:
        fresh = functools.partial(
            modeling.initial_values, p.name, p.shape, p.initializer, seed
        )
        if p.trained and trained is not None:
            source = trained
        elif not p.is_added:
            source = base
        elif p.name not in base.shapes:
            return fresh
        elif (
            fresh_head and p.group == "head" and base.shapes[p.name] != p.shape
        ):
            logging.info("%s: fresh, the base's has another shape", p.name)
            return fresh
        else:
            logging.info("%s: taken from %s", p.name, base.source)
            source = base
        check_shape(source, p)
        return functools.partial(source.read, p.name)

    return {p.name: choose(p) for p in table.parameters}


def start_fingerprint(
    table: Any, base: Weights, trained: Optional[Weights]
) -> Optional[str]:
    """SHA-256 of what a training starts from beside BERT, or None.

    Reads every such tensor, so that damage is found before training.

    Raises:
        UserError: a tensor cannot be read.
    """
    digest, found = hashlib.sha256(), False
    for p in table.parameters:
        source = trained if p.trained and trained is not None else base
        if source is base and (not p.is_added or p.name not in base.shapes):
            continue
        found = True
        digest.update(p.name.encode() + b"\0")
        digest.update(np.ascontiguousarray(source.read(p.name)).data)
    return digest.hexdigest() if found else None


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
            f"cannot write the checkpoint {prefix}: "
            f"{str(error).splitlines()[0]}"
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
            f"{str(error).splitlines()[0]}"
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
