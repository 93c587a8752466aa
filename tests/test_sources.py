"""Every layout of weights that can be read, and what lies next to them."""

import hashlib
import os
from dataclasses import replace
from shutil import copy, copytree

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    RECORDED,
    hugging_face_name,
    open_checkpoint,
    read_json,
    read_lines,
    write_json,
)
from hub_modules import tf2_variables, write_tf1, write_tf2
from numpy.testing import assert_array_equal
from safetensors.numpy import load_file, save_file
from torch_writer import as_zip, tensor, written
from torch_writer import table as torch_table

from adapter_bert.bert import encoder
from adapter_bert.checkpoints import hugging_face, sources
from adapter_bert.checkpoints.changed_weights import with_labels
from adapter_bert.checkpoints.weights import (
    Weights,
    check_shape,
    choose_initial_values,
    identify,
    start_fingerprint,
)
from adapter_bert.data.tables import Layout
from adapter_bert.errors import UserError
from adapter_bert.methods.houlsby import Houlsby
from adapter_bert.tasks import task_model
from adapter_bert.tasks.text_classification import TextClassification

GOLDEN = RECORDED / "torch_files"
TASK = TextClassification("tiny", Layout(0), Layout(0), labels=("a", "b"))


def save_tensorflow(prefix, values):
    """Writes a TensorFlow checkpoint of named tensors."""
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )


def check_values(weights, values):
    """Compares all that `values` has."""
    for name, value in values.items():
        assert_array_equal(weights.read(name), value)
        assert weights.shapes[name] == value.shape


def refuses(path, *parts):
    """Opens a model, which is refused in a line that names the parts."""
    refusals.check(lambda: open_checkpoint(path).pooled, *parts)


@pytest.fixture
def table(tiny_config):
    return task_model.list_parameters(tiny_config, Houlsby(4), TASK.build_head)


@pytest.fixture
def google_bert(tmp_path, tiny_bert, tiny_weights):
    """The tiny BERT as Google would publish it."""
    folder = tmp_path / "google"
    folder.mkdir()
    extra = {"cls/predictions/output_bias": np.zeros(3, np.float32)}
    save_tensorflow(folder / "bert_model.ckpt", {**tiny_weights, **extra})
    copy(tiny_bert / "vocab.txt", folder)
    copy(tiny_bert / "config.json", folder / "bert_config.json")
    return folder


def test_every_layout_gives_the_same_weights(
    tmp_path, tiny_bert, tiny_weights, google_bert
):
    # Old Hugging Face files have a prefix and other LayerNorm names.
    old = {
        "bert."
        + hugging_face_name(name)
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): np.ascontiguousarray(
            value.T if name.endswith("/kernel") else value
        )
        for name, value in tiny_weights.items()
    }
    old["cls.predictions.bias"] = np.zeros(3, np.float32)
    save_file(old, tmp_path / "old.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(written(old))
    for path in (
        tmp_path,
        tiny_bert,
        tiny_bert / "model.safetensors",
        google_bert,
        google_bert / "bert_model.ckpt",
        tmp_path / "old.safetensors",
    ):
        opened = open_checkpoint(path)
        check_values(opened.weights, tiny_weights)


@pytest.mark.parametrize("form", ["zip", "older"])
def test_golden_file_of_pytorch_gives_a_berts_weights(tmp_path, form):
    """As transformers' models are in `pytorch_model.bin`."""
    copy(GOLDEN / f"bert.{form}.bin", tmp_path / "pytorch_model.bin")
    opened = open_checkpoint(tmp_path)
    assert opened.path == str(tmp_path / "pytorch_model.bin")
    with np.load(GOLDEN / "bert.npz") as expected:
        values = {
            ours: value.T if transposed else value
            for (ours, transposed), value in (
                (hugging_face.google_name(name), value)
                for name, value in expected.items()
            )
            if ours
        }
    assert len(values) == len(opened.weights.shapes)
    assert {"cls/predictions/output_bias", "bert/pooler/dense/kernel"} <= (
        values.keys()
    )
    check_values(opened.weights, values)


def test_a_name_that_tensorflow_takes_for_a_pattern_is_refused(google_bert):
    folder = google_bert.rename(google_bert.parent / "[1]")
    refuses(folder / "bert_model.ckpt", "--init_checkpoint", "with [")


def test_a_quantized_model_of_pytorch_is_refused(tmp_path):
    kind, name = "torch.CharStorage", "encoder.layer.0.output.dense.weight"
    made = torch_table({name: tensor("0", kind, 6, (2, 3), (3, 1))})
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(as_zip(made, {"0": bytes(6)}))
    refuses(path, f"'{name}' has whole numbers")


@pytest.mark.parametrize("generation", [1, 3])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: None,
        # Slots of variables, and variables of the optimizer.
        lambda: tf.compat.v1.train.AdamOptimizer(0.1),
        lambda: tf.keras.optimizers.Adam(0.1),
    ],
    ids=["none", "slots", "own variables"],
)
def test_a_checkpoint_of_objects_gives_the_same_weights(
    google_bert, tiny_weights, tiny_config, generation, optimizer
):
    """As tensorflow/models write it; an optimizer is left out."""
    module, adam = tf.Module(), optimizer()
    module.its_own = tf2_variables(tiny_weights, 2, generation)
    parts = {"model": module}
    if adam:
        # Its slots have the names of what they belong to.
        adam.apply_gradients([(tf.zeros_like(v), v) for v in module.its_own])
        parts["optimizer"] = adam
    checkpoint = tf.train.Checkpoint(**parts)
    path = checkpoint.save(str(google_bert / "tf2_model.ckpt"))
    assert path.endswith("tf2_model.ckpt-1")
    count = len(tf.train.load_checkpoint(path).get_variable_to_shape_map())
    assert (count > 3 * len(tiny_weights)) is bool(adam)
    opened = sources.open_init_checkpoint(path)
    assert set(opened.weights.shapes) == set(tiny_weights)
    check_values(opened.weights, tiny_weights)
    config = sources.read_config(opened)
    assert config == tiny_config
    assert sources.read_tokenizer(opened, config).do_lower_case
    beside = google_bert / "bert_config.json"
    write_json(beside, {**vars(tiny_config), "num_attention_heads": 4})
    refusals.check(
        lambda: sources.read_config(opened),
        "json says 4 ",
        " has 2; pass the model",
    )


def test_a_checkpoint_of_other_objects_is_refused(tmp_path):
    checkpoint = tf.train.Checkpoint(step=tf.Variable(1, name="step"))
    path = checkpoint.write(str(tmp_path / "model.ckpt"))
    refuses(path, "no BERT whose names are known here")


@pytest.fixture
def digest(tiny_config):
    """Fingerprint of the weights at a path, for the tiny BERT."""

    def read(path):
        weights = open_checkpoint(path).weights
        variables = encoder.list_variables(tiny_config)
        return identify(weights, variables).fingerprint

    return read


def test_fingerprint_is_the_weights_not_the_files(
    tiny_bert, google_bert, digest, tiny_weights, tmp_path
):

    assert digest(tiny_bert) == digest(google_bert)
    name = "bert/encoder/layer_1/output/dense/bias"
    other = np.nextafter(tiny_weights[name], np.float32(9))
    save_tensorflow(tmp_path / "other.ckpt", {**tiny_weights, name: other})
    assert digest(tmp_path / "other.ckpt") != digest(tiny_bert)


def test_a_bert_without_a_pooler_has_the_fingerprint_without_it(
    tiny_bert, tiny_weights, tiny_config, tmp_path
):
    without = {k: v for k, v in tiny_weights.items() if "pooler" not in k}
    save_tensorflow(tmp_path / "without.ckpt", without)
    variables = encoder.list_variables(tiny_config)
    whole, bare = (
        identify(open_checkpoint(path).weights, variables)
        for path in (tiny_bert, tmp_path / "without.ckpt")
    )
    expected = hashlib.sha256()
    for name in sorted(encoder.list_variables(tiny_config, pooler=False)):
        expected.update(name.encode() + b"\0" + tiny_weights[name].tobytes())
    assert bare.fingerprint == expected.hexdigest()
    for name in ("bert/pooler/dense/bias", "bert/pooler/dense/kernel"):
        expected.update(name.encode() + b"\0" + tiny_weights[name].tobytes())
    assert whole.fingerprint == expected.hexdigest()


def test_fresh_values_depend_on_the_seed_and_loaded_ones_do_not(
    tiny_bert, table, tiny_weights
):
    base = open_checkpoint(tiny_bert).weights
    first, again, other = (
        choose_initial_values(table.parameters, base, None, seed)
        for seed in (1, 1, 2)
    )
    adapter = "bert/encoder/layer_0/output/adapters/weights1"
    assert_array_equal(first[adapter](), again[adapter]())
    assert (first[adapter]() != other[adapter]()).any()
    for name, value in tiny_weights.items():
        assert_array_equal(other[name](), value)


def test_a_fresh_training_starts_from_nothing_beside_bert(tiny_bert, table):
    base = open_checkpoint(tiny_bert).weights
    assert start_fingerprint(table.parameters, base, None) is None
    head = np.ones((2, 16), np.float32)
    shapes = {**base.shapes, "output_weights": head.shape}
    with_head = Weights("x", shapes, lambda name: head)
    assert start_fingerprint(table.parameters, with_head, None)


def test_a_wrong_shape_names_the_variable_and_both_shapes(
    tiny_bert, tiny_config
):
    base = open_checkpoint(tiny_bert).weights
    wide = replace(tiny_config, intermediate_size=64)
    wide = task_model.list_parameters(wide, Houlsby(4), TASK.build_head)
    message = r"has the shape \[16, 32\].*\[16, 64\]"
    with pytest.raises(UserError, match=message):
        choose_initial_values(wide.parameters, base, None, 0)


def test_a_bert_without_a_pooler_is_told_from_another_model(tiny_bert):
    base = open_checkpoint(tiny_bert).weights
    shapes = {k: v for k, v in base.shapes.items() if "pooler" not in k}
    bare = replace(base, shapes=shapes)
    refusals.check(
        lambda: check_shape(bare, "bert/pooler/dense/kernel", (16, 16)),
        "saved without BERT's pooler",
    )
    refusals.check(
        lambda: check_shape(bare, "bert/encoder/none", (16, 16)),
        "no checkpoint of this BERT config",
    )


def test_a_missing_variable_is_named(tmp_path, digest, tiny_weights):
    partial = {
        k: v for k, v in tiny_weights.items() if "pooler/dense/b" not in k
    }
    save_tensorflow(tmp_path / "partial.ckpt", partial)
    refusals.check(
        lambda: digest(tmp_path / "partial.ckpt"),
        "lacks the variable bert/pooler",
    )


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("layout", ["safetensors", "tensorflow"])
def test_truncated_files_are_one_clear_line(
    tmp_path, tiny_bert, google_bert, digest, share, layout
):
    if layout == "safetensors":
        path = victim = tmp_path / "model.safetensors"
        copy(tiny_bert / "model.safetensors", path)
    else:
        path = google_bert / "bert_model.ckpt"
        victim = google_bert / "bert_model.ckpt.data-00000-of-00001"
    content = victim.read_bytes()
    victim.write_bytes(content[: int(len(content) * share)])
    refusals.check(lambda: digest(path), "damaged")


@pytest.mark.parametrize(
    "name, lost, parts",
    [
        (".data-00000-of-00001", "", ["--init_checkpoint={}"]),
        (".index", "", ["--init_checkpoint={}"]),
        # As TensorFlow 1 writes it next to; it need not be there.
        (".meta", "", ["--init_checkpoint={}"]),
        ("", ".index", ["the checkpoint {} lacks {}.index; copy"]),
        (".data-00000-of-00001", ".index", ["{} lacks {}.index; copy"]),
        (".meta", ".index", ["{} lacks {}.index; copy"]),
        ("", ".data-00000-of-00001", ["{} is damaged", "{}.data-00000-of-"]),
        ("/../model.ckpt", "", ["model.ckpt does not exist; expected"]),
        ("/../none/a.safetensors", "", ["a.safetensors does not exist"]),
        ("/../vocab.txt", "", ["vocab.txt is no checkpoint; expected a"]),
        ("/../bert_config.json", "", ["config.json is no checkpoint"]),
        ("/../adapter", "", ["and this adapter as --adapter"]),
        ("/../several", "", ["--init_checkpoint=", "/several/a.ckpt"]),
        ("/../empty", "", ["holds no model.safetensors"]),
    ],
)
def test_a_checkpoint_is_told_by_what_lies_there(
    google_bert, name, lost, parts
):
    prefix = google_bert / "bert_model.ckpt"
    if lost:
        (google_bert / f"bert_model.ckpt{lost}").unlink()
    for other in ("adapter/adapter_config.json", "several/a.ckpt.index"):
        (google_bert / other).parent.mkdir()
        (google_bert / other).touch()
    (google_bert / "empty").mkdir()
    # A name that is no UTF-8.
    open(os.fsencode(google_bert / "empty") + b"/\xe9", "w").close()
    path = os.path.normpath(f"{prefix}{name}")
    refuses(path, *(part.replace("{}", str(prefix)) for part in parts))


@pytest.mark.parametrize("name", sources.FOREIGN)
def test_other_forms_of_hugging_faces_are_refused(tmp_path, tiny_bert, name):
    folder = tmp_path / "model"
    folder.mkdir()
    copy(tiny_bert / "config.json", folder)
    (folder / name).write_bytes(b"PK")
    for path in (folder, folder / name):
        refuses(path, name, "checkpoints.md")
    # What can be read goes before.
    copy(tiny_bert / "model.safetensors", folder)
    open_checkpoint(folder)


def test_a_layout_of_models_is_one_row(
    tmp_path, monkeypatch, tiny_bert, tiny_weights
):
    def open_npz(path):
        values = np.load(path)
        shapes = {name: values[name].shape for name in values}
        weights = Weights(path, shapes, values.__getitem__)
        return sources.Pretrained(path, os.path.dirname(path), weights)

    row = sources.Layout(sources.named("bert.npz"), ".npz", open_npz)
    monkeypatch.setattr(sources, "FILES", (*sources.FILES, row))
    np.savez(tmp_path / "bert.npz", **tiny_weights)
    # With a run.json beside it, it is still no trained checkpoint.
    (tmp_path / "run.json").write_text("{}")
    for path in tmp_path, tmp_path / "bert.npz":
        check_values(open_checkpoint(path).weights, tiny_weights)
    # Rows above it come first.
    copy(tiny_bert / "model.safetensors", tmp_path)
    assert open_checkpoint(tmp_path).path.endswith(".safetensors")


def test_damage_beside_a_pretrained_model_is_no_matter(tiny_bert, tmp_path):
    folder = tmp_path / "model"
    copytree(tiny_bert, folder)
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"')
    opened = open_checkpoint(folder)
    assert opened.path == str(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    refuses(folder, "no checkpoint in ", " is whole")


def to_memory(folder, name):
    """Copies a folder into TensorFlow's file system in memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            target = f"ram://{name}/{path.relative_to(folder)}"
            tf.io.gfile.makedirs(target.rpartition("/")[0])
            tf.io.gfile.copy(str(path), target, overwrite=True)
    return f"ram://{name}"


def test_models_are_read_through_tensorflows_file_systems(
    google_bert, tiny_bert, tiny_weights, tiny_config, tmp_path
):
    """So from buckets, which cannot be tried here."""
    words = tiny_bert / "vocab.txt"
    for path in (
        to_memory(google_bert, "google"),
        to_memory(write_tf1(tmp_path / "1", words, tiny_weights, 2), "tf1"),
        to_memory(write_tf2(tmp_path / "2", words, tiny_weights, 2), "tf2"),
    ):
        opened = sources.open_init_checkpoint(path)
        assert opened.weights.source.startswith("ram://")
        check_values(opened.weights, tiny_weights)
        config = sources.read_config(opened)
        assert config == tiny_config
        assert sources.read_tokenizer(opened, config).do_lower_case
    refuses(
        to_memory(tiny_bert, "hugging_face"),
        "not on a local disk",
        "copy its folder",
    )


def test_a_file_that_is_replaced_while_in_use_is_refused(tiny_bert, tmp_path):
    path = tmp_path / "model.safetensors"
    copy(tiny_bert / "model.safetensors", path)
    weights = hugging_face.open_safetensors(str(path))
    name = "bert/pooler/dense/bias"
    before = weights.read(name)
    copy(path, tmp_path / "new")
    assert_array_equal(weights.read(name), before)
    (tmp_path / "new").replace(path)
    refusals.check(lambda: weights.read(name), "has changed since it was")
    path.unlink()
    refusals.check(lambda: weights.read(name), "cannot be read any more")


@pytest.fixture
def described(tiny_bert, tmp_path):
    """A copy of the tiny BERT, with other files and tensors next to it."""

    def make(tensors=(), **contents):
        folder = tmp_path / "described"
        copytree(tiny_bert, folder, dirs_exist_ok=True)
        values = load_file(folder / "model.safetensors")
        save_file({**values, **dict(tensors)}, folder / "model.safetensors")
        for name, content in contents.items():
            path = folder / f"{name}.json"
            before = read_json(path) if path.exists() else {}
            write_json(path, {**before, **content})
        return folder

    return make


@pytest.mark.parametrize("file", ["config", "tokenizer_config"])
def test_texts_that_are_cut_otherwise_are_refused(described, file):
    name = "BertJapaneseTokenizer"
    folder = described(**{file: {"tokenizer_class": name}})
    refuses(folder, f"/{file}.json: {name}")


def test_whole_numbers_of_a_quantized_model_are_refused(described):
    name = "encoder.layer.0.attention.self.query.weight"
    folder = described({name: np.ones((16, 16), np.int8)})
    weights = open_checkpoint(folder).weights
    refusals.check(
        lambda: weights.read(
            "bert/encoder/layer_0/attention/self/query/kernel"
        ),
        "as of a quantized model",
    )


HEAD = {
    "classifier.weight": np.arange(48, dtype=np.float32).reshape(3, 16),
    "classifier.bias": np.arange(3, dtype=np.float32),
}
LABELS = ["contradiction", "entailment", "neutral"]


@pytest.mark.parametrize(
    "named, labels, order",
    [
        (["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], LABELS, [0, 2, 1]),
        (["Contradiction", "Entailment", "Neutral"], LABELS, [0, 1, 2]),
        # Nobody has named them.
        (["LABEL_0", "LABEL_1", "LABEL_2"], LABELS, [0, 1, 2]),
        (None, LABELS, [0, 1, 2]),
        # Of numbers nothing is known.
        (["bad", "so so", "good"], ["0", "1", "2"], [0, 1, 2]),
        (["bad", "so so", "good"], ["0", "2", "1"], [0, 2, 1]),
        (None, ["0", "2", "1"], [0, 2, 1]),
        (["bad", "so so", "good"], LABELS, None),
        (["bad", "good"], LABELS, None),
    ],
)
def test_a_heads_outputs_are_those_of_the_tasks_labels(
    described, named, labels, order
):
    config = {} if named is None else {"id2label": dict(enumerate(named))}
    opened = open_checkpoint(described(HEAD, config=config))
    weights = with_labels(opened.weights, opened.labels, labels)
    expected = (
        {}
        if order is None
        else {
            "output_weights": HEAD["classifier.weight"][order],
            "output_bias": HEAD["classifier.bias"][order],
        }
    )
    assert {n for n in weights.shapes if n[:7] == "output_"} == set(expected)
    check_values(weights, expected)


@pytest.mark.older_stack
@pytest.mark.parametrize("kind", [None, "single_label_classification"])
def test_a_run_reads_a_head_without_names_by_numbers(
    classify, tiny_flags, described, tmp_path, kind
):
    """Which are sorted as texts."""
    head = {
        "classifier.weight": np.zeros((12, 16), np.float32),
        "classifier.bias": np.eye(12, dtype=np.float32)[2],
    }
    names = {number: f"LABEL_{number}" for number in range(12)}
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"a film,{n}\n" for n in names))
    flags = {k: v for k, v in tiny_flags.items() if k != "adapter_size"}
    flags.update(
        task_name="custom",
        data_dir="",
        train_file=path,
        predict_file=path,
        init_checkpoint=described(
            head, config={"id2label": names, "problem_type": kind}
        ),
        tuning_method="head",
        do_train=False,
        do_predict=True,
    )
    classify(**flags)
    out = flags["output_dir"] / "test_predictions.tsv"
    assert {row.split("\t")[1] for row in read_lines(out)[1:]} == {"2"}


@pytest.mark.older_stack
def test_a_run_reads_a_head_by_its_labels(classify, tiny_flags, described):
    """As a published model's, whose order is another one."""
    flags = {k: v for k, v in tiny_flags.items() if k != "adapter_size"}
    flags.update(do_train=False, do_predict=True, tuning_method="head")
    answers = []
    for number, order in enumerate(([0, 1], [1, 0])):
        labels = ["bad", "good"]
        head = {name: value[order] for name, value in HEAD.items()}
        folder = described(
            head, config={"id2label": dict(enumerate(labels[n] for n in order))}
        )
        out = folder.parent / f"out{number}"
        classify(**{**flags, "init_checkpoint": folder, "output_dir": out})
        answers.append((out / "test_results.tsv").read_text())
    assert answers[0] == answers[1]
    flags["output_dir"] = folder.parent / "none"
    sets = {
        "architectures": ["BertForSequenceClassification"],
        "problem_type": "multi_label_classification",
    }
    for config in (
        {"id2label": {0: "no", 1: "yes"}},
        {"id2label": {0: "bad", 1: "good"}, **sets},
        {"architectures": ["BertForTokenClassification"]},
    ):
        folder = described(head, config=config)
        refusals.check(
            lambda bert=folder: classify(**{**flags, "init_checkpoint": bert}),
            "no trained head of this task",
        )
