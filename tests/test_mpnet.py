"""What an MPNet computes."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import open_checkpoint
from test_roberta import reader

import adapter_bert as ab
from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Hooks
from adapter_bert.checkpoints import sources


@pytest.mark.gate
@pytest.mark.mpnet
@pytest.mark.newer_stack
@pytest.mark.real_data
def test_golden_hidden_states_and_vectors(mpnet_dir, recording, shared_dir):
    """Of 200 texts; hidden states to 1e-4, vectors to 1e-5."""
    values = recording("mpnet")
    lines = (shared_dir / "data" / "glue" / "MRPC" / "dev.tsv").read_text(
        "utf-8-sig"
    )
    count = len(values["lengths"])
    rows = [line.split("\t") for line in lines.split("\n")[1 : 1 + count]]
    texts = [row[3] for row in rows]
    opened = open_checkpoint(mpnet_dir)
    config = sources.read_config(opened)
    made = sources.read_tokenizer(opened, config).encode_ids(texts)
    ends = np.cumsum(values["lengths"])
    expected = np.split(values["ids"], ends[:-1])
    assert [[0, *ids, 2] for ids in made] == [row.tolist() for row in expected]
    directions = values["directions"]
    hidden = np.split(values["hidden"], ends[:-1])
    several = directions[:, : hidden[0].shape[1]]
    variables = encoder.declare(config, pooler=False)
    variables = encoder.make_variables(variables, reader(opened.weights))
    model = encoder.Bert(config, variables, Hooks())
    for first in range(0, count, 50):
        some = expected[first : first + 50]
        longest = max(map(len, some))
        ids = np.array([np.pad(row, (0, longest - len(row))) for row in some])
        mask = np.array([np.arange(longest) < len(row) for row in some])
        outputs = model(ids, 0 * ids, Context(tf.constant(mask, tf.int32)))
        products = outputs.sequence_output.numpy() @ several
        for row, right in zip(products, hidden[first : first + 50]):
            np.testing.assert_allclose(row[: len(right)], right, atol=1e-4)
    vectors = ab.embed(ab.load_bert("mpnet"), texts)
    np.testing.assert_allclose(
        vectors @ directions[:, several.shape[1] :],
        values["vectors"],
        atol=1e-5,
    )
