"""Two adapters for vectors, of questions and of documents, in one training."""

from dataclasses import replace

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    as_tensors,
    latest_step,
    load_predictor,
    read_adapter,
    read_adapter_config,
    read_json,
    read_json_lines,
    write_json_lines,
)
from engine_jobs import (
    LENGTH,
    TWO,
    VECTORS,
    check_equal,
    check_gradients,
    first_step,
    make_job,
    new_engine,
    predict,
    shaken_model,
    train,
    trained_values,
)
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from run_folders import bytes_by_task, kill_and_go_on
from task_files import refusal
from test_methods_runs import without_size
from tiny_artifacts import make_artifact

from adapter_bert import api
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints.weights import Weights, choose_initial_values
from adapter_bert.data.input_pipeline import Choices, Features, make_batch
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.task import scoped
from adapter_bert.tasks.task_model import list_parameters
from adapter_bert.tasks.vectors import SIDES, Vectors

TOKENS = "input_ids", "input_mask", "segment_ids"


def rows_of(texts):
    """40 rows of so many random texts."""
    rng = default_rng(0)
    lengths = rng.integers(3, LENGTH + 1, 40 * texts)
    rows = [(rng.integers(4, 30, n), [0] * n) for n in lengths]
    ids = rng.integers(0, 60, (40, texts)).astype(np.int32)
    features = Features.from_rows(rows, {"text_ids": ids})
    return Choices(**vars(features), choices=texts, has_sides=True)


def batch_of(texts):
    batch = make_batch(rows_of(texts), np.arange(8), LENGTH)
    return as_tensors(batch)


@pytest.mark.gate
@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "method, texts, changes",
    [
        ("houlsby(size=4)", 3, {"parts": 4, "lanes": 2}),
        ("prefix(length=2)", 2, {}),
    ],
)
def test_the_gradient_is_that_of_two_models(
    steady_config, method, texts, changes
):
    """Each of them has read the texts of its side alone."""
    job = make_job(steady_config, "unused", method, task=TWO, **changes)
    model, made, trained = shaken_model(job)
    batch = batch_of(texts)
    single = make_job(steady_config, "unused", method, task=VECTORS)
    models = []
    for side in SIDES:
        of_side = {
            p.name: made[scoped(side, p.name) if p.trained else p.name]
            for p in single.table.parameters
        }
        models.append(
            single.build_model(lambda name, *_, of_side=of_side: of_side[name])
        )

    @tf.function(autograph=False)
    def apart():
        parts = []
        with tf.GradientTape() as tape:
            for side_model, part in zip(models, (slice(1), slice(1, None))):
                texts = {name: batch[name][:, part] for name in TOKENS}
                mask, seed = texts["input_mask"], tf.constant([5, 0])
                vectors = side_model(texts, Context(mask, True, seed))[
                    "vectors"
                ]
                parts.append(tf.reshape(vectors, [8, -1, 16]))
            vectors = tf.concat(parts, axis=1)
            loss = tf.reduce_mean(model.head.batch_loss(vectors, batch))
        return loss, tape.gradient(loss, [v for _, v in trained])

    loss, gradients = first_step(job, model, trained, batch)
    expected, others = apart()
    assert loss.numpy() == pytest.approx(expected.numpy(), rel=1e-6)
    assert len(trained) == 2 * len(single.table.trained)
    check_gradients(trained, gradients, others)


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_side_is_its_own_texts_and_dropout(tiny_config):
    """Layers of both are traced once."""
    job = make_job(tiny_config, "unused", task=TWO)
    model, made, _ = shaken_model(job)
    for p in job.table.trained:
        # Both sides are alike.
        made[p.name].assign(made[scoped(SIDES[0], p.begins_as)])
    batch = batch_of(2)
    for name in TOKENS:
        texts = batch[name].numpy()
        texts[:, 1] = texts[:, 0]
        batch[name] = tf.constant(texts)

    def vectors(training):
        context = Context(
            batch["input_mask"],
            training,
            tf.constant([5, 0]),
            share_layers=True,
        )
        return model(batch, context)["vectors"]

    plain = vectors(False).numpy()
    assert plain.shape == (8, 2, 16)
    assert_allclose(plain[:, 0], plain[:, 1], atol=1e-6)
    trained = vectors(True).numpy()
    distance = np.abs(trained[:, 0] - trained[:, 1]).max(axis=1)
    assert distance.min() > 1e-3
    first, second = (bert.run_layer._functions for bert in model.berts)
    # In training, and in prediction.
    assert first is second and len(first) == 2


@pytest.mark.newer_stack
def test_both_sides_begin_as_one_adapter_would(tiny_config):
    """From a seed, from BERT's own LayerNorms, or from a trained adapter."""
    method = parse("houlsby(size=4)")
    one = list_parameters(tiny_config, method, VECTORS.build_head)
    two = list_parameters(tiny_config, method, TWO.build_head)
    assert two.trained_count == 2 * one.trained_count
    rng = default_rng(0)
    values = {
        p.name: rng.normal(size=p.shape).astype(np.float32)
        for p in one.parameters
    }
    base, trained = (
        Weights(
            source,
            {p.name: p.shape for p in parameters},
            lambda name: values[name],
        )
        for source, parameters in (
            ("bert", [p for p in one.parameters if not p.is_added]),
            ("adapter", one.trained),
        )
    )
    for weights in (None, trained):
        expected, parameters = (
            choose_initial_values(table.parameters, base, weights, 3)
            for table in (one, two)
        )
        for p in two.parameters:
            assert_array_equal(
                parameters[p.name](), expected[p.begins_as](), err_msg=p.name
            )
            assert two.recipe.decay_of(p.name) == one.recipe.decay_of(
                p.begins_as
            )


@pytest.fixture
def make_engine(engine):
    """Makes each engine in turn."""
    return lambda: new_engine(engine)


@pytest.mark.gate
@pytest.mark.older_stack
def test_engines_go_on_and_predict_in_lanes(tiny_config, folders, make_engine):
    rows = rows_of(3)
    config = replace(tiny_config, num_hidden_layers=1)
    whole, parts = (
        make_job(config, folders(folder), task=TWO, lanes=2)
        for folder in ("whole", "parts")
    )
    losses = train(make_engine(), whole, rows, steps=4)
    train(make_engine(), parts, rows, steps=4, stop_at=2)
    assert train(make_engine(), parts, rows, steps=4) == losses[2:]
    check_equal(trained_values(parts), trained_values(whole))
    names = {p.name for p in whole.table.trained}
    assert names <= trained_values(whole).keys()
    # The last batch has one row.
    predicted = predict(make_engine(), whole, rows, 13)["vectors"]
    assert predicted.shape == (120, 16)
    alone = predict(make_engine(), whole, rows, 40)["vectors"]
    assert_allclose(predicted, alone, atol=1e-5)


@pytest.mark.gate
@pytest.mark.newer_stack
def test_xla_computes_the_same(steady_config, folders):
    """Its batches have fixed shapes, where both adapters read every text."""
    config = replace(steady_config, num_hidden_layers=1)
    rows, engine = rows_of(3), new_engine()
    plain = make_job(config, folders("plain"), task=TWO)
    compiled = make_job(
        config,
        folders("compiled"),
        task=TWO,
        lanes=2,
        length=LENGTH,
        use_xla=True,
    )
    jobs = plain, compiled
    losses = [train(engine, job, rows) for job in jobs]
    assert_allclose(*losses, atol=1e-4)
    # The last of these batches has three texts.
    predicted = [predict(engine, job, rows, 13)["vectors"] for job in jobs]
    assert_allclose(*predicted, atol=5e-4)


WRONG_METHODS = (
    "full",
    "top_layers(1)",
    "diff_pruning",
    "lt_sft",
    "adalora",
    "per_task(lora(rank=2), tasks='question,document')",
    "stack(lora(rank=2), top_layers(1))",
)


@pytest.mark.older_stack
@pytest.mark.parametrize("method", WRONG_METHODS)
def test_methods_that_two_sides_cannot_have(tiny_config, method):
    message = refusal(
        list_parameters, tiny_config, parse(method), TWO.build_head
    )
    assert message.startswith(f"--two_adapters: {method.split('(')[0]}")
    assert "expected a method that adds values of fixed sizes" in message


@pytest.mark.older_stack
def test_a_run_of_one_adapter_does_not_go_on_with_two():
    one = replace(TWO, two_adapters=False)
    for task, other in ((one, TWO), (TWO, one)):
        described = {"name": task.name, **task.describe()}
        assert task.go_on(described, "out") == task
        message = refusal(other.go_on, described, "out")
        value = str(task.two_adapters).lower()
        assert f"pass --two_adapters={value}, or choose another" in message


@pytest.fixture
def flags(vector_flags):
    """Flags of a small training of two adapters."""
    return {**vector_flags, "two_adapters": True, "num_train_epochs": 6}


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_killed_run_goes_on_and_both_adapters_answer(
    vectors, flags, tiny_bert, tmp_path, monkeypatch
):
    """Rows of both in one batch have the vectors that the run has scored."""
    scored = []
    score = Vectors.evaluate

    def evaluate(self, rows, features, predictions):
        scored.append(predictions)
        return score(self, rows, features, predictions)

    monkeypatch.setattr(Vectors, "evaluate", evaluate)
    flags.update(keep_best="mrr", save_checkpoints_steps=2)
    flags.update(gradient_accumulation_steps=2, cpu_lanes=2)
    whole, killed = kill_and_go_on(
        vectors, flags, tmp_path, program="run_vectors.py"
    )
    assert bytes_by_task(killed) == bytes_by_task(whole)
    assert bytes_by_task(whole).keys() == {*SIDES}
    for name in ("eval_results.json", "dev_scores.json"):
        assert read_json(killed / name) == read_json(whole / name)
    assert not (whole / "adapter").exists()
    run = read_json(whole / "run.json")
    assert run["training"]["two_adapters"]
    rows = read_json_lines(flags["eval_file"])
    predictor = load_predictor(tiny_bert, [])
    for side in SIDES:
        folder = whole / "tasks" / side / "adapter"
        predictor.add(str(folder), side)
        config = read_adapter_config(folder)
        assert config["task"] == {
            "name": "vectors",
            "pooling": "mean",
            "normalize": False,
        }
        parameters = config["parameters"]
        assert 2 * parameters["kept"] == run["parameters"]["kept"]
        assert 2 * parameters["trained"] == run["parameters"]["trained"]
    questions = [
        (side, row[column])
        for row in rows
        for side, column in zip(SIDES, ("text", "match"))
    ]
    answers = [answer.vector for answer in predictor.ask(questions)]
    answers = np.reshape(answers, scored[-1].shape)
    assert_allclose(answers, scored[-1], atol=1e-5)
    # Neither is the other's, so that the score is of both.
    other = predictor("document", [rows[0]["text"]])[0].vector
    assert np.abs(other - answers[0, 0]).max() > 1e-2


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_corpus_is_searched_by_both(vectors, flags, tmp_path):
    """A corpus of the second texts gives the scores of these pairs."""
    flags["num_train_steps"] = 1
    vectors(**{**flags, "output_dir": tmp_path / "pairs"})
    rows = read_json_lines(flags["eval_file"])
    corpus = tmp_path / "corpus.jsonl"
    documents = {f"d{n}": row["match"] for n, row in enumerate(rows)}
    write_json_lines(
        corpus, [{"_id": x, "text": text} for x, text in documents.items()]
    )
    for row, name in zip(rows, documents):
        row["match"] = name
    for name in ("train_file", "eval_file"):
        flags[name] = tmp_path / f"{name}.jsonl"
        write_json_lines(flags[name], rows)
    vectors(**flags, corpus_file=corpus)
    expected, searched = (
        read_json(folder, "eval_results.json")
        for folder in (tmp_path / "pairs", flags["output_dir"])
    )
    for name in ("ndcg_at_10", "mrr", "recall_at_1", "recall_at_10"):
        assert searched[f"eval_{name}"] == expected[f"eval_{name}"]
    flags.update(two_adapters=False, do_train=False, corpus_file=corpus)
    refusals.check(
        lambda: vectors(**flags), "a run of two adapters; pass --two_ad"
    )


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_trained_adapter_begins_both(vectors, flags, tiny_bert, tmp_path):
    described = {"name": "vectors", "pooling": "cls", "normalize": True}
    make_artifact(
        tmp_path / "one", tiny_bert, "lora(rank=2)", None, described, 0
    )
    flags = {**without_size(flags), "adapter": tmp_path / "one"}
    vectors(**{**flags, "num_train_steps": 1})
    out = flags["output_dir"]
    run = api.Run(str(out))
    assert run.adapters.keys() == {*SIDES} and run.settings["training"]["start"]
    begun, *both = (
        read_adapter(folder).weights
        for folder in (tmp_path / "one", *run.adapters.values())
    )
    for weights in both:
        assert weights.shapes == begun.shapes
        for name in begun.shapes:
            # A step changes an entry by the rate at most.
            assert_allclose(weights.read(name), begun.read(name), atol=0.02)
    # What two have learned is no start of one.
    checkpoint = latest_step(out)[0]
    del flags["two_adapters"], flags["adapter"]
    flags.update(init_checkpoint=checkpoint, output_dir=tmp_path / "other")
    refusals.check(
        lambda: vectors(**flags), "pass the folder tasks/<name>/adapter"
    )


@pytest.mark.newer_stack
def test_single_texts_have_no_sides(vectors, flags):
    del flags["text_b_column"]
    refusals.check(
        lambda: vectors(**flags), "adapter, but these are single texts; pass"
    )
    assert not flags["output_dir"].exists()
