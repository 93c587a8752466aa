"""The folder of an exported model, and what loads it without this project."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT
from test_asking import LIBRARY, PAIRS, TEXTS, assert_equal
from test_text_model import as_answer, as_numbers
from tiny_artifacts import make_artifact

from errors import UserError
from serving import saved_model
from serving.frozen_bert import FrozenBert
from serving.loaded_task import load_task
from serving.predictor import Predictor
from serving.text_model import TextModel
from tasks.restored import restore_task

NAMES = ("small", "pair", "score", "squad")
# Loads a model as anyone does, and once more as old programs do.
LOADER = """
import json, sys
import tensorflow as tf

columns = json.load(sys.stdin)
signature = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
found = signature(**{k: tf.constant(v) for k, v in columns.items()})
new = {name: value.numpy() for name, value in found.items()}
v1 = tf.compat.v1
with v1.Graph().as_default(), v1.Session() as session:
    loaded = v1.saved_model.loader.load(session, ["serve"], sys.argv[1])
    signature = loaded.signature_def["serving_default"]
    old = session.run(
        {k: v.name for k, v in signature.outputs.items()},
        {signature.inputs[k].name: v for k, v in columns.items()},
    )
tell = lambda x: x.decode() if isinstance(x, bytes) else x
rows = [
    [
        {
            name: [tell(x) for x in np_row] if isinstance(np_row, list) else tell(np_row)
            for name, values in found.items()
            for np_row in [values.tolist()[row]]
        }
        for row in range(len(columns["task"]))
    ]
    for found in (new, old)
]
assert not [name for name in sys.modules if name.startswith("serving")]
print(json.dumps(rows))
"""


@pytest.fixture(scope="module")
def folders(tiny_bert, tmp_path_factory):
    place = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(NAMES):
        method, description, _ = LIBRARY[name]
        task = restore_task(description, {}, "test")
        make_artifact(
            place / name, tiny_bert, method, task, description, seed
        )
    return {name: str(place / name) for name in NAMES}


@pytest.fixture(scope="module")
def parts(tiny_bert, folders):
    """A model, its BERT and its tasks."""
    bert = FrozenBert.open(str(tiny_bert))
    tasks = {
        name: load_task(bert, folder, None) for name, folder in folders.items()
    }
    return TextModel(bert, tasks, batch_size=8), bert, tasks


@pytest.fixture(scope="module")
def exported(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    assert saved_model.export(*parts, str(folder)) == str(folder / "1")
    return folder / "1"


@pytest.fixture(scope="module")
def questions():
    """Rows of all tasks, in random order."""
    rows = [(name, row) for name in NAMES for row in LIBRARY[name][2]]
    return [rows[n] for n in np.random.default_rng(0).permutation(len(rows))]


def load_and_ask(python, folder, questions, cwd):
    """What a process without this project answers, loading in both ways."""
    pairs = [((row if isinstance(row, tuple) else (row,)) + ("",))[:2] for _, row in questions]
    columns = {
        "text": [text for text, _ in pairs],
        "text_b": [text_b for _, text_b in pairs],
        "task": [name for name, _ in questions],
    }
    done = subprocess.run(
        [python, "-c", LOADER, str(folder)],
        input=json.dumps(columns),
        capture_output=True,
        text=True,
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
