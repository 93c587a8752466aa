"""Models and functions of google-research/bert's modeling.py, by their names.

`BertModel` builds the encoder of `adapter_bert/bert` in a TensorFlow 1 graph,
under the variable names of Google's checkpoints, with a tuning method.
`layers.py` has the functions that build single parts.
"""

import copy
import dataclasses
import json
import re
from typing import Any, Optional

import tensorflow as tf

from adapter_bert.bert import config as bert_config
from adapter_bert.bert import encoder
from adapter_bert.bert.functional import without_tapes
from adapter_bert.bert.hooks import Context, Hooks
from adapter_bert.bert.shared_layers import make_bert
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.adalora import AdaLora
from adapter_bert.methods.base import LAYER_NORMS
from adapter_bert.methods.houlsby import SCOPES
from adapter_bert.optimization import Recipe
from adapter_bert.upstream.layers import (  # noqa: F401
    assert_rank,
    attention_layer,
    create_attention_mask_from_input_mask,
    create_initializer,
    dropout,
    embedding_lookup,
    embedding_postprocessor,
    feedforward_adapter,
    gelu,
    get_activation,
    get_adapter,
    get_shape_list,
    head_variables,
    layer_norm,
    layer_norm_and_dropout,
    make_variable,
    reshape_from_matrix,
    reshape_to_matrix,
    transformer_model,
)
from adapter_bert.upstream.optimization import (
    ADAPTERS,
    LAYER_NORM,
    add_recipe,
    create_optimizer,
)

v1 = tf.compat.v1
ModeKeys = tf.compat.v1.estimator.ModeKeys if hasattr(tf, "estimator") else None
# The collection of BERT's own variables.
OWN = "bert"
# The end of a name that each BertModel has.
WORDS = "/embeddings/word_embeddings"
# The method of `feedforward_adapter`. Source: google-research/adapter-bert.
FEEDFORWARD = "houlsby(size=64, init_scale=0.001)"


@dataclasses.dataclass(eq=False, repr=False)
class BertConfig:
    """Holds the sizes of a BERT; any attribute may be changed or added.

    `hidden_act` is an activation's name in any case of letters, or an
    elementwise function without variables; None and "" are `linear`.
    `adapter_bert.bert.config.BertConfig` is the checked and frozen form.
    """

    vocab_size: Optional[int]
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Any = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02

    @classmethod
    def from_dict(cls, json_object):
        config = cls(vocab_size=None)
        vars(config).update(json_object)
        return config

    @classmethod
    def from_json_file(cls, json_file):
        with tf.io.gfile.GFile(json_file, "r") as file:
            return cls.from_dict(json.load(file))

    def to_dict(self):
        return copy.deepcopy(vars(self))

    def to_json_string(self):
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


def _checked(config, is_training):
    """Gives the frozen form, without dropout unless in training.

    Raises:
        ValueError: sizes that no BERT can have.
    """
    names = [field.name for field in dataclasses.fields(bert_config.BertConfig)]
    sizes = {k: v for k, v in vars(config).items() if k in names}
    if not is_training:
        sizes["hidden_dropout_prob"] = 0.0
        sizes["attention_probs_dropout_prob"] = 0.0
    activation = get_activation(config.hidden_act)
    if activation is None:
        sizes["hidden_act"] = "linear"
    elif isinstance(config.hidden_act, str):
        sizes["hidden_act"] = config.hidden_act.lower()
    try:
        return bert_config.BertConfig(**sizes)
    except UserError as error:
        raise ValueError(str(error)) from error


def _check_features(
    config,
    input_ids,
    input_mask,
    token_type_ids,
):
    """Raises as `BertModel` if a batch does not fit."""
    _, length = get_shape_list(input_ids, 2, "input_ids")
    get_shape_list(input_mask, 2, "input_mask")
    get_shape_list(token_type_ids, 2, "token_type_ids")
    most = config.max_position_embeddings
    if isinstance(length, int) and length > most:
        raise ValueError(
            f"found {length} tokens in input_ids, expected at most the {most} "
            "of max_position_embeddings"
        )


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
        config,
        is_training,
        input_ids,
        input_mask=None,
        token_type_ids=None,
        use_one_hot_embeddings=False,
        scope=None,
        adapter_fn=None,
        tuning_method=None,
    ):
        """Creates or, in a scope that reuses, finds the variables.

        Args:
            config: of the BERT.
            is_training: whether dropout is on.
            input_ids: int32 [B, T].
            input_mask: int32 [B, T], 1 for tokens; by default all are.
            token_type_ids: int32 [B, T]; by default 0.
            use_one_hot_embeddings: whether words are looked up by a product.
            scope: of the variables; by default `bert`.
            adapter_fn: called with each sublayer's outputs, [B T, D].
            tuning_method: a method of `--tuning_method`, or its text. Its
                variables, and those of BERT that it trains, are in collections
                that `optimization.create_optimizer` trains.

        Raises:
            RuntimeError: TensorFlow executes eagerly.
            ValueError: sizes or shapes that do not fit.
        """
        if tf.executing_eagerly():
            raise RuntimeError(
                "BertModel builds a TensorFlow 1 graph, found eager execution; "
                "begin the program with `import tensorflow.compat.v1 as tf` "
                "and `tf.disable_v2_behavior()`, or build the model within "
                "`with tf.Graph().as_default():`"
            )
        if input_mask is None:
            input_mask = tf.ones_like(input_ids)
        if token_type_ids is None:
            token_type_ids = tf.zeros_like(input_ids)
        _check_features(config, input_ids, input_mask, token_type_ids)
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
            # A program's own function may create variables or read tensors of
            # the graph, which a traced layer may not.
            share_layers=function is None and not callable(sizes.hidden_act),
        )
        with v1.variable_scope(scope, default_name="bert"):
            create = _VariableMaker(sizes, method, function is not None)
            added = {
                name: create.added(name, declared)
                for name, declared in method.variables(sizes).items()
            }
            variables = encoder.make_variables(encoder.declare(sizes), create)

            def make_hooks(values):
                if function is not None:
                    return _FunctionHooks(function)
                return method.hooks(sizes, values)

            bert = make_bert(sizes, variables, added, make_hooks)
            self.embedding_table = variables["bert/embeddings/word_embeddings"]
            # No optimizer of a program's own trains what the method freezes.
            values = {
                name: v if v.trainable else tf.stop_gradient(v)
                for name, v in variables.items()
            }
            bert = dataclasses.replace(bert, values=values)
            if is_training and "prepare" in bert.hooks.places:
                prepared = bert.hooks.prepare(context)
                context = dataclasses.replace(context, handed_on=prepared)
            with without_tapes():
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
        if tuning_method is not None:
            add_recipe(Recipe.of(method.variables(sizes)), added)

    def get_pooled_output(self):
        """float32 [B, D], of the first token."""
        return self.pooled_output

    def get_sequence_output(self):
        """float32 [B, T, D], of the last layer."""
        return self.sequence_output

    def get_all_encoder_layers(self):
        """L times float32 [B, T, D]."""
        return self.all_encoder_layers

    def get_embedding_output(self):
        """float32 [B, T, D], what the first layer reads."""
        return self.embedding_output

    def get_embedding_table(self):
        """Gives the variable of the word embeddings, float32 [V, D]."""
        return self.embedding_table


def _method_of(adapter_fn, tuning_method):
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
    if (
        method.parts
        or method.first_phase is not None
        or isinstance(method, AdaLora)
    ):
        raise ValueError(
            "BertModel takes methods of one phase, without parts or ranks "
            f"that shrink, not {method}; train it by run_classifier.py "
            "--tuning_method"
        )
    return method, function


class _VariableMaker:
    """Makes a model's variables in the current scope.

    Frozen ones are not `trainable`, but in the collection of those that are,
    from where programs restore a checkpoint.
    """

    def __init__(self, config, method, has_function):
        self._range = config.initializer_range
        self._trains = method.trains(config)
        if has_function:
            self._trains = LAYER_NORMS
        self._seed = v1.get_default_graph().seed or 0

    def __call__(self, name, shape, _):
        is_trained = bool(re.fullmatch(self._trains, name))
        collections = [v1.GraphKeys.TRAINABLE_VARIABLES, OWN]
        if is_trained and "/LayerNorm/" in name:
            collections.append(LAYER_NORM)
        name = name.removeprefix("bert/")
        return make_variable(
            name, list(shape), self._range, collections, is_trained
        )

    def added(self, name, declared):
        """Makes a variable of the method's.

        Raises:
            ValueError: its first value follows from pretrained ones.
        """
        if isinstance(declared.initializer, encoder.OfPretrained):
            raise ValueError(
                f"{name} begins with a value that follows from BERT's own, "
                "which a graph has not read yet; run_classifier.py "
                "--tuning_method has the method"
            )

        def initialize(shape, dtype=None, partition_info=None):
            del dtype, partition_info
            return tf.constant(
                encoder.initial_values(
                    name, tuple(shape), declared.initializer, self._seed
                )
            )

        collections = [v1.GraphKeys.GLOBAL_VARIABLES]
        if declared.trained:
            collections += [ADAPTERS, v1.GraphKeys.TRAINABLE_VARIABLES]
        return v1.get_variable(
            name.removeprefix("bert/"),
            list(declared.shape),
            initializer=initialize,
            trainable=declared.trained,
            collections=collections,
        )


class _FunctionHooks(Hooks):
    def __init__(self, function):
        self._function = function

    def before_norm(self, layer, site, inputs, outputs, *_):
        """What the function adds, with variables in the sublayer's scope."""
        scope = SCOPES[site]
        with v1.variable_scope(
            f"encoder/layer_{layer}/{scope}", auxiliary_name_scope=False
        ):
            flat = reshape_to_matrix(outputs)
            adapted = tf.reshape(self._function(flat), tf.shape(outputs))
        return adapted - outputs


def get_assignment_map_from_checkpoint(tvars, init_checkpoint):
    """Pairs names that variables and a checkpoint share.

    A BertModel in a scope of its own starts from the checkpoint's `bert`, if no
    other one does: handed in alone, each model of a graph can.

    Returns:
        For `tf.train.init_from_checkpoint`, the checkpoint's name -> the
        variable's; and the variables' names, and with `:0`, each -> 1.

    Raises:
        ValueError: no variables, or the checkpoint lacks variables of a
            BertModel, which would keep random values.
    """
    names = {re.sub(r":\d+$", "", variable.name) for variable in tvars}
    if not names:
        raise ValueError(
            f"expected variables to start from {init_checkpoint}, found none; "
            "pass tf.trainable_variables() of the graph with the BertModel"
        )
    kept = [name for name, _ in tf.train.list_variables(init_checkpoint)]
    assigned = {name: name for name in kept if name in names}
    of_models = {variable.op.name for variable in v1.get_collection(OWN)}
    for scope in sorted(
        n.removesuffix(WORDS) for n in of_models if n.endswith(WORDS)
    ):
        pattern = re.escape(scope) + "/(?!pooler/)"
        needed = {name for name in of_models & names if re.match(pattern, name)}
        if scope != "bert" and needed.isdisjoint(assigned.values()):
            moved = {
                name: f"{scope}{name.removeprefix('bert')}"
                for name in kept
                if name.startswith("bert/")
            }
            moved = {n: to for n, to in moved.items() if to in names}
            if not moved.keys().isdisjoint(assigned):
                v1.logging.warning(
                    "the BertModel in %s starts from no value of %s, which "
                    "another one takes; hand in its variables alone for a map "
                    "of its own",
                    scope,
                    init_checkpoint,
                )
                continue
            assigned.update(moved)
        if missing := sorted(needed - set(assigned.values())):
            raise ValueError(
                f"{init_checkpoint} lacks {len(missing)} of BERT's "
                f"{len(needed)} variables, as {missing[0]}; expected a whole "
                "pretrained BERT, not a training's checkpoint of what was "
                "trained"
            )
    initialized = {key: 1 for n in assigned.values() for key in (n, f"{n}:0")}
    return assigned, initialized


def start_from(init_checkpoint, use_tpu):
    """Has a graph's variables start from a checkpoint, and logs which do.

    Returns:
        The `scaffold_fn` of a TPU, or None.
    """
    variables = v1.trainable_variables()
    initialized = {}
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
    v1.logging.info("**** Trainable Variables ****")
    for variable in variables:
        v1.logging.info(
            "  name = %s, shape = %s%s",
            variable.name,
            variable.shape,
            ", *INIT_FROM_CKPT*" if variable.name in initialized else "",
        )
    return scaffold


def make_spec(
    mode,
    init_checkpoint,
    training,
    loss=None,
    predictions=None,
    eval_metrics=None,
):
    """Makes what a `model_fn` gives, of variables that start from a checkpoint.

    `training` are the arguments of `create_optimizer` after the loss.
    """
    parts = {
        "mode": mode,
        "scaffold_fn": start_from(init_checkpoint, use_tpu=training[-1]),
    }
    if mode == ModeKeys.PREDICT:
        parts["predictions"] = predictions
    else:
        parts["loss"] = loss
    if mode == ModeKeys.EVAL:
        parts["eval_metrics"] = eval_metrics
    if mode == ModeKeys.TRAIN:
        parts["train_op"] = create_optimizer(loss, *training)
    return v1.estimator.tpu.TPUEstimatorSpec(**parts)


def log_features(features):
    """Logs name and shape of a batch's tensors."""
    v1.logging.info("*** Features ***")
    for name, value in sorted(features.items()):
        v1.logging.info("  name = %s, shape = %s", name, value.shape)
