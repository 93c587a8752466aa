"""Other programs' adapters compute here what they compute there.

What AdapterHub's `adapters` 1.3 and peft 0.21 wrote, and what they made of this
project's adapters, was recorded by `benchmarks/exchange.py`.
"""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import safetensors.numpy
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

import exchange
from benchmarks import exchange as both
from errors import UserError
from exchange import base, lora
from exchange.base import exported
from methods.lora import TARGETS
from methods.parsing import parse
from modeling import BertConfig
from serving.frozen_bert import FrozenBert
from weights.adapter_artifact import Artifact

GOLDEN = (
    pathlib.Path(os.environ.get("GOLDEN_DIR", ROOT / "tests" / "golden"))
    / "exchange"
)
THEIRS = [
    f"{program}/{path.name}"
    for program in exchange.READERS
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


REFUSED = {
    "adapterhub_refused/compacter": "computes Compacter's products",
    "adapterhub_refused/dora": "use_dora is True",
    "adapterhub_refused/gated": "computes gates",
    "adapterhub_refused/ia3": "scales intermediate.dense .* intermediate_lora",
    "adapterhub_refused/invertible": "computes invertible adapters",
    "adapterhub_refused/multilabel": "multilabel_classification",
    "adapterhub_refused/no_head": "without a head",
    "adapterhub_refused/other_residual": "residual_before_ln=False",
    "adapterhub_refused/own_layer_norm": "a LayerNorm in the adapter",
    "adapterhub_refused/reft": "'reft'",
    "adapterhub_refused/sizes_by_layer": r"the sizes \[2, 4\]",
    "adapterhub_refused/tagging": "'tagging' is not read",
    "adapterhub_refused/union": "'union'",
    "peft_refused/dora": "use_dora is True",
    "peft_refused/ia3": "scales attention.output.dense too",
    "peft_refused/lora_bias": "bias='all'",
    "peft_refused/pooler": "of no part that .*pooler.dense.bias",
    "peft_refused/prefix": "PREFIX_TUNING is not read",
    "peft_refused/prompt": "PROMPT_TUNING is not read",
}


@pytest.mark.parametrize("case", REFUSED)
def test_golden_adapters_that_no_method_computes_are_refused(case):
    with pytest.raises(UserError, match=REFUSED[case]):
        read(case)


def config_of_bert():
    config = json.loads((GOLDEN / "bert" / "config.json").read_text())
    names = BertConfig.__dataclass_fields__
    return BertConfig(**{k: v for k, v in config.items() if k in names})


def read(case, folder=GOLDEN):
    return exchange.read(str(folder / case), config_of_bert())


@pytest.fixture
def copied(tmp_path):
    """A copy of a recorded adapter, whose files may be changed."""

    def copy(case):
        return pathlib.Path(shutil.copytree(GOLDEN / case, tmp_path / "copy"))

    return copy


def change(path, **values):
    """Replaces parts of a JSON file, dotted names with `__` for the dot."""
    content = json.loads(path.read_text())
    for key, value in values.items():
        *parents, last = key.split("__")
        part = content
        for parent in parents:
            part = part[parent]
        part[last] = value
    path.write_text(json.dumps(content))


def change_tensors(path, function):
    tensors = safetensors.numpy.load_file(path)
    function(tensors)
    safetensors.numpy.save_file(tensors, path)


HUB, HUB_HEAD = "adapter_config.json", "head_config.json"


@pytest.mark.parametrize(
    "case,file,values,message",
    [
        ("adapterhub/houlsby_7", HUB, {"hidden_size": 32}, "hidden size 32"),
        ("adapterhub/houlsby_7", HUB, {"model_type": "gpt2"}, "of a gpt2"),
        ("adapterhub/houlsby_7", HUB, {"config": 7}, "no config of type dict"),
        (
            "adapterhub/houlsby_7",
            HUB,
            {"config__non_linearity": "laplace"},
            "activation 'laplace' is not known; expected one of gelu",
        ),
        (
            "adapterhub/houlsby_7",
            HUB,
            {"config__scaling": "what"},
            "scaling is 'what', expected a number",
        ),
        (
            "adapterhub/parallel_7",
            HUB,
            {"config__mh_adapter": True},
            "beside the attention",
        ),
        (
            "adapterhub/pfeiffer_100",
            HUB,
            {"config__mh_adapter": True},
            "no method of this project; expected those of double_seq_bn",
        ),
        (
            "adapterhub/prefix_5",
            HUB,
            {"config__non_linearity": "relu"},
            "activation 'relu', expected tanh",
        ),
        (
            "adapterhub/prefix_5",
            HUB,
            {"config__leave_out": [1]},
            "without some layers",
        ),
        (
            "adapterhub/houlsby_7",
            HUB_HEAD,
            {"config__label2id": {"a": 0, "b": 1, "c": 3}},
            "expected a number from 0 to 2 for each of 3 labels",
        ),
        (
            "adapterhub/houlsby_7",
            HUB_HEAD,
            {"config__layers": 0},
            "the head has 0 layers",
        ),
        (
            "adapterhub/houlsby_7",
            HUB_HEAD,
            {"model_class": "RobertaAdapterModel"},
            "of a RobertaAdapterModel, expected one of BertAdapterModel",
        ),
        ("peft/lora_7", HUB, {"task_type": None}, "task_type is None"),
        ("peft/lora_7", HUB, {"task_type": "TOKEN_CLS"}, "'TOKEN_CLS'"),
        ("peft/lora_7", HUB, {"lora_bias": True}, "lora_bias is True"),
        ("peft/lora_7", HUB, {"r": "many"}, "no r of type int"),
    ],
)
def test_a_description_that_cannot_be_followed_is_one_line(
    copied, case, file, values, message
):
    folder = copied(case)
    change(folder / file, **values)
    with pytest.raises(UserError, match=message):
        exchange.read(str(folder), config_of_bert())


def test_gelu_of_before_there_was_a_version_is_the_approximation(copied):
    folder = copied("adapterhub/houlsby_48_gelu")
    assert read("adapterhub/houlsby_48_gelu").method.nonlinearity == "gelu_erf"
    content = json.loads((folder / HUB).read_text())
    del content["version"]
    (folder / HUB).write_text(json.dumps(content))
    method = exchange.read(str(folder), config_of_bert()).method
    assert method.nonlinearity == "gelu"


@pytest.mark.parametrize(
    "case,file,pickle",
    [
        (
            "adapterhub/lora_7",
            "adapter.safetensors",
            "pytorch_adapter.bin",
        ),
        (
            "adapterhub/lora_7",
            "model_head.safetensors",
            "pytorch_model_head.bin",
        ),
        ("peft/lora_7", "adapter_model.safetensors", "adapter_model.bin"),
    ],
)
def test_a_pickle_is_refused_with_the_line_that_converts_it(
    copied, case, file, pickle
):
    folder = copied(case)
    (folder / file).rename(folder / pickle)
    with pytest.raises(UserError) as caught:
        exchange.read(str(folder), config_of_bert())
    message = str(caught.value)
    assert f"{folder / pickle} is a pickle" in message
    line = message.partition('python -c "')[2].rpartition('"')[0]
    compile(line, "line", "exec")
    assert f"'{folder / file}'" in line and "weights_only=True" in line


@pytest.mark.parametrize(
    "damage,message",
    [
        (lambda t: t.pop(next(iter(t))), "lacks the tensor|holds nothing"),
        (
            lambda t: t.update(extra=np.zeros(2, np.float32)),
            "1 tensors are of no part that this project reads: extra",
        ),
        (
            lambda t: t.update(
                {k: np.full_like(v, np.nan) for k, v in t.items()}
            ),
            "is not finite",
        ),
        (
            lambda t: t.update({k: v[..., :-1] for k, v in t.items()}),
            "has the shape",
        ),
        (lambda t: t.clear(), "sizes|lacks|holds no"),
    ],
)
@pytest.mark.parametrize(
    "case,file",
    [
        ("adapterhub/houlsby_7", "adapter.safetensors"),
        ("adapterhub/houlsby_7", "model_head.safetensors"),
        ("adapterhub/prefix_flat", "adapter.safetensors"),
        ("peft/lora_7", "adapter_model.safetensors"),
        ("peft/ia3_same", "adapter_model.safetensors"),
    ],
)
def test_damaged_tensors_are_refused(copied, case, file, damage, message):
    folder = copied(case)
    if "prefix" in case:
        # Else a copy in a layer would be damaged.
        change_tensors(folder / file, keep_one)
    change_tensors(folder / file, damage)
    messages = f"{message}|multiple of|hold no|no part"
    with pytest.raises(UserError, match=messages):
        exchange.read(str(folder), config_of_bert())


def keep_one(tensors):
    for name in [n for n in tensors if "pool" in n]:
        del tensors[name]


@pytest.mark.parametrize(
    "case,file,part",
    [
        ("adapterhub/houlsby_7", "adapter.safetensors", "layer.1.output"),
        ("adapterhub/lora_7", "adapter.safetensors", "layer.2.attention"),
        ("peft/lora_patterns", "adapter_model.safetensors", "layer.1"),
        ("peft/ia3_same", "adapter_model.safetensors", "layer.0"),
    ],
)
def test_no_layer_is_left_out_silently(copied, case, file, part):
    folder = copied(case)

    def drop(tensors):
        for name in [n for n in tensors if part in n]:
            del tensors[name]

    change_tensors(folder / file, drop)
    with pytest.raises(UserError, match="lacks the tensors|holds nothing"):
        exchange.read(str(folder), config_of_bert())


def test_half_a_file_is_refused(copied):
    folder = copied("peft/lora_7")
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="damaged, no safetensors file"):
        exchange.read(str(folder), config_of_bert())


def test_no_adapter_at_all_is_refused(tmp_path):
    with pytest.raises(UserError, match="no adapter of adapterhub or peft"):
        exchange.read(str(tmp_path), config_of_bert())


@pytest.mark.parametrize(
    "program,method,message",
    [
        (
            "adapterhub",
            "houlsby(4)",
            r"LayerNorms, .*houlsby\(layer_norms=false\)",
        ),
        ("adapterhub", "houlsby(4, depth=2, layer_norms=False)", "one layer"),
        ("adapterhub", "bapna(4)", "nothing that computes bapna"),
        ("adapterhub", "full", "nothing that computes full"),
        ("adapterhub", "ia3", "write it for peft"),
        (
            "adapterhub",
            "lora(2, targets='attention_output')",
            "cannot be at attention_output; write it for peft",
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


def test_peft_takes_bert_s_own_head_only(bert, tmp_path):
    task = {**both.THREE, "head": both.LAYERS}
    artifact = both.random_artifact(bert, parse("lora(2)"), task, 0)
    with pytest.raises(UserError, match="no head of this form"):
        exchange.write("peft", str(tmp_path / "x"), exported(artifact, "x"), "")


def test_nothing_is_written_over(bert, tmp_path):
    artifact = both.random_artifact(bert, parse("lora(2)"), both.THREE, 0)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        exchange.write("peft", str(tmp_path), exported(artifact, "x"), "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", base.ACTIVATIONS.values())
def test_activations_go_there_and_back(name):
    assert base.activation(base.foreign_activation(name), "x") == name


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
        found[layer, target] = lora.Factors(down, up, alpha)
        expected[layer, target] = alpha / rank * (down @ up)
    method, values = lora.to_method(found, config, "a file")
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
        lora.to_method({}, config_of_bert(), "a file")


def test_names_with_dots_are_names_of_modules(bert):
    artifact = both.random_artifact(bert, parse("lora(2)"), both.THREE, 0)
    assert isinstance(artifact, Artifact)
    assert exported(artifact, "sst-2.v1").name == "sst-2_v1"
