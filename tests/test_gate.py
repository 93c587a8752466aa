"""Gates of adapters and updates."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from tiny_model import shaken


@pytest.mark.older_stack
def test_a_row_without_tokens_gets_nothing(tiny_config):
    """Rows that fill up a batch are no numbers that spoil it."""
    tiny = shaken(tiny_config, "parallel(size=4, gating=true)")
    context = replace(tiny.context(), input_mask=tf.zeros([2, 3]))
    x = tf.ones([2, 3, 16])
    added = tiny.model.bert.hooks.before_norm(1, "ffn", x, x, None, context)
    assert not np.any(added)
