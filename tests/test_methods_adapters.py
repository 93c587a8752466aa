"""Houlsby's adapters and their variants, and those after them."""

import numpy as np
import pytest
import refusals
from tiny_model import TinyModel, table_of

from adapter_bert.bert.encoder import initial_values, truncated_normal
from adapter_bert.methods.base import glorot_uniform, layer_numbers
from adapter_bert.methods.registry import parse


def test_init_scale_is_the_deviation_and_cuts_at_two():
    values = initial_values("w", (300, 300), truncated_normal(0.01), seed=1)
    assert abs(values).max() <= 0.02
    # A normal cut at two deviations keeps 0.8796 of its deviation.
    assert abs(values.std() - 0.008796) < 1e-4


def test_glorots_limit_is_of_the_last_two_axes():
    """sqrt(6 / (30 + 120)), whatever is before them."""
    values = initial_values("w", (3, 30, 120), glorot_uniform, seed=1)
    assert 0.199 < abs(values).max() <= 0.2


@pytest.mark.parametrize(
    "text,numbers",
    [
        ("0,2,6-8", [0, 2, 6, 7, 8]),
        ("6-7,10,0", [0, 6, 7, 10]),
        ("3-3", [3]),
    ],
)
def test_layers_are_numbers_and_inclusive_ranges(text, numbers):
    assert layer_numbers(text) == numbers


@pytest.mark.parametrize(
    "text, parts",
    [
        *(
            (f"houlsby(layers='{layers}')", [layers, "only the layers 0 to 1"])
            for layers in ("2", "0,9", "1-2", "999")
        ),
        *(
            (f"pfeiffer(sizes='{sizes}')", [sizes, "sizes of adapters are"])
            for sizes in ("1", "1:0", "1:x", "0-1:3,1:4", ":3", "1:3,", "1:-3")
        ),
        ("pfeiffer(sizes='2-1:3')", ["layers are '2-1'"]),
        ("pfeiffer(sizes='2:3')", ["sizes is", "layer 2 has no adapter"]),
        (
            "pfeiffer(layers='0', sizes='1:3')",
            ["sizes is", "layer 1 has no adapter"],
        ),
    ],
)
def test_layers_and_sizes_that_are_none_are_refused(tiny_config, text, parts):
    refusals.check(lambda: table_of(tiny_config, text), *parts)


def test_all_layers_go_without_saying():
    """Texts of runs and adapters from before `layers` name the same method."""
    text = "houlsby(size=64, init_scale=0.01)"
    assert str(parse("houlsby")) == str(parse("houlsby(layers='all')")) == text
    assert str(parse("houlsby(layers='0,2')")) == (
        text.replace(")", ", layers='0,2')")
    )


def names_outside_head(parameters):
    return {p.name for p in parameters if p.group != "head"}


@pytest.mark.parametrize("layer", [0, 1])
def test_a_named_layer_alone_has_adapters_and_is_trained(tiny_config, layer):
    every = TinyModel(tiny_config, "houlsby(size=4)")
    some = TinyModel(tiny_config, f"houlsby(size=4, layers='{layer}')")
    scope = f"bert/encoder/layer_{layer}/"
    assert names_outside_head(some.table.trained) == {
        name
        for name in names_outside_head(every.table.trained)
        if name.startswith(scope)
    }
    assert set(some.variables) == {
        name
        for name in every.variables
        if "/adapters/" not in name or name.startswith(scope)
    }
    for name, variable in some.variables.items():
        assert np.array_equal(variable, every.variables[name]), name
