"""Answers chosen in a graph are those that the task chooses."""

import shutil
from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from conftest import TINY_WORDS, module_fixture, write_json

from adapter_bert.answering.trained_task import LoadedTask
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.graph import graph_answers, text_windows
from adapter_bert.graph.graph_tokenizer import GraphTokenizer
from adapter_bert.graph.text_windows import GraphRows
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.squad_data import SPACES

pytestmark = pytest.mark.newer_stack

LENGTH = 12
RULES = (
    {},
    {"max_answer_length": 2, "doc_stride": 1},
    {"version_2_with_negative": True, "null_score_diff_threshold": 1.0},
    {"version_2_with_negative": True, "doc_stride": 2},
    {"version_2_with_negative": True, "null_score_diff_threshold": 50.0},
)
WORDS = [
    *TINY_WORDS[5:],
    "cat,",
    "\u00e9cat\u0301",
    "unknown",
    "\u0130n",
    "cat\u200b.",
    "\u200b",
    "in\u00a0out",
    "\U0001f600",
    "mat\x01s",
    "\u4eac\u4eac1903\u4eac",
    "ca\u0308t\u0301s\u0323",
    "\u0301",
    "\u2764\ufe0f",
    "caf\ufffd",
    "mat\ufffe",
    "\uac01\u0301",
]
# All that Python takes for white space, and some that joins words.
GAPS = (*" \t\n", "  ", " \u00a0", *SPACES, *"\u200b\u200d\u2060\ufeff", "")
CONTEXTS = st.lists(
    st.tuples(st.sampled_from(GAPS), st.sampled_from(WORDS)), max_size=25
).map(lambda parts: "".join(gap + word for gap, word in parts)[1:])


def squads(n_best):
    """Tasks with every rule, whose heads are of one kind."""
    task = restore_task({"name": "squad"}, {}, "test")
    return [
        replace(
            task,
            **{"doc_stride": 4, **rules},
            max_query_length=2,
            n_best_size=n_best,
        )
        for rules in RULES
    ]


class Chooser:
    """Chooses answers of windows, by a graph and by the tasks."""

    def __init__(self, tokenizer, n_best):
        self.tokenizer = tokenizer
        self.tasks = squads(n_best)
        self.n_best = n_best
        self.graph = GraphTokenizer(tokenizer)
        rules = graph_answers.SpanRules(self.tasks, [0] * len(self.tasks))
        loaded = [
            LoadedTask(task, (2,), None, None, None, LENGTH)
            for task in self.tasks
        ]
        table = tf.constant(text_windows.readings(loaded, tokenizer))
        texts = tf.TensorSpec([None], tf.string)
        numbers = tf.TensorSpec([None, None], tf.int32)
        logits = tf.TensorSpec([None, None], tf.float32)
        outputs = dict.fromkeys(("start_indexes", "end_indexes"), numbers)
        names = ("start_logits", "end_logits", "null_logits")
        outputs.update(dict.fromkeys(names, logits))
        task = tf.TensorSpec([None], tf.int32)

        @tf.function(
            input_signature=[texts, texts, task, outputs], autograph=False
        )
        def choose(questions, contexts, task, outputs):
            tokens = self.graph(tf.concat([questions, contexts], axis=0))
            rows = GraphRows(
                task,
                tf.gather(table, task),
                tokens,
                tf.searchsorted(tokens.text, tf.range(2 * tf.size(task) + 1)),
                tf.ones_like(task, tf.bool),
            )
            spans = rules.choose(rows, text_windows.cut(rows), outputs)
            cut = graph_answers.cut_out(rows, spans, contexts)
            return spans, cut

        self.choose = choose

    def check(self, contexts, seed=0, fixed=None):
        """Compares answers to (task, context) pairs.

        Args:
            contexts: the pairs.
            seed: of the head's outputs.
            fixed: one row's outputs instead of random ones.
        """
        rng = np.random.default_rng(seed)
        expected, parts = [], []
        for number, context in contexts:
            task = self.tasks[number]
            rows = task.make_rows([("the cat is", context)])
            windows = task.featurize(rows, self.tokenizer, LENGTH)
            outputs = fixed or self.random_outputs(rng, windows.lengths)
            [answer] = task.answer(rows, task.decode(rows, windows, outputs))
            expected.append(answer)
            parts.append(outputs)
        # One window more than there are.
        parts.append(self.random_outputs(rng, np.array([LENGTH])))
        outputs = {
            name: np.concatenate([part[name] for part in parts])
            for name in parts[0]
        }
        spans, (words, starts, ends) = self.choose(
            tf.constant(["the cat is"] * len(contexts)),
            tf.constant([context for _, context in contexts]),
            tf.constant([number for number, _ in contexts]),
            outputs,
        )
        for row, answer in enumerate(expected):
            start, end = int(starts[row]), int(ends[row])
            is_there = bool(spans.is_there[row])
            chosen = {
                "answer": words[row].numpy().decode(),
                "start": None if start < 0 else start,
                "end": None if end < 0 else end,
                "score": float(spans.score[row]) if is_there else None,
                "null_score": float(spans.null_score[row]),
            }
            if answer["null_score"] is None:
                assert chosen.pop("null_score") == 0.0
                answer = {k: v for k, v in answer.items() if k != "null_score"}
            assert chosen == answer, contexts[row]

    def random_outputs(self, rng, lengths):
        """A head's outputs for windows of these lengths, with ties."""
        shape = (len(lengths), LENGTH)
        logits = rng.integers(-4, 5, (2, *shape)).astype(np.float32)
        logits += rng.choice([0.0, 0.1, 0.3], (2, *shape)).astype(np.float32)
        logits[:, np.arange(LENGTH) >= lengths[:, np.newaxis]] = -1e30
        order = np.argsort(-logits, axis=-1, kind="stable")[..., : self.n_best]
        best = np.take_along_axis(logits, order, axis=-1)
        return {
            "start_indexes": order[0].astype(np.int32),
            "end_indexes": order[1].astype(np.int32),
            "start_logits": best[0],
            "end_logits": best[1],
            "null_logits": logits[:, :, 0].T.copy(),
        }


@module_fixture
def choosers(tiny_bert, golden_dir, tmp_path_factory):
    """Of one answer or all; a token that was added has blanks around it.

    One has an MPNet's tokenizer.
    """
    folder = tmp_path_factory.mktemp("vocabulary")
    shutil.copy(tiny_bert / "vocab.txt", folder)
    added = {" <y> ": len(TINY_WORDS)}
    write_json(folder / "added_tokens.json", added)
    tokenizer = FullTokenizer(str(folder / "vocab.txt"))
    of_mpnet = golden_dir / "architectures" / "mpnet" / "vocab.txt"
    return {
        1: Chooser(tokenizer, 1),
        LENGTH: Chooser(tokenizer, LENGTH),
        "mpnet": Chooser(FullTokenizer(str(of_mpnet)), LENGTH),
    }


@pytest.mark.gate
@pytest.mark.parametrize("name", [1, LENGTH, "mpnet"])
@hypothesis.given(
    st.lists(
        st.tuples(st.integers(0, len(RULES) - 1), CONTEXTS),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 10**6),
)
def test_answers_are_those_of_the_task(choosers, name, contexts, seed):
    choosers[name].check(contexts, seed)


@pytest.mark.parametrize(
    "null, start, task, context",
    [
        # The best answer's sum of logits is 3, the threshold 50.
        *((null, 4, len(RULES) - 1, "the cat sat") for null in (1, 1.5, 2)),
        # An added token with blanks makes an answer without.
        (0, 5, 0, "cat <y> sat"),
    ],
)
def test_a_list_of_one(choosers, null, start, task, context):
    outputs = {
        "start_indexes": np.int32([[start]]),
        "end_indexes": np.int32([[5]]),
        "start_logits": np.float32([[1.0]]),
        "end_logits": np.float32([[2.0]]),
        "null_logits": np.float32([[null, null]]),
    }
    choosers[1].check([(task, context)], fixed=outputs)


def test_a_token_behind_a_long_window_is_in_the_next_one_alone(tokenizer):
    """A window that ends before a token shows no text around it."""
    room = 120
    (task, *_) = squads(1)
    task = replace(task, doc_stride=room)
    # [CLS], two tokens of the question, [SEP], the context's, [SEP].
    loaded = LoadedTask(task, (2,), None, None, None, room + 5)
    rows = GraphRows(
        task=tf.constant([0]),
        reading=tf.constant(text_windows.readings([loaded], tokenizer)),
        tokens=None,
        starts=tf.constant([0, 2, 2 + room + 1]),
        has_b=tf.constant([True]),
    )
    windows = text_windows.cut(rows)
    assert windows.b_length.numpy().tolist() == [room, 1]
    # The first token of each window's context; one window more.
    outputs = {
        "start_indexes": tf.fill([3, 1], 4),
        "end_indexes": tf.fill([3, 1], 4),
        "start_logits": tf.constant([[1.0], [2.0], [0.0]]),
        "end_logits": tf.constant([[1.0], [2.0], [0.0]]),
        "null_logits": tf.zeros([3, 2]),
    }
    rules = graph_answers.SpanRules([task], [0])
    spans = rules.choose(rows, windows, outputs)
    assert spans.first.numpy().tolist() == [2 + room]
    assert spans.score.numpy().tolist() == [4.0]
