"""Models with a BERT for each side; see `Head.sides`."""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from adapter_bert.bert.encoder import CreateVariable, Declared
from adapter_bert.bert.hooks import Context, Hooks
from adapter_bert.errors import UserError
from adapter_bert.methods.base import TuningMethod
from adapter_bert.tasks.task import scoped

# Features of each text of a row, [B, C, ...].
OF_TEXTS = ("input_ids", "input_mask", "segment_ids", "frozen_outputs")


def creators(
    sides: Sequence[str], trained: Collection[str], create: CreateVariable
) -> list[CreateVariable]:
    """Makes a `create` for each side, by which a variable exists once."""
    made: dict[str, Any] = {}

    def create_of_side(side: str, name: str, *more: Any) -> Any:
        side_name = scoped(side, name) if name in trained else name
        if side_name not in made:
            made[side_name] = create(side_name, *more)
        return made[side_name]

    return [functools.partial(create_of_side, side) for side in sides]


def compute(
    model: Any, features: dict[str, tf.Tensor], context: Context
) -> dict[str, tf.Tensor]:
    """Computes what `TaskModel` describes, by each side's BERT."""
    if len(features["input_ids"].shape) == 2:
        return _compute_texts(model, features, context)
    predictions = []
    places = slice(1), slice(1, None)
    for side, bert, texts in zip(model.head.sides, model.berts, places):
        of_side = {
            name: value[:, texts] if name in OF_TEXTS else value
            for name, value in features.items()
        }
        number = zlib.crc32(side.encode()) & 0x7FFFFFFF
        context_of_side = dataclasses.replace(
            context,
            input_mask=context.input_mask[:, texts],
            seed=context.seed ^ tf.constant([number, 0]),
        )
        outputs = model.compute(bert, of_side, context_of_side)
        shape = -1, of_side["input_ids"].shape[1]
        predictions.append(
            {
                name: tf.reshape(value, [*shape, *value.shape[1:]])
                for name, value in outputs.items()
            }
        )
    return _joined(predictions, lambda values: tf.concat(values, axis=1))


def _compute_texts(
    model: Any, features: dict[str, tf.Tensor], context: Context
) -> dict[str, tf.Tensor]:
    """Computes texts, each of the side in `task_ids`."""
    features = dict(features)
    sides, mask = features.pop("task_ids"), context.input_mask
    if features["input_ids"].shape.is_fully_defined():
        # Compilers take no number of rows that depends on values.
        predictions = [model.compute(x, features, context) for x in model.berts]
        return _joined(predictions, functools.partial(_choose, sides))
    places, predictions = [], []
    for number, bert in enumerate(model.berts):
        rows = tf.where(tf.equal(sides, number))[:, 0]
        row_features = {
            n: tf.gather(value, rows) for n, value in features.items()
        }
        row_mask = tf.gather(mask, rows)
        context = dataclasses.replace(context, input_mask=row_mask)
        predictions.append(model.compute(bert, row_features, context))
        places.append(tf.cast(rows, tf.int32))
    return _joined(predictions, lambda x: tf.dynamic_stitch(places, x))


def _joined(
    predictions: Sequence[Mapping[str, tf.Tensor]], join: Callable
) -> dict[str, tf.Tensor]:
    return {
        name: join([one[name] for one in predictions])
        for name in predictions[0]
    }


def _choose(sides: tf.Tensor, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Takes of each row, [B, ...], the value of its side, int32 [B]."""
    chosen = values[0]
    for number, value in enumerate(values[1:], 1):
        shape = [-1, *[1] * (value.shape.rank - 1)]
        is_side = tf.reshape(tf.equal(sides, number), shape)
        chosen = tf.where(is_side, value, chosen)
    return chosen


def check(
    method: TuningMethod,
    hooks: Hooks,
    of_bert: Collection[str],
    declared: Mapping[str, Declared],
) -> None:
    """Refuses methods whose values two sides cannot have next to each other."""
    changes = any(
        declared[name].trained and len(declared[name].shape) > 1
        for name in of_bert
    )
    shares = any(one.allocation for one in declared.values())
    acts = {"parameter", "prepare"} & hooks.places or method.observes
    if changes or shares or acts or method.first_phase:
        raise UserError(
            f"--two_adapters: {str(method)[:200]} is not for two adapters at "
            "once; expected a method that adds values of fixed sizes to BERT, "
            "as houlsby or lora"
        )
