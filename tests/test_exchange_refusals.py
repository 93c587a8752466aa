"""Other programs' adapters that cannot be followed are refused by name."""

import dataclasses
import json
import pathlib
import shlex
import shutil
import types

import numpy as np
import pytest
import safetensors.numpy
from test_exchange import GOLDEN, config_of_bert, read

from adapter_bert.checkpoints import exchange, peft
from adapter_bert.checkpoints.foreign import head_of
from adapter_bert.errors import UserError

pytestmark = pytest.mark.newer_stack

REFUSED = {
    "adapterhub_refused/compacter": "computes Compacter's products",
    "adapterhub_refused/dora": "use_dora is True",
    "adapterhub_refused/gated": "computes gates",
    "adapterhub_refused/ia3": "scales intermediate.dense .* intermediate_lora",
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
            "adapterhub/mad_x_7",
            HUB,
            {"config__inv_adapter": "glow"},
            "inv_adapter is 'glow': no method .* expected 'nice'",
        ),
        (
            "adapterhub/mad_x_7",
            HUB,
            {"config__mh_adapter": True},
            "and the other adapters as in seq_bn_inv",
        ),
        (
            "adapterhub/mad_x_7",
            HUB,
            {"config__is_parallel": True},
            "and the other adapters as in seq_bn_inv",
        ),
        (
            "adapterhub/mad_x_7",
            HUB,
            {"config__inv_adapter": None},
            "no method of this project has anything at invertible_adapters",
        ),
        (
            "adapterhub/pfeiffer_100",
            HUB,
            {"config__inv_adapter": "nice"},
            "lacks the tensor invertible_adapters...F.0.weight",
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
            {"config__label2id": {"a": 0, "b": 1, "c": float("inf")}},
            "holds what JSON does not have",
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
        (
            "peft/lora_7",
            HUB,
            {"target_modules": "(?=.*)query"},
            "no regular expression that can be used here",
        ),
        ("peft/lora_7", HUB, {"target_modules": "\ud800"}, "JSON does not"),
        (
            "peft/lora_7",
            HUB,
            {"init_lora_weights": "pissa"},
            "changes BERT's own matrices too; save it with path_initial",
        ),
        (
            "adapterhub/lora_7",
            HUB,
            {"config__composition_mode": "multiply"},
            "composition_mode is 'multiply', expected add or scale",
        ),
        (
            "adapterhub/houlsby_7",
            HUB,
            {"config__scaling": -1e300},
            r"^scaling is -1e\+300, expected a number of at most 3.4e38",
        ),
        ("adapterhub/lora_7", HUB, {"config__alpha": 1e39}, "alpha is 1e.39, "),
    ],
)
def test_a_description_that_cannot_be_followed_is_one_line(
    copied, case, file, values, message
):
    folder = copied(case)
    change(folder / file, **values)
    with pytest.raises(UserError, match=message):
        exchange.read(str(folder), config_of_bert())


@pytest.mark.parametrize(
    "pattern", ["(.*)*x", "(.+)+x", "(.|.)" * 44 + "x", ".?" * 44 + "[XY]"]
)
def test_no_pattern_takes_for_ever(copied, pattern):
    """With Python's engine these do."""
    folder = copied("peft/lora_7")
    change(folder / HUB, target_modules=pattern)
    with pytest.raises(UserError, match="names no matrix of this BERT"):
        exchange.read(str(folder), config_of_bert())


def test_patterns_are_few_short_and_plain(copied):
    folder = copied("peft/lora_7")
    patterns = {f"x{number}": 1.5 for number in range(peft.MOST_PATTERNS)}
    change(folder / HUB, alpha_pattern={**patterns, "x": 1})
    with pytest.raises(UserError, match="has 501 patterns, expected at most"):
        exchange.read(str(folder), config_of_bert())
    change(folder / HUB, alpha_pattern=patterns)
    exchange.read(str(folder), config_of_bert())
    for pattern in ("a{300}", "(.*)" * 126):
        change(folder / HUB, alpha_pattern={pattern: 1})
        with pytest.raises(UserError, match=r"500 letters, without \{\}"):
            exchange.read(str(folder), config_of_bert())
    # The first that fits holds; with all modules found, the rest are nothing.
    change(folder / HUB, alpha_pattern={"query": 6, ".*": 12, "(": 1})
    found = exchange.read(str(folder), config_of_bert()).values
    change(folder / HUB, alpha_pattern={}, lora_alpha=1)
    once = exchange.read(str(folder), config_of_bert()).values
    for name, value in once.items():
        if name.endswith("lora_b"):
            times = 6 if "query" in name else 12
            scale = found[name] / np.where(value, value, 1)
            assert np.allclose(scale[value != 0], times / 7, rtol=1e-5)


@pytest.mark.parametrize(
    "damage",
    [
        lambda a, b: (a[:0], b[:, :0]),
        lambda a, b: (a, b[:0]),
        # Of nothing, there is room for as much as one likes.
        lambda a, b: (
            np.zeros((2**40, 0), a.dtype),
            np.zeros((0, 2**40), b.dtype),
        ),
        lambda a, b: (a[:, :1], b),
    ],
    ids=["no rank", "no outputs", "terabytes", "one input"],
)
def test_an_update_of_another_shape_is_refused(copied, damage):
    folder = copied("peft/lora_7")
    place = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_"
    names = f"{place}A.weight", f"{place}B.weight"

    def change_both(tensors):
        changed = damage(*(tensors[name] for name in names))
        tensors.update(zip(names, map(np.ascontiguousarray, changed)))

    change_tensors(folder / "adapter_model.safetensors", change_both)
    with pytest.raises(UserError, match="the update of .*query is .*expected"):
        exchange.read(str(folder), config_of_bert())


ODD = (None, True, 0, -1, 1.5, "", "(", [], ["("], {}, {"(": "x"})
ODD += (1e300, -(10**320), float("nan"))


@pytest.mark.parametrize(
    "case,file",
    [
        *(
            (f"adapterhub/{name}", HUB)
            for name in (
                "houlsby_7",
                "parallel_7",
                "mad_x_7",
                "lora_7",
                "ia3_keys_values",
                "prefix_5",
            )
        ),
        ("adapterhub/houlsby_7", HUB_HEAD),
        ("adapterhub/static_classifier", HUB_HEAD),
        ("peft/lora_7", HUB),
        ("peft/ia3_same", HUB),
    ],
)
@pytest.mark.filterwarnings("error")
def test_odd_values_in_a_description_are_refused_or_read(copied, case, file):
    """Each key in turn is of another type, or senseless."""
    path = copied(case) / file
    whole = path.read_text()
    names = list(json.loads(whole))
    inner = json.loads(whole).get("config") or {}
    refused = 0
    for name in (*names, *(f"config__{name}" for name in inner)):
        for value in ODD:
            change(path, **{name: value})
            try:
                exchange.read(str(path.parent), config_of_bert())
            except UserError as error:
                assert "\n" not in str(error)
                refused += 1
            path.write_text(whole)
    assert refused


@pytest.mark.parametrize(
    "case",
    [
        "adapterhub/houlsby_7",
        "adapterhub/lora_7",
        "peft/lora_7",
        "peft/ia3_same",
    ],
)
def test_an_adapter_of_a_deeper_bert_is_refused(case):
    config = dataclasses.replace(config_of_bert(), num_hidden_layers=1)
    with pytest.raises(UserError, match="in layer . too, .* has 1 layers"):
        exchange.read(str(GOLDEN / case), config)


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
    command = shlex.split(message[message.index("python -c ") :])
    compile(command[2], "line", "exec")
    assert "weights_only=True" in command[2]
    assert command[3:] == [str(folder / pickle), str(folder / file)]


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
        ("adapterhub/mad_x_7", "adapter.safetensors"),
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
        ("adapterhub/mad_x_7", "adapter.safetensors", "layer.1.output"),
        ("adapterhub/mad_x_7", "adapter.safetensors", "G.2"),
        ("adapterhub/lora_7", "adapter.safetensors", "layer.2.attention"),
        ("peft/lora_patterns", "adapter_model.safetensors", "layer.1"),
        ("peft/ia3_same", "adapter_model.safetensors", "layer.0"),
    ],
)
def test_no_part_is_left_out_silently(copied, case, file, part):
    folder = copied(case)

    def drop(tensors):
        for name in [n for n in tensors if part in n]:
            del tensors[name]

    change_tensors(folder / file, drop)
    with pytest.raises(UserError, match="lacks the tensors?|holds nothing"):
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


def test_sets_of_labels_are_not_written_for_other_programs():
    artifact = types.SimpleNamespace(
        config={"task": {"name": "custom", "multi_label": True}},
        weights=types.SimpleNamespace(source="a", read=None),
    )
    with pytest.raises(UserError, match="a is of the kind multi-label, whose"):
        head_of(artifact)
