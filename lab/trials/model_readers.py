"""What is read of others' models: checkpoints, modules, archives."""

import gzip
import io
import json
import pathlib
import shutil
import tarfile
import zipfile
from typing import Any, Dict

import numpy as np
from tensorflow.core.protobuf import (
    saved_model_pb2,
    trackable_object_graph_pb2,
)

from adapter_bert.bert.encoder import list_variables
from adapter_bert.checkpoints import google, handles, hub_module, sources
from adapter_bert.checkpoints.hugging_face import open_safetensors
from adapter_bert.data.subword import SubwordTokenizer
from lab.trials.bundles import write_bundle
from lab.trials.readers import (
    FEW_WORDS,
    GOLDEN,
    SMALL,
    Reader,
    as_json,
    as_tensors,
    of_file,
)

VALUES = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "step": np.int64(7),
    "texts": np.array([b"xy", b"zz"], object),
}


class Unmade(Exception):
    """What a changed input says can be written into no file."""


def _read_all(path: str) -> None:
    weights = open_safetensors(path, True)
    for name in weights.shapes:
        weights.read(name)


def _read_checkpoint(folder: pathlib.Path) -> None:
    prefix = str(folder / "a.ckpt")
    weights = google.open_tensorflow(prefix)
    for name in ("matrix", "step"):
        if name in weights.shapes:
            weights.read(name)
    google.read_whole(prefix)


def _checkpoint(end: str) -> Reader:
    """A file of a checkpoint; the sums in it tell of most changes."""
    files = {f"a.ckpt{e}": c for e, c in write_bundle(VALUES).items()}
    return Reader(files, f"a.ckpt{end}", _read_checkpoint)


def _entries() -> Reader:
    """A checkpoint whose sums are right, whatever its entries say."""
    told = {
        "matrix": {"dtype": 1, "shape": [2, 3], "offset": 0, "size": 24},
        "step": {"dtype": 9, "shape": [], "shard_id": 0, "slices": 0},
        "texts": {"shape": [2]},
    }
    asked = {"entries": told, "lengths": {"texts": 2}, "shards": 1}

    def read(folder: pathlib.Path) -> None:
        try:
            found = json.loads((folder / "asked").read_bytes())
            made = write_bundle(
                VALUES, found["entries"], found["lengths"], found["shards"]
            )
        # Of anything but such numbers there is no file.
        except Exception as error:
            raise Unmade(repr(error)) from error
        try:
            for end, content in made.items():
                (folder / f"a.ckpt{end}").write_bytes(content)
            _read_checkpoint(folder)
        finally:
            for file in folder.glob("a.ckpt*"):
                file.unlink()

    raises = (sources.UserError, Unmade)
    return Reader({"asked": as_json(asked)}, "asked", read, raises)


def _bert() -> Dict[str, np.ndarray]:
    variables = list_variables(SMALL)
    return {name: np.ones(s, np.float32) for name, s in variables.items()}


def _read_module(folder: pathlib.Path) -> None:
    inner = folder / "variables"
    inner.mkdir()
    try:
        for path in folder.glob("variables.*"):
            shutil.copy(path, inner)
        opened = hub_module.open_module(str(folder / "saved_model.pb"))
        for name in opened.weights.shapes:
            opened.weights.read(name)
    finally:
        shutil.rmtree(inner)


def _module_files(
    model: saved_model_pb2.SavedModel, values: Dict[str, Any]
) -> Dict[str, bytes]:
    files = {f"variables{e}": c for e, c in write_bundle(values).items()}
    return {"saved_model.pb": model.SerializeToString(), **files}


def _first_module() -> Reader:
    """A module of TensorFlow 1."""
    model = saved_model_pb2.SavedModel()
    graph = model.meta_graphs.add()
    signature = graph.signature_def[hub_module.TF1_SIGNATURE]
    signature.outputs[hub_module.LOWER_CASE].name = "lower:0"
    signature.outputs[hub_module.VOCABULARY].name = "vocab:0"
    asset = hub_module.meta_graph_pb2.AssetFileDef(filename="vocab.txt")
    asset.tensor_info.name = "vocab:0"
    assets = graph.collection_def[hub_module.TF1_ASSETS].any_list
    assets.value.add().Pack(asset)
    for name, kind, value in (
        ("lower", 10, {"bool_val": [True]}),
        (hub_module.TF1_SCALE, 1, {"float_val": [2**-0.5]}),
    ):
        node = graph.graph_def.node.add(name=name, op="Const")
        node.attr["value"].tensor.MergeFrom(
            hub_module.tensor_pb2.TensorProto(dtype=kind, **value)
        )
    files = _module_files(model, _bert())
    return Reader(files, "saved_model.pb", _read_module)


def _objects() -> Dict[str, Any]:
    """The variables of a module of TensorFlow 2, and what its objects are."""
    size, heads = SMALL.hidden_size, SMALL.num_attention_heads
    each = size // heads
    layer = "transformer/layer_0/"
    shapes = {
        "word_embeddings/embeddings": (9, size),
        "position_embedding/embeddings": (8, size),
        "type_embeddings/embeddings": (2, size),
        f"{layer}self_attention/query/kernel": (size, heads, each),
        f"{layer}self_attention/attention_output/kernel": (heads, each, size),
        f"{layer}intermediate/kernel": (size, 8),
    }
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    values: Dict[str, Any] = {}
    graph.nodes.add()
    for number, (name, shape) in enumerate(shapes.items(), 1):
        key = f"variables/{number}/.ATTRIBUTES/VARIABLE_VALUE"
        graph.nodes[0].children.add(node_id=number, local_name=f"v{number}")
        graph.nodes.add().attributes.add(
            name=hub_module.VALUE, full_name=name, checkpoint_key=key
        )
        values[key] = np.ones(shape, np.float32)
    values[hub_module.GRAPH] = np.array(graph.SerializeToString(), object)
    return values


def _second_module() -> Reader:
    """A module of TensorFlow 2."""
    model = saved_model_pb2.SavedModel()
    graph = model.meta_graphs.add()
    graph.asset_file_def.add(filename="vocab.txt").tensor_info.name = "a:0"
    nodes = graph.object_graph_def.nodes
    nodes.add().children.add(node_id=1, local_name=hub_module.VOCABULARY)
    nodes.add().asset.asset_file_def_index = 0
    return Reader(
        _module_files(model, _objects()), "saved_model.pb", _read_module
    )


def _object_graph() -> Reader:
    """What a checkpoint of TensorFlow 2 says of its objects."""
    values = _objects()
    graph = bytes(values.pop(hub_module.GRAPH).item())

    def read(folder: pathlib.Path) -> None:
        content = (folder / "graph").read_bytes()
        whole = {**values, hub_module.GRAPH: np.array(content, object)}
        for end, part in write_bundle(whole).items():
            (folder / f"a.ckpt{end}").write_bytes(part)
        try:
            opened = sources.open_pretrained(str(folder / "a.ckpt"))
            for name in opened.weights.shapes:
                opened.weights.read(name)
        finally:
            for file in folder.glob("a.ckpt*"):
                file.unlink()

    return Reader({"graph": graph}, "graph", read)


def _tokenizer(name: str) -> Reader:
    """A RoBERTa's tokenizer, which then has to read a text."""

    def read(path: str) -> None:
        tokenizer = SubwordTokenizer(path)
        tokenizer.encode(["A cat  sat, \u00e9\u4e2d </s>"])

    path = GOLDEN.parent / "roberta" / name / "tokenizer.json"
    return of_file(path.name, path.read_bytes(), read)


def _case() -> Reader:
    """A folder of Hugging Face's, of which it is said what it does to case."""
    files = {
        "model.safetensors": as_tensors({"a": np.ones(2, np.float32)}),
        sources.TOKENIZER_CONFIG_FILE: as_json({"do_lower_case": True}),
    }
    return Reader(
        files,
        sources.TOKENIZER_CONFIG_FILE,
        lambda folder: sources.open_pretrained(str(folder)),
    )


def _packed(way: int) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", way) as archive:
        archive.writestr("bert/vocab.txt", "\n".join(FEW_WORDS))
        archive.writestr("bert/bert_config.json", "{}")
    return content.getvalue()


def _tar() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        # With a long name, and so with a header of more than one block.
        for name in ("assets/vocab.txt", "a" * 120):
            info = tarfile.TarInfo(name)
            info.size = 9
            archive.addfile(info, io.BytesIO(b"[PAD]\nthe"))
    return content.getvalue()


def _unpack(path: pathlib.Path) -> None:
    """Archives unpack beside themselves, in a folder that goes with them."""
    above = path.parent.parent
    inside = set(above.iterdir())
    handles.unpack(str(path))
    assert set(above.iterdir()) == inside, "written elsewhere"


def _archive(name: str, content: bytes) -> Reader:
    return Reader({name: content}, name, lambda folder: _unpack(folder / name))


def _inner_tar() -> Reader:
    """A tar archive, compressed after it was changed."""

    def read(folder: pathlib.Path) -> None:
        path = folder / "bert.tar.gz"
        whole = (folder / "tar").read_bytes()
        path.write_bytes(gzip.compress(whole, 1, mtime=0))
        try:
            _unpack(path)
        finally:
            path.unlink()

    return Reader({"tar": _tar()}, "tar", read)


def model_readers() -> Dict[str, Reader]:
    """Readers of models and of what they come in, by name."""
    tensors = {
        "bert.pooler.dense.weight": np.ones((2, 2), np.float32),
        "bert.embeddings.LayerNorm.bias": np.ones(2, np.float32),
    }
    return {
        "safetensors": of_file("a.safetensors", as_tensors(tensors), _read_all),
        "checkpoint's index": _checkpoint(".index"),
        "checkpoint's data": _checkpoint(".data-00000-of-00001"),
        "checkpoint's entries": _entries(),
        "module of TensorFlow 1": _first_module(),
        "module of TensorFlow 2": _second_module(),
        "object graph": _object_graph(),
        "tokenizer.json, BPE": _tokenizer("roberta"),
        "tokenizer.json, unigram": _tokenizer("xlm-roberta"),
        "tokenizer_config.json": _case(),
        "zip": _archive("bert.zip", _packed(zipfile.ZIP_DEFLATED)),
        "zip, stored": _archive("bert.zip", _packed(zipfile.ZIP_STORED)),
        "tar.gz": _archive("bert.tar.gz", gzip.compress(_tar(), 1, mtime=0)),
        "tar": _inner_tar(),
    }
