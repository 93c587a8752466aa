"""Masked language modelling: texts, head, runs, and who takes its adapters."""

import json
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    TINY_WORDS,
    as_tensors,
    hugging_face_name,
    module_fixture,
    open_checkpoint,
)
from engine_jobs import (
    ESTIMATOR,
    LENGTH,
    make_job,
    new_engine,
    train_alike,
)
from numpy.testing import assert_array_equal
from safetensors.numpy import save_file
from test_methods_runs import without_size
from test_sources import save_tensorflow
from test_tokenization import write_vocabulary
from tiny_artifacts import make_artifact
from tiny_model import table_of

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints.weights import choose_initial_values
from adapter_bert.data.input_pipeline import make_batch
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.library.flags import named_folders
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.masked_lm import (
    WORD_EMBEDDINGS,
    MaskedLM,
    Masking,
    cut,
)

TASK = MaskedLM()
HEAD = "cls/predictions/"
SUFFIX = TINY_WORDS.index("##s")


def lines_of(path):
    _, rows = MaskedLM(train_file=str(path)).read("", ["train"])
    return rows["train"]


@module_fixture
def text_rows(tiny_texts, tokenizer):
    """The features of the training file, at most `LENGTH` tokens each."""
    rows = lines_of(tiny_texts / "train.txt")
    return TASK.featurize(rows, tokenizer, LENGTH)


# Texts


def write_lines(path, content):
    path.write_bytes(content)
    return lines_of(path)


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.jsonl", b'{"text": "the cat"}\n'),
        ("a.csv", b"text,label\nthe cat,x\n"),
    ],
)
def test_tables_have_their_texts_in_a_column(tmp_path, name, content):
    assert list(write_lines(tmp_path / name, content)) == ["the cat"]


def test_lines_are_rows_and_empty_ones_are_passed_over(tmp_path, tokenizer):
    rows = write_lines(
        tmp_path / "a.txt",
        b"\xef\xbb\xbfthe cat\r\n\r\n \t \na\x0cdog\n\n\xe2\x80\x83\nsat",
    )
    assert len(rows) == 3
    assert list(rows) == ["the cat", "a dog", "sat"]
    assert list(TASK.first(rows, 2)) == ["the cat", "a dog"]
    assert TASK.first(rows, 99) == rows
    features = TASK.featurize(rows, tokenizer, 24)
    words = [TINY_WORDS[n] for n in features.tokens]
    assert " ".join(words) == (
        "[CLS] the cat [SEP] [CLS] a dog [SEP] [CLS] sat [SEP]"
    )
    assert not features.segments.any()


@refusals.table(
    {
        "no file": (None, "does not exist"),
        "nothing": (b"", "holds no text"),
        "blanks": (b"\n \r\n\t\n", "holds no text"),
        "not UTF-8": (b"cat\n\xff\n", "a.txt:2: not UTF-8"),
    }
)
def test_files_without_text_are_refused(tmp_path, call, parts):
    path = tmp_path / "a.txt"
    if call is not None:
        path.write_bytes(call)
    task = MaskedLM(train_file=str(path))
    refusals.check(lambda: task.read("", ["train"]), *parts)


def test_rows_in_which_nothing_can_be_masked_are_left_out(tmp_path, tokenizer):
    rows = write_lines(tmp_path / "a.txt", "zebra\ncat\n\u200b\n".encode())
    features = TASK.featurize(rows, tokenizer, 24)
    assert [TINY_WORDS[n] for n in features.tokens] == ["[CLS]", "cat", "[SEP]"]
    rows = write_lines(tmp_path / "b.txt", b"zebra\ngnu\n")
    refusals.check(
        lambda: TASK.featurize(rows, tokenizer, 24), "holds no token"
    )


@pytest.mark.parametrize("whole_words", [True, False])
@pytest.mark.parametrize(
    "text, shares",
    [
        ("\u4e2d\u6587 cat", "0 of 3"),
        ("the cats sat", None),
        ("sat " * 150 + "cats", "1 of 151"),
    ],
)
def test_whole_words_that_are_single_tokens_are_named(
    tmp_path, caplog, text, shares, whole_words
):
    """As all of a Chinese BERT's."""
    words = [*TINY_WORDS, "\u4e2d", "\u6587"]
    tokenizer = FullTokenizer(write_vocabulary(tmp_path, words))
    rows = write_lines(tmp_path / "a.txt", text.encode())
    task = MaskedLM(masking=Masking(whole_words=whole_words))
    task.featurize(rows, tokenizer, 24)
    message = f"a.txt: {shares} words have more than one token"
    assert (message in caplog.text) == bool(shares and whole_words)
    assert bool(shares and whole_words) == ("words have more" in caplog.text)


@hypothesis.given(st.integers(0, 300), st.integers(1, 40))
def test_long_lines_are_cut_evenly_and_nothing_is_lost(count, room):
    parts = list(cut(list(range(count)), room))
    assert sum(parts, []) == list(range(count))
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


@module_fixture
def pretrained(tiny_bert, tiny_config, tiny_weights, tmp_path_factory):
    """Folders of one BERT with a pretrained head: Google's, Hugging Face's."""
    folder = tmp_path_factory.mktemp("with_head")
    values = {**tiny_weights, **random_head(tiny_config)}
    published = {}
    for name, value in values.items():
        if name.endswith("/kernel"):
            value = np.ascontiguousarray(value.T)
        theirs = hugging_face_name(name).replace("output_bias", "bias")
        # As old files have it.
        theirs = theirs.replace("LayerNorm.weight", "LayerNorm.gamma")
        published[theirs.replace("Norm.bias", "Norm.beta")] = value
    layouts = "hugging_face", "google"
    for name in layouts:
        (folder / name).mkdir()
    save_file(published, folder / "hugging_face" / "model.safetensors")
    save_tensorflow(folder / "google" / "bert_model.ckpt", values)
    for name in layouts:
        for file in ("vocab.txt", "config.json"):
            content = (tiny_bert / file).read_bytes()
            (folder / name / file).write_bytes(content)
    return folder


@pytest.mark.parametrize("layout", ["google", "hugging_face"])
def test_a_training_begins_with_the_pretrained_head(
    pretrained, tiny_config, layout
):
    weights = open_checkpoint(pretrained / layout).weights
    table = table_of(tiny_config, "houlsby(size=4)", TASK)
    first = choose_initial_values(
        table.parameters, weights, None, seed=1, fresh_head=True
    )
    head = random_head(tiny_config)
    assert {p.name for p in table.parameters if p.group == "head"} == set(head)
    for name, value in head.items():
        assert_array_equal(first[name](), value, err_msg=name)
    trained = {p.name for p in table.trained}
    # The embeddings, which decode, stay frozen.
    assert set(head) < trained and WORD_EMBEDDINGS not in trained
    assert not any(p.group == "pooler" for p in table.parameters)


def test_trained_embeddings_get_gradients_from_both_uses(
    tiny_config, tiny_weights, text_rows
):
    """Against differences of the loss."""
    made = {}

    def create(name, shape, initializer):
        value = tiny_weights.get(name)
        if value is None:
            value = encoder.initial_values(name, shape, initializer, 0)
        made[name] = tf.Variable(value)
        return made[name]

    model = task_model.TaskModel(
        tiny_config, parse("full"), TASK.build_head, create
    )
    batch = make_batch(text_rows, np.arange(6), None, 0)
    features = as_tensors(batch)
    words = made[WORD_EMBEDDINGS]
    before = words.numpy()

    def loss(change=0.0):
        words.assign(before + change)
        # The head's outputs in training, without dropout.
        context = Context(features["input_mask"])
        ids, segments = features["input_ids"], features["segment_ids"]
        hidden = model.bert(ids, segments, context).sequence_output
        read = {name: features[name] for name in model.head.reads}
        outputs = model.head(model.bert, hidden, context, **read)
        return tf.reduce_mean(model.head.loss(outputs, features))

    with tf.GradientTape() as tape:
        value = loss()
    gradient = tf.convert_to_tensor(tape.gradient(value, words)).numpy()
    # The last one is only predicted.
    rows = batch["input_ids"][0, 2], batch["masked_ids"][0, 0], SUFFIX
    assert SUFFIX not in batch["input_ids"]
    assert np.abs(gradient[SUFFIX]).max() > 1e-4
    for row in rows:
        change = np.zeros_like(before)
        change[row, 3] = 1e-2
        slope = float(loss(change) - loss(-change)) / 2e-2
        assert abs(slope - gradient[row, 3]) < 2e-4 + 0.02 * abs(slope)


# Scores


def test_scores_are_over_all_masked_tokens_alike():
    count = 2**20
    logs = np.full((count, 3), -0.1, np.float32)
    logs[0] = [-5, -7, -9]
    is_masked = np.ones((count, 3), np.int32)
    is_masked[1:, 1:] = 0
    is_right = np.zeros((count, 3), np.int32)
    is_right[:, 0] = 1
    outputs = {"log_probabilities": logs, "is_right": is_right}
    scores = TASK.evaluate(None, None, {**outputs, "is_masked": is_masked})
    loss = (21 + 0.1 * (count - 1)) / (count + 2)
    assert list(scores) == ["perplexity", "accuracy", "loss"]
    # In float32 the sum would be off in the third place.
    assert scores["loss"] == pytest.approx(loss, rel=1e-7)
    assert scores["perplexity"] == pytest.approx(math.exp(loss), rel=1e-7)
    assert scores["accuracy"] == pytest.approx(count / (count + 2))


def test_a_perplexity_beyond_all_numbers_can_be_written():
    ones = np.ones((1, 1), np.int32)
    outputs = {"log_probabilities": -1e5 * ones, "is_right": 1 - ones}
    scores = TASK.evaluate(None, None, {**outputs, "is_masked": ones})
    assert TASK.score_names == tuple(scores)
    assert math.isfinite(scores["perplexity"]) and scores["loss"] == 1e5


# Engines


@pytest.mark.gate
@ESTIMATOR
def test_a_training_does_not_depend_on_engine_or_division(
    steady_config, folders, text_rows
):
    """One engine has parts, lanes and padding, the other one has none."""
    changes = {"lanes": 2, "parts": 2, "length": LENGTH}
    whole = make_job(steady_config, folders("whole"), task=TASK)
    other = make_job(steady_config, folders("other"), task=TASK, **changes)
    engines = iter(("strategy", "estimator"))
    train_alike(
        [whole, other], text_rows, 1e-5, lambda: new_engine(next(engines))
    )


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
    [shapes] = infeed_shapes(graph)
    local, width = 16 // CORES, math.ceil(0.15 * LENGTH)
    expected = [[local]] * 2 + [[local, width]] * 2 + [[local, LENGTH]] * 3
    assert sorted(shapes) == sorted(expected)
    inside = inside_tpu(graph)
    assert {"MatMul", "CrossReplicaSum"} <= inside
    assert not inside & REFUSED_OPS


@pytest.fixture
def adapter(tiny_bert, tmp_path):
    description = {"name": "masked_lm", **TASK.describe()}
    folder = tmp_path / "adapter"
    make_artifact(folder, tiny_bert, "pfeiffer(4)", None, description)
    return folder


@pytest.mark.older_stack
def test_a_library_keeps_it(adapter, tiny_bert, shelf, call, tmp_path):
    shelf.add(str(adapter), "masked_lm")
    path, bert = shelf.path, f"--init_checkpoint={tiny_bert}"
    assert call("verify", path, bert) == "masked_lm: whole\n"
    [entry] = json.loads(call("list", path, "--json"))
    assert entry["task"] == entry["kind"] == "masked_lm"
    assert "mlm_probability" in call("show", path, "masked_lm")
    # Who asks all asks those that answer.
    assert shelf.answering() == []
    refusals.check(
        lambda: named_folders([], path, ["all"]),
        "holds no adapters that answer texts",
    )
    assert list(named_folders([], path, ["masked_lm"])) == ["masked_lm"]
    other = tmp_path / "other"
    call("export", path, "masked_lm", other, "--to=adapterhub")
    call("import", path, other, "--name=back", bert)
    assert shelf.entry("back").kind == "masked_lm"


@pytest.mark.older_stack
def test_a_classification_does_not_start_from_it(classify, tiny_flags, adapter):
    flags = {**without_size(tiny_flags), "adapter": adapter}
    refusals.check(lambda: classify(**flags), "has learned masked_lm alone")
