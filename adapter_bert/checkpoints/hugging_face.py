"""Safetensors files, and PyTorch's, under Hugging Face's names."""

import contextlib
import os
import re
import struct
import threading
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import safetensors

from adapter_bert import files
from adapter_bert.bert.architectures import (
    ARCHITECTURES,
    DENSE,
    LAYER_NORM,
    OUTPUT,
    OUTPUT_BIAS,
    TRANSFORM,
    Scope,
)
from adapter_bert.checkpoints import torch_files
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.errors import UserError

# Errors of safetensors for a file that is damaged, or has a shape that no array
# can have, or a type that numpy lacks.
UNREADABLE_TENSORS = (
    safetensors.SafetensorError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
PREFIXES = tuple(a.prefix for a in ARCHITECTURES.values())
LAYER = r"encoder\.layer\.(\d+)\.(.*)"
# BERT's own first: `hugging_face_name` gives these.
SCOPES: Tuple[Scope, ...] = (
    (r"embeddings\.LayerNorm", "bert/embeddings/LayerNorm/{}", LAYER_NORM),
    (
        rf"{LAYER}\.LayerNorm",
        r"bert/encoder/layer_\1/\2/LayerNorm/{}",
        LAYER_NORM,
    ),
    (LAYER, r"bert/encoder/layer_\1/\2/{}", DENSE),
    (r"pooler\.dense", "bert/pooler/dense/{}", DENSE),
    ("classifier", "output_{}", OUTPUT),
    (r"cls\.seq_relationship", "cls/seq_relationship/output_{}", OUTPUT),
    ("qa_outputs", "cls/squad/output_{}", OUTPUT),
    (r"cls\.predictions\.transform\.dense", f"{TRANSFORM}/dense/{{}}", DENSE),
    (
        r"cls\.predictions\.transform\.LayerNorm",
        f"{TRANSFORM}/LayerNorm/{{}}",
        LAYER_NORM,
    ),
    *(scope for a in ARCHITECTURES.values() for scope in a.scopes),
)
# `decoder.weight`, the head's matrix, is the word embeddings.
BIASES = (
    r"cls\.predictions\.(?:decoder\.)?bias",
    *(bias for a in ARCHITECTURES.values() for bias in a.biases),
)
# Hugging Face name -> Google's name
HUGGING_FACE_NAMES = (
    (r"embeddings\.(\w+_embeddings)\.weight", r"bert/embeddings/\1"),
    *(
        (rf"{theirs}\.{end}", ours.format(our_end))
        for theirs, ours, ends in SCOPES
        for end, our_end in ends.items()
    ),
    *((bias, OUTPUT_BIAS) for bias in BIASES),
)
# Google's name -> Hugging Face's, where their parts have other names
HEADS = {
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/predictions/output_bias": "cls.predictions.bias",
}
# Kind of a head -> transformers' class of a BERT with such a head, and its
# `problem_type`.
TEXTS = "BertForSequenceClassification"
HEAD_CLASSES = {
    "classification": (TEXTS, "single_label_classification"),
    "multi-label": (TEXTS, "multi_label_classification"),
    "regression": (TEXTS, "regression"),
    "multiple choice": ("BertForMultipleChoice", None),
    "tagging": ("BertForTokenClassification", None),
    "questions": ("BertForQuestionAnswering", None),
    "masked_lm": ("BertForMaskedLM", None),
    "pretraining": ("BertForPreTraining", None),
}
HEAD_FIELDS = tuple(
    "architectures problem_type num_labels id2label label2id".split()
)
# Bytes, as float32, that are read before a file is opened anew.
HELD = 2**20
LAST_PARTS = {"kernel": "weight", "gamma": "weight", "beta": "bias"}


def google_name(hugging_face_name: str) -> Tuple[Optional[str], bool]:
    """Google's name of a Hugging Face tensor, and whether to transpose it.

    Returns:
        (None, False) for tensors that have no part in the encoder or a head.
    """
    name = hugging_face_name
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for pattern, replacement in HUGGING_FACE_NAMES:
        match = re.fullmatch(pattern, name)
        if match:
            result = match.expand(replacement).replace(".", "/")
            return result, result.endswith("/kernel")
    return None, False


def hugging_face_name(name: str) -> Optional[Tuple[str, bool]]:
    """Hugging Face's name of Google's variable, and whether to transpose it.

    Returns:
        None for what has no part in the encoder or a head.
    """
    theirs = HEADS.get(name)
    if theirs is None:
        *parts, last = name.replace("/layer_", "/layer/").split("/")
        last = LAST_PARTS.get(last, last)
        if last.endswith("_embeddings"):
            last += ".weight"
        theirs = ".".join([*parts, last])
    back, transposed = google_name(theirs)
    return (theirs, transposed) if back == name else None


def describe_head(kind: str, labels: Sequence[str]) -> Dict[str, Any]:
    """Fields of a head of a kind of `HEAD_CLASSES` in transformers' config.

    `labels` are those of the outputs, in order, if these have any.
    """
    name, problem = HEAD_CLASSES[kind]
    found: Dict[str, Any] = {"architectures": [name]}
    if problem:
        found["problem_type"] = problem
    if kind == "regression":
        labels = ["LABEL_0"]
    if labels:
        found["num_labels"] = len(labels)
        found["id2label"] = {str(i): label for i, label in enumerate(labels)}
        found["label2id"] = {label: i for i, label in enumerate(labels)}
    return found


def kind_of_head(config: Mapping[str, Any]) -> str:
    """The kind of a config's head in `HEAD_CLASSES`, or "" if unknown.

    A model for texts without a `problem_type` may be of any kind.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    for kind, (known, problem) in HEAD_CLASSES.items():
        # RoBERTa's class ends alike.
        end = known.removeprefix("Bert")
        if str(name).endswith(end) and config.get("problem_type") == problem:
            return kind
    return ""


def as_floats(value: np.ndarray) -> np.ndarray:
    """Real numbers as float32; raises TypeError for other types."""
    if value.dtype.kind == "c":
        raise TypeError(f"{value.dtype} is no type of real numbers")
    # Too large numbers become infinite; callers check for that.
    with np.errstate(over="ignore"):
        return np.asarray(value, np.float32)


def _which(path: str) -> Tuple[int, ...]:
    """Tells a file from one that takes its place."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def open_safetensors(path: str) -> Weights:
    """Opens a safetensors file, whose names are Hugging Face's.

    A file that stays open keeps all that was read in memory, and opening it
    reads the whole header. So the file is opened anew after some megabytes.
    Raises UserError if the file is missing, damaged, of another kind, no plain
    one, or not on a local disk.
    """
    if "://" in path:
        raise UserError(
            f"{path} is not on a local disk, as a safetensors file has to be; "
            "copy its folder to one"
        )
    files.check_plain(path, "the weights")
    try:
        opened = _which(path)
        with safetensors.safe_open(path, framework="np") as file:
            names = list(file.keys())
            found = {
                name: tuple(file.get_slice(name).get_shape()) for name in names
            }
    except (OSError, struct.error, *UNREADABLE_TENSORS) as error:
        raise UserError(
            f"{path} is missing, damaged or no safetensors file: {error}"
        ) from error
    sources = _sources(names)
    # Several threads may read.
    lock, held = threading.Lock(), contextlib.ExitStack()
    file, left = None, 0

    def read(name: str) -> np.ndarray:
        nonlocal file, left
        source, transposed = sources[name]
        try:
            with lock:
                if file is None:
                    to_read = safetensors.safe_open(path, framework="np")
                    file, left = held.enter_context(to_read), HELD
                if _which(path) != opened:
                    raise UserError(
                        f"{path} has changed since it was opened; start the "
                        "program again"
                    )
                value = file.get_tensor(source)
                if value.dtype.kind in "biu":
                    raise TypeError("whole numbers, as of a quantized model")
                value = as_floats(value)
                left -= value.nbytes
                if left <= 0:
                    file = None
                    held.close()
        except OSError as error:
            raise UserError(
                f"{path} cannot be read any more: {error}"
            ) from error
        except UNREADABLE_TENSORS as error:
            raise UserError(
                f"{path}: the tensor {source} cannot be read ({error}); save "
                "it as float32"
            ) from error
        return np.ascontiguousarray(value.T if transposed else value)

    return _weights(path, sources, found, read)


def open_torch(path: str) -> Weights:
    """Opens a `pytorch_model.bin`, whose names are Hugging Face's.

    All its tensors stay in memory. Raises UserError if the file is missing,
    damaged, or does anything but hold tensors by name.
    """
    tensors = torch_files.read(path, lambda name: bool(google_name(name)[0]))
    sources = _sources(tensors)

    def read(name: str) -> np.ndarray:
        source, transposed = sources[name]
        value = tensors[source]
        return np.array(value.T if transposed else value, order="C")

    found = {name: value.shape for name, value in tensors.items()}
    return _weights(path, sources, found, read)


def _sources(names: Iterable[str]) -> Dict[str, Tuple[str, bool]]:
    """Names of `google_name` -> names of tensors, whether to transpose."""
    found = {}
    for name in names:
        target, transposed = google_name(name)
        if target:
            found[target] = name, transposed
    return found


def _weights(
    path: str,
    sources: Mapping[str, Tuple[str, bool]],
    found: Mapping[str, Tuple[int, ...]],
    read: Callable[[str], np.ndarray],
) -> Weights:
    """Weights of tensors whose shapes are `found`."""
    shapes = {
        name: found[source][::-1] if transposed else found[source]
        for name, (source, transposed) in sources.items()
    }
    # Hugging Face's `gelu` is the error function.
    return Weights(path, shapes, read, "gelu_erf")
