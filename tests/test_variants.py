"""Models and adapters whose configs or files are less usual, as they are saved.

The expected logits are what transformers and peft compute.
"""

import dataclasses
import functools
import json
import re
import struct
from shutil import copytree

import numpy as np
import pytest
import refusals
from conftest import ROOT, entry_point, open_checkpoint, write_json
from exchanged import (
    assert_same_values,
    change,
    change_tensors,
    read_one,
    without,
    write,
)
from numpy.testing import assert_allclose, assert_array_equal
from run_folders import check_texts_are_learned
from safetensors.numpy import load_file
from test_architectures import features_of, reader
from tiny_artifacts import CLASSIFICATION, make_artifact, outputs_of, read_base

from adapter_bert.bert.encoder import WORD_EMBEDDINGS
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints import sources
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.weights import OUTPUTS, Weights
from adapter_bert.checkpoints.written_form import (
    HUGGING_FACE,
    read_values,
    write_model,
)
from adapter_bert.commands import convert, run_mlm
from adapter_bert.exchange import foreign_adapters
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.masked_lm import MaskedLMHead
from adapter_bert.tasks.multiple_choice import ChoiceHead
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.tasks.text_classification import ClassificationHead
from adapter_bert.tasks.text_task import POOLED

pytestmark = pytest.mark.older_stack

GOLDEN = ROOT / "tests/golden/variants"
UNTIED, ACTIVATIONS, CHOICES = (
    [f.name for f in sorted(GOLDEN.glob(names))]
    for names in ("untied_*", "activation_*", "choice_*")
)


def expected_of(folder):
    with np.load(folder / "expected.npz") as values:
        return dict(values)


def model_of(folder, build_head):
    """A model with a folder's weights alone."""
    weights, config, _ = read_base(folder)
    return TaskModel(config, parse("head"), build_head, reader(weights))


def check_masked_words(folder, expected):
    """Compares the logits of all tokens."""
    model, features = model_of(folder, MaskedLMHead), features_of(expected)
    context = Context(features["input_mask"])
    hidden = model.bert(features["input_ids"], features["segment_ids"], context)
    places = np.tile(np.arange(9, dtype=np.int32), (2, 1))
    computed = model.head(
        model.bert, hidden.sequence_output, context, places, places * 0
    )["logits"].numpy()
    real = expected["attention_mask"] > 0
    assert_allclose(computed[real], expected["logits"][real], atol=1e-5)


def build_choices(config, create):
    return ChoiceHead(config, create, POOLED)


def check_texts(folder, expected, build_head):
    """Compares a row's logits."""
    features = features_of(expected)
    computed = model_of(folder, build_head)(
        features, Context(features["input_mask"])
    )
    assert_allclose(computed["logits"], expected["logits"], atol=1e-5)


@pytest.mark.parametrize("name", [*UNTIED, *ACTIVATIONS])
def test_golden_logits_of_masked_words(name):
    check_masked_words(GOLDEN / name, expected_of(GOLDEN / name))


@pytest.mark.parametrize("name", CHOICES)
def test_golden_logits_of_choices(name):
    check_texts(GOLDEN / name, expected_of(GOLDEN / name), build_choices)


@pytest.mark.parametrize("name", [*UNTIED, *CHOICES])
def test_what_transformers_saved_is_written_the_same(tmp_path, name):
    opened = open_checkpoint(GOLDEN / name)
    config = sources.read_config(opened)
    values = read_values(opened.weights, config)
    write_model(str(tmp_path), HUGGING_FACE, config, values, opened.head)
    theirs, ours = (
        load_file(place / "model.safetensors")
        for place in (GOLDEN / name, tmp_path)
    )
    assert_same_values({key: ours[key] for key in theirs}, theirs)
    expected = expected_of(GOLDEN / name)
    if name in UNTIED:
        check_masked_words(tmp_path, expected)
    else:
        check_texts(tmp_path, expected, build_choices)


@pytest.mark.parametrize("wrapper", ["model.", "module._orig_mod."])
def test_names_within_another_module_are_read(tmp_path, wrapper):
    folder = copytree(GOLDEN / "untied_bert", tmp_path / "wrapped")
    change_tensors(
        folder / "model.safetensors",
        lambda tensors: {f"{wrapper}{k}": v for k, v in tensors.items()},
    )
    check_masked_words(folder, expected_of(folder))


def save_bfloat16(path, tensors):
    """Writes tensors' upper halves, as PyTorch saves bfloat16."""
    header, content = {}, b""
    for name, value in tensors.items():
        data = (value.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        places = [len(content), len(content) + len(data)]
        header[name] = {
            "dtype": "BF16",
            "shape": list(value.shape),
            "data_offsets": places,
        }
        content += data
    about = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(about)) + about + content)


def test_bfloat16_is_read(tmp_path):
    folder = copytree(GOLDEN / "untied_bert", tmp_path / "narrow")
    path = folder / "model.safetensors"
    save_bfloat16(path, load_file(path))
    weights, *_ = read_base(folder)
    whole, *_ = read_base(GOLDEN / "untied_bert")
    assert weights.shapes == whole.shapes
    for name in weights.shapes:
        cut = whole.read(name).view(np.uint32) >> 16 << 16
        assert_array_equal(
            weights.read(name), cut.view(np.float32), err_msg=name
        )


PEFT = GOLDEN / "peft"
BASE = PEFT / "base"
LABELS = [f"LABEL_{number}" for number in range(3)]


def foreign_of(folder):
    weights, config, _ = read_base(BASE)
    foreign = read_one(str(folder), config)
    return foreign_adapters.complete(foreign, weights, config)


def check_adapter(folder, expected):
    """Compares what an adapter of peft computes."""
    foreign = foreign_of(folder)
    rows = [
        (ids[mask > 0].tolist(), [0] * int(mask.sum()))
        for ids, mask in zip(expected["input_ids"], expected["attention_mask"])
    ]
    task = restore_task(foreign.task, {}, "a test")
    assert list(task.labels) == LABELS
    computed = outputs_of(BASE, foreign.method, foreign.values, task, rows)
    logits = np.stack([row["logits"] for row in computed])
    assert_allclose(logits, expected["logits"], atol=1e-5)
    return foreign


@pytest.mark.parametrize(
    "name", ["pooler", "layer_norms", "some_layer_norms", "add_adapter"]
)
def test_golden_adapters_of_peft(tmp_path, name):
    """Read, written and read again."""
    expected = expected_of(PEFT / name)
    foreign = check_adapter(PEFT / name, expected)
    _, config, base = read_base(BASE)
    about = {
        "method": str(foreign.method),
        "task": foreign.task,
        "base": base.describe(),
        "bert_config": dataclasses.asdict(config),
    }
    shapes = {k: v.shape for k, v in foreign.values.items()}
    weights = Weights(name, shapes, foreign.values.__getitem__)
    artifact = Artifact(about, weights)
    write("peft", tmp_path / "written", artifact, name)
    again = check_adapter(tmp_path / "written", expected)
    assert (again.task, again.method) == (foreign.task, foreign.method)


@pytest.mark.parametrize(
    "name, before, after",
    [
        ("pooler", r"^base_model\.model\.", r"\g<0>_orig_mod."),
        ("pooler", "^", "module."),
        ("layer_norms", r"ln_tuning_layers\.", r"\g<0>default."),
        ("pooler", r"(pooler|classifier)\.", r"\1.modules_to_save.default."),
    ],
)
def test_names_of_an_adapter_in_another_module_are_read(
    tmp_path, name, before, after
):
    folder = copytree(PEFT / name, tmp_path / "one")

    def rename(tensors):
        renamed = {re.sub(before, after, k): v for k, v in tensors.items()}
        assert renamed.keys() != tensors.keys()
        return renamed

    change_tensors(folder / "adapter_model.safetensors", rename)
    check_adapter(folder, expected_of(folder))


@pytest.mark.parametrize(
    "problem, labels, is_multi_label, refused",
    [
        ("multi_label_classification", 3, True, ""),
        ("multi_label_classification", 1, True, ""),
        ("single_label_classification", 3, False, ""),
        ("regression", 2, None, "regression has 2 outputs"),
    ],
)
@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM"])
def test_a_problem_type_says_what_a_head_answers(
    tmp_path, name, problem, labels, is_multi_label, refused
):
    """Beside the class of the base, which peft has no other of."""
    folder = copytree(PEFT / "layer_norms", tmp_path / "one")
    change_tensors(
        folder / "adapter_model.safetensors",
        lambda tensors: {
            key: value[:labels] if "classifier" in key else value
            for key, value in tensors.items()
        },
    )
    about = {"architectures": [name], "problem_type": problem}
    write_json(folder / "config.json", about)
    if refused:
        refusals.check(lambda: foreign_of(folder), refused)
    else:
        task = foreign_of(folder).task
        assert task.get("multi_label", False) == is_multi_label
        assert task["labels"] == LABELS[:labels]


def test_the_way_out_for_pissa_works():
    refusals.check(
        lambda: foreign_of(PEFT / "pissa"), "merge_and_unload()", "--init_check"
    )
    expected = expected_of(PEFT / "pissa")
    build_head = functools.partial(ClassificationHead, 3)
    check_texts(PEFT / "pissa" / "merged", expected, build_head)


@pytest.fixture
def bare_bert(tiny_bert, tmp_path):
    """The folder of a tiny BERT without a pooler, as `run_mlm.py` saves it."""
    folder = copytree(tiny_bert, tmp_path / "bare")
    change_tensors(folder / "model.safetensors", without("pooler"))
    # Google's program has it.
    change(folder / "config.json", hidden_act="gelu_new")
    return folder


@pytest.mark.parametrize("to", ["google", "hugging_face"])
def test_a_new_pooler_is_written_as_bert_s(bare_bert, tmp_path, command, to):
    kept, values = make_artifact(tmp_path / "one", bare_bert, "lora(rank=2)")
    assert values["hidden_weights_0"].shape == (16, 16)
    command(
        convert,
        init_checkpoint=bare_bert,
        to=to,
        adapter=tmp_path / "one",
        output_dir=tmp_path / "merged",
    )
    opened = open_checkpoint(tmp_path / "merged")
    assert sources.read_config(opened).has_pooler
    rows = [([2, *range(5, 20), 3], [0] * 17), ([2, 9, 3, 8, 3], [0] * 5)]
    task = restore_task(CLASSIFICATION, {}, "a test")
    head = {n: opened.weights.read(n) for n in OUTPUTS}
    expected = outputs_of(bare_bert, kept, values, task, rows)
    computed = outputs_of(tmp_path / "merged", parse("head"), head, task, rows)
    for ours, theirs in zip(computed, expected):
        assert_allclose(ours["logits"], theirs["logits"], atol=1e-5)


@pytest.mark.gate
def test_a_bert_without_a_pooler_gets_one(
    bare_bert, tiny_data, tmp_path, classify, caplog
):
    """Trained with the head, kept in the adapter, and told."""
    out = tmp_path / "out"
    check_texts_are_learned(classify, bare_bert, tiny_data, out)
    assert "saved without BERT's pooler" in caplog.text
    values = load_file(out / "adapter" / "adapter.safetensors")
    assert "hidden_weights_0" in values


@pytest.mark.gate
def test_a_matrix_of_masked_words_is_trained_and_kept(
    text_flags, tiny_bert, tmp_path
):
    """From the word embeddings' values, of which it is no copy then."""
    bert = copytree(tiny_bert, tmp_path / "untied")
    change(bert / "config.json", tie_word_embeddings=False)
    words = read_base(bert)[0].read(WORD_EMBEDDINGS)
    decoder = {"cls.predictions.decoder.weight": words.copy()}
    change_tensors(bert / "model.safetensors", lambda t: {**t, **decoder})
    text_flags.update(init_checkpoint=bert, do_eval=True, num_train_epochs=2)
    text_flags.update(train_batch_size=4, learning_rate=1e-3)
    with entry_point(run_mlm) as model_text:
        model_text(**text_flags)
    values = load_file(tmp_path / "out" / "adapter" / "adapter.safetensors")
    moved = abs(values["cls/predictions/output_weights"] - words).max()
    assert 0 < moved < 0.1


def test_an_untied_head_is_not_written_for_google(tmp_path, command):
    refusals.check(
        lambda: command(
            convert,
            init_checkpoint=GOLDEN / "untied_bert",
            to="google",
            output_dir=tmp_path / "google",
        ),
        "tie_word_embeddings",
        "hugging_face",
    )
