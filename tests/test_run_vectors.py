"""Vectors' entry point: a run's files, further runs, refusals."""

import pytest
import refusals
from conftest import (
    SENTENCES,
    TINY_WORDS,
    read_adapter,
    read_json,
    write_json_lines,
)
from run_folders import artifact_bytes
from test_methods_runs import without_size

from adapter_bert import api
from adapter_bert.data.tables import Layout
from adapter_bert.tasks.vectors import Vectors, layout_of_columns

TEXTS = [text for text, _ in SENTENCES]


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_run_learns_and_writes_an_adapter(vectors, vector_flags, tmp_path):
    flags = {**vector_flags, "num_train_epochs": 30}
    untrained = {**without_size(flags), "tuning_method": "head"}
    untrained.update(do_train=False, output_dir=tmp_path / "frozen")
    vectors(**untrained)
    vectors(**flags)
    out = flags["output_dir"]
    before, after = (
        read_json(folder, "eval_results.json")
        for folder in (tmp_path / "frozen", out)
    )
    assert after["eval_mrr"] > before["eval_mrr"]
    run = read_json(out, "run.json")
    assert run["task"] == {
        "name": "vectors",
        "pooling": "mean",
        "normalize": False,
    }
    assert run["training"]["loss"] == "infonce"
    assert run["training"]["temperature"] == 0.05
    artifact = read_adapter(out / "adapter")
    assert artifact.config["task"] == run["task"]
    assert not [name for name in artifact.weights.shapes if "output_" in name]


@pytest.mark.gate
@pytest.mark.newer_stack
def test_scores_and_single_texts_train_too(vectors, vector_flags, tmp_path):
    flags = {**vector_flags, "score_column": "score", "num_train_epochs": 1}
    flags.update(matryoshka_sizes="8,16", pooling="cls", normalize=True)
    vectors(**flags)
    scores = read_json(flags["output_dir"], "eval_results.json")
    assert {"eval_spearman", "eval_pearson", "eval_spearman_of_8"} < set(scores)
    run = read_json(flags["output_dir"], "run.json")
    assert run["task"]["sizes"] == [16, 8] and run["task"]["normalize"]
    assert run["training"]["loss"] == "cosent"
    single = {**vector_flags, "num_train_epochs": 1, "do_eval": False}
    for name in ("text_b_column", "eval_file"):
        del single[name]
    vectors(**{**single, "output_dir": tmp_path / "single"})
    assert artifact_bytes(tmp_path / "single")


@pytest.mark.gate
@pytest.mark.newer_stack
def test_the_api_trains_vectors(tiny_bert, tmp_path):
    rows = [{"text": text, "match": text.upper(), "no": "a"} for text in TEXTS]
    bert = api.load_bert(tiny_bert)
    settings = {"text_b_column": "match", "negative_column": "no"}
    run = api.train(
        bert,
        rows,
        rows,
        task_name="vectors",
        num_train_epochs=1,
        train_batch_size=4,
        max_seq_length=16,
        output_dir=str(tmp_path / "out"),
        **settings,
    )
    assert set(run.scores) == set(Vectors(layout=Layout("a", "b")).score_names)
    settings = {"text_b_column": "match"}
    assert api.evaluate(bert, run, rows, **settings) == run.scores


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_corpus_is_searched_and_rows_are_held_out(
    vectors, vector_flags, tmp_path
):
    """Files without a header, and a corpus in JSON as BEIR has it."""
    words = [word for word in TINY_WORDS if word.isalpha()]
    corpus = tmp_path / "corpus.jsonl"
    write_json_lines(
        corpus, [{"_id": str(n), "text": word} for n, word in enumerate(words)]
    )
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)))
    flags = {**vector_flags, "train_file": pairs, "corpus_file": corpus}
    flags.update(text_a_column=1, text_b_column=0, header=False)
    flags.update(dev_share=0.25, split_seed=3, num_train_epochs=1)
    del flags["eval_file"]
    vectors(**flags)
    out = flags["output_dir"]
    scores = read_json(out, "eval_results.json")
    assert 0 < scores["eval_ndcg_at_10"] <= 1
    assert read_json(out, "run.json")["task"]["held_out"] == {
        "share": 0.25,
        "seed": 3,
    }


@pytest.mark.older_stack
@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"corpus_title_column": "text"},
            "--corpus_text_column and --corpus_title_column both name the col",
        ),
        ({"corpus_title_column": "title"}, "corpus.jsonl:1: no key 'title', f"),
        (
            {"loss": "cosent", "score_column": "score"},
            "pass --score_column and no --corpus_file, or --loss=infonce",
        ),
        ({"text_b_column": None}, "pass --text_b_column, the column of the id"),
        (
            {"corpus_file": None, "missing_documents": "skip"},
            "--missing_documents=skip means nothing without --corpus_file",
        ),
    ],
)
def test_a_corpus_that_does_not_fit_is_one_line(
    vectors, vector_flags, tmp_path, changes, message
):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "d1", "text": "a cat"}\n')
    flags = {**vector_flags, "corpus_file": corpus, **changes}
    refusals.check(lambda: vectors(**flags), message)


@pytest.mark.gate
@pytest.mark.older_stack
@pytest.mark.real_data
@pytest.mark.parametrize(
    "changes, scores",
    {
        "folder": (
            {"missing_documents": "count"},
            # Of the third question one of two documents is missing.
            {"ndcg_at_10": (2 + 0.613147) / 3, "recall_at_10": 2.5 / 3},
        ),
        "skip": ({"missing_documents": "skip"}, {"ndcg_at_10": 1, "map": 1}),
        "joined": (
            {"eval_file": "joined.csv", "missing_documents": "count"},
            {"ndcg_at_10": (2 + 0.613147) / 3, "recall_at_10": 2.5 / 3},
        ),
        "known": ({"eval_file": "joined_known.csv"}, {"ndcg_at_10": 1}),
    }.values(),
)
def test_a_folder_of_beir_is_scored_as_its_programs_do(
    vectors, shared_dir, pretrained_dir, tmp_path, changes, scores
):
    folder = shared_dir / "cases/own_files/beir"
    flags = {"task_name": "BEIR", "data_dir": folder}
    if "eval_file" in changes:
        flags = {
            "text_a_column": "question",
            "text_b_column": "document",
            "score_column": "score",
            "query_id_column": "query_id",
            "corpus_file": folder / "corpus.jsonl",
            "corpus_title_column": "title",
        }
        changes = {**changes, "eval_file": folder / changes["eval_file"]}
    out = tmp_path / "out"
    vectors(
        **{**flags, **changes},
        init_checkpoint=pretrained_dir,
        tuning_method="head",
        do_eval=True,
        max_seq_length=16,
        output_dir=out,
    )
    result = read_json(out, "eval_results.json")
    for name, score in scores.items():
        assert result[f"eval_{name}"] == pytest.approx(score, abs=1e-6)


@pytest.mark.older_stack
def test_documents_of_beir_may_be_empty(vectors, tiny_bert, tmp_path):
    """As in its published FiQA; others may have no title."""
    documents = [
        {"_id": "1", "title": "", "text": ""},
        {"_id": "2", "text": "the cat"},
        {"_id": "3", "title": None, "text": "a dog"},
    ]
    write_json_lines(tmp_path / "corpus.jsonl", documents)
    questions = [{"_id": q, "text": "the cat"} for q in "qp"]
    write_json_lines(tmp_path / "queries.jsonl", questions)
    (tmp_path / "qrels").mkdir()
    for split, row in ("train", "p\t3\t1\nq\t2\t1"), ("test", "q\t2\t1"):
        (tmp_path / f"qrels/{split}.tsv").write_text(
            f"query-id\tcorpus-id\tscore\n{row}\n"
        )
    vectors(
        task_name="BEIR",
        data_dir=tmp_path,
        init_checkpoint=tiny_bert,
        tuning_method="layernorm",
        do_train=True,
        num_train_steps=1,
        train_batch_size=2,
        do_eval=True,
        max_seq_length=16,
        output_dir=tmp_path / "out",
    )
    scores = read_json(tmp_path / "out", "eval_results.json")
    assert scores["eval_ndcg_at_10"] == 1
    named = read_json(tmp_path / "out", "run.json")["data_name"]
    assert named == tmp_path.name


def test_documents_that_are_missing_are_left_out_of_trainings(tmp_path, caplog):
    """Lists of negatives in JSON are columns."""
    rows = [
        {"q": "a", "d": "1", "no": ["2", 3]},
        {"q": "b", "d": "2", "no": ["3", "9"]},
        {"q": "c", "d": "3", "no": ["1", "4"]},
    ]
    rows = read_train(tmp_path, rows, missing_documents="count")
    assert (rows.text_a, rows.text_b) == (["a", "c"], ["one", "three"])
    assert rows.choices == (["two", "one"], ["three", "four"])
    assert "1 of 3 pairs name a document that" in caplog.text
    assert "left out" in caplog.text


def read_train(folder, rows, **changes):
    """Questions with documents and negatives of a small corpus."""
    write_json_lines(folder / "train.jsonl", rows)
    corpus = folder / "corpus.csv"
    corpus.write_text("_id,text\n1,one\n2,two\n3,three\n4,four\n")
    layout = layout_of_columns("q", "d", ("no",), None)
    task = Vectors(layout=layout, corpus_file=str(corpus), **changes)
    return task.read(str(folder), ["train"])[1]["train"]


@pytest.mark.parametrize(
    "rows, changes, parts",
    [
        (
            [{"q": "a", "d": "9", "no": "1"}],
            {},
            ("train.jsonl:1", "'9'", "--missing_documents=skip"),
        ),
        (
            [{"q": "a", "d": "9", "no": "1"}],
            {"missing_documents": "skip"},
            ("no pair names a document of", "corpus.csv"),
        ),
        (
            [{"q": "a", "d": "1", "no": ["2"]}, {"q": "b", "d": "2", "no": []}],
            {},
            ("train.jsonl:2", "0 texts, expected 1"),
        ),
    ],
)
def test_negatives_and_ids_that_do_not_fit_are_one_line(
    tmp_path, rows, changes, parts
):
    refusals.check(lambda: read_train(tmp_path, rows, **changes), *parts)
