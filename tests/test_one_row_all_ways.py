"""One row, all ways: whoever answers it, the answer is the task's own.

The task's own answer is computed by its model alone, one row after the other,
with nothing of `serving`.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import random
import shutil
import sys

import beam_program
import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, module_fixture, open_bert, run_command
from ids_folder import FORMS, Folder
from task_files import TINY_CONTEXTS
from test_http_api import LIMITS, Server
from test_joint_answers import (
    CLASSIFICATION,
    PAIR,
    PAIRS,
    SCORE,
    SETS,
    SQUAD,
    TAGS,
    TEXTS,
    assert_equal,
)
from tiny_artifacts import make_artifact, outputs_of

from adapter_bert.answering.answers import from_outputs
from adapter_bert.answering.predictor import Predictor
from adapter_bert.answering.trained_task import load_task
from adapter_bert.data import input_pipeline
from adapter_bert.errors import UserError
from adapter_bert.graph import runtimes, saved_model
from adapter_bert.graph.exported import (
    ExportedModel,
    Row,
    choice_table,
    problem,
)
from adapter_bert.graph.graph_answers import RULES
from adapter_bert.graph.ids_model import INPUTS, IdsModel
from adapter_bert.graph.text_model import TextModel
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.server.live_library import LiveLibrary
from adapter_bert.tasks import kinds
from adapter_bert.tasks.text_task import HeadShape

# Which way exists for which kind. Files of `tflite` and `onnx` are asked rows
# of one window; no tokenizer of theirs makes several.
WAYS = """
                 predict joint mixed graph library served beam ids tflite onnx
classification   yes     yes   yes   yes   yes     yes    yes  yes yes    yes
regression       yes     yes   yes   yes   yes     yes    yes  yes yes    yes
rerank           yes     yes   yes   yes   yes     yes    yes  yes yes    yes
multi-label      yes     yes   yes   yes   yes     yes    yes  yes yes    yes
multiple_choice  yes     yes   yes   yes   yes     yes    yes  yes yes    yes
questions        yes     yes   yes   yes   yes     yes    yes  yes yes    yes
tagging          yes     yes   yes   yes   yes     yes    yes  yes yes    yes
vectors          yes     yes   yes   yes   yes     yes    yes  -   -      -
masked_lm        -       -     -     -     -       -      -    -   -      -
"""
LONG = "the cat sat on the mat . " * 9
ONE = [(text,) for text in (*TEXTS[:4], "", LONG)]
SENTENCES = [
    *ONE[:4],
    ("",),
    ("the cat\u00a0sat " * 40,),
    # Unicode leaves it free.
    ("mat mat\U0001ffff",),
    # Words without tokens, and with more than a window holds.
    (f"a\u3000cat \u200b {'cat,' * 30} sat\tin \u4eac\u4eac .",),
]
QUESTIONS = [(question, context) for context, _, question in TINY_CONTEXTS]
UNIT = {"mean": 50.0, "deviation": 32.0, "low": 5.0, "high": 95.0}
COLUMNS = {"columns": ["text", "one", "two"]}
MEAN = {"name": "vectors", "pooling": "mean", "normalize": True}
FIRST = {"name": "vectors", "pooling": "cls", "normalize": False}
LEAST = dict(zip(SETS["labels"], (0.2, 0.9, 0.4, 0.6)))
WINDOWS = {"window_stride": 7, "pool_windows": "mean"}
OF_MEAN = HeadShape(pooler=False, mean=True).describe()
RERANK = {"name": "rerank", "pairs": True}
FITTED = {"temperature": 0.5, "abstain_below": 0.6}
# Method, task, its settings and rows, by kind.
TASKS = {
    "classification": [
        ("houlsby(size=3)", CLASSIFICATION, {"calibration": FITTED}, ONE),
        ("lora(rank=3)", PAIR, {}, [*PAIRS[:3], (LONG, LONG)]),
        ("houlsby(size=4)", CLASSIFICATION, WINDOWS, ONE),
        ("houlsby(size=4)", {**CLASSIFICATION, **OF_MEAN}, {}, ONE),
        (
            "lora(rank=2)",
            PAIR,
            {"window_stride": 3, "pool_windows": "max"},
            [*PAIRS[:2], ("a cat", LONG), (LONG, LONG), (LONG, "")],
        ),
    ],
    "regression": [
        ("houlsby(size=4)", {**SCORE, "label_unit": UNIT}, {}, ONE),
        ("lora(rank=2)", SCORE, {}, ONE),
        ("ia3", {**SCORE, "label_unit": UNIT}, WINDOWS, ONE),
    ],
    "multi-label": [
        ("prefix(length=3, inner_size=8)", SETS, {}, ONE),
        (
            "ia3",
            SETS,
            {**WINDOWS, "pool_windows": "first", "label_thresholds": LEAST},
            ONE,
        ),
    ],
    "rerank": [
        ("lora(rank=3)", RERANK, {}, [*PAIRS[:3], ("", LONG)]),
        ("houlsby(size=2)", {**RERANK, "activation": "linear"}, {}, PAIRS[:3]),
    ],
    "multiple_choice": [
        (
            "lora(rank=3)",
            {"name": "custom", "choices": 2, "pairs": False},
            COLUMNS,
            [("a cat", "sat", "a dog ran"), (LONG, "a", LONG), ("", "a", "on")],
        ),
        (
            "lora(rank=2)",
            {"name": "swag", "choices": 4},
            {},
            [
                ("a cat", "it", "sat", "ran", "a dog .", LONG),
                (LONG, "it", "a", "cat", "ran", "on"),
            ],
        ),
        (
            "houlsby(size=4)",
            {"name": "copa", "choices": 2},
            {},
            [("it is slow", "cause", "a", LONG), (LONG, "effect", "a", "cat")],
        ),
    ],
    "questions": [
        ("lora(rank=4)", SQUAD, {}, [*QUESTIONS, ("is a cat ?", "")])
    ],
    "tagging": [
        ("lora(rank=4)", TAGS, {}, SENTENCES),
        (
            "houlsby(size=3)",
            {
                "name": "tagging",
                "tags": ["I-X", "O", "B-X"],
                "punctuation_apart": True,
            },
            {},
            SENTENCES,
        ),
    ],
    "vectors": [
        ("houlsby(size=4)", MEAN, {}, ONE),
        ("lora(rank=2)", FIRST, {}, ONE),
    ],
    "masked_lm": [("ia3", {"name": "masked_lm"}, {}, ONE)],
}
# Adapters are called by their kind and a number.
ADAPTERS = {
    f"{kind}{number}": one
    for kind, some in TASKS.items()
    for number, one in enumerate(some)
}
ANSWERING = [name for name in ADAPTERS if name != "masked_lm0"]


def cells(value):
    """A (way, kind) of each cell of `WAYS` with a value, with marks."""
    header, *lines = WAYS.strip().splitlines()
    for line in lines:
        kind, *values = line.split()
        for way, cell in zip(header.split(), values):
            if cell == value:
                yield pytest.param(
                    way, kind, marks=marks(way, kind), id=f"{way}-{kind}"
                )


def marks(way, kind):
    """The environment that a way needs, and the TensorFlow that tests it."""
    needs = {"beam": beam_program.MARKS, "onnx": FORMS[1].marks}
    both = way == "predict" or (way, kind) in (
        ("tflite", "classification"),
        ("tflite", "questions"),
    )
    quick = way in ("predict", "joint", "mixed")
    return [
        *needs.get(way, ()),
        *[pytest.mark.newer_stack] * (not both),
        *[pytest.mark.gate] * (not quick),
    ]


class World:
    """All that answers, made when it is first asked."""

    def __init__(self, base, place):
        self.base, self.place = base, place
        self.bert = open_bert(base)
        self.made = {}
        for seed, (name, one) in enumerate(ADAPTERS.items()):
            method, task, settings, _ = one
            more = {"task_settings": settings} if settings else {}
            folder = place / "adapters" / name
            self.made[name] = make_artifact(
                folder, base, method, None, task, seed, **more
            )

    def folder(self, name):
        return str(self.place / "adapters" / name)

    @functools.cached_property
    def tasks(self):
        return {n: load_task(self.bert, self.folder(n), None) for n in ADAPTERS}

    def features(self, name, rows):
        """The task, its rows and their features."""
        loaded = self.tasks[name]
        made = loaded.task.make_rows(rows)
        features = loaded.task.featurize(
            made, loaded.tokenizer, loaded.max_seq_length
        )
        return loaded.task, made, features

    @functools.cache  # noqa: B019
    def expected(self, name):
        """The task's own answers."""
        task, rows, features = self.features(name, ADAPTERS[name][3])
        alone = features.unlabelled()
        texts = [
            (alone.tokens[a:b].tolist(), alone.segments[a:b].tolist())
            for a, b in zip(alone.starts, alone.starts[1:])
        ]
        outputs = outputs_of(self.base, *self.made[name], task, texts)
        joined = {
            key: input_pipeline.join_outputs([x[key][None] for x in outputs])
            for key in outputs[0]
        }
        return task.answer(rows, task.decode(rows, features, joined))

    def short(self, name):
        """The numbers of rows that one window holds."""
        return [
            number
            for number, row in enumerate(ADAPTERS[name][3])
            if is_short(self.features(name, [row])[2])
        ]

    @functools.cached_property
    def exported(self):
        """The folder of a model of all tasks that answer."""
        tasks = {name: self.tasks[name] for name in ANSWERING}
        model = TextModel(self.bert, tasks, batch_size=5)
        folder = str(self.place / "exported")
        saved_model.export(model, self.bert, tasks, folder)
        return folder

    @functools.cached_property
    def model(self):
        return ExportedModel(self.exported)

    @functools.cache  # noqa: B019
    def predictor(self, *names):
        predictor = Predictor(self.bert, batch_size=5)
        for name in names:
            predictor.add(self.folder(name), name)
        return predictor

    @functools.cached_property
    def live(self):
        """A library of one adapter of each kind, as a server answers by it."""
        shelf = AdapterLibrary(str(self.place / "shelf"), create=True)
        for kind in TASKS:
            shelf.add(self.folder(f"{kind}0"), f"{kind}0")
        return LiveLibrary(shelf, Predictor(self.bert, batch_size=5))

    @functools.cached_property
    def mixed(self):
        """Answers of one call that has all rows in random order."""
        questions = shuffled()
        predictor = self.predictor(*ANSWERING)
        answers = predictor.ask([(name, row) for name, _, row in questions])
        return by_name(questions, answers)

    @functools.cached_property
    def graph(self):
        """The same of an exported model."""
        questions = shuffled()
        rows = [as_row(name, row) for name, _, row in questions]
        assert not any(problem(self.model.tasks, row) for row in rows)
        outputs = self.model.answers(rows)
        return by_name(questions, self.answers(questions, outputs))

    def answers(self, questions, outputs):
        """Answers of an exported model's outputs."""
        return [
            from_outputs(self.model.tasks[name], one)
            for (name, *_), one in zip(questions, outputs)
        ]

    @functools.cached_property
    def beam(self):
        """The same of a job of Beam."""
        questions, path = shuffled(), self.place / "rows.jsonl"
        columns = {n: x["columns"] for n, x in self.model.tasks.items()}
        rows = [
            {"id": id, "task": name, **dict(zip(columns[name], texts))}
            for id, (name, _, texts) in enumerate(questions)
        ]
        path.write_text("\n".join(map(json.dumps, rows)))
        output = self.place / "answers"
        done = beam_program.run(
            model=self.exported, input=path, output=output, batch_size=7
        )
        assert done.returncode == 0, done.stderr
        answers, _ = map(beam_program.read, beam_program.shards(output))
        answers.sort(key=lambda one: one["row"]["id"])
        assert [one.pop("row") for one in answers] == rows
        assert [one.pop("task") for one in answers] == [
            name for name, *_ in questions
        ]
        return by_name(questions, answers)


def is_short(features):
    return len(features) == 1 and not getattr(features, "cut_rows", 0)


def shuffled():
    """(Name, number of the row, row) of all rows, in random order."""
    questions = [
        (name, number, row)
        for name in ANSWERING
        for number, row in enumerate(ADAPTERS[name][3])
    ]
    random.Random(0).shuffle(questions)
    return questions


def by_name(questions, answers):
    """Each task's answers in the order of its rows."""
    numbered = {
        (name, number): answer
        for (name, number, _), answer in zip(questions, answers)
    }
    return {
        name: [numbered[name, n] for n in range(len(ADAPTERS[name][3]))]
        for name in ANSWERING
    }


def split_row(name, texts):
    """A row's first text, its second text or "", and its choices."""
    texts = list(texts)
    first = len(texts) - ADAPTERS[name][1].get("choices", 0)
    text, text_b = [*texts[:first], ""][:2]
    return text, text_b, texts[first:]


def as_row(name, texts):
    """A row as an exported model takes it."""
    text, text_b, choices = split_row(name, texts)
    encoded = tuple(choice.encode() for choice in choices)
    return Row(text.encode(), text_b.encode(), name.encode(), encoded)


def predict(world, name):
    return world.predictor(name)(name, list(ADAPTERS[name][3]))


def joint(world, name):
    """All tasks that read as many texts are asked at once."""
    rows = ADAPTERS[name][3]
    names = [n for n in ANSWERING if len(ADAPTERS[n][3][0]) == len(rows[0])]
    names += [name] * (name not in names)
    answers = world.predictor(*names)(names, list(rows))
    return [answer[name] for answer in answers]


def mixed(world, name):
    if name not in ANSWERING:
        world.predictor(name)
    return world.mixed[name]


def graph(world, name):
    if name not in ANSWERING:
        TextModel(world.bert, {name: world.tasks[name]}, batch_size=5)
    return world.graph[name]


def beam(world, name):
    if name not in ANSWERING:
        # A job needs an exported model.
        graph(world, name)
    return world.beam[name]


def library(world, name):
    return over_http(world, name, shelf=world.live)


def served(world, name):
    return over_http(world, name, model=world.model)


def over_http(world, name, **models):
    limits = dataclasses.replace(
        LIMITS, timeout=60.0, max_body_bytes=9999, max_text_bytes=9999
    )
    answers = []
    with contextlib.closing(Server(limits, **models)) as server:
        for texts in ADAPTERS[name][3]:
            text, text_b, choices = split_row(name, texts)
            row = {"task": name, "text": text, "text_b": text_b}
            row.update({"choices": choices} if choices else {})
            code, content = server.ask(
                {"instances": [row]}, path="/v1/models/tiny:answer"
            )
            if code != 200:
                raise UserError(content["error"])
            [answer] = content["answers"]
            assert answer.pop("task") == name
            assert answer.pop("adapter") == world.tasks[name].sha256
            answers.append(answer)
    return answers


def ids(world, name):
    """Tokens are the library's, and so are windows."""
    model = IdsModel(world.bert, world.tasks[name])
    task, rows, features = world.features(name, ADAPTERS[name][3])
    batch = input_pipeline.make_batch(features, np.arange(len(features)), None)
    outputs = model.compute(*(tf.constant(batch[key]) for key in INPUTS))
    outputs = {key: value.numpy() for key, value in outputs.items()}
    return decoded(world, task, rows, features, outputs)


def tflite(world, name):
    return of_file(world, name, runtimes.TFLITE)


def onnx(world, name):
    return of_file(world, name, runtimes.ONNX)


def of_file(world, name, form):
    """Answers to rows of one window, which the file's tokenizer reads."""
    place = world.place / f"{name}-{form}"
    runtimes.export(world.bert, name, world.tasks[name], str(place), form)
    texts = [ADAPTERS[name][3][number] for number in world.short(name)]
    count = ADAPTERS[name][1].get("choices", 0)
    rows = [
        [(row[0], choice) for choice in row[-count:]]
        if count
        else row[0]
        if len(row) == 1
        else row
        for row in texts
    ]
    folder = Folder(place, form)
    outputs = folder.ask(rows)
    task, *read = world.features(name, texts)
    assert set(folder.described["outputs"]) == set(outputs)
    described = {"name": task.name, **task.describe()}
    assert folder.described["task"] == json.loads(json.dumps(described))
    assert folder.described["settings"] == task.settings
    return decoded(world, task, *read, outputs)


def decoded(world, task, rows, features, outputs):
    """The task's answers of what a model of token ids gives."""
    if "value" in outputs:
        values = outputs["value"].astype(np.float64)
        if task.is_sigmoid:
            values = np.log(values) - np.log1p(-values)
        outputs = {"scores": (values - task.unit.mean) / task.unit.deviation}
    elif "scores" in outputs:
        scores = outputs["scores"].astype(np.float64)
        logits = np.log(scores)
        if getattr(task, "has_sets", False):
            logits -= np.log1p(-scores)
        if task.chooses_one:
            logits *= task.calibration.temperature
        if isinstance(features, input_pipeline.Choices):
            logits = logits.reshape(-1, 1)
        outputs = {"logits": logits.astype(np.float32)}
    else:
        head = task.build_head(world.bert.config, lambda *_: None)
        outputs = {k: x.numpy() for k, x in head.select(outputs).items()}
    return task.answer(rows, task.decode(rows, features, outputs))


@module_fixture
def world(tiny_bert, tmp_path_factory):
    return World(tiny_bert, tmp_path_factory.mktemp("world"))


def names_of(way, kind):
    """The adapters of a kind that a way is tested with."""
    # Others take seconds for each.
    is_quick = way in ("predict", "joint", "mixed", "graph", "beam")
    return [f"{kind}{n}" for n in range(len(TASKS[kind]) if is_quick else 1)]


@pytest.mark.parametrize("way, kind", [*cells("yes")])
def test_the_answer_is_the_task_s_own(world, way, kind):
    for name in names_of(way, kind):
        expected = world.expected(name)
        if way in ("tflite", "onnx"):
            expected = [expected[number] for number in world.short(name)]
        answers = globals()[way](world, name)
        assert len(answers) == len(expected) > 1
        for answer, one in zip(answers, expected):
            assert list(answer) == list(one)
            assert_equal(answer, one)
    # Rows differ, so that equal ones would be noticed.
    assert any(one != expected[0] for one in expected)


@pytest.mark.parametrize("way, kind", [*cells("-")])
def test_a_way_that_does_not_exist_is_refused(world, way, kind):
    with pytest.raises(UserError, match="answers no texts|cannot be|unknown t"):
        globals()[way](world, f"{kind}0")


@pytest.mark.newer_stack
def test_the_table_has_every_kind():
    named = {"multiple_choice": kinds.CHOICE}
    table = {
        way: {named.get(x.values[1], x.values[1]) for x in some}
        for way, some in itertools.groupby(
            sorted(cells("yes"), key=str), lambda x: x.values[0]
        )
    }
    assert table["graph"] == set(RULES)
    assert table["ids"] == {n for n, x in kinds.KINDS.items() if x.runtime}


@pytest.mark.parametrize(
    "python",
    [
        pytest.param(sys.executable, marks=marks("graph", ""), id="this"),
        pytest.param(os.environ.get("OTHER_PYTHON"), id="other"),
    ],
)
def test_it_loads_without_this_project(python, world, tmp_path):
    """As TensorFlow 2 and 1 load it; `.ci/run` has the other one do so."""
    if not python:
        pytest.skip("OTHER_PYTHON names no interpreter with another TensorFlow")
    questions = shuffled()
    rows = [as_row(name, texts) for name, _, texts in questions]
    columns = {
        name: [getattr(row, name).decode() for row in rows]
        for name in ("text", "text_b", "task")
    }
    columns["choices"] = [
        [cell.decode() for cell in row] for row in choice_table(rows).tolist()
    ]
    shutil.copy(ROOT / "tests" / "load_exported.py", tmp_path)
    done = run_command(
        ROOT / python,
        "load_exported.py",
        f"{world.exported}/1",
        input=json.dumps(columns),
        check=True,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    for outputs in json.loads(done.stdout):
        answers = by_name(questions, world.answers(questions, outputs))
        for name in ANSWERING:
            for answer, one in zip(answers[name], world.expected(name)):
                assert_equal(answer, one)
