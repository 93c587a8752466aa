"""Modules of TF-Hub and Kaggle: SavedModels that hold a BERT.

Two kinds have been published. TensorFlow 1's (`google/bert_...`) have
variables with Google's names, and a signature that tells the vocabulary.
TensorFlow 2's (`tensorflow/bert_...`, `small_bert/...`) are objects with
attributes of these names. Their files are read, without Keras; neither graph
is loaded.

A checkpoint of objects has names like
`variables/7/.ATTRIBUTES/VARIABLE_VALUE`; its object graph says which variables
these are. Names of version 1 of the modules on TF-Hub, and of version 3 and
later:

    bert_model/encoder/layer_0/self_attention_output/kernel
    transformer/layer_0/self_attention/attention_output/kernel

Matrices of the attention have an axis for the heads, except in version 1, with
the same numbers in the same order. Source: tensorflow/models,
`tf1_bert_checkpoint_converter_lib.py`.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow.core.protobuf.trackable_object_graph_pb2 import (
    TrackableObjectGraph,
)

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig, Shape
from adapter_bert.checkpoints.google import (
    OBJECT_GRAPH,
    Reader,
    guard,
    open_tensorflow,
)
from adapter_bert.checkpoints.weights import Pretrained, Weights, as_floats
from adapter_bert.errors import UserError, first_line

CHECKPOINT = os.path.join("variables", "variables")
ASSETS = "assets"
VOCABULARY, LOWER_CASE = "vocab_file", "do_lower_case"
TF1_SIGNATURE = "tokenization_info"
TF1_ASSETS = "saved_model_assets"
# The factor of the attention's scores.
TF1_SCALE = "bert/encoder/layer_0/attention/self/Mul/y"

VALUE = "VARIABLE_VALUE"

LAYER = r"(?:transformer|encoder)/layer_(\d+)/"
OURS, EMBEDDINGS = r"bert/encoder/layer_\1/", "bert/embeddings/"
FIRST = "embedding_postprocessor"
# End of a variable's name -> Google's name
NAMES = tuple(
    (re.compile(rf"(?:^|/){pattern}$"), name)
    for pattern, name in (
        ("word_embeddings/embeddings", f"{EMBEDDINGS}word_embeddings"),
        ("position_embedding/embeddings", f"{EMBEDDINGS}position_embeddings"),
        (f"{FIRST}/position_embeddings", f"{EMBEDDINGS}position_embeddings"),
        ("type_embeddings/embeddings", f"{EMBEDDINGS}token_type_embeddings"),
        (f"{FIRST}/type_embeddings", f"{EMBEDDINGS}token_type_embeddings"),
        (
            f"(?:embeddings|{FIRST})/layer_norm/(gamma|beta)",
            rf"{EMBEDDINGS}LayerNorm/\1",
        ),
        (
            rf"{LAYER}self_attention/(query|key|value)/(kernel|bias)",
            rf"{OURS}attention/self/\2/\3",
        ),
        (
            rf"{LAYER}self_attention(?:/attention)?_output/(kernel|bias)",
            rf"{OURS}attention/output/dense/\2",
        ),
        (
            rf"{LAYER}self_attention_layer_norm/(gamma|beta)",
            rf"{OURS}attention/output/LayerNorm/\2",
        ),
        (rf"{LAYER}(intermediate|output)/(kernel|bias)", rf"{OURS}\2/dense/\3"),
        (
            rf"{LAYER}output_layer_norm/(gamma|beta)",
            rf"{OURS}output/LayerNorm/\2",
        ),
        (
            "(?:pooler_transform|next_sentence/pooler_dense)/(kernel|bias)",
            r"bert/pooler/dense/\1",
        ),
        (r"(cls/predictions/transform/(?:dense|LayerNorm)/\w+)", r"\1"),
        ("(cls/predictions/output_bias)/bias", r"\1"),
    )
)
# Variables that cannot be left out, as a head can.
OF_ENCODER = re.compile(rf"embedding_projection|{LAYER}")
# A pretraining has a pooler of its own. BERT's is there too, but not trained.
# Source: tensorflow/models, `export_tfhub.py`, `copy_pooler_dense_to_encoder`.
TRAINED_POOLER = "next_sentence/pooler_dense/"
UNTRAINED_POOLER = "pooler_transform/"
# What an optimizer of Keras calls its counter of steps.
STEPS = "_iterations"
QUERY = "bert/encoder/layer_0/attention/self/query/kernel"


def open_objects(
    prefix: str, source: str
) -> tuple[Weights, Optional[BertConfig], Optional[bool]]:
    """Opens the checkpoint of a module or of `tf.train.Checkpoint`.

    Returns:
        The weights under Google's names; the sizes, or None where the shapes
        do not tell the number of heads; `do_lower_case`, or None.
    """
    reader = Reader(prefix)
    if OBJECT_GRAPH not in reader.shapes:
        raise UserError(
            f"{source} holds no BERT: its variables have neither Google's "
            "names nor an object graph"
        )
    with guard(prefix):
        graph = TrackableObjectGraph.FromString(reader.tensor(OBJECT_GRAPH))
        keys = _google_names(graph, source)
        raw = {name: reader.shapes[key] for name, key in keys.items()}
        node, lower = _children(graph).get(LOWER_CASE), None
        if node is not None and node.attributes:
            lower = bool(reader.tensor(node.attributes[0].checkpoint_key))
    heads = raw.get(QUERY, ())
    if len(heads) not in (2, 3):
        raise UserError(
            f"{source}: {QUERY} has the shape {list(heads)}, expected "
            "[hidden, heads, head size] or [hidden, hidden]: it is no BERT "
            "whose names are known here"
        )
    shapes = {name: _without_heads(name, shape) for name, shape in raw.items()}
    # Those of the first version have Google's own shapes.
    config = _config_of(shapes, heads[1], source) if len(heads) == 3 else None

    def read(name: str) -> np.ndarray:
        value = reader.tensor(keys[name])
        with guard(prefix):
            value = as_floats(value)
        return value.reshape(shapes[name])

    return Weights(source, shapes, read), config, lower


def _config_of(
    shapes: Mapping[str, Shape], heads: int, source: str
) -> BertConfig:
    """Finds the sizes of a BERT whose variables have these shapes.

    Dropout and activation are what all of Google's have: 0.1, gelu.
    """
    scope = "bert/encoder/layer_"
    layers = {n.split("/")[2] for n in shapes if n.startswith(scope)}

    def size(name: str, axis: int) -> int:
        shape = shapes.get(name, ())
        if len(shape) != 2:
            raise UserError(
                f"{source} holds no BERT that is known here: it lacks {name}"
            )
        return shape[axis]

    return BertConfig(
        vocab_size=size("bert/embeddings/word_embeddings", 0),
        hidden_size=size("bert/embeddings/word_embeddings", 1),
        num_hidden_layers=len(layers),
        num_attention_heads=heads,
        intermediate_size=size(
            "bert/encoder/layer_0/intermediate/dense/kernel", 1
        ),
        max_position_embeddings=size("bert/embeddings/position_embeddings", 0),
        type_vocab_size=size("bert/embeddings/token_type_embeddings", 0),
    )


def _google_names(graph: TrackableObjectGraph, source: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    attributes = [
        attribute
        for place in _without_optimizers(graph)
        for attribute in graph.nodes[place].attributes
        if attribute.name == VALUE
    ]
    is_pretraining = any(TRAINED_POOLER in a.full_name for a in attributes)
    for attribute in attributes:
        if is_pretraining and UNTRAINED_POOLER in attribute.full_name:
            continue
        matches = ((p.search(attribute.full_name), to) for p, to in NAMES)
        name = next((m.expand(to) for m, to in matches if m), None)
        if name is None and OF_ENCODER.search(attribute.full_name):
            raise UserError(
                f"{source}: {attribute.full_name} is no part of BERT as "
                "Google published it, so this model cannot be computed here"
            )
        if name in keys:
            raise UserError(
                f"{source} holds {name} twice, as "
                f"{keys[name]} and {attribute.checkpoint_key}"
            )
        if name is not None:
            keys[name] = attribute.checkpoint_key
    return keys


def _without_optimizers(graph: TrackableObjectGraph) -> list[int]:
    """Lists the nodes of a model in a training's checkpoint."""
    # Slots of optimizers have the names of their variables. Slots of newer
    # optimizers are children of theirs, slots of older ones of no node.
    left = [0] if graph.nodes else []
    reached = set(left)
    while left:
        children = graph.nodes[left.pop()].children
        if STEPS not in [child.local_name for child in children]:
            new = {child.node_id for child in children} - reached
            reached |= new
            left += new
    return sorted(reached)


def _without_heads(name: str, shape: Shape) -> Shape:
    if "/attention/" not in name or "LayerNorm" in name:
        return shape
    if name.endswith("/bias"):
        return (int(np.prod(shape)),)
    # The heads' two axes come first in the matrix after them, else last.
    axis = -1 if "/attention/output/" in name else 1
    return (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))


def _children(graph) -> dict[str, Any]:
    children = graph.nodes[0].children if graph.nodes else ()
    return {c.local_name: graph.nodes[c.node_id] for c in children}


def open_module(path: str) -> Pretrained:
    """Opens a module by its `saved_model.pb`."""
    content = files.read_bytes(path, "the module")
    folder = os.path.dirname(path)
    prefix = os.path.join(folder, CHECKPOINT)
    if not files.exists(prefix + ".index"):
        raise UserError(f"{path} holds no BERT: it has no variables")
    try:
        graphs = saved_model_pb2.SavedModel.FromString(content).meta_graphs
        # TensorFlow 1's modules have another graph for training.
        graph = min(graphs, key=lambda graph: len(graph.meta_info_def.tags))
        if graph.HasField("object_graph_def"):
            weights, config, lower = open_objects(prefix, path)
            node = _children(graph.object_graph_def).get(VOCABULARY)
            vocabulary = ""
            if node is not None and node.HasField("asset"):
                number = node.asset.asset_file_def_index
                vocabulary = graph.asset_file_def[number].filename
        else:
            weights = dataclasses.replace(open_tensorflow(prefix), source=path)
            config, vocabulary, lower = _read_tf1(graph, weights)
    except (
        DecodeError,
        IndexError,
        OverflowError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(
            f"{path} is damaged or no SavedModel: {first_line(error)}"
        ) from error
    if os.path.basename(vocabulary) != vocabulary:
        raise UserError(
            f"{path} says that its vocabulary is {vocabulary}, expected the "
            f"name of a file in its folder {ASSETS}; do not use this module"
        )
    if vocabulary:
        vocabulary = os.path.join(folder, ASSETS, vocabulary)
    return Pretrained(path, folder, weights, config, vocabulary, lower)


def _read_tf1(
    graph: meta_graph_pb2.MetaGraphDef, weights: Weights
) -> tuple[Optional[BertConfig], str, Optional[bool]]:
    """Sizes, name of the vocabulary, and `do_lower_case` of TensorFlow 1's.

    The sizes are None if the graph does not tell the number of heads.
    """
    constants: dict[str, tensor_pb2.TensorProto] = {
        node.name: node.attr["value"].tensor
        for node in graph.graph_def.node
        if node.op == "Const"
    }

    def number(name: str) -> Optional[np.ndarray]:
        value = constants.get(name)
        if value is not None and value.tensor_shape.dim:
            # `make_ndarray` would fill a shape that a few bytes can claim.
            raise ValueError("a constant is no single number")
        return None if value is None else tf.make_ndarray(value)

    sizes = _config_of(weights.shapes, 1, weights.source)
    config, scale = None, number(TF1_SCALE)
    if scale is not None:
        # One by the root of a head's size.
        exact = sizes.hidden_size * float(scale) ** 2
        heads = max(1, round(exact))
        if abs(exact - heads) < 1e-3 * heads:
            config = dataclasses.replace(sizes, num_attention_heads=heads)
    outputs = graph.signature_def[TF1_SIGNATURE].outputs
    assets = {}
    for packed in graph.collection_def[TF1_ASSETS].any_list.value:
        asset = meta_graph_pb2.AssetFileDef()
        packed.Unpack(asset)
        assets.setdefault(asset.tensor_info.name, asset.filename)
    vocabulary = assets.get(outputs[VOCABULARY].name, "")
    lower = number(outputs[LOWER_CASE].name.split(":")[0])
    return config, vocabulary, None if lower is None else bool(lower)
