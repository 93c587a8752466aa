"""`adapter-bert select`: rows of a pool that are to be labelled next."""

import numpy as np
import pytest
import refusals
from conftest import SENTENCES, cells, open_bert, program_fixture
from hypothesis import given
from hypothesis import strategies as st
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.answering.predictor import Predictor
from adapter_bert.commands import select
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.tasks.from_description import restore_task

pytestmark = pytest.mark.newer_stack

TEXTS = [text for text, _ in SENTENCES]


run = program_fixture(select)


@pytest.fixture
def pool(tmp_path):
    path = tmp_path / "pool.tsv"
    path.write_text("".join(f"{text}\n" for text in ["text", *TEXTS]))
    return path


def test_copies_of_a_text_come_last():
    probabilities = np.array([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5], [0.6, 0.4]])
    texts = np.array([7, 2, 7, 3])
    chosen, margins = select.least_sure(probabilities, texts, 4)
    assert chosen.tolist() == [0, 3, 1, 2]
    assert margins == pytest.approx([0, 0.2, 0.8, 0])


def test_rows_of_which_an_adapter_is_least_sure(run, pool, tiny_bert, tmp_path):
    task = restore_task(CLASSIFICATION, {}, "test")
    folder = tmp_path / "adapter"
    make_artifact(folder, tiny_bert, "houlsby(size=8)", task)
    run(
        pool=pool,
        adapter=folder,
        init_checkpoint=tiny_bert,
        output=tmp_path / "next.tsv",
        count=3,
    )
    # In a library it is the same adapter.
    shelf = AdapterLibrary(str(tmp_path / "shelf"), create=True)
    run(
        pool=pool,
        library=shelf.path,
        task=shelf.add(str(folder)),
        init_checkpoint=tiny_bert,
        output=tmp_path / "again.tsv",
        count=3,
    )
    again = (tmp_path / "again.tsv").read_text()
    assert again == (tmp_path / "next.tsv").read_text()
    predictor = Predictor(open_bert(tiny_bert))
    name = predictor.add(str(folder))
    scores = [
        sorted(predictor(name, text)["scores"].values()) for text in TEXTS
    ]
    margins = np.array([x[-1] - x[-2] for x in scores])
    header, *rows = cells(tmp_path / "next.tsv")
    assert header == ["row", "text", "margin"]
    assert [int(row) - 1 for row, *_ in rows] == np.argsort(margins)[
        :3
    ].tolist()
    for row, text, margin in rows:
        assert text == TEXTS[int(row) - 1]
        assert float(margin) == pytest.approx(margins[int(row) - 1], abs=1e-5)


def test_rows_that_differ_most_without_an_adapter(
    run, pool, tiny_bert, tmp_path
):
    path = tmp_path / "twice.tsv"
    path.write_text(pool.read_text() + "".join(f"{x}\n" for x in TEXTS))
    run(
        pool=path,
        init_checkpoint=tiny_bert,
        output=tmp_path / "next.tsv",
        count=99,
    )
    header, *rows = cells(tmp_path / "next.tsv")
    assert header == ["row", "text", "k_centre"]
    assert sorted(int(row) for row, *_ in rows) == [*range(1, 17)]
    # Equal texts come when all others were chosen.
    assert {text for _, text, _ in rows[:8]} == set(TEXTS)


@given(st.integers(2, 12), st.integers(0, 1000))
def test_each_centre_is_the_farthest_from_those_before(count, seed):
    vectors = np.random.default_rng(seed).normal(size=(12, 3))
    chosen, distances = select.k_centre(vectors, count)
    assert len(set(chosen.tolist())) == count
    for number in range(1, count):
        apart = vectors[:, None] - vectors[chosen[:number]]
        nearest = np.linalg.norm(apart, axis=2).min(axis=1)
        assert distances[number] == pytest.approx(nearest.max())
        assert nearest[chosen[number]] == pytest.approx(nearest.max())


BAD = [
    ("text\n", {}, "holds no rows"),
    ("a\tb\tc\n1\t2\t3\n", {}, "found 3 columns"),
    ("a\n", {"by": "margin"}, "no adapter is named"),
    ("a\n", {"adapter": "x", "do_lower_case": True}, "so leave the flag out"),
    ("a\n", {"pool": "missing.tsv"}, "does not exist"),
    ("a\n", {"output": "next.csv"}, "with the ending .tsv"),
]


@pytest.mark.parametrize("text, changes, message", BAD)
def test_bad_input_is_refused_in_one_line(
    run, tiny_bert, tmp_path, text, changes, message
):
    (tmp_path / "pool.tsv").write_text(text)
    flags = {
        "pool": tmp_path / "pool.tsv",
        "init_checkpoint": tiny_bert,
        "output": tmp_path / "next.tsv",
        **changes,
    }
    refusals.check(lambda: run(**flags), message)
    assert not (tmp_path / "next.tsv").exists()


def test_rows_of_one_text_or_two(run, pool, tmp_path, monkeypatch):
    """Whichever comes first."""
    rows = [
        {"row": 2, "text": "c", "margin": 0.1},
        {"row": 1, "text": "a", "text_b": "b", "margin": 0.2},
    ]
    for chosen in rows, rows[::-1]:
        monkeypatch.setattr(select, "choose", lambda _, x=chosen: x)
        run(pool=pool, output=tmp_path / "next.tsv", init_checkpoint="x")
        header, *table = cells(tmp_path / "next.tsv")
        assert header == ["row", "text", "text_b", "margin"]
        assert sorted(table) == [
            ["1", "a", "b", "0.200000"],
            ["2", "c", "", "0.100000"],
        ]


def test_the_pool_is_not_replaced(run, pool):
    before = pool.read_text()
    flags = {"pool": pool, "output": pool, "init_checkpoint": "x"}
    refusals.check(lambda: run(**flags), "name another --output")
    assert pool.read_text() == before
