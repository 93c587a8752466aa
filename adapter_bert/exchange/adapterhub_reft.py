"""LoReFT, NoReFT and DiReFT in the files of AdapterHub's library.

The library trains an orthonormal basis as PyTorch's parametrization has it:
`base @ reflections`, with a fixed matrix `base`. Here bases are kept as they
are, and are written without a parametrization, as NoReFT's bases. DiReFT is
NoReFT of `W + R`, if there is no activation; the library's files have no place
for DiReFT itself.
"""

from typing import Any

import numpy as np
from absl import logging

from adapter_bert.errors import UserError
from adapter_bert.exchange.foreign_base import (
    Adapter,
    Exported,
    activation,
    foreign_activation,
    module_of,
)
from adapter_bert.methods import base
from adapter_bert.methods.base import ALL_LAYERS
from adapter_bert.methods.reft import (
    BIAS,
    PROJECTION,
    SOURCE,
    LoReft,
    reflected,
)

Arrays = dict[str, np.ndarray]

ARCHITECTURE = "reft"
# Number of a unit -> the side of a text, if the two are not tied.
SIDES = ("first", "last")
# Units of nothing are there, too.
IN_UNIT = {SOURCE: "learned_source.weight", BIAS: "learned_source.bias"}
WEIGHT = "projection.weight"
PARAMETRIZED = "projection.parametrizations.weight"


def _units(layer: int, name: str, method: LoReft) -> list[tuple[str, str]]:
    """Lists a layer's modules, each with its scope here or ""."""
    place = f"bert/encoder/layer_{layer}"
    module = f"{module_of(place)}.reft_layer.refts.{name}.units"
    scopes = {scope.rpartition("/")[2]: scope for scope in method.scopes(layer)}
    sides = ("both",) if method.tied else SIDES
    return [
        (f"{module}.{number}", scopes.get(side, ""))
        for number, side in enumerate(sides)
    ]


def read(adapter: Adapter) -> tuple[LoReft, Arrays]:
    """Reads an adapter."""
    fields, path, config = adapter.fields, adapter.path, adapter.config
    sizes = [
        fields.get(k) for k in ("r", "prefix_positions", "suffix_positions")
    ]
    if not all(type(size) is int for size in sizes):
        raise UserError(
            f"{path}: r, prefix_positions and suffix_positions are "
            f"{str(sizes)[:80]}, expected three whole numbers"
        )
    layers = fields.get("layers")
    if layers != ALL_LAYERS:
        layers = ",".join(map(str, layers if isinstance(layers, list) else ()))
    if not fields.get("output_reft", True):
        raise UserError(f"{path}: output_reft is false, so nothing is moved")
    orthogonal = bool(fields.get("orthogonality"))
    if not orthogonal:
        logging.warning(
            "%s is read as NoReFT; if it was trained as DiReFT, it computes "
            "something else now, here as in AdapterHub's library, whose files "
            "do not tell the two apart",
            path,
        )
    function = fields.get("non_linearity")
    method = LoReft(
        *sizes,
        layers,
        tied=bool(fields.get("tied_weights")),
        orthogonal=False,
        nonlinearity=activation(function, path) if function else "linear",
    )
    method.check(config)
    values: Arrays = {}
    shape = method.rank, config.hidden_size
    for layer in base.choose_layers(method.layers, config):
        for unit, scope in _units(layer, adapter.name, method):

            def take(end: str, *shape: int, unit: str = unit) -> np.ndarray:
                return adapter.tensors.take(f"{unit}.{end}", *shape)

            unit_values = {
                SOURCE: take(IN_UNIT[SOURCE], *shape).T,
                BIAS: take(IN_UNIT[BIAS], method.rank),
            }
            if orthogonal:
                original = take(f"{PARAMETRIZED}.original", *shape).T
                fixed = take(f"{PARAMETRIZED}.0.base", *shape[1:] * 2)
                # As PyTorch: signs, which are whole numbers.
                signs = np.trunc(np.diagonal(original))
                unit_values[PROJECTION] = fixed @ (
                    reflected(original, np) * signs
                )
            else:
                unit_values[PROJECTION] = take(WEIGHT, *shape).T
            if scope:
                values.update(
                    (f"{scope}/{k}", v) for k, v in unit_values.items()
                )
    return method, values


def describe(method: LoReft, exported: Exported) -> dict[str, Any]:
    """Returns the config of a method."""
    if not method.subtract and method.nonlinearity != "linear":
        raise UserError(
            f"{exported.source}: {method} is not written for AdapterHub's "
            "library, which reads all adapters of ReFT as if subtract were True"
        )
    layers: Any = ALL_LAYERS
    if method.layers != ALL_LAYERS:
        layers = base.choose_layers(method.layers, exported.config)
    function = method.nonlinearity
    return {
        "architecture": ARCHITECTURE,
        "layers": layers,
        "prefix_positions": method.prefix,
        "suffix_positions": method.suffix,
        "r": method.rank,
        "orthogonality": False,
        "tied_weights": method.tied,
        "dropout": method.dropout,
        "non_linearity": None
        if function == "linear"
        else foreign_activation(function),
        "dtype": None,
        "output_reft": True,
    }


def tensors(method: LoReft, exported: Exported) -> Arrays:
    """Returns the library's tensors; zeros for a side without tokens."""
    shape = method.rank, exported.config.hidden_size
    written: Arrays = {}
    for layer in base.choose_layers(method.layers, exported.config):
        for unit, scope in _units(layer, exported.name, method):
            for variable, name in ({**IN_UNIT, PROJECTION: WEIGHT}).items():
                if scope:
                    value = exported.read(f"{scope}/{variable}").T
                else:
                    size = shape[:1] if variable == BIAS else shape
                    value = np.zeros(size, np.float32)
                if scope and variable == SOURCE and not method.subtract:
                    value = value + exported.read(f"{scope}/{PROJECTION}").T
                written[f"{unit}.{name}"] = value
    return written
