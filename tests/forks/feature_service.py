"""A service of sentence vectors: layer -2 is pooled, the graph is frozen.

The shape of BERT services: a graph is written once, and a worker loads it
without any of BERT's code.
"""

import os

import numpy as np
import tensorflow.compat.v1 as tf

from bert import extract_features, modeling, optimization, tokenization

tf.disable_v2_behavior()
LENGTH = 12


def freeze(bert, path, tuning_method):
    """Writes the graph, and returns the names of what a method trains."""
    config = modeling.BertConfig.from_json_file(f"{bert}/bert_config.json")
    with tf.Graph().as_default():
        names = ("input_ids", "input_mask", "input_type_ids")
        ids, mask, segments = (
            tf.placeholder(tf.int32, [None, LENGTH], name) for name in names
        )
        model = modeling.BertModel(
            config=config,
            is_training=False,
            input_ids=ids,
            input_mask=mask,
            token_type_ids=segments,
            tuning_method=tuning_method,
        )
        tvars = tf.trainable_variables()
        checkpoint = f"{bert}/bert_model.ckpt"
        assignment, _ = modeling.get_assignment_map_from_checkpoint(
            tvars, checkpoint
        )
        tf.train.init_from_checkpoint(checkpoint, assignment)
        weights = tf.cast(mask, tf.float32)[:, :, None]
        summed = tf.reduce_sum(model.all_encoder_layers[-2] * weights, 1)
        tf.divide(summed, tf.reduce_sum(weights, 1), name="pooled")
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            frozen = tf.graph_util.convert_variables_to_constants(
                session, tf.get_default_graph().as_graph_def(), ["pooled"]
            )
        with tf.gfile.GFile(path, "wb") as file:
            file.write(frozen.SerializeToString())
        return [v.op.name for v in optimization.trained_variables()]


def encode(path, features):
    graph = tf.GraphDef()
    with tf.gfile.GFile(path, "rb") as file:
        graph.ParseFromString(file.read())
    with tf.Graph().as_default():
        tf.import_graph_def(graph, name="")
        with tf.Session() as session:
            return session.run(
                "pooled:0",
                {
                    f"{name}:0": [getattr(row, name) for row in features]
                    for name in ("input_ids", "input_mask", "input_type_ids")
                },
            )


def main(data_dir, bert, output_dir, tuning_method=None):
    os.makedirs(output_dir)
    path = os.path.join(output_dir, "frozen.pb")
    trained = freeze(bert, path, tuning_method)
    tokenizer = tokenization.FullTokenizer(f"{bert}/vocab.txt")
    examples = extract_features.read_examples(f"{data_dir}/texts.txt")
    vectors = encode(
        path,
        extract_features.convert_examples_to_features(
            examples, LENGTH, tokenizer
        ),
    )
    assert np.isfinite(vectors).all()
    return {"trained": trained, "vectors": vectors.tolist()}
