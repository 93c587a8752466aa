"""(IA)^3: learned rescaling of keys, values and inner activations."""

import dataclasses

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import TokenHooks
from adapter_bert.methods import base
from adapter_bert.methods.base import Declared, TuningMethod

OUTPUT = "output/dense"
KEY_VALUE = ("attention/self/key", "attention/self/value")


class Ia3Hooks(TokenHooks):
    """Multiplies keys, values and the inputs of the last kernel.

    Reads the scales `<kernel's scope>/ia3_scale`.
    """

    def project(self, name, inputs, dense, context):
        if f"{name}/ia3_scale" not in self.values:
            return dense(inputs)
        scale = base.over_tokens(self.values[f"{name}/ia3_scale"])
        scale = tf.cast(scale, context.dtype)
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

    name = "ia3"
    # Liu et al. 2022, the recipe T-Few.
    learning_rate = 3e-3
    hooks_class = Ia3Hooks

    def variables(self, config, pooler=True):
        declared = {}
        for scope in _scopes(config):
            is_output = scope.endswith(OUTPUT)
            size = config.intermediate_size if is_output else config.hidden_size
            declared[f"{scope}/ia3_scale"] = Declared(
                (size,), encoder.ones, decays=False
            )
        return declared

    def merge(self, config, read, values):
        merged = {}
        for scope in _scopes(config):
            scale = values[f"{scope}/ia3_scale"]
            kernel = read(f"{scope}/kernel")
            if scope.endswith(KEY_VALUE):
                merged[f"{scope}/kernel"] = kernel * scale
                merged[f"{scope}/bias"] = read(f"{scope}/bias") * scale
            else:
                merged[f"{scope}/kernel"] = kernel * scale[:, None]
        return merged


def _scopes(config: encoder.BertConfig) -> list[str]:
    return [
        f"bert/encoder/layer_{layer}/{name}"
        for layer in range(config.num_hidden_layers)
        for name in (*KEY_VALUE, OUTPUT)
    ]
