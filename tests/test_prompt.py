"""Prompt tuning: where virtual tokens are, and who sees them."""

from dataclasses import replace

import numpy as np
import pytest
import refusals
import tensorflow as tf
from numpy.testing import assert_allclose
from tiny_model import shaken

from adapter_bert.bert.encoder import Bert, Hooks
from adapter_bert.methods.prompt import PROMPT
from adapter_bert.methods.registry import parse

pytestmark = pytest.mark.newer_stack


def masked(config, text):
    tiny = shaken(config, text, scale=0.5, frozen=True)
    mask = tf.sequence_mask([9, 4, 1, 6], 9, tf.int32)
    return tiny, replace(tiny.context(), input_mask=mask)


def test_virtual_tokens_are_like_a_longer_text(tiny_config):
    """That is what plain BERT computes of embeddings with them in front."""
    tiny, context = masked(tiny_config, "prompt(length=3)")
    prompted = tiny.encode(context)
    plain = Bert(tiny_config, tiny.variables, Hooks())
    hidden = prompted.embedding_output
    assert hidden.shape == (4, 9, 16)
    prompt = np.tile(tiny.variables[PROMPT], [4, 1, 1]).astype(np.float32)
    mask = tf.pad(context.input_mask, [[0, 0], [3, 0]], constant_values=1)
    expected = plain.run_layers(
        tf.concat([prompt, hidden], axis=1),
        range(2),
        replace(context, input_mask=mask),
    )
    for one, other in zip(prompted.layer_outputs, expected):
        assert_allclose(one, other[:, 3:], atol=1e-5)
    # And heads may read the first of them in the place of [CLS].
    values = {PROMPT: tiny.variables[PROMPT]}
    hooks = parse("prompt(3, heads_read='prompt')").hooks(tiny_config, values)
    for first_token in (False, True):
        read = Bert(tiny_config, tiny.variables, hooks).run_layers(
            hidden, range(2), replace(context, first_token=first_token)
        )[-1]
        assert_allclose(read[:, 0], expected[-1][:, 0], atol=1e-5)
        assert_allclose(
            read[:, 1:],
            expected[-1][:, 4:] if not first_token else read[:, :0],
            atol=1e-5,
        )


def test_padding_of_a_text_is_not_seen(tiny_config):
    tiny, context = masked(tiny_config, "prompt(length=3)")
    whole = tiny.encode(context).sequence_output
    ids = tiny.features["input_ids"][1:2, :4]
    alone = tiny.model.bert(
        ids,
        tiny.features["segment_ids"][1:2, :4],
        replace(context, input_mask=tf.ones_like(ids)),
    )
    assert_allclose(alone.sequence_output, whole[1:2, :4], atol=1e-5)


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


@refusals.table(
    {
        "length": (lambda: parse("prompt(length=0)"), "length is 0", "1"),
        "heads": (lambda: parse("prompt(heads_read='all')"), "cls, prompt"),
    }
)
def test_arguments_out_of_range_are_refused(call, parts):
    refusals.check(call, *parts)
