"""Other programs' adapters compute here what they compute there.

What AdapterHub's `adapters` 1.3 and peft 0.21 wrote, and what they made of this
project's adapters, was recorded (tests/golden/README.md). What cannot be
followed is refused by name; each field of a description is compared, used or
listed.
"""

# The fixture `copied` is imported.
# ruff: noqa: F811

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import refusals
from conftest import (
    RECORDED,
    module_fixture,
    open_bert,
    read_adapter,
    read_json,
)
from exchanged import (
    assert_computes,
    assert_same_files,
    assert_same_values,
    change,
    change_tensors,
    config_of,
    copied,  # noqa: F401 (a fixture)
    reader,
    without,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tiny_artifacts import make_artifact
from torch_writer import written

from adapter_bert.errors import UserError
from adapter_bert.exchange import (
    adapterhub,
    adapterhub_heads,
    foreign_adapters,
    peft,
    peft_modules,
    specs,
)
from adapter_bert.exchange.foreign_base import exported, lora_of
from adapter_bert.methods.lora import NAMES, places, scope_of
from adapter_bert.methods.registry import parse
from lab import exchange

pytestmark = pytest.mark.older_stack

GOLDEN = RECORDED / "exchange"
read = reader(GOLDEN)
HUB, PEFT = foreign_adapters.PROGRAMS
THEIRS = [
    f"{program}/{path.name}"
    for program in foreign_adapters.PROGRAMS
    for path in sorted((GOLDEN / program).iterdir())
]
OURS = sorted(
    str(path.relative_to(GOLDEN / "ours")) for path in GOLDEN.glob("ours/*/*")
)
CONFIG, HUB_HEAD = "adapter_config.json", "head_config.json"
HUB_TENSORS, HEAD_TENSORS = "adapter.safetensors", "model_head.safetensors"
PEFT_TENSORS = "adapter_model.safetensors"
LABELS = exchange.THREE["labels"]


@module_fixture
def bert(eagerly):
    return open_bert(GOLDEN / "bert")


def assert_reads_as(folder, case):
    adapter, expected = read(folder), read(case)
    assert (adapter.method, adapter.task) == (expected.method, expected.task)
    assert_same_values(adapter.values, expected.values)


@pytest.mark.parametrize("case", THEIRS)
def test_golden_adapters_of_others_compute_the_same(bert, case):
    folder = GOLDEN / case
    assert foreign_adapters.detect(str(folder)) == case.split("/")[0]
    assert_computes(bert, exchange.imported(bert, str(folder)), folder)


@pytest.mark.parametrize("case", OURS)
def test_golden_adapters_that_others_loaded_are_written_and_read_the_same(
    bert, case, tmp_path
):
    """What they computed of them is what is computed here."""
    program, name = case.split("/")
    artifact = exchange.our_artifact(bert, case, *exchange.CASES[program][name])
    recorded, folder = GOLDEN / "ours" / case, tmp_path / "written"
    write(program, folder, artifact, "our_task")
    assert (folder / "README.md").read_text() == "a card"
    files = {path.name for path in folder.iterdir()} - {"README.md"}
    assert files == {path.name for path in recorded.glob("*.[js]*")}
    assert_same_files(folder, recorded)
    assert_computes(bert, artifact, recorded)
    back = exchange.imported(bert, str(folder))
    # Of a robust AdapterDrop the adapters that it drops are left out.
    names = set(back.weights.shapes)
    dropped = set(artifact.weights.shapes) - names
    assert not dropped or "robust" in case and len(dropped) == 4
    if "direft" in case:
        # Written as NoReFT.
        assert_computes(bert, back, recorded)
        names = set()
    for name in names:
        before, after = artifact.weights.read(name), back.weights.read(name)
        np.testing.assert_array_equal(before, after)


def test_vera_of_the_pooler_alone_comes_back(bert, tmp_path):
    text = "vera(rank=4, seed=7, targets='pooler')"
    make_artifact(tmp_path / "a", GOLDEN / "bert", text)
    write("peft", tmp_path / "b", read_adapter(tmp_path / "a", bert.weights))
    back = exchange.imported(bert, str(tmp_path / "b"))
    assert parse(back.config["method"]) == parse(text)


def test_golden_labels_are_those_of_the_file():
    adapter = read("adapterhub/houlsby_7")
    assert (adapter.task["labels"], adapter.task["pairs"]) == (LABELS, None)
    assert adapter.origin == {
        "program": "adapterhub",
        "version": "adapters.1.3.0",
        "name": "my task",
    }
    labels = ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert read("adapterhub/static_classifier").task["labels"] == labels


@pytest.mark.parametrize("case", ["adapterhub/houlsby_7", "peft/lora_7"])
def test_labels_and_pairs_can_be_told(case):
    labels = ["a", "b, c", "ß"]
    task = read(case, True, labels).task
    assert (task["labels"], task["pairs"]) == (labels, True)


@pytest.mark.parametrize(
    "case, labels, message",
    [
        ("peft/lora_7", "ab", "2 labels are named, but the head has 3"),
        ("peft/lora_7", "aba", "two labels have one name"),
        ("peft/lora_7", ["a", "b", ""], "the label '' is empty"),
        ("adapterhub/houlsby_7", ["a", "b", "c\td"], "a tab or a line break"),
    ],
)
def test_labels_are_names_of_a_heads_outputs(case, labels, message):
    refusals.check(lambda: read(case, None, labels), message)


@pytest.mark.parametrize(
    "program, method, message",
    [
        (
            HUB,
            "houlsby(4)",
            "for adapterhub: it is houlsby ... layer_norms=False",
        ),
        (HUB, "houlsby(4, depth=2, layer_norms=False)", "expected depth=1"),
        (HUB, "bapna(4)", "it is bapna ... expected parallel, "),
        (HUB, "ia3", "write it for peft"),
        (HUB, "lora(2, targets='attention_output')", "LoRA at ... for peft"),
        (HUB, "lora(2, targets='query,pooler')", "LoRA at ... for peft"),
        (HUB, "lora(2, rank_pattern='query:3')", "of one rank and alpha"),
        (HUB, "lora(2, rank_pattern='1.query:0')", "same matrices in each"),
        (HUB, "dora(2)", "it is dora ... write it for peft"),
        (HUB, "vera(2)", "it is vera ... write it for peft"),
        (
            HUB,
            "union(prompt(2), loreft(2, orthogonal=False))",
            "counts virtual tokens among",
        ),
        (
            HUB,
            "union(lora(2), lora(2, targets='key'))",
            "two parts of a union are lora",
        ),
        (
            HUB,
            "loreft(orthogonal=False, subtract=False, nonlinearity='relu')",
            "reads all adapters of ReFT as if subtract",
        ),
        (HUB, "stack(lora(2), new_words(1))", "it is stack"),
        (PEFT, "lora(2, gating=True)", "expected gating=False ... adapterhub"),
        (PEFT, "stack(ia3, new_words(1))", "new words next to ia3 with a head"),
        (PEFT, "pfeiffer(4)", "expected lora, dora ... hub"),
    ],
)
def test_what_a_program_cannot_hold_is_refused(
    bert, program, method, message, tmp_path
):
    artifact = exchange.random_artifact(bert, method, exchange.THREE, 0)
    refusals.check(
        lambda: write(program, tmp_path / "out", artifact),
        *message.split(" ... "),
    )
    assert not list(tmp_path.iterdir())


def test_heads_of_questions_have_no_virtual_token_for_cls(bert, tmp_path):
    method = "prompt(2, heads_read='prompt')"
    artifact = exchange.random_artifact(bert, method, exchange.SPANS, 0)
    refusals.check(
        lambda: write(HUB, tmp_path / "out", artifact),
        "a virtual token into the place of [CLS]",
    )


@pytest.mark.parametrize(
    "task, message",
    [
        (
            {**exchange.THREE, "head": exchange.LAYERS},
            "another form than peft",
        ),
        (exchange.THREE, "is there already"),
    ],
)
def test_peft_takes_berts_own_head_in_a_new_folder(
    bert, tmp_path, task, message
):
    artifact = exchange.random_artifact(bert, "lora(2)", task, 0)
    # A dot would divide the name of a module.
    assert exported(artifact, "sst-2.v1").name == "sst-2_v1"
    (tmp_path / "file").write_text("mine")
    refusals.check(lambda: write(PEFT, tmp_path, artifact), message)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@given(
    st.dictionaries(
        st.sampled_from(list(places(NAMES, range(3)))),
        st.tuples(st.integers(1, 5), st.floats(0.1, 50)),
        min_size=1,
    )
)
@settings(max_examples=30)
def test_updates_of_any_ranks_and_scales_stay_what_they_are(wanted):
    config = config_of(GOLDEN / "bert")
    ranks = {place: rank for place, (rank, _) in wanted.items()}
    alphas = {place: alpha for place, (_, alpha) in wanted.items()}
    method = lora_of(ranks, alphas, config, "a file")
    method.check(config)
    for place, (rank, alpha) in wanted.items():
        assert method.matrix(place) == (rank, alpha, alpha / rank)
    assert method.matrices(config).keys() == set(map(scope_of, wanted))


REFUSED = {
    "adapterhub_refused/compacter": "computes Compacter's products",
    "adapterhub_refused/dora": "use_dora is True",
    "adapterhub_refused/ia3": "intermediate_lora=True ... an adapter as",
    "adapterhub_refused/no_head": "without a head",
    "adapterhub_refused/other_residual": "residual_before_ln=False",
    "adapterhub_refused/own_layer_norm": "a LayerNorm in the adapter",
    "peft_refused/ia3": "attention.output.dense too",
    "peft_refused/lora_bias": "bias='all'",
    "peft_refused/prefix": "peft_type='PREFIX_TUNING'",
    "peft_refused/prompt": "peft_type='PROMPT_TUNING'",
}


@pytest.mark.parametrize("case", REFUSED)
def test_golden_adapters_that_no_method_computes_are_refused(case):
    refusals.check(lambda: read(case), *REFUSED[case].split(" ... "))


# Case, file, where in it -> values that it may not have, and why.
CONTRADICTIONS = {
    ("adapterhub/houlsby_7", CONFIG, ""): [
        ({"hidden_size": 32}, "hidden size 32"),
        ({"model_type": "gpt2"}, "of a gpt2"),
    ],
    ("adapterhub/houlsby_7", CONFIG, "config__"): [
        ({"non_linearity": "laplace"}, "is 'laplace', expected ... gelu"),
        ({"scaling": "what"}, "scaling is 'what', expected a number"),
        ({"scaling": -1e300}, ": scaling is -1e+300, ... at most 3.4e38"),
        ({"reduction_factor": 4}, "the shape [7, 16], expected [4, 16]"),
        ({"reduction_factor": {"2": 8, "default": 2.1}}, "ted [2, 16];"),
        ({"leave_out": [1]}, "8 tensors are of no part ... layer.1.attention"),
        ({"leave_out": [3]}, "layer 3, expected ... 0 to 2"),
        ({"leave_out": [0, 1, 2]}, "are in 0 layers, at 2 sites"),
        ({"mh_adapter": False}, "of no part ... attention.output.adapters"),
        ({"original_ln_after": False}, "computes no LayerNorm af"),
        ({"of_tomorrow": "x"}, "'of_tomorrow' is 'x', a field"),
    ],
    ("adapterhub/houlsby_7", HUB_HEAD, ""): [
        ({"model_class": "RobertaModel"}, "of a RobertaM ... one of BertAdapte")
    ],
    ("adapterhub/houlsby_7", HUB_HEAD, "config__"): [
        ({"label2id": {"a": 0, "b": 1, "c": 3}}, "0 to 2 for each of 3 label"),
        ({"layers": 0}, "the head has 0 layers"),
        ({"layers": 3 * 10**8}, "has 300000000 layers ... tensors of each"),
        ({"of_tomorrow": 1}, "does not know"),
        ({"head_type": "causal_lm"}, "of the type 'causal_lm' is not read"),
    ],
    ("adapterhub/lora_7", CONFIG, "config__"): [
        ({"composition_mode": "no"}, "no method ... composition_mode='no'"),
        ({"alpha": 1e39}, "alpha is 1e+39, "),
        ({"r": 8}, "expected [8, 16]; the description contradicts the tens"),
        ({"selfattn_lora": False}, "holds no update of any matrix"),
        ({"vera_d": 0.0}, "lacks ... shared_parameters.my task.lora_A"),
    ],
    ("adapterhub/mad_x_7", CONFIG, "config__"): [
        ({"inv_adapter": "glow"}, "no method ... inv_adapter='glow' ... mad_x"),
    ],
    ("adapterhub/parallel_7", CONFIG, "config__"): [
        ({"mh_adapter": True}, "parallel with sites='both', which no method"),
    ],
    ("adapterhub/prefix_5", CONFIG, "config__"): [
        ({"non_linearity": "relu"}, "no method ... non_linearity='relu'"),
        ({"leave_out": [1]}, "without some layers"),
        ({"use_gating": True}, "lacks the tensor ... prefix_gates"),
    ],
    ("adapterhub/lora_5_gated", CONFIG, "config__"): [
        ({"use_gating": False}, "of no part ... gate.bias"),
        ({"leave_out": [0]}, "leave_out and use_gating together"),
    ],
    ("adapterhub/unipelt", CONFIG, "config__"): [
        ({"configs": []}, "computes what architecture='union' is"),
    ],
    ("adapterhub/prompt_7", CONFIG, "config__"): [
        ({"combine": "suffix"}, "expected one of prefix, prefix_after_bos"),
        ({"prompt_length": None}, "has no prompt_length"),
    ],
    ("adapterhub/loreft_3", CONFIG, "config__"): [
        ({"prefix_positions": 10**30}, "prefix is 10 ... model's 24 tokens"),
        ({"prefix_positions": 0, "suffix_positions": 0}, "not both 0"),
        ({"layers": [3]}, "only the layers 0 to 2"),
        ({"tied_weights": True}, "of no part ... units.1"),
        ({"output_reft": False}, "no method ... output_reft=False"),
    ],
    ("adapterhub/static_classifier", HUB_HEAD, ""): [
        ({"num_labels": 2}, "shape [3, 16], expected"),
    ],
    ("peft/ia3_same", CONFIG, ""): [
        ({"target_modules": None}, "(IA)^3 scales ... attention.output"),
    ],
    ("peft/lora_7", CONFIG, ""): [
        ({"task_type": "CAUSAL_LM"}, "'CAUSAL_LM'"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"init_lora_weights": "pissa"}, "changes BERT's ... merge_and_unload"),
        ({"r": 16}, "query.lora_A ... [16, 16]; the description contradicts"),
        ({"rank_pattern": {"query": 3}}, "[7, 16], expected [3, 16]"),
        ({"rank_pattern": {"query": "3"}}, "a rank is '3', expected whole"),
        ({"target_modules": ["query"]}, "of no part ... value.lora_A"),
        ({"target_modules": ["q_proj"]}, "names no matrix"),
        ({"target_modules": "all-linear"}, "lacks the tensor ... key.lora_A"),
        ({"layers_to_transform": [0, 2]}, "of no part ... layer.1."),
        ({"of_tomorrow": 7}, "'of_tomorrow' is '7', a field th"),
    ],
    ("peft/dora_5", CONFIG, ""): [
        ({"use_dora": False}, "no part ... lora_magnitude_vector"),
        ({"lora_alpha": 0}, "alpha is 0.0, expected a positive number"),
    ],
    ("peft/new_words", CONFIG, ""): [
        ({"trainable_token_indices": [40]}, "[2, 16], expected [1, 16]"),
        ({"trainable_token_indices": [5, 40]}, "follow BERT's from 40 on"),
        ({"trainable_token_indices": ["a", 7]}, "numbers of word_embeddings"),
        (
            {"trainable_token_indices": None},
            "of no part ... trainable_tokens_de",
        ),
    ],
    ("peft/all_linear_5", CONFIG, ""): [
        ({"exclude_modules": ["pooler.dense"]}, "of no part ... pooler"),
    ],
    ("peft/vera_5", CONFIG, ""): [
        ({"r": None}, "has no r, which the adapter"),
        ({"projection_prng_key": 12}, "vera_A is not the random ... key=12"),
        ({"projection_prng_key": -1}, "seed is -1, expected 0 to"),
        ({"save_projection": False}, "no part ... vera_A"),
        ({"use_rslora": True}, "'use_rslora' is 'True', a field that"),
    ],
    ("peft/adalora_5", CONFIG, ""): [
        ({"rank_pattern": None}, "expected [5, 'any']; the description contr"),
        ({"use_rslora": True}, "AdaLoRA with rsLoRA's scale"),
    ],
    ("peft/lora_patterns", CONFIG, ""): [
        ({"layers_pattern": "h"}, "names no matrix"),
        ({"target_modules": ".*(query|key)"}, "only where ... is a list"),
    ],
}


@pytest.mark.parametrize(
    "place, values, message",
    [
        (place, *refused)
        for place, several in CONTRADICTIONS.items()
        for refused in several
    ],
)
def test_a_description_that_cannot_be_followed_is_one_line(
    copied, place, values, message
):
    case, file, prefix = place
    folder = copied(case)
    change(folder / file, **{f"{prefix}{k}": v for k, v in values.items()})
    refusals.check(lambda: read(folder), *message.split(" ... "))


LONG = "a" * 100_000


@pytest.mark.parametrize(
    "values",
    [
        {"task_type": LONG},
        {"use_qalora": LONG},
        {"init_lora_weights": LONG},
        {"target_modules": f"({LONG}"},
        {"exclude_modules": f"({LONG}"},
    ],
    ids=lambda values: " ".join(values),
)
def test_a_long_value_is_not_repeated_whole(copied, values):
    folder = copied("peft/lora_7")
    change(folder / CONFIG, **values)
    with pytest.raises(UserError, match="aaaa") as caught:
        read(folder)
    assert len(str(caught.value).replace(str(folder), "")) < 500


@pytest.mark.parametrize(
    "pattern", ["(.*)*x", "(.+)+x", "(.|.)" * 44 + "x", ".?" * 44 + "[XY]"]
)
def test_no_pattern_takes_for_ever(copied, pattern):
    """With Python's engine these do."""
    folder = copied("peft/lora_7")
    change(folder / CONFIG, target_modules=pattern)
    refusals.check(lambda: read(folder), "names no matrix of this BERT")


ODD = (None, True, 0, -1, "(", [], ["("], {"(": "x"})
ODD += (1e300, -(10**320), float("nan"))


@pytest.mark.parametrize(
    "case, file",
    [
        *(
            (f"adapterhub/{name}", CONFIG)
            for name in ("houlsby_7", "lora_7", "prefix_5")
        ),
        ("adapterhub/static_classifier", HUB_HEAD),
        ("peft/lora_7", CONFIG),
        ("peft/vera_5", CONFIG),
        ("peft/adalora_5", CONFIG),
        ("peft/ia3_same", CONFIG),
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
                read(path.parent)
            except UserError as error:
                assert "\n" not in str(error)
                refused += 1
            path.write_text(whole)
    assert refused


@pytest.mark.parametrize(
    "case",
    "adapterhub/houlsby_7 adapterhub/lora_7 peft/lora_7 peft/ia3_same".split(),
)
def test_an_adapter_of_a_deeper_bert_is_refused(case):
    config = config_of(GOLDEN / "bert")
    config = dataclasses.replace(config, num_hidden_layers=1)
    refusals.check(
        lambda: foreign_adapters.read_all(str(GOLDEN / case), config),
        "of no part that this project reads",
    )


@pytest.mark.parametrize(
    "name",
    [
        "layer.000000000099",
        "layer.\u0661",
        "layer.01",
        "layer.1",
    ],
    ids=["zeros", "other digits", "two names", "without bert"],
)
@pytest.mark.parametrize("layers", [None, [0, 1, 2]])
def test_a_layer_has_one_name(copied, name, layers):
    """Else one of two updates would be lost silently."""
    folder, place = copied("peft/lora_7"), "bert.encoder.layer.1"
    other = place.replace("layer.1", name)
    if name == "layer.1":
        other = "encoder.layer.1"
    change(folder / CONFIG, layers_to_transform=layers)

    def add(tensors):
        added = {k.replace(place, other): v for k, v in tensors.items()}
        return {**tensors, **added}

    change_tensors(folder / PEFT_TENSORS, add)
    refusals.check(lambda: read(folder), "of no part that this")


def test_virtual_tokens_of_a_union_leave_heads_of_tokens_their_places(copied):
    """As those of a prompt alone."""
    folder = copied("adapterhub/union_prompt")
    for name in (HUB_HEAD, HEAD_TENSORS):
        shutil.copy(GOLDEN / "adapterhub" / "prompt_questions" / name, folder)
    adapter = read(folder)
    assert adapter.task["name"] == "squad"
    parts = [getattr(p.method, "heads_read", "") for p in adapter.method.parts]
    assert list(filter(None, parts)) == ["cls"]


def test_gelu_of_before_there_was_a_version_is_the_approximation(copied):
    folder = copied("adapterhub/houlsby_48_gelu")
    assert read("adapterhub/houlsby_48_gelu").method.nonlinearity == "gelu_erf"
    change(folder / CONFIG, version=None)
    assert read(folder).method.nonlinearity == "gelu"


@pytest.mark.parametrize(
    "case, file, of_torch",
    [
        ("adapterhub/lora_7", HUB_TENSORS, "pytorch_adapter.bin"),
        ("adapterhub/lora_7", HEAD_TENSORS, "pytorch_model_head.bin"),
        ("peft/lora_7", PEFT_TENSORS, "adapter_model.bin"),
    ],
)
def test_files_of_pytorch_are_read_as_safetensors_are(
    copied, case, file, of_torch
):
    folder = copied(case)
    (folder / of_torch).write_bytes(written(load_file(folder / file)))
    (folder / file).unlink()
    assert_reads_as(folder, case)


DAMAGES = {
    "lacks the tensor|holds nothing": lambda t: dict(list(t.items())[1:]),
    "1 tensors are of no part that this project reads: extra": lambda t: {
        **t,
        "extra": np.zeros(2, np.float32),
    },
    "is not finite": lambda t: {k: v + np.float32("nan") for k, v in t.items()},
    "has the shape": lambda t: {k: v[..., :-1] for k, v in t.items()},
    "sizes|lacks|holds no|the head has": lambda t: {},
}


@pytest.mark.parametrize("message", DAMAGES)
@pytest.mark.parametrize(
    "case, file",
    [
        ("adapterhub/houlsby_7", HUB_TENSORS),
        ("adapterhub/mad_x_7", HUB_TENSORS),
        ("adapterhub/houlsby_7", HEAD_TENSORS),
        ("adapterhub/prefix_flat", HUB_TENSORS),
        ("peft/lora_7", PEFT_TENSORS),
        ("peft/dora_5", PEFT_TENSORS),
        ("peft/vera_5", PEFT_TENSORS),
        ("peft/adalora_5", PEFT_TENSORS),
        ("peft/ia3_same", PEFT_TENSORS),
    ],
)
def test_damaged_tensors_are_refused(copied, case, file, message):
    folder = copied(case)
    if "prefix" in case:
        # Else a copy in a layer would be damaged.
        change_tensors(folder / file, without("pool"))
    change_tensors(folder / file, DAMAGES[message])
    messages = f"{message}|multiple of|hold no|no part"
    with pytest.raises(UserError, match=messages):
        read(folder)


@pytest.mark.parametrize(
    "case, file, words",
    [
        ("adapterhub/houlsby_7", HUB_TENSORS, "layer.1.output"),
        ("adapterhub/mad_x_7", HUB_TENSORS, "layer.1.output"),
        ("adapterhub/mad_x_7", HUB_TENSORS, "G.2"),
        ("adapterhub/lora_7", HUB_TENSORS, "layer.2.attention"),
        ("peft/lora_patterns", PEFT_TENSORS, "layer.1"),
        ("peft/dora_5", PEFT_TENSORS, "layer.1.attention.self.query.lora_mag"),
        ("peft/vera_5", PEFT_TENSORS, "vera_A"),
        ("peft/vera_5", PEFT_TENSORS, "layer.2.intermediate"),
        ("peft/adalora_5", PEFT_TENSORS, "layer.0.attention.self.key.lora_E"),
        ("adapterhub/vera_5", HUB_TENSORS, "layer.0.attention.self.query"),
        ("peft/ia3_same", PEFT_TENSORS, "layer.0"),
    ],
)
def test_nothing_is_left_out_silently(copied, case, file, words):
    folder = copied(case)
    change_tensors(folder / file, without(words))
    with pytest.raises(UserError, match="lacks the tensors?|holds nothing"):
        read(folder)


def test_no_adapter_at_all_is_refused(tmp_path):
    refusals.check(lambda: read(tmp_path), "no adapter of adapterhub or peft")


def of_state_dict(name):
    """The name in the state_dict of peft's model."""
    name = re.sub(r"(lora_[AB])\.", r"\1.default.", name)
    name = re.sub(r"(magnitude_vector)$", r"\1.default.weight", name)
    ends = "lora_[ABE]|ia3_l|vera_[AB]|vera_lambda_[bd]|trainable_tokens_delta"
    name = re.sub(rf"({ends})$", r"\1.default", name)
    return re.sub(
        r"(classifier|qa_outputs|pooler)\.",
        r"\1.modules_to_save.default.",
        name,
    )


@pytest.mark.parametrize("case", [c for c in THEIRS if c.startswith("peft")])
def test_a_saved_state_dict_is_read(copied, case):
    folder = copied(case)
    path = folder / PEFT_TENSORS
    before = load_file(path)
    after = {of_state_dict(name): value for name, value in before.items()}
    same = set(before) & set(after)
    assert all(
        name.endswith("token_adapter.base_layer.weight") for name in same
    )
    save_file(after, path)
    assert_reads_as(folder, case)
    # A second adapter, and BERT itself.
    name = next(name for name in after if ".default" in name)
    for more, value, message in (
        (
            name.replace(".default", ".other"),
            after[name] + 1,
            "is there twice, as of two adapters",
        ),
        (
            "base_model.model.bert.x.base_layer.weight",
            np.ones(2, np.float32),
            "1 tensors are of no part that this project reads",
        ),
    ):
        save_file({**after, more: value}, path)
        refusals.check(lambda: read(folder), message)


@pytest.mark.parametrize(
    "case, values, message",
    [
        ("peft/lora_7", {"of_tomorrow": False}, "'of_tomorrow' is not known"),
        # There users may write what they like.
        ("adapterhub/lora_7", {"my_note": "x"}, "'my_note' is not known"),
    ],
)
def test_fields_that_are_not_known_are_logged(
    copied, caplog, case, values, message
):
    folder, expected = copied(case), read(case)
    assert not caplog.records
    change(folder / CONFIG, **values)
    assert read(folder).method == expected.method
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert message in record.getMessage()


def test_adalora_may_take_all_ranks_of_a_matrix(copied):
    folder = copied("peft/adalora_5")
    pattern = read_json(folder / CONFIG)["rank_pattern"]
    taken = {name for name in pattern if ".key." in name}
    change(
        folder / CONFIG,
        rank_pattern={
            name: [rank and name not in taken for rank in ranks]
            for name, ranks in pattern.items()
        },
    )
    path = folder / PEFT_TENSORS
    tensors = load_file(path)
    for name, values in tensors.items():
        if ".key." in name:
            is_up = name.endswith("lora_B")
            tensors[name] = values[:, :0] if is_up else values[:0]
    save_file(tensors, path)
    expected, adapter = read("peft/adalora_5"), read(folder)
    assert adapter.method.targets == "value,intermediate"
    assert_same_values(
        adapter.values,
        {k: v for k, v in expected.values.items() if "/key/" not in k},
    )


def test_peft_s_defaults_are_followed(copied):
    folder, expected = copied("peft/lora_7"), read("peft/lora_7")
    for values in (
        {"target_modules": None},
        {"target_modules": ["query", "value"], "layers_to_transform": []},
        {"layers_to_transform": [0, 1, 2], "layers_pattern": ["h", "layer"]},
        {"rank_pattern": {"query": 7, "layer.0.attention.self.value": 7}},
        {"modules_to_save": ["classifier", "score"], "enable_lora": None},
    ):
        change(folder / CONFIG, **values)
        assert read(folder).method == expected.method


def test_all_layers_of_reft_by_number_are_all(copied):
    folder = copied("adapterhub/loreft_3")
    change(folder / CONFIG, config__layers=[0, 1, 2])
    assert_reads_as(folder, "adapterhub/loreft_3")


def test_what_older_versions_of_the_library_meant_is_followed(copied):
    """It reads their files so, too."""
    folder = copied("adapterhub/lora_7")
    for version, alpha in (("adapters.1.0.1", 7), ("adapters.1.1.0", 16)):
        change(folder / CONFIG, version=version)
        assert read(folder).method.alpha == alpha


def test_the_table_has_every_field_that_the_programs_write():
    for case in THEIRS:
        described = read_json(GOLDEN / case / CONFIG)
        if case.startswith("peft"):
            spec = specs.choose(peft.SPECS, described, case)
            assert set(described) <= set(spec.names)
            continue
        head = read_json(GOLDEN / case / HUB_HEAD)
        assert {*described, *head} <= set(adapterhub_heads.FILE_FIELDS)
        whole = described["config"]
        for config in whole.get("configs", [whole]):
            fields = set(specs.choose(adapterhub.SPECS, config, case).names)
            # Older versions wrote others, too.
            assert fields - set(config) <= {
                "architecture",
                "invertible_adapter",
                # No field there, so not written.
                "random_uniform_scale",
            }
            assert set(config) <= fields
        assert set(head["config"] or ()) <= set(adapterhub_heads.HEAD_FIELDS)


def test_patterns_are_few_short_and_plain(copied):
    folder = copied("peft/lora_7")
    patterns = {
        f"x{number}": 1.5 for number in range(peft_modules.MOST_PATTERNS)
    }
    for wrong, message in (
        ({**patterns, "x": 1}, "has 501 patterns, expected at most"),
        ({"a{300}": 1}, "500 letters, without {}"),
        ({"(.*)" * 126: 1}, "500 letters, without {}"),
    ):
        change(folder / CONFIG, alpha_pattern=wrong)
        refusals.check(lambda: read(folder), message)
    change(folder / CONFIG, alpha_pattern=patterns)
    read(folder)
    # The first that fits holds; with all modules found, the rest are nothing.
    change(folder / CONFIG, alpha_pattern={"query": 6, ".*": 12, "(": 1})
    method = read(folder).method
    for target, alpha in (("query", 6.0), ("value", 12.0)):
        assert method.matrix((1, target)).alpha == alpha
