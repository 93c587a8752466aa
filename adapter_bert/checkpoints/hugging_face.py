"""Safetensors files, and PyTorch's, under Hugging Face's names."""

import functools
import json
import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
import safetensors

from adapter_bert import files
from adapter_bert.bert.architectures import (
    ARCHITECTURES,
    DENSE,
    FIRST_OF_HEAD,
    LAYER_NORM,
    OUTPUT,
    OUTPUT_BIAS,
    OUTPUT_WEIGHTS,
    TRANSFORM,
    Architecture,
    Scope,
)
from adapter_bert.checkpoints.weights import Weights, as_floats, widened
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
# What stands before names of a model within another program's: data parallel
# and compiled modules of PyTorch, trainers' modules.
WRAPPERS = re.compile(r"(?:(?:module|_orig_mod|model)\.)*")
# Safetensors' types of numbers -> numpy's.
TYPES = {
    **{f"F{8 * size}": f"<f{size}" for size in (2, 4, 8)},
    **{f"{k}{8 * n}": f"<{k.lower()}{n}" for k in "IU" for n in (1, 2, 4, 8)},
    "BOOL": "?",
}
BFLOAT16 = "BF16"
# Places in names.
PLACES = {
    "{layer}": r"(?P<layer>\d+)",
    "{within}": r"(?P<within>.*)",
    "{table}": r"(?P<table>\w+_embeddings)",
}
LAYER = "encoder.layer.{layer}.{within}"
OURS = "bert/encoder/layer_{layer}/{within}"
# BERT's own, of the models that are like it too but where they have others.
SCOPES: tuple[Scope, ...] = (
    ("embeddings.LayerNorm", "bert/embeddings/LayerNorm/{end}", LAYER_NORM),
    (f"{LAYER}.LayerNorm", f"{OURS}/LayerNorm/{{end}}", LAYER_NORM),
    (LAYER, f"{OURS}/{{end}}", DENSE),
    ("pooler.dense", "bert/pooler/dense/{end}", DENSE),
    ("cls.seq_relationship", "cls/seq_relationship/output_{end}", OUTPUT),
    ("cls.predictions.transform.dense", f"{TRANSFORM}/dense/{{end}}", DENSE),
    (
        "cls.predictions.transform.LayerNorm",
        f"{TRANSFORM}/LayerNorm/{{end}}",
        LAYER_NORM,
    ),
)
# Kind of a head -> the end of the name of transformers' class of a model with
# such a head, and its `problem_type`.
TEXTS, CHOICES = "ForSequenceClassification", "ForMultipleChoice"
MULTIPLE_CHOICE, RERANK = "multiple choice", "rerank"
# Fields about a cross-encoder of sentence-transformers, and before version 4.
CROSS_ENCODER = "sentence_transformers"
OLD_ACTIVATION = "sbert_ce_default_activation_function"
HEAD_CLASSES = {
    "classification": (TEXTS, "single_label_classification"),
    "multi-label": (TEXTS, "multi_label_classification"),
    "regression": (TEXTS, "regression"),
    RERANK: (TEXTS, ""),
    MULTIPLE_CHOICE: (CHOICES, None),
    "tagging": ("ForTokenClassification", None),
    "questions": ("ForQuestionAnswering", None),
    "masked_lm": ("ForMaskedLM", None),
    "pretraining": ("ForPreTraining", None),
}
# Pairs of names, theirs and Google's.
Names = list[tuple[str, str]]
HEAD_FIELDS = tuple(
    "architectures problem_type num_labels id2label label2id".split()
)


def head_modules(kind: str, model: Architecture) -> tuple[str, ...]:
    """Lists the modules of the dense layers of a kind's head, first to last.

    A kind that is not known is one of texts.
    """
    if kind == "questions":
        return ("qa_outputs",)
    if kind == "tagging":
        return ("classifier",)
    return model.choices if kind == MULTIPLE_CHOICE else model.texts


def _head_names(kind: str, model: Architecture) -> list[Scope]:
    modules = head_modules(kind, model)
    scope = "cls/squad/output_{end}" if kind == "questions" else "output_{end}"
    ours = (FIRST_OF_HEAD, scope)[-len(modules) :]
    return [(module, name, OUTPUT) for module, name in zip(modules, ours)]


def _names(scopes: Iterable[Scope], models: Iterable[Architecture]) -> Names:
    pairs = [("embeddings.{table}.weight", "bert/embeddings/{table}")]
    for theirs, ours, ends in scopes:
        for end, our_end in ends.items():
            pairs.append((f"{theirs}.{end}", ours.replace("{end}", our_end)))
    for model in models:
        pairs += [(bias, OUTPUT_BIAS) for bias in model.biases]
        pairs.append((model.decoder, OUTPUT_WEIGHTS))
    return pairs


def _renaming(
    pairs: Iterable[tuple[str, str]], separator: str, end: str = r"\Z"
) -> Callable[[str], Optional[str]]:
    """Makes a function that renames by the first pair that fits, or None."""
    # What a place holds gets the separator in the place of dots and slashes.
    patterns = []
    for name, new in pairs:
        pattern = re.escape(name)
        for place, expression in PLACES.items():
            pattern = pattern.replace(re.escape(place), expression)
        patterns.append((re.compile(pattern + end), new))

    def rename(name: str) -> Optional[str]:
        for pattern, new in patterns:
            if match := pattern.match(name):
                values = {
                    place: re.sub("[./]", separator, value)
                    for place, value in match.groupdict().items()
                }
                return new.format(**values) + name[match.end() :]
        return None

    return rename


def _all_names() -> Names:
    every = ARCHITECTURES.values()
    heads = [
        scope
        for model in every
        for kind in HEAD_CLASSES
        for scope in _head_names(kind, model)
    ]
    scopes = [scope for model in every for scope in model.scopes]
    return _names([*scopes, *heads, *SCOPES], every)


_to_google = _renaming(_all_names(), "/")


def google_name(hugging_face_name: str) -> tuple[Optional[str], bool]:
    """Google's name of a Hugging Face tensor, and whether to transpose it.

    Returns:
        (None, False) for tensors that have no part in the encoder or a head.
    """
    name = WRAPPERS.sub("", hugging_face_name, 1)
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    target = _to_google(name)
    return target, bool(target and target.endswith("/kernel"))


@functools.cache
def _from_google(model_type: str, kind: str) -> Callable[[str], Optional[str]]:
    model = ARCHITECTURES[model_type]
    kinds = kind, *HEAD_CLASSES
    heads = [scope for each in kinds for scope in _head_names(each, model)]
    names = _names([*model.scopes, *heads, *SCOPES], [model])
    return _renaming([(ours, theirs) for theirs, ours in names], ".")


def hugging_face_name(
    name: str, model_type: str = "bert", kind: str = ""
) -> Optional[tuple[str, bool]]:
    """Gives Hugging Face's name of a variable, and whether to transpose it.

    Args:
        name: of the variable.
        model_type: one of `ARCHITECTURES`.
        kind: of the head, one of `HEAD_CLASSES`; by default of texts.

    Returns:
        None for what has no part in the encoder or a head.
    """
    theirs = _from_google(model_type, kind)(name)
    if theirs is None:
        return None
    if name.startswith("bert/"):
        theirs = ARCHITECTURES[model_type].prefix + theirs
    return theirs, name.endswith("/kernel")


def activation_of_scores(config: Mapping[str, Any]) -> Optional[str]:
    """Finds PyTorch's name of a cross-encoder's activation in a config."""
    about = config.get(CROSS_ENCODER)
    about = about if isinstance(about, dict) else {}
    name = about.get("activation_fn", config.get(OLD_ACTIVATION))
    return None if name is None else str(name)


def kind_of_head(config: Mapping[str, Any]) -> str:
    """Finds the kind of a config's head in `HEAD_CLASSES`, or "" if unknown.

    A model for texts without a `problem_type` may be of any kind.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    labels = config.get("id2label")
    if (
        str(name).endswith(TEXTS)
        and isinstance(labels, dict)
        and len(labels) == 1
        and activation_of_scores(config)
    ):
        return RERANK
    for kind, (end, problem) in HEAD_CLASSES.items():
        if str(name).endswith(end) and config.get("problem_type") == problem:
            return kind
    return ""


def tensor_of(kind: str, shape: Sequence[int], content: bytes) -> np.ndarray:
    """Gives a tensor of safetensors, its numbers as numpy has them.

    bfloat16 becomes float32. Raises LookupError for types that numpy lacks.
    """
    if kind == BFLOAT16:
        value = widened(np.frombuffer(content, "<u2"))
    else:
        value = np.frombuffer(content, TYPES[kind])
    return value.reshape(shape)


def _which(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def open_safetensors(path: str) -> Weights:
    """Opens a safetensors file, whose names are Hugging Face's.

    Each tensor is read on its own: a file that stays open would keep all that
    was read in memory.
    """
    if "://" in path:
        raise UserError(
            f"{path} is not on a local disk, as a safetensors file has to be; "
            "copy its folder to one"
        )
    files.check_plain(path, "the weights")
    try:
        opened = _which(path)
        # The library checks the header.
        with safetensors.safe_open(path, framework="np"):
            pass
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
    except (OSError, struct.error, *UNREADABLE_TENSORS) as error:
        raise UserError(
            f"{path} is missing, damaged or no safetensors file: {error}"
        ) from error
    header.pop("__metadata__", None)

    def read(name: str) -> np.ndarray:
        tensor = header[name]
        first, last = tensor["data_offsets"]
        try:
            with open(path, "rb") as file:
                if _which(path) != opened:
                    raise UserError(
                        f"{path} has changed since it was opened; start the "
                        "program again"
                    )
                file.seek(8 + size + first)
                content = np.fromfile(file, np.uint8, last - first)
            value = tensor_of(tensor["dtype"], tensor["shape"], content)
            if value.dtype.kind in "biu":
                raise TypeError("whole numbers, as of a quantized model")
            return value if value.dtype == np.float32 else as_floats(value)
        except OSError as error:
            raise UserError(
                f"{path} cannot be read any more: {error}"
            ) from error
        except UNREADABLE_TENSORS as error:
            raise UserError(
                f"{path}: the tensor {name} cannot be read ({error}); save it "
                "as float32"
            ) from error

    shapes = {name: tuple(header[name]["shape"]) for name in sorted(header)}
    return _weights(path, shapes, read)


def open_torch(path: str) -> Weights:
    """Opens a `pytorch_model.bin`, whose names are Hugging Face's.

    All its tensors stay in memory.
    """
    from adapter_bert.checkpoints import torch_files

    tensors = torch_files.read(path, lambda name: bool(google_name(name)[0]))
    shapes = {name: value.shape for name, value in tensors.items()}
    return _weights(path, shapes, lambda name: tensors[name].copy())


def _weights(
    path: str,
    shapes: Mapping[str, tuple[int, ...]],
    read_tensor: Callable[[str], np.ndarray],
) -> Weights:
    names = {google_name(name): name for name in shapes}
    sources = {
        name: (source, is_transposed)
        for (name, is_transposed), source in names.items()
        if name
    }

    def read(name: str) -> np.ndarray:
        source, is_transposed = sources[name]
        value = read_tensor(source)
        return np.ascontiguousarray(value.T if is_transposed else value)

    by_name = {
        name: shapes[source][:: -1 if is_transposed else 1]
        for name, (source, is_transposed) in sources.items()
    }
    # Hugging Face's `gelu` is the error function.
    return Weights(path, by_name, read, "gelu_erf")
