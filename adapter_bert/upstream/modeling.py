"""Names of google-research/bert's `modeling.py`, and adapter-bert's.

`BertModel` builds the encoder of `adapter_bert/bert` in a TensorFlow 1 graph,
under the variable names of Google's checkpoints, with any tuning method. The
functions below it build single parts, for programs that put their own model
together.
"""

import copy
import dataclasses
import json
import math
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import tensorflow as tf
from absl import logging

from adapter_bert.bert import config as bert_config
from adapter_bert.bert import encoder, functional
from adapter_bert.bert.hooks import Context, Hooks
from adapter_bert.bert.shared_layers import make_bert
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.base import LAYER_NORMS, TuningMethod
from adapter_bert.methods.houlsby import SCOPES
from adapter_bert.upstream.optimization import (
    ADAPTERS,
    HEAD,
    LAYER_NORM,
    RECIPES,
)

v1 = tf.compat.v1
ModeKeys = tf.compat.v1.estimator.ModeKeys if hasattr(tf, "estimator") else None
# The method of `feedforward_adapter`. Source: google-research/adapter-bert.
FEEDFORWARD = "houlsby(size=64, init_scale=0.001)"
# Dimensions as `get_shape_list` gives them: int, or int32 [].
Shape = List[Any]


class BertConfig:
    """The sizes of a BERT; any attribute may be changed or added.

    `adapter_bert.bert.config.BertConfig` is the checked and frozen form, which
    `BertModel` makes.
    """

    def __init__(
        self,
        vocab_size: Optional[int],
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_act: Any = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 16,
        initializer_range: float = 0.02,
    ):
        """Takes the sizes.

        Args:
            vocab_size: V.
            hidden_size: D.
            num_hidden_layers: L.
            num_attention_heads: N.
            intermediate_size: I.
            hidden_act: an activation's name, or a function.
            hidden_dropout_prob: share that dropout zeroes of outputs.
            attention_probs_dropout_prob: the same, of attention.
            max_position_embeddings: P.
            type_vocab_size: S.
            initializer_range: standard deviation of fresh matrices.
        """
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.hidden_act = hidden_act
        self.intermediate_size = intermediate_size
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.initializer_range = initializer_range

    @classmethod
    def from_dict(cls, json_object: Mapping[str, Any]) -> "BertConfig":
        """A config of these attributes, unknown ones too."""
        config = cls(vocab_size=None)
        vars(config).update(json_object)
        return config

    @classmethod
    def from_json_file(cls, json_file: str) -> "BertConfig":
        """Reads a `bert_config.json`."""
        with tf.io.gfile.GFile(json_file, "r") as file:
            return cls.from_dict(json.load(file))

    def to_dict(self) -> Dict[str, Any]:
        """A copy of the attributes."""
        return copy.deepcopy(vars(self))

    def to_json_string(self) -> str:
        """The attributes as JSON, by name."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


def _checked(config: BertConfig, is_training: bool) -> bert_config.BertConfig:
    """The frozen form, without dropout unless in training.

    Raises:
        ValueError: sizes of which no BERT can be made.
    """
    names = [field.name for field in dataclasses.fields(bert_config.BertConfig)]
    sizes = {k: v for k, v in vars(config).items() if k in names}
    if not is_training:
        sizes["hidden_dropout_prob"] = 0.0
        sizes["attention_probs_dropout_prob"] = 0.0
    get_activation(config.hidden_act)
    try:
        return bert_config.BertConfig(**sizes)
    except UserError as error:
        raise ValueError(str(error)) from error


class BertModel:
    """BERT over a batch, in the current graph.

    Attributes:
        embedding_output: float32 [B, T, D], what the first layer reads.
        all_encoder_layers: L times float32 [B, T, D].
        sequence_output: the last of them.
        pooled_output: float32 [B, D].
        embedding_table: the word embeddings, float32 [V, D].

    Source: Devlin et al. 2019; google-research/bert and adapter-bert,
    `modeling.py`.
    """

    def __init__(
        self,
        config: BertConfig,
        is_training: bool,
        input_ids: tf.Tensor,
        input_mask: Optional[tf.Tensor] = None,
        token_type_ids: Optional[tf.Tensor] = None,
        use_one_hot_embeddings: bool = False,
        scope: Any = None,
        adapter_fn: Any = None,
        tuning_method: Any = None,
    ):
        """Creates or, in a scope that reuses, finds the variables.

        Args:
            config: of the BERT.
            is_training: whether dropout is on.
            input_ids: int32 [B, T].
            input_mask: int32 [B, T], 1 for tokens; by default all are.
            token_type_ids: int32 [B, T]; by default 0.
            use_one_hot_embeddings: whether words are looked up by a product of
                matrices, which old TPUs do faster.
            scope: of the variables; by default `bert`.
            adapter_fn: as of `get_adapter`: called with each sublayer's
                outputs, [B T, D], before they join its inputs.
            tuning_method: a method of `--tuning_method`, or its text, as
                `lora(rank=8)`. Its variables, and those of BERT that it
                trains, are in collections that
                `optimization.create_optimizer` trains.

        Raises:
            ValueError: sizes or shapes that do not fit.
            UserError: no tuning method, or none that this BERT can take.
        """
        get_shape_list(input_ids, expected_rank=2, name="input_ids")
        if input_mask is None:
            input_mask = tf.ones_like(input_ids)
        if token_type_ids is None:
            token_type_ids = tf.zeros_like(input_ids)
        # Words are gathered, which gives the same numbers.
        del use_one_hot_embeddings
        sizes = _checked(config, is_training)
        method, function = _method_of(adapter_fn, tuning_method)
        method.check(sizes)
        seed = None
        if is_training:
            limit = 2**31 - 1
            seed = v1.random_uniform([2], maxval=limit, dtype=tf.int32)
        context = Context(
            tf.cast(input_mask, tf.int32),
            training=is_training,
            seed=seed,
            step_seed=seed,
            # A function may create variables, which a traced layer may not.
            share_layers=function is None,
        )
        with v1.variable_scope(scope, default_name="bert"):
            create = _VariableMaker(sizes, method, function is not None)
            added = {
                name: create.added(name, declared)
                for name, declared in method.variables(sizes).items()
            }

            def make_hooks(values: Mapping[str, Any]) -> Hooks:
                if function is not None:
                    return _FunctionHooks(function)
                return method.hooks(sizes, values)

            bert = make_bert(sizes, create, added, make_hooks, pooler=True)
            if is_training and "prepare" in bert.hooks.places:
                prepared = bert.hooks.prepare(context)
                context = dataclasses.replace(context, handed_on=prepared)
            output = bert(
                tf.cast(input_ids, tf.int32),
                tf.cast(token_type_ids, tf.int32),
                context,
            )
            self.embedding_output = output.embedding_output
            self.all_encoder_layers = output.layer_outputs
            self.sequence_output = output.sequence_output
            self.pooled_output = bert.pooled_output(
                output.sequence_output, context
            )
            self.embedding_table = bert.embeddings.word
        if tuning_method is not None:
            v1.add_to_collection(RECIPES, method.recipe_of(sizes))

    def get_pooled_output(self) -> tf.Tensor:
        """float32 [B, D], of the first token."""
        return self.pooled_output

    def get_sequence_output(self) -> tf.Tensor:
        """float32 [B, T, D], of the last layer."""
        return self.sequence_output

    def get_all_encoder_layers(self) -> List[tf.Tensor]:
        """L times float32 [B, T, D]."""
        return self.all_encoder_layers

    def get_embedding_output(self) -> tf.Tensor:
        """float32 [B, T, D], what the first layer reads."""
        return self.embedding_output

    def get_embedding_table(self) -> Any:
        """The variable of the word embeddings, float32 [V, D]."""
        return self.embedding_table


def _method_of(
    adapter_fn: Any, tuning_method: Any
) -> Tuple[TuningMethod, Optional[Callable[[tf.Tensor], tf.Tensor]]]:
    """What acts on BERT: a method, and instead of it perhaps a function.

    Raises:
        ValueError: both are given, or a method that needs more than a graph.
    """
    if adapter_fn and tuning_method:
        raise ValueError("expected adapter_fn or tuning_method, found both")
    function = get_adapter(adapter_fn)
    if function is feedforward_adapter:
        function, tuning_method = None, FEEDFORWARD
    method = tuning_method or "full"
    if isinstance(method, str):
        method = registry.parse(method)
    if method.parts or method.first_phase is not None:
        raise ValueError(
            f"{method} needs a training of its own: run_classifier.py "
            "--tuning_method has it; BertModel takes methods of one phase, "
            "without trained parts"
        )
    return method, function


class _VariableMaker:
    """Makes a model's variables in the current scope.

    Frozen ones are not `trainable`, but in the collection of those that are,
    from where programs restore a checkpoint.
    """

    def __init__(self, config, method: TuningMethod, has_function: bool):
        self._range = config.initializer_range
        self._trains = method.trains(config)
        if has_function:
            self._trains = LAYER_NORMS
        self._seed = v1.get_default_graph().seed or 0

    def __call__(self, name: str, shape: encoder.Shape, _: Any) -> Any:
        """A variable of BERT's own."""
        kind = name.rpartition("/")[2]
        if kind == "gamma":
            initializer = v1.ones_initializer()
        elif kind in ("beta", "bias"):
            initializer = v1.zeros_initializer()
        else:
            initializer = create_initializer(self._range)
        is_trained = bool(re.fullmatch(self._trains, name))
        collections = [v1.GraphKeys.TRAINABLE_VARIABLES]
        if is_trained and "/LayerNorm/" in name:
            collections.append(LAYER_NORM)
        return self._get(name, shape, initializer, is_trained, collections)

    def added(self, name: str, declared: Any) -> Any:
        """A variable of the method's."""

        def initialize(shape, dtype=None, partition_info=None):
            del dtype, partition_info
            return tf.constant(
                encoder.initial_values(
                    name, tuple(shape), declared.initializer, self._seed
                )
            )

        collections = []
        if declared.trained:
            collections = [ADAPTERS, v1.GraphKeys.TRAINABLE_VARIABLES]
        return self._get(
            name, declared.shape, initialize, declared.trained, collections
        )

    def _get(self, name, shape, initializer, is_trained, collections):
        return v1.get_variable(
            name.removeprefix("bert/"),
            list(shape),
            initializer=initializer,
            trainable=is_trained,
            collections=[v1.GraphKeys.GLOBAL_VARIABLES, *collections],
        )


class _FunctionHooks(Hooks):
    """A program's own function at each sublayer's outputs."""

    def __init__(self, function: Callable[[tf.Tensor], tf.Tensor]):
        self._function = function

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        """What the function adds, with variables in the sublayer's scope."""
        scope = SCOPES[site]
        with v1.variable_scope(
            f"encoder/layer_{layer}/{scope}", auxiliary_name_scope=False
        ):
            flat = reshape_to_matrix(outputs)
            adapted = tf.reshape(self._function(flat), tf.shape(outputs))
        return adapted - outputs


def head_variables(
    weights: str, bias: str, count: int, size: int
) -> Tuple[Any, Any]:
    """The last layer of a head: float32 [C, D] and [C], in `head` as well."""
    collections = [v1.GraphKeys.GLOBAL_VARIABLES, HEAD]
    return (
        v1.get_variable(
            weights,
            [count, size],
            initializer=create_initializer(),
            collections=collections,
        ),
        v1.get_variable(
            bias,
            [count],
            initializer=v1.zeros_initializer(),
            collections=collections,
        ),
    )


def feedforward_adapter(
    input_tensor: tf.Tensor, hidden_size: int = 64, init_scale: float = 1e-3
) -> tf.Tensor:
    """A bottleneck with a residual connection, float32 [R, D] -> [R, D].

    Its variables are in `<current scope>/adapters` and in the collection
    `adapters`.

    Source: Houlsby et al. 2019, section 2.1; google-research/adapter-bert.
    """
    size = input_tensor.shape[-1]
    collections = [ADAPTERS, v1.GraphKeys.GLOBAL_VARIABLES]

    def project(inputs, number, shape):
        kernel = v1.get_variable(
            f"weights{number}",
            shape,
            initializer=create_initializer(init_scale),
            collections=collections,
        )
        bias = v1.get_variable(
            f"biases{number}",
            [1, shape[1]],
            initializer=v1.zeros_initializer(),
            collections=collections,
        )
        return tf.matmul(inputs, kernel) + bias

    with v1.variable_scope("adapters"):
        inner = gelu(project(input_tensor, 1, [size, hidden_size]))
        return project(inner, 2, [hidden_size, size]) + input_tensor


def get_adapter(function_string: Any) -> Optional[Callable]:
    """The adapter function of a name; a function is given back.

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


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Gaussian error linear unit in its tanh form, any shape."""
    return functional.gelu(x)


def get_activation(activation_string: Any) -> Optional[Callable]:
    """The activation of a name; None of `linear` and ""; a function is itself.

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


def get_assignment_map_from_checkpoint(
    tvars: Sequence[Any], init_checkpoint: str
) -> Tuple[Dict[str, str], Dict[str, int]]:
    """Names that variables and a checkpoint share.

    Args:
        tvars: variables.
        init_checkpoint: a TensorFlow checkpoint.

    Returns:
        For `tf.train.init_from_checkpoint`, name -> name, in the checkpoint's
        order; and the same names, and with `:0`, each -> 1.
    """
    names = {re.sub(r":\d+$", "", variable.name) for variable in tvars}
    found = {
        name: name
        for name, _ in tf.train.list_variables(init_checkpoint)
        if name in names
    }
    initialized = {key: 1 for n in found for key in (n, f"{n}:0")}
    return found, initialized


def start_from(
    init_checkpoint: Optional[str], use_tpu: bool
) -> Optional[Callable[[], Any]]:
    """Has a graph's variables start from a checkpoint, and logs which do.

    Returns:
        The `scaffold_fn` of a TPU, or None.
    """
    variables = v1.trainable_variables()
    initialized: Dict[str, int] = {}
    scaffold = None
    if init_checkpoint:
        assignment, initialized = get_assignment_map_from_checkpoint(
            variables, init_checkpoint
        )

        def scaffold():
            v1.train.init_from_checkpoint(init_checkpoint, assignment)
            return v1.train.Scaffold()

        if not use_tpu:
            scaffold()
            scaffold = None
    logging.info("**** Trainable Variables ****")
    for variable in variables:
        logging.info(
            "  name = %s, shape = %s%s",
            variable.name,
            variable.shape,
            ", *INIT_FROM_CKPT*" if variable.name in initialized else "",
        )
    return scaffold


def log_features(features: Mapping[str, tf.Tensor]) -> None:
    """Logs name and shape of a batch's tensors."""
    logging.info("*** Features ***")
    for name, value in sorted(features.items()):
        logging.info("  name = %s, shape = %s", name, value.shape)


def dropout(
    input_tensor: tf.Tensor, dropout_prob: Optional[float]
) -> tf.Tensor:
    """Zeroes a share of the values, and scales up the rest."""
    if not dropout_prob:
        return input_tensor
    return tf.nn.dropout(input_tensor, rate=dropout_prob)


def layer_norm(
    input_tensor: tf.Tensor, name: Optional[str] = None
) -> tf.Tensor:
    """Layer normalization over the last axis; variables `beta`, `gamma`."""
    size = [input_tensor.shape[-1]]
    collections = [LAYER_NORM, v1.GraphKeys.GLOBAL_VARIABLES]
    with v1.variable_scope(name, default_name="LayerNorm"):
        beta, gamma = (
            v1.get_variable(
                kind, size, initializer=initializer, collections=collections
            )
            for kind, initializer in (
                ("beta", v1.zeros_initializer()),
                ("gamma", v1.ones_initializer()),
            )
        )
    return functional.layer_norm(
        input_tensor, *map(tf.convert_to_tensor, (gamma, beta))
    )


def layer_norm_and_dropout(
    input_tensor: tf.Tensor,
    dropout_prob: Optional[float],
    name: Optional[str] = None,
) -> tf.Tensor:
    """Layer normalization, then dropout."""
    return dropout(layer_norm(input_tensor, name), dropout_prob)


def create_initializer(initializer_range: float = 0.02) -> Any:
    """A truncated normal of this standard deviation."""
    return v1.truncated_normal_initializer(stddev=initializer_range)


def embedding_lookup(
    input_ids: tf.Tensor,
    vocab_size: int,
    embedding_size: int = 128,
    initializer_range: float = 0.02,
    word_embedding_name: str = "word_embeddings",
    use_one_hot_embeddings: bool = False,
) -> Tuple[tf.Tensor, Any]:
    """Looks up vectors.

    Args:
        input_ids: int32 [B, T] or [B, T, K].
        vocab_size: V.
        embedding_size: E.
        initializer_range: standard deviation of fresh vectors.
        word_embedding_name: of the variable.
        use_one_hot_embeddings: whether by a product of matrices.

    Returns:
        float32 [B, T, E or K E], and the variable, [V, E].
    """
    table = v1.get_variable(
        word_embedding_name,
        [vocab_size, embedding_size],
        initializer=create_initializer(initializer_range),
    )
    flat = tf.reshape(input_ids, [-1])
    if use_one_hot_embeddings:
        found = tf.matmul(tf.one_hot(flat, vocab_size), table)
    else:
        found = tf.gather(table, flat)
    batch, length, *each = get_shape_list(input_ids)
    width = math.prod(each) * embedding_size
    return tf.reshape(found, [batch, length, width]), table


def embedding_postprocessor(
    input_tensor: tf.Tensor,
    use_token_type: bool = False,
    token_type_ids: Optional[tf.Tensor] = None,
    token_type_vocab_size: int = 16,
    token_type_embedding_name: str = "token_type_embeddings",
    use_position_embeddings: bool = True,
    position_embedding_name: str = "position_embeddings",
    initializer_range: float = 0.02,
    max_position_embeddings: int = 512,
    dropout_prob: Optional[float] = 0.1,
) -> tf.Tensor:
    """Adds segments and positions, then LayerNorm and dropout.

    Args:
        input_tensor: float32 [B, T, E].
        use_token_type: whether segments are added.
        token_type_ids: int32 [B, T], the segments.
        token_type_vocab_size: S.
        token_type_embedding_name: of the variable, [S, E].
        use_position_embeddings: whether positions are added.
        position_embedding_name: of the variable, [P, E].
        initializer_range: standard deviation of fresh vectors.
        max_position_embeddings: P.
        dropout_prob: share that dropout zeroes.

    Returns:
        float32 [B, T, E].

    Raises:
        ValueError: no segments, or more tokens than positions.
    """
    _, length, width = get_shape_list(input_tensor, expected_rank=3)
    initializer = create_initializer(initializer_range)
    output = input_tensor
    if use_token_type:
        if token_type_ids is None:
            raise ValueError("use_token_type needs token_type_ids, found None")
        table = v1.get_variable(
            token_type_embedding_name,
            [token_type_vocab_size, width],
            initializer=initializer,
        )
        one_hot = tf.one_hot(token_type_ids, token_type_vocab_size)
        output += tf.tensordot(one_hot, table, 1)
    if use_position_embeddings:
        if isinstance(length, int) and length > max_position_embeddings:
            raise ValueError(
                f"found {length} tokens, expected at most the "
                f"{max_position_embeddings} of max_position_embeddings"
            )
        table = v1.get_variable(
            position_embedding_name,
            [max_position_embeddings, width],
            initializer=initializer,
        )
        output += table[:length]
    return layer_norm_and_dropout(output, dropout_prob)


def create_attention_mask_from_input_mask(
    from_tensor: tf.Tensor, to_mask: tf.Tensor
) -> tf.Tensor:
    """Each token's view of the others.

    Args:
        from_tensor: [B, F, ...].
        to_mask: int32 [B, T].

    Returns:
        float32 [B, F, T], 1 where a token may be attended to.
    """
    batch, length, *_ = get_shape_list(from_tensor, expected_rank=[2, 3])
    ones = tf.ones([batch, length, 1], tf.float32)
    return ones * tf.cast(to_mask, tf.float32)[:, tf.newaxis]


def _dense(inputs, size, activation, name, initializer_range):
    """float32 [R, I] -> [R, O]; variables `<name>/kernel`, `<name>/bias`."""
    with v1.variable_scope(name):
        kernel = v1.get_variable(
            "kernel",
            [inputs.shape[-1], size],
            initializer=create_initializer(initializer_range),
        )
        bias = v1.get_variable(
            "bias", [size], initializer=v1.zeros_initializer()
        )
    outputs = tf.nn.bias_add(tf.matmul(inputs, kernel), bias)
    return outputs if activation is None else activation(outputs)


def attention_layer(
    from_tensor: tf.Tensor,
    to_tensor: tf.Tensor,
    attention_mask: Optional[tf.Tensor] = None,
    num_attention_heads: int = 1,
    size_per_head: int = 512,
    query_act: Optional[Callable] = None,
    key_act: Optional[Callable] = None,
    value_act: Optional[Callable] = None,
    attention_probs_dropout_prob: float = 0.0,
    initializer_range: float = 0.02,
    do_return_2d_tensor: bool = False,
    batch_size: Any = None,
    from_seq_length: Any = None,
    to_seq_length: Any = None,
) -> tf.Tensor:
    """Multi-head attention (Vaswani et al. 2017, section 3.2).

    Args:
        from_tensor: float32 [B, F, I], or [B F, I].
        to_tensor: float32 [B, T, J], or [B T, J].
        attention_mask: [B, F, T], 1 where a token may be attended to.
        num_attention_heads: N.
        size_per_head: H.
        query_act: activation of the queries.
        key_act: activation of the keys.
        value_act: activation of the values.
        attention_probs_dropout_prob: share that dropout zeroes.
        initializer_range: standard deviation of fresh matrices.
        do_return_2d_tensor: whether the output is a matrix.
        batch_size: B, needed of matrices.
        from_seq_length: F, needed of matrices.
        to_seq_length: T, needed of matrices.

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
        outputs = _dense(
            reshape_to_matrix(inputs),
            width,
            activation,
            name,
            initializer_range,
        )
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
    input_tensor: tf.Tensor,
    attention_mask: Optional[tf.Tensor] = None,
    hidden_size: int = 768,
    num_hidden_layers: int = 12,
    num_attention_heads: int = 12,
    intermediate_size: int = 3072,
    intermediate_act_fn: Optional[Callable] = gelu,
    hidden_dropout_prob: float = 0.1,
    attention_probs_dropout_prob: float = 0.1,
    initializer_range: float = 0.02,
    do_return_all_layers: bool = False,
    adapter_fn: Optional[Callable] = None,
) -> Any:
    """Transformer layers with variables in the current scope.

    Args:
        input_tensor: float32 [B, T, D].
        attention_mask: [B, T, T], 1 where a token may be attended to.
        hidden_size: D.
        num_hidden_layers: L.
        num_attention_heads: N.
        intermediate_size: I.
        intermediate_act_fn: activation of the inner layer.
        hidden_dropout_prob: share that dropout zeroes of outputs.
        attention_probs_dropout_prob: the same, of attention.
        initializer_range: standard deviation of fresh matrices.
        do_return_all_layers: whether all layers' outputs are wanted.
        adapter_fn: called with each sublayer's outputs, [B T, D].

    Returns:
        float32 [B, T, D] of the last layer, or a list of all layers'.

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
                    attended = attention_layer(
                        hidden,
                        hidden,
                        attention_mask,
                        num_attention_heads,
                        hidden_size // num_attention_heads,
                        attention_probs_dropout_prob=(
                            attention_probs_dropout_prob
                        ),
                        initializer_range=initializer_range,
                        do_return_2d_tensor=True,
                        batch_size=shape[0],
                        from_seq_length=shape[1],
                        to_seq_length=shape[1],
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


def get_shape_list(
    tensor: tf.Tensor, expected_rank: Any = None, name: Optional[str] = None
) -> Shape:
    """The dimensions: int where the graph knows them, else int32 [].

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


def reshape_to_matrix(input_tensor: tf.Tensor) -> tf.Tensor:
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


def reshape_from_matrix(
    output_tensor: tf.Tensor, orig_shape_list: Shape
) -> tf.Tensor:
    """[R, E] -> [..., E], with the leading axes of `orig_shape_list`."""
    if len(orig_shape_list) == 2:
        return output_tensor
    width = get_shape_list(output_tensor)[-1]
    return tf.reshape(output_tensor, [*orig_shape_list[:-1], width])


def assert_rank(
    tensor: tf.Tensor, expected_rank: Any, name: Optional[str] = None
) -> None:
    """Checks the number of axes.

    Args:
        tensor: any.
        expected_rank: int, or several.
        name: of the tensor, for the message.

    Raises:
        ValueError: another number.
    """
    ranks = [expected_rank] if isinstance(expected_rank, int) else expected_rank
    if tensor.shape.ndims not in ranks:
        raise ValueError(
            f"the tensor {name or tensor.name} in scope "
            f"{v1.get_variable_scope().name!r} has shape {tensor.shape} of "
            f"rank {tensor.shape.ndims}, expected rank {expected_rank}"
        )
