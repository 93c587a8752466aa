"""Every weight that is read or written.

In here: pretrained and trained models in the layouts of Google (TensorFlow
checkpoints of BERT and of adapter-bert), Hugging Face (safetensors) and this
project (training checkpoints of trained variables only), each read as
`Weights` under Google's variable names; the choice of every variable's initial
value; the adapter artifact. Not in here: writing training checkpoints, which
the engines do.
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
import safetensors.numpy
import tensorflow as tf

import files
import modeling
from errors import UserError

RUN_FILE = "run.json"
ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHTS_FILE = "adapter.safetensors"
SAFETENSORS_FILE = "model.safetensors"
GOOGLE_CHECKPOINT = "bert_model.ckpt"


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


# Key -> keys of its object, or none where it is a text.
DESCRIPTION = {
    "method": (),
    "base": ("path", "fingerprint"),
    "task": ("name",),
    "tokenizer": ("vocabulary", "do_lower_case"),
}


def read_description(path: str, what: str) -> Dict[str, Any]:
    """Reads `run.json` or `adapter_config.json`.

    Raises:
        UserError: the file cannot be read, or lacks a part of `DESCRIPTION`.
    """
    value = files.read_json(path, what)
    for key, parts in DESCRIPTION.items():
        part = value.get(key) if isinstance(value, dict) else None
        if not isinstance(part, dict if parts else str):
            raise UserError(f"{path} is no description of a run: no {key}")
        for name in parts:
            if name not in part:
                raise UserError(
                    f"{path} is no description of a run: no {key}.{name}"
                )
    return value


def open_init_checkpoint(path: str) -> InitCheckpoint:
    """Opens any of the layouts that can start a run.

    Args:
        path: a TensorFlow checkpoint's prefix (Google's, adapter-bert's or a
            training checkpoint of this project), a `.safetensors` file, or a
            folder with `model.safetensors` or `bert_model.ckpt`.

    Raises:
        UserError: nothing of the kind is there, or it is damaged.
    """
    exists = tf.io.gfile.exists
    if tf.io.gfile.isdir(path):
        candidates = [
            os.path.join(path, SAFETENSORS_FILE),
            os.path.join(path, GOOGLE_CHECKPOINT),
            tf.train.latest_checkpoint(path) or "",
        ]
        found = [c for c in candidates if exists(c) or exists(c + ".index")]
        if not found:
            raise UserError(
                f"the folder {path} holds no {SAFETENSORS_FILE} and no "
                f"{GOOGLE_CHECKPOINT}; pass --init_checkpoint with one"
            )
        path = found[0]
    folder = os.path.dirname(path)
    if path.endswith(".safetensors"):
        return InitCheckpoint(path, folder, open_safetensors(path, True))
    if not exists(path + ".index"):
        raise UserError(
            f"--init_checkpoint {path} does not exist; expected a TensorFlow "
            "checkpoint's prefix (as bert_model.ckpt), a .safetensors file or "
            "a folder with one"
        )
    weights = open_tensorflow(path)
    run_file = os.path.join(folder, RUN_FILE)
    if not exists(run_file):
        return InitCheckpoint(path, folder, weights)
    run = read_description(run_file, "the run's description")
    base_path = run["base"]["path"]
    try:
        base = open_init_checkpoint(base_path)
    except UserError as error:
        raise UserError(
            f"{path} was trained upon {base_path}, which cannot be opened: "
            f"{error}"
        ) from error
    return InitCheckpoint(path, base.folder, base.weights, weights, run)


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
        if p.group not in ("adapters", "head"):
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
    table: Any, base: Weights, trained: Optional[Weights], seed: int
) -> InitialValues:
    """Says for every variable where its first value comes from.

    Args:
        table: a `ParameterTable`.
        base: the pretrained model; may hold adapters and a head as well.
        trained: an adapter artifact or a training checkpoint, or None; must
            hold every trained variable.
        seed: of fresh adapters and heads.

    Returns:
        Name -> function that makes the float32 array.

    Raises:
        UserError: a variable is missing or of another shape.
    """

    def choose(p: Any) -> Callable[[], np.ndarray]:
        if p.trained and trained is not None:
            source = trained
        elif p.name in base.shapes or p.group not in ("adapters", "head"):
            source = base
        else:
            return functools.partial(
                modeling.initial_values, p.name, p.shape, p.initializer, seed
            )
        check_shape(source, p)
        return functools.partial(source.read, p.name)

    return {p.name: choose(p) for p in table.parameters}


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A trained task: megabytes to put beside a frozen BERT.

    Attributes:
        config: `adapter_config.json`: method, task, labels, base fingerprint,
            versions, file hash.
        weights: the trained variables.
    """

    config: Dict[str, Any]
    weights: Weights


def write_artifact(
    folder: str, config: Dict[str, Any], values: Dict[str, np.ndarray]
) -> None:
    """Writes `adapter.safetensors`, then `adapter_config.json` with its hash.

    Raises:
        UserError: a file cannot be written.
    """
    content = safetensors.numpy.save(
        {name: np.ascontiguousarray(value) for name, value in values.items()}
    )
    config = dict(config, sha256=hashlib.sha256(content).hexdigest())
    tf.io.gfile.makedirs(folder)
    files.write_bytes(os.path.join(folder, ADAPTER_WEIGHTS_FILE), content)
    files.write_json(os.path.join(folder, ADAPTER_CONFIG_FILE), config)


def open_artifact(folder: str) -> Artifact:
    """Opens an adapter artifact.

    Raises:
        UserError: a file is missing or damaged, or the two do not belong
            together.
    """
    config_path = os.path.join(folder, ADAPTER_CONFIG_FILE)
    config = read_description(config_path, "the adapter's description")
    path = os.path.join(folder, ADAPTER_WEIGHTS_FILE)
    content = files.read_bytes(path, "the adapter's weights")
    if hashlib.sha256(content).hexdigest() != config.get("sha256"):
        raise UserError(
            f"{path} is damaged or was written with another "
            f"{ADAPTER_CONFIG_FILE}; copy the adapter again"
        )
    values = safetensors.numpy.load(content)
    shapes = {name: value.shape for name, value in values.items()}
    return Artifact(config, Weights(path, shapes, values.__getitem__))


def latest_step(output_dir: str) -> Tuple[Optional[str], int]:
    """The newest training checkpoint of a folder and its step, or (None, 0)."""
    path = tf.train.latest_checkpoint(output_dir)
    if path is None:
        return None, 0
    return path, int(path.rsplit("-", 1)[1])
