"""Similarity: two BertModels that share variables, and Adam of one's own."""

import numpy as np
import tensorflow.compat.v1 as tf

from bert import modeling, run_classifier, tokenization

tf.disable_v2_behavior()
LENGTH, STEPS = 12, 20


def read_pairs(path, tokenizer):
    sides, targets = ([], []), []
    with open(path) as file:
        for line in file.read().splitlines():
            *texts, score = line.split("\t")
            for side, text in zip(sides, texts):
                example = run_classifier.InputExample("", text, label="x")
                side.append(
                    run_classifier.convert_single_example(
                        9, example, ["x"], LENGTH, tokenizer
                    )
                )
            targets.append(float(score))
    return sides, np.array(targets, np.float32)


def encode(config, rows, tuning_method):
    ids, mask, segments = (
        tf.constant([getattr(row, name) for row in rows])
        for name in ("input_ids", "input_mask", "segment_ids")
    )
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        model = modeling.BertModel(
            config, True, ids, mask, segments, False, "bert",
            tuning_method=tuning_method,
        )  # fmt: skip
    return tf.nn.l2_normalize(model.get_pooled_output(), -1)


def main(data_dir, bert, output_dir, tuning_method=None):
    config = modeling.BertConfig.from_json_file(f"{bert}/bert_config.json")
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    tokenizer = tokenization.FullTokenizer(f"{bert}/vocab.txt")
    sides, targets = read_pairs(f"{data_dir}/pairs.tsv", tokenizer)
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        first, second = (encode(config, x, tuning_method) for x in sides)
        similarity = tf.reduce_sum(first * second, -1)
        loss = tf.reduce_mean(tf.square(similarity - targets))
        tvars = tf.trainable_variables()
        checkpoint = f"{bert}/bert_model.ckpt"
        assignment, _ = modeling.get_assignment_map_from_checkpoint(
            tvars, checkpoint
        )
        tf.train.init_from_checkpoint(checkpoint, assignment)
        train_op = tf.train.AdamOptimizer(1e-2).minimize(loss)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            before = session.run([loss, *tvars])
            for _ in range(STEPS):
                session.run(train_op)
            after = session.run([loss, *tvars])
    return {
        "trained": [
            v.op.name
            for v, x, y in zip(tvars, before[1:], after[1:])
            if not np.array_equal(x, y)
        ],
        "losses": [float(before[0]), float(after[0])],
    }
