"""Named entities: BERT, a linear-chain CRF of its own, TPUEstimator.

The shape of many forks for named entities; `bert_ner.py`, as they call it.
"""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from bert import modeling, optimization, tokenization

tf.disable_v2_behavior()
TAGS = ("X", "O", "B-ANIMAL", "I-ANIMAL", "B-THING", "B-art-work")
LENGTH = 16


class InputExample:
    def __init__(self, guid, words, tags):
        self.guid = guid
        self.words = words
        self.tags = tags


def read_examples(path):
    with open(path) as file:
        blocks = file.read().strip().split("\n\n")
    examples = []
    for number, block in enumerate(blocks):
        pairs = [line.split(" ") for line in block.splitlines()]
        examples.append(InputExample(number, *zip(*pairs)))
    return examples


def convert(example, tokenizer):
    tokens, labels = ["[CLS]"], ["X"]
    for word, tag in zip(example.words, example.tags):
        pieces = tokenizer.tokenize(tokenization.convert_to_unicode(word))
        tokens += pieces
        labels += [tag] + ["X"] * (len(pieces) - 1)
    tokens, labels = tokens[: LENGTH - 1], labels[: LENGTH - 1]
    tokens, labels = [*tokens, "[SEP]"], [*labels, "X"]
    ids = tokenizer.convert_tokens_to_ids(tokens)
    rows = {
        "input_ids": ids,
        "input_mask": [1] * len(ids),
        "segment_ids": [0] * len(ids),
        "label_ids": [TAGS.index(label) for label in labels],
    }
    return {k: row + [0] * (LENGTH - len(row)) for k, row in rows.items()}


def log_likelihood(scores, tags, lengths, transitions):
    """Of each row's tags under a linear-chain CRF."""
    mask = tf.sequence_mask(lengths, LENGTH, tf.float32)
    of_tags = tf.one_hot(tags, len(TAGS))
    unary = tf.reduce_sum(tf.reduce_sum(of_tags * scores, -1) * mask, -1)
    pairs = tf.einsum(
        "btc,cd,btd->bt", of_tags[:, :-1], transitions, of_tags[:, 1:]
    )
    binary = tf.reduce_sum(pairs * mask[:, 1:], -1)
    alpha = scores[:, 0]
    for place in range(1, LENGTH):
        step = tf.reduce_logsumexp(alpha[:, :, None] + transitions[None], 1)
        here = mask[:, place, None]
        alpha = here * (step + scores[:, place]) + (1.0 - here) * alpha
    return unary + binary - tf.reduce_logsumexp(alpha, -1)


def viterbi(scores, transitions):
    best, back = scores[0], []
    for row in scores[1:]:
        paths = best[:, None] + transitions
        back.append(paths.argmax(0))
        best = paths.max(0) + row
    tags = [int(best.argmax())]
    for pointers in reversed(back):
        tags.append(int(pointers[tags[-1]]))
    return tags[::-1]


def model_fn_builder(bert_config, init_checkpoint, steps, tuning_method, seen):
    def model_fn(features, labels, mode, params):
        model = modeling.BertModel(
            config=bert_config,
            is_training=mode == tf.estimator.ModeKeys.TRAIN,
            input_ids=features["input_ids"],
            input_mask=features["input_mask"],
            token_type_ids=features["segment_ids"],
            use_one_hot_embeddings=False,
            tuning_method=tuning_method,
        )
        output = model.get_sequence_output()
        size = output.shape[-1].value
        with tf.variable_scope("crf"):
            weights = tf.get_variable("weights", [size, len(TAGS)])
            transitions = tf.get_variable("transitions", [len(TAGS)] * 2)
        scores = tf.reshape(
            tf.matmul(tf.reshape(output, [-1, size]), weights),
            [-1, LENGTH, len(TAGS)],
        )
        lengths = tf.reduce_sum(features["input_mask"], -1)
        tvars = tf.trainable_variables()
        assignment, _ = modeling.get_assignment_map_from_checkpoint(
            tvars, init_checkpoint
        )
        tf.train.init_from_checkpoint(init_checkpoint, assignment)
        spec = tf.estimator.tpu.TPUEstimatorSpec
        if mode == tf.estimator.ModeKeys.PREDICT:
            rows = tf.shape(lengths)[0]
            predictions = {
                "scores": scores,
                "lengths": lengths,
                "transitions": tf.tile(transitions[None], [rows, 1, 1]),
            }
            return spec(mode=mode, predictions=predictions)
        loss = -tf.reduce_mean(
            log_likelihood(scores, features["label_ids"], lengths, transitions)
        )
        train_op = optimization.create_optimizer(loss, 5e-2, steps, 2, False)
        seen[:] = [v.op.name for v in optimization.trained_variables()]
        return spec(mode=mode, loss=loss, train_op=train_op)

    return model_fn


def main(data_dir, bert, output_dir, tuning_method=None):
    steps, seen = 30, []
    tokenizer = tokenization.FullTokenizer(os.path.join(bert, "vocab.txt"))
    examples = read_examples(os.path.join(data_dir, "tags.txt"))
    rows = [convert(example, tokenizer) for example in examples]

    def input_fn(params):
        data = tf.data.Dataset.from_tensor_slices(
            {k: np.array([r[k] for r in rows], np.int32) for k in rows[0]}
        )
        return data.repeat(params.get("repeats")).batch(params["batch_size"])

    estimator = tf.estimator.tpu.TPUEstimator(
        use_tpu=False,
        model_fn=model_fn_builder(
            modeling.BertConfig.from_json_file(
                os.path.join(bert, "bert_config.json")
            ),
            os.path.join(bert, "bert_model.ckpt"),
            steps,
            tuning_method,
            seen,
        ),
        config=tf.estimator.tpu.RunConfig(
            model_dir=output_dir, tf_random_seed=1
        ),
        train_batch_size=4,
        predict_batch_size=4,
    )
    estimator.train(input_fn, max_steps=steps)
    right = total = 0
    found = estimator.predict(lambda params: input_fn({**params, "repeats": 1}))
    for row, result in zip(rows, found):
        count = int(result["lengths"])
        tags = viterbi(result["scores"][:count], result["transitions"])
        right += sum(x == y for x, y in zip(tags, row["label_ids"]))
        total += count
    return {"trained": seen, "accuracy": right / total}
