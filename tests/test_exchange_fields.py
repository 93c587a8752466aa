"""Each field of other programs' descriptions is compared, used or listed."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy
from conftest import ROOT
from test_exchange import GOLDEN, THEIRS, config_of_bert, read
from test_exchange_refusals import (  # noqa: F401 (a fixture)
    HUB,
    HUB_HEAD,
    change,
    change_tensors,
    copied,
)

from adapter_bert.checkpoints import exchange, foreign_fields
from adapter_bert.checkpoints.foreign_fields import (
    COMPARED,
    FIELDS,
    NO_EFFECT,
    USED,
    Refused,
)
from adapter_bert.errors import UserError

pytestmark = pytest.mark.newer_stack

PEFT_TENSORS = "adapter_model.safetensors"


@pytest.mark.parametrize(
    "case, values, message",
    [
        ("peft/lora_7", {"r": 16}, "is of rank 7 in .*, expected 16 as r "),
        ("peft/lora_7", {"r": None}, "has no r, which scales the updates"),
        ("peft/lora_7", {"rank_pattern": {"query": 3}}, "rank 7 .*expected 3"),
        ("peft/lora_patterns", {"rank_pattern": {}}, "of rank 2 .*expected 4"),
        (
            "peft/lora_7",
            {"target_modules": ["query"]},
            "holds tensors of .*val",
        ),
        ("peft/lora_7", {"target_modules": ["q_proj"]}, "names no matrix"),
        ("peft/lora_7", {"target_modules": []}, "names no matrix"),
        ("peft/lora_7", {"target_modules": ".*q_proj"}, "names no matrix"),
        ("peft/lora_7", {"target_modules": "all-linear"}, "holds nothing"),
        ("peft/ia3_same", {"target_modules": None}, "names .*attention.output"),
        (
            "peft/lora_everywhere",
            {"exclude_modules": None},
            "names bert.pooler.dense, of which .* holds nothing",
        ),
        ("peft/lora_7", {"exclude_modules": ["value"]}, "holds tensors of .*v"),
        ("peft/lora_7", {"layers_to_transform": [0, 2]}, "of .*layer.1.*, whi"),
        ("peft/lora_patterns", {"layers_pattern": "h"}, "names no matrix"),
        ("peft/lora_patterns", {"layers_pattern": 7}, "expected a list"),
        (
            "peft/lora_patterns",
            {"target_modules": ".*(query|key)"},
            "peft takes only where target_modules is a list",
        ),
        ("peft/lora_7", {"modules_to_save": ["pooler"]}, "no tensors of it"),
        ("peft/lora_7", {"bias": "lora_only"}, "bias='lora_only'"),
        ("peft/lora_7", {"enable_lora": [True, False]}, "parts of a matrix"),
        ("peft/lora_7", {"of_tomorrow": 7}, "'of_tomorrow' is '7', a field th"),
        ("peft/ia3_same", {"r": 8}, "'r' is '8', a field that this version"),
        ("peft/ia3_same", {"feedforward_modules": []}, "outputs of .*output"),
        (
            "peft/ia3_same",
            {"feedforward_modules": ".*"},
            "inputs of .*(key|val)",
        ),
        ("houlsby_7", {"reduction_factor": 4}, "the size 4, .* the size 7;"),
        (
            "houlsby_7",
            {"reduction_factor": {"2": 8, "default": 16 / 7.5}},
            "is 8, so adapters have the size 2, but .* the size 7",
        ),
        ("houlsby_7", {"reduction_factor": {"7": 8}}, "or one for each layer"),
        ("houlsby_7", {"reduction_factor": 5e-324}, "the size inf, but"),
        ("houlsby_7", {"leave_out": [1]}, "in layer 1, which leave_out exclu"),
        ("houlsby_7", {"leave_out": [3]}, "layer 3, expected .* 0 to 2"),
        (
            "houlsby_attention",
            {"leave_out": []},
            "in layer 0, which mh_adapter",
        ),
        ("houlsby_7", {"mh_adapter": False}, "attention.output .*no field"),
        ("houlsby_7", {"output_adapter": False}, "of output in .*no field"),
        ("houlsby_attention", {"output_adapter": True}, "which output_adapter"),
        ("houlsby_7", {"non_linearity": None}, "activation None is not known"),
        ("houlsby_7", {"ln_before": True}, "computes a LayerNorm in the adap"),
        ("houlsby_7", {"original_ln_after": False}, "computes no LayerNorm af"),
        ("houlsby_7", {"original_ln_before": 7}, "original_ln_before of type"),
        ("houlsby_7", {"scaling": "learned"}, "lacks the tensor .*scaling"),
        ("pfeiffer_channels", {"scaling": 1.0}, "of no part .*scaling"),
        ("mad_x_7", {"inv_adapter_reduction_factor": 4}, "size 2, .* size 3"),
        ("houlsby_7", {"of_tomorrow": "x"}, "'of_tomorrow' is 'x', a field"),
        ("lora_7", {"r": 8}, "r is 8, but .* has 7; the description"),
        ("lora_7", {"attn_matrices": ["q"]}, "self.value in .*no field"),
        ("lora_7", {"selfattn_lora": False}, "self.* in layer 0.*no field"),
        ("lora_7", {"intermediate_lora": True}, "which intermediate_lora nam"),
        ("lora_everywhere", {"output_lora": False}, "output.dense in .*no fi"),
        ("lora_7", {"vera_d": 0.0}, "vera_d is 0.0: no method .* VeRA"),
        ("ia3_keys_values", {"r": 2}, "r is 2, but .* has 1"),
        ("prefix_5", {"prefix_length": 4}, "prefix_length is 4, but .* has 5"),
        ("prefix_5", {"bottleneck_size": 9}, "bottleneck_size is 9, .* has 8"),
        ("prefix_5", {"flat": True}, "lacks the tensor .*control_trans"),
    ],
)
def test_a_description_that_contradicts_its_tensors_is_refused(
    copied,  # noqa: F811 (the fixture)
    case,
    values,
    message,
):
    if case.startswith("peft/"):
        folder = copied(case)
        change(folder / HUB, **values)
    else:
        folder = copied(f"adapterhub/{case}")
        inner = {f"config__{name}": value for name, value in values.items()}
        change(folder / HUB, **inner)
    with pytest.raises(UserError, match=message) as caught:
        exchange.read(str(folder), config_of_bert())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "case, values, message",
    [
        ("static_classifier", {"num_labels": 2}, r"shape \[3, 16\], expected"),
        ("static_classifier", {"label2id": {"a": 0}}, "for each of 3 labels"),
        ("static_classifier", {"hidden_size": 32}, "hidden_size is 32, expect"),
        ("houlsby_7", {"model_type": "roberta"}, "'roberta', expected 'bert'"),
        ("houlsby_7", {"config__num_labels": 2}, r"shape \[3, 16\], expected"),
        ("houlsby_7", {"config__layers": 1}, r"has the shape \[16, 16\]"),
        ("houlsby_7", {"config__bias": False}, "tensors are of no part .*bias"),
        ("houlsby_7", {"config__of_tomorrow": 1}, "does not know"),
        (
            "houlsby_7",
            {"config__head_type": "masked_lm", "config__vocab_size": 30},
            "a head of the type 'masked_lm' is not read",
        ),
        (
            "parallel_7",
            {"config__label2id": {"a": 0, "b": 1}},
            "from 0 to 0 for each of 1 labels",
        ),
    ],
)
def test_a_heads_description_that_contradicts_it_is_refused(
    copied,  # noqa: F811 (the fixture)
    case,
    values,
    message,
):
    folder = copied(f"adapterhub/{case}")
    change(folder / HUB_HEAD, **values)
    with pytest.raises(UserError, match=message):
        exchange.read(str(folder), config_of_bert())


def of_state_dict(name):
    """The name in the state_dict of peft's model."""
    name = re.sub(r"(lora_[AB])\.", r"\1.default.", name)
    name = re.sub(r"(ia3_l)$", r"\1.default", name)
    return re.sub(
        r"(classifier|qa_outputs)\.", r"\1.modules_to_save.default.", name
    )


@pytest.mark.parametrize("case", [c for c in THEIRS if c.startswith("peft")])
def test_a_saved_state_dict_is_read(copied, case):  # noqa: F811
    folder = copied(case)
    path = folder / PEFT_TENSORS
    before = safetensors.numpy.load_file(path)
    after = {of_state_dict(name): value for name, value in before.items()}
    assert not set(before) & set(after)
    safetensors.numpy.save_file(after, path)
    found, expected = exchange.read(str(folder), config_of_bert()), read(case)
    assert (found.method, found.task) == (expected.method, expected.task)
    assert set(found.values) == set(expected.values)
    for name, value in expected.values.items():
        np.testing.assert_array_equal(found.values[name], value)
    # A second adapter, and BERT itself.
    name = next(name for name in after if ".default" in name)
    twice = {**after, name.replace(".default", ".other"): after[name] + 1}
    safetensors.numpy.save_file(twice, path)
    with pytest.raises(UserError, match="is there twice, as of two adapters"):
        exchange.read(str(folder), config_of_bert())
    name = "base_model.model.bert.x.base_layer.weight"
    safetensors.numpy.save_file({**after, name: np.ones(2, np.float32)}, path)
    with pytest.raises(
        UserError, match="BERT's own matrices too, as the state"
    ):
        exchange.read(str(folder), config_of_bert())


@pytest.mark.parametrize(
    "case, values, told",
    [
        ("peft/lora_7", {"alpha_pattern": {"q_proj": 3}}, "'q_proj'"),
        ("peft/lora_7", {"rank_pattern": {"key": 3}}, "'key'"),
        # The first that fits holds.
        ("peft/lora_7", {"rank_pattern": {".*": 7, "query": 3}}, "'query'"),
        (
            "peft/lora_7",
            {"target_modules": ["query", "v", "value"]},
            "target_modules these act on no module: 'v'",
        ),
        ("peft/lora_7", {"of_tomorrow": False}, "'of_tomorrow' is not known"),
        # There users may write what they like.
        ("adapterhub/lora_7", {"my_note": "x"}, "'my_note' is not known"),
    ],
)
def test_what_acts_on_nothing_is_told(
    copied,  # noqa: F811 (the fixture)
    caplog,
    case,
    values,
    told,
):
    folder, expected = copied(case), read(case)
    assert not caplog.records
    change(folder / HUB, **values)
    found = exchange.read(str(folder), config_of_bert())
    assert found.method == expected.method
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert told in record.getMessage()


def test_peft_s_defaults_are_followed(copied):  # noqa: F811
    folder, expected = copied("peft/lora_7"), read("peft/lora_7")
    for values in (
        {"target_modules": None},
        {"target_modules": ["query", "value"], "layers_to_transform": []},
        {"layers_to_transform": [0, 1, 2], "layers_pattern": ["h", "layer"]},
        {"rank_pattern": {"query": 7, "layer.0.attention.self.value": 7}},
        {"modules_to_save": ["classifier", "score"], "enable_lora": None},
    ):
        change(folder / HUB, **values)
        found = exchange.read(str(folder), config_of_bert())
        assert found.method == expected.method


def test_what_older_versions_of_the_library_meant_is_followed(
    copied,  # noqa: F811 (the fixture)
):
    """It reads their files so, too."""
    folder = copied("adapterhub/lora_7")
    change(folder / HUB, version="adapters.1.0.1")
    assert exchange.read(str(folder), config_of_bert()).method.alpha == 7
    change(folder / HUB, version="adapters.1.1.0")
    assert exchange.read(str(folder), config_of_bert()).method.alpha == 16


def test_the_table_has_every_field_that_the_programs_write():
    written = {
        None: foreign_fields.HUB_BOTTLENECK,
        "lora": foreign_fields.HUB_LORA,
        "prefix_tuning": foreign_fields.HUB_PREFIX,
    }
    for case in THEIRS:
        described = json.loads((GOLDEN / case / HUB).read_text())
        if case.startswith("peft"):
            kind = described["peft_type"]
            known = {
                "LORA": foreign_fields.PEFT_LORA,
                "IA3": foreign_fields.PEFT_IA3,
            }[kind]
            assert set(described) <= set(known)
            continue
        head = json.loads((GOLDEN / case / HUB_HEAD).read_text())
        assert {*described, *head} <= set(foreign_fields.HUB_FILE)
        own = described["config"]
        assert set(own) == set(written[own.get("architecture")]) - {
            "architecture" if "architecture" not in own else "",
            # Of older versions.
            "invertible_adapter",
        }
        assert set(head["config"] or ()) <= set(foreign_fields.HUB_HEAD)


def test_the_page_lists_every_field():
    page = (ROOT / "docs" / "exchange.md").read_text()
    found = {
        (row[0], kind): set(re.findall(r"`(\w+)`", cell))
        for row in re.findall(r"^\| (.*'s .*?) \| (.*) \|$", page, re.M)
        for kind, cell in zip(
            (COMPARED, USED, Refused, NO_EFFECT), row[1].split(" | ")
        )
    }
    for part, rules in FIELDS.items():
        for kind in (COMPARED, USED, Refused, NO_EFFECT):
            expected = {
                name
                for name, rule in rules.items()
                if rule == kind or kind is Refused and isinstance(rule, Refused)
            }
            if part in ("peft's LoRA", "peft's (IA)^3"):
                # Those of both have a row of their own.
                expected -= set(foreign_fields.PEFT)
            assert found[part, kind] == expected, (part, kind)
