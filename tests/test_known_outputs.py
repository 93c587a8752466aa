"""Rows of which the frozen layers' outputs are known, in batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_bert.data.input_pipeline import Features, make_batch
from adapter_bert.tasks import task_model
from adapter_bert.training.frozen_layers import KnownOutputs

pytestmark = pytest.mark.older_stack


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    data=st.data(),
    first_token=st.booleans(),
)
def test_batches_hold_the_outputs_of_their_tokens(lengths, data, first_token):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    count = int(starts[-1])
    rows = Features(
        np.arange(count, dtype=np.int32), np.zeros(count, np.uint8), starts, {}
    )
    # Of each token its own number.
    numbers = starts[:-1] if first_token else np.arange(count)
    outputs = np.stack([numbers, -numbers], axis=1).astype(np.float32)
    known = KnownOutputs.of(rows, outputs, first_token)
    assert len(known) == len(lengths)
    chosen = np.array(
        data.draw(
            st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=9)
        )
    )
    batch = make_batch(known, chosen, None)
    found = batch[task_model.FROZEN_OUTPUTS]
    ids, mask = batch["input_ids"], batch["input_mask"]
    if first_token:
        ids, mask = ids[:, :1], mask[:, :1]
    np.testing.assert_array_equal(found[..., 0], ids * mask)
    np.testing.assert_array_equal(found[..., 1], -ids * mask)
    (shape, dtype) = known.added(None)[task_model.FROZEN_OUTPUTS]
    assert len(shape) + 1 == found.ndim and dtype == found.dtype
    taken = rows.take(chosen)
    for number, row in enumerate(chosen):
        own = taken.tokens[taken.starts[number] : taken.starts[number + 1]]
        np.testing.assert_array_equal(
            own, rows.tokens[starts[row] : starts[row + 1]]
        )
