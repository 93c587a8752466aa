"""Reads texts as their tasks do, within a graph: checks, tokens, windows."""

import json
from collections.abc import Mapping
from typing import Optional

import numpy as np
import tensorflow as tf

from adapter_bert.answering.trained_task import LoadedTask
from adapter_bert.graph import choice_windows, sentence_windows, text_windows
from adapter_bert.graph.choice_windows import ChoiceTexts
from adapter_bert.graph.exported import (
    CHOICES,
    LONGEST_NAME,
    TEXTS,
    shown_names,
)
from adapter_bert.graph.graph_tokenizer import GraphTokenizer, keep
from adapter_bert.graph.sentence_windows import WordCutter, Words
from adapter_bert.graph.text_windows import GraphRows, GraphWindows


class TextReader(tf.Module):
    """Reads rows of any of some tasks.

    `names` are the tasks', string [tasks]; `choices` is the most of a task.
    """

    def __init__(self, tasks: Mapping[str, LoadedTask]):
        loaded = list(tasks.values())
        self.tokenizer = loaded[0].tokenizer
        self.names = keep(list(tasks))
        self._shown = shown_names(list(tasks))
        readings = text_windows.readings(loaded, self.tokenizer)
        self._readings = keep(readings)
        # A vector is of one window, also where answers need several.
        self._plain_readings = keep(text_windows.plain_readings(readings))
        has_sentences = text_windows.SENTENCE in readings[:, text_windows.FORM]
        self._cutter = WordCutter() if has_sentences else None
        self.choices = int(readings[:, text_windows.CHOICES].max())
        self._choice_texts = ChoiceTexts([t.task for t in loaded])
        # Tasks with new tokens of their own have tokenizers of their own.
        keys = [json.dumps(t.tokenizer.new_tokens) for t in loaded]
        tokenizers = {key: t.tokenizer for key, t in zip(keys, loaded)}
        self._tokenizer = GraphTokenizer(*tokenizers.values())
        of_tasks = [list(tokenizers).index(key) for key in keys]
        self._tokenizers = keep(of_tasks, np.int32)
        prompts = [t.task.prompts[0] if t.task.prompts else "" for t in loaded]
        self._prompts = keep(prompts)

    def __call__(
        self,
        text: tf.Tensor,
        text_b: tf.Tensor,
        task: tf.Tensor,
        choices: Optional[tf.Tensor],
    ) -> tuple[GraphRows, GraphWindows, Optional[Words], tf.Tensor]:
        """Reads texts, with arguments and errors of `TextModel`.

        The second texts, string [N], come last.
        """
        text, text_b, number = self._check_inputs(text, text_b, task, choices)
        text = _with_prompts(self._prompts, number, text)
        reading = tf.gather(self._readings, number)
        of_choices = words = sentences = places = None
        if self.choices:
            text_b, of_choices = self._read_choices(
                number, reading, text_b, choices
            )
        if self._cutter:
            is_sentence = tf.equal(
                reading[:, text_windows.FORM], text_windows.SENTENCE
            )
            words = self._cutter(
                tf.where(is_sentence, text, ""),
                tf.equal(reading[:, text_windows.APART], 1),
            )
            text = tf.where(is_sentence, "", text)
        rows = self._tokenize(text, text_b, number, reading, words, of_choices)
        if words:
            sentences, places = sentence_windows.cut(rows, words)
        return rows, text_windows.cut(rows, sentences), places, text_b

    def plain(
        self,
        text: tf.Tensor,
        text_b: tf.Tensor,
        task: tf.Tensor,
        prompts: tf.Variable,
    ) -> GraphRows:
        """Reads texts or pairs behind prompts, each for one window."""
        text, text_b, number = self._check_inputs(text, text_b, task)
        text = _with_prompts(prompts, number, text)
        reading = tf.gather(self._plain_readings, number)
        return self._tokenize(text, text_b, number, reading)

    def _check_inputs(self, text, text_b, task, choices=None):
        inputs = {TEXTS[0]: text, TEXTS[1]: text_b, TEXTS[2]: task}
        if choices is not None:
            inputs[CHOICES] = choices
        sizes = [tf.shape(x)[0] for x in inputs.values()]
        is_even = tf.reduce_all(tf.equal(sizes, sizes[0]))
        *names, last = inputs
        message = f"{', '.join(names)} and {last} must have equally many rows"
        with tf.control_dependencies([tf.debugging.Assert(is_even, [message])]):
            return _utf_8(text), _utf_8(text_b), self._number(task)

    def _read_choices(
        self,
        number: tf.Tensor,
        reading: tf.Tensor,
        text_b: tf.Tensor,
        choices: tf.Tensor,
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
        missing = tf.maximum(self.choices - tf.shape(choices)[1], 0)
        choices = tf.pad(
            _utf_8(choices), [[0, 0], [0, missing]], constant_values=""
        )
        names = tf.gather(self.names, number)
        check(
            choice_windows.are_read(reading, choices),
            "the task ",
            names,
            " reads as many choices as it has labels, none of them empty; "
            "tasks of other kinds read no choices",
        )
        questions, is_known = self._choice_texts.questions(number, text_b)
        check(
            is_known, "the task ", names, " reads another text_b (tasks.json)"
        )
        return questions, self._choice_texts.choices(
            reading, questions, choices
        )

    def _number(self, task: tf.Tensor) -> tf.Tensor:
        """Numbers of named tasks, int32 [N]."""
        is_called = tf.equal(task[:, tf.newaxis], self.names)
        check(
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
        reading: tf.Tensor,
        words: Optional[Words] = None,
        choices: Optional[tuple[tf.Tensor, tf.Tensor]] = None,
    ) -> GraphRows:
        """Tokenizes rows; `choices` are texts and their rows."""
        is_given = tf.not_equal(text_b, "")
        least = reading[:, text_windows.LEAST_TEXTS]
        most = reading[:, text_windows.MOST_TEXTS]
        check(
            ~is_given | (most > 1),
            "the task ",
            tf.gather(self.names, number),
            " reads one text, but text_b is not empty",
        )
        row = tf.range(tf.size(number))
        of_words = words and (words.text, words.row)
        blocks = [(text, row), (text_b, row)]
        blocks += filter(None, (of_words, choices))
        texts, row = (tf.concat(block, axis=0) for block in zip(*blocks))
        which = tf.gather(self._tokenizers, tf.gather(number, row))
        tokens = self._tokenizer(texts, which)
        rows = GraphRows(
            number,
            reading,
            tokens,
            starts=tf.searchsorted(tokens.text, tf.range(tf.size(texts) + 1)),
            has_b=(least > 1) | is_given,
            word_row=words and words.row,
            choice_row=choices and choices[1],
        )
        if words:
            rows = sentence_windows.without_long_words(rows)
        if choices:
            rows = choice_windows.without_cut(rows)
        return rows


def _with_prompts(
    prompts: tf.Variable, number: tf.Tensor, text: tf.Tensor
) -> tf.Tensor:
    """Texts, string [N], behind the prompts of their tasks, int32 [N]."""
    return tf.strings.join([tf.gather(prompts, number), text])


def _utf_8(texts: tf.Tensor) -> tf.Tensor:
    """Texts, string [...], without bytes that are no UTF-8."""
    return tf.strings.unicode_transcode(
        texts, "UTF-8", "UTF-8", errors="ignore"
    )


def check(
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
