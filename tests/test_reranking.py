"""Rerankers: rows, losses, scores, answers in every form."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import (
    SENTENCES,
    read_adapter_config,
    read_lines,
)
from numpy.testing import assert_allclose

import adapter_bert as ab
from adapter_bert.data.input_pipeline import make_batch
from adapter_bert.data.memory_rows import MemoryRows
from adapter_bert.data.tables import SplitFiles
from adapter_bert.tasks import kinds, reranking
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.reranking import LOSSES, Lists
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
    task = reranking.dataclasses.replace(task, split_files=files)
    return task.read("", [split])[1][split]


def test_lists_and_pairs_are_the_same_rows():
    task = task_of()
    lists, pairs = rows_of(task, LISTS), rows_of(task, PAIRS)
    for name in ("text_a", "text_b", "label"):
        assert getattr(lists, name) == getattr(pairs, name)
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


@pytest.fixture(scope="module")
def trained(tiny_bert, tmp_path_factory):
    """A run of a reranker in Python, from lists in memory."""
    return ab.train(
        ab.load_bert(tiny_bert),
        LISTS,
        LISTS,
        PAIRS,
        task_name="rerank",
        rank_loss="listnet",
        max_seq_length=24,
        train_batch_size=2,
        num_train_epochs=30,
        learning_rate=1e-2,
        adapter_size=4,
        cpu_lanes=1,
        output_dir=tmp_path_factory.mktemp("reranker") / "out",
    )


@pytest.mark.gate
def test_a_run_is_asked_in_every_form(trained, tiny_bert, tmp_path):
    assert trained.scores["ndcg_at_10"] > 0.9
    print(trained.scores, trained.settings["training"])
    print(read_lines(f"{trained.output_dir}/test_predictions.tsv")[:3])
    config = read_adapter_config(trained.adapter)
    print(config["task"], config["task_settings"])
    bert = ab.load_bert(tiny_bert)
    texts = LISTS[0]["documents"]
    print(ab.rerank(bert, "cat", texts, adapter=trained, top_n=3))
