"""Examples in TFRecord files, and batches of them for TPUEstimator."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

import tensorflow as tf

from adapter_bert.data.tokenization import CLASSIFY, SEPARATE, fit

v1 = tf.compat.v1
# Examples among which the next one of a training is drawn.
SHUFFLED = 100


def make_example(features: Mapping[str, Iterable[int]]) -> bytes:
    """Makes a `tf.train.Example` of whole numbers."""
    named = {
        name: tf.train.Feature(
            int64_list=tf.train.Int64List(value=list(values))
        )
        for name, values in features.items()
    }
    return tf.train.Example(
        features=tf.train.Features(feature=named)
    ).SerializeToString()


def record_input_fn(
    input_file: str,
    shapes: Mapping[str, Sequence[int]],
    is_training: bool,
    drop_remainder: bool,
) -> Callable[[Mapping[str, Any]], tf.data.Dataset]:
    """Makes an `input_fn` over a TFRecord file of `make_example`'s.

    `shapes` are those of each feature of an example, int32 in a batch. In
    training examples are repeated and shuffled.
    """
    parsed = {
        name: tf.io.FixedLenFeature(shape, tf.int64)
        for name, shape in shapes.items()
    }

    def decode(record: tf.Tensor) -> dict[str, tf.Tensor]:
        example = tf.io.parse_single_example(record, parsed)
        # TPUs have no int64.
        return {k: tf.cast(v, tf.int32) for k, v in example.items()}

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        examples = tf.data.TFRecordDataset(input_file)
        if is_training:
            examples = examples.repeat().shuffle(SHUFFLED)
        return examples.map(decode).batch(
            params["batch_size"], drop_remainder=drop_remainder
        )

    return input_fn


def memory_input_fn(
    features: Mapping[str, Any], is_training: bool, drop_remainder: bool
) -> Callable[[Mapping[str, Any]], tf.data.Dataset]:
    """As `record_input_fn`, of whole numbers in memory, [examples, ...]."""

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        examples = tf.data.Dataset.from_tensor_slices(
            {k: tf.constant(v, tf.int32) for k, v in features.items()}
        )
        if is_training:
            examples = examples.repeat().shuffle(SHUFFLED)
        return examples.batch(
            params["batch_size"], drop_remainder=drop_remainder
        )

    return input_fn


def join_texts(tokens_a, tokens_b, max_seq_length):
    """Gives `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, and segments.

    Of two texts, which are cut in place, the longer loses its last token first.
    """
    if tokens_b:
        truncate_pair(tokens_a, tokens_b, max_seq_length - 3)
    tokens = [CLASSIFY, *tokens_a[: max_seq_length - 2], SEPARATE]
    segments = [0] * len(tokens)
    if tokens_b:
        tokens += [*tokens_b, SEPARATE]
        segments += [1] * (len(tokens_b) + 1)
    return tokens, segments


def truncate_pair(tokens_a, tokens_b, max_length):
    """Cuts two texts in place, the longer one first, the second if equal."""
    count_a, count_b = fit(len(tokens_a), len(tokens_b), max_length)
    del tokens_a[count_a:], tokens_b[count_b:]


def pad(length: int, *rows: Iterable[int]):
    """Each row with zeros up to a length."""
    return [[*row, *[0] * (length - len(row))] for row in rows]
