"""Masked language modelling: texts, head, loss, scores, runs, artifacts."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from conftest import (
    ROOT,
    SENTENCES,
    TINY_WORDS,
    entry_point,
    hugging_face_name,
    own_lines,
    run_process,
)
from engine_jobs import (
    ESTIMATOR,
    LENGTH,
    check_equal,
    make_job,
    predict,
    train,
    trained_values,
)
from task_files import PROPERTY, refusal
from test_methods_runs import TEXTS, without_size
from test_sources import google_bert, save_tensorflow  # noqa: F401

import modeling
import run_mlm
import task_model
from engines import Hardware, choose_engine
from errors import UserError
from hooks import Context
from input_pipeline import make_batch
from methods.parsing import parse
from tasks.masked_lm import (
    WORD_EMBEDDINGS,
    Lines,
    cut,
    masked_lm_task,
)
from tasks.masking import NO_TOKEN
from tokenization import FullTokenizer
from weights import adapter_artifact, sources, training_state
from weights.base import choose_initial_values

TASK = masked_lm_task()
HEAD = "cls/predictions/"


@pytest.fixture(scope="module")
def tokenizer(tiny_bert):
    return FullTokenizer(str(tiny_bert / "vocab.txt"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A file to train on and one to evaluate on."""
    folder = tmp_path_factory.mktemp("texts")
    lines = [text for text, _ in SENTENCES]
    (folder / "train.txt").write_text("\n".join(lines * 5) + "\n")
    (folder / "eval.txt").write_text("\n\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def text_rows(texts, tokenizer):
    """The features of the training file, at most `LENGTH` tokens each."""
    rows = Lines.of(str(texts / "train.txt"))
    return TASK.featurize(rows, tokenizer, LENGTH)


@pytest.fixture
def model_text():
    """Runs `run_mlm.py` with flags, within this process."""
    with entry_point(run_mlm) as run:
        yield run


@pytest.fixture
def text_flags(tiny_bert, texts, tmp_path):
    """Flags of a small training."""
    return {
        "train_file": texts / "train.txt",
        "eval_file": texts / "eval.txt",
        "init_checkpoint": tiny_bert,
        "output_dir": tmp_path / "out",
        "do_train": True,
        "max_seq_length": 24,
        "train_batch_size": 8,
        "learning_rate": 1e-2,
        "num_train_epochs": 4,
        "adapter_size": 4,
        "cpu_lanes": 1,
    }


def read(folder, name):
    return json.loads((folder / name).read_text())


def artifact_bytes(folder):
    return (folder / "adapter" / "adapter.safetensors").read_bytes()


# Texts


def write_lines(path, content):
    path.write_bytes(content)
    return Lines.of(str(path))


def test_lines_are_rows_and_empty_ones_are_passed_over(tmp_path, tokenizer):
    rows = write_lines(
        tmp_path / "a.txt",
        b"\xef\xbb\xbfthe cat\r\n\r\n \t \na dog\n\n\xe2\x80\x83\nsat",
    )
    assert len(rows) == 3
    assert list(rows.chunks()) == [["the cat", "a dog", "sat"]]
    features = TASK.featurize(rows, tokenizer, 24)
    words = [TINY_WORDS[n] for n in features.tokens]
    assert " ".join(words) == (
        "[CLS] the cat [SEP] [CLS] a dog [SEP] [CLS] sat [SEP]"
    )
    assert not features.segments.any()


def test_lines_are_read_some_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.masked_lm.CHUNK", 3)
    rows = write_lines(tmp_path / "a.txt", b"a\nb\n\nc\nd\n")
    assert list(rows.chunks()) == [["a", "b", "c"], ["d"]]


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "does not exist"),
        (b"", "holds no text"),
        (b"\n \r\n\t\n", "holds no text"),
        (b"cat\n\xff\n", r"a.txt:2: not UTF-8"),
    ],
)
def test_files_without_text_are_refused(tmp_path, content, words):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    task = masked_lm_task(str(path))
    with pytest.raises(UserError, match=words):
        task.read("", ["train"])


def test_rows_in_which_nothing_can_be_masked_are_left_out(tmp_path, tokenizer):
    rows = write_lines(tmp_path / "a.txt", "zebra\ncat\n\u200b\n".encode())
    features = TASK.featurize(rows, tokenizer, 24)
    assert [TINY_WORDS[n] for n in features.tokens] == ["[CLS]", "cat", "[SEP]"]
    rows = write_lines(tmp_path / "b.txt", b"zebra\ngnu\n")
    assert "holds no token" in refusal(TASK.featurize, rows, tokenizer, 24)


@PROPERTY
@hypothesis.given(st.integers(0, 300), st.integers(1, 40))
def test_long_lines_are_cut_evenly_and_nothing_is_lost(count, room):
    parts = list(cut(list(range(count)), room))
    assert [n for part in parts for n in part] == list(range(count))
    assert len(parts) == math.ceil(count / room)
    sizes = set(map(len, parts))
    assert not sizes or max(sizes) <= room and max(sizes) - min(sizes) <= 1


def test_a_long_line_makes_several_rows(tmp_path, tokenizer):
    rows = write_lines(tmp_path / "a.txt", b"the cat sat on the mat .\n")
    features = TASK.featurize(rows, tokenizer, 5)
    assert features.lengths.tolist() == [4, 4, 5]
    assert features.tokens[[0, 4, 8]].tolist() == [2, 2, 2]


# The head


def random_head(config):
    """Values of the pretrained head, by Google's names."""
    size, rng = config.hidden_size, np.random.default_rng(5)
    shapes = {
        "transform/dense/kernel": (size, size),
        "transform/dense/bias": (size,),
        "transform/LayerNorm/gamma": (size,),
        "transform/LayerNorm/beta": (size,),
        "output_bias": (config.vocab_size,),
    }
    return {
        HEAD + name: rng.normal(0, 0.5, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


@pytest.fixture(scope="module")
def pretrained(tiny_bert, tiny_config, tiny_weights, tmp_path_factory):
    """Folders of one BERT with a pretrained head: Google's, Hugging Face's."""
    folder = tmp_path_factory.mktemp("with_head")
    values = {**tiny_weights, **random_head(tiny_config)}
    published = {
        "hugging_face": {},
        # Older files have other names.
        "old": {},
    }
    for name, value in values.items():
        new = hugging_face_name(name).replace("output_bias", "bias")
        if name.endswith("/kernel"):
            value = np.ascontiguousarray(value.T)
        published["hugging_face"][new] = value
        old = new.replace("LayerNorm.weight", "LayerNorm.gamma")
        old = old.replace("LayerNorm.bias", "LayerNorm.beta")
        if not old.startswith("cls"):
            old = f"bert.{old}"
        published["old"][old] = value
    decoder = tiny_weights[WORD_EMBEDDINGS]
    published["old"]["cls.predictions.decoder.weight"] = decoder
    published["old"]["cls.seq_relationship.bias"] = np.zeros(2, np.float32)
    for name, tensors in published.items():
        (folder / name).mkdir()
        safetensors.numpy.save_file(
            tensors, folder / name / "model.safetensors"
        )
    (folder / "google").mkdir()
    save_tensorflow(folder / "google" / "bert_model.ckpt", values)
    for name in (*published, "google"):
        for file in ("vocab.txt", "config.json"):
            content = (tiny_bert / file).read_bytes()
            (folder / name / file).write_bytes(content)
    return folder


def build(config, values, method="head"):
    """The model with these values, its variables by name."""
    made = {}

    def create(name, shape, initializer):
        value = values.get(name)
        if value is None:
            value = modeling.initial_values(name, shape, initializer, 0)
        made[name] = tf.Variable(value)
        return made[name]

    model = task_model.TaskModel(config, parse(method), TASK.build_head, create)
    return model, made


def as_tensors(batch):
    return {name: tf.constant(value) for name, value in batch.items()}


def gelu(x):
    """With the error function, in float64, for each number."""
    return np.vectorize(lambda v: v / 2 * (1 + math.erf(v / math.sqrt(2))))(x)


def expected_logits(hidden, values):
    """Hugging Face's `BertLMPredictionHead`, in float64."""
    transform = HEAD + "transform/"
    x = hidden @ values[transform + "dense/kernel"]
    x = gelu(x + values[transform + "dense/bias"])
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12)
    x = x * values[transform + "LayerNorm/gamma"]
    x = x + values[transform + "LayerNorm/beta"]
    return x @ values[WORD_EMBEDDINGS].T + values[HEAD + "output_bias"]


@pytest.mark.parametrize("layout", ["google", "hugging_face", "old"])
def test_the_pretrained_head_is_read_and_computes_what_was_published(
    pretrained, tiny_config, tiny_weights, text_rows, layout
):
    """The values, also where the head will be trained; the logits."""
    config = dataclasses.replace(tiny_config, hidden_act="gelu_erf")
    weights = sources.open_init_checkpoint(str(pretrained / layout)).weights
    table = task_model.list_parameters(
        config, parse("houlsby(size=4)"), TASK.build_head
    )
    first = choose_initial_values(
        table.parameters, weights, None, seed=1, fresh_head=True
    )
    head = random_head(config)
    assert {p.name for p in table.parameters if p.group == "head"} == set(head)
    for name, value in head.items():
        np.testing.assert_array_equal(first[name](), value, err_msg=name)
    values = {
        name: value
        for name, value in {**tiny_weights, **head}.items()
        if "pooler" not in name
    }
    model, _ = build(config, {name: first[name]() for name in values})
    batch = make_batch(text_rows, np.arange(6), None, 0)
    features = as_tensors(batch)
    context = Context(features["input_mask"])
    hidden = model.bert(
        features["input_ids"], features["segment_ids"], context
    ).sequence_output
    found = model.head(
        model.bert,
        hidden,
        context,
        features["masked_positions"],
        features["masked_ids"],
    )["logits"]
    places = batch["masked_positions"][..., np.newaxis]
    read = np.take_along_axis(hidden.numpy().astype(float), places, axis=1)
    expected = expected_logits(read, values)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    # What is scored, and the loss, follow from them.
    shifted = expected - expected.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    ids = batch["masked_ids"]
    is_used = ids != NO_TOKEN
    right = np.take_along_axis(logs, np.maximum(ids, 0)[..., None], 2)[..., 0]
    right = np.where(is_used, right, 0)
    outputs = model(features, context)
    np.testing.assert_allclose(outputs["log_probabilities"], right, atol=2e-5)
    np.testing.assert_array_equal(outputs["is_masked"], is_used)
    np.testing.assert_array_equal(
        outputs["is_right"], is_used & (expected.argmax(axis=-1) == ids)
    )
    losses = model.head.loss({"logits": found}, features)
    np.testing.assert_allclose(
        losses, -right.sum(axis=1) * 6 / is_used.sum(), rtol=1e-5
    )
    # As published: the mean over the batch's masked tokens.
    np.testing.assert_allclose(
        tf.reduce_mean(losses), -right.sum() / is_used.sum(), rtol=1e-5
    )


def test_the_head_counts_without_the_embeddings_which_stay_frozen(tiny_config):
    size, words = tiny_config.hidden_size, tiny_config.vocab_size
    table = task_model.list_parameters(
        tiny_config, parse("pfeiffer(size=4)"), TASK.build_head
    )
    head = [p for p in table.parameters if p.group == "head"]
    assert all(p.trained for p in head)
    assert sum(p.count for p in head) == size * size + 3 * size + words
    names = [p.name for p in table.trained]
    assert WORD_EMBEDDINGS not in names
    assert not any(p.group == "pooler" for p in table.parameters)


def test_trained_embeddings_get_gradients_from_both_uses(
    tiny_config, tiny_weights, text_rows
):
    """Against differences of the loss."""
    model, made = build(tiny_config, {**tiny_weights}, "full")
    batch = make_batch(text_rows, np.arange(6), None, 0)
    features = as_tensors(batch)
    context = Context(features["input_mask"])
    words = made[WORD_EMBEDDINGS]

    def loss():
        output = model.bert(
            features["input_ids"], features["segment_ids"], context
        )
        found = model.head(
            model.bert,
            output.sequence_output,
            context,
            features["masked_positions"],
            features["masked_ids"],
        )
        return tf.reduce_mean(model.head.loss(found, features))

    with tf.GradientTape() as tape:
        value = loss()
    gradient = tf.convert_to_tensor(tape.gradient(value, words)).numpy()
    read = set(batch["input_ids"].ravel().tolist())
    [only_predicted] = [
        TINY_WORDS.index(w) for w in ("##s",) if TINY_WORDS.index(w) not in read
    ]
    before = words.numpy()
    step = 1e-2
    for row, column in (
        (batch["input_ids"][0, 2], 3),
        (batch["masked_ids"][0, 0], 0),
        (only_predicted, 7),
    ):
        values = []
        for sign in (1, -1):
            changed = before.copy()
            changed[row, column] += sign * step
            words.assign(changed)
            values.append(float(loss()))
        words.assign(before)
        slope = (values[0] - values[1]) / (2 * step)
        assert abs(slope - gradient[row, column]) < 2e-4 + 0.02 * abs(slope)
    assert np.abs(gradient[only_predicted]).max() > 1e-4


# Scores


def test_scores_are_over_all_masked_tokens_alike():
    count = 2**20
    logs = np.full((count, 3), -0.1, np.float32)
    logs[0] = [-5, -7, -9]
    is_masked = np.ones((count, 3), np.int32)
    is_masked[1:, 1:] = 0
    is_right = np.zeros((count, 3), np.int32)
    is_right[:, 0] = 1
    scores = TASK.evaluate(
        None,
        None,
        {
            "log_probabilities": logs,
            "is_right": is_right,
            "is_masked": is_masked,
        },
    )
    loss = (21 + 0.1 * (count - 1)) / (count + 2)
    assert list(scores) == ["perplexity", "accuracy", "loss"]
    # In float32 the sum would be off in the third place.
    assert scores["loss"] == pytest.approx(loss, rel=1e-7)
    assert scores["perplexity"] == pytest.approx(math.exp(loss), rel=1e-7)
    assert scores["accuracy"] == pytest.approx(count / (count + 2))


def test_a_perplexity_beyond_all_numbers_can_be_written():
    outputs = {
        "log_probabilities": np.full((1, 1), -1e5, np.float32),
        "is_right": np.zeros((1, 1), np.int32),
        "is_masked": np.ones((1, 1), np.int32),
    }
    scores = TASK.evaluate(None, None, outputs)
    assert TASK.score_names == tuple(scores)
    assert math.isfinite(scores["perplexity"]) and scores["loss"] == 1e5


# Engines


def engine_of(name, **hardware):
    made = choose_engine(name)[0](Hardware(**hardware))
    made.check_devices()
    return made


@ESTIMATOR
def test_both_engines_follow_one_loss_curve(tiny_config, folders, text_rows):
    losses, jobs = [], []
    for name in ("estimator", "strategy"):
        jobs.append(make_job(tiny_config, folders(name), task=TASK))
        losses.append(train(engine_of(name), jobs[-1], text_rows, steps=5))
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-5)
    check_equal(trained_values(jobs[0]), trained_values(jobs[1]), 1e-5)


@pytest.mark.parametrize("method", ["houlsby(size=4)", "full"])
def test_a_training_that_starts_again_reads_the_same_masks(
    engine, tiny_config, folders, text_rows, method
):
    whole = make_job(tiny_config, folders("whole"), method, task=TASK)
    losses = train(engine_of(engine), whole, text_rows, steps=6)
    parts = make_job(tiny_config, folders("parts"), method, task=TASK)
    train(engine_of(engine), parts, text_rows, steps=6, stop_at=4)
    again = train(engine_of(engine), parts, text_rows, steps=6)
    assert again == losses[4:] and len(again) == 2
    check_equal(trained_values(parts), trained_values(whole))


@pytest.mark.parametrize(
    "changes",
    [{"parts": 2}, {"lanes": 3}, {"lanes": 2, "parts": 2}, {"length": LENGTH}],
    ids=str,
)
def test_however_a_batch_is_divided_its_loss_is_the_same(
    engine, steady_config, folders, text_rows, changes
):
    whole = make_job(steady_config, folders("whole"), task=TASK)
    other = make_job(steady_config, folders("other"), task=TASK, **changes)
    losses = [
        train(engine_of(engine), job, text_rows, steps=2)
        for job in (whole, other)
    ]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-5)
    check_equal(trained_values(other), trained_values(whole), 1e-4)


@pytest.mark.parametrize("length", [None, LENGTH])
def test_predictions_do_not_depend_on_the_batches(
    engine, tiny_config, tmp_path, text_rows, length
):
    job = make_job(tiny_config, tmp_path, task=TASK, length=length)
    found = predict(engine_of(engine), job, text_rows, 7)
    whole = make_batch(text_rows, np.arange(len(text_rows)), None)
    is_used = whole["masked_ids"] != NO_TOKEN
    np.testing.assert_array_equal(found["is_masked"], is_used)
    assert found["log_probabilities"].dtype == np.float32
    assert (found["log_probabilities"][is_used] < 0).all()
    assert not found["log_probabilities"][~is_used].any()
    other = predict(engine_of(engine), job, text_rows, 32)
    for name, value in found.items():
        np.testing.assert_allclose(other[name], value, atol=1e-5)


@ESTIMATOR
def test_a_tpu_reads_static_shapes(tiny_config, tmp_path, text_rows):
    from test_estimator_tpu import (
        CORES,
        REFUSED_OPS,
        infeed_shapes,
        inside_tpu,
        tpu_training_graph,
    )

    graph = tpu_training_graph(tiny_config, tmp_path, text_rows, task=TASK)
    (shapes,) = infeed_shapes(graph)
    local, width = 16 // CORES, math.ceil(0.15 * LENGTH)
    expected = [[local]] * 2 + [[local, width]] * 2 + [[local, LENGTH]] * 3
    assert sorted(shapes) == sorted(expected)
    inside = inside_tpu(graph)
    assert {"MatMul", "CrossReplicaSum"} <= inside
    assert not inside & REFUSED_OPS


# Runs


def test_a_run_writes_all_its_files(text_flags, tiny_config):
    """As a user starts it, on lines of one word each, 18 words in all."""
    words = [word for word in TINY_WORDS if word.isalpha()]
    path = text_flags["output_dir"].parent / "repeated.txt"
    path.write_text("".join(" ".join([word] * 20) + "\n" for word in words * 5))
    flags = {**text_flags, "num_train_epochs": 20}
    flags.update(train_file=path, eval_file=path)
    done = run_process(
        *(f"--{name}={value}" for name, value in flags.items()),
        "--do_eval",
        program="run_mlm.py",
    )
    out = text_flags["output_dir"]
    scores = read(out, "eval_results.json")
    assert set(scores) >= {"eval_perplexity", "eval_accuracy", "eval_loss"}
    # Whoever does not read the line around a masked word has 18.
    assert len(words) == 18
    assert scores["eval_perplexity"] < 11 and scores["eval_accuracy"] > 0.2
    assert scores["eval_perplexity"] == pytest.approx(
        math.exp(scores["eval_loss"])
    )
    run = read(out, "run.json")
    assert run["task"] == {
        "name": "masked_lm",
        "mlm_probability": 0.15,
        "whole_word_masking": False,
    }
    assert run["training"]["examples"] == 90
    assert len(run["training"]["data"]) == 64
    held = adapter_artifact.read(str(out / "adapter"))
    names = set(held.weights.shapes)
    assert {name for name in names if name.startswith(HEAD)} == set(
        random_head(tiny_config)
    )
    assert WORD_EMBEDDINGS not in names
    assert "1800 tokens in 90 rows" in done.stderr
    assert not list(out.rglob("*tmp*"))


def test_a_pretrained_head_is_evaluated_untrained(
    model_text, text_flags, pretrained, tmp_path
):
    """With a method that adds nothing, and without one of them refused."""
    flags = {
        **without_size(text_flags),
        "tuning_method": "bitfit",
        "do_train": False,
        "do_eval": True,
    }
    scores = []
    for layout in ("google", "hugging_face"):
        out = tmp_path / layout
        flags.update(init_checkpoint=pretrained / layout, output_dir=out)
        if layout == "google":
            # The other's config says what its `gelu` is.
            flags["bert_config_file"] = tmp_path / "config.json"
            config = read(pretrained / layout, "config.json")
            config["hidden_act"] = "gelu_erf"
            flags["bert_config_file"].write_text(json.dumps(config))
        model_text(**flags)
        scores.append(read(out, "eval_results.json")["eval_loss"])
        flags.pop("bert_config_file", None)
    assert scores[0] == scores[1]
    flags["init_checkpoint"] = text_flags["init_checkpoint"]
    with pytest.raises(UserError, match="holds no trained head"):
        model_text(**{**flags, "output_dir": tmp_path / "none"})


def test_the_masks_of_an_evaluation_stay_and_those_of_the_seed_differ(
    model_text, text_flags, tmp_path
):
    flags = {**text_flags, "num_train_epochs": 1}
    model_text(**flags, do_eval=True)
    first = read(text_flags["output_dir"], "eval_results.json")
    found = []
    for seed in (1, 1, 2):
        out = tmp_path / f"again-{len(found)}"
        model_text(
            **{
                **without_size(flags),
                "do_train": False,
                "do_eval": True,
                "seed": seed,
                "adapter": text_flags["output_dir"] / "adapter",
                "output_dir": out,
            }
        )
        found.append(read(out, "eval_results.json"))
    assert found[0]["eval_loss"] == found[1]["eval_loss"] == first["eval_loss"]
    assert found[2]["eval_loss"] != first["eval_loss"]
    assert found[2]["dev_data"] == first["dev_data"]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"do_predict": True}, "answers nothing"),
        ({"mlm_probability": 0}, "--mlm_probability is 0"),
        ({"mlm_probability": 1.5}, "--mlm_probability is 1.5"),
        ({"mlm_probability": "nan"}, "--mlm_probability is nan"),
        ({"train_file": ""}, "--train_file is missing"),
        ({"do_eval": True, "eval_file": ""}, "--eval_file is missing"),
        ({"train_file": "/nowhere"}, "/nowhere does not exist"),
        ({"max_seq_length": 2}, "at least 3"),
    ],
    ids=str,
)
def test_bad_input_is_refused(model_text, text_flags, change, words):
    with pytest.raises(UserError, match=words):
        model_text(**{**text_flags, **change})
    assert not text_flags["output_dir"].exists()


def test_bad_input_is_one_line(text_flags):
    flags = {**text_flags, "mlm_probability": 2}
    done = run_process(
        *(f"--{name}={value}" for name, value in flags.items()),
        program="run_mlm.py",
        check=False,
    )
    assert done.returncode == 1 and not done.stdout
    (line,) = own_lines(done.stderr)
    assert line.startswith("error: --mlm_probability is 2")


@pytest.mark.parametrize(
    "change, words",
    [
        ({"mlm_probability": 0.2}, "task.mlm_probability was 0.15, now 0.2"),
        ({"whole_word_masking": True}, "task.whole_word_masking was False"),
        ({"seed": 2}, "training.seed was 1, now 2"),
    ],
    ids=str,
)
def test_another_masking_in_a_used_folder_is_refused(
    model_text, text_flags, change, words
):
    flags = {**text_flags, "num_train_epochs": 0.1}
    model_text(**flags)
    with pytest.raises(UserError, match="another configuration") as caught:
        model_text(**{**flags, **change})
    assert words in str(caught.value)


def test_an_adapter_is_trained_further_with_other_masks(
    model_text, text_flags, tmp_path
):
    flags = {**text_flags, "num_train_epochs": 0.5}
    model_text(**flags)
    flags.update(
        adapter=text_flags["output_dir"] / "adapter",
        output_dir=tmp_path / "further",
        whole_word_masking=True,
        learning_rate=1e-30,
    )
    del flags["adapter_size"]
    model_text(**flags)
    before, after = (
        adapter_artifact.read(str(folder / "adapter")).weights
        for folder in (text_flags["output_dir"], tmp_path / "further")
    )
    for name in before.shapes:
        np.testing.assert_allclose(
            after.read(name), before.read(name), atol=1e-6
        )


@pytest.mark.gate
def test_a_killed_run_ends_in_the_same_bits(text_flags, tmp_path):
    """With accumulation, in lanes, and with whole words."""
    text_flags.update(
        num_train_epochs=30,
        save_checkpoints_steps=7,
        whole_word_masking=True,
        gradient_accumulation_steps=2,
        cpu_lanes=2,
    )

    def command(folder):
        text_flags["output_dir"] = tmp_path / folder
        return [f"--{k}={v}" for k, v in text_flags.items()] + ["--do_eval"]

    run_process(*command("whole"), program="run_mlm.py")
    process = subprocess.Popen(
        [sys.executable, "run_mlm.py", *command("killed")],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    killed = tmp_path / "killed"
    while not training_state.latest_step(str(killed))[1]:
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < training_state.latest_step(str(killed))[1] < 150
    run_process(*command("killed"), program="run_mlm.py")
    assert artifact_bytes(killed) == artifact_bytes(tmp_path / "whole")
    results = [
        read(folder, "eval_results.json")
        for folder in (killed, tmp_path / "whole")
    ]
    assert results[0] == results[1]


@pytest.mark.gate
@pytest.mark.parametrize(
    "method",
    [*TEXTS, "full", "top_layers(1)", "layernorm", "head"],
)
def test_every_method_is_trained(model_text, text_flags, tmp_path, method):
    """Its artifact gives the same scores; phases are over once for all."""
    flags = {**without_size(text_flags), "num_train_epochs": 2}
    flags["tuning_method"] = method
    model_text(**flags, do_eval=True)
    out = text_flags["output_dir"]
    loss = read(out, "eval_results.json")["eval_loss"]
    again = {
        **flags,
        "do_train": False,
        "do_eval": True,
        "adapter": out / "adapter",
        "output_dir": tmp_path / "again",
    }
    del again["tuning_method"]
    model_text(**again)
    found = read(tmp_path / "again", "eval_results.json")["eval_loss"]
    # What prefix tuning's network made is kept in its place.
    assert found == pytest.approx(loss, abs=1e-5)


@pytest.mark.gate
def test_a_merged_bert_has_the_head_too(model_text, text_flags, tmp_path):
    flags = {**without_size(text_flags), "tuning_method": "lora(rank=2)"}
    model_text(**flags, do_eval=True)
    out, merged = text_flags["output_dir"], tmp_path / "merged"
    run_process(
        "scripts.merge_adapter",
        f"--init_checkpoint={text_flags['init_checkpoint']}",
        f"--adapter={out / 'adapter'}",
        f"--output_dir={merged}",
        program="-m",
    )
    flags.update(
        init_checkpoint=merged,
        tuning_method="head",
        do_train=False,
        do_eval=True,
        output_dir=tmp_path / "again",
    )
    model_text(**flags)
    losses = [
        read(folder, "eval_results.json")["eval_loss"]
        for folder in (out, tmp_path / "again")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


# Its artifact elsewhere


@pytest.fixture(scope="module")
def trained(tiny_bert, texts, tmp_path_factory):
    """The folder of a run."""
    out = tmp_path_factory.mktemp("trained") / "out"
    with entry_point(run_mlm) as run:
        run(
            train_file=texts / "train.txt",
            eval_file=texts / "eval.txt",
            init_checkpoint=tiny_bert,
            output_dir=out,
            do_train=True,
            do_eval=True,
            max_seq_length=24,
            train_batch_size=8,
            num_train_epochs=1,
            tuning_method="pfeiffer(size=4)",
            cpu_lanes=1,
        )
    return out


def shell(program, *arguments):
    """Runs a program, which may fail."""
    return subprocess.run(
        [sys.executable, program, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_library_keeps_it(trained, tiny_bert, tmp_path):
    shelf = tmp_path / "shelf"
    added = shell("adapter_library.py", "add", shelf, trained)
    assert (added.returncode, added.stdout) == (0, "added masked_lm\n")
    verified = shell(
        "adapter_library.py", "verify", shelf, f"--init_checkpoint={tiny_bert}"
    )
    assert verified.stdout == "masked_lm: whole\n"
    (entry,) = json.loads(
        shell("adapter_library.py", "list", shelf, "--json").stdout
    )
    assert entry["task"] == entry["kind"] == "masked_lm"
    assert set(entry["scores"]) == {"perplexity", "accuracy", "loss"}
    assert "perplexity" in shell("adapter_library.py", "list", shelf).stdout
    shown = shell("adapter_library.py", "show", shelf, "masked_lm").stdout
    assert "mlm_probability" in shown
    done = shell(
        "adapter_library.py",
        "export",
        shelf,
        "masked_lm",
        tmp_path / "other",
        "--to=adapterhub",
    )
    assert done.returncode == 1 and not (tmp_path / "other").exists()
    (line,) = own_lines(done.stderr)
    assert "whose head cannot be written" in line


@pytest.mark.parametrize("program", ["predict.py", "export_model.py"])
def test_nobody_is_answered_by_it(trained, tiny_bert, tmp_path, program):
    flags = [
        f"--init_checkpoint={tiny_bert}",
        f"--adapter={trained / 'adapter'}",
    ]
    if program == "predict.py":
        (tmp_path / "rows.txt").write_text("the cat\n")
        flags += [
            f"--input={tmp_path / 'rows.txt'}",
            f"--output={tmp_path / 'answers'}",
        ]
    else:
        flags.append(f"--output_dir={tmp_path / 'exported'}")
    done = shell(program, *flags)
    assert done.returncode == 1 and not done.stdout
    line = own_lines(done.stderr)[-1]
    assert line.startswith("error: ")
    words = "the task masked_lm is of a kind that cannot be exported"
    if program == "predict.py":
        words = "was trained on the task masked_lm, which answers no texts"
    assert words in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("regression", [False, True])
def test_a_classification_does_not_start_from_it(
    classify, tiny_flags, trained, regression
):
    flags = {**without_size(tiny_flags), "regression": regression}
    flags["adapter"] = trained / "adapter"
    with pytest.raises(UserError, match="trained on the task masked_lm"):
        classify(**flags)


def test_it_does_not_start_from_another_task(
    model_text, text_flags, tiny_adapters
):
    folder = next(iter(tiny_adapters.values()))
    flags = {**without_size(text_flags), "adapter": folder}
    with pytest.raises(UserError, match="not on masked_lm"):
        model_text(**flags)


@pytest.mark.parametrize("count, expected", [(1, 1), (3, 3), (99, 4)])
def test_the_first_lines_alone(tmp_path, count, expected):
    path = tmp_path / "text.txt"
    path.write_text("a\n\nb\n c \n\nd\n")
    rows = TASK.first(Lines.of(str(path)), count)
    assert len(rows) == expected
    assert sum(rows.chunks(), []) == ["a", "b", "c", "d"][:expected]
