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
from adapter_bert.bert.hooks import Context, Hooks, NoHooks
from adapter_bert.methods.base import Tensors, TuningMethod, below

# Under which the numbers of rows of each kind are handed on to layers.
COUNTS = "rows_of_kinds"

Values = dict[str, tf.Tensor]


def scope_of(number: int) -> str:
    """Before the names of the variables of a kind."""
    return f"kind_{number}/"


class _Kind:
    """One kind, as some of the layers see it."""

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

    def acts_at(self, place: str, scope: str = "") -> bool:
        """Whether the method acts at the hook `place`, by values of `scope`."""
        reads = any(f"/{scope}" in f"/{name}" for name in self.values)
        reads |= not self.example.by_values
        return reads and place in self.example.places


class MixedHooks(Hooks):
    """The hooks of several methods, each on the rows of its kind."""

    def __init__(
        self,
        methods: Sequence[TuningMethod],
        config: encoder.BertConfig,
        values: Tensors,
    ):
        """Makes the hooks of each kind.

        Args:
            methods: one of each kind.
            config: of the BERT.
            values: of a kind's rows, `kind_<number>/<variable>`, [B_k, ...],
                or of a kind without rows [1, ...]; BERT's variables that
                differ by row, `own/<variable>`, [B, ...].
        """
        self._kinds = [
            _Kind(number, method, config, values)
            for number, method in enumerate(methods)
        ]
        self.by_token = all(kind.example.by_token for kind in self._kinds)
        self._own = below("own/", values)
        # What `parameter` gives at the moment: of all rows, of some, of one.
        self._current: Values = self._own

    def layer_kind(self, layer, training):
        found = tuple(
            kind.example.layer_kind(layer, training) for kind in self._kinds
        )
        return None if None in found else found

    def begin(self, context):
        """Of each kind, [B_k, ...]."""
        masks = self._split(context.input_mask, context)
        found = {}
        for kind, mask in zip(self._kinds, masks):
            rows = ... if kind.example.takes_rows else tf.newaxis

            def act(hooks, context, rows=rows):
                made = hooks.begin(context)
                return {name: x[rows] for name, x in made.items()}

            if "begin" in kind.example.places:
                of_kind = dataclasses.replace(context, input_mask=mask)
                made = self._act_by_rows(kind, act, of_kind, {})
                found.update(
                    (f"of_{kind.scope}{k}", x) for k, x in made.items()
                )
        return found

    def parameter(self, name, variable, context):
        """BERT's, or each row's own, with the rows as a first dimension."""
        own = self._current.get(name)
        return tf.convert_to_tensor(variable) if own is None else own

    def words(self, input_ids, embed, context):
        """Shapes here and below as in `Hooks`."""
        return self._act("words", context, (), [input_ids], (embed,))

    def embeddings(self, hidden, context):
        return self._act("embeddings", context, (), [hidden])

    def lengthen(self, hidden, context):
        """Kinds may have more virtual tokens than others: these are masked."""
        return self._act("lengthen", context, (), [hidden])

    def project(self, name, inputs, dense, context):
        """All rows by BERT's kernel, each by its own factors or scales.

        Heads, which ask row by row, are given what the pooler made before.
        """
        if name in self._current:
            return self._current[name]
        parts = self._split(inputs, context)
        outputs: list[tf.Tensor] = []

        def dense_of_some(x: tf.Tensor) -> tf.Tensor:
            """Of a kind's rows, unless they were changed, one for all kinds."""
            places = [n for n, part in enumerate(parts) if part is x]
            if not places:
                return dense(x)
            if not outputs:
                with self.reading(self._own):
                    outputs.extend(self._split(dense(inputs), context))
            return outputs[places[0]]

        kernel = dataclasses.replace(dense, apply=dense_of_some)
        if not self._acts_at("project", f"{name}/"):
            return dense(inputs)
        return self._act(
            "project",
            context,
            (name,),
            [inputs],
            (kernel,),
            parts=[parts],
            scope=f"{name}/",
        )

    def key_value(self, layer, key, value, attention_bias, context):
        """Prefixes may be of different lengths: the others are masked."""
        tensors = [key, value, attention_bias]
        return self._act("key_value", context, (layer,), tensors)

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        where, tensors = (layer, site), [inputs, outputs]
        return self._act("before_norm", context, where, tensors, (layer_norm,))

    def after_norm(self, layer, site, hidden, context):
        return self._act("after_norm", context, (layer, site), [hidden])

    def vocabulary(self, hidden, context):
        """Nothing: heads are computed apart from the methods' kinds.

        Raises:
            TypeError: a head asks for more.
        """
        if self._acts_at("vocabulary"):
            raise TypeError("a head that calls `vocabulary` cannot be mixed")
        return hidden

    def _acts_at(self, place: str, scope: str = "") -> bool:
        """Whether any of the methods does anything there, as of `_Kind`."""
        return any(kind.acts_at(place, scope) for kind in self._kinds)

    def _act(
        self,
        place: str,
        context: Context,
        first: Sequence[Any],
        tensors: Sequence[tf.Tensor],
        last: Sequence[Any] = (),
        parts: Optional[Sequence[list[tf.Tensor]]] = None,
        scope: str = "",
    ):
        """Applies the hooks of each kind to its rows.

        Args:
            place: the name of the hook.
            context: of all rows.
            first: the hook's arguments before the tensors.
            tensors: [B, ...], that the hook acts on.
            last: its arguments between tensors and context.
            parts: the tensors, if they are split by kind already.
            scope: of the values that the hooks read.
        """

        def act(hooks, context, *tensors):
            found = getattr(hooks, place)(*first, *tensors, *last, context)
            return tf.zeros_like(tensors[-1]) if found is None else found

        if not self._acts_at(place, scope):
            return getattr(NoHooks(), place)(*first, *tensors, *last, context)
        if parts is None:
            parts = [self._split(tensor, context) for tensor in tensors]
        fields = {
            name: self._split(value, context)
            for name, value in rows_of(context).items()
        }
        own = {n: self._split(v, context) for n, v in self._own.items()}
        results = []
        for number, kind in enumerate(self._kinds):
            mine = {name: value[number] for name, value in own.items()}
            context_of_kind = dataclasses.replace(
                context, **{n: value[number] for n, value in fields.items()}
            )
            if kind.acts_at(place, scope):
                result = self._act_by_rows(
                    kind,
                    act,
                    context_of_kind,
                    mine,
                    *(of_kinds[number] for of_kinds in parts),
                )
            else:
                with self.reading(mine):
                    result = act(
                        NoHooks(), context_of_kind, *(p[number] for p in parts)
                    )
            results.append(result)
        if len(results) == 1:
            return results[0]
        if place == "key_value":
            return _join_keys(results)
        if place == "lengthen":
            return _join_longer(results)
        joined = tf.concat(results, axis=0)
        joined.set_shape([None, *results[0].shape[1:]])
        return joined

    def _split(self, tensor: tf.Tensor, context: Context) -> list[tf.Tensor]:
        """The rows of each kind, of all rows [B, ...]."""
        if len(self._kinds) == 1:
            return [tensor]
        counts = context.handed_on[COUNTS]
        return tf.split(tensor, counts, num=len(self._kinds))

    def _act_by_rows(
        self,
        kind: _Kind,
        act: Callable,
        context: Context,
        own: Values,
        *tensors: tf.Tensor,
    ):
        """A kind's hook, each row by its own values."""
        handed_on = below(f"of_{kind.scope}", context.handed_on)
        if kind.example.takes_rows:
            context = dataclasses.replace(context, handed_on=handed_on)
            with self.reading(own):
                return act(kind.hooks(kind.values), context, *tensors)

        def of_row(values, own, handed_on, fields, *row):
            handed_on = {name: x[0] for name, x in handed_on.items()}
            alone = dataclasses.replace(context, handed_on=handed_on, **fields)
            with self.reading({name: x[0] for name, x in own.items()}):
                return act(kind.hooks(values), alone, *row)

        fields = rows_of(context)
        return map_rows(of_row, kind.values, own, handed_on, fields, *tensors)

    @contextlib.contextmanager
    def reading(self, values: Values) -> Iterator[None]:
        """Within it `parameter` and `project` give these of the rows' own."""
        before, self._current = self._current, values
        try:
            yield
        finally:
            self._current = before


def rows_of(context: Context) -> Values:
    """The context's tensors [B, ...] of rows."""
    fields = {
        "input_mask": context.input_mask,
        "layer_input": context.layer_input,
    }
    return {name: x for name, x in fields.items() if x is not None}


def map_rows(function: Callable, values: Values, *tensors: Any) -> Any:
    """The results [B, ...] of a function of single rows, vectorized.

    `function` takes a row's values and its slices [1, ...] of the tensors, and
    gives tensors [1, ...] or structures of them. Values are [B, ...], or [1,
    ...] where there are no rows.
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
            found = function(values, *row)
        return tf.nest.map_structure(lambda x: x[0], found)

    found = tf.vectorized_map(
        of_row,
        (values, *tf.nest.map_structure(not_empty, tensors)),
        fallback_to_while_loop=False,
    )
    return tf.nest.map_structure(lambda x: x[:count], found)


def _join_longer(results: Sequence[Any]) -> list[tf.Tensor]:
    """Tokens and masks of kinds, filled up at the end to one length."""
    length = tf.reduce_max([tf.shape(mask)[1] for _, mask in results])
    joined = []
    for tensors in zip(*results):
        padded = []
        for x in tensors:
            missing = length - tf.shape(x)[1]
            paddings = [[0, 0], [0, missing], [0, 0]][: x.shape.rank]
            padded.append(tf.pad(x, paddings))
        joined.append(tf.concat(padded, axis=0))
    return joined


def _join_keys(results: Sequence[Any]) -> list[tf.Tensor]:
    """Keys, values and biases of kinds, some of them longer than others."""
    length = tf.reduce_max([tf.shape(key)[2] for key, _, _ in results])
    joined = []
    for tensors, fill in zip(zip(*results), (0.0, 0.0, encoder.MASKED_SCORE)):
        axis = 3 if tensors[0].shape.rank == 4 and fill else 2
        padded = []
        for x in tensors:
            missing = length - tf.shape(x)[axis]
            paddings = [[0, 0]] * 4
            paddings[axis] = [missing, 0]
            padded.append(tf.pad(x, paddings, constant_values=fill))
        joined.append(tf.concat(padded, axis=0))
    return joined
