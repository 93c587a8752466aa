"""Modules as TF-Hub and Kaggle publish them, of the tiny BERT."""

import math
import re

import tensorflow as tf

v1 = tf.compat.v1

# Google's name -> a module's, by generation of the modules; written apart from
# `adapter_bert/checkpoints/hub_module.py`.
RENAMED = {
    1: (
        ("bert/embeddings/word_embeddings", "W/embeddings"),
        ("bert/embeddings/position_embeddings", "P/position_embeddings"),
        ("bert/embeddings/token_type_embeddings", "P/type_embeddings"),
        ("bert/embeddings/LayerNorm", "P/layer_norm"),
        ("attention/output/dense", "self_attention_output"),
        ("bert/encoder/", "bert_model/encoder/"),
        ("bert/pooler/dense", "bert_model/pooler_transform"),
        ("W/", "bert_model/word_embeddings/"),
        ("P/", "bert_model/embedding_postprocessor/"),
    ),
    3: (
        ("bert/embeddings/word_embeddings", "word_embeddings/embeddings"),
        (
            "bert/embeddings/position_embeddings",
            "position_embedding/embeddings",
        ),
        ("bert/embeddings/token_type_embeddings", "type_embeddings/embeddings"),
        ("bert/embeddings/LayerNorm", "embeddings/layer_norm"),
        ("attention/output/dense", "self_attention/attention_output"),
        ("bert/encoder/", "transformer/"),
        ("bert/pooler/dense", "pooler_transform"),
    ),
}
COMMON = (
    ("attention/output/LayerNorm", "self_attention_layer_norm"),
    ("attention/self/", "self_attention/"),
    ("intermediate/dense", "intermediate"),
    ("output/dense", "output"),
    ("output/LayerNorm", "output_layer_norm"),
    ("cls/predictions/output_bias", "cls/predictions/output_bias/bias"),
)


def tf2_name(name, generation):
    """What a module of TensorFlow 2 calls one of Google's variables."""
    for old, new in (*RENAMED[generation], *COMMON):
        name = name.replace(old, new)
    return name


def tf2_value(name, value, heads):
    """The value as it is there, with an axis for the heads, if there is one."""
    if heads is None:
        return value
    size = value.shape[-1] // heads
    if re.search(r"attention/self/\w+/kernel", name):
        return value.reshape(-1, heads, size)
    if re.search(r"attention/self/\w+/bias", name):
        return value.reshape(heads, size)
    if name.endswith("attention/output/dense/kernel"):
        return value.reshape(heads, -1, value.shape[-1])
    return value


def tf2_variables(values, heads, generation):
    """Such variables, not in the order of the layers."""
    return [
        tf.Variable(
            tf2_value(name, value, heads), name=tf2_name(name, generation)
        )
        for name, value in sorted(values.items(), key=lambda x: x[0][::-1])
    ]


def write_tf2(
    folder,
    vocabulary,
    values,
    heads,
    generation=3,
    lower=True,
    more=(),
    program=None,
):
    """Writes a SavedModel of TensorFlow 2.

    Args:
        folder: for it.
        vocabulary: path of its vocabulary, or None for none.
        values: of its variables, by Google's names.
        heads: number of attention heads; None for matrices as Google's.
        generation: of its names, 1 or 3.
        lower: its `do_lower_case`.
        more: variables that it has besides, as (name, value).
        program: a resource of its own.
    """
    module = tf.Module()
    module.its_own = tf2_variables(values, heads, generation)
    module.program = program
    module.more = [tf.Variable(value, name=name) for name, value in more]
    if vocabulary is not None:
        module.vocab_file = tf.saved_model.Asset(str(vocabulary))
        module.do_lower_case = tf.Variable(lower, trainable=False)
    tf.saved_model.save(module, str(folder))
    return folder


def write_tf1(folder, vocabulary, values, heads, lower=True):
    """Writes a module of TensorFlow 1, with its two graphs."""
    hidden = values["bert/embeddings/LayerNorm/gamma"].shape[0]
    builder = v1.saved_model.Builder(str(folder))
    for tags in ([], ["train"]):
        with v1.Graph().as_default(), v1.Session() as session:
            for name, value in values.items():
                v1.get_variable(name, initializer=value, use_resource=False)
            with tf.name_scope("bert/encoder/layer_0/attention/self"):
                scores = v1.placeholder(tf.float32, [None])
                tf.multiply(scores, 1.0 / math.sqrt(float(hidden // heads)))
            path = tf.constant(str(vocabulary), name="vocab")
            v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, path)
            signature = v1.saved_model.build_signature_def(
                outputs={
                    name: v1.saved_model.build_tensor_info(tensor)
                    for name, tensor in (
                        ("vocab_file", path),
                        ("do_lower_case", tf.constant(lower)),
                    )
                }
            )
            options = {
                "signature_def_map": {"tokenization_info": signature},
                "assets_collection": v1.get_collection(
                    v1.GraphKeys.ASSET_FILEPATHS
                ),
            }
            if tags:
                builder.add_meta_graph(tags, **options)
            else:
                session.run(v1.global_variables_initializer())
                builder.add_meta_graph_and_variables(session, tags, **options)
    builder.save()
    (folder / "tfhub_module.pb").write_bytes(b"\x08\x03")
    return folder
