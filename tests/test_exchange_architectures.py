"""Models like BERT compute in other programs what they compute here.

Recorded (tests/golden/README.md): adapters of AdapterHub's library and of peft,
theirs and this project's, and merged models.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from conftest import RECORDED
from exchanged import read_examples

from adapter_bert.checkpoints import foreign_adapters, hugging_face
from adapter_bert.checkpoints.foreign_base import exported
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import parse
from adapter_bert.serving.frozen_bert import FrozenBert
from lab import exchange

GOLDEN = RECORDED / "exchange_architectures"
OF_BERT = RECORDED / "exchange"
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


@pytest.fixture(scope="module")
def open_bert():
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
    examples = read_examples(GOLDEN / name)
    bert, count = open_bert(name), 0
    for program in foreign_adapters.PROGRAMS:
        for folder in map(str, GOLDEN.glob(f"{name}/{program}/*")):
            artifact = exchange.imported(bert, folder)
            assert exchange.difference(bert, artifact, folder, examples) < 1e-5
            count += 1
    assert count == (3 if name in ONLY_PEFT else 7)


@ALL
def test_golden_adapters_that_others_loaded_are_written_and_read_the_same(
    open_bert, name, tmp_path
):
    bert, count = open_bert(name), 0
    examples = read_examples(GOLDEN / name)
    for recorded in (GOLDEN / name).glob("ours/*/*"):
        count += 1
        program, case = recorded.parts[-2:]
        place, row = f"{program}/{case}", exchange.CASES[program][case]
        artifact = exchange.our_artifact(bert, place, *row)
        folder = tmp_path / place
        foreign_adapters.write(
            program, str(folder), exported(artifact, "our_task"), ""
        )
        for path in recorded.glob("*.json"):
            found = json.loads((folder / path.name).read_text())
            assert found == json.loads(path.read_text())
        for path in recorded.glob("*.safetensors"):
            found = safetensors.numpy.load_file(folder / path.name)
            expected = safetensors.numpy.load_file(path)
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                np.testing.assert_array_equal(found[key], value)
        place = str(recorded)
        assert exchange.difference(bert, artifact, place, examples) < 1e-5
        back = exchange.imported(bert, str(folder))
        assert back.weights.shapes.keys() == artifact.weights.shapes.keys()
        for key in back.weights.shapes:
            np.testing.assert_array_equal(
                back.weights.read(key), artifact.weights.read(key)
            )
        assert "head" not in back.config["task"]
    assert count == (5 if name in ONLY_PEFT else 9)


@ALL
@pytest.mark.parametrize("program", foreign_adapters.PROGRAMS)
def test_other_heads_are_read_as_they_were_written(
    open_bert, name, program, tmp_path
):
    bert = open_bert(name)
    words = bert.weights.read("bert/embeddings/word_embeddings")
    if program == "adapterhub" and name in ONLY_PEFT:
        ours = exported(
            exchange.our_artifact(bert, "x", "lora(2)", CHOICES), "x"
        )
        with pytest.raises(UserError, match="no models of the type mpnet"):
            foreign_adapters.write(program, str(tmp_path / "x"), ours, "")
        assert not (tmp_path / "x").exists()
        return
    for task in OTHER_TASKS:
        folder = tmp_path / task["name"]
        artifact = exchange.our_artifact(bert, program, "lora(2)", task)
        ours = exported(artifact, "x")
        if task["name"] == "masked_lm":
            head = dataclasses.replace(ours.head, words=words)
            ours = dataclasses.replace(ours, head=head)
        foreign_adapters.write(program, str(folder), ours, "")
        back = foreign_adapters.read(str(folder), bert.config)
        assert back.task == task
        assert back.values.keys() == artifact.weights.shapes.keys()
        for key, value in back.values.items():
            np.testing.assert_array_equal(value, artifact.weights.read(key))


@pytest.mark.older_stack
def test_a_head_of_choices_saves_the_pooler_alone(open_bert, tmp_path):
    artifact = exchange.our_artifact(
        open_bert("roberta"), "x", "lora(2)", CHOICES
    )
    foreign_adapters.write("peft", str(tmp_path), exported(artifact, "x"), "")
    described = json.loads((tmp_path / "adapter_config.json").read_text())
    assert described["modules_to_save"] == ["pooler", "classifier"]


@pytest.mark.older_stack
def test_adapters_of_an_xlm_r_are_those_of_a_roberta(open_bert, tmp_path):
    theirs = GOLDEN / "roberta" / "adapterhub" / "pfeiffer"
    folder = shutil.copytree(theirs, tmp_path / "xlm")
    for path in folder.glob("*.json"):
        about = json.loads(path.read_text())
        assert about["model_class"] == "RobertaAdapterModel"
        about["model_class"] = "XLMRobertaAdapterModel"
        about["model_type"] = "xlm-roberta"
        path.write_text(json.dumps(about))
    config = open_bert("roberta").config
    found = foreign_adapters.read(str(folder), config)
    expected = foreign_adapters.read(str(theirs), config)
    assert found.task == expected.task
    for key, value in expected.values.items():
        np.testing.assert_array_equal(found.values[key], value)


@ALL
def test_golden_merged_models_compute_the_same(open_bert, name, tmp_path):
    """The very model that transformers loaded is written again."""
    bert, folder = open_bert(name), GOLDEN / name
    artifact, found = exchange.merged(bert)
    place = tmp_path / "merged"
    model = RECORDED / exchange.MODELS[name]
    exchange.write_merged(str(model), str(place), found)
    recorded = folder / exchange.MERGED
    tensors, expected = (
        safetensors.numpy.load_file(path / "model.safetensors")
        for path in (place, recorded)
    )
    assert tensors.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(tensors[key], value, atol=1e-6)
    for file in ("config.json", "tokenizer_config.json"):
        about = json.loads((place / file).read_text())
        assert about == json.loads((recorded / file).read_text())
    examples = read_examples(folder)
    assert exchange.difference(bert, artifact, str(recorded), examples) < 1e-5


@NEWER
def test_invertible_adapters_have_the_size_of_the_embeddings(
    open_bert, tmp_path
):
    bert, folder = open_bert("albert"), str(tmp_path / "out")
    assert bert.config.embedding_size == 8 < bert.config.hidden_size
    method = "mad_x(size=5, inverse_size=3)"
    artifact = exchange.our_artifact(bert, "x", method, exchange.THREE)
    foreign_adapters.write("adapterhub", folder, exported(artifact, "x"), "")
    described = json.loads((tmp_path / "out/adapter_config.json").read_text())
    # The library divides half of the embeddings' size, and rounds down.
    factor = described["config"]["inv_adapter_reduction_factor"]
    assert 4 // factor == 3
    back = foreign_adapters.read(folder, bert.config)
    assert back.method == parse(method)


@NEWER
@pytest.mark.parametrize("name", ["albert", "electra"])
def test_prompts_are_not_projected(open_bert, name, tmp_path):
    bert = open_bert(name)
    artifact = exchange.random_artifact(bert, "prompt(3)", exchange.THREE, 0)
    with pytest.raises(UserError, match="projection of embeddings, but this"):
        foreign_adapters.write(
            "adapterhub", str(tmp_path / "out"), exported(artifact, "x"), ""
        )


@NEWER
@pytest.mark.parametrize("program", foreign_adapters.PROGRAMS)
@pytest.mark.parametrize("method", ["lora(2)", "lora(2, alpha_pattern='1:3')"])
def test_layers_that_share_have_one_adapter(
    open_bert, program, method, tmp_path
):
    bert = open_bert("albert")
    artifact = exchange.random_artifact(bert, method, exchange.THREE, 0)
    if "pattern" in method:
        artifact = exchange.one_for_all(artifact)
    with pytest.raises(UserError, match="share their adapter in other prog"):
        foreign_adapters.write(
            program, str(tmp_path / "out"), exported(artifact, "x"), ""
        )


@NEWER
def test_adapters_after_an_alberts_attention_are_other_ones(
    open_bert, tmp_path
):
    bert = open_bert("albert")
    method = "houlsby(size=5, layer_norms=False)"
    artifact = exchange.random_artifact(bert, method, exchange.THREE, 0)
    ours = exported(exchange.one_for_all(artifact), "x")
    with pytest.raises(UserError, match="which read the layer's input there"):
        foreign_adapters.write("adapterhub", str(tmp_path / "out"), ours, "")


@NEWER
@pytest.mark.parametrize(
    "name, case, message",
    [
        ("distilbert", "adapterhub/pfeiffer_100", "of a bert .* a distilbert"),
        ("electra", "adapterhub/lora_7", "of a bert .* expected a electra"),
    ],
)
def test_berts_adapters_are_of_another_model(open_bert, name, case, message):
    config = open_bert(name).config
    with pytest.raises(UserError, match=message):
        foreign_adapters.read(str(OF_BERT / case), config)


@NEWER
def test_a_head_lacks_no_layer(open_bert, tmp_path):
    folder = shutil.copytree(
        GOLDEN / "distilbert" / "peft" / "lora", tmp_path / "lora"
    )
    path = folder / "adapter_model.safetensors"
    kept = {
        key: value
        for key, value in safetensors.numpy.load_file(path).items()
        if "pre_classifier" not in key
    }
    safetensors.numpy.save_file(kept, path)
    with pytest.raises(UserError, match="pre_classifier is missing"):
        foreign_adapters.read(str(folder), open_bert("distilbert").config)


@NEWER
@pytest.mark.parametrize(
    "name, other", [("roberta", "electra"), ("electra", "distilbert")]
)
def test_pefts_adapters_are_of_one_kind_of_model(open_bert, name, other):
    folder = str(GOLDEN / other / "peft" / "lora")
    with pytest.raises(UserError, match="target_modules|holds no"):
        foreign_adapters.read(folder, open_bert(name).config)


@ALL
def test_modules_have_a_name_in_a_bert(name):
    for module in (
        "bert.encoder.layer.0.attention.self.query",
        "bert.encoder.layer.0.attention.output.dense",
        "bert.encoder.layer.0.attention.output.adapters.x.adapter_up.weight",
        "bert.encoder.layer.0.attention.self.prefix_tuning.prefix_gates.x",
        "bert.encoder.layer.0.output.adapters.x.adapter_up.weight",
        "bert.encoder.layer.0.output.dense.loras.x.lora_A",
        "bert.encoder.layer.0.intermediate.dense.loras.x.lora_A",
        "bert.encoder.layer.0.reft_layer.refts.x",
        "bert.invertible_adapters.x.F.0.weight",
        "heads.x.1.weight",
    ):
        theirs = hugging_face.from_bert(module, name)
        assert theirs == module or not theirs.startswith("bert.")
        assert hugging_face.as_bert(theirs, name) == module
