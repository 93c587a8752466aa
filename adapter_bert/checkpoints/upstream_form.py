"""A BERT with adapters as google-research/adapter-bert computes and names it.

That program has a bottleneck of one layer with its gelu after both sublayers
of every layer. A `houlsby` that has them at some places alone is written with
adapters that change nothing at the others. So is a method that is merged into
BERT's own weights.

Source: google-research/adapter-bert, `modeling.py`, `feedforward_adapter`.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.config import BertConfig, same_activation
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.errors import UserError
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.houlsby import Houlsby

# Of that program's adapters, unless its code is changed.
SIZE = 64
INIT_SCALE = 1e-3
# Rows and tokens of the outputs that are compared.
ROWS, TOKENS = 4, 32


def upstream_values(
    config: BertConfig,
    method: TuningMethod,
    base: Weights,
    trained: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """BERT's and all adapters' variables, float32 by name.

    Args:
        config: of the BERT.
        method: that was trained.
        base: the BERT as it was pretrained.
        trained: every variable that the method has trained.
    """
    if not isinstance(method, Houlsby):
        try:
            changed = method.merge(config, base.read, trained)
        except UserError as error:
            raise UserError(
                f"google-research/adapter-bert computes houlsby alone, and "
                f"{error}"
            ) from error
        size, adapters = SIZE, {}
    else:
        _check(method)
        size, adapters = method.size, method.variables(config)
        changed = {n: trained[n] for n in trained if n.startswith("bert/")}
    values = {
        name: changed[name] if name in changed else base.read(name)
        for name in encoder.list_variables(config)
        if name in base.shapes
    }
    whole = Houlsby(size=size, init_scale=INIT_SCALE)
    for name, declared in whole.variables(config).items():
        if name in adapters:
            values[name] = trained[name]
        elif name.endswith("weights1"):
            # Only its product with zeros counts. Zeros could not be trained.
            values[name] = encoder.initial_values(
                name, declared.shape, declared.initializer, seed=0
            )
        else:
            values[name] = np.zeros(declared.shape, np.float32)
    return values


def _check(method: Houlsby) -> None:
    for argument, holds in (
        ("nonlinearity", same_activation(method.nonlinearity, "gelu")),
        ("depth", method.depth == 1),
        ("layer_norm", not method.layer_norm),
        ("gating", not method.gating),
        ("sizes", not method.sizes),
    ):
        if not holds:
            raise UserError(
                f"the method is {method}, but google-research/adapter-bert's "
                f"adapters have no {argument} but houlsby's default"
            )


def largest_difference(
    config: BertConfig,
    other: BertConfig,
    values: Mapping[str, np.ndarray],
    size: int = 0,
) -> float:
    """Finds the largest difference of the last layer's outputs of two configs.

    The outputs are of `ROWS` rows of `TOKENS` random tokens each.

    Args:
        config: of the model.
        other: of equal sizes.
        values: BERT's variables, and those of adapters if there are any.
        size: of adapters as `upstream_values` gives them; 0 for none.
    """
    rng = np.random.default_rng(0)
    tokens = min(TOKENS, config.max_position_embeddings)
    ids = tf.constant(rng.integers(0, config.vocab_size, (ROWS, tokens)))
    outputs = []
    for one in (config, other):
        method = Houlsby(size=size) if size else TuningMethod()
        weights = {
            name: tf.constant(values[name])
            for name in encoder.declare(one, pooler=False)
        }
        bert = encoder.Bert(one, weights, method.hooks(one, values))
        context = Context(tf.ones_like(ids, tf.int32))
        segments = tf.zeros_like(ids, tf.int32)
        output = bert(tf.cast(ids, tf.int32), segments, context)
        outputs.append(output.sequence_output.numpy())
    return float(np.abs(outputs[0] - outputs[1]).max())
