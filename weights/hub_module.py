"""Modules of TF-Hub and Kaggle: SavedModels that hold a BERT.

Two kinds have been published. TensorFlow 1's (`google/bert_...`) have
variables with Google's names, and a signature that tells the vocabulary.
TensorFlow 2's (`tensorflow/bert_...`, `small_bert/...`) are objects with
attributes of these names. Neither is loaded: all that is needed stands in
their files, so that no Keras and no graph of theirs is asked for.
"""

import dataclasses
import os
from typing import Dict, Optional

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from errors import UserError, first_line
from modeling import BertConfig
from storage import files
from weights.base import Pretrained, Weights
from weights.google import open_tensorflow
from weights.object_graph import config_of, open_objects

MODEL_FILE = "saved_model.pb"
CHECKPOINT = os.path.join("variables", "variables")
ASSETS = "assets"
VOCABULARY, LOWER_CASE = "vocab_file", "do_lower_case"
TF1_SIGNATURE = "tokenization_info"
TF1_ASSETS = "saved_model_assets"
# By this number the scores of attention are multiplied.
TF1_SCALE = "bert/encoder/layer_0/attention/self/Mul/y"


def open_module(path: str) -> Pretrained:
    """Opens a module by its `saved_model.pb`.

    Raises:
        UserError: it is missing, damaged, or holds no BERT.
    """
    content = files.read_bytes(path, "the module")
    try:
        model = saved_model_pb2.SavedModel.FromString(content)
    except DecodeError as error:
        raise UserError(f"{path} is damaged or no SavedModel") from error
    if not model.meta_graphs:
        raise UserError(f"{path} is damaged or no SavedModel: it has no graph")
    folder = os.path.dirname(path)
    prefix = os.path.join(folder, CHECKPOINT)
    if not files.exists(prefix + ".index"):
        raise UserError(f"{path} holds no BERT: it has no variables")
    # Of TensorFlow 1's two, one is for training.
    graph = min(model.meta_graphs, key=lambda g: len(g.meta_info_def.tags))
    try:
        if graph.HasField("object_graph_def"):
            weights, config, lower = open_objects(prefix, path)
            vocabulary = _tf2_vocabulary(graph)
        else:
            weights = dataclasses.replace(open_tensorflow(prefix), source=path)
            config = _tf1_config(graph, weights)
            vocabulary, lower = _tf1_vocabulary(graph), _tf1_lower_case(graph)
    except (DecodeError, IndexError, TypeError, ValueError) as error:
        # What a whole one's numbers and names lead to is there.
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    if os.path.basename(vocabulary) != vocabulary:
        raise UserError(
            f"{path} says that its vocabulary is {vocabulary}, expected the "
            f"name of a file in its folder {ASSETS}; do not use this module"
        )
    if vocabulary:
        vocabulary = os.path.join(folder, ASSETS, vocabulary)
    return Pretrained(path, folder, weights, config, vocabulary, lower)


def _tf2_vocabulary(graph: meta_graph_pb2.MetaGraphDef) -> str:
    """The name of the asset that the module has as `vocab_file`, or ""."""
    nodes = graph.object_graph_def.nodes
    for child in nodes[0].children if nodes else ():
        node = nodes[child.node_id]
        if child.local_name == VOCABULARY and node.HasField("asset"):
            asset = graph.asset_file_def[node.asset.asset_file_def_index]
            return asset.filename
    return ""


def _tf1_vocabulary(graph: meta_graph_pb2.MetaGraphDef) -> str:
    """The name of the asset that the signature gives as `vocab_file`, or ""."""
    output = graph.signature_def[TF1_SIGNATURE].outputs[VOCABULARY]
    for packed in graph.collection_def[TF1_ASSETS].any_list.value:
        asset = meta_graph_pb2.AssetFileDef()
        packed.Unpack(asset)
        if asset.tensor_info.name == output.name:
            return asset.filename
    return ""


def _tf1_lower_case(graph: meta_graph_pb2.MetaGraphDef) -> Optional[bool]:
    """The constant that the signature gives as `do_lower_case`, or None."""
    name = graph.signature_def[TF1_SIGNATURE].outputs[LOWER_CASE].name
    value = _constants(graph).get(name.split(":")[0])
    return None if value is None else bool(_number(value))


def _tf1_config(
    graph: meta_graph_pb2.MetaGraphDef, weights: Weights
) -> Optional[BertConfig]:
    """The sizes; None if the graph does not tell the number of heads."""
    sizes = config_of(weights.shapes, 1, weights.source)
    value = _constants(graph).get(TF1_SCALE)
    scale = 0.0 if value is None else float(_number(value))
    if not 0 < scale <= 1:
        return None
    head_size = round(scale**-2)
    is_whole = abs(scale**-2 - head_size) < 1e-3 * head_size
    if not is_whole or sizes.hidden_size % head_size:
        return None
    heads = sizes.hidden_size // head_size
    return dataclasses.replace(sizes, num_attention_heads=heads)


def _number(value: tensor_pb2.TensorProto) -> np.ndarray:
    """The value of a constant that is a single one.

    Raises:
        ValueError: it is not.
    """
    if value.tensor_shape.dim:
        # A shape that a few bytes can claim would be filled up.
        raise ValueError("a constant is no single number")
    return tf.make_ndarray(value)


def _constants(
    graph: meta_graph_pb2.MetaGraphDef,
) -> Dict[str, tensor_pb2.TensorProto]:
    """The value of every constant of a graph, by name."""
    return {
        node.name: node.attr["value"].tensor
        for node in graph.graph_def.node
        if node.op == "Const"
    }
