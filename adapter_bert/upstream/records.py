"""Examples in TFRecord files, and batches of them for TPUEstimator."""

import tensorflow as tf

from adapter_bert.data.tokenization import CLASSIFY, SEPARATE, fit

# Examples among which the next one of a training is drawn.
SHUFFLED = 100


def create_int_feature(values):
    """Makes whole numbers of an example."""
    return tf.train.Feature(int64_list=tf.train.Int64List(value=list(values)))


def make_example(features):
    """Makes an example of features by name."""
    return tf.train.Example(features=tf.train.Features(feature=features))


def write_numbers(writer, features):
    """Writes an example of whole numbers."""
    named = {k: create_int_feature(values) for k, values in features.items()}
    writer.write(make_example(named).SerializeToString())


def _batches(
    make_examples,
    is_training,
    drop_remainder,
):
    def input_fn(params):
        examples = make_examples()
        if is_training:
            examples = examples.repeat().shuffle(SHUFFLED)
        return examples.batch(
            params["batch_size"], drop_remainder=drop_remainder
        )

    return input_fn


def record_input_fn(input_file, shapes, *flags):
    """Makes an `input_fn` over a TFRecord file of whole numbers.

    `shapes` are those of each feature of an example, int32 in a batch. In
    training, the first of `flags`, examples are repeated and shuffled; the
    second is `drop_remainder` of batches.
    """
    parsed = {
        name: tf.io.FixedLenFeature(shape, tf.int64)
        for name, shape in shapes.items()
    }

    def decode(record):
        example = tf.io.parse_single_example(record, parsed)
        # TPUs have no int64.
        return {k: tf.cast(v, tf.int32) for k, v in example.items()}

    return _batches(
        lambda: tf.data.TFRecordDataset(input_file).map(decode), *flags
    )


def memory_input_fn(features, *flags):
    """As `record_input_fn`, of whole numbers in memory, [examples, ...]."""
    return _batches(
        lambda: tf.data.Dataset.from_tensor_slices(
            {k: tf.constant(v, tf.int32) for k, v in features.items()}
        ),
        *flags,
    )


def make_row(
    tokenizer,
    tokens_a,
    tokens_b,
    length,
):
    """Makes `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    Of two texts, which are cut in place, the longer loses its last token first.

    Returns:
        The tokens; their ids, a mask of ones and the segments, with zeros up to
        `length`.
    """
    if tokens_b:
        truncate_pair(tokens_a, tokens_b, length - 3)
    tokens = [CLASSIFY, *tokens_a[: length - 2], SEPARATE]
    segments = [0] * len(tokens)
    if tokens_b:
        tokens += [*tokens_b, SEPARATE]
        segments += [1] * (len(tokens_b) + 1)
    ids = tokenizer.convert_tokens_to_ids(tokens)
    return tokens, pad(length, ids, [1] * len(ids), segments)


def truncate_pair(tokens_a, tokens_b, max_length):
    """Cuts two texts in place, the longer one first, the second if equal."""
    count_a, count_b = fit(len(tokens_a), len(tokens_b), max_length)
    del tokens_a[count_a:], tokens_b[count_b:]


def pad(length, *rows):
    """Each row with zeros up to a length."""
    return [[*row, *[0] * (length - len(row))] for row in rows]
