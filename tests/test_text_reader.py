"""Windows that are cut in a graph are those of the tasks."""

from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from conftest import TINY_WORDS, module_fixture

from adapter_bert.answering.trained_task import LoadedTask
from adapter_bert.graph import text_windows
from adapter_bert.graph.text_reader import TextReader
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.multiple_choice import COPA, SWAG, MultipleChoice
from adapter_bert.tasks.squad_data import SPACES
from adapter_bert.tasks.tagging import Tagging
from adapter_bert.tasks.tagging_files import cut_words

pytestmark = pytest.mark.newer_stack

PLAIN = {"name": "custom", "labels": ["a", "b"]}
SQUAD = restore_task({"name": "squad"}, {}, "test")
CHOICE = {"name": "custom", "choices": 3, "pairs": False}
WORDS = list(filter(str.isalpha, TINY_WORDS))
# A word without tokens among them; some have more than a window holds.
ODD_WORDS = [
    *WORDS,
    "\u200b",
    "cat.cat",
    "...",
    "cat," * 6,
    "\u4eac\u4eac1903\u4eac",
]
GAPS = (*" \t\n", "  ", *SPACES)
SENTENCES = st.lists(
    st.tuples(st.sampled_from(GAPS), st.sampled_from(ODD_WORDS)), max_size=25
).map(lambda parts: "".join(gap + word for gap, word in parts))


def make_tasks():
    """Tasks of every form and several lengths, and their numbers of texts."""
    for length in (3, 4, 5, 9, 30):
        plain = restore_task({**PLAIN, "pairs": False}, {}, "test")
        pair = restore_task({**PLAIN, "pairs": True}, {}, "test")
        yield plain, (1,), length
        # A pair may have four special tokens.
        if length > 3:
            yield pair, (2,), length
            yield plain, (1, 2), length
        for stride in (1, 3, 100):
            yield replace(plain, window_stride=stride), (1,), length
            if length > 3:
                yield replace(pair, window_stride=stride), (2,), length
        for stride, query in ((1, 1), (3, 4), (100, 2)):
            if query + 4 < length:
                squad = replace(
                    SQUAD, doc_stride=stride, max_query_length=query
                )
                yield squad, (2,), length
    for length in (3, 4, 5, 8, 13):
        yield Tagging(apart=length % 2 == 0), (1,), length
    for length in (5, 6, 9, 16):
        for task in (restore_task(CHOICE, {}, "test"), SWAG, COPA):
            yield task, (len(task.columns),), length


TASKS = [
    LoadedTask(task, counts, None, None, None, length)
    for task, counts, length in make_tasks()
]


def make_reader(tasks, tokenizer):
    """A function of columns: windows, words and features."""
    reader = TextReader({n: replace(t, tokenizer=tokenizer) for n, t in tasks})
    text = tf.TensorSpec([None], tf.string)
    choices = tf.TensorSpec([None, None], tf.string)

    @tf.function(input_signature=[text] * 3 + [choices], autograph=False)
    def read(*columns):
        rows, windows, words, _ = reader(*columns)
        numbers = tf.range(windows.size)
        features = text_windows.features(
            rows.tokens.ids, windows, numbers, tokenizer
        )
        return windows.row, words, features

    return read


@module_fixture
def read(word_pieces):
    return make_reader(((str(n), t) for n, t in enumerate(TASKS)), word_pieces)


@st.composite
def rows(draw):
    """A task's number, and the texts and choices of a row for it."""
    number = draw(st.integers(0, len(TASKS) - 1))
    task = TASKS[number].task
    if isinstance(task, Tagging):
        return number, [draw(SENTENCES)], []
    text = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)
    count = len(task.result_columns) if isinstance(task, MultipleChoice) else 0
    texts = draw(st.sampled_from(TASKS[number].numbers_of_texts)) - count
    texts = [draw(text) for _ in range(texts)]
    if TASKS[number].numbers_of_texts == (1, 2):
        # No second text is one text.
        texts = [*filter(None, texts)] or [""]
    if task is COPA:
        texts[1] = draw(st.sampled_from(["cause", "effect"]))
    words = st.sampled_from(WORDS)
    choices = [f"{draw(text)} {draw(words)}" for _ in range(count)]
    return number, texts, choices


@pytest.mark.gate
@hypothesis.settings(max_examples=250)
@hypothesis.given(st.lists(rows(), min_size=1, max_size=6))
def test_windows_are_those_of_the_task(read, word_pieces, rows):
    expected, words, places = [], [], []
    for row, (number, texts, choices) in enumerate(rows):
        task, length = TASKS[number].task, TASKS[number].max_seq_length
        made = task.make_rows([(*texts, *choices)])
        features = task.featurize(made, word_pieces, length)
        alone = features.unlabelled()
        for first, end in zip(alone.starts, alone.starts[1:]):
            tokens = alone.tokens[first:end].tolist()
            expected.append((row, tokens, alone.segments[first:end].tolist()))
        if isinstance(task, Tagging):
            spans = cut_words(texts[0], task.apart)
            words += [(row, (texts[0][a:b], a, b)) for a, b in spans]
            for place in features.places.tolist():
                window = np.searchsorted(features.starts, place, "right") - 1
                inside = (window, place - features.starts[window])
                places.append((-1, 0) if place < 0 else inside)
    if not expected:
        # Contexts without a token: there is no longest window.
        return
    row_of_window, cut, features = read(
        tf.constant([texts[0] for _, texts, _ in rows]),
        tf.constant([(*texts, "")[1] for _, texts, _ in rows]),
        tf.constant([str(number) for number, *_ in rows]),
        tf.constant([(*some, *[""] * 4)[:4] for *_, some in rows]),
    )
    ids, mask, segments = (
        features[name].numpy()
        for name in ("input_ids", "input_mask", "segment_ids")
    )
    lengths = mask.sum(axis=1)
    assert (mask == (np.arange(mask.shape[1]) < lengths[:, None])).all()
    assert not ids[mask == 0].any() and not segments[mask == 0].any()
    assert expected == [
        (row, ids[n, :length].tolist(), segments[n, :length].tolist())
        for n, (row, length) in enumerate(zip(row_of_window.numpy(), lengths))
    ]
    row = cut.row.numpy().tolist()
    before = cut.first.numpy()[row]
    texts = [text.decode() for text in cut.text.numpy()]
    starts, ends = cut.start.numpy() - before, cut.end.numpy() - before
    assert list(zip(row, zip(texts, starts, ends))) == words
    assert list(zip(cut.number.numpy(), cut.place.numpy())) == places


@module_fixture
def few(tokenizer):
    """Reads one task of each form."""
    names = {"small": 0, "tags": -13, "choice": -3, "copa": -1}
    return make_reader(
        ((name, TASKS[number]) for name, number in names.items()), tokenizer
    )


READ = {"text": ["a"], "text_b": [""], "task": ["small"], "choices": [[]]}
COPA_ROW = {"task": ["copa"], "text_b": ["cause"], "choices": [["a", "b"]]}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"task": ["\u00e9" * 90]}, "task " + "\u00e9" * 80 + "; there"),
        ({"text_b": []}, "text, text_b, task and choices must have equally"),
        ({"choices": [["b"]]}, "row 1: the task small reads as many choices"),
        ({**COPA_ROW, "text_b": ["why"]}, "task copa reads another text_b"),
        ({**COPA_ROW, "choices": [["a"]]}, "task copa reads as many choices"),
        ({**COPA_ROW, "choices": [["a", " \u3000"]]}, "none of them empty"),
        ({**COPA_ROW, "choices": [["a", "b", "c"]]}, "copa reads as many"),
    ],
)
def test_rows_that_no_task_reads(few, change, message):
    few(*(tf.constant(x, tf.string) for x in {**READ, **COPA_ROW}.values()))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        few(*(tf.constant(x, tf.string) for x in {**READ, **change}.values()))
    assert message in caught.value.message
