"""Tagging: windows, scores, and the task without a model's training."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import TINY_WORDS, read_lines
from engine_jobs import TAGGING, make_rows
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal
from task_files import put, refusal

from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import NO_LABEL
from adapter_bert.tasks import tagging
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.tagging import (
    TaggingHead,
    cut,
    cut_sentences,
    tagging_task,
)
from adapter_bert.tasks.tagging_files import Sentences, split_tag

TAGS = "O B-ANIMAL I-ANIMAL B-THING I-THING B-art-work I-art-work".split()
DESCRIPTION = {"name": "tagging", "tags": TAGS}


def texts(tags):
    return list(map(str, tags))


def restored():
    return restore_task(DESCRIPTION, {}, "test")


def read_both(folder):
    return tagging_task().read(str(folder), ["train", "dev"])


def test_tags_are_those_of_the_training_file(tiny_ner):
    task, rows = tagging_task().read(str(tiny_ner), ["train", "dev", "test"])
    assert task.describe() == {"tags": TAGS, "punctuation_apart": True}
    assert {split: len(of_split) for split, of_split in rows.items()} == {
        "train": 32,
        "dev": 4,
        "test": 4,
    }
    assert rows["test"].tags is None
    assert task.summarize(rows["dev"]) == (
        "27 words, ANIMAL 4, art-work 2, THING 1"
    )
    assert task.summarize(rows["test"]) == "27 words"
    again, rows = tagging_task().read(str(tiny_ner), ["dev"])
    assert again == task and list(rows) == ["dev"]
    assert tagging_task().read(str(tiny_ner), ())[0] == task
    assert "pass --train_file or --data_dir" in refusal(
        tagging_task().read, "", ()
    )


def test_every_scheme_is_read_as_bio(tmp_path, caplog):
    bioes = "a S-X\nb B-Y\nc E-Y\n"
    for split in ("train", "dev"):
        put(tmp_path / f"{split}.conll", bioes)
    caplog.set_level("INFO", logger="absl")
    task, rows = read_both(tmp_path)
    assert texts(rows["train"].tags) == ["B-X", "B-Y", "I-Y"]
    assert texts(task.tags) == ["O", "B-X", "I-X", "B-Y", "I-Y"]
    assert f"{tmp_path}/train.conll: tags of the scheme BIOES" in caplog.text
    # Each file's scheme is its own.
    put(tmp_path / "dev.conll", "a O\na I-Y\na B-Y\na I-X\n")
    _, rows = read_both(tmp_path)
    assert texts(rows["dev"].tags) == ["O", "B-Y", "B-Y", "B-X"]
    assert "dev.conll: tags of the scheme IOB1" in caplog.text
    # Without an entity there is nothing to tell them apart by.
    put(tmp_path / "dev.conll", "a O\n")
    read_both(tmp_path)


def test_plain_types_are_read_with_a_warning(tmp_path, caplog):
    put(tmp_path / "train.conll", "a\tart-film\nb\tart-film\nc\tO\nd\tPER\n")
    task, rows = tagging_task().read(str(tmp_path), ["train"])
    assert texts(rows["train"].tags) == (
        "B-art-film I-art-film O B-PER".split()
    )
    assert texts(task.tags)[1:3] == ["B-PER", "I-PER"]
    assert "train.conll: its types have no prefixes, so words" in caplog.text


@refusals.table(
    {
        "unknown": ("a B-X\n", ":4: unknown type 'Z', expected one of X (see"),
        "case": ("a B-X\n\na B-x\n", "expected one of 'X', 'x' (see --map"),
        "none": ("a O\n", "train.conll has no entity: every tag is O"),
    }
)
def test_types_that_the_head_does_not_know_are_refused(tmp_path, call, parts):
    put(tmp_path / "train.conll", call)
    put(tmp_path / "dev.conll", "a B-X\n\nb O\nc B-Z\n")
    refusals.check(lambda: read_both(tmp_path), *parts)


@refusals.table(
    {
        "squad": ({"name": "squad"}, "trained on the task squad, not on tagg"),
        "no tags": ({}, "tagging with the tags ; expected"),
        "numbers": ({"tags": [1]}, "the tags 1; expected"),
        "plain": ({"tags": ["O", "X"]}, "the tags O, X; expected", "of BIO"),
        "no O": ({"tags": ["B-X"]}, "O among them, each once"),
        "twice": ({"tags": ["O", "O"]}, "each once"),
        "BIOES": ({"tags": ["O", "S-X"]}, "those of BIO"),
    }
)
def test_a_head_of_something_else_is_refused(call, parts):
    description = {"name": "tagging", **call}
    refusals.check(
        lambda: tagging_task().restore(description, "x"), "x", *parts
    )


def test_what_is_decoded_is_lawful_and_complete(tokenizer, caplog):
    """Also of a long sentence, and of words that no window holds."""
    task = restored()
    assert task.describe() == {"tags": TAGS}
    words = ["the", "\x01", "cat"] + ["sat"] * 10 + ["dogs"]
    rows = Sentences.of_words([words, [], ["film"]])
    features = task.featurize(rows, tokenizer, 6)
    assert len(features) > 5 and caplog.text.count("unseen: 1 have no") == 1
    wanted = ["I-THING", None, "I-THING", *["B-ANIMAL", "I-art-work"] * 5]
    wanted += ["I-art-work", "I-art-work"]
    logits = np.zeros((len(features), 6, len(TAGS)), np.float32)
    for place, tag in zip(features.places, wanted):
        if tag:
            row = np.searchsorted(features.starts, place, "right") - 1
            logits[row, place - features.starts[row], TAGS.index(tag)] = 2
    decoded = task.decode(rows, features, {"logits": logits})
    assert texts(decoded.tags) == [
        "B-THING",
        "O",
        "B-THING",
        *["B-ANIMAL", "B-art-work"] * 5,
        "I-art-work",
        "B-art-work",
    ]
    answers = task.answer(rows, decoded)
    assert [answer["tokens"] for answer in answers] == [words, [], ["film"]]
    assert answers[0]["tags"][:2] == ["B-THING", "O"]
    score = np.exp(2) / (np.exp(2) + len(TAGS) - 1)
    assert answers[0]["entities"][-1] == {
        "start": 46,
        "end": 54,
        "text": "sat dogs",
        "label": "art-work",
        "score": pytest.approx(score),
        "first_word": 12,
        "last_word": 13,
    }
    assert answers[1] == {"tokens": [], "tags": [], "entities": []}
    assert answers[2]["tags"] == ["B-art-work"]
    nothing = Sentences.of_words([["\x01", "\x02"]])
    features = task.featurize(nothing, tokenizer, 6)
    assert len(features) == 0
    assert texts(task.decode(nothing, features, {}).tags) == ["O", "O"]


def test_scores_and_the_report(tokenizer, tmp_path):
    task = restored()
    rows = Sentences.of_words([["the", "cat", "\x01"], ["the", "film"]])
    tags = "O B-ANIMAL B-ANIMAL O B-THING".split()
    rows = replace(rows, tags=list(map(split_tag, tags)))
    features = task.featurize(rows, tokenizer, 6)
    logits = np.zeros((2, 4, len(TAGS)), np.float32)
    logits[:, 1, 0] = 1
    logits[:, 2, 1] = 1
    decoded = task.decode(rows, features, {"logits": logits})
    assert texts(decoded.tags) == "O B-ANIMAL O O B-ANIMAL".split()
    scores = task.evaluate(task.keep(rows), features, decoded)
    assert set(task.score_names) == set(scores)
    assert list(scores)[0] == "f1"
    right = -1 + np.log(6 + np.e)
    assert scores == pytest.approx(
        {
            "f1": 2 / 5,
            "precision": 1 / 2,
            "recall": 1 / 3,
            "token_accuracy": 3 / 5,
            "loss": (4 * right + 1) / 4,
        }
    )
    [path] = task.write_report(
        str(tmp_path), task.keep(rows), features, decoded
    )
    assert path == str(tmp_path / "eval_types.tsv")
    assert read_lines(path) == [
        "type\tentities\tpredicted\tprecision\trecall\tf1",
        "ANIMAL\t2\t2\t0.5000\t0.5000\t0.5000",
        "THING\t1\t0\t0.0000\t0.0000\t0.0000",
    ]


def test_sentences_that_all_are_empty_have_scores(tokenizer):
    """As the first ones of a file may be, which alone are then scored."""
    task = restored()
    rows = replace(Sentences.of_words([[], []]), tags=[])
    features = task.featurize(rows, tokenizer, 6)
    scores = task.evaluate(rows, features, task.decode(rows, features, {}))
    assert set(scores.values()) == {0.0}


def test_the_loss_is_the_mean_over_the_labelled_tokens_of_a_batch(tiny_config):
    """As `CrossEntropyLoss(ignore_index=...)`; a row has none of these."""
    rows = make_rows(TAGGING, [9, 3, 5, 12, 4, 7, 8, 10] * 5)
    batch = input_pipeline.make_batch(rows, np.arange(8), None)
    labels = batch["token_labels"]
    assert (labels[0] == NO_LABEL).all()
    logits = np.random.default_rng(1).normal(size=(*labels.shape, 3))
    head = TaggingHead(3, tiny_config, lambda name, *_: None)
    losses = head.loss({"logits": tf.constant(logits, tf.float32)}, batch)
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    rows, places = np.nonzero(labels != NO_LABEL)
    right = shares[rows, places, labels[rows, places]]
    assert_allclose(tf.reduce_mean(losses), -np.log(right).mean(), rtol=1e-5)


WORDS = [word for word in TINY_WORDS if word.isalpha()]


@st.composite
def sentences(draw):
    """Tokens of the words of a sentence, and the room of a window."""
    room = draw(st.integers(1, 12))
    lengths = st.lists(st.integers(1, room), max_size=40)
    return draw(lengths), room


@pytest.mark.older_stack
@given(sentences())
def test_every_word_is_tagged_once_where_it_has_most_context(sentence):
    lengths, room = sentence
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    windows = list(cut(lengths, room))
    owned = [n for w in windows for n in range(w.first_tagged, w.last_tagged)]
    assert owned == list(range(len(lengths)))
    if not lengths:
        return
    spans = list(tagging._spans(ends, room))
    assert [w[:2] for w in windows] == [
        s for s in spans if s in {w[:2] for w in windows}
    ]

    def context(word, span):
        """The lesser of the tokens on both sides."""
        first, last = span
        if not first <= word < last:
            return -1
        return min(ends[word] - ends[first], ends[last] - ends[word + 1])

    for window in windows:
        assert sum(lengths[window.first : window.last]) <= room
        for word in range(window.first_tagged, window.last_tagged):
            contexts = [context(word, span) for span in spans]
            assert spans[int(np.argmax(contexts))] == window[:2]
    for (first, last), (later, further) in zip(spans, spans[1:]):
        # Without a gap, each further than the one before.
        assert first < later <= last < further
    last = spans[-1][0]
    assert not last or sum(lengths[last - 1 :]) > room


@pytest.mark.older_stack
def test_windows_overlap_by_half():
    windows = list(cut([1] * 30, 10))
    starts = [0, 5, 10, 15, 20]
    assert [w[:2] for w in windows] == [(x, x + 10) for x in starts]
    assert [w.first_tagged for w in windows] == [0, 8, 13, 18, 23]


@pytest.mark.older_stack
@given(
    st.lists(
        st.lists(
            st.sampled_from([*WORDS, "cats", "\x00", "sat\u00a0on", "a" * 3]),
            max_size=30,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(3, 12),
)
def test_features_of_sentences(tokenizer, texts, length):
    rows = Sentences.of_words(texts)
    labels = np.arange(len(rows.words), dtype=np.int32)
    features = cut_sentences(rows, labels, tokenizer, length)
    pieces = tokenizer.encode_ids(rows.words)
    assert features.lengths.max(initial=0) <= length
    for first, last in zip(features.starts, features.starts[1:]):
        assert features.tokens[first] == tokenizer.classify_id
        assert features.tokens[last - 1] == tokenizer.separate_id
        assert last - first > 2
    assert not features.segments.any()
    labels_there = np.full(len(features.tokens), NO_LABEL)
    for word, (word_pieces, place) in enumerate(zip(pieces, features.places)):
        if not 0 < len(word_pieces) <= length - 2:
            assert place == -1
            continue
        # All of its tokens, and the label at the first one.
        assert_array_equal(
            features.tokens[place : place + len(word_pieces)], word_pieces
        )
        labels_there[place] = word
    assert_array_equal(features.token_labels, labels_there)
    assert cut_sentences(rows, None, tokenizer, length).token_labels is None
    # Outputs that name their place, padded.
    width = int(features.lengths.max(initial=1)) + 2
    outputs = np.zeros((len(features), width, 1), int)
    for row, (first, n) in enumerate(zip(features.starts, features.lengths)):
        outputs[row, :n, 0] = np.arange(first, first + n)
    expected = np.where(features.places < 0, 0, features.places)
    assert_array_equal(features.at_words(outputs)[:, 0], expected)


@pytest.mark.older_stack
def test_words_that_no_window_holds_are_counted(tokenizer, caplog):
    words = ["the", "\x01", "cat" + "s" * 4, "sat"]
    sentences = Sentences.of_words([words, words[2:3] * 2, words[::3]])
    assert cut_sentences(sentences, None, tokenizer, 6).cut_rows == 2
    caplog.clear()
    cut_sentences(Sentences.of_words([words]), None, tokenizer, 6)
    assert (
        "2 of 4 words are tagged O unseen: 1 have no token, 1 have more than "
        "the 4 that a window holds"
    ) in caplog.text
    caplog.clear()
    cut_sentences(Sentences.of_words([words[::3]]), None, tokenizer, 6)
    assert not caplog.text
