"""A small exported model: its adapters, its parts, what it may be asked."""

import numpy as np
from conftest import open_bert
from test_joint_answers import LIBRARY

from adapter_bert.answering.trained_task import load_task
from adapter_bert.graph.exported import Row
from adapter_bert.graph.text_model import TextModel

NAMES = ("small", "pair", "score", "squad")


def make_parts(bert, folders):
    """A model, its BERT and its tasks, as `saved_model.export` takes them."""
    bert = open_bert(bert)
    tasks = {
        name: load_task(bert, folder, None) for name, folder in folders.items()
    }
    return TextModel(bert, tasks, batch_size=8), bert, tasks


def mixed_questions():
    """(task, texts) of rows of all tasks, in random order."""
    rows = [
        (name, row if isinstance(row, tuple) else (row,))
        for name in NAMES
        for row in LIBRARY[name][2]
    ]
    return [rows[n] for n in np.random.default_rng(0).permutation(len(rows))]


def as_rows(questions):
    """The (task, texts) of rows as a model takes them."""
    return [
        Row(*(x.encode() for x in (*(*texts, "")[:2], name)))
        for name, texts in questions
    ]


def request(task, text, text_b=b"", choices=()):
    """A row of a request."""
    return Row(text, text_b, task, choices)
