"""BERT's matrices in int8: rounding, and everything that computes on them."""

import json
from dataclasses import replace
from functools import partial
from math import prod

import hypothesis
import hypothesis.extra.numpy
import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    SENTENCES,
    TINY_WORDS,
    entry_point,
    module_fixture,
    open_bert,
    read_json,
    read_json_lines,
    write_bert,
    write_lines,
)
from engine_jobs import (
    CLASSIFICATION,
    LENGTH,
    check_equal,
    make_job,
    make_rows,
    new_engine,
    train,
    trained_values,
)
from engine_jobs import predict as predict_rows
from hypothesis import strategies
from numpy.testing import assert_allclose, assert_array_equal
from tiny_artifacts import CLASSIFICATION as ONE_TEXT
from tiny_artifacts import make_adapters, make_artifact

import adapter_bert as ab
from adapter_bert.answering.embeddings import Embedder
from adapter_bert.answering.predictor import Predictor
from adapter_bert.bert import encoder, gradients, int8
from adapter_bert.bert.config import BertConfig
from adapter_bert.checkpoints.changed_weights import rounded_to_int8
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.commands import export, predict
from adapter_bert.graph.exported import ExportedModel, Row
from adapter_bert.tasks.task_model import int8_variables

pytestmark = pytest.mark.newer_stack

KERNEL = "bert/encoder/layer_0/output/dense/kernel"
WORDS = encoder.WORD_EMBEDDINGS
# Kernels of BERT are small; the least float32 would be lost.
MATRICES = hypothesis.extra.numpy.arrays(
    np.float32,
    hypothesis.extra.numpy.array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=strategies.floats(-1e6, 1e6, width=32).map(
        lambda x: np.float32(x if abs(x) > 1e-20 else 0.0)
    ),
)


@hypothesis.settings(max_examples=200)
@hypothesis.given(MATRICES, strategies.sampled_from([KERNEL, WORDS]))
def test_a_value_is_rounded_to_the_nearest_step_of_its_channel(matrix, name):
    kept = int8.quantize(name, matrix)
    assert kept.values.dtype == np.int8 and kept.values.min() >= -127
    for part, spec in zip(kept, int8.specs(name, matrix.shape)):
        assert (part.dtype, part.shape) == (spec.dtype, tuple(spec.shape))
    wide = kept.values * kept.scale
    apart = np.abs(wide.astype(np.float64) - matrix)
    # Stored again, it has the same bits.
    assert_array_equal(kept.widened(), wide)
    for part, same in zip(kept, int8.quantize(name, kept.widened().numpy())):
        assert_array_equal(part, same)
    # The division by the scale rounds too.
    assert (apart <= kept.scale * np.float64(0.5 + 1e-5)).all()
    greatest = np.abs(matrix).max(axis=int(name == WORDS), keepdims=True)
    assert (kept.scale <= greatest / np.float64(127) * (1 + 2.0**-15)).all()


def test_a_matrix_that_is_not_finite_is_refused():
    weights = Weights(
        "bert.ckpt", {}, lambda name: np.full((2, 2), np.nan, np.float32)
    )
    rounded = rounded_to_int8(weights, {KERNEL})
    refusals.check(
        lambda: rounded.read(KERNEL), f"bert.ckpt: {KERNEL} holds a value"
    )
    assert np.isnan(rounded.read("bert/encoder/layer_0/output/bias")).all()


@module_fixture
def rounded_bert(tiny_bert, tiny_config, tiny_weights, tmp_path_factory):
    """A BERT in float32 with the values that int8 keeps of the tiny one's."""
    weights = Weights("tiny", {}, tiny_weights.__getitem__)
    rounded = rounded_to_int8(weights, int8.names(tiny_weights))
    folder = tmp_path_factory.mktemp("rounded_bert")
    values = {name: rounded.read(name) for name in tiny_weights}
    return write_bert(folder, TINY_WORDS, tiny_config, values)


def bytes_of(values):
    return sum(x.dtype.size * prod(x.shape) for x in tf.nest.flatten(values))


def test_the_weights_take_a_quarter_of_the_memory(tiny_bert):
    bert = open_bert(tiny_bert, base_dtype="int8")
    variables = list(bert.variables.values())

    def specs(config):
        shapes = encoder.list_variables(config)
        named = int8.names(shapes)
        return [
            int8.specs(name, shape)
            if name in named
            else tf.TensorSpec(shape, tf.float32)
            for name, shape in shapes.items()
        ]

    assert bytes_of(variables) == bytes_of(specs(bert.config))
    large = BertConfig(30522)
    whole = 4 * sum(map(prod, encoder.list_variables(large).values()))
    assert bytes_of(specs(large)) < 0.27 * whole


def test_a_layers_gradient_keeps_no_widened_matrix():
    def layer(x, values, scale):
        return tf.tanh(x @ encoder.Quantized(values, scale).widened(x.dtype))

    kept = int8.quantize(KERNEL, np.random.default_rng(0).normal(size=(8, 7)))
    for dtype in (tf.float32, tf.bfloat16):
        arguments = [tf.ones([3, 8], dtype), *map(tf.constant, kept)]
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in arguments]
        passes = gradients._Passes(layer, specs, [0])
        _, *saved = passes.forward(*arguments)
        assert {tuple(x.shape) for x in saved} == {(3, 7)}
        assert set(passes.read) == {1, 2}
        saved += [arguments[place] for place in passes.read]
        with tf.GradientTape() as tape:
            tape.watch(arguments[0])
            outputs = layer(*arguments)
        [gradient] = passes.backward(tf.ones([3, 7], dtype), *saved)
        assert_array_equal(gradient, tape.gradient(outputs, arguments[0]))


# Trainings


def int8_job(config, folder, method="houlsby(size=4)", **more):
    """A job whose frozen matrices are in int8, and the same in float32."""
    plain = make_job(config, folder("plain"), method, **more)
    names, fresh = int8_variables(plain.table), plain.initial_values
    weights = Weights("fresh", {}, lambda name: fresh[name]())
    rounded = rounded_to_int8(weights, names)
    values = {name: partial(rounded.read, name) for name in fresh}
    plain = replace(plain, initial_values=values)
    kept = str(folder("int8"))
    return replace(plain, quantized=names, output_dir=kept), plain


@pytest.mark.gate
@pytest.mark.parametrize(
    "method, more",
    [
        ("houlsby(size=4)", {}),
        ("lora(rank=2)", {"compute_dtype": "bfloat16", "lanes": 2}),
        ("bitfit", {"share_layers": False}),
    ],
)
def test_a_training_has_the_bits_of_one_with_rounded_matrices(
    tiny_config, folders, method, more
):
    """And a training that was interrupted too."""
    rows = make_rows(CLASSIFICATION)
    job, plain = int8_job(tiny_config, folders, method, **more)
    if not more:
        assert train(new_engine(), job, rows, stop_at=2)[-1][0] == 2
    train(new_engine(), job, rows)
    train(new_engine(), plain, rows)
    check_equal(trained_values(job), trained_values(plain))
    outputs, expected = (
        predict_rows(new_engine(), j, rows, 8) for j in (job, plain)
    )
    assert_array_equal(outputs["logits"], expected["logits"])


@pytest.mark.gate
def test_a_training_under_xla_recomputes_layers(steady_config, folders, steady):
    rows = make_rows(CLASSIFICATION)
    job, plain = int8_job(steady_config, folders, length=LENGTH)
    job = replace(job, use_xla=True, recompute_layers=True)
    losses = [train(new_engine(), one, rows, steps=2) for one in (job, plain)]
    assert_allclose(*losses, atol=1e-5)


def test_a_run_says_what_it_computes_on(classify, tiny_flags, tiny_data):
    """In `run.json`, by which other runs are refused."""
    flags = {**tiny_flags, "num_train_epochs": 1, "engine": "strategy"}
    flags.update(cache_frozen_layers=True, tuning_method="head")
    del flags["adapter_size"]
    out = flags["output_dir"]
    classify(**flags, base_dtype="int8", do_eval=True)
    recorded = read_json(out, "run.json")["training"]
    assert recorded["base_dtype"] == "int8"
    refusals.check(lambda: classify(**flags), "base_dtype was 'int8', now None")
    kept = tiny_data / "frozen_layers"
    files = {path.name for path in kept.glob("*.npy")}
    classify(**{**flags, "output_dir": out.parent / "whole"})
    # Outputs of the layers in float32 are others.
    assert len({path.name for path in kept.glob("*.npy")} - files) == 1
    assert (
        "base_dtype"
        not in read_json(out.parent, "whole", "run.json")["training"]
    )


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"tuning_method": "full"}, "but full trains some"),
        ({"use_tpu": True}, "leave it out on a TPU"),
    ],
)
def test_what_cannot_be_in_int8_is_refused(
    classify, tiny_flags, settings, words
):
    del tiny_flags["adapter_size"]
    refusals.check(
        lambda: classify(**{**tiny_flags, **settings}, base_dtype="int8"), words
    )
    assert not tiny_flags["output_dir"].exists()


def test_several_workers_are_refused(classify, tiny_flags, monkeypatch):
    workers = {"worker": ["localhost:1", "localhost:2"]}
    about = {"cluster": workers, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(about))
    refusals.check(
        lambda: classify(**tiny_flags, base_dtype="int8"),
        "int8 needs one process, but TF_CONF",
    )


# Answers

METHODS = ("houlsby(size=4)", "lora(rank=2)", "bitfit")
ROWS = [text for text, _ in SENTENCES]


@module_fixture
def pairs(tiny_bert, rounded_bert, tmp_path_factory):
    """The same adapters for the tiny BERT and for the rounded one."""
    tasks = {text.partition("(")[0]: (text, ONE_TEXT) for text in METHODS}
    return [
        make_adapters(tmp_path_factory.mktemp("adapters"), base, tasks)
        for base in (tiny_bert, rounded_bert)
    ]


@pytest.mark.gate
@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_answers_have_the_bits_of_a_rounded_bert(
    tiny_bert, rounded_bert, pairs, compute_dtype
):
    """In mixed batches; and so have vectors."""
    answers, vectors = [], []
    for place, base, folders in zip(
        (tiny_bert, rounded_bert), ("int8", "float32"), pairs
    ):
        bert = open_bert(place, compute_dtype=compute_dtype, base_dtype=base)
        vectors.append(Embedder(bert)(ROWS))
        predictor = Predictor(bert, batch_size=4)
        for name, folder in folders.items():
            predictor.add(folder, name)
        questions = [(name, row) for row in ROWS for name in folders]
        answers.append(predictor.ask(questions))
    assert answers[0] == answers[1]
    assert_array_equal(*vectors)


def test_an_adapter_that_changes_matrices_is_refused(tiny_bert, tmp_path):
    make_artifact(tmp_path / "whole", tiny_bert, "full")
    bert = open_bert(tiny_bert, base_dtype="int8")
    refusals.check(
        lambda: Predictor(bert).add(str(tmp_path / "whole"), "whole"),
        "but full trains some",
    )


def test_python_has_the_argument(tiny_bert, pairs, tmp_path):
    """Of predictors, and of trainings that name no other."""
    bert = ab.load_bert(tiny_bert, base_dtype="int8")
    folder = pairs[0]["houlsby"]
    rounded = ab.Predictor(bert, folder).predict(ROWS)
    plain = ab.Predictor(ab.load_bert(tiny_bert), folder).predict(ROWS)
    assert [a.scores for a in rounded] != [a.scores for a in plain]
    rows = [{"text": text, "label": label} for text, label in SENTENCES]
    settings = {"num_train_epochs": 1, "output_dir": tmp_path / "out"}
    ab.train(bert, rows, max_seq_length=24, **settings)
    recorded = read_json(tmp_path / "out", "run.json")["training"]
    assert recorded["base_dtype"] == "int8"


@pytest.mark.gate
def test_commands_take_the_flag(tiny_bert, pairs, tmp_path):
    """An exported model keeps int8, and answers alike."""
    folder = pairs[0]["houlsby"]
    write_lines(tmp_path / "rows.txt", ROWS)
    flags = {"init_checkpoint": tiny_bert, "adapter": folder}
    with entry_point(predict) as run:
        for base in "int8", "float32":
            output = tmp_path / f"{base}.jsonl"
            run(
                **flags,
                input=tmp_path / "rows.txt",
                output=output,
                base_dtype=base,
            )
    answers, others = (
        read_json_lines(path)
        for path in (tmp_path / "int8.jsonl", tmp_path / "float32.jsonl")
    )
    assert answers != others
    with entry_point(export) as write:
        write(**flags, output_dir=tmp_path / "exported", base_dtype="int8")
    model = ExportedModel(str(tmp_path / "exported"))
    name = answers[0].get("task", "mrpc")
    outputs = model.answers([Row(r.encode(), b"", name.encode()) for r in ROWS])
    for one, other in zip(outputs, answers):
        assert one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["probability"], 1e-5)
