"""Vectors' entry point: a run's files, further runs, refusals."""

import json

import pytest
from conftest import SENTENCES, TINY_WORDS, entry_point
from run_folders import artifact_bytes, read
from test_methods_runs import without_size

from adapter_bert import api
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.commands import run_vectors
from adapter_bert.errors import UserError

TEXTS = [text for text, _ in SENTENCES]


@pytest.fixture
def vectors():
    """Runs `run_vectors.py` with flags, within this process."""
    with entry_point(run_vectors) as run:
        yield run


@pytest.fixture
def vector_flags(tiny_flags, tmp_path):
    """Flags of a small training on pairs."""
    for name in ("task_name", "data_dir"):
        del tiny_flags[name]
    # Nothing but a training finds out which word belongs to a text.
    words = [word for word in TINY_WORDS if word.isalpha()]
    rows = [{"text": text, "match": word} for text, word in zip(TEXTS, words)]
    for number, row in enumerate(rows):
        row["score"] = number % 3
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dev = tmp_path / "dev.jsonl"
    dev.write_text(path.read_text())
    return {
        **tiny_flags,
        "train_file": path,
        "eval_file": dev,
        "text_b_column": "match",
        "learning_rate": 1e-2,
        "do_eval": True,
        "train_batch_size": 4,
    }


@pytest.mark.gate
def test_a_run_learns_and_writes_an_adapter(vectors, vector_flags, tmp_path):
    flags = {**vector_flags, "num_train_epochs": 30}
    untrained = {**without_size(flags), "tuning_method": "head"}
    untrained.update(do_train=False, output_dir=tmp_path / "frozen")
    vectors(**untrained)
    vectors(**flags)
    out = flags["output_dir"]
    before, after = (
        read(folder, "eval_results.json")
        for folder in (tmp_path / "frozen", out)
    )
    assert after["eval_mrr"] > before["eval_mrr"]
    run = read(out, "run.json")
    assert run["task"] == {
        "name": "vectors",
        "pooling": "mean",
        "normalize": False,
    }
    assert run["training"]["loss"] == "infonce"
    assert run["training"]["temperature"] == 0.05
    artifact = adapter_artifact.read(str(out / "adapter"))
    assert artifact.config["task"] == run["task"]
    assert not [name for name in artifact.weights.shapes if "output_" in name]
    # The adapter alone scores alike.
    again = {**without_size(flags), "do_train": False}
    again.pop("tuning_method", None)
    again.update(adapter=out / "adapter", output_dir=tmp_path / "again")
    vectors(**again)
    scores = read(tmp_path / "again", "eval_results.json")
    for name in ("eval_mrr", "eval_ndcg_at_10", "dev_data"):
        assert scores[name] == after[name]


@pytest.mark.gate
@pytest.mark.newer_stack
def test_scores_and_single_texts_train_too(vectors, vector_flags, tmp_path):
    flags = {**vector_flags, "score_column": "score", "num_train_epochs": 1}
    flags.update(matryoshka_sizes="8,16", pooling="cls", normalize=True)
    vectors(**flags)
    scores = read(flags["output_dir"], "eval_results.json")
    assert {"eval_spearman", "eval_pearson", "eval_spearman_of_8"} < set(scores)
    run = read(flags["output_dir"], "run.json")
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
    assert set(run.scores) == {
        "ndcg_at_10",
        "mrr",
        "recall_at_1",
        "recall_at_10",
    }
    settings = {"text_b_column": "match"}
    assert api.evaluate(bert, run, rows, **settings) == run.scores


WRONG = {
    "rows": ({"train_batch_size": 1}, "--train_batch_size is 1, but the loss "),
    "task": ({"task_name": "RTE"}, "expected one of mrpc, qqp, qnli, sts-b, "),
    "columns": ({"task_name": "MRPC"}, "--text_b_column is for --task_name=cu"),
    "squad": ({"task_name": "SQuAD"}, "/pairs.jsonl, expected the ending .js"),
    "predict": ({"do_predict": True}, "`adapter-bert predict --embeddings`"),
    "loss": ({"loss": "cosent"}, "pass --score_column, or --loss=infonce"),
    "method": ({"tuning_method": "head"}, "trains the task's head alone, and"),
    "temperature": ({"temperature": 0}, "--temperature is 0.0, expected a po"),
    "both": ({"data_dir": "."}, "--train_file and --data_dir exclude each oth"),
}


@pytest.mark.older_stack
@pytest.mark.parametrize("name", WRONG)
def test_flags_that_do_not_fit_are_one_line(vectors, vector_flags, name):
    changes, message = WRONG[name]
    if name == "squad":
        del vector_flags["text_b_column"]
    if name == "method":
        vector_flags = without_size(vector_flags)
    with pytest.raises(UserError) as raised:
        vectors(**{**vector_flags, **changes})
    assert message in str(raised.value) and "\n" not in str(raised.value)
