"""Other programs' adapters compute here what they compute there.

What AdapterHub's `adapters` 1.3 and peft 0.21 wrote, and what they made of this
project's adapters, was recorded by `lab/speed/exchange.py`.
"""

import json
import os
import pathlib
import types

import numpy as np
import pytest
import safetensors.numpy
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import exchange, peft
from adapter_bert.checkpoints import foreign as foreign_module
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.foreign import exported
from adapter_bert.errors import UserError
from adapter_bert.methods.lora import TARGETS
from adapter_bert.methods.registry import parse
from adapter_bert.serving.frozen_bert import FrozenBert
from lab.speed import exchange as both

pytestmark = pytest.mark.newer_stack

GOLDEN = (
    pathlib.Path(os.environ.get("GOLDEN_DIR", ROOT / "tests" / "golden"))
    / "exchange"
)
THEIRS = [
    f"{program}/{path.name}"
    for program in exchange.PROGRAMS
    for path in sorted((GOLDEN / program).iterdir())
]
OURS = [
    f"{program}/{case}"
    for program, cases in both.OURS.items()
    for case in cases
]


@pytest.fixture(scope="module")
def bert():
    return FrozenBert.open(str(GOLDEN / "bert"))


@pytest.fixture(scope="module")
def examples():
    return both.read_examples(str(GOLDEN))


@pytest.fixture(scope="module")
def artifacts(bert):
    return {
        f"{program}/{case}": artifact
        for program, case, artifact in both.our_artifacts(bert)
    }


@pytest.mark.parametrize("case", THEIRS)
def test_golden_adapters_of_others_compute_the_same(bert, examples, case):
    folder = str(GOLDEN / case)
    assert exchange.detect(folder) == case.split("/")[0]
    logits = both.logits(bert, both.imported(folder, bert), examples)
    assert both.difference(logits, folder, examples) < 1e-5


@pytest.mark.parametrize("case", OURS)
def test_golden_adapters_that_others_loaded_are_written_the_same(
    bert, examples, artifacts, case, tmp_path
):
    """What they computed of them is what is computed here."""
    artifact, recorded = artifacts[case], GOLDEN / "ours" / case
    folder = tmp_path / "written"
    exchange.write(
        case.split("/")[0], str(folder), exported(artifact, "our_task"), "card"
    )
    assert (folder / "README.md").read_text() == "card"
    assert list(recorded.glob("*.json"))
    assert list(recorded.glob("*.safetensors"))
    for path in recorded.glob("*.json"):
        assert json.loads((folder / path.name).read_text()) == json.loads(
            path.read_text()
        )
    for path in recorded.glob("*.safetensors"):
        found = safetensors.numpy.load_file(folder / path.name)
        expected = safetensors.numpy.load_file(path)
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
    logits = both.logits(bert, artifact, examples)
    assert both.difference(logits, str(recorded), examples) < 1e-5


@pytest.mark.parametrize("case", OURS)
def test_what_was_written_is_read_as_it_was(bert, artifacts, case, tmp_path):
    folder = str(tmp_path / "written")
    artifact = artifacts[case]
    exchange.write(case.split("/")[0], folder, exported(artifact, "a.b"), "")
    back = both.imported(folder, bert)
    # Of a robust AdapterDrop the adapters that it drops are left out.
    names = set(back.weights.shapes)
    dropped = set(artifact.weights.shapes) - names
    assert not dropped or "robust" in case and len(dropped) == 4
    for name in names:
        before, after = artifact.weights.read(name), back.weights.read(name)
        np.testing.assert_array_equal(before, after)
    kept = ("labels", "regression")
    if case.startswith("adapterhub"):
        assert {k: back.config["task"].get(k) for k in kept} == {
            k: artifact.config["task"].get(k) for k in kept
        }


def test_golden_labels_are_those_of_the_file():
    foreign = read("adapterhub/houlsby_7")
    assert foreign.task["labels"] == [
        "not at all",
        "yes, of course",
        "größer ≥ 7 日本",
    ]
    assert foreign.task["pairs"] is None
    assert foreign.origin == {
        "program": "adapterhub",
        "version": "adapters.1.3.0",
        "name": "my task",
    }
    assert read("adapterhub/static_classifier").task["labels"] == [
        "LABEL_0",
        "LABEL_1",
        "LABEL_2",
    ]


@pytest.mark.parametrize("case", ["adapterhub/houlsby_7", "peft/lora_7"])
def test_labels_and_pairs_can_be_told(case):
    config = config_of_bert()
    labels = ["a", "b, c", "ß"]
    task = exchange.read(str(GOLDEN / case), config, True, labels).task
    assert (task["labels"], task["pairs"]) == (labels, True)
    with pytest.raises(UserError, match="2 labels are named, but the head has"):
        exchange.read(str(GOLDEN / case), config, True, labels[:2])


@pytest.mark.parametrize(
    "case, labels, message",
    [
        ("peft/lora_7", ["a", "b", "a"], "two labels have one name"),
        ("peft/lora_7", ["a", "b", ""], "the label '' is empty, or holds"),
        ("peft/lora_7", ["a", "b", "c\td"], "is empty, or holds a tab"),
        ("adapterhub/houlsby_7", ["a", "b", "c\nd"], "holds a tab or a line"),
        ("adapterhub/static_questions", ["a"], "without labels; leave out"),
        ("peft/lora_questions", ["a"], "has a head without labels"),
    ],
)
def test_labels_are_names_of_a_heads_outputs(case, labels, message):
    with pytest.raises(UserError, match=message):
        exchange.read(str(GOLDEN / case), config_of_bert(), None, labels)


def config_of_bert():
    config = json.loads((GOLDEN / "bert" / "config.json").read_text())
    names = BertConfig.__dataclass_fields__
    return BertConfig(**{k: v for k, v in config.items() if k in names})


def read(case, folder=GOLDEN):
    return exchange.read(str(folder / case), config_of_bert())


@pytest.mark.parametrize(
    "program,method,message",
    [
        (
            "adapterhub",
            "houlsby(4)",
            r"LayerNorms, .*houlsby\(layer_norms=false\)",
        ),
        (
            "adapterhub",
            "houlsby(4, depth=2, layer_norms=False)",
            "expected depth=1",
        ),
        ("adapterhub", "bapna(4)", "bapna is not written for AdapterHub"),
        ("adapterhub", "full", "full is not written for AdapterHub"),
        ("adapterhub", "ia3", "write it for peft"),
        ("adapterhub", "compacter(4)", "compacter is not written for Adap"),
        ("peft", "layernorm", "layernorm is not written for peft"),
        (
            "adapterhub",
            "lora(2, targets='attention_output')",
            "LoRA at attention_output is not written .*; write it for peft",
        ),
        (
            "adapterhub",
            "adapterdrop(1, 'houlsby', 4)",
            "has trained BERT's LayerNorms",
        ),
        ("peft", "pfeiffer(4)", "expected lora or ia3"),
    ],
)
def test_what_a_program_cannot_hold_is_refused(
    bert, program, method, message, tmp_path
):
    artifact = both.random_artifact(bert, parse(method), both.THREE, 0)
    with pytest.raises(UserError, match=message):
        exchange.write(
            program, str(tmp_path / "out"), exported(artifact, "x"), ""
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", exchange.PROGRAMS)
def test_a_refusal_claims_nothing_of_the_program(program):
    fusion = types.SimpleNamespace(source="x", method=parse("fusion(a, b)"))
    with pytest.raises(UserError, match="^x: fusion is not written for "):
        exchange.PROGRAMS[program].write(fusion)


def test_peft_takes_bert_s_own_head_only(bert, tmp_path):
    task = {**both.THREE, "head": both.LAYERS}
    artifact = both.random_artifact(bert, parse("lora(2)"), task, 0)
    with pytest.raises(UserError, match="is not written for peft"):
        exchange.write("peft", str(tmp_path / "x"), exported(artifact, "x"), "")


def test_nothing_is_written_over(bert, tmp_path):
    artifact = both.random_artifact(bert, parse("lora(2)"), both.THREE, 0)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        exchange.write("peft", str(tmp_path), exported(artifact, "x"), "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", foreign_module.ACTIVATIONS.values())
def test_activations_go_there_and_back(name):
    assert (
        foreign_module.activation(foreign_module.foreign_activation(name), "x")
        == name
    )


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 2), st.sampled_from(list(TARGETS))),
        st.tuples(st.integers(1, 5), st.floats(0.1, 50)),
        min_size=1,
    )
)
@settings(max_examples=30, deadline=None)
def test_updates_of_any_ranks_and_scales_stay_what_they_are(wanted):
    config = config_of_bert()
    rng = np.random.default_rng(0)
    sizes = {"intermediate": (16, 32), "output": (32, 16)}
    found, expected = {}, {}
    for (layer, target), (rank, alpha) in wanted.items():
        inputs, outputs = sizes.get(target, (16, 16))
        down = rng.normal(size=(inputs, rank)).astype(np.float32)
        up = rng.normal(size=(rank, outputs)).astype(np.float32)
        found[layer, target] = peft.Factors(down, up, alpha)
        expected[layer, target] = alpha / rank * (down @ up)
    method, values = peft.to_method(found, config, "a file")
    for layer in range(config.num_hidden_layers):
        for target in method.targets.split(","):
            scope = f"bert/encoder/layer_{layer}/{TARGETS[target]}"
            update = values[f"{scope}/lora_a"] @ values[f"{scope}/lora_b"]
            update *= method.alpha / method.rank
            wanted_update = expected.get((layer, target), np.zeros_like(update))
            np.testing.assert_allclose(
                update, wanted_update, rtol=1e-4, atol=1e-4
            )
    assert set(wanted) <= {
        (layer, target)
        for layer in range(config.num_hidden_layers)
        for target in method.targets.split(",")
    }


def test_no_update_at_all_is_refused():
    with pytest.raises(UserError, match="a file holds no update"):
        peft.to_method({}, config_of_bert(), "a file")


def test_names_with_dots_are_names_of_modules(bert):
    artifact = both.random_artifact(bert, parse("lora(2)"), both.THREE, 0)
    assert isinstance(artifact, Artifact)
    assert exported(artifact, "sst-2.v1").name == "sst-2_v1"
