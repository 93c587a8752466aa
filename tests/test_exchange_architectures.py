"""Models like BERT compute in other programs what they compute here.

Recorded (tests/golden/README.md): adapters of AdapterHub's library and of peft,
theirs and this project's, and merged models.
"""

from shutil import copytree

import numpy as np
import pytest
import refusals
from conftest import RECORDED, module_fixture, read_json
from exchanged import (
    assert_computes,
    assert_same_files,
    assert_same_values,
    change,
    change_tensors,
    read_one,
    without,
    write,
)
from safetensors.numpy import load_file

from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.exchange import foreign_adapters
from adapter_bert.methods.registry import parse
from lab import exchange

GOLDEN = RECORDED / "exchange_architectures"
OF_BERT = RECORDED / "exchange" / "adapterhub"
NEWER = pytest.mark.newer_stack
# The models, each with one TensorFlow.
STACKS = {
    "distilbert": NEWER,
    "electra": pytest.mark.older_stack,
    "albert": NEWER,
    "roberta": pytest.mark.older_stack,
    "mpnet": NEWER,
}
# Without AdapterHub's library.
ONLY_PEFT = {"mpnet"}
ALL = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=STACKS[name]) for name in STACKS]
)
CHOICES = {"name": "custom", "pairs": None, "choices": 2}
# Of heads that were not exchanged with the programs.
OTHER_TASKS = (
    CHOICES,
    {"name": "tagging", "tags": ["O", "B-LOC", "I-LOC"]},
    {"name": "masked_lm"},
)


@module_fixture
def open_bert(eagerly):
    """Opens a model once."""
    opened = {}

    def get(name):
        if name not in opened:
            folder = RECORDED / exchange.MODELS[name]
            opened[name] = FrozenBert.open(str(folder))
        return opened[name]

    return get


@ALL
def test_golden_adapters_of_others_compute_the_same(open_bert, name):
    bert = open_bert(name)
    folders = [
        folder
        for program in foreign_adapters.PROGRAMS
        for folder in GOLDEN.glob(f"{name}/{program}/*")
    ]
    assert len(folders) == (3 if name in ONLY_PEFT else 7)
    for folder in folders:
        assert_computes(bert, exchange.imported(bert, str(folder)), folder)


@ALL
def test_golden_adapters_that_others_loaded_are_written_and_read_the_same(
    open_bert, name, tmp_path
):
    bert, count = open_bert(name), 0
    for recorded in (GOLDEN / name).glob("ours/*/*"):
        count += 1
        program, case = recorded.parts[-2:]
        place, row = f"{program}/{case}", exchange.CASES[program][case]
        artifact = exchange.our_artifact(bert, place, *row)
        write(program, tmp_path / place, artifact, "our_task")
        assert_same_files(tmp_path / place, recorded)
        assert_computes(bert, artifact, recorded)
        back = exchange.imported(bert, str(tmp_path / place))
        assert_same_values(values_of(back), values_of(artifact))
        assert "head" not in back.config["task"]
    assert count == (5 if name in ONLY_PEFT else 9)


def values_of(artifact):
    weights = artifact.weights
    return {name: weights.read(name) for name in weights.shapes}


@ALL
@pytest.mark.parametrize("program", foreign_adapters.PROGRAMS)
def test_other_heads_are_read_as_they_were_written(
    open_bert, name, program, tmp_path
):
    bert = open_bert(name)
    if program == "adapterhub" and name in ONLY_PEFT:
        artifact = exchange.our_artifact(bert, "x", "lora(2)", CHOICES)
        refusals.check(
            lambda: write(program, tmp_path / "x", artifact),
            "no models of the type mpnet",
        )
        assert not (tmp_path / "x").exists()
        return
    for task in OTHER_TASKS:
        folder = tmp_path / task["name"]
        artifact = exchange.our_artifact(bert, program, "lora(2)", task)
        ours = exchange.prepared(bert, artifact)
        foreign_adapters.write(program, str(folder), ours, "")
        back = read_one(str(folder), bert.config)
        assert back.task == task
        assert_same_values(back.values, values_of(artifact))


@pytest.mark.older_stack
def test_a_head_of_choices_saves_the_pooler_alone(open_bert, tmp_path):
    bert = open_bert("roberta")
    write(
        "peft", tmp_path, exchange.our_artifact(bert, "x", "lora(2)", CHOICES)
    )
    described = read_json(tmp_path / "adapter_config.json")
    assert described["modules_to_save"] == ["pooler", "classifier"]


@pytest.mark.older_stack
def test_adapters_of_an_xlm_r_are_those_of_a_roberta(open_bert, tmp_path):
    theirs = GOLDEN / "roberta" / "adapterhub" / "pfeiffer"
    folder = copytree(theirs, tmp_path / "xlm")
    for path in folder.glob("*.json"):
        change(
            path, model_class="XLMRobertaAdapterModel", model_type="xlm-roberta"
        )
    adapter, expected = (
        read_one(str(place), open_bert("roberta").config)
        for place in (folder, theirs)
    )
    assert adapter.task == expected.task
    assert_same_values(adapter.values, expected.values)


@ALL
def test_golden_merged_models_compute_the_same(open_bert, name, tmp_path):
    """The very model that transformers loaded is written again."""
    bert, recorded = open_bert(name), GOLDEN / name / exchange.MERGED
    artifact, made = exchange.merged(bert)
    model = RECORDED / exchange.MODELS[name]
    exchange.write_merged(str(model), str(tmp_path), made)
    tensors, expected = (
        load_file(path / "model.safetensors") for path in (tmp_path, recorded)
    )
    assert tensors.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(tensors[key], value, atol=1e-6)
    for file in ("config.json", "tokenizer_config.json"):
        about = read_json(tmp_path / file)
        assert about == read_json(recorded / file)
    assert_computes(bert, artifact, recorded)


@NEWER
def test_invertible_adapters_have_the_size_of_the_embeddings(
    open_bert, tmp_path
):
    bert, method = open_bert("albert"), "mad_x(size=5, inverse_size=3)"
    assert bert.config.embedding_size == 8 < bert.config.hidden_size
    artifact = exchange.our_artifact(bert, "x", method, exchange.THREE)
    write("adapterhub", tmp_path / "out", artifact)
    described = read_json(tmp_path / "out/adapter_config.json")
    # The library divides half of the embeddings' size, and rounds down.
    factor = described["config"]["inv_adapter_reduction_factor"]
    assert 4 // factor == 3
    back = read_one(str(tmp_path / "out"), bert.config)
    assert back.method == parse(method)


@NEWER
@pytest.mark.parametrize(
    "program, name, method, is_alike, message",
    [
        ("adapterhub", "albert", "prompt(3)", True, "projection of embedd"),
        ("adapterhub", "electra", "prompt(3)", True, "projection of embedd"),
        ("adapterhub", "albert", "lora(2)", False, "share their adapter"),
        ("peft", "albert", "lora(2)", False, "share their adapter"),
        (
            "peft",
            "albert",
            "lora(2, alpha_pattern='1:3')",
            True,
            "share their adapter",
        ),
        (
            "adapterhub",
            "albert",
            "houlsby(size=5, layer_norms=False)",
            True,
            "read the layer's input; expected sites",
        ),
    ],
)
def test_what_a_model_has_otherwise_there_is_refused(
    open_bert, tmp_path, program, name, method, is_alike, message
):
    artifact = exchange.random_artifact(
        open_bert(name), method, exchange.THREE, 0
    )
    if is_alike and name == "albert":
        artifact = exchange.one_for_all(artifact)
    refusals.check(lambda: write(program, tmp_path / "out", artifact), message)


@NEWER
@pytest.mark.parametrize(
    "name, folder, parts",
    [
        ("distilbert", OF_BERT / "pfeiffer_100", ["of a bert", "distilbert"]),
        ("electra", OF_BERT / "lora_7", ["of a bert", "expected a electra"]),
        ("roberta", GOLDEN / "electra/peft/lora", ["lacks the tensor"]),
        ("electra", GOLDEN / "distilbert/peft/lora", ["holds no"]),
    ],
)
def test_adapters_are_of_one_kind_of_model(open_bert, name, folder, parts):
    config = open_bert(name).config
    refusals.check(
        lambda: foreign_adapters.read_all(str(folder), config), *parts
    )


@NEWER
def test_a_head_lacks_no_layer(open_bert, tmp_path):
    folder = copytree(
        GOLDEN / "distilbert" / "peft" / "lora", tmp_path / "lora"
    )
    change_tensors(
        folder / "adapter_model.safetensors", without("pre_classifier")
    )
    config = open_bert("distilbert").config
    refusals.check(
        lambda: foreign_adapters.read_all(str(folder), config),
        "pre_classifier is missing",
    )
