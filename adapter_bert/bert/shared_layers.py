"""Layers of one kind as calls of one function, which is traced once.

TensorFlow takes some tenths of a second to trace a layer and its gradient.
A layer's number may matter through names alone: of its variables, of tensors
that are handed on to it, of the sites of its dropout. `Hooks.layer_kind` tells
layers apart that differ otherwise. The same lists of values serve to compute a
layer again in its backward pass.
"""

import dataclasses
import re
from collections.abc import Hashable, Mapping
from typing import Any, Callable, Optional

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.architectures import RELATIVE_BIAS
from adapter_bert.bert.gradients import differentiable, recomputed
from adapter_bert.bert.hooks import (
    Context,
    Hooks,
    TracedLayer,
    layer_of,
    rename_layer,
)

# Values by name -> hooks that read them.
MakeHooks = Callable[[Mapping[str, Any]], Hooks]

POOLER = re.compile(r"(.*/)?bert/pooler/.*")
DISTANCES = re.compile(rf"(.*/)?{RELATIVE_BIAS}/.*")
# Hooks that act below the first layer.
BELOW = {"words", "embeddings", "lengthen", "parameter"}
# What no layer reads.
OUTSIDE = re.compile(r"(.*/)?bert/(embeddings|pooler)/.*")


class SharedLayers:
    """Layers of one model. Each kind of layer is traced once."""

    def __init__(
        self,
        config: encoder.BertConfig,
        variables: Mapping[str, Any],
        make_hooks: MakeHooks,
        functions: dict[Hashable, Callable],
    ):
        """Takes the variables that layers read: BERT's and the method's.

        `functions` are the traces by kind, which models may share.
        """
        self._config = config
        self._variables = variables
        self._make_hooks = make_hooks
        self._functions = functions

    def __call__(
        self,
        number: int,
        layer_kind: Hashable,
        hidden: tf.Tensor,
        attention_bias: tf.Tensor,
        context: Context,
    ) -> tf.Tensor:
        """Computes layer `number`, of a kind as hooks say, as `Bert.layer`."""
        arguments = {
            "number": tf.constant(number),
            "values": _of_layer(number, self._variables),
            "handed_on": _of_layer(number, context.handed_on),
            "hidden": hidden,
            "attention_bias": attention_bias,
            "input_mask": context.input_mask,
            "seed": context.seed,
            "step_seed": context.step_seed,
            "task": context.task,
        }
        arguments = tf.nest.map_structure(
            tf.convert_to_tensor,
            {k: v for k, v in arguments.items() if v is not None},
        )
        has_gradients = {
            **tf.nest.map_structure(lambda _: False, arguments),
            "handed_on": {
                name: context.training and value.dtype.is_floating
                for name, value in arguments["handed_on"].items()
            },
            "attention_bias": context.training
            and any(
                variable.trainable and DISTANCES.fullmatch(name)
                for name, variable in self._variables.items()
            ),
            "hidden": context.differentiates_inputs
            or context.training
            and self._is_trained_below(number),
        }
        for name, variable in _of_layer(number, self._variables).items():
            # In prediction it may be a tensor, which has no gradient.
            if context.training and variable.trainable:
                has_gradients["values"][name] = True
        sources = [n for n, x in enumerate(tf.nest.flatten(has_gradients)) if x]
        tensors = tf.nest.flatten(arguments)
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in tensors]
        kind = (
            layer_kind,
            tuple(sources),
            tuple(specs),
            frozenset(arguments["values"]),
            frozenset(arguments["handed_on"]),
            context.training,
            context.dtype,
            context.first_token,
        )
        if kind not in self._functions:
            compute = self._make_function(number, context, arguments)
            self._functions[kind] = differentiable(compute, specs, sources)
        return self._functions[kind](*tensors)

    def recompute(
        self,
        number: int,
        hidden: tf.Tensor,
        attention_bias: tf.Tensor,
        context: Context,
    ) -> tf.Tensor:
        """Computes layer `number`, and again in its backward pass."""
        arguments = {
            "values": _of_layer(number, self._variables, number),
            "handed_on": _of_layer(number, context.handed_on, number),
            "hidden": hidden,
            "attention_bias": attention_bias,
            "seed": context.seed,
        }

        def compute(*tensors: tf.Tensor) -> tf.Tensor:
            of = tf.nest.pack_sequence_as(arguments, tensors)
            layer_context = dataclasses.replace(
                context, handed_on=of["handed_on"], seed=of["seed"]
            )
            hooks = self._make_hooks(of["values"])
            return encoder.Bert(self._config, of["values"], hooks).layer(
                number, of["hidden"], of["attention_bias"], layer_context
            )

        tensors = map(tf.convert_to_tensor, tf.nest.flatten(arguments))
        return recomputed(compute)(*tensors)

    def _is_trained_below(self, number: int) -> bool:
        places = self._make_hooks(self._variables).places
        # What is of no layer may be read below the first.
        lowest = -1 if BELOW & places else 0
        return any(
            variable.trainable
            and not POOLER.fullmatch(name)
            and (
                OUTSIDE.fullmatch(name)
                or (lowest if (layer := layer_of(name)) is None else layer)
                < number
            )
            for name, variable in self._variables.items()
        )

    def _make_function(
        self, traced: int, example: Context, arguments: Any
    ) -> Callable[..., tf.Tensor]:

        def compute(*tensors: tf.Tensor) -> tf.Tensor:
            of = tf.nest.pack_sequence_as(arguments, tensors)
            values = {
                rename_layer(name, traced): value
                for name, value in of["values"].items()
            }
            context = dataclasses.replace(
                example,
                input_mask=of["input_mask"],
                seed=of.get("seed"),
                step_seed=of.get("step_seed"),
                handed_on={
                    rename_layer(name, traced): value
                    for name, value in of["handed_on"].items()
                },
                layer=TracedLayer(of["number"], self._config.num_hidden_layers),
                task=of.get("task"),
            )
            hooks = self._make_hooks(values)
            return encoder.Bert(self._config, values, hooks).layer(
                traced, of["hidden"], of["attention_bias"], context
            )

        return compute


def make_bert(
    config: encoder.BertConfig,
    variables: Mapping[str, Any],
    added: Mapping[str, Any],
    make_hooks: MakeHooks,
    functions: Optional[dict[Hashable, Callable]] = None,
) -> encoder.Bert:
    """Makes a BERT with layers that are traced once.

    `variables` are its own, `added` those that hooks read, by name;
    `make_hooks` takes such values, of all layers or of one. Several models may
    share the `functions` of `SharedLayers`.
    """
    shared = SharedLayers(
        config,
        {**added, **variables},
        make_hooks,
        {} if functions is None else functions,
    )
    return encoder.Bert(config, variables, make_hooks(added), shared)


def _of_layer(
    number: int, values: Mapping[str, Any], called: int = 0
) -> dict[str, Any]:
    return {
        rename_layer(name, called): value
        for name, value in values.items()
        if layer_of(name) in (number, None) and not OUTSIDE.fullmatch(name)
    }
