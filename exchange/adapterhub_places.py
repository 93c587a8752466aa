"""Where AdapterHub's adapters have tensors, and whether the config agrees."""

import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from errors import UserError
from exchange.base import Tensors, check_layer
from modeling import BertConfig

WEIGHTS_FILE, WEIGHTS_PICKLE = "adapter.safetensors", "pytorch_adapter.bin"
# Where invertible adapters are.
INVERTIBLE = "invertible_adapters"


class Named:
    """Tensors by place, whose own names have the adapter's name in them."""

    def __init__(self, tensors: Tensors, name: str):
        """Finds `<place>.<kind>.<name>.<part>` of each tensor.

        Invertible adapters are in no module: their kind is their place.
        """
        self._tensors = tensors
        kinds = ("adapters", "loras", "prefix_tunings", "prefix_gates")
        pattern = re.compile(
            rf"(?:bert\.)?(?:(.*)\.(?:{'|'.join(kinds)})|({INVERTIBLE}))\."
            rf"{re.escape(name)}\.(.*)"
        )
        self._names: Dict[Tuple[str, str], str] = {}
        copies = []
        for full in tensors.names:
            match = pattern.fullmatch(full)
            if match is None:
                continue
            place = match[1] or match[2]
            # A prefix is in the model once for all layers, and once in each.
            if place.endswith("prefix_tuning.pool"):
                copies.append(full)
                continue
            self._names[place, match[3]] = full
        tensors.drop(copies)
        self.check_all_taken = tensors.check_all_taken

    def places(self) -> List[str]:
        """Modules that have a tensor left, each once."""
        return list(dict.fromkeys(place for place, _ in self._names))

    def take(self, place: str, part: str, *shape: Optional[int]) -> np.ndarray:
        """A module's tensor, as `Tensors.take`."""
        name = self._names.pop((place, part), f"{place}...{part}")
        return self._tensors.take(name, *shape)


def by_layer(
    own: Mapping[str, Any],
    tensors: Named,
    config: BertConfig,
    path: str,
    sites: Mapping[str, str],
) -> Dict[Tuple[int, str], str]:
    """Places by layer and name within it.

    Args:
        own: the adapter's config.
        tensors: of the adapter.
        config: of the BERT.
        path: of the description, for messages.
        sites: the names within a layer where the config has tensors -> the
            field that says so.

    Raises:
        UserError: a place is in no layer, or the tensors are at other places
            than the config says.
    """
    left_out = own.get("leave_out") or ()
    layers = range(config.num_hidden_layers)
    for layer in left_out:
        if type(layer) is not int or layer not in layers:
            raise UserError(
                f"{path}: leave_out names the layer {str(layer)[:80]}, "
                f"expected numbers from 0 to {len(layers) - 1}"
            )
    found = {}
    for place in tensors.places():
        match = re.fullmatch(r"encoder\.layer\.(\d+)\.(.*)", place)
        if match is None:
            raise UserError(
                f"{path}: no method of this project has anything at {place}"
            )
        check_layer(int(match[1]), config, path)
        found[int(match[1]), match[2]] = place
    for layer, name in found:
        if layer in left_out or name not in sites:
            which = "no field of the config names"
            if layer in left_out:
                which = "leave_out excludes"
            raise UserError(
                f"{path}: {WEIGHTS_FILE} has tensors of {name} in layer "
                f"{layer}, which {which}; the description contradicts the "
                "tensors"
            )
    for layer in layers:
        for name, field in sites.items():
            if layer not in left_out and (layer, name) not in found:
                raise UserError(
                    f"{path}: {WEIGHTS_FILE} lacks the tensors of {name} in "
                    f"layer {layer}, which {field} names and leave_out does not"
                )
    return found


def check_size(
    own: Mapping[str, Any],
    key: str,
    whole: int,
    size: int,
    path: str,
    layer: str = "",
) -> None:
    """Compares the size of an adapter with the factor that its config has.

    Args:
        own: the config.
        key: of the factor: a number, or numbers by layer.
        whole: what is divided by it.
        size: what the tensors have.
        path: of the description, for messages.
        layer: in which the adapter is.

    Raises:
        UserError: the factor is none, or makes another size.
    """
    factor = own.get(key)
    if isinstance(factor, dict):
        factor = factor.get(layer, factor.get("default"))
    if not is_number(factor):
        raise UserError(
            f"{path}: {key} is {str(own.get(key))[:80]}, expected a number "
            "above 0, or one for each layer"
        )
    # As the library rounds; a huge factor is of size 1, a tiny one of none.
    expected = max(1, whole // factor)
    if size != expected:
        raise UserError(
            f"{path}: {key} is {str(factor)[:80]}, so adapters have the size "
            f"{expected:.0f}, but {WEIGHTS_FILE} has one of the size {size}; "
            "the description contradicts the tensors"
        )


def check_count(
    own: Mapping[str, Any], key: str, found: int, path: str
) -> None:
    """Compares a size of the config with that of the tensors.

    Raises:
        UserError: they differ.
    """
    if own.get(key) != found:
        raise UserError(
            f"{path}: {key} is {str(own.get(key))[:80]}, but {WEIGHTS_FILE} "
            f"has {found}; the description contradicts the tensors"
        )


def is_number(scaling: Any) -> bool:
    """Whether a value of a description is a number above 0."""
    return isinstance(scaling, (int, float)) and scaling > 0
