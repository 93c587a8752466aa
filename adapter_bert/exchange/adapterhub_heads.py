"""Heads of AdapterHub's library `adapters` 1.3, read and written.

Flexible heads, of its own models, have any number of layers. Static heads
belong to transformers' models. Source: `adapters/heads/` and `head_utils.py`.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from adapter_bert import files
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.config import BertConfig, same_activation
from adapter_bert.checkpoints import foreign_fields
from adapter_bert.checkpoints.foreign_tensors import Tensors
from adapter_bert.checkpoints.hugging_face import hugging_face_name
from adapter_bert.errors import UserError
from adapter_bert.exchange import foreign_heads
from adapter_bert.exchange.foreign_base import (
    FOREIGN_ACTIVATIONS,
    MASKED_LM_SCOPE,
    Head,
    activation,
    usual_shape,
)
from adapter_bert.exchange.foreign_heads import THRESHOLD, HeadOptions
from adapter_bert.tasks.kinds import (
    CHOICE,
    CLASSIFICATION,
    MASKED_LM,
    MULTI_LABEL,
    QUESTIONS,
    REGRESSION,
    TAGGING,
    VECTORS,
)
from adapter_bert.tasks.text_task import HeadShape

CONFIG_FILE = "head_config.json"
WEIGHTS_FILE, TORCH_FILE = "model_head.safetensors", "pytorch_model_head.bin"
CONFIG = {
    "model_class": str,
    "config?": dict,
    "config?.head_type?": str,
    "config?.use_pooler?": bool,
    "config?.bias?": bool,
    "config?.label2id?": dict,
    "num_labels?": int,
    f"{THRESHOLD}?": float,
}
# Fields of both files, and of a head's `config`.
FILE_FIELDS = dict.fromkeys(
    "config name version model_class model_type hidden_size num_labels "
    "label2id label_threshold model_name type config_id".split()
)
HEAD_FIELDS = dict.fromkeys(
    "head_type activation_function use_pooler layers bias num_labels "
    "num_choices label2id dropout_prob".split()
)
MASKED_LM_FIELDS = dict.fromkeys(
    "head_type activation_function layers bias layer_norm vocab_size "
    "embedding_size shift_labels label2id dropout_prob".split()
)
# Ends of classes of the library's own models, the second of before 2022.
FLEXIBLE = ("AdapterModel", "ModelWithHeads")
# Types of flexible heads -> kinds.
TYPES = {
    "classification": foreign_heads.ANY_OF_TEXTS,
    "multilabel_classification": MULTI_LABEL,
    "tagging": TAGGING,
    "multiple_choice": CHOICE,
    "question_answering": QUESTIONS,
    "masked_lm": MASKED_LM,
}
# Kind -> type, and the fields of its config that other types lack.
WRITTEN = {
    CLASSIFICATION: ("classification", "num_labels use_pooler bias"),
    REGRESSION: ("classification", "num_labels use_pooler bias"),
    MULTI_LABEL: ("multilabel_classification", "num_labels use_pooler bias"),
    TAGGING: ("tagging", "num_labels"),
    CHOICE: ("multiple_choice", "num_choices use_pooler"),
    QUESTIONS: ("question_answering", "num_labels"),
}


def _masked_lm_modules(config: BertConfig) -> dict[str, str]:
    names = ("transform/dense/bias", "transform/LayerNorm/beta")
    theirs = [
        hugging_face_name(f"{MASKED_LM_SCOPE}{name}", config.model_type)[0]
        for name in names
    ]
    theirs.append(foreign_heads.decoder(config))
    modules = (name.rpartition(".")[0] for name in theirs)
    return dict(zip(("0", "2", "3"), modules))


def flexible(config: BertConfig) -> list[str]:
    """Lists the classes of the library's own models of a BERT."""
    names = ARCHITECTURES[config.model_type].classes
    return [f"{name}{end}" for name in names for end in FLEXIBLE]


def is_in(folder: str) -> bool:
    """True if a folder holds a head."""
    return files.exists(os.path.join(folder, CONFIG_FILE))


def read(folder: str, config: BertConfig, options: HeadOptions) -> Head:
    """Reads the head next to an adapter."""
    path = os.path.join(folder, CONFIG_FILE)
    if not is_in(folder):
        raise UserError(
            f"{folder} holds an adapter without a head ({CONFIG_FILE} is "
            "missing), which answers nothing; save it with its head"
        )
    described = files.read_object(path, "AdapterHub's head", CONFIG)
    foreign_fields.check(described, FILE_FIELDS, path, is_open=True)
    tensors = Tensors(folder, WEIGHTS_FILE, TORCH_FILE)
    model_class = described["model_class"]
    flexible_classes, static = flexible(config), foreign_heads.classes(config)
    if model_class in flexible_classes:
        head = _read_flexible(described, tensors, config, options, path)
    elif model_class in static:
        kind = static[model_class]
        head = (
            foreign_heads.read_masked_lm(tensors, config, path)
            if kind == MASKED_LM
            else foreign_heads.read_dense(
                kind, tensors, config, described, options, path
            )
        )
    else:
        raise UserError(
            f"{path}: the head is of a {str(model_class)[:80]}, expected one "
            f"of {', '.join((*flexible_classes, *static))}"
        )
    tensors.check_all_taken()
    return head


def _read_flexible(
    described: Mapping[str, Any],
    tensors: Tensors,
    config: BertConfig,
    options: HeadOptions,
    path: str,
) -> Head:
    fields = described.get("config") or {}
    name = f"heads.{described.get('name')}"
    prefix = f"{name}."
    # The library saves heads whose names begin alike, too.
    others = [t for t in tensors.names if t.startswith(name)]
    tensors.drop([t for t in others if not t.startswith(prefix)])
    if fields.get("head_type") not in TYPES:
        raise UserError(
            f"{path}: a head of the type {fields.get('head_type')!r:.80} is "
            f"not read; expected {', '.join(TYPES)}"
        )
    kind = TYPES[fields["head_type"]]
    if kind == MASKED_LM:
        return _read_masked_lm(fields, prefix, tensors, config, path)
    foreign_fields.check(fields, HEAD_FIELDS, path)
    count = fields.get("layers")
    if type(count) is not int or not 0 < count <= len(tensors.names):
        raise UserError(
            f"{path}: the head has {str(count)[:80]} layers, expected a whole "
            f"number above 0, and tensors of each in {tensors.path}"
        )
    bias, between = fields.get("bias", True), fields.get("activation_function")
    shape = HeadShape(
        layers=count, pooler=bool(fields.get("use_pooler")), bias=bias
    )
    if count > 1:
        function = activation(between or "linear", path)
        shape = dataclasses.replace(shape, activation=function)
    # Modules are numbered: dropout, dense layer, activation if there is one.
    places = [f"{prefix}{1 + (3 if between else 2) * n}" for n in range(count)]
    hidden = config.hidden_size
    layers = [tensors.take_layer(p, hidden, hidden) for p in places[:-1]]
    outputs = 1 if kind == CHOICE else fields.get("num_labels", 2)
    layers.append(tensors.take_layer(places[-1], outputs, hidden, bias))
    names = {**fields, THRESHOLD: described.get(THRESHOLD)}
    head = foreign_heads.make_head(kind, layers, shape, names, options, path)
    usual = usual_shape(head.kind)
    if head.kind == CHOICE:
        config = config.for_choices
    if head.shape == usual.fitted_to(config):
        head = dataclasses.replace(head, shape=usual)
    return head


def _read_masked_lm(
    fields: Mapping[str, Any],
    prefix: str,
    tensors: Tensors,
    config: BertConfig,
    path: str,
) -> Head:
    foreign_fields.check(fields, MASKED_LM_FIELDS, path)
    function = activation(fields.get("activation_function"), path)
    if not same_activation(function, config.hidden_act):
        raise UserError(
            f"{path}: activation_function is {str(function)[:80]}, expected "
            f"the BERT's, {config.hidden_act}"
        )
    modules = _masked_lm_modules(config)
    tensors.rename(lambda name: foreign_heads.renamed(name, prefix, modules))
    return foreign_heads.read_masked_lm(tensors, config, path)


def lack(head: Head, config: BertConfig) -> str:
    """Says why a head is not written, or ""."""
    if head.kind == VECTORS:
        return (
            "AdapterHub's files do not say how vectors are made; write it "
            "--without_head"
        )
    if head.kind in WRITTEN and "bias" not in WRITTEN[head.kind][1].split():
        if not head.shape.fitted_to(config).bias:
            return (
                f"AdapterHub's heads of {head.kind} have a bias, but this one "
                "has none"
            )
    return ""


def write(
    head: Head, name: str, config: BertConfig
) -> tuple[dict[str, Any], dict[str, Any], dict[str, np.ndarray]]:
    """Returns a flexible head: config, what stands next to it, tensors."""
    if head.kind == CHOICE:
        config = config.for_choices
    prefix, shape = f"heads.{name}.", head.shape.fitted_to(config)
    if head.kind == MASKED_LM:
        return _write_masked_lm(head, prefix, config)
    kind, fields = WRITTEN[head.kind]
    has_activation = shape.layers > 1
    step = 3 if has_activation else 2
    tensors: dict[str, np.ndarray] = {}
    for number, (weights, bias) in enumerate(head.layers):
        place = f"{prefix}{1 + step * number}"
        tensors[f"{place}.weight"] = weights
        if bias is not None:
            tensors[f"{place}.bias"] = bias
    labels = list(head.labels)
    if not labels:
        labels = [f"LABEL_{i}" for i in range(len(head.layers[-1][0]))]
    values = {
        "num_labels": len(labels),
        "num_choices": len(labels),
        "use_pooler": shape.pooler,
        "bias": shape.bias,
    }
    described = {
        "head_type": kind,
        "layers": shape.layers,
        "activation_function": FOREIGN_ACTIVATIONS[shape.activation]
        if has_activation
        else None,
        "label2id": {label: number for number, label in enumerate(labels)},
        "dropout_prob": None,
        **{field: values[field] for field in fields.split()},
    }
    more = {} if head.threshold is None else {THRESHOLD: head.threshold}
    return described, more, tensors


def _write_masked_lm(head: Head, prefix: str, config: BertConfig):
    """Writes a head of masked words; its matrix is BERT's own."""
    modules = _masked_lm_modules(config)
    back = {module: number for number, module in modules.items()}
    named = foreign_heads.masked_lm_tensors(head, config)
    tensors = {
        f"{prefix}{foreign_heads.renamed(name, '', back)}": value
        for name, value in named.items()
        if name.rpartition(".")[0] in back
    }
    fields = {
        "head_type": "masked_lm",
        "vocab_size": config.vocab_size,
        "embedding_size": config.embedding_width,
        "layers": 2,
        "activation_function": FOREIGN_ACTIVATIONS[config.hidden_act],
        "layer_norm": True,
        "bias": True,
        "shift_labels": False,
        "label2id": None,
    }
    return fields, {}, tensors
