"""Prompt tuning: where virtual tokens are, and who sees them."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal
from tiny_model import shaken

from adapter_bert.bert.encoder import Bert
from adapter_bert.methods.prompt import PROMPT
from adapter_bert.methods.registry import parse

pytestmark = pytest.mark.newer_stack


def masked(config, text):
    tiny = shaken(config, text, scale=0.5, frozen=True)
    mask = tf.sequence_mask([9, 4, 1, 6], 9, tf.int32)
    return tiny, replace(tiny.context(), input_mask=mask)


def test_prompts_of_parts_are_all_seen(tiny_config):
    """In a stack that is trained, each is as if it were a longer one."""
    tiny, context = masked(
        tiny_config, "stack({'a': prompt(length=2)}, prompt(length=1))"
    )
    prompted = tiny.encode(context).sequence_output
    values = np.concatenate(
        [tiny.variables[f"parts.a/{PROMPT}"], tiny.variables[PROMPT]]
    )
    hooks = parse("prompt(3)").hooks(tiny_config, {PROMPT: values})
    whole = Bert(tiny_config, tiny.variables, hooks)
    expected = tiny.encode(context, whole).sequence_output
    assert_allclose(prompted, expected, atol=1e-5)


@pytest.mark.parametrize(
    "text, buckets", [("{}", 32), ("union({}, loreft(prefix=1))", 0)]
)
def test_what_heads_read_changes_no_other_output(tiny_config, text, buckets):
    """Neither distances nor the places of a text's tokens."""
    config = replace(tiny_config, relative_attention_num_buckets=buckets)
    by_cls, by_prompt = (
        tiny.encode(context).sequence_output
        for tiny, context in (
            masked(config, text.format(f"prompt(2, heads_read='{read}')"))
            for read in ("cls", "prompt")
        )
    )
    assert_array_equal(by_prompt[:, 1:], by_cls[:, 1:])
    assert np.abs(by_prompt[:, 0] - by_cls[:, 0]).max() > 0.1
