"""LoRA, DoRA, VeRA and AdaLoRA as other programs have them.

AdaLoRA is a way to train. What it has trained is LoRA, whose ranks differ.
"""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import numpy as np

from adapter_bert.bert.encoder import BertConfig, list_variables
from adapter_bert.errors import UserError
from adapter_bert.exchange import (
    peft_modules,
)
from adapter_bert.exchange.foreign_base import (
    Adapter,
    as_lora_number,
    check_number,
)
from adapter_bert.exchange.peft_modules import ROOT, WEIGHTS_FILE
from adapter_bert.methods import base
from adapter_bert.methods.dora import Dora
from adapter_bert.methods.lora import (
    NAMES,
    OF_POOLER,
    POOLER,
    TARGETS,
    Lora,
    Place,
    places,
    scope_of,
    write_pattern,
)
from adapter_bert.methods.vera import Vera

Arrays = dict[str, np.ndarray]

# Initializations that leave BERT's matrices as they are; from others, as
# `pissa`, peft takes what the update began with.
BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")
# VeRA's A and B in peft's file, transposed.
SHARED = ("base_model.vera_A", "base_model.vera_B")
# Modules by their places in a layer, and the pooler's.
PLACES = {
    **{scope.replace("/", "."): name for name, scope in TARGETS.items()},
    peft_modules.POOLER: POOLER,
}
# peft adds it to the rank that it divides by, in AdaLoRA.
SMALL = 1e-5


class Update(NamedTuple):
    """An update of a matrix.

    Attributes:
        down: A, float32 [inputs, rank].
        up: B, float32 [rank, outputs].
        alpha: of the scale.
        lengths: DoRA's m, float32 [outputs], or None.
    """

    down: np.ndarray
    up: np.ndarray
    alpha: float
    lengths: Optional[np.ndarray] = None


def to_method(
    updates: Mapping[Place, Update],
    config: BertConfig,
    source: str,
    rs: bool = False,
) -> tuple[Lora, Arrays]:
    """Makes a method and variables of updates by layer and name of `NAMES`.

    Matrices without an update are of rank 0. `rs` is for rsLoRA.
    """
    if not updates:
        raise UserError(f"{source} holds no update of any matrix")
    values, shapes = {}, list_variables(config)
    for place, (down, up, _, lengths) in updates.items():
        scope, rank = scope_of(place), down.shape[1]
        inputs, outputs = shapes[config.variable(f"{scope}/kernel")]
        if not rank or (*down.shape, *up.shape) != (
            inputs,
            rank,
            rank,
            outputs,
        ):
            raise UserError(
                f"{source}: the update of {scope} is {down.shape} times "
                f"{up.shape}, expected ({inputs}, r) times (r, {outputs}), r "
                "above 0; is it the adapter of another BERT?"
            )
        values[f"{scope}/lora_a"], values[f"{scope}/lora_b"] = down, up
        if lengths is not None:
            values[f"{scope}/dora_m"] = lengths
    targets = [name for name in NAMES if any(t == name for _, t in updates)]
    layers = range(config.num_hidden_layers)
    ranks = dict.fromkeys(places(targets, layers), 0)
    ranks.update((place, len(one.up)) for place, one in updates.items())
    alphas = {place: one.alpha for place, one in updates.items()}
    rank = _most_common([len(one.up) for one in updates.values()])
    alpha = _most_common(list(alphas.values()))
    has_lengths = any(one.lengths is not None for one in updates.values())
    method = (Dora if has_lengths else Lora)(
        rank=rank,
        alpha=alpha,
        targets=",".join(targets),
        rs=rs,
        rank_pattern=write_pattern(ranks, rank, len(layers), targets),
        alpha_pattern=write_pattern(alphas, alpha, len(layers), targets),
    )
    return method, values


def _most_common(numbers: list[Any]) -> Any:
    """Finds the number that is there most often, the greatest of several."""
    counts = collections.Counter(numbers)
    return max(counts, key=lambda number: (counts[number], number))


def _target(place: str, module: str, path: str) -> str:
    if place not in PLACES:
        raise UserError(f"{path}: updates of {module[:80]} are not read")
    return PLACES[place]


def _check_numbers(adapter: Adapter, *keys: str) -> None:
    for key in keys:
        if adapter.fields.get(key) is None:
            raise UserError(
                f"{adapter.path} has no {key}, which the updates follow from"
            )


def _check_beginning(adapter: Adapter) -> None:
    described, path = adapter.fields, adapter.path
    begun = described.get("init_lora_weights")
    if begun not in BEGINNINGS:
        raise UserError(
            f"{path}: init_lora_weights is {begun!r:.80}, with which peft "
            "changes BERT's own matrices too; there model.merge_and_unload()"
            ".save_pretrained(FOLDER) writes the whole model with its head; "
            "pass FOLDER as --init_checkpoint"
        )


def read_lora(adapter: Adapter) -> tuple[Lora, Arrays]:
    """LoRA, rsLoRA or DoRA of peft."""
    described, tensors, config, path, _ = adapter
    _check_beginning(adapter)
    _check_numbers(adapter, "r", "lora_alpha")
    updates = {}
    held = peft_modules.places(adapter, "lora_A.weight")
    modules = [module for *_, module in held]
    alphas = peft_modules.by_pattern(described, "alpha_pattern", modules, path)
    ranks = peft_modules.by_pattern(described, "rank_pattern", modules, path)
    for layer, place, module in held:
        target = _target(place, module, path)
        down = tensors.take(f"{ROOT}{module}.lora_A.weight", None, None)
        up = tensors.take(f"{ROOT}{module}.lora_B.weight", None, len(down))
        lengths = None
        if described.get("use_dora"):
            name = f"{ROOT}{module}.lora_magnitude_vector"
            lengths = tensors.take(name, len(up))
        rank = ranks.get(module, described["r"])
        if len(down) != rank:
            raise UserError(
                f"{path}: the update of {module} is of rank {len(down)} in "
                f"{WEIGHTS_FILE}, expected {str(rank)[:80]} as r and "
                "rank_pattern say; the description contradicts the tensors"
            )
        alpha = alphas.get(module, described["lora_alpha"])
        check_number(alpha, f"{path}: lora_alpha")
        updates[layer, target] = Update(down.T, up.T, float(alpha), lengths)
    return to_method(updates, config, path, bool(described.get("use_rslora")))


def read_adalora(adapter: Adapter) -> tuple[Lora, Arrays]:
    """AdaLoRA of peft, as LoRA: the singular values go into B.

    peft scales by alpha / (first rank + 1e-5), whatever rank is left.
    """
    described, tensors, config, path, _ = adapter
    _check_beginning(adapter)
    _check_numbers(adapter, "init_r", "lora_alpha")
    alpha, first = described["lora_alpha"], described["init_r"]
    check_number(alpha, f"{path}: lora_alpha")
    check_number(first, f"{path}: init_r")
    if not (alpha > 0 and first > 0):
        raise UserError(
            f"{path}: lora_alpha is {alpha} and init_r {first}, expected "
            "numbers above 0"
        )
    kept = described.get("rank_pattern") or {}
    updates = {}
    for layer, place, module in peft_modules.places(adapter, "lora_A"):
        target = _target(place, module, path)
        down = tensors.take(f"{ROOT}{module}.lora_A", None, None)
        rank = len(down)
        singular = tensors.take(f"{ROOT}{module}.lora_E", rank, 1)
        up = tensors.take(f"{ROOT}{module}.lora_B", None, rank)
        wanted = kept.get(f"{module}.lora_E", first)
        wanted = wanted.count(True) if isinstance(wanted, list) else wanted
        if rank != wanted:
            raise UserError(
                f"{path}: the update of {module} is of rank {rank} in "
                f"{WEIGHTS_FILE}, expected {str(wanted)[:80]} as init_r and "
                "rank_pattern say; the description contradicts the tensors"
            )
        if rank:
            up = up.T * singular * np.float32(rank / (first + SMALL))
            updates[layer, target] = Update(down.T, up, float(alpha))
    return to_method(updates, config, path)


def read_vera(adapter: Adapter) -> tuple[Vera, Arrays]:
    """VeRA of peft, whose random matrices have to be those of its seed."""
    described, tensors, config, path, _ = adapter
    _check_numbers(adapter, "r", "projection_prng_key")
    by_layer: dict[int, list[str]] = {}
    values = {}
    for layer, place, module in peft_modules.places(adapter, "vera_lambda_d"):
        target = _target(place, module, path)
        by_layer.setdefault(layer, []).append(target)
        scope = scope_of((layer, target))
        for letter in "db":
            value = tensors.take(f"{ROOT}{module}.vera_lambda_{letter}", None)
            values[f"{scope}/vera_{letter}"] = value
    above = by_layer.pop(OF_POOLER[0], [])
    targets = [t for t in TARGETS if t in next(iter(by_layer.values()), ())]
    if any(set(names) != set(targets) for names in by_layer.values()):
        raise UserError(
            f"{path}: VeRA is at other matrices in some layers than in others, "
            "which no method of this project is"
        )
    method = Vera(
        rank=described["r"],
        seed=described["projection_prng_key"],
        targets=",".join([*targets, *above]),
        layers=",".join(map(str, sorted(by_layer))) or base.ALL_LAYERS,
    )
    if len(by_layer) == config.num_hidden_layers:
        method = dataclasses.replace(method, layers=base.ALL_LAYERS)
    for variable, one in method.variables(config).items():
        if values[variable].shape != one.shape:
            raise UserError(
                f"{path}: {variable} is {list(values[variable].shape)} in "
                f"{WEIGHTS_FILE}, expected {list(one.shape)}; the description "
                "contradicts the tensors, or the adapter is of another BERT"
            )
    for name, drawn in zip(SHARED, method.matrices(config)):
        if described.get("save_projection", True) and not np.allclose(
            tensors.take(name, *drawn.T.shape), drawn.T, atol=1e-6
        ):
            raise UserError(
                f"{path}: {name} is not the random matrix that peft draws for "
                f"projection_prng_key={method.seed}, so no method of this "
                "project computes it"
            )
    return method, values


def describe_lora(method: Lora, config: BertConfig) -> dict[str, Any]:
    """peft's config of LoRA, rsLoRA or DoRA."""
    matrices = method.matrices(config)
    described = {
        "peft_type": "LORA",
        "r": method.rank,
        "lora_alpha": as_lora_number(method.alpha),
        "lora_dropout": method.dropout,
        "bias": "none",
        "target_modules": peft_modules.modules_of(matrices, config),
    }
    ranks, alphas = {}, {}
    for scope, matrix in matrices.items():
        module = peft_modules.ending_of(scope, config)
        if matrix.rank != method.rank:
            ranks[module] = matrix.rank
        if matrix.alpha != method.alpha:
            alphas[module] = as_lora_number(matrix.alpha)
    added = {
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "use_rslora": method.rs,
        "use_dora": isinstance(method, Dora),
    }
    return {**described, **{k: v for k, v in added.items() if v}}


def describe_vera(
    method: Vera, config: BertConfig
) -> tuple[dict[str, Any], Arrays]:
    """peft's config of VeRA, and the tensors that all layers share."""
    described = {
        "peft_type": "VERA",
        "r": method.rank,
        "projection_prng_key": method.seed,
        "save_projection": True,
        "vera_dropout": method.dropout,
        "d_initial": method.d_initial,
        "bias": "none",
        "target_modules": peft_modules.modules_of(
            method.kernels(config), config
        ),
    }
    matrices = (matrix.T for matrix in method.matrices(config))
    return described, dict(zip(SHARED, matrices))
