"""Reads AdapterHub's adapters, as its library `adapters` 1.3 saves them."""

import os
import re
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from adapter_modeling import SCOPES, Houlsby
from errors import UserError
from exchange import fields, lora
from exchange.adapterhub_heads import read_head
from exchange.adapterhub_places import (
    INVERTIBLE,
    WEIGHTS_FILE,
    WEIGHTS_PICKLE,
    Named,
    by_layer,
    check_count,
    check_size,
    is_number,
)
from exchange.base import (
    Foreign,
    Tensors,
    activation,
    check_number,
    layers_text,
    task_of,
)
from methods.adapter_variants import Parallel, Pfeiffer
from methods.base import TuningMethod
from methods.ia3 import KEY_VALUE, OUTPUT, Ia3
from methods.invertible import SCOPE, MadX
from methods.prefix import PARTS, Prefix
from modeling import BertConfig
from storage import files

CONFIG_FILE = "adapter_config.json"
CONFIG = {
    "config": dict,
    "config.architecture?": str,
    "config.alpha?": float,
    "config.leave_out?": list,
    "config.attn_matrices?": list,
    "config.non_linearity?": str,
    "config.r?": int,
    "config.prefix_length?": int,
    "config.bottleneck_size?": int,
    **dict.fromkeys(
        (
            f"config.{name}?"
            for name in (
                "mh_adapter",
                "output_adapter",
                "original_ln_before",
                "is_parallel",
                "selfattn_lora",
                "intermediate_lora",
                "output_lora",
                "flat",
            )
        ),
        bool,
    ),
    "name": str,
    "model_type": str,
    "hidden_size": int,
    "version?": str,
}
# What a bottleneck's config has that says nothing else. Source:
# `adapters.BnConfig`.
BOTTLENECK = {
    "original_ln_before": False,
    "original_ln_after": True,
    "ln_before": False,
    "ln_after": False,
    "is_parallel": False,
    "scaling": 1.0,
    "use_gating": False,
    "residual_before_ln": True,
    "adapter_residual_before_ln": False,
    "inv_adapter": None,
    "phm_layer": False,
}
# The invertible adapters that this project has.
NICE = "nice"
# Site -> the field that says whether there are adapters.
SITE_FIELDS = {"attention": "mh_adapter", "ffn": "output_adapter"}
LORA_TARGETS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "intermediate.dense": "intermediate",
    "output.dense": "output",
}
# Of these, the field that says whether there are updates, and of attention the
# matrix's letter in `attn_matrices`.
LORA_FIELDS = {
    place: ("selfattn_lora", name[0])
    if place.startswith("attention")
    else (f"{name}_lora", "")
    for place, name in LORA_TARGETS.items()
}


def is_one(folder: str) -> bool:
    """Whether the folder is an adapter of this program's."""
    path = os.path.join(folder, CONFIG_FILE)
    if not files.exists(path):
        return False
    config = files.read_json(path, "an adapter's description")
    return isinstance(config, dict) and "model_type" in config


def read(
    folder: str,
    config: BertConfig,
    pairs: Optional[bool] = None,
    labels: Sequence[str] = (),
) -> Foreign:
    """Reads an adapter with its head.

    Args:
        folder: as `save_adapter` writes it, with safetensors.
        config: of the BERT that it was trained upon.
        pairs: whether its texts are pairs; None for either.
        labels: in the order of the logits; by default those of the file.

    Raises:
        UserError: it is damaged, a pickle, of another BERT, or computes what
            no method of this project's does.
    """
    path = os.path.join(folder, CONFIG_FILE)
    described = files.read_object(path, "AdapterHub's description", CONFIG)
    found = (described["model_type"], described["hidden_size"])
    if found != ("bert", config.hidden_size):
        raise UserError(
            f"{path} is of a {found[0]} with hidden size {found[1]}, expected "
            f"a bert with {config.hidden_size}"
        )
    own = _as_of_now(described)
    architecture = own.get("architecture")
    readers: Dict[Any, Tuple[Callable[..., Any], Dict[str, Any]]] = {
        None: (_read_bottleneck, fields.HUB_BOTTLENECK),
        "lora": (_read_lora, fields.HUB_LORA),
        "prefix_tuning": (_read_prefix, fields.HUB_PREFIX),
    }
    if architecture not in readers:
        raise UserError(
            f"{path}: no method of this project computes what "
            f"{architecture!r} is; expected bottleneck adapters, lora, "
            "(IA)^3 of keys and values, or prefix_tuning"
        )
    reader, known = readers[architecture]
    fields.check(described, fields.HUB_FILE, path, is_open=True)
    fields.check(own, known, path)
    tensors = Tensors(folder, WEIGHTS_FILE, WEIGHTS_PICKLE)
    tensors = Named(tensors, described["name"])
    method, values = reader(own, tensors, config, path)
    tensors.check_all_taken()
    head = read_head(folder, config, tuple(labels))
    task, head_values = task_of(head, pairs)
    return Foreign(
        method,
        task,
        {**values, **head_values},
        {
            "program": "adapterhub",
            "version": described.get("version"),
            "name": described["name"],
        },
    )


def _as_of_now(described: Mapping[str, Any]) -> Dict[str, Any]:
    """The config as the library takes it, whatever version has written it.

    Source: `load_weights_config` and `_fix_backward_compat` of the library.
    """
    own, version = dict(described["config"]), described.get("version")
    if version is None and "non_linearity" in own:
        name = own["non_linearity"]
        older = {"gelu": "gelu_new", "gelu_orig": "gelu"}
        own["non_linearity"] = older.get(name, name)
    if own.get("architecture") == "lora" and "alpha" in own:
        # Before 1.1 the library did not divide by the rank.
        if re.match(r"adapters\.(0|1\.0)\.", version or ""):
            own["alpha"] = own.get("r")
    return own


def _bottleneck_kind(own: Mapping[str, Any], path: str) -> str:
    """Which of this project's methods a bottleneck's config is."""
    residual = own["residual_before_ln"]
    attention = bool(own.get("mh_adapter"))
    pfeiffer = (
        own["original_ln_before"]
        and residual is True
        and not attention
        and not own["is_parallel"]
    )
    if own["inv_adapter"] is not None:
        if pfeiffer and own["inv_adapter"] == NICE:
            return "mad_x"
        raise UserError(
            f"{path}: inv_adapter is {own['inv_adapter']!r}: no method of this "
            f"project has such invertible adapters; expected {NICE!r}, and the "
            "other adapters as in seq_bn_inv"
        )
    if pfeiffer:
        return "pfeiffer"
    if own["is_parallel"]:
        if not attention:
            return "parallel"
        raise UserError(
            f"{path}: adapters beside the attention are not read, only beside "
            "the feed-forward sublayer (mh_adapter=false)"
        )
    if not own["original_ln_before"] and residual in (True, False):
        return "houlsby"
    raise UserError(
        f"{path}: original_ln_before={own['original_ln_before']}, "
        f"residual_before_ln={residual!r} and mh_adapter={attention} together "
        "are no method of this project; expected those of double_seq_bn, "
        "seq_bn or par_bn"
    )


def _read_bottleneck(
    own: Mapping[str, Any], tensors: Named, config: BertConfig, path: str
) -> Tuple[TuningMethod, Dict[str, np.ndarray]]:
    """Bottleneck adapters; a scale goes into their second matrix."""
    own = {**BOTTLENECK, **own}
    kind = _bottleneck_kind(own, path)
    act = activation(own.get("non_linearity"), path)
    values, found, sizes = {}, {}, set()
    if kind == "mad_x":
        values.update(_take_invertible(own, tensors, config, path))
    sites = {scope.replace("/", "."): site for site, scope in SCOPES.items()}
    named = {
        place: SITE_FIELDS[site]
        for place, site in sites.items()
        if own.get(SITE_FIELDS[site])
    }
    for (layer, place), full in by_layer(
        own, tensors, config, path, named
    ).items():
        down = tensors.take(
            full, "adapter_down.0.weight", None, config.hidden_size
        )
        size = len(down)
        check_size(
            own, "reduction_factor", config.hidden_size, size, path, str(layer)
        )
        sizes.add(size)
        down_bias = tensors.take(full, "adapter_down.0.bias", size)
        up = tensors.take(full, "adapter_up.weight", config.hidden_size, size)
        up_bias = tensors.take(full, "adapter_up.bias", config.hidden_size)
        scale = _scale(own, kind, tensors, full, config)
        scope = f"bert/encoder/layer_{layer}/{SCOPES[sites[place]]}/adapters"
        values[f"{scope}/weights1"] = down.T
        values[f"{scope}/biases1"] = down_bias[np.newaxis]
        values[f"{scope}/weights2"] = up.T * scale
        values[f"{scope}/biases2"] = (up_bias * scale)[np.newaxis]
        found.setdefault(sites[place], set()).add(layer)
    if (
        not found
        or len(sizes) > 1
        or len(set(map(frozenset, found.values()))) > 1
    ):
        raise UserError(
            f"{path}: the adapters have the sizes {sorted(sizes)} and are in "
            f"the layers {[sorted(layers) for layers in found.values()]}; "
            "expected one size, and the same layers at both sites"
        )
    layers = layers_text(next(iter(found.values())), config)
    arguments = {"size": sizes.pop(), "nonlinearity": act, "layers": layers}
    if kind == "pfeiffer":
        return Pfeiffer(**arguments), values
    if kind == "mad_x":
        inverse_size = len(values[f"{SCOPE}/F/weights2"])
        return MadX(inverse_size=inverse_size, **arguments), values
    if kind == "parallel":
        scaling = own["scaling"]
        given = float(scaling) if is_number(scaling) else 1.0
        return Parallel(scale=given, **arguments), values
    [site] = found if len(found) == 1 else ["both"]
    return Houlsby(sites=site, layer_norms=False, **arguments), values


def _take_invertible(
    own: Mapping[str, Any], tensors: Named, config: BertConfig, path: str
) -> Dict[str, np.ndarray]:
    """The invertible adapter: the two dense layers of F, and those of G."""
    values: Dict[str, np.ndarray] = {}
    half, size = config.hidden_size // 2, None
    for name in ("F", "G"):
        down = tensors.take(INVERTIBLE, f"{name}.0.weight", size, half)
        size = len(down)
        check_size(own, "inv_adapter_reduction_factor", half, size, path)
        down_bias = tensors.take(INVERTIBLE, f"{name}.0.bias", size)
        up = tensors.take(INVERTIBLE, f"{name}.2.weight", half, size)
        up_bias = tensors.take(INVERTIBLE, f"{name}.2.bias", half)
        values[f"{SCOPE}/{name}/weights1"] = down.T
        values[f"{SCOPE}/{name}/biases1"] = down_bias[np.newaxis]
        values[f"{SCOPE}/{name}/weights2"] = up.T
        values[f"{SCOPE}/{name}/biases2"] = up_bias[np.newaxis]
    return values


def _scale(own, kind, tensors, place, config) -> np.ndarray:
    """What an adapter's output is multiplied by, beside the method's scale."""
    scaling = own["scaling"]
    if scaling == "learned":
        return tensors.take(place, "scaling", 1)
    if scaling == "channel":
        return tensors.take(place, "scaling", config.hidden_size)
    if not isinstance(scaling, (int, float)):
        raise UserError(
            f"scaling is {scaling!r}, expected a number, learned or channel"
        )
    check_number(scaling, "scaling")
    in_method = kind == "parallel" and is_number(scaling)
    return np.float32([1.0 if in_method else scaling])


def _read_lora(
    own: Mapping[str, Any], tensors: Named, config: BertConfig, path: str
) -> Tuple[TuningMethod, Dict[str, np.ndarray]]:
    """LoRA, and (IA)^3, which is LoRA for this program."""
    matrices = own.get("attn_matrices") or ()
    named = {
        place: field
        for place, (field, letter) in LORA_FIELDS.items()
        if own.get(field) and (not letter or letter in matrices)
    }
    places = by_layer(own, tensors, config, path, named)
    mode = own.get("composition_mode", "add")
    if mode == "scale":
        return _read_ia3(own, places, tensors, config, path)
    if mode != "add":
        raise UserError(
            f"{path}: composition_mode is {mode!r}, expected add or scale"
        )
    if own.get("alpha") is None:
        raise UserError(f"{path} has no alpha, which scales the updates")
    check_number(own["alpha"], f"{path}: alpha")
    found = {}
    for (layer, place), full in places.items():
        down = tensors.take(full, "lora_A", None, None)
        up = tensors.take(full, "lora_B", None, len(down))
        check_count(own, "r", len(down), path)
        found[layer, LORA_TARGETS[place]] = lora.Factors(
            down.T, up.T, float(own["alpha"])
        )
    return lora.to_method(found, config, path)


def _read_ia3(own, places, tensors, config, path):
    """Scales of keys and values; others act elsewhere than this project's."""
    alpha = 1 if own.get("alpha") is None else own["alpha"]
    check_count(own, "r", 1, path)
    check_number(alpha, f"{path}: alpha")
    values = {
        f"bert/encoder/layer_{layer}/{name}/ia3_scale": np.ones(
            size, np.float32
        )
        for layer in range(config.num_hidden_layers)
        for name, size in (
            *((name, config.hidden_size) for name in KEY_VALUE),
            (OUTPUT, config.intermediate_size),
        )
    }
    for (layer, place), full in places.items():
        name = place.replace(".", "/")
        if name not in KEY_VALUE:
            raise UserError(
                f"{path}: (IA)^3 scales {place} here, before the activation "
                "if at all, but T-Few's, which this project has, scales keys, "
                "values and what comes after the activation; expected "
                "intermediate_lora=false"
            )
        scale = tensors.take(full, "lora_B", config.hidden_size, 1)[:, 0]
        key = f"bert/encoder/layer_{layer}/{name}/ia3_scale"
        values[key] = scale * np.float32(alpha)
    return Ia3(), values


def _read_prefix(
    own: Mapping[str, Any], tensors: Named, config: BertConfig, path: str
) -> Tuple[TuningMethod, Dict[str, np.ndarray]]:
    """A prefix, of which the network's output is kept."""
    place, part = "prefix_tuning", "self_prefix."
    count = 2 * config.num_hidden_layers * config.hidden_size
    if own.get("flat"):
        table = tensors.take(place, f"{part}control_trans", None)
        if table.size % count:
            raise UserError(
                f"{path}: the prefix has {table.size} numbers, expected a "
                f"multiple of {count}"
            )
        table = table.reshape(-1, count)
    else:
        words = tensors.take(
            place, f"{part}wte.weight", None, config.hidden_size
        )
        if own.get("non_linearity", "tanh") != "tanh":
            raise UserError(
                f"{path}: the prefix's network has the activation "
                f"{own['non_linearity']!r}, expected tanh"
            )
        inner = tensors.take(
            place, f"{part}control_trans.0.weight", None, config.hidden_size
        )
        size = len(inner)
        check_count(own, "bottleneck_size", size, path)
        bias = tensors.take(place, f"{part}control_trans.0.bias", size)
        outer = tensors.take(
            place, f"{part}control_trans.2.weight", count, size
        )
        outer_bias = tensors.take(place, f"{part}control_trans.2.bias", count)
        table = np.tanh(words @ inner.T + bias) @ outer.T + outer_bias
    check_count(own, "prefix_length", len(table), path)
    slices = np.split(table, 2 * config.num_hidden_layers, axis=1)
    values = {
        f"bert/encoder/layer_{layer}/attention/self/prefix/{name}": slices[
            2 * layer + number
        ]
        for layer in range(config.num_hidden_layers)
        for number, name in enumerate(PARTS)
    }
    return Prefix(length=len(table), reparameterize=False), values
