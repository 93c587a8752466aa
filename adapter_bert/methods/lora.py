"""LoRA: low-rank updates of BERT's own matrices."""

import dataclasses
from typing import ClassVar, List, Tuple, Type

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Hooks, dropout
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.base import Declared, TuningMethod

# What `targets` may name -> scope within a layer.
TARGETS = {
    "query": "attention/self/query",
    "key": "attention/self/key",
    "value": "attention/self/value",
    "attention_output": "attention/output/dense",
    "intermediate": "intermediate/dense",
    "output": "output/dense",
}


class LoraHooks(Hooks):
    """Adds `scale dropout(x) A B` to the products of some kernels.

    Reads A and B, `<kernel's scope>/lora_a` and `lora_b`.
    """

    alike = True
    takes_rows = True
    by_token = True
    by_values = True

    def project(self, name, inputs, dense, context):
        """Shapes as in `Hooks`."""
        outputs = dense(inputs)
        if f"{name}/lora_a" not in self.values:
            return outputs
        down, up = (
            tf.cast(self.values[f"{name}/lora_{factor}"], context.dtype)
            for factor in "ab"
        )
        x = tf.cast(inputs, context.dtype)
        x = dropout(x, self.method.dropout, f"{name}/lora", context)
        if len(down.shape) == 2:
            x = tf.reshape(x, [-1, down.shape[0]])
        update = tf.matmul(tf.matmul(x, down), up) * self.method.scale
        return outputs + tf.reshape(update, tf.shape(outputs))


@dataclasses.dataclass(frozen=True)
class Lora(TuningMethod):
    """Low-rank updates `W + (alpha / rank) A B`; BERT is frozen.

    BERT-base, for each target in each layer: rank (inputs + outputs);
    12 x 2 x 8 (768 + 768) = 294,912 at rank 8 for queries and values. The
    output at the start is plain BERT's, since B is zero.

    Attributes:
        rank: of the update.
        alpha: the update is scaled by alpha / rank.
        targets: the matrices, names of `TARGETS` with commas between them.
        dropout: of what A reads, in training; from 0 to 0.99.

    Raises:
        UserError: a rank below 1, an alpha that is not positive, a target that
            does not exist or is named twice, a dropout out of range.

    Source: Hu et al. 2022, section 4.1; A starts as in their code.
    """

    name: ClassVar[str] = "lora"
    # Hu et al. 2022, Table 9.
    learning_rate: ClassVar[float] = 5e-4
    width: ClassVar[str] = "rank"
    factored: ClassVar[bool] = True
    hooks_class: ClassVar[Type[Hooks]] = LoraHooks
    positive: ClassVar[Tuple[str, ...]] = ("rank", "alpha")
    rank: int = 8
    alpha: float = 8.0
    targets: str = "query,value"
    dropout: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        names = self._targets()
        for name in names:
            if name not in TARGETS or names.count(name) > 1:
                raise UserError(
                    f"lora: targets is {self.targets!r}, where {name!r} is "
                    "unknown or named twice; expected some of "
                    f"{','.join(TARGETS)}"
                )
        if not 0.0 <= self.dropout <= 0.99:
            raise UserError(
                f"lora: dropout is {self.dropout}, expected 0 to 0.99"
            )

    @property
    def scale(self) -> float:
        """Factor of the update."""
        return self.alpha / self.rank

    def _targets(self) -> List[str]:
        return self.targets.split(",")

    def _scopes(self, config: encoder.BertConfig) -> List[str]:
        return [
            f"bert/encoder/layer_{layer}/{TARGETS[target]}"
            for layer in range(config.num_hidden_layers)
            for target in self._targets()
        ]

    def variables(self, config, pooler=True):
        """`<scope>/lora_a` and `lora_b` for each target."""
        shapes, found = encoder.list_variables(config), {}
        for scope in self._scopes(config):
            inputs, outputs = shapes[f"{scope}/kernel"]
            down, up = (inputs, self.rank), (self.rank, outputs)
            found[f"{scope}/lora_a"] = Declared(down, base.uniform_by_inputs)
            found[f"{scope}/lora_b"] = Declared(up, encoder.zeros)
        return found

    def widened(self):
        wide = super().widened()
        alpha = self.alpha * (wide.rank / self.rank)
        return dataclasses.replace(wide, alpha=alpha)

    def merge(self, config, read, values):
        return {
            f"{scope}/kernel": read(f"{scope}/kernel")
            + self.scale
            * (values[f"{scope}/lora_a"] @ values[f"{scope}/lora_b"])
            for scope in self._scopes(config)
        }
