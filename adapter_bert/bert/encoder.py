"""BERT encoder, over variables that are read by name.

Variables have the names of Google's checkpoints, also in models like BERT
(`architectures.py`). Sizes are in `config.py`, the places where a tuning
method may act in `hooks.py`.

Dimension letters of every docstring and comment:

    B batch                 D hidden size            M adapter bottleneck
    T tokens                I intermediate size      L layers
    N attention heads       H head size (D / N)      V vocabulary
    P positions             S segment types          C classes
    E embedding size, D in most models

"float32" of activations stands for the context's `dtype`. Names, shapes and
first values are declared. Values come from the caller: variables of a
TensorFlow 1 graph or of eager mode, or tensors.
"""

import dataclasses
import functools
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.bert import functional, onednn
from adapter_bert.bert.architectures import PROJECTION, RELATIVE_BIAS
from adapter_bert.bert.config import BertConfig
from adapter_bert.bert.hooks import (
    READ,
    Context,
    Hooks,
    Kernel,
    dropout,
    keep_mask,
)

Shape = tuple[int, ...]
# Gives a pretrained variable by name.
Read = Callable[[str], np.ndarray]
# Draws values of a numpy generator and a shape, or is an `OfPretrained`.
Initializer = Any
# (variable name, shape, initializer) -> variable
CreateVariable = Callable[[str, Shape, Initializer], Any]

# Source: google-research/bert, `modeling.py`, `create_attention_mask...`: the
# score added to positions that must not be attended to.
MASKED_SCORE = -10000.0
WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
# The scope of the pooler's kernel and bias.
POOLER = "bert/pooler/dense"
# Source: transformers, `MPNetEncoder.relative_position_bucket`: all distances
# from this one on have one score.
GREATEST_DISTANCE = 128


def truncated_normal(stddev: float) -> Initializer:
    """Draws normal values of mean 0, again where beyond two `stddev`."""

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

    `compute` takes a function that gives a pretrained variable by name.
    """

    compute: Callable[[Read], np.ndarray]


def initial_values(
    name: str,
    shape: Shape,
    initializer: Initializer,
    seed: int,
    read: Optional[Read] = None,
) -> np.ndarray:
    """Draws fresh values, a function of `seed` and the variable's name alone.

    `read` gives pretrained variables to initializers `OfPretrained`.
    """
    if isinstance(initializer, OfPretrained):
        return np.asarray(initializer.compute(read), np.float32)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return initializer(rng, shape)


@dataclasses.dataclass(frozen=True)
class Declared:
    """Declares a variable, by whose name the model reads its value.

    Attributes:
        trained: of a method's, whether training changes it; masks and parts
            stay.
        decays: whether weight decay shrinks it, unless it is a bias or belongs
            to a LayerNorm.
        rate: factor of its learning rate.
        allocation: of AdaLoRA's, how singular values are chosen.
    """

    shape: Shape
    initializer: Initializer
    trained: bool = True
    decays: bool = True
    rate: float = 1.0
    allocation: Any = None


def declare_dense(
    scope: str, inputs: int, outputs: int, config: BertConfig
) -> dict[str, Declared]:
    """Declares `<scope>/kernel` [inputs, outputs] and `<scope>/bias`."""
    normal = truncated_normal(config.initializer_range)
    return {
        f"{scope}/kernel": Declared((inputs, outputs), normal),
        f"{scope}/bias": Declared((outputs,), zeros),
    }


def declare_layer_norm(scope: str, size: int) -> dict[str, Declared]:
    """Declares `<scope>/LayerNorm/beta` and `gamma`, both [size]."""
    return {
        f"{scope}/LayerNorm/beta": Declared((size,), zeros),
        f"{scope}/LayerNorm/gamma": Declared((size,), ones),
    }


def declare(config: BertConfig, pooler: bool = True) -> dict[str, Declared]:
    """Declares every variable of the encoder, and of the pooler if wanted."""
    size, inner = config.hidden_size, config.intermediate_size
    width = config.embedding_width
    normal = truncated_normal(config.initializer_range)
    rows = {
        "word_embeddings": config.vocab_size,
        "token_type_embeddings": config.type_vocab_size,
        "position_embeddings": config.max_position_embeddings,
    }
    declared = {
        f"bert/embeddings/{name}": Declared((count, width), normal)
        for name, count in rows.items()
        if count
    }
    declared.update(declare_layer_norm("bert/embeddings", width))
    if config.embedding_size:
        declared.update(declare_dense(PROJECTION, width, size, config))
    buckets = config.relative_attention_num_buckets
    if buckets:
        shape = buckets, config.num_attention_heads
        declared[f"{RELATIVE_BIAS}/weights"] = Declared(shape, normal)
    layers = range(config.num_hidden_layers)
    scopes = (config.variable(f"bert/encoder/layer_{n}") for n in layers)
    # Layers may share their variables.
    for scope in dict.fromkeys(scopes):
        for name, *sizes in (
            ("attention/self/query", size, size),
            ("attention/self/key", size, size),
            ("attention/self/value", size, size),
            ("attention/output/dense", size, size),
            ("attention/output",),
            ("intermediate/dense", size, inner),
            ("output/dense", inner, size),
            ("output",),
        ):
            layer = f"{scope}/{name}"
            declared.update(
                declare_dense(layer, *sizes, config)
                if sizes
                else declare_layer_norm(layer, size)
            )
    if pooler:
        declared.update(declare_dense(POOLER, size, size, config))
    return declared


def make_variables(
    declared: Mapping[str, Declared], create: CreateVariable
) -> dict[str, Any]:
    """Gives the result of `create` for each declaration, by name."""
    return {
        name: create(name, one.shape, one.initializer)
        for name, one in declared.items()
    }


def list_variables(config: BertConfig, pooler: bool = True) -> dict[str, Shape]:
    """Gives name and shape of every variable of BERT, without making any."""
    declared = declare(config, pooler and config.has_pooler)
    return {name: one.shape for name, one in declared.items()}


class Quantized(NamedTuple):
    """A frozen matrix, `values * scale`, of arrays, tensors or variables.

    `values` are int8 [I, O], or of word embeddings [V, D], `scale` float32
    [1, O], or [V, 1].
    """

    values: Any
    scale: Any

    # As of a variable that no training changes.
    trainable = False

    def widened(self, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """Gives the matrix, `dtype`; computed in float32."""
        return tf.cast(tf.cast(self.values, tf.float32) * self.scale, dtype)

    def rows(self, numbers: tf.Tensor) -> tf.Tensor:
        """Gives rows [...] of word embeddings, float32 [..., D]."""
        some = (tf.gather(part, numbers) for part in self)
        return Quantized(*some).widened()


@dataclasses.dataclass(frozen=True, eq=False)
class Modules:
    """Dense layers and LayerNorms, of variables or tensors by name."""

    config: BertConfig
    values: Mapping[str, Any]
    hooks: Hooks

    def read(self, name: str, context: Context) -> tf.Tensor:
        """Gives a variable's value, as the method has it.

        Of a matrix in int8 the context's dtype, else float32.
        """
        name = self.config.variable(name)
        value = self.values[name]
        if isinstance(value, Quantized):
            value = value.widened(context.dtype)
        return self.hooks.parameter(name, value, context)

    def dense(
        self,
        scope: str,
        inputs: tf.Tensor,
        context: Context,
        activation: functional.Activation = "linear",
    ) -> tf.Tensor:
        """`activation(inputs @ kernel + bias)`.

        Takes float32 [..., inputs], gives float32 [..., outputs].
        """
        kernel, bias = (
            tf.cast(self.read(f"{scope}/{name}", context), context.dtype)
            for name in ("kernel", "bias")
        )
        # One matrix product over all tokens is faster than a batch of them.
        flat = tf.cast(inputs, context.dtype)
        flat = tf.reshape(flat, [-1, kernel.shape[0]])
        flat = functional.dense(flat, kernel, bias, activation)
        shape = tf.concat([tf.shape(inputs)[:-1], [kernel.shape[1]]], axis=0)
        outputs = tf.reshape(flat, shape)
        outputs.set_shape(inputs.shape[:-1] + [kernel.shape[1]])
        return outputs

    def layer_norm(
        self, scope: str, x: tf.Tensor, context: Context
    ) -> tf.Tensor:
        beta, gamma = (
            self.read(f"{scope}/LayerNorm/{name}", context)
            for name in ("beta", "gamma")
        )
        epsilon = self.config.layer_norm_eps
        normal = functional.layer_norm(x, gamma, beta, epsilon)
        return tf.cast(normal, context.dtype)


def masked_scores(mask: tf.Tensor) -> tf.Tensor:
    """Makes numbers to add to scores, float32 [B, 1, 1, T], of a mask [B, T].

    TensorFlow Lite has no `tf.newaxis` where sizes are known at a call only.
    """
    return tf.expand_dims(tf.expand_dims((1.0 - mask) * MASKED_SCORE, 1), 1)


def distance_buckets(count: int) -> np.ndarray:
    """Gives the rows of a table of `count` scores by distance, int32 [257].

    Distances, of the token that is attended to less the other one's place, go
    from -128 to 128. Half of the rows are of later tokens. Of these half are of
    one distance each, the others of ranges that grow as logarithms do.

    Source: Raffel et al. 2020, section 2.1, in transformers' float32.
    """
    ends = GREATEST_DISTANCE
    distances = np.arange(-ends, ends + 1)
    side = count // 2
    exact = side // 2
    far = np.maximum(np.abs(distances), 1).astype(np.float32) / exact
    share = np.log(far) / np.float32(np.log(ends / exact))
    far = exact + (share * np.float32(side - exact)).astype(np.int64)
    near = np.abs(distances)
    rows = np.where(near < exact, near, np.minimum(far, side - 1))
    return (rows + side * (distances > 0)).astype(np.int32)


class BertOutput(NamedTuple):
    """Holds outputs, [B, T, D]; `sequence_output` is always float32.

    `layer_outputs` end with [B, 1, D] if only the first token is read.
    `embedding_output` are the inputs of the first layer.
    """

    embedding_output: tf.Tensor
    layer_outputs: list[tf.Tensor]
    sequence_output: tf.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Bert(Modules):
    """Encodes as Devlin et al. 2019, with a tuning method's hooks.

    `run_layer` is a `SharedLayers` if layers are shared or computed again.
    """

    run_layer: Any = None

    def __call__(
        self,
        input_ids: tf.Tensor,
        segment_ids: tf.Tensor,
        context: Context,
        words: Optional[tf.Tensor] = None,
    ) -> BertOutput:
        """Encodes a batch, int32 [B, T] twice, with the context's mask.

        T is at most P, less the positions before the first token's.
        """
        hidden = self.embed(input_ids, segment_ids, context, words)
        layers = range(self.config.num_hidden_layers)
        outputs = self.run_layers(hidden, layers, context)
        return BertOutput(hidden, outputs, tf.cast(outputs[-1], tf.float32))

    def words(self, input_ids: tf.Tensor, context: Context) -> tf.Tensor:
        """Gives the word embeddings of int32 [B, T], float32 [B, T, E]."""
        words = self.values[WORD_EMBEDDINGS]
        if isinstance(words, Quantized):
            embed = words.rows
        else:
            words = self.read(WORD_EMBEDDINGS, context)
            embed = functools.partial(tf.gather, words)
        return self.hooks.words(input_ids, embed, context)

    def embed(
        self,
        input_ids: tf.Tensor,
        segment_ids: tf.Tensor,
        context: Context,
        words: Optional[tf.Tensor] = None,
    ) -> tf.Tensor:
        """Gives the inputs of the first layer, float32 [B, T, D].

        `words`, float32 [B, T, E], take the place of the tokens' own.
        """
        config, scope = self.config, "bert/embeddings"
        hidden = self.words(input_ids, context) if words is None else words
        if config.type_vocab_size:
            token_type = self.read(f"{scope}/token_type_embeddings", context)
            # Of few rows a product with one-hot vectors is fast both ways.
            one_hot = tf.one_hot(segment_ids, config.type_vocab_size)
            hidden += tf.tensordot(one_hot, token_type, 1)
        position = self.read(f"{scope}/position_embeddings", context)
        first = config.first_position
        hidden += position[first : first + tf.shape(input_ids)[1]]
        hidden = self.layer_norm(scope, hidden, context)
        hidden = dropout(hidden, config.hidden_dropout_prob, scope, context)
        hidden = self.hooks.embeddings(hidden, context)
        if config.embedding_size:
            hidden = self.dense(PROJECTION, hidden, context)
        return hidden

    def run_layers(
        self, hidden: tf.Tensor, layers: Iterable[int], context: Context
    ) -> list[tf.Tensor]:
        length = hidden.shape[1] or tf.shape(hidden)[1]
        whole, mask = self.hooks.lengthen(hidden, context)
        is_longer = whole is not hidden
        moves_first = is_longer and not self.hooks.by_token
        if moves_first:
            is_read = tf.cast(tf.equal(mask, READ), tf.int32)
            mask = tf.minimum(mask, 1)
        context = dataclasses.replace(context, input_mask=mask)
        outputs = [whole]
        handed_on = {**context.handed_on, **self.hooks.begin(context)}
        context = dataclasses.replace(context, handed_on=handed_on)
        every = dataclasses.replace(context, first_token=False)
        bias = self._scores(length, hidden.dtype, context)
        for layer in layers:
            is_last = layer == self.config.num_hidden_layers - 1
            arguments = (outputs[-1], bias, context if is_last else every)
            kind = self.hooks.layer_kind(layer, context.training)
            if context.recompute_layers and kind is not None:
                outputs.append(self.run_layer.recompute(layer, *arguments))
            elif context.share_layers and kind is not None:
                outputs.append(self.run_layer(layer, kind, *arguments))
            else:
                outputs.append(self.layer(layer, *arguments))
        del outputs[0]
        if not is_longer:
            return outputs
        cut = [x[:, :length] for x in outputs]
        if not moves_first:
            return cut
        # Of rows without any, the first token's.
        place = tf.argmax(is_read, axis=1, output_type=tf.int32)[:, tf.newaxis]
        return [
            tf.concat([tf.gather(x, place, batch_dims=1), short[:, 1:]], axis=1)
            for x, short in zip(outputs, cut)
        ]

    def _scores(
        self, length: Any, dtype: tf.DType, context: Context
    ) -> tf.Tensor:
        """Gives what is added to the scores of all layers, as `layer` takes it.

        Only the first `length` tokens, a text's, are at distances.
        """
        mask = context.input_mask
        buckets = self.config.relative_attention_num_buckets
        if not buckets:
            return masked_scores(tf.cast(mask, dtype))
        table = self.read(f"{RELATIVE_BIAS}/weights", context)
        table = tf.cast(table, tf.float32)
        by_distance = tf.gather(table, distance_buckets(buckets))
        places = tf.range(length)
        ends = GREATEST_DISTANCE
        distances = tf.expand_dims(places, 0) - tf.expand_dims(places, 1)
        distances = tf.clip_by_value(distances, -ends, ends) + ends
        relative = tf.transpose(tf.gather(by_distance, distances), [2, 0, 1])
        if not isinstance(length, int) or mask.shape[1] != length:
            more = [0, tf.shape(mask)[1] - length]
            relative = tf.pad(relative, [[0, 0], more, more])
        masked = masked_scores(tf.cast(mask, tf.float32))
        # Added up in float32, and so is the gradient of all rows.
        return tf.cast(masked + relative[tf.newaxis], dtype)

    def layer(
        self,
        layer: int,
        hidden: tf.Tensor,
        attention_bias: tf.Tensor,
        context: Context,
    ) -> tf.Tensor:
        """Computes attention and feed-forward sublayer of layer `layer`.

        Takes `hidden`, float32 [B, T, D], and what is added to its scores,
        float32 [B, 1, 1, T], or [B, N, T, T] in an MPNet. Gives float32
        [B, T, D], or of the first token [B, 1, D].
        """
        scope = f"bert/encoder/layer_{layer}"
        context = dataclasses.replace(context, layer_input=hidden)
        inputs = hidden
        if context.first_token:
            inputs = hidden[:, :1]
            if self.config.relative_attention_num_buckets:
                attention_bias = attention_bias[:, :, :1]
        inner = self._attend(layer, inputs, hidden, attention_bias, context)
        output = f"{scope}/attention/output"
        hidden = self._join(layer, "attention", output, inputs, inner, context)
        inner = self.project(
            f"{scope}/intermediate/dense",
            hidden,
            context,
            self.config.hidden_act,
        )
        output = f"{scope}/output"
        return self._join(layer, "ffn", output, hidden, inner, context)

    def _join(self, layer, site, scope, inputs, inner, context) -> tf.Tensor:
        """Ends a sublayer, `LN(inputs + f(inner))`, float32 [B, T, D]."""
        outputs = dropout(
            self.project(f"{scope}/dense", inner, context),
            self.config.hidden_dropout_prob,
            f"{scope}/dense",
            context,
        )
        norm = functools.partial(self.layer_norm, scope, context=context)
        added = self.hooks.before_norm(
            layer, site, inputs, outputs, norm, context
        )
        if added is not None:
            outputs += added
        hidden = norm(inputs + outputs)
        added = self.hooks.after_norm(layer, site, hidden, context)
        return hidden if added is None else hidden + added

    def project(
        self,
        scope: str,
        inputs: tf.Tensor,
        context: Context,
        activation: functional.Activation = "linear",
    ) -> tf.Tensor:
        """Computes `dense`, with its activation after the hook `project`."""
        in_one = onednn.is_built_for(onednn.PREDICTION)
        if "project" not in self.hooks.places:
            if activation == "linear" or in_one:
                return self.dense(scope, inputs, context, activation)
            outputs = self.dense(scope, inputs, context)
            return functional.activation(activation)(outputs)
        computed_of, plain = inputs, None

        def apply(x: tf.Tensor) -> tf.Tensor:
            nonlocal computed_of, plain
            computed_of, plain = x, self.dense(scope, x, context)
            return plain

        kernel = Kernel(
            apply,
            lambda name: tf.cast(
                self.read(f"{scope}/{name}", context), context.dtype
            ),
        )
        outputs = self.hooks.project(scope, inputs, kernel, context)
        if activation == "linear":
            return outputs
        if outputs is plain and in_one:
            # The hook changes nothing, so one kernel computes both. TensorFlow
            # leaves out the product that nothing reads now.
            return self.dense(scope, computed_of, context, activation)
        return functional.activation(activation)(outputs)

    def _attend(self, layer, asking, hidden, attention_bias, context):
        """Computes multi-head self-attention, without the output projection.

        `asking`, float32 [B, A, D], are the tokens that attend: all of `hidden`
        or the first. Gives float32 [B, A, D], the heads side by side.

        Source: Vaswani et al. 2017, section 3.2.
        """
        config = self.config
        scope = f"bert/encoder/layer_{layer}/attention/self"
        heads = [config.num_attention_heads, config.head_size]

        def by_heads(name, inputs):
            outputs = self.project(f"{scope}/{name}", inputs, context)
            shape = tf.concat([tf.shape(inputs)[:2], heads], axis=0)
            # [B, T, D] -> [B, N, T, H]
            return tf.transpose(tf.reshape(outputs, shape), [0, 2, 1, 3])

        key, value, attention_bias = self.hooks.key_value(
            layer,
            by_heads("key", hidden),
            by_heads("value", hidden),
            attention_bias,
            context,
        )
        query = by_heads("query", asking)
        rate = config.attention_probs_dropout_prob
        keep = keep_mask(
            tf.concat([tf.shape(query)[:3], tf.shape(key)[2:3]], axis=0),
            rate,
            scope,
            context,
        )
        attended = functional.attend(
            query,
            key,
            value,
            attention_bias,
            keep,
            rate,
            config.relative_attention_num_buckets > 0,
        )
        attended = tf.transpose(attended, [0, 2, 1, 3])
        return functional.shaped_as(attended, asking)  # [B, A, D]

    def pooled_output(
        self, sequence_output: tf.Tensor, context: Context
    ) -> tf.Tensor:
        """float32 [B, T, D] -> float32 [B, D], from the first token."""
        pooled = self.pool(sequence_output, context)[:, 0]
        return tf.tanh(tf.cast(pooled, tf.float32))

    def pool(self, sequence_output: tf.Tensor, context: Context) -> tf.Tensor:
        """`pooled_output` before its tanh, float32 [B, 1, D]."""
        return self.project(POOLER, sequence_output[:, :1], context)
