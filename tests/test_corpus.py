"""A corpus: its file, its questions, and what is refused."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import write_json_lines
from hypothesis import given
from numpy.random import default_rng
from task_files import refusal

from adapter_bert.data.tables import Layout, Rows
from adapter_bert.tasks.corpus import (
    Corpus,
    Search,
    SearchTexts,
    add_questions,
)
from adapter_bert.tasks.retrieval import retrieval_scores

pytestmark = pytest.mark.older_stack

LAYOUT = Layout("text", row_id="_id")
DOCUMENTS = [("d1", "a cat"), ("d2", "a dog"), ("d3", "a cat")]


def write(folder, documents):
    """A corpus of (id, text), with a column that is not read."""
    path = folder / "corpus.jsonl"
    rows = [{"_id": n, "title": "", "text": text} for n, text in documents]
    write_json_lines(path, rows)
    return str(path)


def rows_of(pairs):
    """Rows of (question, document's id), or with a gain each."""
    texts, ids, *gains = map(list, zip(*pairs))
    return Rows("dev.csv", np.arange(1, 1 + len(ids)), texts, ids, *gains)


def test_documents_are_found_by_their_ids(tmp_path):
    corpus = Corpus.read(write(tmp_path, DOCUMENTS), LAYOUT)
    # Equal texts may be two documents.
    assert corpus.texts == ["a cat", "a dog", "a cat"]
    rows = rows_of([("q", "d3"), ("r", "d1"), ("q", "d2"), ("q", "d3")])
    assert corpus.texts_of(rows, rows.text_b) == [
        "a cat",
        "a cat",
        "a dog",
        "a cat",
    ]
    search = Search.of(rows, corpus)
    assert search.questions == ["q", "r"] and len(search) == 5
    assert search.relevant == [{2: 1, 1: 1}, {0: 1}]


def test_copies_of_a_question_are_its_text_with_a_title_or_not(tmp_path):
    path = tmp_path / "corpus.csv"
    path.write_text("_id,title,text\n1,Cats,a  cat\n2,,a dog\n3,a,cat\n")
    corpus = Corpus.read(str(path), replace(LAYOUT, text_b="title"))
    rows = rows_of([("a cat", "2"), ("a fish", "1"), ("a dog", "2")])
    search = Search.of(rows, corpus)
    assert search.copies == [[0, 2], [], [1]]
    assert search.first(2).copies == [[0, 2], []]


def test_a_title_stands_before_the_text(tmp_path):
    path = tmp_path / "corpus.csv"
    path.write_text('_id,title,text\n1,Cats,a cat\n2,,a dog\n3,Birds,""\n')
    titled = replace(LAYOUT, text_b="title")
    corpus = Corpus.read(str(path), titled)
    assert corpus.texts == ["Cats a cat", "a dog", "Birds"]
    message = refusal(Corpus.read, str(path), LAYOUT)
    assert "corpus.csv:4: the document's text is empty" in message


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 5)),
        min_size=1,
    ),
    st.integers(0, 20),
)
def test_a_search_is_that_of_its_first_questions(pairs, count):
    texts = [f"t{n}" for n in range(6)]
    corpus = Corpus("c", texts, {f"{n}": n for n in range(6)}, texts)
    rows = rows_of(
        [(f"q{question}", *map(str, pair)) for question, *pair in pairs]
    )
    search = Search.of(rows, corpus).first(count)
    expected, first = {}, {question for question, *_ in pairs[:count]}
    for question, place, gain in (x for x in pairs if x[0] in first):
        pair = expected.setdefault(f"q{question}", {})
        pair.setdefault(place, []).append(gain)
    assert search.questions == list(expected)
    assert search.relevant == [
        {place: max(gains) for place, gains in pair.items()}
        for pair in expected.values()
    ]


def test_what_belongs_together_is_part_of_the_fingerprint():
    rows = [([1, 2], [0, 0], False), ([1, 3], [0, 0], True)]

    def fingerprint(relevant):
        features = SearchTexts.from_rows(iter(rows), {}, relevant=relevant)
        assert features.cut_rows == 1
        return features.fingerprint()

    gains = ([{0: 1}], [{0: 1, 1: 1}], [{0: 1}, {1: 1}], [{0: 2}])
    assert len(set(map(fingerprint, gains))) == 4


@pytest.mark.parametrize(
    "documents, message",
    [
        (
            [("d1", "a"), (" ", "b")],
            "corpus.jsonl:2: the document's id is empt",
        ),
        (
            [("d1", "a"), ("d2", "b"), ("d1", "c")],
            "corpus.jsonl:3: the id 'd1' is also the id of line 1; ids must",
        ),
    ],
)
def test_a_wrong_corpus_is_refused(tmp_path, documents, message):
    assert message in refusal(Corpus.read, write(tmp_path, documents), LAYOUT)


def test_an_id_of_no_document_is_refused(tmp_path):
    path = write(tmp_path, DOCUMENTS)
    corpus = Corpus.read(path, LAYOUT)
    for name in ("d4", "", "d1 "):
        rows = rows_of([("q", "d1"), ("q", name)])
        message = refusal(Search.of, rows, corpus)
        assert message.startswith(
            f"dev.csv:3: no document of {path} has the id {name!r}; "
        )


def test_scores_with_ids_are_those_of_pytrec_eval():
    """Question q has the id of document q; documents 40 to 43 are missing.

    The values are those of pytrec_eval 0.5 for a ranking without own documents.
    """
    rng = default_rng(7)
    queries = rng.integers(-9, 10, (6, 5)).astype(np.float32)
    corpus = rng.integers(-9, 10, (40, 5)).astype(np.float32)
    judged = []
    for query in range(6):
        documents = rng.permutation(44)[:5]
        for document, gain in zip(documents, rng.integers(1, 4, 5)):
            judged.append((f"d{query}", f"d{document}", str(gain)))
    judged.append(("d2", "d2", "2"))
    names, ids, gains = map(list, zip(*judged))
    texts = [f"t{n}" for n in range(40)]
    # A text of the corpus: only ids count.
    rows = Rows("x", np.arange(len(ids)), ["t9"] * len(ids), ids, gains, names)
    places = {f"d{n}": n for n in range(40)}
    search = Search.of(rows, Corpus("c", texts, places, texts, "count"))
    assert retrieval_scores(
        queries, corpus, search.relevant, search.copies
    ) == pytest.approx(
        {
            "ndcg_at_10": 0.24875801535663966,
            "mrr": 0.3323112073112073,
            "map": 0.23096484681639837,
            "recall_at_1": 0.03333333333333333,
            "recall_at_10": 0.2833333333333334,
            "recall_at_100": 0.9111111111111111,
        },
        abs=1e-6,
    )


def test_judgements_of_absent_questions_are_counted(tmp_path, caplog):
    path = tmp_path / "queries.jsonl"
    questions = [{"_id": f"q{n}", "text": f"t{n}"} for n in range(4)]
    write_json_lines(path, questions)
    judged = rows_of([("q1", "d1", "2"), ("q9", "d1", "1"), ("q1", "d2", "1")])
    rows = add_questions(judged, str(path))
    assert (rows.text_a, rows.row_id) == (["t1", "t1"], ["q1", "q1"])
    assert (rows.text_b, rows.label) == (["d1", "d2"], ["2", "1"])
    assert "1 judgements of questions that" in caplog.text
    assert "3 questions of" in caplog.text
    message = refusal(add_questions, rows_of([("q9", "d1", "1")]), str(path))
    assert "no judgement is of a question of" in message
