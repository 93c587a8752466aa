"""Single parts of BERT in the current scope of a TensorFlow 1 graph.

Programs put models of their own together from them; `BertModel` does not need
them. `modeling.py` has all of their names.
"""

import math
import re

import tensorflow as tf

from adapter_bert.bert import encoder, functional
from adapter_bert.upstream.optimization import ADAPTERS, HEAD, LAYER_NORM

v1 = tf.compat.v1


def gelu(x):
    """Gaussian error linear unit in its tanh form, any shape."""
    return functional.gelu(x)


def get_activation(activation_string):
    """Finds an activation by name; None of `linear` and "".

    Raises:
        ValueError: an unknown name.
    """
    if not isinstance(activation_string, str):
        return activation_string
    name = activation_string.lower()
    if name in ("", "linear"):
        return None
    if name not in functional.ACTIVATIONS:
        raise ValueError(
            f"unsupported activation {activation_string!r}; expected one of "
            f"{', '.join(functional.ACTIVATIONS)}"
        )
    return functional.ACTIVATIONS[name]


def dropout(input_tensor, dropout_prob):
    """Zeroes a share of the values, and scales up the rest."""
    if not dropout_prob:
        return input_tensor
    return tf.nn.dropout(input_tensor, rate=dropout_prob)


def create_initializer(initializer_range=0.02):
    """Makes a truncated normal of this standard deviation."""
    return v1.truncated_normal_initializer(stddev=initializer_range)


def make_variable(
    name,
    shape,
    initializer_range=0.02,
    collections=None,
    trainable=True,
):
    """Makes or finds a variable; biases begin as 0, gammas as 1."""
    if name.endswith("gamma"):
        initializer = v1.ones_initializer()
    elif re.search(r"beta$|bias(es\d)?$", name):
        initializer = v1.zeros_initializer()
    else:
        initializer = create_initializer(initializer_range)
    if collections is not None:
        collections = [v1.GraphKeys.GLOBAL_VARIABLES, *collections]
    return v1.get_variable(
        name,
        shape,
        initializer=initializer,
        collections=collections,
        trainable=trainable,
    )


def layer_norm(input_tensor, name=None):
    """Layer normalization over the last axis; variables `beta`, `gamma`."""
    with v1.variable_scope(name, default_name="LayerNorm"):
        beta, gamma = (
            make_variable(
                kind, [input_tensor.shape[-1]], collections=[LAYER_NORM]
            )
            for kind in ("beta", "gamma")
        )
    return functional.layer_norm(
        input_tensor, *map(tf.convert_to_tensor, (gamma, beta))
    )


def layer_norm_and_dropout(
    input_tensor,
    dropout_prob,
    name=None,
):
    """Layer normalization, then dropout."""
    return dropout(layer_norm(input_tensor, name), dropout_prob)


def embedding_lookup(
    input_ids,
    vocab_size,
    embedding_size=128,
    initializer_range=0.02,
    word_embedding_name="word_embeddings",
    use_one_hot_embeddings=False,
):
    """Looks up vectors of words, int32 [B, T] or [B, T, K].

    Returns:
        float32 [B, T, E or K E], and the variable, [V, E].
    """
    size = [vocab_size, embedding_size]
    table = make_variable(word_embedding_name, size, initializer_range)
    flat = tf.reshape(input_ids, [-1])
    if use_one_hot_embeddings:
        vectors = tf.matmul(tf.one_hot(flat, vocab_size), table)
    else:
        vectors = tf.gather(table, flat)
    batch, length, *each = get_shape_list(input_ids)
    width = math.prod(each) * embedding_size
    return tf.reshape(vectors, [batch, length, width]), table


def embedding_postprocessor(
    input_tensor,
    use_token_type=False,
    token_type_ids=None,
    token_type_vocab_size=16,
    token_type_embedding_name="token_type_embeddings",
    use_position_embeddings=True,
    position_embedding_name="position_embeddings",
    initializer_range=0.02,
    max_position_embeddings=512,
    dropout_prob=0.1,
):
    """Adds segments [S, E] and positions [P, E], then LayerNorm and dropout.

    `input_tensor` and what is returned are float32 [B, T, E], `token_type_ids`
    int32 [B, T].

    Raises:
        ValueError: no segments, or more tokens than positions.
    """
    _, length, width = get_shape_list(input_tensor, expected_rank=3)
    output = input_tensor
    if use_token_type:
        if token_type_ids is None:
            raise ValueError("use_token_type needs token_type_ids, found None")
        size = [token_type_vocab_size, width]
        table = make_variable(
            token_type_embedding_name, size, initializer_range
        )
        one_hot = tf.one_hot(token_type_ids, token_type_vocab_size)
        output += tf.tensordot(one_hot, table, 1)
    if use_position_embeddings:
        if isinstance(length, int) and length > max_position_embeddings:
            raise ValueError(
                f"found {length} tokens, expected at most the "
                f"{max_position_embeddings} of max_position_embeddings"
            )
        size = [max_position_embeddings, width]
        table = make_variable(position_embedding_name, size, initializer_range)
        output += table[:length]
    return layer_norm_and_dropout(output, dropout_prob)


def create_attention_mask_from_input_mask(from_tensor, to_mask):
    """Makes tokens' view of others, float32 [B, F, T], 1 where it is.

    `from_tensor` is [B, F, ...], `to_mask` int32 [B, T].
    """
    batch, length, *_ = get_shape_list(from_tensor, expected_rank=[2, 3])
    ones = tf.ones([batch, length, 1], tf.float32)
    return ones * tf.cast(to_mask, tf.float32)[:, tf.newaxis]


def _dense(inputs, size, activation, name, initializer_range):
    """float32 [R, I] -> [R, O]; variables `<name>/kernel`, `<name>/bias`."""
    with v1.variable_scope(name):
        shape = [inputs.shape[-1], size]
        kernel = make_variable("kernel", shape, initializer_range)
        bias = make_variable("bias", [size])
    outputs = tf.nn.bias_add(tf.matmul(inputs, kernel), bias)
    return outputs if activation is None else activation(outputs)


def attention_layer(
    from_tensor,
    to_tensor,
    attention_mask=None,
    num_attention_heads=1,
    size_per_head=512,
    query_act=None,
    key_act=None,
    value_act=None,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.02,
    do_return_2d_tensor=False,
    batch_size=None,
    from_seq_length=None,
    to_seq_length=None,
):
    """Computes multi-head attention (Vaswani et al. 2017, section 3.2).

    Matrices need `batch_size` B, `from_seq_length` F and `to_seq_length` T.

    Args:
        from_tensor: float32 [B, F, I], or [B F, I].
        to_tensor: float32 [B, T, J], or [B T, J].
        attention_mask: [B, F, T], 1 where a token may be attended to.
        num_attention_heads: N.
        size_per_head: H.

    Returns:
        float32 [B, F, N H], or [B F, N H].

    Raises:
        ValueError: ranks that differ, or matrices without their lengths.
    """
    shapes = [get_shape_list(x, [2, 3]) for x in (from_tensor, to_tensor)]
    if len(shapes[0]) != len(shapes[1]):
        raise ValueError(
            "from_tensor and to_tensor have different ranks: "
            f"{len(shapes[0])} and {len(shapes[1])}"
        )
    if len(shapes[0]) == 3:
        batch_size, from_seq_length, _ = shapes[0]
        to_seq_length = shapes[1][1]
    elif None in (batch_size, from_seq_length, to_seq_length):
        raise ValueError(
            "tensors of rank 2 need batch_size, from_seq_length and "
            "to_seq_length"
        )
    width = num_attention_heads * size_per_head

    def project(inputs, length, name, activation):
        flat = reshape_to_matrix(inputs)
        outputs = _dense(flat, width, activation, name, initializer_range)
        heads = [batch_size, length, num_attention_heads, size_per_head]
        return tf.transpose(tf.reshape(outputs, heads), [0, 2, 1, 3])

    query = project(from_tensor, from_seq_length, "query", query_act)
    key = project(to_tensor, to_seq_length, "key", key_act)
    value = project(to_tensor, to_seq_length, "value", value_act)
    scores = tf.matmul(query, key, transpose_b=True)
    scores *= 1.0 / math.sqrt(size_per_head)
    if attention_mask is not None:
        mask = tf.cast(attention_mask, tf.float32)[:, tf.newaxis]
        scores += (1.0 - mask) * encoder.MASKED_SCORE
    shares = dropout(tf.nn.softmax(scores), attention_probs_dropout_prob)
    context = tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3])
    if do_return_2d_tensor:
        return tf.reshape(context, [batch_size * from_seq_length, width])
    return tf.reshape(context, [batch_size, from_seq_length, width])


def transformer_model(
    input_tensor,
    attention_mask=None,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    intermediate_act_fn=gelu,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    initializer_range=0.02,
    do_return_all_layers=False,
    adapter_fn=None,
):
    """Computes layers, float32 [B, T, D], with variables in the current scope.

    `attention_mask` is [B, T, T], 1 where a token may be attended to.
    `adapter_fn` is called with each sublayer's outputs, [B T, D]. With
    `do_return_all_layers` a list of all layers' outputs is returned.

    Raises:
        ValueError: a hidden size that the heads do not divide, or inputs of
            another width.
    """
    if hidden_size % num_attention_heads:
        raise ValueError(
            f"hidden_size {hidden_size} is no multiple of num_attention_heads "
            f"{num_attention_heads}"
        )
    shape = get_shape_list(input_tensor, expected_rank=3)
    if shape[2] != hidden_size:
        raise ValueError(
            f"input_tensor has width {shape[2]}, expected hidden_size "
            f"{hidden_size}"
        )

    def join(inner, inputs):
        outputs = _dense(inner, hidden_size, None, "dense", initializer_range)
        outputs = dropout(outputs, hidden_dropout_prob)
        if adapter_fn:
            outputs = adapter_fn(outputs)
        return layer_norm(outputs + inputs)

    hidden = reshape_to_matrix(input_tensor)
    outputs = []
    for number in range(num_hidden_layers):
        with v1.variable_scope(f"layer_{number}"):
            with v1.variable_scope("attention"):
                with v1.variable_scope("self"):
                    states = reshape_from_matrix(hidden, shape)
                    attended = attention_layer(
                        states,
                        states,
                        attention_mask,
                        num_attention_heads,
                        hidden_size // num_attention_heads,
                        attention_probs_dropout_prob=(
                            attention_probs_dropout_prob
                        ),
                        initializer_range=initializer_range,
                        do_return_2d_tensor=True,
                    )
                with v1.variable_scope("output"):
                    hidden = join(attended, hidden)
            with v1.variable_scope("intermediate"):
                inner = _dense(
                    hidden,
                    intermediate_size,
                    intermediate_act_fn,
                    "dense",
                    initializer_range,
                )
            with v1.variable_scope("output"):
                hidden = join(inner, hidden)
        outputs.append(reshape_from_matrix(hidden, shape))
    return outputs if do_return_all_layers else outputs[-1]


def get_shape_list(tensor, expected_rank=None, name=None):
    """Gives the dimensions: int where the graph knows them, else int32 [].

    Raises:
        ValueError: as `assert_rank`.
    """
    if expected_rank is not None:
        assert_rank(tensor, expected_rank, name)
    shape = tensor.shape.as_list()
    if None not in shape:
        return shape
    dynamic = tf.shape(tensor)
    return [dynamic[n] if x is None else x for n, x in enumerate(shape)]


def reshape_to_matrix(input_tensor):
    """[..., D] -> [R, D].

    Raises:
        ValueError: fewer than two axes.
    """
    if input_tensor.shape.ndims < 2:
        raise ValueError(
            f"expected at least two axes, found shape {input_tensor.shape}"
        )
    if input_tensor.shape.ndims == 2:
        return input_tensor
    return tf.reshape(input_tensor, [-1, input_tensor.shape[-1]])


def reshape_from_matrix(output_tensor, orig_shape_list):
    """[R, E] -> [..., E], with the leading axes of `orig_shape_list`."""
    if len(orig_shape_list) == 2:
        return output_tensor
    width = get_shape_list(output_tensor)[-1]
    return tf.reshape(output_tensor, [*orig_shape_list[:-1], width])


def assert_rank(tensor, expected_rank, name=None):
    """Raises ValueError for another number of axes than expected."""
    ranks = [expected_rank] if isinstance(expected_rank, int) else expected_rank
    if tensor.shape.ndims not in ranks:
        raise ValueError(
            f"the tensor {name or tensor.name} in scope "
            f"{v1.get_variable_scope().name!r} has shape {tensor.shape} of "
            f"rank {tensor.shape.ndims}, expected rank {expected_rank}"
        )


def feedforward_adapter(input_tensor, hidden_size=64, init_scale=1e-3):
    """Adds a bottleneck with a residual connection, float32 [R, D] -> [R, D].

    Its variables are in `<current scope>/adapters` and in the collection
    `adapters`.

    Source: Houlsby et al. 2019, section 2.1; google-research/adapter-bert.
    """
    size = input_tensor.shape[-1]

    def project(inputs, number, shape):
        kernel, bias = (
            make_variable(f"{name}{number}", of, init_scale, [ADAPTERS])
            for name, of in (("weights", shape), ("biases", [1, shape[1]]))
        )
        return tf.matmul(inputs, kernel) + bias

    with v1.variable_scope("adapters"):
        inner = gelu(project(input_tensor, 1, [size, hidden_size]))
        return project(inner, 2, [hidden_size, size]) + input_tensor


def get_adapter(function_string):
    """Finds the adapter function of a name; a function is given back.

    Raises:
        ValueError: an unknown name.
    """
    if not isinstance(function_string, str):
        return function_string
    if not function_string:
        return None
    if function_string.lower() != "feedforward_adapter":
        raise ValueError(
            f"unsupported adapter {function_string!r}; expected "
            "'feedforward_adapter' or a function"
        )
    return feedforward_adapter


def head_variables(weights, bias, count, size):
    """Makes a head's last layer: float32 [C, D] and [C], in `head` too."""
    return (
        make_variable(weights, [count, size], collections=[HEAD]),
        make_variable(bias, [count], collections=[HEAD]),
    )
