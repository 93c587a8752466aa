"""One model from texts to answers, for many tasks on one BERT.

Its graph has TensorFlow's own operations alone, so a saved model loads without
this project.
"""

import functools
from typing import Any, Callable, Dict, Mapping, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.bert.hooks import Context
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.errors import UserError
from adapter_bert.serving import text_windows
from adapter_bert.serving.embeddings import TOKENS, VectorForm
from adapter_bert.serving.exported import (
    EMBEDDING,
    LONGEST_NAME,
    Row,
    shown_names,
)
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.graph_answers import (
    Fields,
    GraphAnswers,
    Outputs,
    kind_of,
)
from adapter_bert.serving.graph_tokenizer import GraphTokenizer, keep
from adapter_bert.serving.mixed_model import FEATURES
from adapter_bert.serving.task_tables import MixedBert
from adapter_bert.serving.text_windows import Rows, Windows
from adapter_bert.serving.trained_task import LoadedTask

# Batches computed at the same time.
PARALLEL = 2


class TextModel(tf.Module):
    """Answers texts by any of some tasks, in mixed batches.

    Attributes:
        serve: the function from texts to answers.
        form: of the vectors that `embed` makes of texts, or None.
        embed: a function like `serve`, if there is a form.
    """

    def __init__(
        self,
        bert: FrozenBert,
        tasks: Mapping[str, LoadedTask],
        batch_size: int,
        adapter_dtype: str = "float32",
        form: Optional[VectorForm] = None,
    ):
        """Puts all tasks into tables.

        Args:
            bert: base model of all tasks.
            tasks: by name, at least one.
            batch_size: windows computed at once.
            adapter_dtype: as of `MixedBert`.
            form: of vectors, one of a text or pair; None for none.

        Raises:
            UserError: the form is of vectors of tokens, or does not fit BERT.
            UserError: a task cannot be mixed or is of an unknown kind, tasks
                differ in the case of letters, or the model is a RoBERTa.
        """
        if form:
            form.check(bert.config)
            if form.pooling == TOKENS:
                raise UserError(
                    "an exported model gives one vector for a text; pass "
                    "--embeddings=cls or mean"
                )
        self.form = form
        loaded = list(tasks.values())
        kinds = list(map(kind_of, loaded))
        changed = [name for name, task in tasks.items() if not task.can_mix]
        if changed:
            name = changed[0]
            raise UserError(
                f"{name} was trained by {tasks[name].kind.method}, which "
                "changes BERT's matrices, overrides the hook `parameter`, or "
                "has a part that changes BERT; such a task cannot be in a "
                "batch with others "
                f"({len(changed)} of {len(tasks)} are such); name the other "
                "ones by --task"
            )
        cases = {t.tokenizer.do_lower_case: name for name, t in tasks.items()}
        if len(cases) > 1:
            raise UserError(
                f"{cases[True]} reads lower-cased text, {cases[False]} does "
                "not; export them one apart from the other (--task)"
            )
        self._batch_size = batch_size
        self._dtype = bert.compute_dtype
        tokenizer = loaded[0].tokenizer
        if not isinstance(tokenizer, FullTokenizer):
            raise UserError(
                "the model is a RoBERTa, but an exported model can tokenize "
                "WordPieces alone; `adapter-bert predict` answers texts on a "
                "RoBERTa"
            )
        self._classify_id = tokenizer.classify_id
        self._separate_id = tokenizer.separate_id
        readings = text_windows.readings(loaded)
        self._readings = keep(readings)
        mixed = MixedBert(bert, adapter_dtype)
        mixed.reserve(task.kind for task in loaded)
        places = [mixed.put(task.kind, task.values.get()) for task in loaded]
        heads = [p.head for p in places]
        self._answers = GraphAnswers([t.task for t in loaded], kinds, heads)
        self._tokenizer = GraphTokenizer(tokenizer)
        self._model = mixed.model()
        self._model_variables = self._model.variables
        self._names = keep(np.array(list(tasks)))
        self._shown = shown_names(list(tasks))
        self._numbers = keep(np.int32([p.task.number for p in places]))
        self._heads = keep(np.int32(heads))
        make = functools.partial(
            tf.function,
            input_signature=[
                tf.TensorSpec([None], tf.string, name=name)
                for name in Row._fields
            ],
            autograph=False,
        )
        self.serve = make(self._serve)
        if form:
            # A vector is of one window, also where answers need several.
            readings[:, text_windows.IS_QUESTION] = 0
            self._plain_readings = keep(readings)
            self._width = form.width(bert.config)
            self.embed = make(self._embed)

    @property
    def size(self) -> int:
        """Bytes of all variables that are no strings."""
        return sum(
            v.dtype.size * int(tf.size(v))
            for v in self.variables
            if v.dtype != tf.string
        )

    def _serve(
        self, text: tf.Tensor, text_b: tf.Tensor, task: tf.Tensor
    ) -> Fields:
        """Answers texts, as `GraphAnswers` returns them.

        Args:
            text: string [N], UTF-8; other bytes are left out.
            text_b: string [N], the second texts of pairs, or the contexts of
                questions; "" for tasks that read one text.
            task: string [N], names.

        Raises:
            InvalidArgumentError: sizes differ, a task is unknown, a task that
                reads one text has two, or an output is no number.
        """
        text, text_b, number = self._check_inputs(text, text_b, task)
        rows = self._tokenize(text, text_b, number, self._readings)
        windows = text_windows.cut(rows)
        head = tf.gather(self._heads, number)
        outputs = self._compute(rows, windows, self._model)
        return self._answers(rows, windows, head, text_b, outputs)

    def _embed(
        self, text: tf.Tensor, text_b: tf.Tensor, task: tf.Tensor
    ) -> Dict[str, tf.Tensor]:
        """Vectors of texts or pairs, with the adapters of tasks.

        Arguments and errors as of `_serve`.

        Returns:
            `EMBEDDING`, float32 [N, W].
        """
        text, text_b, number = self._check_inputs(text, text_b, task)
        rows = self._tokenize(text, text_b, number, self._plain_readings)

        def pool(states, mask):
            found = self.form.pool(states, mask)
            return tf.reshape(found, [-1, self._width])

        outputs = self._compute(
            rows,
            text_windows.cut(rows),
            functools.partial(self._model.vectors, pool=pool),
        )
        return {EMBEDDING: outputs["vectors/values"][:-1]}

    def _check_inputs(self, text, text_b, task):
        """Texts without bytes that are no UTF-8, and the tasks' numbers.

        Arguments and errors as of `_serve`.
        """
        sizes = [tf.size(x) for x in (text, text_b, task)]
        is_even = tf.reduce_all(tf.equal(sizes, sizes[0]))
        message = "text, text_b and task must have equally many rows"
        with tf.control_dependencies([tf.debugging.Assert(is_even, [message])]):
            text, text_b = (
                tf.strings.unicode_transcode(
                    x, "UTF-8", "UTF-8", errors="ignore"
                )
                for x in (text, text_b)
            )
            return text, text_b, self._number(task)

    def _number(self, task: tf.Tensor) -> tf.Tensor:
        """Numbers of named tasks, int32 [N]."""
        is_called = tf.equal(task[:, tf.newaxis], self._names)
        _check(
            tf.reduce_any(is_called, axis=1),
            "unknown task ",
            task,
            f"; there are: {self._shown}",
        )
        return tf.argmax(is_called, axis=1, output_type=tf.int32)

    def _tokenize(
        self,
        text: tf.Tensor,
        text_b: tf.Tensor,
        number: tf.Tensor,
        readings: tf.Tensor,
    ) -> Rows:
        """Rows of texts as their tasks read them."""
        reading = tf.gather(readings, number)
        is_given = tf.not_equal(text_b, "")
        least = reading[:, text_windows.LEAST_TEXTS]
        most = reading[:, text_windows.MOST_TEXTS]
        _check(
            ~is_given | (most > 1),
            "the task ",
            tf.gather(self._names, number),
            " reads one text, but text_b is not empty",
        )
        tokens = self._tokenizer(tf.concat([text, text_b], axis=0))
        bounds = tf.range(2 * tf.size(number) + 1)
        return Rows(
            number,
            reading,
            tokens,
            starts=tf.searchsorted(tokens.text, bounds),
            has_b=(least > 1) | is_given,
        )

    def _compute(
        self, rows: Rows, windows: Windows, model: Callable[..., Any]
    ) -> Outputs:
        """A model's outputs of all windows, float32 or int32 [W + 1, ...].

        Batches of windows are computed in the order of their lengths.
        """

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
        found = {
            name: tf.zeros([size + 1, *spec.shape[1:]], spec.dtype)
            for name, spec in function.structured_outputs.items()
            if not name.endswith("/question")
        }

        def step(first, found):
            chosen = order[first : first + self._batch_size]
            features = text_windows.features(
                rows.tokens.ids,
                windows,
                chosen,
                self._classify_id,
                self._separate_id,
            )
            features["task"] = tf.gather(tasks, chosen)[:, tf.newaxis]
            features["question"] = chosen[:, tf.newaxis]
            outputs = function(features)

            def put(name, values):
                rows = outputs[f"{name.partition('/')[0]}/question"]
                rows = rows[:, tf.newaxis]
                return tf.tensor_scatter_nd_update(values, rows, outputs[name])

            return first + self._batch_size, {
                name: put(name, values) for name, values in found.items()
            }

        _, found = tf.while_loop(
            lambda first, _: first < size,
            step,
            [tf.constant(0), found],
            parallel_iterations=PARALLEL,
        )
        names = tf.gather(self._names, rows.task)
        for values in found.values():
            if values.dtype.is_floating:
                axes = list(range(1, values.shape.rank))
                is_finite = tf.math.is_finite(values)
                of_window = tf.reduce_all(is_finite, axis=axes)[:-1]
                is_lost = tf.math.unsorted_segment_max(
                    tf.cast(~of_window, tf.int32), windows.row, rows.count
                )
                _check(
                    is_lost < 1,
                    "an output of the task ",
                    names,
                    " is no number",
                )
        return found


def _check(
    is_right: tf.Tensor, before: str, words: tf.Tensor, after: str
) -> None:
    """Asserts bool [N]; the message tells the first wrong row's number.

    `before`, the row's string of `words`, string [N], and `after` follow.
    """
    first = tf.pad(tf.where(~is_right)[:, 0], [[0, 1]])[0]
    word = tf.gather(tf.pad(words, [[0, 1]], constant_values=""), first)
    word = tf.strings.unicode_transcode(word, "UTF-8", "UTF-8")
    message = tf.strings.join(
        [
            "row ",
            tf.strings.as_string(first + 1),
            f": {before}",
            tf.strings.substr(word, 0, LONGEST_NAME, unit="UTF8_CHAR"),
            after,
        ]
    )
    tf.debugging.Assert(tf.reduce_all(is_right), [message])
