"""Vectors of texts: what is read, learned and scored."""

from dataclasses import replace

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import as_tensors, write_json_lines, write_lines
from engine_jobs import (
    LENGTH,
    VECTORS,
    check_gradients,
    first_step,
    make_job,
    make_rows,
    shaken_model,
)
from numpy.random import default_rng
from numpy.testing import assert_array_equal
from task_files import refusal, squad_file

from adapter_bert.bert.hooks import Context
from adapter_bert.data.divisions import HeldOut
from adapter_bert.data.input_pipeline import make_batch
from adapter_bert.data.tables import Layout
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.kinds import kind_of
from adapter_bert.tasks.retrieval import cosines, retrieval_scores
from adapter_bert.tasks.vectors import Vectors, layout_of_columns, named_pairs
from adapter_bert.training.training_step import loss_and_gradients

pytestmark = pytest.mark.older_stack

PAIRS = Vectors(layout=layout_of_columns("a", "b", (), None))
TRIPLES = Vectors(layout=layout_of_columns("a", "b", ("no",), None))
SCORED = Vectors(layout=layout_of_columns("a", "b", (), "score"))
SINGLE = Vectors(layout=layout_of_columns("a", None, (), None))
ROWS = [
    {"a": "a cat sat", "b": "the cat", "no": "a dog", "score": 3},
    {"a": "a film", "b": "the film", "no": "the cat", "score": 0.5},
    {"a": "a dog ran", "b": "the cat", "no": "a film", "score": -1},
]


def write(folder, rows=ROWS, **changes):
    """The training and the dev file, both of these rows."""
    for split in ("train", "dev"):
        path = folder / f"{split}.jsonl"
        write_json_lines(path, [{**row, **changes} for row in rows])
    return str(folder)


def features_of(task, folder, split, tokenizer):
    task, rows = task.read(folder, [split])
    return task.featurize(rows[split], tokenizer, 8), rows[split]


def scores_of(task, rows, features, vectors):
    kept = task.keep(rows)
    predictions = task.decode(kept, features, {"vectors": vectors})
    return task.evaluate(kept, features, predictions)


def test_rows_are_several_texts(tmp_path, tokenizer):
    folder = write(tmp_path)
    features, _ = features_of(TRIPLES, folder, "train", tokenizer)
    assert (len(features), features.row_shape) == (3, (3,))
    # Equal texts have equal numbers, in whatever column.
    ids = features.labels["text_ids"]
    assert ids.dtype == np.int32 and ids.shape == (3, 3)
    assert ids[0, 1] == ids[1, 2] == ids[2, 1] and ids[1, 0] == ids[2, 2]
    assert len(set(ids.ravel())) == 6
    # White space makes no other text.
    rows = TRIPLES.read(folder, ["train"])[1]["train"]
    rows = replace(rows, text_a=[f" {x} " for x in rows.text_a])
    again = TRIPLES.featurize(rows, tokenizer, 8).labels["text_ids"]
    assert_array_equal(again, ids)
    batch = make_batch(features, np.array([2, 0]), None)
    expected = tokenizer.encode_ids(["a dog ran", "the cat", "a film"])
    for row, tokens in zip(batch["input_ids"][0], expected):
        assert row[1 : 1 + len(tokens)].tolist() == tokens
    # Negatives are no part of a search.
    features, _ = features_of(TRIPLES, folder, "dev", tokenizer)
    assert features.row_shape == (2,) and not features.labels.keys() - {
        "text_ids"
    }


def test_single_texts_are_their_own_matches(tmp_path, tokenizer):
    folder = write(tmp_path)
    features, _ = features_of(SINGLE, folder, "train", tokenizer)
    assert features.row_shape == (2,)
    ids = features.labels["text_ids"]
    assert_array_equal(ids[:, 0], ids[:, 1])
    assert "single texts have no match" in refusal(SINGLE.read, folder, ["dev"])
    # Texts to answer are alone.
    rows = SINGLE.make_rows([("a cat",), ("a dog",)])
    features = SINGLE.featurize(rows, tokenizer, 8)
    assert (
        len(features) == 2 and features.row_shape == () and not features.labels
    )


def test_labels_say_which_pairs_belong_together(tmp_path, tokenizer):
    layout, matching = named_pairs("MRPC")
    task = Vectors(layout=layout, matching=matching)
    lines = ["Quality\t#1 String\t#2 String"]
    lines += ["1\ta cat\tthe cat", "0\ta dog\tthe film", "1\ta film\tthe film"]
    for split in ("train", "dev"):
        write_lines(tmp_path / f"{split}.tsv", lines)
    features, rows = features_of(task, str(tmp_path), "train", tokenizer)
    assert rows.text_b == ["the cat", "the film"] and len(features) == 2
    features, rows = features_of(task, str(tmp_path), "dev", tokenizer)
    assert features.labels["is_match"].tolist() == [1, 0, 1]
    # The first finds its match second, the third first.
    matches = np.float32([[0.1, 1, 0], [0.2, 0, 1], [0.2, 0, 1]])
    vectors = np.stack([np.eye(3), matches], axis=1)
    scores = task.evaluate(task.keep(rows), features, vectors)
    assert scores["mrr"] == pytest.approx((1 / 2 + 1) / 2)
    assert scores["recall_at_1"] == 0.5 and scores["recall_at_10"] == 1
    assert list(scores) == list(task.score_names)


def test_answered_questions_belong_to_their_paragraphs(tmp_path, tokenizer):
    layout, matching = named_pairs("SQuAD")
    task = Vectors(layout=layout, matching=matching)
    answered = [
        ("1", "the cat", "a cat", "the cat"),
        ("2", "the cat", "a dog", "the cat"),
    ]
    others = ("3", "the cat", "a film", None), ("4", "the film", "not", None)
    for split in ("train", "dev"):
        squad_file(tmp_path / f"{split}.json", [*answered, *others])
    features, rows = features_of(task, str(tmp_path), "train", tokenizer)
    assert rows.text_a == ["a cat", "a dog"] and len(features) == 2
    assert rows.text_b == ["the cat", "the cat"]
    # The paragraphs of others are searched too.
    features, rows = features_of(task, str(tmp_path), "dev", tokenizer)
    assert features.labels["is_match"].tolist() == [1, 1, 0, 0]
    answered[1] = ("2", "the cat", " ", "the cat")
    squad_file(tmp_path / "train.json", answered)
    refusals.check(
        lambda: task.read(str(tmp_path), ["train"]),
        "train.json:2: the text is empty",
    )


def test_scores_are_correlated_with_cosines(tmp_path, tokenizer):
    task = replace(SCORED, sizes=[2])
    features, rows = features_of(task, write(tmp_path), "dev", tokenizer)
    given = [3, 0.5, -1]
    assert_array_equal(features.labels["label_scores"], given)
    outputs = {"vectors": default_rng(0).normal(size=(6, 4))}
    vectors = task.decode(task.keep(rows), features, outputs)
    assert_array_equal(vectors[1, 0], outputs["vectors"][2])
    scores = task.evaluate(task.keep(rows), features, vectors)
    assert list(scores) == list(task.score_names)
    found = cosines(vectors[:, 0], vectors[:, 1])
    assert scores["pearson"] == pytest.approx(np.corrcoef(given, found)[0, 1])
    ranks = np.argsort(np.argsort(found))
    expected = np.corrcoef([2, 1, 0], ranks)[0, 1]
    assert scores["spearman"] == pytest.approx(expected)


def test_a_corpus_gives_rows_their_texts_and_is_searched(tmp_path, tokenizer):
    documents = ["the cat", "a dog", "the film", "a film"]
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("\n".join(f"d{n}\t{x}" for n, x in enumerate(documents)))
    task = replace(
        TRIPLES,
        corpus_file=str(corpus),
        corpus_layout=Layout(1, header=False, row_id=0),
        sizes=[2],
    )
    rows = [
        {"a": "a cat sat", "b": "d0", "no": "d1"},
        {"a": "a film", "b": "d2", "no": "d3"},
        {"a": "a cat sat", "b": "d1", "no": "d3"},
    ]
    folder = write(tmp_path, rows)
    features, kept = features_of(task, folder, "train", tokenizer)
    assert kept.text_b == ["the cat", "the film", "a dog"]
    assert kept.choices == (["a dog", "a film", "a film"],)
    assert features.row_shape == (3,)
    # Texts and documents are rows of their own, each one once.
    features, kept = features_of(task, folder, "dev", tokenizer)
    assert task.summarize(kept) == "2 texts, 4 documents"
    assert len(features) == len(kept) == 6 and features.row_shape == ()
    texts = ["a cat sat", "a film", *documents]
    for row, tokens in enumerate(tokenizer.encode_ids(texts)):
        start, end = features.starts[row : row + 2]
        assert features.tokens[start + 1 : end - 1].tolist() == tokens
    assert features.relevant == [{0: 1.0, 1: 1.0}, {2: 1.0}]
    # The second text stands in the corpus, and is no answer to itself.
    assert features.copies == [[], [3]]
    vectors = default_rng(0).normal(size=(6, 4))
    scores = scores_of(task, kept, features, vectors)
    assert list(scores) == list(task.score_names)
    cut = retrieval_scores(
        vectors[:2, :2], vectors[2:, :2], features.relevant, features.copies
    )
    assert scores["ndcg_at_10_of_2"] == cut["ndcg_at_10"]
    assert task.first(kept, 1).relevant == features.relevant[:1]
    write(tmp_path, rows, no="the cat")
    message = refusal(task.read, folder, ["train"])
    assert "train.jsonl:1: no document of " in message


def test_a_pair_s_first_text_is_no_answer_to_itself(tmp_path, tokenizer):
    """Second texts of other pairs are equal to first ones."""
    rows = [("a cat", "a dog"), ("a dog", "a film"), ("a mat", "the dog")]
    folder = write(tmp_path, [{"a": a, "b": b, "no": "c"} for a, b in rows])
    features, kept = features_of(TRIPLES, folder, "dev", tokenizer)
    axes = {"a cat": 0, "a dog": 0, "a film": 1, "a mat": 2, "the dog": 2}
    vectors = np.eye(3)[[axes[text] for row in rows for text in row]]
    vectors[2:4] = [0.9, 0.4, 0], [0.6, 0.8, 0]
    assert scores_of(TRIPLES, kept, features, vectors)["recall_at_1"] == 1


def test_gains_of_documents_choose_matches_and_count(tmp_path, tokenizer):
    corpus = tmp_path / "corpus.csv"
    corpus.write_text("_id,title,text\nd0,a,cat\nd1,the,dog\nd2,,a film\n")
    task = replace(
        SCORED,
        corpus_file=str(corpus),
        corpus_layout=Layout("text", "title", row_id="_id"),
    )
    assert task.loss_name == "infonce"
    rows = [
        {"a": "a cat sat", "b": "d0", "score": 2},
        {"a": "a cat sat", "b": "d2", "score": 0},
        {"a": "a film", "b": "d2", "score": -1},
        {"a": "the dog", "b": "d1", "score": 1},
        {"a": "the dog", "b": "d0", "score": 0.5},
    ]
    folder = write(tmp_path, rows)
    _, kept = features_of(task, folder, "train", tokenizer)
    assert kept.text_b == ["a cat", "the dog", "a cat"] and kept.label is None
    features, kept = features_of(task, folder, "dev", tokenizer)
    # A question without a match is none.
    assert kept.questions == ["a cat sat", "the dog"]
    assert features.relevant == [{0: 2.0}, {1: 1.0, 0: 0.5}]
    vectors = np.eye(3)[[0, 0, 0, 1, 2]]
    scores = scores_of(task, kept, features, vectors)
    second = (0.5 + 1 / np.log2(3)) / (1 + 0.5 / np.log2(3))
    assert scores["ndcg_at_10"] == pytest.approx((1 + second) / 2)
    for score, message in (
        (0, " pairs none has a score above 0, which means that"),
        ("x", "train.jsonl:1: the score is 'x', expected a number"),
    ):
        folder = write(tmp_path, rows, score=score)
        assert message in refusal(task.read, folder, ["train"])


def test_all_rows_of_a_text_are_held_out_together(tmp_path):
    rows = [{"a": f"a {n // 2}", "b": f"b {n}", "no": "c"} for n in range(20)]
    write(tmp_path, rows)
    (tmp_path / "dev.jsonl").unlink()
    task = replace(TRIPLES, held_out=HeldOut(0.3, 1))
    _, by_split = task.read(str(tmp_path), ["train", "dev"])
    train, dev = by_split["train"], by_split["dev"]
    assert (len(train), len(dev)) == (14, 6) and not dev.choices
    assert not {*train.text_a} & {*dev.text_a}
    assert {*train.text_b} | {*dev.text_b} == {row["b"] for row in rows}
    description = {"name": "vectors", **task.describe()}
    assert task.restore(description, "it").held_out == task.held_out
    other = replace(task, held_out=HeldOut(0.3, 2))
    message = refusal(other.restore, description, "it")
    assert "--dev_share=0.3 --split_seed=1; pass the same" in message


@refusals.table(
    {
        "match": ((PAIRS, {"b": " "}), "train.jsonl:1: the match of the text"),
        "text": ((PAIRS, {"a": ""}), "train.jsonl:1: the text is empty"),
        "negative": ((TRIPLES, {"no": ""}), "train.jsonl:1: the negative is"),
        "score": ((SCORED, {"score": "much"}), "the score is 'much'", "number"),
        "scores": ((SCORED, {"score": 1}), "every score is 1", "that differ"),
        "one": ((PAIRS, {"b": "the cat"}), "all rows have one match"),
    }
)
def test_wrong_rows_are_refused(tmp_path, call, parts):
    task, changes = call
    folder = write(tmp_path, **changes)
    refusals.check(
        lambda: task.learn(task.read(folder, ["train"])[1]["train"]), *parts
    )


@refusals.table(
    {
        "infonce": (
            lambda: Vectors(layout=SCORED.layout, loss="infonce"),
            "these have scores",
        ),
        "cosent": (
            lambda: Vectors(loss="cosent"),
            "pass --score_column, or --loss=infonce",
        ),
        "sizes": (
            lambda: Vectors(sizes=["8", "x"]),
            "--matryoshka_sizes is 8,x, expected",
        ),
        "size": (lambda: Vectors(sizes=["8", "0"]), "whole numbers above 0"),
        "negatives alone": (
            lambda: layout_of_columns("a", None, ("no",), None),
            "--negative_column is for pairs",
        ),
        "scores alone": (
            lambda: layout_of_columns("a", None, (), "s"),
            "--score_column is for pairs",
        ),
        "both": (
            lambda: layout_of_columns("a", "b", ("no",), "s"),
            "exclude each other",
        ),
        "twice": (
            lambda: layout_of_columns("a", "b", ("b",), None),
            "--text_b_column and --negative_column both",
        ),
    }
)
def test_settings_and_columns_that_contradict_each_other(call, parts):
    refusals.check(call, *parts)


def test_an_adapter_says_how_its_vectors_are_made(tiny_config):
    trained = Vectors(pooling="cls", normalize=True, sizes=["4", "8"])
    description = {"name": "vectors", **trained.describe()}
    about = {"pooling": "cls", "normalize": True, "sizes": [8, 4]}
    assert description == {"name": "vectors", **about}
    assert kind_of(description) == "vectors"
    assert restore_task(description, {}, "it").describe() == trained.describe()
    assert Vectors().describe() == {"pooling": "mean", "normalize": False}
    refusals.check(
        lambda: Vectors(pooling="mean").restore(description, "it"),
        "trained with pooling 'cls', not 'mean'",
    )
    refusals.check(
        lambda: Vectors(sizes=[17]).build_head(tiny_config, None),
        "has 17, but vectors of this model",
    )
    for change, part in (
        ({"pooling": "max"}, "expected cls or mean"),
        ({"normalize": 1}, "expected cls or mean"),
        ({"sizes": [0]}, "sizes above 0"),
        ({"sizes": 8}, "sizes above 0"),
    ):
        refusals.check(
            lambda c=change: restore_task({**description, **c}, {}, "it"), part
        )


@pytest.mark.gate
@pytest.mark.parametrize(
    "pooling, method, changes",
    [
        ("mean", "houlsby(size=4)", {"parts": 4, "lanes": 2}),
        ("cls", "prefix(length=2)", {}),
    ],
)
def test_the_gradient_is_that_of_the_whole_batch(
    steady_config, pooling, method, changes
):
    """Vectors that are computed twice train as if the batch were one part."""
    task = Vectors(pooling=pooling, sizes=[16, 4], temperature=0.5)
    job = make_job(steady_config, "unused", method, task=task, **changes)
    model, _, trained = shaken_model(job)
    batch = as_tensors(make_batch(make_rows(VECTORS), np.arange(8), LENGTH))

    @tf.function(autograph=False)
    def whole():
        context = Context(batch["input_mask"], True, tf.constant([5, 0]))
        context.handed_on.update(model.bert.hooks.prepare(context))
        with tf.GradientTape() as tape:
            vectors = model(batch, context)["vectors"]
            vectors = tf.reshape(vectors, [8, 2, -1])
            losses = model.head.batch_loss(vectors, batch)
            loss = tf.reduce_mean(losses)
        return loss, tape.gradient(loss, [v for _, v in trained])

    loss, gradients = first_step(job, model, trained, batch)
    expected, others = whole()
    assert loss.numpy() == pytest.approx(expected.numpy(), rel=1e-6)
    assert len(gradients) == len(trained) > 2
    check_gradients(trained, gradients, others)


@pytest.mark.gate
def test_both_passes_draw_the_same_dropout(tiny_config):
    """Else the value of the loss and its gradient were of other vectors."""
    job = make_job(tiny_config, "unused", task=VECTORS, lanes=2)
    model, _, trained = shaken_model(job, scale=0)
    seen = []

    class Head(type(model.head)):
        def __call__(self, *arguments):
            predictions = super().__call__(*arguments)
            tf.py_function(
                lambda x: seen.append(x.numpy()), [predictions["vectors"]], []
            )
            return predictions

    model.head.__class__ = Head
    batch = make_batch(make_rows(VECTORS), np.arange(8), LENGTH)
    # The same text twice.
    for name in ("input_ids", "input_mask", "segment_ids"):
        batch[name][:, 1] = batch[name][:, 0]
    batch = as_tensors(batch)
    step = tf.constant(0, tf.int64)
    loss_and_gradients(job, model, trained, batch, step, 8)
    assert len(seen) == 4
    of_both = [np.concatenate(seen[:2]), np.concatenate(seen[2:])]
    assert_array_equal(*of_both)
    pairs = of_both[0].reshape(8, 2, -1)
    assert np.abs(pairs[:, 0] - pairs[:, 1]).max(axis=1).min() > 1e-3
