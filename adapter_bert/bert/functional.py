"""Operations between matrix products, with custom gradients.

Written out as TensorFlow's operations, gelu, LayerNorm, dropout and attention
pass over memory many times and save many tensors for the backward pass. These
are equal up to rounding. Dimension letters are those of `encoder.py`; R stands
for rows of any number of leading dimensions.
"""

import itertools
import math
from typing import Any, Callable, Optional, Union

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from adapter_bert.bert import onednn
from adapter_bert.errors import UserError
from adapter_bert.graph_building import leave_with_graph, setting

# Added to the variance. Source: `tf.contrib.layers.layer_norm`, which
# google-research/bert calls.
LAYER_NORM_EPSILON = 1e-12

# Builds a TensorFlow 1 graph whose gradients come from `tf.gradients`. There
# `tf.custom_gradient` would leave operations that nothing reads.
_lacks_tapes, without_tapes = setting()
# Builds operations that XLA compiles for a TPU or GPU. Memory is slow there and
# arithmetic is not, unlike on a CPU: masks of dropout are drawn by
# `hashed_mask`, and backward passes compute masks, probabilities and normalized
# values again instead of reading them.
_is_for_accelerator, for_accelerator = setting()
# Builds a graph of prediction that is converted for other runtimes. TensorFlow
# Lite knows an activation as TensorFlow writes it.
_is_for_runtimes, for_runtimes = setting()
# A function of one tensor.
OfTensor = Callable[[tf.Tensor], tf.Tensor]
# A mask of dropout, or a function that draws the mask: in the backward pass, as
# its argument tells, anew.
Keep = Union[tf.Tensor, Callable[[bool], tf.Tensor]]
_NUMBERS = itertools.count()


def anew(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """Gives the tensors for a backward pass to compute from, under XLA.

    XLA merges equal operations, and would keep the results of the forward pass.
    """
    return gen_xla_ops.xla_optimization_barrier(input=list(tensors))


def custom_gradient(function: Callable[..., tuple]) -> Callable:
    """Wraps a function that gives one tensor, as `tf.custom_gradient`."""

    def call(*arguments: Any) -> tf.Tensor:
        if not _lacks_tapes() or tf.inside_function():
            output = tf.custom_gradient(function)(*arguments)
            leave_with_graph(output)
            return output
        arguments = [tf.convert_to_tensor(x) for x in arguments]
        output, gradient = function(*arguments)
        name = f"CustomGradient-adapter-bert-{next(_NUMBERS)}"

        @tf.RegisterGradient(name)
        def backward(op: tf.Operation, upstream: tf.Tensor, *_: Any) -> list:
            return [None, *tf.nest.flatten(gradient(upstream))]

        graph = tf.compat.v1.get_default_graph()
        with graph.gradient_override_map({"IdentityN": name}):
            output = tf.identity_n([output, *arguments])[0]
        leave_with_graph(output)
        return output

    return call


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Gaussian error linear unit in its tanh approximation, any shape.

    Source: Hendrycks and Gimpel 2016. `x sigmoid(2 u)` equals
    `x (1 + tanh(u)) / 2`, with `u = sqrt(2 / pi) (x + 0.044715 x^3)`.
    """
    linear = 2.0 * math.sqrt(2.0 / math.pi)
    cubic = 0.044715 * linear

    def compute(x):
        square = tf.square(x)
        gate = tf.sigmoid(x * (linear + cubic * square))
        outputs = x * gate
        bend = outputs - outputs * gate  # x gate (1 - gate)
        return outputs, gate + bend * (linear + 3.0 * cubic * square)

    return _with_slope(compute, x)


def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """Gaussian error linear unit with the error function, any shape.

    With the normal distribution function `Phi` it is `x Phi(x)`.
    """
    if _is_for_runtimes():
        return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))
    log_peak = -0.5 * math.log(2.0 * math.pi)

    def compute(x):
        scaled = x * math.sqrt(0.5)
        share = 0.5 + 0.5 * tf.math.erf(scaled)
        density = tf.exp(log_peak - tf.square(scaled))
        return x * share, share + x * density

    return _with_slope(compute, x)


def _with_slope(
    compute: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]], x: tf.Tensor
) -> tf.Tensor:
    """Makes an elementwise function save its slope for the backward pass.

    `compute` gives both in the forward pass, of float32, in graphs only if a
    gradient is asked for. `x`, float32 or bfloat16, is saved on accelerators
    alone, whose backward pass computes the slope.
    """

    @custom_gradient
    def apply(x):
        outputs, slope = compute(tf.cast(x, tf.float32))

        def gradient(upstream):
            derivative = slope
            if _is_for_accelerator():
                (again,) = anew(x)
                _, derivative = compute(tf.cast(again, tf.float32))
            return upstream * tf.cast(derivative, x.dtype)

        return tf.cast(outputs, x.dtype), gradient

    return apply(x)


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Computes cross entropies in nats, float32 of the shape of `labels`.

    `logits`, float32, have one more axis than `labels`, int32 class numbers.
    Has the bits of TensorFlow's deterministic function, without its NaN.
    """
    labels = tf.convert_to_tensor(labels)
    shape = tf.shape(labels)
    logs = tf.nn.log_softmax(tf.reshape(logits, [-1, tf.shape(logits)[-1]]))
    losses = -tf.gather(logs, tf.reshape(labels, [-1]), batch_dims=1)
    losses = tf.reshape(losses, shape)
    losses.set_shape(labels.shape)
    return losses


ACTIVATIONS: dict[str, OfTensor] = {
    "gelu": gelu,
    "gelu_new": gelu,
    "gelu_erf": gelu_erf,
    # Names of transformers'; the two ways to write each gelu are one function.
    "gelu_accurate": gelu,
    "gelu_fast": gelu,
    "gelu_pytorch_tanh": gelu,
    "gelu_python": gelu_erf,
    "silu": tf.nn.silu,
    "relu": tf.nn.relu,
    "swish": tf.nn.silu,
    "tanh": tf.tanh,
    "linear": tf.identity,
    # Of other programs' adapters: PyTorch's slope, Misra 2019, Hendrycks and
    # Gimpel 2016.
    "leaky_relu": lambda x: tf.nn.leaky_relu(x, alpha=0.01),
    "mish": lambda x: x * tf.tanh(tf.math.softplus(x)),
    "quick_gelu": lambda x: x * tf.sigmoid(1.702 * x),
    "relu6": tf.nn.relu6,
    "sigmoid": tf.sigmoid,
}


# The name of an activation, or a function of any shape that is one.
Activation = Union[str, OfTensor]


def activation(name: Activation) -> OfTensor:
    """Gives the activation function called `name`; a function is itself."""
    if callable(name):
        return name
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise UserError(
            f"unknown activation {name!r}; known: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def layer_norm(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float = LAYER_NORM_EPSILON,
) -> tf.Tensor:
    """Gives `gamma (x - mean) / sqrt(variance + epsilon) + beta`, like `x`.

    Over the last axis of `x`, float32 or bfloat16 [..., D], in float32. `gamma`
    and `beta` are float32 [D]; or [B, D], one for each row of `x` [B, ..., D].

    Source: Ba et al. 2016.
    """

    in_one_pass = onednn.is_built_for(onednn.PREDICTION)
    # Either of them alone may differ by row.
    if max(len(gamma.shape), len(beta.shape)) == 2:
        size, wide = x.shape[-1], tf.cast(x, tf.float32)
        if in_one_pass:
            same = tf.ones([size]), tf.zeros([size])
            normal = onednn.layer_norm(wide, *same, epsilon)
        else:
            _, normal = _standardize(wide, epsilon)
        rows = [-1, *[1] * (len(x.shape) - 2), size]
        outputs = normal * tf.reshape(gamma, rows) + tf.reshape(beta, rows)
        return tf.cast(outputs, x.dtype)
    if in_one_pass:
        wide = tf.cast(x, tf.float32)
        outputs = onednn.layer_norm(wide, gamma, beta, epsilon)
        return tf.cast(outputs, x.dtype)

    @custom_gradient
    def compute(x, gamma, beta):
        # In a branch (`tf.cond`) the gradient must not read outside tensors.
        gamma = tf.identity(gamma)
        size = x.shape[-1]
        wide = tf.reshape(tf.cast(x, tf.float32), [-1, size])
        inverse, normal = _standardize(wide, epsilon)
        outputs = tf.cast(normal * gamma + beta, x.dtype)

        def gradient(upstream):
            factor, standard = inverse, normal
            if _is_for_accelerator():
                (again,) = anew(x)
                again = tf.reshape(tf.cast(again, tf.float32), [-1, size])
                factor, standard = _standardize(again, epsilon)
            upstream = tf.reshape(tf.cast(upstream, tf.float32), [-1, size])
            product = upstream * standard
            scaled = upstream * gamma
            shift = tf.reduce_mean(scaled, axis=-1, keepdims=True)  # [R, 1]
            stretch = tf.reduce_mean(product * gamma, axis=-1, keepdims=True)
            x_gradient = factor * (scaled - (standard * stretch + shift))
            return (
                tf.reshape(tf.cast(x_gradient, x.dtype), tf.shape(x)),
                tf.reduce_sum(product, axis=0),
                tf.reduce_sum(upstream, axis=0),
            )

        return tf.reshape(outputs, tf.shape(x)), gradient

    outputs = compute(x, gamma, beta)
    outputs.set_shape(x.shape)
    return outputs


def _standardize(x: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Gives 1 / deviation, float32 [..., 1], and (x - mean) / deviation."""
    centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    return inverse, centered * inverse


def shaped_as(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Reshapes values as a tensor of as many."""
    values = tf.reshape(values, tf.shape(like))
    values.set_shape(like.shape)
    return values


def dense(
    x: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    activated: Activation = "linear",
) -> tf.Tensor:
    """Gives `x @ kernel + bias`, activated by a name or function.

    Args:
        x: float32 or bfloat16 [R, I]; or [B, T, I].
        kernel: like `x` [I, O]; or [B, I, O].
        bias: like `x` [O]; of [R, I] also [B, O], as in `add_bias`; of
            [B, T, I] only [B, 1, O].
    """
    function = activation(activated)
    if len(x.shape) > 2:
        return function(tf.matmul(x, kernel) + bias)
    if len(bias.shape) == 1:
        if onednn.is_built_for(onednn.PREDICTION):
            if activated in onednn.ACTIVATIONS:
                return onednn.dense(x, kernel, bias, activated)
            return function(onednn.dense(x, kernel, bias))
        # In float32 a kernel without activation gains nothing.
        if onednn.is_built_for(onednn.TRAINING) and x.dtype == tf.bfloat16:
            return function(_product(x, kernel, bias))
    return function(add_bias(tf.matmul(x, kernel), bias))


@custom_gradient
def _product(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tuple:

    def gradient(upstream):
        return (
            tf.matmul(upstream, kernel, transpose_b=True),
            tf.matmul(x, upstream, transpose_a=True),
            tf.reduce_sum(upstream, axis=0),
        )

    return onednn.dense(x, kernel, bias), gradient


def add_bias(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Gives `x + bias` over the last axis.

    `x` is float32 or bfloat16 [R, O]; `bias` like it [O], or [B, O], each for
    the next R / B rows of `x`.
    """
    if len(bias.shape) == 1:
        narrow = x.dtype == tf.bfloat16
        return (_add_narrow if narrow else tf.nn.bias_add)(x, bias)
    by_row = tf.reshape(x, [tf.shape(bias)[0], -1, bias.shape[-1]])
    return tf.reshape(by_row + bias[:, tf.newaxis], tf.shape(x))


@custom_gradient
def _add_narrow(x: tf.Tensor, bias: tf.Tensor) -> tuple:
    """`x + bias`, whose gradient is added up in float32."""
    # TensorFlow's adds up in bfloat16, where 256 and 1 make 256.
    return tf.nn.bias_add(x, bias), lambda upstream: (
        upstream,
        tf.reduce_sum(upstream, axis=0),
    )


def keep_mask(shape: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Draws the elements that dropout keeps, bool of `shape`, int32 [n].

    Eight random bits decide an element. `rate`, in [0, 255/256], is compared
    with one of its two neighbours among multiples of 1/256, which each call
    draws so that an element is dropped with probability `rate` exactly. `seed`
    is int32 [2].

    Raises:
        ValueError: a greater rate, whose upper neighbour is no byte.
    """
    _check_rate(rate)
    size = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform(
        [(size + 3) // 4 + 1],
        seed,
        minval=None,
        maxval=None,
        dtype=tf.int32,
        # Every device and compiler draws the same bits of a named generator.
        alg="philox",
    )
    octets = tf.reshape(tf.bitcast(words, tf.uint8), [-1])
    # TensorFlow computes int32 on the host, where it expects shapes; a GPU
    # would wait for a copy of all words.
    last = tf.cast(tf.bitcast(octets[-4:], tf.int32), tf.int64)
    lower = int(rate * 256)
    is_upper = last < int((rate * 256 - lower) * 2**32) - 2**31
    threshold = tf.cast(lower + tf.cast(is_upper, tf.int64), tf.uint8)
    return tf.reshape(octets[:size], shape) >= threshold


def _check_rate(rate: float) -> None:
    if not 0.0 <= rate <= 255 / 256:
        raise ValueError(f"the rate {rate} is not in [0, 255/256]")


def draw_mask(shape: tf.Tensor, rate: float, seed: tf.Tensor) -> Keep:
    """Draws a mask by `keep_mask`, or gives what accelerators draw one by."""
    if not _is_for_accelerator():
        return keep_mask(shape, rate, seed)

    def draw(is_again: bool) -> tf.Tensor:
        (used,) = anew(seed) if is_again else [seed]
        return hashed_mask(shape, rate, used)

    return draw


# Amounts by which a word is rotated in eight rounds, after which they repeat.
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
ROUNDS = 13


def hashed_mask(shape: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Draws the elements that dropout keeps, each by itself.

    An element's random word is a function of the seed and of its own number,
    so that XLA computes a mask where it is used and stores none. Arguments as
    of `keep_mask`; `rate` is exact to 2^-32, and words repeat after 2^32.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
    Threefry-2x32 with 13 rounds.
    """
    _check_rate(rate)
    first, second = tf.unstack(tf.bitcast(seed, tf.uint32))
    # Numbers plus the key's first word. The sum begins with the word, which a
    # compiler does not know: of numbers alone it would make a constant.
    sums, shape = first, tf.cast(shape, tf.int64)
    for axis in range(shape.shape[0]):
        places = tf.range(shape[axis]) * tf.reduce_prod(shape[axis + 1 :])
        sums = sums[..., tf.newaxis] + tf.cast(places, tf.uint32)
    words = _threefry(sums, first, second)
    return words >= tf.constant(int(rate * 2**32), tf.uint32)


# A function of TensorFlow: one copy serves all masks of a graph.
@tf.function(autograph=False)
def _threefry(x: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Gives the first words of blocks of Threefry-2x32, uint32 like `x`.

    A block's counter is a number and zero, its key `first` and `second`, both
    uint32 []. `x` are the numbers plus `first`.
    """
    keys = [first, second, first ^ second ^ 0x1BD11BDA]
    # Zeros of this shape would be a constant that fills memory.
    y = tf.broadcast_to(second, tf.shape(x))
    for number in range(ROUNDS):
        left = ROTATIONS[number % 8]
        x += y
        y = tf.bitwise.left_shift(y, left) | tf.bitwise.right_shift(
            y, 32 - left
        )
        y ^= x
        if number % 4 == 3:
            turn = number // 4 + 1
            x += keys[turn % 3]
            y += keys[(turn + 1) % 3] + turn
    return x


def drop(x: tf.Tensor, keep: Keep, rate: float) -> tf.Tensor:
    """Zeroes the elements that are not kept and scales up the others.

    `x` is float32 or bfloat16 [...], `keep` bool like it, or draws that, `rate`
    the share that was dropped.
    """

    def masked(x, is_again=False):
        return x * _share(keep, x, is_again) * (1.0 / (1.0 - rate))

    return custom_gradient(
        lambda x: (masked(x), lambda upstream: masked(upstream, True))
    )(x)


def _share(keep: Keep, x: tf.Tensor, is_again: bool) -> tf.Tensor:
    """Casts a mask to ones and zeros, like `x`.

    A product with it is faster than a selection. It is cast when `x` is there,
    forward and again backward, instead of saved at four bytes an element.
    """
    if callable(keep):
        keep = keep(is_again)
    with tf.control_dependencies([x]):
        return tf.cast(keep, x.dtype)


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    attention_bias: tf.Tensor,
    keep: Optional[Keep],
    rate: float,
    bias_has_gradient: bool = False,
) -> tf.Tensor:
    """Computes scaled dot-product attention, with dropout of probabilities.

    Args:
        query: float32 or bfloat16 [B, N, T, H].
        key: like it [B, N, S, H], S positions to attend to.
        value: like `key`.
        attention_bias: like it [B, 1, 1, S], added to the scores; or
            [B, N, T, S].
        keep: bool [B, N, T, S] of `draw_mask`, or None for no dropout.
        rate: the share that `keep` drops.
        bias_has_gradient: whether `attention_bias`, [B, N, T, S], has one.

    Source: Vaswani et al. 2017, section 3.2.1. Gives [B, N, T, H].
    """
    scale = 1.0 / math.sqrt(query.shape[-1])

    def weigh(query: tf.Tensor, key: tf.Tensor, *bias: tf.Tensor) -> tf.Tensor:
        scores = tf.matmul(query * scale, key, transpose_b=True)
        (bias,) = bias or [attention_bias]
        scores = tf.cast(scores + bias, tf.float32)
        return tf.cast(tf.nn.softmax(scores), query.dtype)

    def kept(x: tf.Tensor, is_again: bool = True) -> tf.Tensor:
        return x if keep is None else x * _share(keep, x, is_again)

    def enlarged(x: tf.Tensor) -> tf.Tensor:
        # Dropout's factor goes with values, which are fewer than probabilities.
        return x if keep is None else x * (1.0 / (1.0 - rate))

    @custom_gradient
    def compute(query, key, value, *bias):
        weights = weigh(query, key, *bias)
        outputs = tf.matmul(kept(weights, is_again=False), enlarged(value))

        def gradient(upstream):
            read, probabilities = [query, key, value], weights
            if _is_for_accelerator():
                read = anew(*read)
                probabilities = weigh(*read[:2], *bias)
            queries, keys, values = read
            # Recomputed now, not saved in the forward pass.
            with tf.control_dependencies([upstream]):
                # Control dependencies hold within the gradient's graph alone.
                again = kept(tf.identity(probabilities))
            value_gradient = tf.matmul(
                again, enlarged(upstream), transpose_a=True
            )
            # Row sums of gradient times probability, which the softmax's
            # gradient needs, are those of gradient times output.
            sums = tf.reduce_sum(
                tf.cast(upstream * outputs, tf.float32), -1, keepdims=True
            )
            slope = tf.matmul(upstream, enlarged(values), transpose_b=True)
            slope = probabilities * (kept(slope) - tf.cast(sums, slope.dtype))
            return (
                tf.matmul(slope, keys) * scale,
                tf.matmul(slope, queries, transpose_a=True) * scale,
                value_gradient,
                *[slope for _ in bias],
            )

        return outputs, gradient

    trained = [attention_bias] if bias_has_gradient else []
    return compute(query, key, value, *trained)
