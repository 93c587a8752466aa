"""Pretraining: records, head, scores."""

from dataclasses import replace

import numpy as np
import pytest
import refusals
import tensorflow as tf
from numpy.testing import assert_allclose
from task_files import put
from test_masked_lm import as_tensors, random_head

from adapter_bert.bert.hooks import Context
from adapter_bert.data.input_pipeline import make_batch
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.data.tokenizer_config import Rules
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.masked_lm import NO_TOKEN
from adapter_bert.tasks.pretraining import Pretraining
from adapter_bert.upstream import create_pretraining_data as upstream

pytestmark = pytest.mark.older_stack

LENGTH, MOST = 12, 4
NEXT = "cls/seq_relationship/output_"


def example(tokens, second=5, places=(1,), label=0, **changed):
    """A record of tokens, of which those at some places are masked."""
    length, count = len(tokens), len(places)
    features = {
        "input_ids": [*tokens, *[0] * (LENGTH - length)],
        "input_mask": [1] * length + [0] * (LENGTH - length),
        "segment_ids": [0] * second
        + [1] * (length - second)
        + [0] * (LENGTH - length),
        "masked_lm_positions": [*places, *[0] * (MOST - count)],
        "masked_lm_ids": [*(tokens[p] for p in places), *[0] * (MOST - count)],
        "next_sentence_labels": [label],
        **changed,
    }
    made = {k: upstream.create_int_feature(v) for k, v in features.items()}
    made["masked_lm_weights"] = upstream.create_float_feature(
        [1.0] * count + [0.0] * (MOST - count)
    )
    return tf.train.Example(features=tf.train.Features(feature=made))


def write(path, examples):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for one in examples:
            writer.write(one.SerializeToString())
    return path


TOKENS = [2, 7, 8, 9, 3, 10, 11, 3]
EXAMPLES = (
    example(TOKENS, places=(1, 3)),
    example(TOKENS[:6], second=3, places=(4,), label=1),
    example([*TOKENS, 12, 13, 14, 3], places=(1, 2, 3, 8), label=1),
)


@pytest.fixture
def task(tmp_path):
    path = write(tmp_path / "rows.tfrecord", EXAMPLES)
    return Pretraining(input_file=str(path), max_predictions_per_seq=MOST)


@pytest.fixture
def features(task, tokenizer):
    task, rows = task.read("", ["train"])
    return task.featurize(rows["train"], tokenizer, LENGTH)


def test_records_without_their_padding(features):
    assert len(features) == 3
    assert features.lengths.tolist() == [8, 6, 12]
    batch = make_batch(features, np.array([1, 0]), None, 0)
    assert batch["input_ids"].tolist() == [TOKENS[:6] + [0, 0], TOKENS]
    assert batch["segment_ids"].tolist() == [
        [0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 1],
    ]
    assert batch["masked_positions"].tolist() == [[4, 0, 0, 0], [1, 3, 0, 0]]
    none = NO_TOKEN
    assert batch["masked_ids"].tolist() == [
        [TOKENS[4], none, none, none],
        [TOKENS[1], TOKENS[3], none, none],
    ]
    assert batch["next_sentence_labels"].tolist() == [1, 0]
    assert_allclose(batch["masked_weights"], [2 / 3, 2 / 3])


def test_a_model_with_one_vector_of_segments(task, tiny_bert):
    rules = Rules(has_segments=False)
    tokenizer = FullTokenizer(str(tiny_bert / "vocab.txt"), rules=rules)
    task, rows = task.read("", ["train"])
    features = task.featurize(rows["train"], tokenizer, LENGTH)
    assert not features.segments.any()


def test_splits_and_patterns(task, tmp_path):
    write(tmp_path / "more.tfrecord", EXAMPLES[:2])
    both = replace(task, input_file=str(tmp_path / "*.tfrecord"), most_scored=4)
    _, rows = both.read("", ["train", "dev"])
    assert [len(rows["train"]), len(rows["dev"])] == [5, 4]
    more = str(tmp_path / "more.tfrecord")
    assert both.train_file == min(more, task.input_file)
    _, rows = replace(task, eval_file=more).read("", ["dev"])
    assert (rows["dev"].source, len(rows["dev"])) == ([more], 2)
    assert len(list(task.first(rows["dev"], 1))) == 1


def test_the_loss_is_the_published_one(
    features, task, tiny_config, tiny_weights
):
    """The mean over masked tokens, and the mean over rows."""
    rng = np.random.default_rng(0)
    size = tiny_config.hidden_size
    values = {
        **tiny_weights,
        **random_head(tiny_config),
        f"{NEXT}weights": rng.normal(size=(2, size)).astype(np.float32),
        f"{NEXT}bias": rng.normal(size=2).astype(np.float32),
    }
    model = task_model.TaskModel(
        tiny_config,
        parse("head"),
        task.build_head,
        lambda name, *_: tf.Variable(values[name]),
    )
    batch = as_tensors(make_batch(features, np.arange(3), None, 0))
    context = Context(batch["input_mask"])
    hidden = model.bert(
        batch["input_ids"], batch["segment_ids"], context
    ).sequence_output
    read = {name: batch[name] for name in model.head.reads}
    predictions = model.head(model.bert, hidden, context, **read)
    logs = tf.nn.log_softmax(predictions["logits"]).numpy()
    ids = batch["masked_ids"].numpy()
    is_masked = ids != NO_TOKEN
    right = np.take_along_axis(logs, np.maximum(ids, 0)[..., None], 2)[..., 0]
    pooled = np.tanh(
        hidden.numpy()[:, 0] @ values["bert/pooler/dense/kernel"]
        + values["bert/pooler/dense/bias"]
    )
    scores = pooled @ values[f"{NEXT}weights"].T + values[f"{NEXT}bias"]
    following = tf.nn.log_softmax(scores).numpy()[[0, 1, 2], [0, 1, 1]]
    assert_allclose(
        tf.reduce_mean(model.head.loss(predictions, batch)),
        -right[is_masked].mean() - following.mean(),
        rtol=1e-5,
    )
    outputs = {
        name: value.numpy() for name, value in model(batch, context).items()
    }
    measured = task.evaluate(None, features, outputs)
    assert measured == pytest.approx(
        {
            "masked_lm_accuracy": np.mean((logs.argmax(-1) == ids)[is_masked]),
            "masked_lm_loss": -right[is_masked].mean(),
            "next_sentence_accuracy": np.mean(scores.argmax(1) == [0, 1, 1]),
            "next_sentence_loss": -following.mean(),
            "loss": -right[is_masked].mean() - following.mean(),
        },
        rel=1e-5,
    )
    assert tuple(measured) == task.score_names


def test_rows_without_a_masked_token(task, tmp_path, tokenizer):
    """They teach which text follows, and score as in BERT's program."""
    path = write(tmp_path / "plain", [example(TOKENS, places=())] * 2)
    task, rows = replace(task, input_file=str(path)).read("", ["train"])
    features = task.featurize(rows["train"], tokenizer, LENGTH)
    batch = make_batch(features, np.arange(2), None, 0)
    assert (batch["masked_ids"] == NO_TOKEN).all()
    assert np.isfinite(batch["masked_weights"]).all()
    nothing = np.zeros((2, MOST), np.float32)
    names = "is_masked", "is_right", "log_probabilities"
    outputs = {
        **dict.fromkeys(names, nothing),
        "next_log_probabilities": np.float32([-1, -2]),
        "next_is_right": np.int32([1, 0]),
    }
    scores = task.evaluate(None, features, outputs)
    assert scores["masked_lm_loss"] == scores["masked_lm_accuracy"] == 0
    assert scores["loss"] == 1.5


def test_ids_of_another_vocabulary_are_refused(task, tmp_path, tokenizer):
    path = write(tmp_path / "rows", [example([2, 10**6, 3], second=2)])
    task, rows = replace(task, input_file=str(path)).read("", ["train"])
    refusals.check(
        lambda: task.featurize(rows["train"], tokenizer, LENGTH),
        f"expected ids below {tokenizer.vocab_size}",
    )


@refusals.table(
    {
        "cut": (lambda whole: whole[:-1], "TFRecord file"),
        "a table": (lambda whole: b"a,b\n" * 9, "TFRecord file"),
        "empty": (lambda whole: b"", "no record is in there"),
    }
)
def test_other_files_are_refused(task, tmp_path, call, parts):
    content = call((tmp_path / "rows.tfrecord").read_bytes())
    other = replace(task, input_file=str(put(tmp_path / "other", content)))
    refusals.check(lambda: other.read("", ["train"]), *parts)
