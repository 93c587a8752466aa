"""Heads of other programs: kinds, labels, and heads of masked words.

What a head computes follows from its kind: two heads of the same layers answer
with one class or with a set of labels. AdapterHub's flexible heads say their
kind; those of transformers' models are of the kind of their class.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints.foreign_tensors import Layer, Tensors
from adapter_bert.checkpoints.hugging_face import (
    HEAD_CLASSES,
    TEXTS,
    google_name,
    head_modules,
    hugging_face_name,
)
from adapter_bert.checkpoints.hugging_face_heads import pooler_of
from adapter_bert.errors import UserError
from adapter_bert.exchange.foreign_base import Head, usual_shape
from adapter_bert.tasks.custom import MOST_CHOICES
from adapter_bert.tasks.kinds import (
    CHOICE,
    CLASSIFICATION,
    MASKED_LM,
    MULTI_LABEL,
    QUESTIONS,
    REGRESSION,
    TAGGING,
)
from adapter_bert.tasks.masked_lm import MaskedLMHead
from adapter_bert.tasks.text_task import HeadShape

# A head of texts whose kind follows from its number of outputs.
ANY_OF_TEXTS = ""
# End of the name of a class of transformers -> kind of its head.
OF_CLASSES = {
    **{end: kind for kind, (end, _) in HEAD_CLASSES.items()},
    TEXTS: ANY_OF_TEXTS,
}
OF_TEXTS = (ANY_OF_TEXTS, CLASSIFICATION, MULTI_LABEL, REGRESSION)
# `problem_type` of a model's config -> kind of a head of texts.
PROBLEMS = {
    problem: kind for kind, (_, problem) in HEAD_CLASSES.items() if problem
}
# In descriptions of heads, the least probability of a label of several.
THRESHOLD = "label_threshold"


def classes(config: BertConfig) -> dict[str, str]:
    """Classes of a model of transformers -> kinds of their heads."""
    names = ARCHITECTURES[config.model_type].classes
    return {
        f"{name}{end}": kind
        for name in names
        for end, kind in OF_CLASSES.items()
    }


def modules_of(kind: str, config: BertConfig) -> tuple[str, ...]:
    """Lists the modules of a head in transformers' class.

    Those of dense layers are in their order.
    """
    architecture = ARCHITECTURES[config.model_type]
    if kind != MASKED_LM:
        modules = head_modules(kind, architecture)
        # The head's own layer in the place of a pooler that was not saved.
        is_pooled = usual_shape(kind).pooler and not config.pooler
        return (pooler_of(architecture), *modules) if is_pooled else modules
    names = (
        hugging_face_name(name, config.model_type)[0].partition(".")[0]
        for name in masked_lm_shapes(config)
    )
    return tuple(dict.fromkeys((*names, decoder(config).partition(".")[0])))


def with_pooler(config: BertConfig) -> BertConfig:
    """Returns the model whose heads have BERT's pooler as a layer."""
    pooler = config.pooler and not config.has_pooler
    return dataclasses.replace(config, pooler=pooler)


def decoder(config: BertConfig) -> str:
    """Names the matrix of a head of masked words, often the word embeddings."""
    return ARCHITECTURES[config.model_type].decoder


class HeadOptions(NamedTuple):
    """Holds what a user says of a head, since its files do not.

    Attributes:
        labels: in the order of the logits; empty for the files'.
        multi_label: whether a row has any number of labels.
    """

    labels: tuple[str, ...] = ()
    multi_label: bool = False


def make_head(
    kind: str,
    layers: Sequence[Layer],
    shape: HeadShape,
    described: Mapping[str, Any],
    options: HeadOptions,
    source: str,
) -> Head:
    """A head of dense layers.

    Args:
        kind: one of `tasks.kinds`, or `ANY_OF_TEXTS`.
        layers: the dense ones, first to last.
        shape: of the head.
        described: `label2id`, without which labels are `LABEL_0`, ..., and
            `THRESHOLD`.
        options: by the user.
        source: the file, for messages.
    """
    count = len(layers[-1][0])
    if kind in (ANY_OF_TEXTS, MULTI_LABEL) and options.multi_label:
        kind = MULTI_LABEL
    if kind == ANY_OF_TEXTS:
        kind = CLASSIFICATION if count > 1 else REGRESSION
    if (
        options.multi_label
        and kind != MULTI_LABEL
        or options.labels
        and kind in (QUESTIONS, REGRESSION)
    ):
        raise UserError(
            f"{source}: the head is of {kind}; leave out --label and "
            "--multi_label, or import its adapter alone (--adapter)"
        )
    outputs = {QUESTIONS: 2, REGRESSION: 1, CHOICE: 1}.get(kind, count)
    if count != outputs:
        raise UserError(
            f"{source}: a head of {kind} has {count} outputs, expected "
            f"{outputs}"
        )
    if kind in (QUESTIONS, TAGGING):
        shape = dataclasses.replace(shape, pooler=False, bias=True)
    labels: tuple[str, ...] = ()
    if kind == CHOICE:
        labels = _choices(described, options, source)
    elif kind not in (QUESTIONS, REGRESSION):
        label2id = described.get("label2id")
        labels = _labels(label2id, count, options.labels, source)
    threshold = described.get(THRESHOLD) if kind == MULTI_LABEL else None
    return Head(kind, shape, tuple(layers), labels, threshold)


def _choices(
    described: Mapping[str, Any], options: HeadOptions, source: str
) -> tuple[str, ...]:
    names = options.labels or tuple(described.get("label2id") or ())
    count = described.get("num_choices", len(names))
    if not names and type(count) is int and count <= MOST_CHOICES:
        names = tuple(map("choice{}".format, range(count)))
    if len(names) != count or len(names) < 2:
        raise UserError(
            f"{source}: {len(names)} choices are named of {str(count)[:80]}, "
            "expected 2 or more; name them by --label, once for each"
        )
    return names


def _labels(
    label2id: Any, count: int, named: tuple[str, ...], source: str
) -> tuple[str, ...]:
    if named:
        if len(named) != count:
            raise UserError(
                f"{source}: {len(named)} labels are named, but the head has "
                f"{count}"
            )
        return named
    if label2id is None:
        label2id = {f"LABEL_{number}": number for number in range(count)}
    try:
        names = {int(number): label for label, number in label2id.items()}
    except (AttributeError, TypeError, ValueError):
        names = {}
    if sorted(names) != list(range(count)) or len(label2id) != count:
        raise UserError(
            f"{source}: label2id is {str(label2id)[:200]}, expected a "
            f"number from 0 to {count - 1} for each of {count} labels"
        )
    return tuple(names[number] for number in range(count))


def read_dense(
    kind: str,
    tensors: Tensors,
    config: BertConfig,
    described: Mapping[str, Any],
    options: HeadOptions,
    source: str,
    root: str = "",
) -> Head:
    """Reads the dense layers of a model of transformers'.

    `described` may also have `num_labels`.
    """
    outputs = None if kind == CHOICE else described.get("num_labels")
    hidden, shape = config.hidden_size, usual_shape(kind)
    modules, pooled = modules_of(kind, config), with_pooler(config)
    longer = modules_of(kind, pooled)
    if longer != modules and f"{root}{longer[0]}.weight" in tensors.names:
        # The pooler was trained, too.
        modules, shape = longer, shape.fitted_to(pooled)
    *first, last = (f"{root}{name}" for name in modules)
    layers = [tensors.take_layer(name, hidden, hidden) for name in first]
    layers.append(tensors.take_layer(last, outputs, hidden))
    return make_head(kind, layers, shape, described, options, source)


def read_masked_lm(
    tensors: Tensors, config: BertConfig, source: str, root: str = ""
) -> Head:
    """Reads a head of masked words, under transformers' names behind `root`.

    Without any tensor of it the head is BERT's own.
    """
    values: dict[str, np.ndarray] = {}
    shapes = masked_lm_shapes(config)
    words = None
    for name in tensors.names:
        theirs = name.removeprefix(root)
        if config.tie_word_embeddings and theirs == decoder(config):
            size = config.embedding_width
            words = tensors.take(name, config.vocab_size, size)
            continue
        ours, transposed = google_name(theirs)
        if ours not in shapes:
            continue
        shape = shapes[ours][::-1] if transposed else shapes[ours]
        value = tensors.take(name, *shape)
        value = value.T if transposed else value
        # transformers has the last bias by two names.
        if not np.array_equal(values.setdefault(ours, value), value):
            raise UserError(f"{source}: the head of masked words has 2 biases")
    if values and set(values) != set(shapes):
        raise UserError(
            f"{tensors.path} lacks {min(set(shapes) - set(values))}, of the "
            "head of masked words"
        )
    return Head(MASKED_LM, usual_shape(MASKED_LM), values=values, words=words)


def renamed(name: str, prefix: str, modules: Mapping[str, str]) -> str:
    """Renames the module behind `prefix` in the name of a tensor."""
    module, dot, end = name.removeprefix(prefix).rpartition(".")
    return modules[module] + dot + end if module in modules else name


def masked_lm_tensors(head: Head, config: BertConfig) -> dict[str, np.ndarray]:
    """Returns a masked-word head's tensors, without the word embeddings."""
    tensors = {}
    for name, value in head.values.items():
        theirs, transposed = hugging_face_name(name, config.model_type)
        tensors[theirs] = value.T if transposed else value
    biases = ARCHITECTURES[config.model_type].biases
    return {**tensors, **dict.fromkeys(biases, tensors[biases[0]])}


def masked_lm_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the variables of a head of masked words."""
    shapes: dict[str, tuple[int, ...]] = {}
    MaskedLMHead(config, lambda name, shape, _: shapes.update({name: shape}))
    return shapes
