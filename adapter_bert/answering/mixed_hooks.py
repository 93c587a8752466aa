"""Rows of many tasks in one batch, each through its own adapter.

A method's hooks compute one task's rows with one task's values. Here each row
has values of its own. Hooks with `takes_rows` take the values of all rows;
other hooks are vectorized over the rows (`tf.vectorized_map`). So any method
can be mixed. Rows of one kind, which is one method, lie next to each other.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from adapter_bert.bert import encoder, onednn
from adapter_bert.bert.hooks import Context, Hooks, NamedTensors, NoHooks
from adapter_bert.methods.base import Tensors, TuningMethod, below

# Under which the numbers of rows of each kind are handed on to layers.
COUNTS = "rows_of_kinds"


def scope_of(number: int) -> str:
    """Gives the prefix of the names of a kind's variables."""
    return f"kind_{number}/"


class _KindHooks:
    def __init__(
        self,
        number: int,
        method: TuningMethod,
        config: encoder.BertConfig,
        values: Tensors,
    ):
        self.scope = scope_of(number)
        self.values = below(self.scope, values)
        # Of values of all rows, or of one.
        self.hooks = functools.partial(method.hooks, config)
        self.example = self.hooks(self.values)

    def acts_at(self, place: str, scope: str) -> bool:
        """True if the method acts at a hook by values of a scope."""
        reads = any(f"/{scope}" in f"/{name}" for name in self.values)
        reads |= not self.example.by_values
        return reads and place in self.example.places


# Hooks whose tensors may be longer for one kind than for others, and how each
# is filled up: along which axis, by what, before or behind.
LONGER = {
    "lengthen": ((1, 0, False), (1, 0, False)),
    "key_value": ((2, 0, True), (2, 0, True), (3, encoder.MASKED_SCORE, True)),
}


class MixedHooks(Hooks):
    """Hooks of several methods, each on the rows of its kind."""

    def __init__(
        self,
        methods: Sequence[TuningMethod],
        config: encoder.BertConfig,
        values: Tensors,
    ):
        """Makes the hooks of one method of each kind.

        `values` are `kind_<number>/<variable>`, [B_k, ...], or [1, ...] of a
        kind without rows; and BERT's variables that differ by row,
        `own/<variable>`, [B, ...].
        """
        self._kinds = [
            _KindHooks(number, method, config, values)
            for number, method in enumerate(methods)
        ]
        self.by_token = all(kind.example.by_token for kind in self._kinds)
        self._row_values = below("own/", values)
        # What `parameter` gives at the moment: of all rows, of some, of one.
        self._current: NamedTensors = self._row_values

    def layer_kind(self, layer, training):
        kinds = tuple(
            kind.example.layer_kind(layer, training) for kind in self._kinds
        )
        return None if None in kinds else kinds

    def begin(self, context):
        masks = self._split(context.input_mask, context)
        handed_on = {}
        for kind, mask in zip(self._kinds, masks):
            if "begin" not in kind.example.places:
                continue
            rows = ... if kind.example.takes_rows else tf.newaxis

            def begin(hooks, context, rows=rows):
                made = hooks.begin(context)
                return {name: x[rows] for name, x in made.items()}

            of_kind = dataclasses.replace(context, input_mask=mask)
            made = self._act_by_rows(kind, begin, of_kind, {})
            handed_on.update(
                (f"of_{kind.scope}{k}", x) for k, x in made.items()
            )
        return handed_on

    def parameter(self, name, variable, context):
        value = self._current.get(name)
        return tf.convert_to_tensor(variable) if value is None else value

    def project(self, name, inputs, dense, context):
        """Multiplies all rows by BERT's kernel, each with its own factors.

        Heads, which ask row by row, are given what the pooler made before.
        """
        if name in self._current:
            return self._current[name]
        by_kind = self._split(inputs, context)
        outputs: list[tf.Tensor] = []

        def dense_of_some(x: tf.Tensor) -> tf.Tensor:
            # One product for all kinds whose rows were not changed.
            places = [n for n, rows in enumerate(by_kind) if rows is x]
            if not places:
                return dense(x)
            if not outputs:
                with self.reading(self._row_values):
                    outputs.extend(self._split(dense(inputs), context))
            return outputs[places[0]]

        scope = f"{name}/"
        if not self._acts_at("project", scope):
            return dense(inputs)
        kernel = dataclasses.replace(dense, apply=dense_of_some)
        return self.act(
            "project", name, inputs, kernel, context, by_kind=by_kind, of=scope
        )

    def vocabulary(self, hidden, context):
        """Does nothing: heads are computed apart from the methods' kinds.

        Raises:
            TypeError: a head asks for more.
        """
        if self._acts_at("vocabulary"):
            raise TypeError("a head that calls `vocabulary` cannot be mixed")
        return hidden

    def _acts_at(self, place: str, scope: str = "") -> bool:
        return any(kind.acts_at(place, scope) for kind in self._kinds)

    def act(
        self,
        place: str,
        *arguments: Any,
        by_kind: Optional[list[tf.Tensor]] = None,
        of: str = "",
    ) -> Any:
        """Applies the hook `place` of each kind to its rows.

        Args:
            place: the hook's name.
            arguments: the hook's. Tensors are [B, ...]; the context is last.
            by_kind: the only tensor, if it is split by kind already.
            of: scope of the values that the hook reads.
        """
        *arguments, context = arguments
        if not self._acts_at(place, of):
            return getattr(NoHooks(), place)(*arguments, context)

        def act(hooks, context, *tensors):
            rows = iter(tensors)
            of_rows = [next(rows) if tf.is_tensor(x) else x for x in arguments]
            output = getattr(hooks, place)(*of_rows, context)
            return tf.zeros_like(tensors[-1]) if output is None else output

        tensors = [x for x in arguments if tf.is_tensor(x)]
        whole = tensors, rows_of(context), self._row_values
        split = [self._split(x, context) for x in tf.nest.flatten(whole)]
        if by_kind:
            split[0] = by_kind
        results = []
        for kind, of_kind in zip(self._kinds, zip(*split)):
            mine, fields, values = tf.nest.pack_sequence_as(whole, of_kind)
            context_of_kind = dataclasses.replace(context, **fields)
            if kind.acts_at(place, of):
                result = self._act_by_rows(
                    kind, act, context_of_kind, values, *mine
                )
            else:
                with self.reading(values):
                    result = act(NoHooks(), context_of_kind, *mine)
            results.append(result)
        if len(results) == 1:
            return results[0]
        if place in LONGER:
            return [
                _fill_up(tensors, *how)
                for tensors, how in zip(zip(*results), LONGER[place])
            ]
        joined = tf.concat(results, axis=0)
        joined.set_shape([None, *results[0].shape[1:]])
        return joined

    words = functools.partialmethod(act, "words")
    embeddings = functools.partialmethod(act, "embeddings")
    lengthen = functools.partialmethod(act, "lengthen")
    key_value = functools.partialmethod(act, "key_value")
    before_norm = functools.partialmethod(act, "before_norm")
    after_norm = functools.partialmethod(act, "after_norm")

    def _split(self, tensor: tf.Tensor, context: Context) -> list[tf.Tensor]:
        """Splits rows [B, ...] by kind."""
        if len(self._kinds) == 1:
            return [tensor]
        counts = context.handed_on[COUNTS]
        return tf.split(tensor, counts, num=len(self._kinds))

    def _act_by_rows(
        self,
        kind: _KindHooks,
        act: Callable,
        context: Context,
        row_values: NamedTensors,
        *tensors: tf.Tensor,
    ):
        handed_on = below(f"of_{kind.scope}", context.handed_on)
        if kind.example.takes_rows:
            context = dataclasses.replace(context, handed_on=handed_on)
            with self.reading(row_values):
                return act(kind.hooks(kind.values), context, *tensors)

        def of_row(values, row_values, handed_on, fields, *row):
            handed_on = {name: x[0] for name, x in handed_on.items()}
            alone = dataclasses.replace(context, handed_on=handed_on, **fields)
            with self.reading({name: x[0] for name, x in row_values.items()}):
                return act(kind.hooks(values), alone, *row)

        fields = rows_of(context)
        return map_rows(
            of_row, kind.values, row_values, handed_on, fields, *tensors
        )

    @contextlib.contextmanager
    def reading(self, values: NamedTensors) -> Iterator[None]:
        """Within it `parameter` and `project` read these values of rows."""
        before, self._current = self._current, values
        try:
            yield
        finally:
            self._current = before


def rows_of(context: Context) -> NamedTensors:
    """Names the context's tensors [B, ...]."""
    fields = {
        "input_mask": context.input_mask,
        "layer_input": context.layer_input,
    }
    return {name: x for name, x in fields.items() if x is not None}


def map_rows(function: Callable, values: NamedTensors, *tensors: Any) -> Any:
    """Vectorizes a function of single rows; results are [B, ...].

    `function` takes a row's values and its slices [1, ...] of the tensors, and
    gives structures of tensors [1, ...]. Values are [B, ...], or [1, ...] where
    there are no rows.
    """
    count = tf.shape(tf.nest.flatten(tensors)[0])[0]
    # At least one row is needed: no rows become one row of zeros.
    added = tf.cast(tf.equal(count, 0), tf.int32)

    def not_empty(x: tf.Tensor) -> tf.Tensor:
        padded = tf.pad(x, [[0, added], *[[0, 0]] * (x.shape.rank - 1)])
        padded.set_shape([None, *x.shape[1:]])
        return padded

    def of_row(elements):
        values, *row = elements
        row = tf.nest.map_structure(lambda x: x[tf.newaxis], row)
        with onednn.built_for(None):
            result = function(values, *row)
        return tf.nest.map_structure(lambda x: x[0], result)

    results = tf.vectorized_map(
        of_row,
        (values, *tf.nest.map_structure(not_empty, tensors)),
        fallback_to_while_loop=False,
    )
    return tf.nest.map_structure(lambda x: x[:count], results)


def _fill_up(
    tensors: Sequence[tf.Tensor], axis: int, fill: float, is_before: bool
) -> tf.Tensor:
    length = tf.reduce_max([tf.shape(x)[axis] for x in tensors])
    padded = []
    for x in tensors:
        missing = length - tf.shape(x)[axis]
        paddings = [[0, 0]] * x.shape.rank
        paddings[axis] = [missing, 0] if is_before else [0, missing]
        padded.append(tf.pad(x, paddings, constant_values=fill))
    return tf.concat(padded, axis=0)
