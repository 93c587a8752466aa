"""(IA)^3: learned rescaling of keys, values and inner activations."""

import dataclasses
from typing import ClassVar, Dict

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Hooks
from adapter_bert.methods.base import FROZEN_BERT, TuningMethod
from adapter_bert.optimization import Recipe

OUTPUT = "output/dense"
KEY_VALUE = ("attention/self/key", "attention/self/value")


class Ia3Hooks(Hooks):
    """Multiplies keys, values and what the last kernel reads."""

    alike = True
    takes_rows = True
    by_token = True
    by_values = True

    def __init__(self, scales: Dict[str, tf.Variable]):
        """Takes the scales by the kernel's scope."""
        self.scales = scales

    def project(self, name, inputs, dense, context):
        """Shapes as in `Hooks`."""
        if name not in self.scales:
            return dense(inputs)
        scale = tf.cast(self.scales[name], context.dtype)
        if len(scale.shape) == 2:
            scale = scale[:, tf.newaxis]
        if name.endswith(KEY_VALUE):
            return dense(inputs) * scale
        return dense(inputs * scale)


@dataclasses.dataclass(frozen=True)
class Ia3(TuningMethod):
    """Keys, values and inner activations are rescaled; BERT is frozen.

    BERT-base: 12 (768 + 768 + 3,072) = 55,296. The output at the start is
    plain BERT's, since the scales are one; they do not decay.

    Source: Liu et al. 2022 (T-Few), section 3.3: `softmax(Q (l_k K)^T) (l_v V)`
    and `(l_ff gelu(x W1)) W2`. AdapterHub scales before gelu instead.
    """

    name: ClassVar[str] = "ia3"
    # Liu et al. 2022, the recipe T-Few.
    learning_rate: ClassVar[float] = 3e-3
    recipe: ClassVar[Recipe] = Recipe(undecayed="ia3_scale")

    def rules(self, config):
        """The scales."""
        return ((r"bert/.*/ia3_scale", True), FROZEN_BERT)

    def build(self, config, create, pooler):
        """Creates `<scope>/ia3_scale` for three kernels of every layer."""
        sizes = {name: config.hidden_size for name in KEY_VALUE}
        sizes[OUTPUT] = config.intermediate_size
        return Ia3Hooks(
            {
                f"bert/encoder/layer_{layer}/{name}": create(
                    f"bert/encoder/layer_{layer}/{name}/ia3_scale",
                    (size,),
                    encoder.ones,
                )
                for layer in range(config.num_hidden_layers)
                for name, size in sizes.items()
            }
        )

    def merge(self, config, read, values):
        """Scales columns of keys and values, rows of the last kernel."""
        merged = {}
        for layer in range(config.num_hidden_layers):
            for name in (*KEY_VALUE, OUTPUT):
                scope = f"bert/encoder/layer_{layer}/{name}"
                scale = values[f"{scope}/ia3_scale"]
                kernel = read(f"{scope}/kernel")
                if name == OUTPUT:
                    merged[f"{scope}/kernel"] = kernel * scale[:, None]
                    continue
                merged[f"{scope}/kernel"] = kernel * scale
                merged[f"{scope}/bias"] = read(f"{scope}/bias") * scale
        return merged
