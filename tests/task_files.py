"""Files of the tasks, as their tests need them."""

import json

import hypothesis
import numpy as np
import pytest

from adapter_bert.data.tables import Rows
from adapter_bert.errors import UserError
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.kinds import TASKS
from adapter_bert.tasks.multiple_choice import MultipleChoice
from adapter_bert.tasks.text_regression import TextRegression
from adapter_bert.tasks.xnli import Xnli

# conftest.py imports this before it loads the profile of all tests.
PROPERTY = hypothesis.settings(
    max_examples=100, derandomize=True, deadline=None
)
CUSTOM = custom_task()
CUSTOM_PAIR = custom_task(text_b_column="other text")
CUSTOM_SCORES = custom_task(regression=True)
# The tasks of texts and pairs with a training set and files of one layout.
ALL_TASKS = {
    **{
        name: task
        for name, task in TASKS.items()
        if not (task.trained_as or isinstance(task, (MultipleChoice, Xnli)))
    },
    "custom": CUSTOM,
    "custom-pair": CUSTOM_PAIR,
    "custom-scores": CUSTOM_SCORES,
}
EVERY_TASK = pytest.mark.parametrize("task", ALL_TASKS.values(), ids=ALL_TASKS)
CLASSIFICATIONS = {
    name: task
    for name, task in ALL_TASKS.items()
    if not isinstance(task, TextRegression)
}
EVERY_KIND = pytest.mark.parametrize("kind", ["train", "dev", "test"])


def split_of(task, kind):
    """The task's first split of a kind."""
    splits = {"dev": task.dev_splits, "test": task.test_splits}
    return splits[kind][0][1] if kind in splits else kind


def labels_of(task):
    """Labels that a file of the task may hold."""
    if isinstance(task, TextRegression):
        return ("0.5", "2.75", "5")
    return task.labels or ("bad", "good", "no idea")


def write_split(folder, task, kind, rows):
    """Writes (text_a, text_b, label) rows where the task looks for them."""
    layout = task.unlabelled if kind == "test" else task.labelled
    columns = [layout.text_a, layout.text_b, layout.label]
    names = [column for column in columns if isinstance(column, str)]
    places = [
        names.index(column) + 1 if isinstance(column, str) else column
        for column in columns
    ]
    width = 1 + max(place for place in places if place is not None)

    def line(values, rest):
        cells = [rest] * width
        for place, value in zip(places, values):
            if place is not None:
                cells[place] = value
        return "\t".join(cells) + "\n"

    header = line(columns if names else ["header"] * 3, "another column")
    (folder / f"{split_of(task, kind)}.tsv").write_text(
        (header if layout.header else "")
        + "".join(line(row, f"rest {i}") for i, row in enumerate(rows)),
        encoding="utf-8",
    )
    return int(layout.header)


def write_task(folder, task, count=6):
    """Writes all splits, and returns the completed task and the rows."""
    labels = labels_of(task)
    rows = [
        (f'text "{i}', f" other '{i}", labels[i % len(labels)])
        for i in range(count)
    ]
    for kind in ("train", "dev", "test"):
        write_split(folder, task, kind, rows)
    return complete(task, folder), rows


def complete(task, folder):
    """The task with what it takes from its data."""
    return task.read(str(folder), ())[0]


def read(task, folder, split):
    """The rows of one split."""
    return task.read(str(folder), [split])[1][split]


def listed(rows):
    """[(line from 0, [each column that there is])] of a table's rows."""
    columns = (rows.text_a, rows.text_b, rows.label, rows.row_id)
    columns = [column for column in columns if column is not None]
    assert all(len(column) == len(rows) for column in columns)
    return list(zip(rows.lines.tolist(), map(list, zip(*columns))))


def make_rows(*texts, **columns):
    """Rows of texts that no file holds."""
    return Rows("a.tsv", np.arange(len(texts)), list(texts), **columns)


def put(path, content):
    """Writes a text, or bytes, and returns the path."""
    is_text = isinstance(content, str)
    path.write_bytes(content.encode() if is_text else content)
    return path


def refusal(function, *arguments):
    """The text of the error that a call ends in."""
    with pytest.raises(UserError) as raised:
        function(*arguments)
    return str(raised.value)


TINY_CONTEXTS = (
    ("the cat sat on the mat .", "mat", "is the cat on ?"),
    ("a slow dog ran out !", "dog", "not a cat ?"),
    (
        "the film was bad , the cat sat in the film",
        "bad",
        "was the film good ?",
    ),
    ("a fast cat sat on a slow dog .", "slow dog", "the cat sat on ?"),
)


def squad_file(path, questions):
    """Writes (id, context, question, answer or None) in SQuAD's layout."""
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": name,
                    "question": question,
                    "answers": [
                        {"text": text, "answer_start": context.index(text)}
                    ]
                    if text
                    else [],
                    "is_impossible": not text,
                }
            ],
        }
        for name, context, question, text in questions
    ]
    article = {"title": "tiny", "paragraphs": paragraphs}
    path.write_text(json.dumps({"version": "v2.0", "data": [article]}))
    return path


# Words with tags; each is of a sentence.
TAGGED = (
    "the O|cat B-ANIMAL|sat O|on O|the O|mat B-THING|. O",
    "a O|slow B-ANIMAL|dog I-ANIMAL|ran O|out O|! O",
    "the O|film B-art-work|was O|not O|bad O|, O|fast O",
    "is O|dogs B-ANIMAL|cat B-ANIMAL|in O|the O|film B-art-work|? O",
)


def conll(sentences, separator=" "):
    """Sentences as the text of a file, with the columns word and tag."""
    return "\n".join(
        "".join(
            word.replace(" ", separator) + "\n" for word in sentence.split("|")
        )
        for sentence in sentences
    )
