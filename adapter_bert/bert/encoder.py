"""The BERT encoder as plain `tf.Module`s.

The layers have the variable names of Google's checkpoints; RoBERTa's have them
too. Sizes are in `config.py`, the places where a tuning method may act in
`hooks.py`.

Dimension letters of every docstring and comment:

    B batch                 D hidden size            M adapter bottleneck
    T tokens                I intermediate size      L layers
    N attention heads       H head size (D / N)      V vocabulary
    P positions             S segment types          C classes

"float32" of activations stands for the context's `dtype`. Every variable comes
from a function `create(name, shape, initializer)` of the caller. So one code
builds a model in a TensorFlow 1 graph, in eager mode, from a checkpoint, or
lists its parameters alone.
"""

import dataclasses
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf

from adapter_bert.bert import functional
from adapter_bert.bert.config import BertConfig
from adapter_bert.bert.hooks import (
    Context,
    Hooks,
    Kernel,
    dropout,
    join_sublayer,
    keep_mask,
)

Shape = Tuple[int, ...]
# Draws values, or is an `OfPretrained`.
Initializer = Any
# (variable name, shape, initializer) -> variable
CreateVariable = Callable[[str, Shape, Initializer], Any]

# Source: google-research/bert, `modeling.py`, `create_attention_mask...`: the
# score added to positions that must not be attended to.
MASKED_SCORE = -10000.0


def truncated_normal(stddev: float) -> Initializer:
    """Normal values of mean 0, drawn again where beyond two `stddev`."""

    def initialize(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        values = rng.standard_normal(shape)
        while True:
            beyond = np.abs(values) > 2.0
            if not beyond.any():
                return (values * stddev).astype(np.float32)
            values[beyond] = rng.standard_normal(int(beyond.sum()))

    return initialize


def zeros(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """An initializer: float32 zeros."""
    return np.zeros(shape, np.float32)


def ones(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """An initializer: float32 ones."""
    return np.ones(shape, np.float32)


@dataclasses.dataclass(frozen=True)
class OfPretrained:
    """An initializer: first values that follow from pretrained ones.

    Attributes:
        compute: takes a function that gives a pretrained variable by name.
    """

    compute: Callable[[Callable[[str], np.ndarray]], np.ndarray]


def create_variable(
    name: str, shape: Shape, initializer: Initializer, *, seed: int = 0
) -> tf.Variable:
    """A float32 variable with fresh values: the plainest `create` function."""
    return tf.Variable(
        initial_values(name, shape, initializer, seed), name=name
    )


def initial_values(
    name: str,
    shape: Shape,
    initializer: Initializer,
    seed: int,
    read: Optional[Callable[[str], np.ndarray]] = None,
) -> np.ndarray:
    """Fresh values, a function of `seed` and the variable's name alone.

    `read` gives pretrained variables to initializers `OfPretrained`.
    """
    if isinstance(initializer, OfPretrained):
        return np.asarray(initializer.compute(read), np.float32)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return initializer(rng, shape)


class Dense(tf.Module):
    """`inputs @ kernel + bias`, with BERT's variable names."""

    def __init__(self, scope, inputs, outputs, config, create, hooks):
        """Creates `<scope>/kernel` [inputs, outputs] and `<scope>/bias`."""
        self.scope = scope
        self.hooks = hooks
        self.kernel = create(
            f"{scope}/kernel",
            (inputs, outputs),
            truncated_normal(config.initializer_range),
        )
        self.bias = create(f"{scope}/bias", (outputs,), zeros)

    def read(self, name, context):
        """`kernel` or `bias`, of the context's dtype."""
        variable = self.kernel if name == "kernel" else self.bias
        value = self.hooks.parameter(f"{self.scope}/{name}", variable, context)
        return tf.cast(value, context.dtype)

    def project(self, inputs, context):
        """As a call, through the hook `project`."""
        dense = Kernel(
            lambda x: self(x, context), lambda name: self.read(name, context)
        )
        return self.hooks.project(self.scope, inputs, dense, context)

    def __call__(self, inputs, context):
        """float32 [..., inputs] -> float32 [..., outputs]."""
        kernel, bias = (self.read(name, context) for name in ("kernel", "bias"))
        # One matrix product over all tokens is faster than a batch of them.
        flat = tf.cast(inputs, context.dtype)
        flat = tf.reshape(flat, [-1, kernel.shape[0]])
        flat = functional.add_bias(tf.matmul(flat, kernel), bias)
        shape = tf.concat([tf.shape(inputs)[:-1], [kernel.shape[1]]], axis=0)
        outputs = tf.reshape(flat, shape)
        outputs.set_shape(inputs.shape[:-1] + [kernel.shape[1]])
        return outputs


class LayerNorm(tf.Module):
    """Layer normalization over the last axis (Ba et al. 2016)."""

    def __init__(
        self,
        scope,
        size,
        create,
        hooks,
        epsilon=functional.LAYER_NORM_EPSILON,
    ):
        """Creates `<scope>/LayerNorm/beta` and `gamma`, both [size]."""
        self.scope = f"{scope}/LayerNorm"
        self.hooks = hooks
        self.epsilon = epsilon
        self.beta = create(f"{scope}/LayerNorm/beta", (size,), zeros)
        self.gamma = create(f"{scope}/LayerNorm/gamma", (size,), ones)

    def __call__(self, x, context):
        """float32 [..., size] -> float32 [..., size]."""
        beta, gamma = (
            self.hooks.parameter(f"{self.scope}/{name}", variable, context)
            for name, variable in (("beta", self.beta), ("gamma", self.gamma))
        )
        normal = functional.layer_norm(x, gamma, beta, self.epsilon)
        return tf.cast(normal, context.dtype)


class Embeddings(tf.Module):
    """Word, segment and position embeddings, LayerNorm and dropout."""

    def __init__(self, config, create, hooks):
        """Creates the variables under `bert/embeddings/`."""
        self.config = config
        self.hooks = hooks
        normal = truncated_normal(config.initializer_range)
        sizes = {
            "word_embeddings": config.vocab_size,
            "token_type_embeddings": config.type_vocab_size,
            "position_embeddings": config.max_position_embeddings,
        }
        self.word, self.token_type, self.position = (
            create(
                f"bert/embeddings/{name}", (size, config.hidden_size), normal
            )
            for name, size in sizes.items()
        )
        self.layer_norm = LayerNorm(
            "bert/embeddings",
            config.hidden_size,
            create,
            hooks,
            config.layer_norm_eps,
        )

    def __call__(self, input_ids, segment_ids, context):
        """int32 [B, T] twice -> float32 [B, T, D]."""
        word, token_type, position = (
            self.hooks.parameter(f"bert/embeddings/{name}", variable, context)
            for name, variable in (
                ("word_embeddings", self.word),
                ("token_type_embeddings", self.token_type),
                ("position_embeddings", self.position),
            )
        )
        hidden = tf.gather(word, input_ids)
        # Of few rows a product with one-hot vectors is fast both ways.
        one_hot = tf.one_hot(segment_ids, self.config.type_vocab_size)
        hidden += tf.tensordot(one_hot, token_type, 1)
        first = self.config.first_position
        hidden += position[first : first + tf.shape(input_ids)[1]]
        hidden = self.layer_norm(hidden, context)
        return dropout(
            hidden,
            self.config.hidden_dropout_prob,
            "bert/embeddings",
            context,
        )


class SelfAttention(tf.Module):
    """Multi-head self-attention up to, not with, the output projection."""

    def __init__(self, layer, config, create, hooks):
        """Creates `query`, `key` and `value` of layer number `layer`."""
        self.layer = layer
        self.config = config
        self.hooks = hooks
        self.scope = f"bert/encoder/layer_{layer}/attention/self"
        size = config.hidden_size
        self.query, self.key, self.value = (
            Dense(f"{self.scope}/{name}", size, size, config, create, hooks)
            for name in ("query", "key", "value")
        )

    def __call__(self, asking, hidden, attention_bias, context):
        """Attends tokens to all tokens.

        Args:
            asking: float32 [B, A, D], those that attend: all or the first.
            hidden: float32 [B, T, D].
            attention_bias: float32 [B, 1, 1, T], added to the scores.
            context: of this forward pass.

        Returns:
            float32 [B, A, D], the heads side by side.

        Source: Vaswani et al. 2017, section 3.2.
        """
        config = self.config
        heads = [config.num_attention_heads, config.head_size]

        def project(dense, inputs):
            outputs = dense.project(inputs, context)
            shape = tf.concat([tf.shape(inputs)[:2], heads], axis=0)
            # [B, T, D] -> [B, N, T, H]
            return tf.transpose(tf.reshape(outputs, shape), [0, 2, 1, 3])

        key, value, attention_bias = self.hooks.key_value(
            self.layer,
            project(self.key, hidden),
            project(self.value, hidden),
            attention_bias,
            context,
        )
        query = project(self.query, asking)
        rate = config.attention_probs_dropout_prob
        keep = keep_mask(
            tf.concat([tf.shape(query)[:3], tf.shape(key)[2:3]], axis=0),
            rate,
            self.scope,
            context,
        )
        attended = functional.attend(
            query, key, value, attention_bias, keep, rate
        )
        attended = tf.transpose(attended, [0, 2, 1, 3])
        outputs = tf.reshape(attended, tf.shape(asking))  # [B, A, D]
        outputs.set_shape(asking.shape)
        return outputs


class Layer(tf.Module):
    """One transformer layer: attention sublayer, feed-forward sublayer."""

    def __init__(self, layer, config, create, hooks):
        """Creates the variables under `bert/encoder/layer_<layer>/`."""
        self.layer = layer
        self.config = config
        self.hooks = hooks
        scope = f"bert/encoder/layer_{layer}"
        size, inner = config.hidden_size, config.intermediate_size

        def dense(name, inputs, outputs):
            return Dense(
                f"{scope}/{name}/dense", inputs, outputs, config, create, hooks
            )

        def norm(name):
            return LayerNorm(
                f"{scope}/{name}", size, create, hooks, config.layer_norm_eps
            )

        self.attention = SelfAttention(layer, config, create, hooks)
        self.attention_output = dense("attention/output", size, size)
        self.attention_norm = norm("attention/output")
        self.intermediate = dense("intermediate", size, inner)
        self.output = dense("output", inner, size)
        self.output_norm = norm("output")

    def __call__(self, hidden, attention_bias, context):
        """float32 [B, T, D] -> the same, or of the first token [B, 1, D]."""
        context = dataclasses.replace(context, layer_input=hidden)
        asking = hidden[:, :1] if context.first_token else hidden
        attended = self.attention(asking, hidden, attention_bias, context)
        hidden = self._sublayer(
            "attention",
            asking,
            attended,
            self.attention_output,
            self.attention_norm,
            context,
        )
        inner = self.intermediate.project(hidden, context)
        inner = functional.activation(self.config.hidden_act)(inner)
        return self._sublayer(
            "ffn", hidden, inner, self.output, self.output_norm, context
        )

    def _sublayer(self, site, inputs, inner, dense, layer_norm, context):
        """Projects `inner`, drops out, and joins the result to `inputs`."""
        outputs = dropout(
            dense.project(inner, context),
            self.config.hidden_dropout_prob,
            dense.scope,
            context,
        )
        return join_sublayer(
            self.hooks,
            self.layer,
            site,
            inputs,
            outputs,
            lambda x: layer_norm(x, context),
            context,
        )


class BertOutput(NamedTuple):
    """The encoder's outputs.

    Attributes:
        embedding_output: float32 [B, T, D], the inputs of the first layer.
        layer_outputs: L times float32 [B, T, D], the last one [B, 1, D] if
            only its first token is read.
        sequence_output: the last of them, always float32.
    """

    embedding_output: tf.Tensor
    layer_outputs: List[tf.Tensor]
    sequence_output: tf.Tensor


class Bert(tf.Module):
    """The encoder of Devlin et al. 2019, with a tuning method's hooks."""

    def __init__(
        self,
        config: BertConfig,
        create: CreateVariable,
        hooks: Hooks,
        pooler: bool = True,
        run_layer: Optional[Callable] = None,
    ):
        """Creates every variable of the encoder, and of the pooler if asked.

        `run_layer` computes a layer if layers are shared: a `SharedLayers`.
        """
        self.config = config
        self.hooks = hooks
        self.embeddings = Embeddings(config, create, hooks)
        self.run_layer = run_layer
        self.layers = [
            Layer(layer, config, create, hooks)
            for layer in range(config.num_hidden_layers)
        ]
        size = config.hidden_size
        if pooler:
            self.pooler = Dense(
                "bert/pooler/dense", size, size, config, create, hooks
            )

    def __call__(
        self, input_ids: tf.Tensor, segment_ids: tf.Tensor, context: Context
    ) -> BertOutput:
        """Encodes a batch.

        Args:
            input_ids: int32 [B, T], below V; T at most P, less the
                positions before the first token's.
            segment_ids: int32 [B, T], below S.
            context: with the mask of the same shape.

        Returns:
            A `BertOutput`.
        """
        hidden = self.embeddings(input_ids, segment_ids, context)
        hidden = self.hooks.embeddings(hidden, context)
        outputs = self.run_layers(hidden, self.layers, context)
        return BertOutput(hidden, outputs, tf.cast(outputs[-1], tf.float32))

    def run_layers(
        self, hidden: tf.Tensor, layers: List[Layer], context: Context
    ) -> List[tf.Tensor]:
        """The outputs of some of the layers, as `BertOutput` has them."""
        outputs = [hidden]
        handed_on = {**context.handed_on, **self.hooks.begin(context)}
        context = dataclasses.replace(context, handed_on=handed_on)
        every = dataclasses.replace(context, first_token=False)
        mask = tf.cast(context.input_mask, hidden.dtype)
        bias = ((1.0 - mask) * MASKED_SCORE)[:, tf.newaxis, tf.newaxis]
        for layer in layers:
            is_last = layer.layer == self.config.num_hidden_layers - 1
            arguments = (outputs[-1], bias, context if is_last else every)
            kind = self.hooks.layer_kind(layer.layer, context.training)
            if context.share_layers and kind is not None:
                outputs.append(self.run_layer(layer.layer, kind, *arguments))
            else:
                outputs.append(layer(*arguments))
        return outputs[1:]

    def pooled_output(
        self, sequence_output: tf.Tensor, context: Context
    ) -> tf.Tensor:
        """float32 [B, T, D] -> float32 [B, D], from the first token."""
        pooled = self.pooler(sequence_output[:, 0], context)
        return tf.tanh(tf.cast(pooled, tf.float32))


def list_variables(config: BertConfig, pooler: bool = True) -> Dict[str, Shape]:
    """Name and shape of every variable of BERT, without making any.

    A model that was pretrained without a pooler has none, whatever is asked.
    """
    listed: Dict[str, Shape] = {}

    def create(name, shape, initializer):
        del initializer
        listed[name] = tuple(shape)

    Bert(config, create, hooks=None, pooler=pooler and config.has_pooler)
    return listed
