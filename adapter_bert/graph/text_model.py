"""One model from texts to answers, for many tasks on one BERT.

Its graph has TensorFlow's own operations alone, so a saved model loads without
this project.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.answering.embeddings import TOKENS, VectorForm
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.mixed_model import FEATURES
from adapter_bert.answering.task_tables import MixedBert
from adapter_bert.answering.trained_task import LoadedTask, kind_of
from adapter_bert.bert.hooks import Context
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.errors import UserError
from adapter_bert.graph import text_reader, text_windows
from adapter_bert.graph.exported import CHOICES, EMBEDDING, TEXTS
from adapter_bert.graph.graph_answers import (
    RULES,
    Batch,
    Fields,
    GraphAnswers,
    Outputs,
)
from adapter_bert.graph.graph_tokenizer import keep, put
from adapter_bert.graph.text_reader import TextReader
from adapter_bert.graph.text_windows import GraphRows, GraphWindows
from adapter_bert.tasks.novelty import NOVELTY, shares
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.vector_form import constants, create_layers
from adapter_bert.training import frozen_features

# Batches computed at the same time.
PARALLEL = 2


def fault_of(name: str, task: LoadedTask) -> Optional[str]:
    """Says why a model cannot have a task, or None."""
    if kind_of(task) not in RULES:
        return (
            f"{name} is of the kind {kind_of(task)}, which cannot be exported"
        )
    if not task.can_mix:
        return (
            f"{name} was trained by {task.kind.method}, which changes BERT's "
            "matrices, overrides the hook `parameter`, or has a part that "
            "changes BERT; such a task cannot be in a batch with others"
        )
    return None


def _only_form(forms: Mapping[str, VectorForm]) -> VectorForm:
    first, form = "", None
    for name, other in forms.items():
        other = dataclasses.replace(other, prompt=None)
        if form is None:
            first, form = name, other
        elif other != form:
            raise UserError(
                f"{first} has vectors of another form than {name}; leave out "
                "--embeddings, and ask for its answers, which have them; or "
                "export them one apart from the other (--task)"
            )
    if form.pooling == TOKENS:
        raise UserError(
            "an exported model gives one vector for a text; pass "
            "--embeddings=cls or mean"
        )
    return form


class TextModel(tf.Module):
    """Answers texts by any of some tasks, in mixed batches.

    Attributes:
        serve: the function from texts to answers.
        form: of the vectors that `embed`, a function like `serve`, makes of
            texts; None without such a function.
    """

    def __init__(
        self,
        bert: FrozenBert,
        tasks: Mapping[str, LoadedTask],
        batch_size: int,
        adapter_dtype: str = "float32",
        form: Optional[VectorForm] = None,
    ):
        """Puts all tasks, at least one, into tables.

        `batch_size` are windows computed at once, `adapter_dtype` is of
        matrices in tables.
        """
        forms = {}
        if form:
            forms = {
                name: form.completed(
                    bert, task, task.tokenizer, task.max_seq_length
                )
                for name, task in tasks.items()
            }
            form = _only_form(forms)
        self.form = form
        for name, task in tasks.items():
            if why := fault_of(name, task):
                raise UserError(why)
        loaded = list(tasks.values())
        cases = {t.tokenizer.do_lower_case: name for name, t in tasks.items()}
        if len(cases) > 1:
            raise UserError(
                f"{cases[True]} reads lower-cased text, {cases[False]} does "
                "not; export them one apart from the other (--task)"
            )
        self._batch_size = batch_size
        self._dtype = bert.compute_dtype
        if not isinstance(loaded[0].tokenizer, FullTokenizer):
            raise UserError(
                "the model has the tokenizer of a RoBERTa or an ALBERT, but an "
                "exported model can tokenize WordPieces alone; `adapter-bert "
                "predict` answers texts on it"
            )
        self._reader = TextReader(tasks)
        mixed = MixedBert(bert, adapter_dtype)
        mixed.reserve(task.kind for task in loaded)
        places = [mixed.put(task.kind, task.values.get()) for task in loaded]
        heads = [p.head for p in places]
        self._answers = GraphAnswers([t.task for t in loaded], heads)
        growing = mixed.model()
        # Keras loads no variables whose shape is open.
        self._model = dataclasses.replace(
            growing,
            # Without a copy of the values in between.
            tables={
                name: tf.Variable(table, trainable=False)
                for name, table in growing.tables.items()
            },
            places=tf.Variable(growing.places, trainable=False),
        )
        self._model_variables = self._model.variables
        self._novelty = None
        if any(task.task.novelty for task in loaded):
            self._novelty = Novelty(bert, [task.task for task in loaded])
        self._adapters = keep([task.sha256 for task in loaded])
        self._numbers = keep([p.task.number for p in places], np.int32)
        self._heads = keep(heads, np.int32)
        texts = [tf.TensorSpec([None], tf.string, name=name) for name in TEXTS]
        make = functools.partial(tf.function, autograph=False)

        choices = []
        if self._reader.choices:
            choices = [tf.TensorSpec([None, None], tf.string, name=CHOICES)]
        self.serve = make(self._serve, input_signature=[*texts, *choices])
        if form:
            self._prompts = keep([x.prompt or "" for x in forms.values()])
            self._width = form.width(bert.config)
            self._pooled_width = bert.config.hidden_size * len(form.layers)
            self._layers = _stacked_layers(forms.values(), loaded)
            self.embed = make(self._embed, input_signature=texts)

    @property
    def size(self) -> int:
        return sum(
            v.dtype.size * int(tf.size(v))
            for v in self.variables
            if v.dtype != tf.string
        )

    def _serve(
        self,
        text: tf.Tensor,
        text_b: tf.Tensor,
        task: tf.Tensor,
        choices: Optional[tf.Tensor] = None,
    ) -> Fields:
        """Answers texts, with the fields of `GraphAnswers` and two more.

        `adapter`, string [N], is the SHA-256 of the adapter's weights,
        `novelty`, float32 [N], 0 where the task scores none.

        Args:
            text: string [N], UTF-8; other bytes are left out. Sentences are
                split into words at white space.
            text_b: string [N], second texts, or contexts of questions; "" for
                tasks that read one text.
            task: string [N], names.
            choices: string [N, C], "" at the end of rows with fewer; None for
                a model without choices.

        Raises:
            InvalidArgumentError: sizes differ, a task is unknown, a text or a
                choice is missing or too many, or an output is no number.
        """
        rows, windows, words, text_b = self._reader(text, text_b, task, choices)
        head = tf.gather(self._heads, rows.task)
        outputs = self._compute(rows, windows, self._model)
        novelty = tf.zeros([rows.count])
        if self._novelty:
            # No window for a row whose task scores none.
            reading = self._novelty.readings(rows)
            some = rows._replace(reading=reading, choice_row=None)
            windows_of = text_windows.cut(some)
            features = self._compute(some, windows_of, self._novelty.features)
            novelty = self._novelty.shares(
                rows.task, windows_of.row, features["features/values"][:-1]
            )
        return {
            "adapter": tf.gather(self._adapters, rows.task),
            **self._answers(Batch(rows, windows, words, head, text_b, outputs)),
            NOVELTY: novelty,
        }

    def _embed(
        self, text: tf.Tensor, text_b: tf.Tensor, task: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Makes `EMBEDDING`, float32 [N, W], of texts or pairs, as `_serve`."""
        rows = self._reader.plain(text, text_b, task, self._prompts)

        def pool(states, mask):
            vectors = self.form.pool(states, mask)
            return tf.reshape(vectors, [-1, self._pooled_width])

        outputs = self._compute(
            rows,
            text_windows.cut(rows),
            functools.partial(self._model.vectors, pool=pool),
        )
        pooled = outputs["vectors/values"][:-1]
        if not self._layers:
            return {EMBEDDING: self.form.finish(pooled, [])}
        # A vector is a matrix of one row, for layers of its own task.
        layers = [
            [tf.gather(x, rows.task) for x in of_tasks]
            for of_tasks in self._layers
        ]
        vectors = self.form.finish(pooled[:, tf.newaxis], layers)
        return {EMBEDDING: tf.reshape(vectors, [-1, self._width])}

    def _compute(
        self, rows: GraphRows, windows: GraphWindows, model: Callable[..., Any]
    ) -> Outputs:
        """Computes all windows, shortest first; outputs are [W + 1, ...]."""

        @tf.function(input_signature=[FEATURES], autograph=False)
        def compute(batch):
            context = Context(
                batch["input_mask"], dtype=self._dtype, share_layers=True
            )
            return model(batch, context)

        function = compute.get_concrete_function()
        size = windows.size
        order = tf.argsort(windows.length, stable=True)
        tasks = tf.gather(self._numbers, tf.gather(rows.task, windows.row))
        longest = tf.reduce_max(tf.pad(windows.length, [[0, 1]]))
        collected = {
            name: tf.zeros(
                # Of tokens there are as many as in the longest window.
                [size + 1]
                + [longest if n is None else n for n in spec.shape[1:]],
                spec.dtype,
            )
            for name, spec in function.structured_outputs.items()
            if not name.endswith("/question")
        }

        def step(first, collected):
            chosen = order[first : first + self._batch_size]
            features = text_windows.features(
                rows.tokens.ids,
                windows,
                chosen,
                self._reader.tokenizer,
            )
            features["task"] = tf.gather(tasks, chosen)[:, tf.newaxis]
            features["question"] = chosen[:, tf.newaxis]
            outputs = function(features)

            def collect(name, values):
                windows = outputs[f"{name.partition('/')[0]}/question"]
                missing = tf.shape(values)[1:] - tf.shape(outputs[name])[1:]
                paddings = tf.pad(missing[:, tf.newaxis], [[1, 0], [1, 0]])
                padded = tf.pad(outputs[name], paddings)
                return put(values, windows, padded)

            return first + self._batch_size, {
                name: collect(name, x) for name, x in collected.items()
            }

        _, collected = tf.while_loop(
            lambda first, _: first < size,
            step,
            [tf.constant(0), collected],
            parallel_iterations=PARALLEL,
        )
        names = tf.gather(self._reader.names, rows.task)
        for values in collected.values():
            if values.dtype.is_floating:
                axes = list(range(1, values.shape.rank))
                is_finite = tf.math.is_finite(values)
                of_window = tf.reduce_all(is_finite, axis=axes)[:-1]
                is_lost = tf.math.unsorted_segment_max(
                    tf.cast(~of_window, tf.int32), windows.row, rows.count
                )
                text_reader.check(
                    is_lost < 1,
                    "an output of the task ",
                    names,
                    " is no number",
                )
        return collected


class Novelty(tf.Module):
    """Novelty of rows whose tasks score any."""

    def __init__(self, bert: FrozenBert, tasks: Sequence[Task]):
        """Takes tasks by number, at least one with a sketch."""
        self._config, self._bert = bert.config, bert.variables
        sketches = [task.novelty for task in tasks if task.novelty]
        self._has = keep([bool(task.novelty) for task in tasks])
        self._place = keep(np.cumsum(self._has, dtype=np.int32) - 1)
        # Directions of zeros change no distance.
        most = max(len(sketch.directions) for sketch in sketches)
        directions = [
            np.pad(x, [[0, most - len(x)], [0, 0]])
            for x in (sketch.directions for sketch in sketches)
        ]
        self._tables = [
            keep(values)
            for values in (
                [sketch.mean for sketch in sketches],
                directions,
                [sketch.quantiles for sketch in sketches],
            )
        ]

    def readings(self, rows: GraphRows) -> tf.Tensor:
        """How rows are read, int32 [N, READINGS]; some have no window."""
        has = tf.gather(self._has, rows.task)
        form = tf.where(has, text_windows.PLAIN, text_windows.SENTENCE)
        is_form = np.arange(text_windows.READINGS) == text_windows.FORM
        return tf.where(is_form, form[:, tf.newaxis], rows.reading)

    def features(
        self, batch: Mapping[str, tf.Tensor], context: Context
    ) -> dict[str, tf.Tensor]:
        model = frozen_features.model(
            self._config, lambda name, *_: self._bert[name]
        )
        states = model(batch, context)[frozen_features.FEATURES]
        return {
            "features/values": states,
            "features/question": batch["question"][:, 0],
        }

    def shares(
        self, task: tf.Tensor, row: tf.Tensor, features: tf.Tensor
    ) -> tf.Tensor:
        """Scores the novelty of all rows, float32 [N], 0 without features.

        Takes `task`, int32 [N], and the rows, int32 [W], of features [W, D].
        """
        place = tf.gather(self._place, tf.gather(task, row))
        tables = [tf.gather(table, place) for table in self._tables]
        values = shares(features, *tables)
        return tf.scatter_nd(row[:, tf.newaxis], values, tf.shape(task))


def _stacked_layers(
    forms: Iterable[VectorForm], tasks: Iterable[LoadedTask]
) -> list[list[tf.Variable]]:
    """Stacks all tasks' layers, [tasks, in, out] and [tasks, 1, out]."""

    of_tasks = []
    for form, task in zip(forms, tasks):
        # Others have those of BERT's folder.
        create, values = constants, task.values.get()
        if form.has_own_layers:
            create = lambda name, *_, x=values: x[name]  # noqa: E731
        of_tasks.append(create_layers(form.dense, create))
    return [
        [keep(list(map(np.atleast_2d, x))) for x in zip(*layers)]
        for layers in zip(*of_tasks)
    ]
