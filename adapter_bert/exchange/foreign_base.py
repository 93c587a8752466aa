"""Holds what the adapters of all other programs have in common."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import (
    Any,
    Callable,
    Optional,
)

import numpy as np

from adapter_bert.bert import functional
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.bert.hooks import rename_layer
from adapter_bert.checkpoints import hugging_face_hub, run_record
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.foreign_tensors import Layer
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.data.added_tokens import NEW, NewToken
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.ia3 import Ia3
from adapter_bert.methods.lora import (
    NAMES,
    Lora,
    Place,
    places,
    write_pattern,
)
from adapter_bert.tasks import calibration
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.kinds import (
    CHOICE,
    CLASSIFICATION,
    MASKED_LM,
    MULTI_LABEL,
    QUESTIONS,
    REGRESSION,
    RERANK,
    TAGGING,
    VECTORS,
    check_built_in,
    kind_of,
)
from adapter_bert.tasks.novelty import warn_of_loss
from adapter_bert.tasks.text_regression import LabelUnit
from adapter_bert.tasks.text_task import POOLED, SPANS, HeadShape
from adapter_bert.tasks.vector_form import Pooled

# Of the variables of a head of masked words.
MASKED_LM_SCOPE = "cls/predictions/"

# Theirs -> a name of `functional.ACTIVATIONS`. Source: transformers,
# `activations.py`; the three after `gelu_new` are the same function.
ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_accurate": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "leakyrelu": "leaky_relu",
    "leaky_relu": "leaky_relu",
    "linear": "linear",
    "mish": "mish",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu6": "relu6",
    "sigmoid": "sigmoid",
    "silu": "swish",
    "swish": "swish",
    "tanh": "tanh",
}
# A name of `functional.ACTIVATIONS` -> theirs.
FOREIGN_ACTIVATIONS = {
    name: next(
        theirs
        for theirs, ours in ACTIVATIONS.items()
        if functional.ACTIVATIONS[ours] is function
    )
    for name, function in functional.ACTIVATIONS.items()
}


@dataclasses.dataclass(frozen=True)
class Head:
    """A head as dense layers, or of masked words as named values.

    Attributes:
        kind: one of `tasks.kinds`.
        shape: what the layers compute.
        layers: the dense ones, first to last.
        labels: the classes or tags in the order of the logits, or the choices.
        threshold: the least probability of a label of several, if it is known.
        values: the variables of a head of masked words; empty for BERT's own.
        words: the word embeddings that such a head was saved with, or is to
            be, if any.
        pooled: how vectors are made, in the place of layers.
    """

    kind: str
    shape: HeadShape
    layers: tuple[Layer, ...] = ()
    labels: tuple[str, ...] = ()
    threshold: Optional[float] = None
    values: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    words: Optional[np.ndarray] = None
    pooled: Optional[Pooled] = None


@dataclasses.dataclass(frozen=True)
class Foreign:
    """Another program's adapter, as this project has it.

    Attributes:
        method: that computes the same.
        task: the task's description.
        values: float32 variables of the method and the head by name; of a
            head of masked words that is BERT's own, of the method alone.
        origin: program, version and name, for people.
        words: the word embeddings that a head of masked words was saved with.
        max_seq_length: of texts whose vectors are made, in tokens, if the
            files say it.
    """

    method: TuningMethod
    task: dict[str, Any]
    values: dict[str, np.ndarray]
    origin: dict[str, Any]
    words: Optional[np.ndarray] = None
    max_seq_length: Optional[int] = None


def activation(name: Any, source: str) -> str:
    """Finds the name in `functional.ACTIVATIONS` of one of theirs."""
    function = ACTIVATIONS.get(str(name).lower())
    if function is None:
        raise UserError(
            f"{source}: the activation {name!r:.80} is not known; expected one "
            f"of {', '.join(ACTIVATIONS)}"
        )
    return function


def is_of(model_type: str, config: BertConfig) -> bool:
    """True if other programs' `model_type` names the model of a config."""
    architecture = ARCHITECTURES[config.model_type]
    return ARCHITECTURES.get(model_type) is architecture


def module_of(scope: str) -> str:
    """PyTorch's name of the module that has a scope's variables."""
    scope = scope.replace("/group_", "/layer_")
    return scope.replace("/layer_", "/layer/").replace("/", ".")


def unit_scales(config: BertConfig) -> dict[str, np.ndarray]:
    """Makes (IA)^3 that changes nothing: ones, float32 [outputs]."""
    return {
        name: np.ones(declared.shape, np.float32)
        for name, declared in Ia3().variables(config).items()
    }


def _variables(kind: str, layers: int) -> list[tuple[str, str]]:
    scope = "cls/squad/" if kind == QUESTIONS else ""
    ends = [f"hidden_{{}}_{number}" for number in range(layers - 1)]
    return [
        (scope + end.format("weights"), scope + end.format("bias"))
        for end in (*ends, "output_{}")
    ]


def task_of(
    head: Head, pairs: Optional[bool]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the description of a head's task, and the head's variables.

    `pairs` says whether the task's texts are pairs; None for either.
    """
    if head.kind == MASKED_LM:
        return {"name": MASKED_LM}, dict(head.values)
    if head.kind == VECTORS:
        values = {
            name: value
            for number, layer in enumerate(head.pooled.dense)
            for name, value in zip(layer.variables(number), layer.values)
        }
        return {"name": VECTORS, **head.pooled.describe()}, values
    description = {"name": "custom", "pairs": pairs}
    if head.kind == QUESTIONS:
        description = {"name": "squad"}
    elif head.kind == TAGGING:
        description = {"name": TAGGING, "tags": list(head.labels)}
    elif head.kind == CHOICE:
        description["choices"] = len(head.labels)
    elif head.kind == REGRESSION:
        description["regression"] = True
    else:
        description["labels"] = list(head.labels)
    if head.kind == MULTI_LABEL:
        description["multi_label"] = True
        if head.threshold is not None:
            description["label_threshold"] = head.threshold
    if head.shape != usual_shape(head.kind):
        description.update(head.shape.describe())
    values = {
        name: value
        for names, layer in zip(
            _variables(head.kind, len(head.layers)), head.layers
        )
        for name, value in zip(names, layer)
        if value is not None
    }
    return description, values


def usual_shape(kind: str) -> HeadShape:
    """Returns the form of a kind's heads here and in transformers."""
    return SPANS if kind in (QUESTIONS, TAGGING) else POOLED


def head_of(artifact: Artifact, config: BertConfig) -> Head:
    """Reads the head of one of this project's adapters."""
    task, weights = artifact.config["task"], artifact.weights
    kind = kind_of(task)
    check_built_in(kind, weights.source)
    if kind == RERANK:
        # Other programs say a score's activation elsewhere, or not.
        kind = REGRESSION
    shape = usual_shape(kind)
    if kind == MASKED_LM:
        names = [n for n in weights.shapes if n.startswith(MASKED_LM_SCOPE)]
        return Head(kind, shape, values={n: weights.read(n) for n in names})
    if kind == VECTORS:
        return Head(kind, shape, pooled=pooled_of(artifact))
    if "head" in task:
        shape = HeadShape.restore(task, weights.source)
    if shape.mean:
        raise UserError(
            f"{weights.source} has a head on the mean over tokens, which other "
            "programs' heads do not read; write it --to=adapterhub "
            "--without_head"
        )
    count = shape.fitted_to(config).layers
    *hidden, (last, bias) = _variables(kind, count)
    layers = [tuple(map(weights.read, names)) for names in hidden]
    output = weights.read(last), weights.read(bias) if shape.bias else None
    if kind == REGRESSION:
        # Other programs have no place for a unit.
        output = LabelUnit.restore(task, weights.source).join(*output)
        shape = dataclasses.replace(shape, bias=output[1] is not None)
    settings = artifact.config.get("task_settings", {})
    warn_of_loss(settings, weights.source)
    if kind in (CLASSIFICATION, CHOICE):
        fitted = calibration.restore(settings, weights.source)
        output = calibration.join(fitted, *output, weights.source)
    labels = task.get("tags") if kind == TAGGING else task.get("labels")
    if kind == CHOICE:
        labels = map("choice{}".format, range(task["choices"]))
    return Head(
        kind,
        shape,
        (*layers, output),
        tuple(labels or ()),
        task.get("label_threshold"),
    )


def pooled_of(artifact: Artifact) -> Pooled:
    """Reads how an adapter of vectors makes them."""
    described = artifact.config
    task = restore_task(described["task"], {}, artifact.weights.source)
    length = described.get("training", {}).get("max_seq_length")
    dense = tuple(
        dataclasses.replace(
            layer, values=tuple(map(artifact.weights.read, names))
        )
        for number, layer in enumerate(task.form.dense)
        for names in [layer.variables(number)]
    )
    return dataclasses.replace(task.form, max_seq_length=length, dense=dense)


def as_exchanged(config: BertConfig) -> BertConfig:
    """A model as other programs have its layers: shared ones are one layer."""
    if not config.num_hidden_groups:
        return config
    return dataclasses.replace(config, num_hidden_layers=1)


def for_all_layers(
    values: Mapping[str, np.ndarray], config: BertConfig
) -> dict[str, np.ndarray]:
    """Repeats the values of an adapter of `as_exchanged` for each layer."""
    layers = range(config.num_hidden_layers if config.num_hidden_groups else 1)
    return {
        rename_layer(name, layer) if layer else name: value
        for name, value in values.items()
        for layer in layers
    }


def _check_alike(
    method: TuningMethod, config: BertConfig, weights: Weights
) -> None:
    """Refuses an adapter that is another one in each of shared layers."""
    # Other programs' adapters of an ALBERT lie in the one layer that there
    # is.
    layers = range(config.num_hidden_layers)
    hooks = method.hooks(config, {})
    alike = len({hooks.layer_kind(layer, False) for layer in layers}) == 1
    for name in weights.shapes:
        first = rename_layer(name, 0)
        alike = alike and all(
            rename_layer(name, layer) in weights.shapes for layer in layers
        )
        if not alike or not np.array_equal(
            weights.read(name), weights.read(first)
        ):
            raise UserError(
                f"{weights.source}: the layers of the model, an ALBERT, share "
                "their variables, and so they share their adapter in other "
                "programs, but here each layer has one of its own; use the "
                "adapter as it is"
            )


@dataclasses.dataclass(frozen=True)
class Exported:
    """One of this project's adapters, to be written for another program.

    Attributes:
        name: of the adapter there: letters, digits, `_` and `-`.
        method: of the adapter.
        config: of the BERT.
        base_name: by which the other program finds the BERT.
        head: of the task, or None to write the adapter alone.
        read: gives a variable by its name.
        source: the adapter's file, for messages.
        new_tokens: the task's own tokens.
        tokenizer: contents of the BERT's files of a tokenizer, by name.
    """

    name: str
    method: TuningMethod
    config: BertConfig
    base_name: str
    head: Optional[Head]
    read: Callable[[str], np.ndarray]
    source: str
    new_tokens: tuple[NewToken, ...] = ()
    tokenizer: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def exported(artifact: Artifact, name: str, with_head: bool = True) -> Exported:
    """Reads one of this project's adapters."""
    config, source = artifact.config, artifact.weights.source
    bert_config = run_record.bert_config(config, source)
    method = registry.parse(config["method"])
    if bert_config.num_hidden_groups:
        _check_alike(method, bert_config, artifact.weights)
    return Exported(
        # A dot would separate names of modules.
        name=name.replace(".", "_"),
        method=method,
        config=as_exchanged(bert_config),
        base_name=base_name(config["base"]),
        head=head_of(artifact, bert_config) if with_head else None,
        read=artifact.weights.read,
        source=source,
        new_tokens=tuple(config.get("tokenizer", {}).get(NEW) or ()),
    )


def base_name(base: Mapping[str, str]) -> str:
    """Names a description's BERT as others find it."""
    if base.get("hub"):
        return hugging_face_hub.parse(base["hub"]).repository
    return base.get("name") or "bert"


def check_number(number: float, name: str) -> None:
    """Refuses a number that is too large for float32, or nan."""
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise UserError(
            f"{name} is {str(number)[:50]}, expected a number of at most 3.4e38"
        )


def as_lora_number(alpha: float) -> Any:
    """Gives a whole number as int, as other programs write it."""
    return int(alpha) if alpha == int(alpha) else alpha


def lora_of(
    ranks: Mapping[Place, int],
    alphas: Mapping[Place, float],
    config: BertConfig,
    source: str,
    kind: type[Lora] = Lora,
    **arguments: Any,
) -> Lora:
    """Makes a method of the rank and the alpha of each matrix.

    Matrices that are left out, or of rank 0, have no update.
    """
    for rank in ranks.values():
        if type(rank) is not int:
            raise UserError(
                f"{source}: a rank is {rank!r:.80}, expected whole numbers"
            )
    held = {place: rank for place, rank in ranks.items() if rank}
    if not held:
        raise UserError(f"{source} holds no update of any matrix")
    targets = [name for name in NAMES if any(t == name for _, t in held)]
    layers = config.num_hidden_layers
    every = dict.fromkeys(places(targets, range(layers)), 0)
    alphas = {place: alphas[place] for place in held}
    rank, alpha = _most_common(held), _most_common(alphas)
    return kind(
        rank=rank,
        alpha=alpha,
        targets=",".join(targets),
        rank_pattern=write_pattern({**every, **held}, rank, layers, targets),
        alpha_pattern=write_pattern(alphas, alpha, layers, targets),
        **arguments,
    )


def _most_common(numbers: Mapping[Place, Any]) -> Any:
    counts = collections.Counter(numbers.values())
    return max(counts, key=lambda number: (counts[number], number))
