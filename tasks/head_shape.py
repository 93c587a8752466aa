"""What a head computes before its last matrix, where that is more than usual.

This project's own heads have one matrix upon BERT's pooled output. Those of
other programs may have more layers, or read the first token itself.
"""

import dataclasses
from typing import Any, Dict, Mapping

import tensorflow as tf

import modeling
from bert import functional
from bert.hooks import Context, dropout
from errors import UserError

MAX_LAYERS = 16


@dataclasses.dataclass(frozen=True)
class HeadShape:
    """The layers of a head; as they are by default, a head is BERT's own.

    Attributes:
        layers: dense layers, the last one included.
        activation: between them, a name of `functional.ACTIVATIONS`.
        pooler: whether the first layer reads BERT's pooled output; else it
            reads the first token, or of a question every token.
        bias: whether the last layer has one.
    """

    layers: int = 1
    activation: str = "tanh"
    pooler: bool = True
    bias: bool = True

    def upon(self, config: modeling.BertConfig) -> "HeadShape":
        """The shape on a model: a fresh layer instead of a missing pooler.

        Source: transformers, `RobertaClassificationHead`.

        Raises:
            UserError: there is no pooler, and no layer can take its place.
        """
        if config.has_pooler or not self.pooler:
            return self
        if self.layers > 1 and self.activation != "tanh":
            raise UserError(
                f"a head of {self.layers} layers with {self.activation} reads "
                "a pooler, but this RoBERTa has none"
            )
        return dataclasses.replace(
            self, layers=self.layers + 1, activation="tanh", pooler=False
        )

    def describe(self) -> Dict[str, Any]:
        """`head` of a task's description; left out if it is as by default."""
        return (
            {} if self == type(self)() else {"head": dataclasses.asdict(self)}
        )

    @classmethod
    def restore(
        cls, description: Mapping[str, Any], source: str
    ) -> "HeadShape":
        """What `describe` gave.

        Args:
            description: of the task.
            source: the file, for messages.

        Raises:
            UserError: it is no shape.
        """
        found = description.get("head", {})
        default = dataclasses.asdict(cls())
        if (
            not isinstance(found, dict)
            or not set(found) <= set(default)
            or any(type(v) is not type(default[k]) for k, v in found.items())
            or not 1 <= found.get("layers", 1) <= MAX_LAYERS
        ):
            raise UserError(
                f"{source}: task.head is {found!r}, expected values like "
                f"{default}"
            )
        shape = cls(**found)
        functional.activation(shape.activation)
        return shape


# BERT's own head of texts, and that of questions, which reads every token.
POOLED = HeadShape()
SPANS = HeadShape(pooler=False)


class HiddenLayers(tf.Module):
    """The layers of a head before its last: dropout, dense, activation.

    Parameters: (layers - 1) (D D + D). Source: AdapterHub's heads.
    """

    def __init__(
        self,
        shape: HeadShape,
        scope: str,
        hidden_size: int,
        create: modeling.CreateVariable,
    ):
        """Creates `<scope>hidden_weights_<i>` [D, D], `hidden_bias_<i>` [D]."""
        self.activation = functional.activation(shape.activation)
        self.layers = [
            (
                create(
                    f"{scope}hidden_weights_{i}",
                    (hidden_size, hidden_size),
                    modeling.truncated_normal(0.02),
                ),
                create(
                    f"{scope}hidden_bias_{i}", (hidden_size,), modeling.zeros
                ),
            )
            for i in range(shape.layers - 1)
        ]

    def __call__(self, inputs: tf.Tensor, context: Context) -> tf.Tensor:
        """float32 [..., D] -> float32 [..., D]."""
        outputs = inputs
        for number, (weights, bias) in enumerate(self.layers):
            flat = tf.reshape(outputs, [-1, inputs.shape[-1]])
            flat = tf.matmul(flat, weights, transpose_b=True) + bias
            outputs = tf.reshape(self.activation(flat), tf.shape(inputs))
            outputs.set_shape(inputs.shape)
            outputs = dropout(outputs, 0.1, f"head/hidden_{number}", context)
        return outputs
