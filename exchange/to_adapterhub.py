"""Writes this project's adapters as AdapterHub's library loads them.

`AutoAdapterModel.load_adapter(folder, use_safetensors=True)` then computes the
same. The head reads the pooled output of the BERT that it is loaded upon, which
the library's models have.
"""

import functools
from typing import Any, Dict, List, Tuple

import numpy as np

from adapter_modeling import SCOPES, SITES, Houlsby
from errors import UserError
from exchange import adapterhub_heads
from exchange.adapterhub import (
    BOTTLENECK,
    CONFIG_FILE,
    INVERTIBLE,
    LORA_TARGETS,
    NICE,
    WEIGHTS_FILE,
)
from exchange.base import (
    CLASSIFICATION,
    QUESTIONS,
    Exported,
    Head,
    as_lora_number,
    foreign_activation,
)
from methods import base
from methods.adapter_variants import Parallel, Pfeiffer
from methods.adapterdrop import AdapterDrop
from methods.base import TuningMethod
from methods.ia3 import Ia3
from methods.invertible import SCOPE, MadX
from methods.lora import TARGETS, Lora
from methods.prefix import PARTS, Prefix

# By which the library knows how to read the rest.
VERSION = "adapters.1.3.0"

Tensors = Dict[str, np.ndarray]


def write(exported: Exported) -> Dict[str, Any]:
    """The files of an adapter.

    Returns:
        Contents by name: an object for JSON, or tensors by name.

    Raises:
        UserError: such a method is not written, or the library cannot hold it.
    """
    config, tensors = _write(exported.method, exported)
    common = {
        "hidden_size": exported.config.hidden_size,
        "model_class": adapterhub_heads.FLEXIBLE[0],
        "model_name": exported.base_name,
        "model_type": "bert",
        "name": exported.name,
        "version": VERSION,
    }
    head_config, head = _write_head(exported.head, exported.name)
    return {
        WEIGHTS_FILE: tensors,
        CONFIG_FILE: {"config": config, **common},
        adapterhub_heads.WEIGHTS_FILE: head,
        adapterhub_heads.CONFIG_FILE: {"config": head_config, **common},
    }


@functools.singledispatch
def _write(
    method: TuningMethod, exported: Exported
) -> Tuple[Dict[str, Any], Tensors]:
    """The config and the tensors of a method.

    Raises:
        UserError: it is not written.
    """
    raise UserError(
        f"{exported.source}: {method.name} is not written for AdapterHub's "
        "library; expected houlsby(layer_norms=false), pfeiffer, parallel, "
        "mad_x, lora or prefix"
    )


@_write.register
def _(method: Houlsby, exported: Exported):
    if method.layer_norms:
        raise UserError(
            f"{exported.source}: {method} has trained BERT's LayerNorms, which "
            "AdapterHub's files cannot hold; train "
            "--tuning_method='houlsby(layer_norms=false)' to export it"
        )
    if method.depth > 1 or method.layer_norm:
        raise UserError(
            f"{exported.source}: {method} is not written for AdapterHub's "
            "library; expected depth=1 and layer_norm=false"
        )
    return _bottleneck(
        method, SITES[method.sites], method.nonlinearity, {}, exported
    )


@_write.register
def _(method: Pfeiffer, exported: Exported):
    return _bottleneck(
        method,
        SITES["ffn"],
        method.nonlinearity,
        {"original_ln_before": True},
        exported,
    )


@_write.register
def _(method: Parallel, exported: Exported):
    return _bottleneck(
        method,
        SITES["ffn"],
        method.nonlinearity,
        {"is_parallel": True, "scaling": method.scale},
        exported,
    )


@_write.register
def _(method: MadX, exported: Exported):
    half = exported.config.hidden_size // 2
    config, tensors = _bottleneck(
        method,
        SITES["ffn"],
        method.nonlinearity,
        {
            "original_ln_before": True,
            "inv_adapter": NICE,
            "inv_adapter_reduction_factor": half / (method.inverse_size + 0.5),
        },
        exported,
    )
    for name in ("F", "G"):
        scope, prefix = (
            f"{SCOPE}/{name}",
            f"bert.{INVERTIBLE}.{exported.name}.{name}",
        )
        for number, part in (("1", "0"), ("2", "2")):
            kernel = exported.read(f"{scope}/weights{number}")
            tensors[f"{prefix}.{part}.weight"] = kernel.T
            bias = exported.read(f"{scope}/biases{number}")
            tensors[f"{prefix}.{part}.bias"] = bias[0]
    return config, tensors


@_write.register
def _(method: AdapterDrop, exported: Exported):
    return _write(method.kept(exported.config), exported)


def _bottleneck(
    method: Any,
    sites: Tuple[str, ...],
    nonlinearity: str,
    more: Dict[str, Any],
    exported: Exported,
) -> Tuple[Dict[str, Any], Tensors]:
    """Bottleneck adapters of some sites."""
    hidden, count = (
        exported.config.hidden_size,
        exported.config.num_hidden_layers,
    )
    layers = base.choose_layers(method.layers, exported.config)
    tensors: Tensors = {}
    for layer in layers:
        for site in sites:
            scope = f"bert/encoder/layer_{layer}/{SCOPES[site]}/adapters"
            place = SCOPES[site].replace("/", ".")
            prefix = (
                f"bert.encoder.layer.{layer}.{place}.adapters.{exported.name}"
            )
            for number, part in (("1", "adapter_down.0"), ("2", "adapter_up")):
                kernel = exported.read(f"{scope}/weights{number}")
                tensors[f"{prefix}.{part}.weight"] = kernel.T
                bias = exported.read(f"{scope}/biases{number}")
                tensors[f"{prefix}.{part}.bias"] = bias[0]
    config = {
        **BOTTLENECK,
        "mh_adapter": "attention" in sites,
        "output_adapter": "ffn" in sites,
        # The library divides and rounds down, which this survives.
        "reduction_factor": hidden / (method.size + 0.5),
        "non_linearity": foreign_activation(nonlinearity),
        "leave_out": sorted(set(range(count)) - set(layers)),
        "dropout": 0.0,
        "init_weights": "bert",
        **more,
    }
    return config, tensors


@_write.register
def _(method: Lora, exported: Exported):
    places = {target: place for place, target in LORA_TARGETS.items()}
    targets = method.targets.split(",")
    for target in targets:
        if target not in places:
            raise UserError(
                f"{exported.source}: LoRA at {target} is not written for "
                "AdapterHub's library; write it for peft"
            )
    tensors: Tensors = {}
    for layer in range(exported.config.num_hidden_layers):
        for target in targets:
            scope = f"bert/encoder/layer_{layer}/{TARGETS[target]}"
            prefix = (
                f"bert.encoder.layer.{layer}.{places[target]}.loras."
                f"{exported.name}"
            )
            tensors[f"{prefix}.lora_A"] = exported.read(f"{scope}/lora_a").T
            tensors[f"{prefix}.lora_B"] = exported.read(f"{scope}/lora_b").T
    attention = [t[0] for t in ("query", "key", "value") if t in targets]
    config = {
        "architecture": "lora",
        "selfattn_lora": bool(attention),
        "intermediate_lora": "intermediate" in targets,
        "output_lora": "output" in targets,
        "attn_matrices": attention,
        "r": method.rank,
        "alpha": as_lora_number(method.alpha),
        "dropout": method.dropout,
        "composition_mode": "add",
        "init_weights": "lora",
        "leave_out": [],
        "use_gating": False,
    }
    return config, tensors


@_write.register
def _(method: Ia3, exported: Exported):
    raise UserError(
        f"{exported.source}: AdapterHub's (IA)^3 scales before the activation, "
        "not after it as T-Few's; write it for peft"
    )


@_write.register
def _(method: Prefix, exported: Exported):
    rows = [
        exported.read(
            f"bert/encoder/layer_{layer}/attention/self/prefix/{part}"
        )
        for layer in range(exported.config.num_hidden_layers)
        for part in PARTS
    ]
    config = {
        "architecture": "prefix_tuning",
        "flat": True,
        "prefix_length": method.length,
        "encoder_prefix": True,
        "cross_prefix": True,
        "dropout": 0.0,
        "leave_out": [],
        "use_gating": False,
    }
    name = f"bert.prefix_tuning.prefix_tunings.{exported.name}.self_prefix"
    table = np.concatenate(rows, axis=1)  # [P, 2 L D]
    return config, {f"{name}.control_trans": table.ravel()}


def _write_head(head: Head, name: str) -> Tuple[Dict[str, Any], Tensors]:
    """A flexible head."""
    shape = head.shape
    has_activation = shape.layers > 1
    step = 3 if has_activation else 2
    tensors: Tensors = {}
    for number, (weights, bias) in enumerate(head.layers):
        prefix = f"heads.{name}.{1 + step * number}"
        tensors[f"{prefix}.weight"] = weights
        if bias is not None:
            tensors[f"{prefix}.bias"] = bias
    labels: List[str] = list(head.labels)
    if head.kind != CLASSIFICATION:
        labels = [f"LABEL_{i}" for i in range(len(head.layers[-1][0]))]
    config: Dict[str, Any] = {
        "head_type": "classification",
        "num_labels": len(labels),
        "layers": shape.layers,
        "activation_function": foreign_activation(shape.activation)
        if has_activation
        else None,
        "label2id": {label: number for number, label in enumerate(labels)},
        "dropout_prob": None,
    }
    if head.kind == QUESTIONS:
        return {**config, "head_type": "question_answering"}, tensors
    return {**config, "use_pooler": shape.pooler, "bias": shape.bias}, tensors
