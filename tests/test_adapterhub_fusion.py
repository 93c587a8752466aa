"""Fusions of AdapterHub's: which tensors are read, and what they are."""

# Fixtures are arguments of the same names.
# ruff: noqa: F811

import numpy as np
import pytest
from test_adapterhub_setup import FUSION, bert, copied, read  # noqa: F401
from test_foreign_adapters import change, change_tensors, without

from adapter_bert.errors import UserError

pytestmark = pytest.mark.older_stack

NAME = "a,b,c"
TENSORS = f"{NAME}/model_adapter_fusion.safetensors"
LAYER = "layer.1.output.adapter_fusion_layer."


@pytest.fixture
def folder(copied):
    return copied("adapterhub/fusion")


def only(several):
    [found] = several.values()
    return found


@pytest.mark.parametrize("part", ["query.weight", "key.bias", "value"])
def test_no_part_of_a_fusion_is_left_out(bert, folder, part):
    change_tensors(folder / TENSORS, without(f"{LAYER}{NAME}.{part}"))
    with pytest.raises(UserError, match="lacks the tensor"):
        read(bert, folder)
    change_tensors(folder / TENSORS, lambda _: {"x": np.zeros(2, np.float32)})
    with pytest.raises(UserError, match="lacks the tensor"):
        read(bert, folder)


def test_a_fusion_whose_name_begins_alike_is_passed_over(bert, folder):
    """The library saves both under the shorter name."""
    expected = only(read(bert, folder)).values
    extra = f"bert.encoder.{LAYER}{NAME},d.query.weight"
    added = {extra: np.ones((16, 16), np.float32)}
    change_tensors(folder / TENSORS, lambda tensors: {**tensors, **added})
    found = only(read(bert, folder)).values
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    added = {extra.replace(f"{NAME},d", f"{NAME}.x"): added[extra]}
    change_tensors(folder / TENSORS, lambda tensors: {**tensors, **added})
    with pytest.raises(UserError, match="1 tensors are of no part"):
        read(bert, folder)


def test_what_makes_no_difference_is_read(bert, folder):
    values = {"value_before_softmax": False, "regularization": False}
    expected = only(read(bert, folder)).method
    assert expected.penalty == 0.01
    change(
        folder / NAME / FUSION, **{f"config__{k}": v for k, v in values.items()}
    )
    found = only(read(bert, folder)).method
    assert (found.penalty, found.value) == (0.0, True)
    assert found.parts == expected.parts
