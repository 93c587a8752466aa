"""The graph in which each row gathers its values: BERT runs once for all."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Callable, Optional

import tensorflow as tf

from adapter_bert.answering.mixed_hooks import (
    COUNTS,
    MixedHooks,
    map_rows,
    scope_of,
)
from adapter_bert.bert import encoder
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.bert.hooks import Context, NamedTensors, NoHooks, layer_of
from adapter_bert.bert.shared_layers import OUTSIDE, POOLER, make_bert
from adapter_bert.methods.base import TuningMethod, below
from adapter_bert.tasks.task_model import BuildHead

# Where a task's values lie: columns of the table of places.
METHOD, METHOD_ROW, HEAD, HEAD_ROW, OWN_ROW = range(5)
PLACES = 5
# What the model reads, int32 [N, T], of the last two [N, K].
FEATURES = dict.fromkeys(
    ("input_ids", "input_mask", "segment_ids", "task", "question"),
    tf.TensorSpec([None, None], tf.int32),
)


@dataclasses.dataclass(frozen=True, eq=False)
class MixedModel:
    """Computes rows of any tasks in one batch.

    Attributes:
        methods: one of each kind of rows.
        heads: a function that makes heads of each form.
        bert: BERT's variables by name.
        tables: values of tasks, [rows, ...]: `kind_<number>/<name>`, float32
            or bfloat16; `head_<number>/<name>`, float32; `own/<name>`, float32,
            BERT's variables of one axis, whose first row is BERT's.
        places: int32 [tasks, PLACES], where the values of a task lie.
    """

    config: BertConfig
    methods: tuple[TuningMethod, ...]
    heads: tuple[BuildHead, ...]
    bert: Mapping[str, tf.Variable]
    tables: Mapping[str, tf.Variable]
    places: tf.Variable

    @property
    def variables(self) -> list[tf.Variable]:
        """All variables of the graph."""
        of_bert = tf.nest.flatten(list(self.bert.values()))
        return [*of_bert, *self.tables.values(), self.places]

    @property
    def untouched_layers(self) -> Optional[int]:
        """Lowest layers that no task changes; None: embeddings are changed."""
        names = [n for m in self.methods for n in m.variables(self.config)]
        names += below("own/", self.tables)
        layers = [layer_of(n) for n in names if not POOLER.fullmatch(n)]
        hooks = (method.hooks(self.config, {}) for method in self.methods)
        if None in layers or not all(one.by_values for one in hooks):
            return None
        return min(layers, default=self.config.num_hidden_layers)

    def __call__(
        self, features: Mapping[str, tf.Tensor], context: Context
    ) -> NamedTensors:
        """Computes tasks of texts.

        `features` are `FEATURES`: `task`, int32 [N, K], are each text's tasks,
        `question`, int32 [N, K], their numbers. Returns the outputs of heads,
        `head_<number>/<name>`, [B_h, ...], and the number of each,
        `head_<number>/question`, int32 [B_h].
        """
        heads = [build(self.config, lambda *_: None) for build in self.heads]
        bert, states, context, places, numbers = self._encode(
            features, context, heads
        )
        sequence_output = tf.cast(states[-1], tf.float32)
        return self._answers(
            bert, sequence_output, heads, context, places, numbers
        )

    def vectors(
        self,
        features: Mapping[str, tf.Tensor],
        context: Context,
        pool: Callable[[list[tf.Tensor], tf.Tensor], tf.Tensor],
    ) -> NamedTensors:
        """Makes vectors of texts, with the adapters of tasks.

        `pool` makes vectors [B, W] of all layers' outputs [B, T, D] and the
        mask int32 [B, T]. Returns `vectors/values`, float32 [B, W], and the
        number of each, `vectors/question`, int32 [B].
        """
        _, states, context, _, numbers = self._encode(features, context, None)
        values = pool(states, context.input_mask)
        return {"vectors/values": values, "vectors/question": numbers}

    def _encode(
        self,
        features: Mapping[str, tf.Tensor],
        context: Context,
        heads: Optional[list[Any]],
    ) -> tuple[Any, list[tf.Tensor], Context, tf.Tensor, tf.Tensor]:
        """Runs BERT on rows, one for each text and task, sorted by method.

        Of the last layer only what `heads` read is computed.

        Returns:
            BERT, all layers' outputs [B, T, D], the rows' context, their tasks'
            places int32 [B, PLACES], the questions' numbers int32 [B].
        """
        task_count = tf.shape(features["task"])[1]
        places = tf.gather(self.places, tf.reshape(features["task"], [-1]))
        order = tf.argsort(places[:, METHOD], stable=True)
        places = tf.gather(places, order)  # [B, PLACES]
        numbers = tf.gather(tf.reshape(features["question"], [-1]), order)
        text = order // task_count
        kinds = tf.one_hot(places[:, METHOD], len(self.methods), dtype=tf.int32)
        counts = tf.reduce_sum(kinds, axis=0)

        rows = tf.split(places, counts, num=len(self.methods))
        slots = {
            scope_of(number): _not_empty(of_kind[:, METHOD_ROW])
            for number, of_kind in enumerate(rows)
        }
        slots["own/"] = places[:, OWN_ROW]

        added = {}
        for name, table in self.tables.items():
            scope = name.partition("/")[0] + "/"
            if scope in slots:
                value = tf.gather(table, slots[scope])
                added[name] = tf.cast(value, tf.float32)
        context = dataclasses.replace(context, handed_on={COUNTS: counts})
        bert = make_bert(
            self.config,
            self.bert,
            added,
            functools.partial(MixedHooks, self.methods, self.config),
        )
        context = dataclasses.replace(
            context,
            first_token=heads is not None
            and bert.hooks.by_token
            and all(head.reads_first_token for head in heads),
        )
        mask = tf.gather(features["input_mask"], text)
        untouched = self._untouched(features, context)
        lower = [tf.gather(states, text) for states in untouched]
        context = dataclasses.replace(context, input_mask=mask)
        if not lower:
            ids, segments = (
                tf.gather(features[name], text)
                for name in ("input_ids", "segment_ids")
            )
            lower = [bert.embed(ids, segments, context)]
        layers = range(len(lower) - 1, self.config.num_hidden_layers)
        outputs = bert.run_layers(lower[-1], layers, context)
        return bert, [*lower[1:], *outputs], context, places, numbers

    def _untouched(self, features, context) -> list[tf.Tensor]:
        """Computes what no task changes, [N, T, D], once for each text."""
        first = self.untouched_layers
        if first is None:
            return []
        bert = make_bert(self.config, self.bert, {}, lambda values: NoHooks())
        alone = dataclasses.replace(context, handed_on={})
        hidden = bert.embed(
            features["input_ids"], features["segment_ids"], alone
        )
        return [hidden, *bert.run_layers(hidden, range(first), alone)]

    def _answers(
        self, bert, sequence_output, heads, context, places, numbers
    ) -> NamedTensors:
        """Computes the heads; `heads`, without values, select their outputs."""
        answers, pooled = {}, {}
        if any(head.needs_pooler for head in heads):
            # While rows are sorted by method, which may act there.
            pooled[encoder.POOLER] = bert.pool(sequence_output, context)
        row_values = {
            name: tf.gather(table, places[:, OWN_ROW])
            for name, table in below("own/", self.tables).items()
            if OUTSIDE.fullmatch(name)
        }
        for number, build in enumerate(self.heads):
            scope = f"head_{number}/"
            rows = tf.where(places[:, HEAD] == number)[:, 0]
            slots = _not_empty(tf.gather(places[:, HEAD_ROW], rows))
            values = {
                name: tf.gather(table, slots)
                for name, table in below(scope, self.tables).items()
            }

            def answer(values, row_values, pooled, mask, sequence, build=build):
                head = build(self.config, lambda name, *_: values[name])
                alone = dataclasses.replace(
                    context, input_mask=mask, handed_on={}
                )
                row = {name: x[0] for name, x in row_values.items()}
                with bert.hooks.reading({**row, **pooled}):
                    return head(bert, sequence, alone)

            outputs = map_rows(
                answer,
                values,
                *tf.nest.map_structure(
                    lambda x, rows=rows: tf.gather(x, rows),
                    (row_values, pooled, context.input_mask, sequence_output),
                ),
            )
            for name, value in heads[number].select(outputs).items():
                answers[f"{scope}{name}"] = value
            answers[f"{scope}question"] = tf.gather(numbers, rows)
        return answers


def _not_empty(slots: tf.Tensor) -> tf.Tensor:
    """int32 [B], or where there is none [1]."""
    return tf.pad(slots, [[0, tf.cast(tf.equal(tf.size(slots), 0), tf.int32)]])
