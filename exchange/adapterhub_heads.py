"""Reads the heads of AdapterHub's adapters.

Its own models have heads of any number of layers, and transformers' models
their one head.
"""

import dataclasses
import os
from typing import Any, Dict, List, Optional, Tuple

from errors import UserError
from exchange import fields
from exchange.base import (
    QUESTIONS,
    Head,
    Layer,
    Tensors,
    activation,
    classifier,
    labels_in_order,
)
from modeling import BertConfig
from storage import files
from tasks.head_shape import POOLED, HeadShape

CONFIG_FILE = "head_config.json"
WEIGHTS_FILE, PICKLE = "model_head.safetensors", "pytorch_model_head.bin"
CONFIG = {
    "model_class": str,
    "model_type?": str,
    "hidden_size?": int,
    "config?": dict,
    "config?.use_pooler?": bool,
    "config?.bias?": bool,
    "num_labels?": int,
}
# Class of a model of transformers' -> its head's tensors.
STATIC_HEADS = {
    "BertForSequenceClassification": "classifier",
    "BertForQuestionAnswering": "qa_outputs",
}
FLEXIBLE = ("BertAdapterModel", "BertModelWithHeads")


def read_head(folder: str, config: BertConfig, labels: Tuple[str, ...]) -> Head:
    """The head beside an adapter.

    Args:
        folder: of the adapter.
        config: of the BERT.
        labels: in the order of the logits; default: those of the file.

    Raises:
        UserError: there is none, or it is of a kind that is not read.
    """
    path = os.path.join(folder, CONFIG_FILE)
    if not files.exists(path):
        raise UserError(
            f"{folder} holds an adapter without a head ({CONFIG_FILE} is "
            "missing), which answers nothing; save it with its head"
        )
    described = files.read_object(path, "AdapterHub's head", CONFIG)
    fields.check(described, fields.HUB_FILE, path, is_open=True)
    for key, expected in (
        ("model_type", "bert"),
        ("hidden_size", config.hidden_size),
    ):
        if described.get(key) not in (None, expected):
            raise UserError(
                f"{path}: {key} is {described[key]!r}, expected {expected!r}"
            )
    tensors = Tensors(folder, WEIGHTS_FILE, PICKLE)
    model_class = described["model_class"]
    if model_class in STATIC_HEADS:
        layer = tensors.take_layer(
            STATIC_HEADS[model_class],
            described.get("num_labels"),
            config.hidden_size,
        )
        head = _make_head(
            STATIC_HEADS[model_class] == "qa_outputs",
            [layer],
            POOLED,
            described.get("label2id"),
            labels,
            path,
        )
    elif model_class in FLEXIBLE:
        head = _read_flexible(described, tensors, config, labels, path)
    else:
        raise UserError(
            f"{path}: the head is of a {model_class}, expected one of "
            f"{', '.join((*FLEXIBLE, *STATIC_HEADS))}"
        )
    tensors.check_all_taken()
    return head


def _read_flexible(described, tensors, config, labels, path) -> Head:
    """A head of a model with any number of them."""
    own = described.get("config") or {}
    kind, count = own.get("head_type"), own.get("layers")
    if kind not in ("classification", "question_answering"):
        raise UserError(
            f"{path}: a head of the type {kind!r} is not read; expected "
            "classification or question_answering"
        )
    fields.check(own, fields.HUB_HEAD, path)
    if not isinstance(count, int) or count < 1:
        raise UserError(f"{path}: the head has {count!r} layers")
    name, bias = described.get("name"), own.get("bias", True)
    shape = HeadShape(
        layers=count,
        activation=activation(own.get("activation_function") or "linear", path)
        if count > 1
        else HeadShape.activation,
        pooler=bool(own.get("use_pooler")),
        bias=bias,
    )
    # Dropout, dense layer and activation are numbered in one row.
    step = 3 if own.get("activation_function") else 2
    layers = []
    for number in range(count):
        last = number == count - 1
        layers.append(
            tensors.take_layer(
                f"heads.{name}.{1 + step * number}",
                own.get("num_labels", 2) if last else config.hidden_size,
                config.hidden_size,
                bias or not last,
            )
        )
    return _make_head(
        kind == "question_answering",
        layers,
        shape,
        own.get("label2id"),
        labels,
        path,
    )


def _make_head(
    questions: bool,
    layers: List[Layer],
    shape: HeadShape,
    label2id: Optional[Dict[str, Any]],
    labels: Tuple[str, ...],
    path: str,
) -> Head:
    count = len(layers[-1][0])
    if questions:
        if count != 2:
            raise UserError(f"{path}: a question has 2 logits, not {count}")
        spans = dataclasses.replace(shape, pooler=False, bias=True)
        return Head(QUESTIONS, spans, tuple(layers))
    if labels and len(labels) != count:
        raise UserError(
            f"{path}: {len(labels)} labels are named, but the head has {count}"
        )
    return classifier(
        layers, shape, labels or labels_in_order(label2id, count, path)
    )
