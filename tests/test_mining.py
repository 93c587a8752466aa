"""`adapter-bert mine`: hard negatives, and what is never one."""

import numpy as np
import pytest
import refusals
from conftest import (
    SENTENCES,
    entry_point,
    program_fixture,
    read_adapter_config,
    read_json_lines,
    write_json,
    write_json_lines,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from adapter_bert.commands import mine, run_vectors
from adapter_bert.data.tables import Rows
from adapter_bert.tasks import retrieval
from adapter_bert.tasks.corpus import Corpus, Search

OLDER = pytest.mark.older_stack
run = program_fixture(mine)
TEXTS = [text for text, _ in SENTENCES]


@OLDER
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 40))
def test_nearest_texts_are_those_of_a_whole_ranking(seed, size, count):
    rng = default_rng(seed)
    # Few directions, so that cosines are equal.
    corpus = np.eye(4, dtype=np.float32)[rng.integers(0, 4, size)] * 3
    queries = rng.integers(-2, 3, (5, 4)).astype(np.float32)
    step = int(rng.integers(1, 9))
    blocks = (corpus[n : n + step] for n in range(0, size, step))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "CHUNK", 3)
        scores, places = retrieval.nearest(queries, blocks, count)
    units = [retrieval.unit(x).astype(np.float32) for x in (queries, corpus)]
    cosines = units[0] @ units[1].T
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    there = order.shape[1]
    np.testing.assert_array_equal(places[:, :there], order)
    np.testing.assert_array_equal(
        scores[:, :there], np.take_along_axis(cosines, order, 1)
    )
    assert (places[:, there:] == -1).all() and scores.dtype == np.float32


@OLDER
def test_right_documents_and_equal_texts_are_never_mined():
    texts = ["a cat", "a  cat", "a dog", "q", "T a cat", "else"]
    corpus = Corpus(
        "c",
        texts,
        {f"{n}": n for n in range(6)},
        [*texts[:4], "a cat", "else"],
    )
    pairs = [("q", "0", "5"), ("q ", "2", "x"), ("r", "5", "3")]
    questions, ids, names = map(list, zip(*pairs))
    rows = Rows("x", np.arange(3), questions, ids, row_id=names)
    judged = mine.judge(Search.of(rows, corpus))
    # Of both spellings of one question, its text, its ids, and titled copies.
    assert judged[0].never == judged[1].never == {0, 1, 2, 3, 4, 5}
    assert judged[2].never == {3, 5} and judged[2].right == [5]
    assert sorted(judged[0].right) == sorted(judged[1].right) == [0, 2]


# Cosines of five documents to two questions, the second's are all below 0.
PLACES = np.array([[4, 0, 3, 1, 2], [0, 1, 2, 3, 4]])
COSINES = np.array([[0.9, 0.8, 0.5, 0.4, 0.1], [-0.1, -0.2, -0.4, -0.5, -0.6]])
JUDGED = [mine.Judged([0], {0}), mine.Judged([1, 2], {1, 2})]
RIGHT = [np.array([0.8]), np.array([-0.2, -0.4])]


@OLDER
@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, [[4], [0]]),
        ({"negatives_per_row": 3}, [[4, 3, 1], [0, 3, 4]]),
        # Ranks are of wrong documents alone; rows with too few are left out.
        ({"ranks": "2-3", "negatives_per_row": 2}, [[3, 1], [3, 4]]),
        ({"ranks": "4-9"}, [[2], []]),
        ({"margin": "0"}, [[3], [3]]),
        # To the least of the right ones: 0.8 - 0.35, -0.4 - 0.15.
        ({"margin": "0.35"}, [[1], []]),
        ({"margin": "0.15"}, [[3], [4]]),
        # 0.8 - 0.32, -0.4 - 0.16.
        ({"margin": "40%"}, [[1], [4]]),
    ],
)
def test_ranks_and_margins_choose(settings, expected):
    mined = mine.choose(mine.Mining(**settings), JUDGED, RIGHT, COSINES, PLACES)
    assert list(mined) == expected


@OLDER
def test_random_negatives_follow_from_the_seed():
    def mined(seed):
        settings = mine.Mining(
            sampling="random", seed=seed, negatives_per_row=2, ranks="2-4"
        )
        return list(mine.choose(settings, JUDGED, RIGHT, COSINES, PLACES))

    drawn = [mined(seed) for seed in range(20)]
    assert mined(3) == drawn[3]
    # Still the nearest first.
    assert {tuple(x[0]) for x in drawn} == {(3, 1), (3, 2), (1, 2)}


@OLDER
def test_labelled_documents_of_a_text_stand_together():
    """Two questions may have one text; a reranker refuses its second place."""
    corpus = Corpus("c", [*"abcd"], {x: n for n, x in enumerate("abcd")}, [])
    rows = Rows("x", np.arange(4), [*"qrqs"], [*"abca"], row_id=[*"1234"])
    search, settings = Search.of(rows, corpus), mine.Mining(labels=True)
    places = [[3], [3], [3], []]
    written = mine.rows_of(settings, search, places, [""] * 5)
    assert [tuple(row.values()) for row in written] == [
        *(("q", "a", 1), ("q", "d", 0), ("q", "c", 1)),
        *(("r", "b", 1), ("r", "d", 0)),
    ]


@pytest.fixture
def flags(tiny_bert, tmp_path):
    """Flags that mine for pairs of the columns q and d."""
    return {
        "train_file": tmp_path / "pairs.jsonl",
        "text_a_column": "q",
        "text_b_column": "d",
        "init_checkpoint": tiny_bert,
        "output": tmp_path / "mined.jsonl",
    }


@pytest.mark.gate
@OLDER
def test_mined_rows_are_trained_on(flags, tmp_path):
    """Matches of other rows are mined, or documents of a corpus by id."""
    rows = [{"q": x, "d": x.upper() + " b"} for x in TEXTS]
    write_json_lines(flags["train_file"], [*rows, rows[0]])
    with entry_point(mine) as run:
        run(**flags, negatives_per_row=2, range="2-9")
    out = flags.pop("output")
    mined = read_json_lines(out)
    assert [row["q"] for row in mined] == TEXTS
    matches = {row["q"]: row["d"] for row in rows}
    for row in mined:
        assert matches[row["q"]] == row["d"] and row["d"] not in row["negative"]
        assert len({*row["negative"]} & {*matches.values()}) == 2
    flags.update(train_file=out, output_dir=tmp_path / "out")
    with entry_point(run_vectors) as train:
        train(
            **flags,
            negative_column="negative",
            tuning_method="lora(rank=2)",
            do_train=True,
            train_batch_size=4,
            num_train_steps=2,
            max_seq_length=16,
        )
    adapter = read_adapter_config(tmp_path / "out/adapter")
    assert adapter["training"]["examples"] == len(TEXTS)


@pytest.mark.gate
@OLDER
def test_a_corpus_gives_ids_or_labelled_texts(run, flags, tmp_path):
    corpus, out = tmp_path / "corpus.jsonl", flags["output"]
    documents = {f"d{n}": text for n, text in enumerate(TEXTS)}
    write_json_lines(
        corpus, [{"_id": name, "text": x} for name, x in documents.items()]
    )
    judged = {"q": TEXTS[3], "id": "d3"}
    gains = {"d0": 2, "d1": 0}
    pairs = [{**judged, "d": name, "gain": x} for name, x in gains.items()]
    write_json_lines(flags["train_file"], pairs)
    flags.update(
        query_id_column="id",
        score_column="gain",
        corpus_file=corpus,
        negatives_per_row=len(TEXTS) - 2,
    )
    run(**flags, negative_column="wrong")
    [row] = read_json_lines(out)
    negatives = row.pop("wrong")
    assert row == {"id": "d3", "q": TEXTS[3], "d": "d0", "gain": 2}
    wrong = {f"d{n}" for n in range(len(TEXTS))} - {"d0", "d3"}
    assert {*negatives} == wrong
    run(**flags, labels=True)
    assert read_json_lines(out) == [
        {"query": TEXTS[3], "document": documents[name], "label": label}
        for name, label in [("d0", 1), *((name, 0) for name in negatives)]
    ]


@OLDER
def test_labels_of_known_pairs_are_no_gains(run, tiny_bert, tmp_path):
    rows = [f"{n}\t{x}\t{x} b\tentailment\n" for n, x in enumerate(TEXTS)]
    header = "index\tquestion\tsentence\tlabel\n"
    (tmp_path / "train.tsv").write_text(header + "".join(rows))
    out = tmp_path / "mined.jsonl"
    flags = {"task_name": "QNLI", "data_dir": tmp_path, "output": out}
    run(**flags, init_checkpoint=tiny_bert)
    mined = read_json_lines(out)
    assert [row["text"] for row in mined] == TEXTS
    assert {*mined[0]} == {"text", "document", "negative"}
    questions = [
        {
            "id": str(n),
            "question": x,
            "answers": [{"text": "b", "answer_start": 0}],
        }
        for n, x in enumerate(TEXTS)
    ]
    paragraphs = [
        {"context": f"b {x['question']}", "qas": [x]} for x in questions
    ]
    write_json(tmp_path / "train.json", {"data": [{"paragraphs": paragraphs}]})
    run(**{**flags, "task_name": "SQuAD"}, init_checkpoint=tiny_bert)
    assert [row["text"] for row in read_json_lines(out)] == TEXTS


@OLDER
@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"output": "x.csv"}, ("--output is x.csv", ".jsonl")),
        ({"range": "10-3"}, ("--range", "10-3", "two ranks")),
        ({"margin": "-1"}, ("--margin", "0.1 or 5%")),
        ({"text_b_column": None}, ("--text_b_column",)),
        ({"score_column": "s"}, ("--score_column with --corpus_file",)),
        ({"negatives_per_row": 3}, ("no text has 3 negatives", "--range")),
        ({"negative_column": "n,m"}, ("--negative_column names several",)),
        ({"eval_file": __file__}, ("--eval_file", "leave it out")),
        (
            {"text_a_column": "negative"},
            ("--text_a_column and --negative_column", "'negative'"),
        ),
    ],
)
def test_what_cannot_be_mined_is_one_line(run, flags, tmp_path, changes, parts):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("q,d,s\na,b,1\nc,d,2\n")
    flags.update(train_file=pairs, **changes)
    refusals.check(lambda: run(**flags), *parts)
