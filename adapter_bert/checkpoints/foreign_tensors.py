"""Tensors of a foreign file, each of which must be taken."""

import os
from collections.abc import Iterable, Sequence
from typing import Callable, Optional

import numpy as np
import safetensors

from adapter_bert import files
from adapter_bert.checkpoints import torch_files
from adapter_bert.checkpoints.hugging_face import UNREADABLE_TENSORS, tensor_of
from adapter_bert.checkpoints.weights import as_floats
from adapter_bert.errors import UserError

# A dense layer as PyTorch has it: [outputs, inputs], [outputs] or None.
Layer = tuple[np.ndarray, Optional[np.ndarray]]


def _read_safetensors(path: str) -> dict[str, np.ndarray]:
    content = files.read_bytes(path, "the adapter's weights")
    try:
        return {
            name: as_floats(tensor_of(one["dtype"], one["shape"], one["data"]))
            for name, one in safetensors.deserialize(content)
        }
    except UNREADABLE_TENSORS as error:
        raise UserError(
            f"{path} is damaged, no safetensors file, or of a type that numpy "
            f"lacks ({error}); save it as float32"
        ) from error


def check_shape(
    value: np.ndarray,
    shape: Sequence[Optional[int]],
    name: str,
    path: str,
) -> None:
    """Refuses a tensor of another shape; None is for any size."""
    fits = value.ndim == len(shape) and all(
        size in (None, length) for size, length in zip(shape, value.shape)
    )
    if not fits:
        wanted = ["any" if size is None else size for size in shape]
        raise UserError(
            f"{path}: {name} has the shape {list(value.shape)}, "
            f"expected {str(wanted)[:80]}; the description contradicts the "
            "tensors, or the adapter is of another BERT"
        )


class Tensors:
    """Tensors of a file at `path`, which must all be taken."""

    def __init__(self, folder: str, name: str, torch_name: str):
        """Reads a file of safetensors, or else of `torch.save`."""
        self.path = os.path.join(folder, name)
        of_torch = os.path.join(folder, torch_name)
        if not files.exists(self.path) and files.exists(of_torch):
            self.path = of_torch
            tensors = torch_files.read(of_torch)
        else:
            tensors = _read_safetensors(self.path)
        # Versions of safetensors differ in their order.
        self._left = dict(sorted(tensors.items()))
        for name, value in self._left.items():
            if not np.isfinite(value).all():
                raise UserError(f"{self.path}: {name[:200]} is not finite")

    def rename(self, function: Callable[[str], str]) -> None:
        """Renames each tensor."""
        renamed: dict[str, np.ndarray] = {}
        for name, value in self._left.items():
            if renamed.setdefault(function(name), value) is not value:
                raise UserError(
                    f"{self.path}: {name[:200]} is there twice, as of two "
                    "adapters; save one of them"
                )
        self._left = renamed

    @property
    def names(self) -> list[str]:
        """Lists the tensors that are not taken yet."""
        return list(self._left)

    def take(self, name: str, *shape: Optional[int]) -> np.ndarray:
        """Takes a tensor of a shape, with None for any size."""
        value = self._left.pop(name, None)
        if value is None:
            raise UserError(f"{self.path} lacks the tensor {name}")
        check_shape(value, shape, name, self.path)
        return value

    def take_layer(
        self,
        prefix: str,
        outputs: Optional[int],
        inputs: int,
        bias: bool = True,
    ) -> Layer:
        """Takes the tensors `<prefix>.weight` and `<prefix>.bias`."""
        weights = self.take(f"{prefix}.weight", outputs, inputs)
        if not bias:
            return weights, None
        return weights, self.take(f"{prefix}.bias", len(weights))

    def put(self, name: str, value: np.ndarray) -> None:
        """Adds a tensor that was made of others."""
        self._left[name] = value

    def drop(self, names: Iterable[str]) -> None:
        """Leaves out tensors that are copies of others."""
        for name in names:
            del self._left[name]

    def check_all_taken(self) -> None:
        """Refuses a file of which a tensor would be left out."""
        if self._left:
            names = sorted(self._left)
            raise UserError(
                f"{self.path}: {len(names)} tensors are of no part that this "
                f"project reads: {', '.join(names)[:200]}; expected only "
                "those of what the description names"
            )
