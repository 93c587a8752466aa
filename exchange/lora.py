"""LoRA, which other programs may give to each matrix in another rank."""

import dataclasses
from typing import Dict, Mapping, Tuple

import numpy as np

from errors import UserError
from methods.lora import TARGETS, Lora
from modeling import BertConfig, list_variables


@dataclasses.dataclass(frozen=True)
class Factors:
    """The update `alpha / rank x A B` of a matrix.

    Attributes:
        down: A, float32 [inputs, rank].
        up: B, float32 [rank, outputs].
        alpha: of the scale.
    """

    down: np.ndarray
    up: np.ndarray
    alpha: float

    @property
    def rank(self) -> int:
        """Of the update."""
        return self.down.shape[1]


def to_method(
    found: Mapping[Tuple[int, str], Factors], config: BertConfig, source: str
) -> Tuple[Lora, Dict[str, np.ndarray]]:
    """The method and the variables of some updates.

    Updates of several ranks or scales, or of some layers only, are made equal:
    zeros are added, which change nothing, and the scale goes into B.

    Args:
        found: by layer and name of `methods.lora.TARGETS`.
        config: of the BERT.
        source: the file, for messages.

    Raises:
        UserError: there is no update, or one is of no rank or of a matrix of
            another shape.
    """
    if not found:
        raise UserError(f"{source} holds no update of any matrix")
    targets = [name for name in TARGETS if any(t == name for _, t in found)]
    places = [
        (layer, target)
        for layer in range(config.num_hidden_layers)
        for target in targets
    ]
    ranks = {f.rank for f in found.values()}
    alphas = {f.alpha for f in found.values()}
    alike = set(places) == set(found) and len(ranks) == len(alphas) == 1
    rank = max(ranks)
    alpha = alphas.pop() if alike else float(rank)
    shapes = list_variables(config)
    scopes = {
        (layer, target): f"bert/encoder/layer_{layer}/{TARGETS[target]}"
        for layer, target in places
    }
    # Before room is made for what the file says.
    for place, own in found.items():
        scope = scopes[place]
        inputs, outputs = shapes[f"{scope}/kernel"]
        is_right = own.down.shape == (inputs, own.rank)
        is_right &= own.up.shape == (own.rank, outputs)
        if not is_right or not own.rank:
            raise UserError(
                f"{source}: the update of {scope} is {own.down.shape} times "
                f"{own.up.shape}, expected ({inputs}, r) times (r, {outputs}), "
                "r above 0; is it the adapter of another BERT?"
            )
    values = {}
    for place, scope in scopes.items():
        inputs, outputs = shapes[f"{scope}/kernel"]
        down = np.zeros((inputs, rank), np.float32)
        up = np.zeros((rank, outputs), np.float32)
        if place in found:
            own = found[place]
            scale = 1.0 if alike else own.alpha / own.rank
            down[:, : own.rank] = own.down
            up[: own.rank] = np.float32(scale) * own.up
        values[f"{scope}/lora_a"], values[f"{scope}/lora_b"] = down, up
    method = Lora(rank=rank, alpha=float(alpha), targets=",".join(targets))
    return method, values
