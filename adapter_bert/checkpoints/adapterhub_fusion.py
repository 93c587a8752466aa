"""AdapterFusion in the files of AdapterHub's `save_adapter_fusion`.

The adapters that are fused lie in folders of their own, which
`adapterhub_setup.py` reads and writes.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import adapterhub, foreign_fields
from adapter_bert.checkpoints.foreign_base import (
    Exported,
    Tensors,
    check_depth,
    module_of,
)
from adapter_bert.checkpoints.hugging_face import from_bert
from adapter_bert.errors import UserError
from adapter_bert.methods.fusion import Fusion
from adapter_bert.methods.houlsby import SCOPES

CONFIG_FILE = "adapter_fusion_config.json"
WEIGHTS_FILE = "model_adapter_fusion.safetensors"
WEIGHTS_PICKLE = "pytorch_model_adapter_fusion.bin"
CONFIG = {
    "config": dict,
    "config.value": bool,
    "config.regularization?": bool,
    "adapter_names": list,
    "adapter_names.[]": str,
    "name": str,
    "model_type": str,
    "hidden_size": int,
}
# The weight of the library's penalty. Source: its
# `get_fusion_regularization_loss`.
PENALTY = 0.01
# A place's variables -> tensors; a kernel is transposed.
TENSORS = {
    "query/kernel": "query.weight",
    "query/bias": "query.bias",
    "key/kernel": "key.weight",
    "key/bias": "key.bias",
    "value/kernel": "value.weight",
}


def _places(name: str, config: BertConfig) -> dict[Any, dict[str, str]]:
    """The tensors of a fusion by variable, for each layer and site."""
    found: dict[Any, dict[str, str]] = {}
    for layer in range(config.num_hidden_layers):
        for site, place in SCOPES.items():
            scope = f"bert/encoder/layer_{layer}/{place}"
            module = f"{module_of(scope)}.adapter_fusion_layer.{name}"
            found[layer, site] = {
                f"{scope}/fusion/{variable}": f"{module}.{tensor}"
                for variable, tensor in TENSORS.items()
            }
    return found


def describe(folder: str, config: BertConfig) -> dict[str, Any]:
    """The description in a fusion's folder."""
    path = os.path.join(folder, CONFIG_FILE)
    described = files.read_object(path, "AdapterHub's fusion", CONFIG)
    known = foreign_fields.HUB_FUSION_FILE
    foreign_fields.check(described, known, path, is_open=True)
    adapterhub.check_model(described, config, path)
    own = described["config"]
    foreign_fields.check(own, foreign_fields.HUB_FUSION, path)
    for name in ("query", "key"):
        if own.get(name) is not True:
            raise UserError(
                f"{path}: {name} is {own.get(name)!r:.80}: no method of this "
                "project computes a fusion without it"
            )
    return described


def arguments(described: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `fusion` that a description says."""
    own = described["config"]
    penalty = PENALTY if own.get("regularization") else 0.0
    return {"value": own["value"], "penalty": penalty}


def read(
    folder: str, name: str, method: Fusion, config: BertConfig
) -> dict[str, np.ndarray]:
    """The variables of a fusion by name, float32, but for its adapters'."""
    tensors = Tensors(folder, WEIGHTS_FILE, WEIGHTS_PICKLE)
    tensors.rename(lambda tensor: adapterhub.name_of_now(tensor, config))
    # The library saves fusions whose names begin alike, too.
    alike, own = f".adapter_fusion_layer.{name}", f"_layer.{name}."
    tensors.drop([t for t in tensors.names if alike in t and own not in t])
    check_depth(tensors.names, config, tensors.path)
    declared, present = method.variables(config), method.present(config)
    values, unused = {}, set()
    for place, by_variable in _places(name, config).items():
        for variable, tensor in by_variable.items():
            if variable in declared:
                shape = declared[variable].shape[::-1]
                values[variable] = tensors.take(tensor, *shape).T
            elif len(present.get(place, ())) < 2:
                # The library has them where no two adapters meet, too.
                unused.add(tensor)
    tensors.drop(unused & set(tensors.names))
    tensors.check_all_taken()
    return values


def write(
    exported: Exported, method: Fusion, names: Sequence[str]
) -> dict[str, Any]:
    """The contents of a fusion's files by name.

    Args:
        exported: with the fusion's own variables and its name there.
        method: of the fusion.
        names: of the fused adapters there.
    """
    config = exported.config
    declared, present = method.variables(config), method.present(config)
    size = config.hidden_size
    tensors = {}
    for place, by_variable in _places(exported.name, config).items():
        for variable, tensor in by_variable.items():
            if place not in method.kept(present):
                continue
            if variable in declared:
                tensors[tensor] = exported.read(variable).T
            elif not variable.endswith("value/kernel"):
                # A softmax of one adapter is 1, whatever the scores.
                shape = (size,) if variable.endswith("bias") else (size, size)
                tensors[tensor] = np.zeros(shape, np.float32)
    own = {
        "key": True,
        "query": True,
        "value": method.value,
        "query_before_ln": False,
        "regularization": method.value and method.penalty > 0,
        "residual_before": False,
        "temperature": False,
        "value_before_softmax": True,
        "value_initialized": method.value,
        "dropout_prob": None,
    }
    described = {
        "adapter_names": list(names),
        "config": own,
        **adapterhub.description(exported),
    }
    tensors = {from_bert(k, config.model_type): v for k, v in tensors.items()}
    return {WEIGHTS_FILE: tensors, CONFIG_FILE: described}
