"""Prompts and dense layers: trained, kept, answered, exported, written."""

import dataclasses
import json
import math
from shutil import copytree

import numpy as np
import pytest
import refusals
from conftest import (
    ROOT,
    TINY_WORDS,
    module_fixture,
    open_bert,
    open_checkpoint,
    read_adapter,
    read_json,
    read_json_lines,
    trained_task,
    write_json_lines,
)
from numpy.testing import assert_allclose
from run_folders import artifact_bytes, bytes_by_task
from test_convert_checkpoint import convert  # noqa: F401
from test_methods_runs import without_size
from test_sentence_transformers import run_library
from tiny_artifacts import make_artifact

from adapter_bert.answering.embeddings import VectorForm, embed
from adapter_bert.answering.predictor import Predictor
from adapter_bert.graph import saved_model
from adapter_bert.graph.exported import ExportedModel, Row
from adapter_bert.graph.text_model import TextModel
from adapter_bert.tasks.vector_form import Pooled
from adapter_bert.tasks.vectors import SIDES, Vectors

pytestmark = pytest.mark.newer_stack

GOLDEN = ROOT / "tests/golden/sentence_transformers"
TEXTS = ["the cat sat", "a dog ran", "", "the mat " * 40]
QUERY, DOCUMENT = "the cat: ", "a dog "


@module_fixture
def folder(tmp_path_factory):
    """A folder with two dense layers, whose mean leaves out a prompt."""
    folder = tmp_path_factory.mktemp("form") / "bert"
    copytree(GOLDEN / "whole", folder)
    copytree(GOLDEN / "forms/two_layers", folder, dirs_exist_ok=True)
    return folder


@module_fixture
def adapters(folder, tmp_path_factory):
    """Folders of two adapters, which differ in method, prompt and values."""
    pooled = open_checkpoint(folder).pooled
    place = tmp_path_factory.mktemp("adapters")
    for seed, (name, method) in enumerate(
        {"query": "lora(rank=2)", "passage": "houlsby(size=3)"}.items()
    ):
        described = {**pooled.describe(), "default_prompt_name": name}
        described = {"name": "vectors", **json.loads(json.dumps(described))}
        make_artifact(place / name, folder, method, None, described, seed + 1)
    return {name: place / name for name in ("query", "passage")}


def by_hand(bert, task, prompt):
    """Vectors from the tokens' hidden states, in numpy."""
    values = {n: x.numpy() for n, x in task.values.get().items()}
    of_tokens = embed(
        bert, [prompt + x for x in TEXTS], task=task, pooling="tokens"
    )
    [ids] = task.tokenizer.encode_ids([prompt])
    vectors = np.stack([x.vectors[1 + len(ids) :].mean(0) for x in of_tokens])
    vectors = vectors @ values["dense_0/kernel"] + values["dense_0/bias"]
    erf = np.vectorize(math.erf)
    vectors = vectors * (1 + erf(vectors / np.sqrt(2))) / 2
    vectors = np.tanh(vectors @ values["dense_1/kernel"])
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)[:, None]


def close(vectors, expected):
    assert_allclose(vectors, expected, atol=1e-5)


def export(bert, tasks, form, folder):
    model = TextModel(bert, tasks, 8, form=form)
    saved_model.export(model, bert, tasks, str(folder))
    return ExportedModel(str(folder))


@pytest.mark.gate
def test_every_way_gives_an_adapter_s_vectors(
    folder,
    adapters,
    tmp_path,
    convert,  # noqa: F811
):
    bert = open_bert(folder)
    tasks = {n: trained_task(bert, x) for n, x in adapters.items()}
    expected = {
        name: by_hand(bert, tasks[name], prompt)
        for name, prompt in (("query", QUERY), ("passage", DOCUMENT))
    }
    assert min(np.abs(x).max() for x in expected.values()) > 0.1
    predictor = Predictor(bert)
    for name, place in adapters.items():
        close(embed(bert, TEXTS, task=tasks[name]), expected[name])
        predictor.add(str(place), name)
    close(
        embed(bert, TEXTS, task=tasks["query"], prompt=DOCUMENT),
        by_hand(bert, tasks["query"], DOCUMENT),
    )
    questions = [(name, text) for name in adapters for text in TEXTS]
    both = np.concatenate(list(expected.values()))
    close([answer.vector for answer in predictor.ask(questions)], both)
    # In the graph.
    exported = export(bert, tasks, None, tmp_path / "answers")
    rows = [Row(text.encode(), b"", name.encode()) for name, text in questions]
    close([answer["vector"] for answer in exported.answers(rows)], both)
    form = VectorForm("trained", normalize=None)
    refusals.check(
        lambda: export(bert, tasks, form, tmp_path / "none"),
        "has vectors of another form",
    )
    for number, (name, task) in enumerate(tasks.items()):
        exported = export(bert, {name: task}, form, tmp_path / name)
        of_task = rows[number * len(TEXTS) :][: len(TEXTS)]
        close(exported.vectors(of_task), expected[name])
    # In folders of sentence-transformers, and back.
    merged, shelf = tmp_path / "merged", tmp_path / "shelf"
    convert(
        folder,
        "sentence_transformers",
        merged,
        f"--adapter={adapters['query']}",
    )
    pooled = open_checkpoint(merged).pooled
    assert pooled.similarity_fn_name == "dot" and pooled.prompt() == QUERY
    close(embed(open_bert(merged), TEXTS), expected["query"])
    of_bert = f"--init_checkpoint={folder}"
    run_library("add", shelf, adapters["query"], "--name=query")
    run_library(
        "export", shelf, "query", tmp_path / "peft", "--to=peft", of_bert
    )
    other = tmp_path / "other"
    run_library("import", other, tmp_path / "peft", "--name=again", of_bert)
    again = trained_task(bert, other / "again")
    assert again.task.form == tasks["query"].task.form
    close(embed(bert, TEXTS, task=again), expected["query"])


@pytest.mark.gate
def test_each_task_of_an_export_has_its_dense_layers(
    folder, adapters, tmp_path
):
    """Those of the adapter, or of the folder where an adapter has none."""
    make_artifact(tmp_path / "class", folder, "houlsby(size=2)")
    bert = open_bert(folder)
    places = {"class": tmp_path / "class", "passage": adapters["passage"]}
    tasks = {n: trained_task(bert, x) for n, x in places.items()}
    form = VectorForm("trained", normalize=None, prompt=DOCUMENT)
    exported = export(bert, tasks, form, tmp_path / "exported")
    for name, task in tasks.items():
        rows = [Row(text.encode(), b"", name.encode()) for text in TEXTS]
        expected = embed(
            bert, TEXTS, task=task, pooling="trained", prompt=DOCUMENT
        )
        close(exported.vectors(rows), expected)


@pytest.mark.gate
@pytest.mark.parametrize("two", [False, True])
def test_prompts_are_trained_as_if_they_were_typed(
    vectors, vector_flags, tmp_path, two
):
    """Also in the scores; and kept in the adapters."""
    flags = {**vector_flags, "num_train_epochs": 1, "two_adapters": two}
    prompts = {"query_prompt": QUERY, "document_prompt": DOCUMENT}
    vectors(**flags, **prompts)
    typed = {**flags, "output_dir": tmp_path / "typed"}
    for name in ("train_file", "eval_file"):
        typed[name] = tmp_path / f"typed_{name}.jsonl"
        rows = read_json_lines(flags[name])
        for row in rows:
            row["text"] = QUERY + row["text"]
            row["match"] = DOCUMENT + row["match"]
        write_json_lines(typed[name], rows)
    vectors(**typed)
    out = flags["output_dir"]
    values = bytes_by_task if two else artifact_bytes
    assert values(out) == values(typed["output_dir"])

    def score(place):
        return read_json(place, "eval_results.json")["eval_ndcg_at_10"]

    assert score(out) == score(typed["output_dir"])
    if two:
        for side, prompt in (("question", QUERY), ("document", DOCUMENT)):
            config = read_json(
                out, "tasks", side, "adapter", "adapter_config.json"
            )
            task = Vectors().restore(config["task"], "adapter")
            assert task.prompts == (prompt, prompt)
        return
    again = {**without_size(flags), "do_train": False}
    again.update(adapter=out / "adapter", output_dir=tmp_path / "again")
    vectors(**again)
    assert score(tmp_path / "again") == score(out)
    again["output_dir"] = tmp_path / "c"
    refusals.check(
        lambda: vectors(**again, prompt="it: "), "was trained with the prompts"
    )


@pytest.mark.parametrize(
    "prompt, words",
    [
        ("passages", ("no prompt is called 'passages'", "query", "passage")),
        ("the cat " * 9, ("has 18 tokens", "12", "--max_seq_length")),
    ],
)
def test_prompts_that_do_not_fit(folder, prompt, words):
    refusals.check(
        lambda: embed(open_bert(folder), TEXTS, prompt=prompt), *words
    )


@pytest.mark.gate
def test_dense_layers_begin_as_the_folder_s(
    vectors, vector_flags, folder, tmp_path
):
    """Scored without a training, and trained with the adapter."""
    flags = {**without_size(vector_flags), "init_checkpoint": folder}
    flags.update(max_seq_length=12, learning_rate=1e-3)
    frozen = {**flags, "do_train": False, "output_dir": tmp_path / "frozen"}
    corpus = tmp_path / "corpus.jsonl"
    words = filter(str.isalpha, TINY_WORDS)
    write_json_lines(corpus, [{"_id": word, "text": word} for word in words])
    for searched in ({}, {"corpus_file": corpus}):
        refusals.check(
            lambda searched=searched: vectors(
                **frozen, **searched, tuning_method="head"
            ),
            f"the prompts {QUERY, ''} differ in their number of tokens",
        )
    flags["document_prompt"] = frozen["document_prompt"] = "query"
    vectors(**frozen, tuning_method="head")
    vectors(**flags, tuning_method="lora(rank=2)", num_train_steps=3)
    adapter = read_adapter(flags["output_dir"] / "adapter")
    form = Pooled.restore(adapter.config["task"], "adapter")
    pooled = open_checkpoint(folder).pooled
    assert form == dataclasses.replace(
        pooled, max_seq_length=None, document_prompt=None
    )
    for number, layer in enumerate(pooled.dense):
        for name, value in zip(layer.variables(number), layer.values):
            # Three steps change an entry by about the rate each.
            trained = adapter.weights.read(name)
            assert_allclose(trained, value, atol=4e-3)
            assert np.abs(trained - value).max() > 0


@pytest.mark.gate
def test_two_adapters_share_the_dense_layers(vectors, vector_flags, folder):
    """Each adapter holds the dense layers that both have trained."""
    flags = {**without_size(vector_flags), "init_checkpoint": folder}
    flags.update(max_seq_length=12, document_prompt="query", do_eval=False)
    flags.update(two_adapters=True, tuning_method="lora(rank=2)")
    vectors(**flags, num_train_steps=2)
    bert = open_bert(folder)
    first, second = (
        trained_task(
            bert, flags["output_dir"] / "tasks" / side / "adapter"
        ).values.get()
        for side in SIDES
    )
    [layer, _] = open_checkpoint(folder).pooled.dense
    for name, value in zip(layer.variables(0), layer.values):
        assert np.array_equal(first[name], second[name])
        assert not np.array_equal(first[name], value)
