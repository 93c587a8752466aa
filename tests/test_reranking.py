"""Rerankers: rows, losses, scores, answers in every form."""

import contextlib
import dataclasses
import json
import pathlib
from functools import partial
from types import SimpleNamespace

import cross_encoders
import numpy as np
import pandas
import pytest
import refusals
import tensorflow as tf
from conftest import (
    SENTENCES,
    load_predictor,
    module_fixture,
    read_adapter_config,
    read_json,
    read_json_lines,
    read_lines,
    run_command,
    run_process,
    write_json,
    write_json_lines,
)
from numpy.testing import assert_allclose
from safetensors.numpy import load_file, save_file
from scipy.special import expit
from test_convert_checkpoint import convert  # noqa: F401
from test_http_api import LIMITS, Server
from test_sentence_transformers import HAS_LIBRARY, PEER, run_library
from tiny_artifacts import make_artifact

import adapter_bert as ab
from adapter_bert.checkpoints import sentence_transformers, sources
from adapter_bert.data.divisions import HeldOut
from adapter_bert.data.input_pipeline import make_batch
from adapter_bert.data.memory_rows import MemoryRows
from adapter_bert.data.tables import SplitFiles
from adapter_bert.exchange import cross_encoder
from adapter_bert.graph.exported import ExportedModel
from adapter_bert.server.live_library import LiveLibrary
from adapter_bert.server.shelf import ExportedShelf
from adapter_bert.tasks import kinds, reranking
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.reranking import LOSSES, SIGMOID, TORCH, Lists
from adapter_bert.tasks.retrieval import rerank_scores

# Lists of several lengths; a good sentence is right, whatever the query.
LISTS = [
    {
        "query": word,
        "documents": [text for text, _ in SENTENCES[place:]],
        "labels": [int(label == "good") for _, label in SENTENCES[place:]],
    }
    for place, word in enumerate(("cat", "dog", "film", "mat"))
]
PAIRS = [
    {"query": one["query"], "document": document, "label": label}
    for one in LISTS
    for document, label in zip(one["documents"], one["labels"])
]


def task_of(rank_loss=kinds.BCE, **settings):
    settings = {"rank_loss": rank_loss, **settings}
    return restore_task({"name": "rerank", "pairs": True}, settings, "a test")


def rows_of(task, rows, split="dev"):
    files = SplitFiles(**{split: MemoryRows(rows, "rows")})
    task = dataclasses.replace(task, split_files=files)
    return task.read("", [split])[1][split]


def test_lists_and_pairs_are_the_same_rows(tmp_path):
    """In memory and in a file."""
    task, path = task_of(), tmp_path / "rows.jsonl"
    lists, pairs = rows_of(task, LISTS), rows_of(task, PAIRS)
    write_json_lines(path, LISTS)
    named = dataclasses.replace(task, split_files=SplitFiles(dev=str(path)))
    of_file = named.read("", ["dev"])[1]["dev"]
    for name in ("text_a", "text_b", "label"):
        expected = getattr(pairs, name)
        assert getattr(lists, name) == getattr(of_file, name) == expected
    assert lists.where(len(LISTS[0]["documents"])) == "rows:2"
    # Columns are named as flags name them; tuples are in their order.
    named = task_of(columns=["q", "d"], label_column="l")
    tuples = [tuple(one.values()) for one in LISTS]
    assert rows_of(named, tuples).label == lists.label
    assert rows_of(task_of(), LISTS, "test").label is None


def brute(name, scores, labels):
    """The losses of one list, pair by pair."""
    pairs = [
        (i, j) for i in range(len(scores)) for j in range(len(scores)) if i != j
    ]
    if name == kinds.RANKNET:
        losses = [
            np.log(1 + np.exp(scores[j] - scores[i]))
            for i, j in pairs
            if labels[i] > labels[j]
        ]
    elif name == kinds.MARGIN_MSE:
        losses = [
            (scores[i] - scores[j] - labels[i] + labels[j]) ** 2
            for i, j in pairs
        ]
    else:
        shares = np.exp(labels) / np.exp(labels).sum()
        odds = np.exp(scores) / np.exp(scores).sum()
        return -np.sum(shares * np.log(odds))
    return np.mean(losses) if losses else 0.0


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_lists(name):
    assert {kinds.BCE, *LOSSES} == set(kinds.RANK_LOSSES)
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(2, 4, 5)).astype(np.float32)
    labels[1] = 1
    is_there = np.arange(5) < np.array([[5], [4], [1], [2]])
    losses = LOSSES[name](*map(tf.constant, (scores, labels, is_there)))
    expected = [
        brute(name, x[here].astype(float), y[here].astype(float))
        for x, y, here in zip(scores, labels, is_there)
    ]
    assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)


def test_a_batch_has_all_documents_of_its_queries(tokenizer):
    task = task_of(kinds.LISTNET)
    rows = rows_of(task, LISTS, "train")
    features = task.featurize(rows, tokenizer, 24)
    assert isinstance(features, Lists) and len(features) == len(LISTS)
    batch = make_batch(features, np.array([3, 1]), None)
    assert batch["input_ids"].shape[:2] == (2, 8)
    alone = features.unlabelled()
    assert len(alone) == len(PAIRS)
    for row, query in enumerate((3, 1)):
        count = len(LISTS[query]["labels"])
        assert batch["is_there"][row].sum() == count
        first = features.firsts[query]
        ids = make_batch(alone, np.arange(first, first + count), None)
        length = ids["input_ids"].shape[1]
        assert np.array_equal(
            batch["input_ids"][row, :count, :length], ids["input_ids"]
        )
        assert (
            batch["label_scores"][row, :count].tolist()
            == (LISTS[query]["labels"])
        )


def test_scores_of_sentence_transformers():
    """As `CrossEncoderRerankingEvaluator` of 5.7.0 gave them."""
    labels = [[1, 0, 0], [0, 1, 0, 1], [0, 0], [0] * 11 + [1], [1, 0, 0, 0]]
    scores = [
        [0.5, 0.5, 0.25],
        [0.9, 0.8, 0.1, 0.2],
        [0.3, 0.1],
        list(range(12, 0, -1)),
        [0.5, 0.5, 0.5, 0.5],
    ]
    computed = rerank_scores(
        list(map(np.array, labels)),
        [np.array(one, np.float32) for one in scores],
    )
    recorded = {
        "ndcg_at_10": 0.4298585716628424,
        "mrr_at_10": 0.25,
        "map": 0.2833333333333333,
    }
    assert recorded == pytest.approx(computed, abs=1e-6)
    # Gains of grades are the grades; a single document needs no order.
    graded = rerank_scores([np.array([0, 3.0, 1])], [np.array([0.1, 0.2, 0.3])])
    best = 3 + 1 / np.log2(3)
    assert graded["ndcg_at_10"] == pytest.approx((1 + 3 / np.log2(3)) / best)
    alone = rerank_scores([np.ones(1)], [np.zeros(1)])
    assert set(alone.values()) == {1.0}


@refusals.table(
    {
        "a query without documents": (
            [LISTS[0], {**LISTS[1], "documents": [], "labels": []}],
            "rows:2",
            "'documents': 0",
            "at least one",
        ),
        "a list without labels": (
            [{"query": "cat", "documents": ["a dog"]}],
            "rows:1",
            "'label'",
        ),
        "more labels than documents": (
            [{**LISTS[0], "labels": [1] * 9}],
            "rows:1",
            "'documents': 8",
            "'labels': 9",
        ),
        "a score that is no number": (
            [{**LISTS[0], "labels": [*LISTS[0]["labels"][:-1], "good"]}],
            "rows:1",
            "'good'",
            "expected a number",
        ),
        "no finite score": (
            [{**PAIRS[0], "label": "nan"}],
            "rows:1",
            "'nan'",
            "expected a number",
        ),
        "a query in two places": (
            [LISTS[0], LISTS[1], LISTS[0]],
            "rows:3",
            "'cat'",
            "line 1",
            "together",
        ),
    }
)
def test_rows_that_are_refused(call, parts):
    refusals.check(lambda: rows_of(task_of(), call), *parts)
    refusals.check(
        lambda: rows_of(task_of(kinds.LISTNET), call, "train"), *parts
    )


def learn(rank_loss, rows):
    task = task_of(rank_loss)
    return task.learn(rows_of(task, rows, "train"))


GRADED = [{**row, "label": row["label"] * 3} for row in PAIRS]
ALIKE = [{**row, "label": 1} for row in PAIRS]
ALONE = [{**row, "query": str(n)} for n, row in enumerate(PAIRS)]


@refusals.table(
    {
        "grades": (
            lambda: learn(kinds.BCE, GRADED),
            "rows:1: the label is 3",
            "from 0 to 1",
            "listnet",
        ),
        "one label": (
            lambda: learn(kinds.LISTNET, ALIKE),
            "every label of 26 rows is 1",
        ),
        "lists of one": (
            lambda: learn(kinds.RANKNET, ALONE),
            "rows: each query has one document",
            "--rank_loss=bce",
        ),
        "another activation": (
            lambda: restore_task(
                {"name": "rerank", "activation": "tanh"}, {}, "a.json"
            ),
            "a.json: task.activation is 'tanh'",
            "sigmoid or linear",
        ),
        "another loss": (
            lambda: task_of("hinge"),
            "task_settings.rank_loss is 'hinge'",
            "listnet",
        ),
        "windows": (
            lambda: task_of(window_stride=4),
            "a test: window_stride is for",
            "rerank",
        ),
        "another task": (
            lambda: restore_task({"name": "rerank"}, {}, "x").restore(
                {"name": "custom", "regression": True}, "a.json"
            ),
            "a.json was trained on the task custom, not on rerank",
        ),
    }
)
def test_what_is_refused(call, parts):
    refusals.check(call, *parts)


def test_queries_of_two_places_are_learned_one_by_one():
    """A loss of pairs needs no lists."""
    rows = rows_of(task_of(), [*LISTS, *LISTS], "train")
    assert task_of().learn(rows).rank_loss == kinds.BCE


@pytest.mark.parametrize(
    "loss, activation",
    [(None, "linear"), (kinds.BCE, "sigmoid"), (kinds.LISTNET, "linear")],
)
def test_a_loss_that_is_named_gives_the_activation(loss, activation):
    """Else an adapter that is trained further keeps its own."""
    task = dataclasses.replace(task_of(kinds.RANKNET), activation=None)
    task = task.with_loss(loss) if loss else task
    about = {"activation_fn": TORCH[SIGMOID]}
    opened = SimpleNamespace(head={"sentence_transformers": about}, path="b")
    assert task.fit_base(opened).scored_by == (loss and activation or SIGMOID)
    recorded = {"name": "rerank", "pairs": True, "activation": "linear"}
    assert task.restore(recorded, "a.json").scored_by == activation


def test_the_first_pairs_have_all_documents_of_their_queries():
    task = task_of()
    rows = rows_of(task, LISTS, "dev")
    first = task.first(rows, 1)
    assert set(first.text_a) == {rows.text_a[0]}
    assert len(first) == rows.text_a.count(rows.text_a[0]) > 2


def test_a_query_is_held_out_whole():
    task = dataclasses.replace(
        task_of(kinds.LISTNET),
        held_out=HeldOut(0.5, 1),
        split_files=SplitFiles(MemoryRows(LISTS, "rows")),
    )
    _, rows = task.read("", ["train", "dev"])
    queries = [set(rows[split].text_a) for split in ("train", "dev")]
    assert all(queries) and not queries[0] & queries[1]
    assert sum(map(len, rows.values())) == len(PAIRS)


@refusals.table(
    {
        "labels of another kind": (
            {"task_name": "rerank", "regression": True},
            "--regression",
            "custom",
        ),
        "one column for two": (
            {"task_name": "rerank", "label_column": "query"},
            "--text_a_column",
            "--label_column",
            "'query'",
        ),
        "another task": (
            {"task_name": "mrpc", "rank_loss": "bce"},
            "--rank_loss",
            "mrpc",
        ),
        "weights": (
            {"task_name": "rerank", "class_weights": "balanced"},
            "--class_weights",
            "rerank",
        ),
        "calibration": (
            {"task_name": "rerank", "calibrate": True, "do_eval": True},
            "--calibrate",
            "rerank",
        ),
        "windows": (
            {"task_name": "rerank", "window_stride": 4},
            "--window_stride",
            "rerank",
        ),
        "several tasks": (
            {"task_name": "mrpc,rerank"},
            "unknown task 'rerank'",
            "or, alone, rerank",
        ),
    }
)
def test_flags_that_do_not_fit(call, parts, classify, tiny_flags):
    refusals.check(lambda: classify(**{**tiny_flags, **call}), *parts)


@module_fixture
def trained(tiny_bert, tmp_path_factory):
    """A run in Python, from lists in memory."""
    return ab.train(
        ab.load_bert(tiny_bert),
        LISTS,
        LISTS,
        PAIRS,
        task_name="rerank",
        rank_loss="ranknet",
        max_seq_length=24,
        train_batch_size=2,
        num_train_epochs=50,
        learning_rate=1e-2,
        adapter_size=4,
        cpu_lanes=1,
        output_dir=tmp_path_factory.mktemp("reranker") / "out",
    )


@pytest.mark.gate
@pytest.mark.newer_stack
def test_one_reranker_in_python_at_the_command_line_and_over_http(
    trained, tiny_bert, tiny_adapters, tmp_path, monkeypatch
):
    assert trained.scores["ndcg_at_10"] > 0.99 and trained.scores["map"] > 0.99
    folder, bert = pathlib.Path(trained.output_dir), ab.load_bert(tiny_bert)
    assert "eval_mrr_at_10" in read_json(folder / "eval_results.json")
    config = read_adapter_config(folder / "adapter")
    assert config["task"]["activation"] == "linear"
    assert config["task_settings"]["rank_loss"] == "ranknet"
    monkeypatch.setattr(reranking, "LISTS_AT_ONCE", 2)
    again = ab.evaluate(bert, trained, LISTS)
    assert again == pytest.approx(trained.scores)
    lines = read_lines(folder / "test_predictions.tsv")
    assert lines[0] == "id\tscore" and len(lines) == 1 + len(PAIRS)
    scores = [float(line.split("\t")[1]) for line in lines[1:]]
    # Python.
    [query, texts, labels] = LISTS[0].values()
    found = ab.rerank(bert, query, texts, adapter=trained, top_n=4)
    assert [one.document for one in found] == [
        texts[one.index] for one in found
    ]
    assert {labels[one.index] for one in found} == {1}
    best = [scores[one.index] for one in found]
    assert best == sorted(scores[: len(texts)], reverse=True)[:4]
    assert [one.score for one in found] == pytest.approx(best, rel=1e-4)
    # The command line, of a file of pairs.
    pairs, answers = tmp_path / "pairs.jsonl", tmp_path / "answers.jsonl"
    write_json_lines(pairs, PAIRS)
    words = [f"--adapter={trained.adapter}", f"--init_checkpoint={tiny_bert}"]
    words += [f"--input={pairs}", f"--output={answers}"]
    run_process(*words, program="predict")
    told = [one["score"] for one in read_json_lines(answers)]
    assert told == pytest.approx(scores, rel=1e-4)
    # HTTP, from a library and from an exported model, next to other tasks.
    shelf = ab.Library(tmp_path / "shelf")
    shelf.add(trained.adapter, "best")
    shelf.add(next(iter(tiny_adapters.values())), "other")
    live = LiveLibrary(shelf, load_predictor(tiny_bert, {}))
    place = ab.export(bert, shelf, tmp_path / "exported")
    exported = ExportedShelf(ExportedModel(str(pathlib.Path(place).parent)))
    body = {"query": query, "documents": texts, "top_n": 4}
    for served in (live, exported):
        waiting = LIMITS.batching._replace(waiting_rows=9)
        limits = dataclasses.replace(
            LIMITS, timeout=60.0, max_rows=9, batching=waiting
        )
        with contextlib.closing(Server(limits, shelf=served)) as server:
            path = "/v1/models/tiny:rerank"
            status, content = server.ask(body, path=path)
            assert status == 200 and content["task"] == "best"
            results = content["results"]
            assert [one["index"] for one in results] == [x.index for x in found]
            assert [one["score"] for one in results] == pytest.approx(
                best, rel=1e-4
            )
            for change, (code, *parts) in WRONG:
                status, content = server.ask({**body, **change}, path=path)
                assert status == code
                for part in parts:
                    assert part in content["error"]
            assert server.ask(b"{}", path=path)[0] == 400


WRONG = [
    ({"documents": []}, (400, "documents", "at least one")),
    ({"documents": "a text"}, (400, "documents", "at least one")),
    ({"documents": ["a", 5]}, (400, "document 2", "no text")),
    ({"documents": ["a"] * 10}, (400, "10 rows, of at most 9")),
    ({"query": None}, (400, "query", "missing")),
    ({"top_n": 0}, (400, "top_n", "above 0")),
    ({"task": "other"}, (400, '"other"', "rerank", "best")),
    ({"more": 1}, (400, "unknown", "'more'")),
]


@pytest.mark.parametrize(
    "call, parts",
    [
        (lambda p: p.rerank("a", "text"), ("documents", "list")),
        (lambda p: p.rerank("a", None), ("documents", "NoneType", "list")),
        (
            lambda p: p.rerank("a", pandas.DataFrame({"x": ["b"]})),
            ("documents is a DataFrame",),
        ),
        (lambda p: p.rerank("a", ["b"], top_n=0), ("top_n is 0",)),
        (lambda p: p.rerank("a", ["b"], top_n=1.5), ("top_n is 1.5",)),
        (lambda p: p.rerank("a", ["b", None]), ("row 2", "NoneType")),
        (lambda p: p.rerank("a", ["b"], "other"), ("'other'", "rerank")),
    ],
)
def test_what_python_refuses(call, parts, ranker):
    refusals.check(lambda: call(ranker), *parts)


@module_fixture
def ranker(tiny_bert, tiny_adapters, tmp_path_factory):
    """A cross-encoder's own head, next to another task."""
    place = tmp_path_factory.mktemp("ranker")
    folder = cross_encoders.make(tiny_bert, place / "bert", "version 4")
    predictor = ab.Predictor(ab.load_bert(folder))
    predictor.add(next(iter(tiny_adapters.values())), "other")
    return predictor


# Texts that are cut, too; of a query longer than half of the input Google cuts
# one token elsewhere than tokenizers.
TEXTS = [
    ("is the cat in ?", "the cat sat on the mat ."),
    ("is the cat in ?", "a dog ran fast !"),
    ("dog", ""),
    ("a slow dog sat " * 6, "the mat"),
    ("cat", "the mat is out " * 9),
]
# As sentence-transformers 5.7.0 gives them, without activation.
LOGITS = [1.8801252, 1.9885484, 1.9228115, 1.7566364, 1.7990713]


@pytest.mark.newer_stack
@pytest.mark.parametrize("form", cross_encoders.FORMS)
def test_cross_encoders_answer_with_their_own_head(form, tiny_bert, tmp_path):
    folder = cross_encoders.make(tiny_bert, tmp_path / "bert", form)
    is_sigmoid = cross_encoders.FORMS[form][0] == reranking.SIGMOID
    bert = ab.load_bert(folder)
    # All that a hub is asked for.
    is_listed = form == "version 5"
    assert sentence_transformers.places(str(folder)) == [""] * is_listed
    expected = expit(LOGITS) if is_sigmoid else LOGITS
    expected = pytest.approx(expected, abs=1e-5)
    assert scores_of(ab.Predictor(bert)) == expected
    # As an adapter, which all else takes.
    named = ["--name=own", f"--init_checkpoint={folder}"]
    refusals.check(
        lambda: run_library(
            "import", tmp_path / "shelf", folder, *named, "--texts=two"
        ),
        "leave out --texts",
    )
    run_library("import", tmp_path / "shelf", folder, *named)
    assert scores_of(ab.Predictor(bert, ab.Library(tmp_path / "shelf"))) == (
        expected
    )


@pytest.mark.parametrize(
    "form, name, fields, length",
    [
        ("version 5", "tokenizer_config.json", {}, 24),
        (
            "version 5",
            "sentence_bert_config.json",
            {"max_seq_length": 12},
            12,
        ),
        # Which `CrossEncoder` reads only where modules are listed.
        ("version 4", "sentence_bert_config.json", {"max_seq_length": 12}, 24),
        ("version 4", "tokenizer_config.json", {"model_max_length": 512}, 32),
    ],
)
def test_how_many_tokens_a_cross_encoder_reads(
    form, name, fields, length, tiny_bert, tmp_path
):
    folder = cross_encoders.make(tiny_bert, tmp_path / "bert", form)
    about = read_json(folder / name) if (folder / name).exists() else {}
    write_json(folder / name, {**about, **fields})
    opened = sources.open_pretrained(str(folder))
    read = cross_encoder.read(opened, sources.read_config(opened))
    assert read.max_seq_length == length


def scores_of(predictor):
    return [answer.score for answer in predictor.predict(TEXTS)]


@pytest.fixture
def merged(convert, tiny_bert, tmp_path):  # noqa: F811
    """A cross-encoder that a LoRA was merged into, and its scores."""
    about = {"name": "rerank", "pairs": True, "activation": "linear"}
    adapter, folder = tmp_path / "lora", tmp_path / "merged"
    make_artifact(adapter, tiny_bert, "lora(rank=2)", None, about)
    convert(tiny_bert, "hugging_face", folder, f"--adapter={adapter}")
    bert = ab.load_bert(tiny_bert)
    return folder, scores_of(ab.Predictor(bert, adapter))


@pytest.mark.newer_stack
def test_a_merged_reranker_is_a_cross_encoder(merged):
    folder, scores = merged
    config = read_json(folder / "config.json")
    assert config["sentence_transformers"]["activation_fn"].endswith("Identity")
    own = scores_of(ab.Predictor(ab.load_bert(folder)))
    assert own == pytest.approx(scores, abs=1e-5)


def changed(bert, folder, outputs=1, **fields):
    """A cross-encoder with other fields, or with more outputs."""
    cross_encoders.make(bert, folder, "transformers")
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, **fields})
    tensors = load_file(folder / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = np.repeat(tensors[name], outputs, axis=0)
    save_file(tensors, folder / "model.safetensors")
    return folder


def with_prompt(bert, folder):
    cross_encoders.make(bert, folder, "version 5")
    path = folder / "config_sentence_transformers.json"
    prompts = {"default_prompt_name": "web", "prompts": {"web": "Search: "}}
    write_json(path, {**read_json(path), **prompts})
    return folder


@refusals.table(
    {
        "no head": (lambda bert, place: bert, "no trained head", "--adapter"),
        "classes": (
            partial(changed, problem_type="single_label_classification"),
            "classification",
            "cross-encoder",
        ),
        "two outputs": (
            partial(changed, outputs=2),
            "[2, 16]",
            "[1, 16]",
        ),
        "an activation": (
            partial(
                changed,
                sentence_transformers={"activation_fn": "torch.nn.Tanh"},
            ),
            "'torch.nn.Tanh'",
            "Sigmoid or",
        ),
        "labels that are none": (
            partial(
                changed,
                id2label=5,
                problem_type="single_label_classification",
            ),
            "classification",
            "cross-encoder",
        ),
        "a prompt": (
            with_prompt,
            "default_prompt_name is 'web'",
        ),
    }
)
def test_models_without_such_a_head_are_refused(
    call, parts, tiny_bert, tmp_path
):
    bert = ab.load_bert(call(tiny_bert, tmp_path / "bert"))
    refusals.check(lambda: ab.rerank(bert, "a", ["b"]), *parts)


CROSS_ENCODER = """
import json, sys

from sentence_transformers import CrossEncoder

texts, *folders = map(str, sys.argv[1:])
texts = list(map(tuple, json.loads(texts)))
for folder in folders:
    scores = CrossEncoder(folder, device="cpu").predict(texts)
    print(json.dumps([float(score) for score in scores]))
"""


@pytest.mark.gate
@pytest.mark.skipif(
    not HAS_LIBRARY,
    reason=f"no sentence-transformers for {PEER}; `make peers` installs it",
)
def test_the_library_gives_the_same_scores(merged, tiny_bert, tmp_path):
    """Of each form of its files, and of a merged reranker."""
    forms = {form: tmp_path / form for form in cross_encoders.FORMS}
    for form, folder in forms.items():
        cross_encoders.make(tiny_bert, folder, form)
    forms["merged"] = merged[0]
    done = run_command(
        PEER,
        "-c",
        CROSS_ENCODER,
        json.dumps(TEXTS),
        *forms.values(),
        check=True,
    )
    for folder, line in zip(forms.values(), done.stdout.splitlines()):
        scores = scores_of(ab.Predictor(ab.load_bert(folder)))
        assert scores == pytest.approx(json.loads(line), abs=1e-5)
