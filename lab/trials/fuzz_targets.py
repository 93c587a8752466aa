"""Targets of fuzzing: each reader of others' files, with a valid input."""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import pathlib
import re
import shutil
import tarfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any, Callable

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import safetensors.numpy
from absl import flags
from absl.testing import flagsaver
from tensorflow.core.protobuf import (
    saved_model_pb2,
    trackable_object_graph_pb2,
)

from adapter_bert import flags as program_flags
from adapter_bert.answering import row_stream
from adapter_bert.bert.encoder import BertConfig, list_variables
from adapter_bert.checkpoints import (
    adapter_artifact,
    dev_scores,
    google,
    hub_module,
    published_models,
    run_record,
    sources,
    torch_files,
    training_state,
)
from adapter_bert.checkpoints.hugging_face import open_safetensors
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.commands import library as library_command
from adapter_bert.commands import (
    predict,
    run_classifier,
    run_mlm,
    run_squad,
    run_tagger,
    serve,
)
from adapter_bert.data.added_tokens import TOKENIZER_CONFIG_FILE
from adapter_bert.data.huggingface_tokenizer import SubwordTokenizer
from adapter_bert.data.tokenization import FullTokenizer, read_vocabulary
from adapter_bert.errors import UserError
from adapter_bert.exchange import (
    foreign_adapters,
)
from adapter_bert.graph import bulk_rows
from adapter_bert.library import adapter_library as library
from adapter_bert.library import flags as adapter_flags
from adapter_bert.methods.registry import parse
from adapter_bert.server import http_api, request_core
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.squad_data import read_questions
from adapter_bert.tasks.tagging_files import (
    WordColumns,
    read_map,
    read_sentences,
)
from adapter_bert.tasks.text_classification import weigh_classes
from adapter_bert.training import run_from_flags
from lab.report import ROOT
from lab.trials.bundles import write_bundle
from lab.trials.fuzz_inputs import Reader

GOLDEN = ROOT / "tests" / "golden" / "exchange"
TORCH_FILES = ROOT / "tests" / "golden" / "torch_files"
SAMPLES = ROOT / "lab" / "trials" / "samples"
FEW_WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat ##s sat".split()
# The smallest that has all of an encoder's kinds of variables.
SMALL = BertConfig(
    vocab_size=len(FEW_WORDS),
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=8,
)


def as_json(value: Any) -> bytes:
    """A value as JSON."""
    return json.dumps(value).encode()


def of_file(
    name: str, content: bytes, read: Callable[[str], Any], **more: Any
) -> Reader:
    """A reader of a single file's path."""
    return Reader({name: content}, name, lambda f: read(str(f / name)), **more)


def _sample(name: str, read: Callable[..., Any], *raises: Any) -> Reader:
    """A reader of the files in a folder of `samples/`; the first is changed."""
    files = _folder(SAMPLES / re.sub(r"\W", "_", name))
    return Reader(files, next(iter(files)), read, *raises)


def _path(name: str, read: Callable[[str], Any]) -> Reader:
    """A reader of the path of the one file in a folder of `samples/`."""
    (file,) = _folder(SAMPLES / re.sub(r"\W", "_", name))
    return _sample(name, lambda folder: read(str(folder / file)))


def _table(name: str, **settings: bool) -> Reader:
    task = custom_task(**settings)
    return _sample(name, lambda folder: task.read(str(folder), ["train"]))


def as_tensors(values: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file."""
    return safetensors.numpy.save(dict(values))


def _folder(path: pathlib.Path) -> dict[str, bytes]:
    files = (file for file in sorted(path.iterdir()) if file.is_file())
    return {file.name: file.read_bytes() for file in files}


def _foreign(case: str, changed: str) -> Reader:
    content = json.loads((GOLDEN / "bert" / "config.json").read_text())
    names = BertConfig.__dataclass_fields__
    config = BertConfig(**{k: v for k, v in content.items() if k in names})
    return Reader(
        _folder(GOLDEN / case),
        changed,
        lambda folder: foreign_adapters.read_all(str(folder), config),
    )


def _artifact() -> Reader:
    scratch: dict[str, Any] = {
        "method": "houlsby(size=2)",
        "task": {"name": "custom", "labels": ["bad", "good"], "pairs": False},
        "task_settings": {"columns": ["text"], "label_column": "label"},
        "base": {"name": "bert", "fingerprint": "0" * 64},
        "bert_config": dataclasses.asdict(BertConfig(vocab_size=9)),
        "tokenizer": {"do_lower_case": True},
        "versions": run_record.versions(),
    }
    values = {"output_bias": np.zeros(2, np.float32)}
    content = as_tensors(values)

    scratch["sha256"] = hashlib.sha256(content).hexdigest()

    def read(folder: pathlib.Path) -> None:
        artifact = adapter_artifact.read(str(folder))
        parse(artifact.config["method"])
        path = str(folder / adapter_artifact.CONFIG_FILE)
        run_record.bert_config(artifact.config, path)
        settings = artifact.config.get("task_settings", {})
        restore_task(artifact.config["task"], settings, path)

    name = adapter_artifact.CONFIG_FILE
    return Reader(
        {name: as_json(scratch), adapter_artifact.WEIGHTS_FILE: content},
        name,
        read,
    )


def _weights(described: Reader) -> Reader:
    name = adapter_artifact.WEIGHTS_FILE
    sizes = dataclasses.asdict(SMALL)
    whole = {
        **json.loads(described.files[adapter_artifact.CONFIG_FILE]),
        "method": "head",
        "bert_config": sizes,
    }
    values = {
        "output_weights": np.ones((2, SMALL.hidden_size), np.float32),
        "output_bias": np.zeros(2, np.float32),
    }

    def read(folder: pathlib.Path) -> None:
        content = (folder / name).read_bytes()
        config = {**whole, "sha256": hashlib.sha256(content).hexdigest()}
        path = folder / adapter_artifact.CONFIG_FILE
        path.write_bytes(as_json(config))
        library.check(str(folder))

    files = {**described.files, name: as_tensors(values)}
    return Reader(files, name, read)


def _entry(described: Reader) -> Reader:

    def read(folder: pathlib.Path) -> None:
        with _written(folder, {}) as shelf:
            (shelf / "a").mkdir()
            for name, content in _folder(folder).items():
                (shelf / "a" / name).write_bytes(content)
            library.AdapterLibrary(str(shelf)).entry("a")

    entry = {"added": "2024-01-01T00:00:00+00:00", "scores": {"f1": 0.5}}
    files = {**described.files, library.ENTRY_FILE: as_json(entry)}
    return Reader(files, library.ENTRY_FILE, read)


def _questions(folder: pathlib.Path) -> None:
    tasks = {"one": {"texts": [1], "columns": ["text"]}}
    for name in ("a.jsonl", "a.txt"):
        content = (folder / "line").read_bytes()
        for question in bulk_rows.questions(name, content, tasks, ["one"]):
            if question.reason:
                bulk_rows.refusal_line(question)


def _rows(path: str) -> None:
    """Reads the input of `adapter-bert predict`."""
    list(row_stream.file_rows(path, [["text", "text_b"]], lambda _: None))


def _text(folder: pathlib.Path, name: str = "text") -> str:
    return (folder / name).read_bytes().decode("utf-8", "replace")


def _tokenize(folder: pathlib.Path) -> None:
    FullTokenizer(str(folder / "vocab.txt")).encode_ids([_text(folder)])


def _post(folder: pathlib.Path) -> None:
    http_api.read_rows((folder / "body").read_bytes(), 100)


VALUES = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "step": np.int64(7),
    "texts": np.array([b"xy", b"zz"], object),
}


def _named(prefix: str, ends: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{prefix}{end}": content for end, content in ends.items()}


def _read_all(weights: Weights) -> None:
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
    files = _named("a.ckpt", write_bundle(VALUES))
    return Reader(files, f"a.ckpt{end}", _read_checkpoint)


@contextlib.contextmanager
def _written(
    folder: pathlib.Path, files: Mapping[str, bytes]
) -> Iterator[pathlib.Path]:
    inner = folder / "inner"
    inner.mkdir()
    try:
        for name, content in files.items():
            (inner / name).write_bytes(content)
        yield inner
    finally:
        shutil.rmtree(inner)


def _bert() -> dict[str, np.ndarray]:
    variables = list_variables(SMALL)
    return {name: np.ones(s, np.float32) for name, s in variables.items()}


def _read_module(folder: pathlib.Path) -> None:
    files = _folder(folder)
    with _written(
        folder, {"saved_model.pb": files.pop("saved_model.pb")}
    ) as inner:
        (inner / "variables").mkdir()
        for name, content in files.items():
            (inner / "variables" / name).write_bytes(content)
        path = str(inner / "saved_model.pb")
        _read_all(hub_module.open_module(path).weights)


def _module_files(
    model: saved_model_pb2.SavedModel, values: dict[str, Any]
) -> dict[str, bytes]:
    files = _named("variables", write_bundle(values))
    return {"saved_model.pb": model.SerializeToString(), **files}


def _first_module() -> Reader:
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


def _objects() -> dict[str, Any]:
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
    values: dict[str, Any] = {}
    graph.nodes.add()
    for number, (name, shape) in enumerate(shapes.items(), 1):
        key = f"variables/{number}/.ATTRIBUTES/VARIABLE_VALUE"
        graph.nodes[0].children.add(node_id=number, local_name=f"v{number}")
        graph.nodes.add().attributes.add(
            name=hub_module.VALUE, full_name=name, checkpoint_key=key
        )
        values[key] = np.ones(shape, np.float32)
    values[google.OBJECT_GRAPH] = np.array(graph.SerializeToString(), object)
    return values


def _second_module() -> Reader:
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
    values = _objects()
    graph = bytes(values.pop(google.OBJECT_GRAPH).item())

    def read(folder: pathlib.Path) -> None:
        content = (folder / "graph").read_bytes()
        whole = {**values, google.OBJECT_GRAPH: np.array(content, object)}
        with _written(folder, _named("a.ckpt", write_bundle(whole))) as inner:
            _read_all(sources.open_pretrained(str(inner / "a.ckpt")).weights)

    return Reader({"graph": graph}, "graph", read)


def _tokenizer(name: str) -> Reader:

    def read(path: str) -> None:
        tokenizer = SubwordTokenizer(path)
        tokenizer.encode(["A cat  sat, \u00e9\u4e2d </s>"])

    path = GOLDEN.parent / "roberta" / name / "tokenizer.json"
    return of_file(path.name, path.read_bytes(), read)


def _case() -> Reader:
    files = {
        "model.safetensors": as_tensors({"a": np.ones(2, np.float32)}),
        TOKENIZER_CONFIG_FILE: as_json({"do_lower_case": True}),
    }
    return Reader(
        files,
        TOKENIZER_CONFIG_FILE,
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
    above = path.parent.parent
    inside = set(above.iterdir())
    published_models.unpack(str(path))
    assert set(above.iterdir()) == inside, "written elsewhere"


def _archive(name: str, content: bytes) -> Reader:
    return Reader({name: content}, name, lambda folder: _unpack(folder / name))


def _inner_tar() -> Reader:

    def read(folder: pathlib.Path) -> None:
        whole = gzip.compress((folder / "tar").read_bytes(), 1, mtime=0)
        with _written(folder, {"bert.tar.gz": whole}) as inner:
            _unpack(inner / "bert.tar.gz")

    return Reader({"tar": _tar()}, "tar", read)


SHARED = (
    "--do_train=true --do_eval=true --init_checkpoint=bert --output_dir=out "
    "--learning_rate=3e-4 --num_train_epochs=3 --warmup_proportion=0.1 "
    "--train_batch_size=32 --max_seq_length=128 --seed=7 --eval_steps=epoch "
    "--tuning_method=houlsby(size=8) --exchange_part=a=b,c=d --num_devices=1 "
    "--compute_dtype=float32 --engine=strategy --keep_best=loss"
).split()

# The program whose flags are defined, and their names.
_DEFINED: dict[str, Collection[str]] = {}


def _classifier() -> None:
    task = run_classifier.task_from_flags(run_from_flags.adapter_description())
    weights = flags.FLAGS["class_weights"].value
    if weights is not None:
        task = weigh_classes(task, weights)
    run_from_flags.experiment_from_flags(task)


def _squad() -> None:
    run_from_flags.experiment_from_flags(run_squad.task_from_flags())


def forget() -> None:
    """Removes the flags that a reader has defined."""
    flags.FLAGS.remove_flag_values(_DEFINED.pop("names", ()))
    flags.FLAGS.unparse_flags()
    _DEFINED.clear()


def _define(module: ModuleType) -> None:
    if module.__name__ in _DEFINED:
        return
    forget()
    before = set(flags.FLAGS)
    program_flags.define(module.SETTINGS)
    _DEFINED.update({module.__name__: (), "names": set(flags.FLAGS) - before})


def _program(
    module: ModuleType, arguments: list[str], use: Callable[[], None]
) -> dict[str, Reader]:

    def parse(arguments: list[str]) -> None:
        _define(module)
        with flagsaver.flagsaver():
            program_flags.parse(flags.FLAGS, [module.__name__, *arguments])
            use()

    def read(folder: pathlib.Path) -> None:
        parse(_text(folder, "given").split("\n"))

    def read_file(folder: pathlib.Path) -> None:
        parse([f"--flagfile={folder / 'given'}"])

    content = "\n".join(arguments).encode()
    name = module.__name__.rpartition(".")[2]
    return {
        f"command line of {name}": _reader(content, read),
        f"flagfile of {name}": _reader(content, read_file),
    }


def _reader(content: bytes, read: Callable[[pathlib.Path], None]) -> Reader:
    raises = (UserError, SystemExit)
    return Reader({"given": content}, "given", read, raises, grows=False)


def _torch_file(name: str) -> Reader:
    """Tensors that `torch.save` has written."""
    return of_file("a.bin", (TORCH_FILES / name).read_bytes(), torch_files.read)


def _library(folder: pathlib.Path) -> None:
    page, arguments = io.StringIO(), _text(folder, "given").split("\n")
    with contextlib.redirect_stdout(page), contextlib.redirect_stderr(page):
        library_command.parse(arguments)


def text_readers() -> dict[str, Reader]:
    """Readers of data, descriptions, adapters and requests, by name."""
    config = dataclasses.asdict(BertConfig(vocab_size=9))
    record = {
        "base": {"path": "bert", "name": "bert", "fingerprint": "0" * 64},
        "method": "houlsby(size=2)",
        "task": {"name": "custom"},
        "bert_config": config,
        "tokenizer": {"do_lower_case": True},
        "versions": run_record.versions(),
    }
    checkpoint = {
        "checkpoint": b'model_checkpoint_path: "model.ckpt-3"\n',
        **_named("model.ckpt-3", write_bundle({"global_step": np.int64(3)})),
    }
    adapter, adapterhub = _artifact(), "adapterhub/houlsby_7"
    columns = WordColumns("0", "1")
    refused = (request_core.Refused,)
    return {
        "tsv": _table("tsv"),
        "csv": _table("csv"),
        "jsonl": _table("jsonl"),
        "label sets": _table("label sets", multi_label=True),
        "numbers": _table("numbers", regression=True),
        "conll": _path("conll", read_sentences),
        "tags jsonl": _path("tags jsonl", read_sentences),
        "tag columns": _path(
            "conll", lambda path: read_sentences(path, columns, True, True)
        ),
        "map of tags": _path("map of tags", read_map),
        "squad": _path("squad", lambda path: read_questions(path, False)),
        "squad 2": _path("squad", lambda path: read_questions(path, True)),
        "bert config": of_file(
            "config.json", as_json(config), BertConfig.from_json_file
        ),
        "vocabulary": _path("vocabulary", read_vocabulary),
        "vocabulary in JSON": _path("vocabulary in JSON", read_vocabulary),
        "text": _sample("text", _tokenize),
        "method": _sample("method", lambda folder: parse(_text(folder))),
        "run.json": Reader(
            {"run.json": as_json(record)},
            "run.json",
            lambda folder: run_record.read_run(str(folder)),
        ),
        "dev scores": _sample(
            "dev scores", lambda folder: dev_scores.read(str(folder))
        ),
        "adapter": adapter,
        "adapter's weights": _weights(adapter),
        "library entry": _entry(adapter),
        "list of checkpoints": Reader(
            checkpoint,
            "checkpoint",
            lambda folder: training_state.latest_step(str(folder)),
        ),
        "rows.jsonl": _path("rows.jsonl", _rows),
        "rows.csv": _path("rows.csv", _rows),
        "rows": _path("rows", _rows),
        "lines in bulk": _sample("lines in bulk", _questions),
        "adapterhub": _foreign(adapterhub, "adapter_config.json"),
        "adapterhub head": _foreign(adapterhub, "head_config.json"),
        "adapterhub weights": _foreign(adapterhub, "adapter.safetensors"),
        "peft": _foreign("peft/lora_7", "adapter_config.json"),
        "peft patterns": _foreign("peft/lora_patterns", "adapter_config.json"),
        "peft weights": _foreign("peft/lora_7", "adapter_model.safetensors"),
        "torch file": _torch_file("views.zip.bin"),
        "older torch file": _torch_file("views.older.bin"),
        "rest": _sample("rest", _post, refused),
        "rest columns": _sample("rest columns", _post, refused),
    }


def model_readers() -> dict[str, Reader]:
    """Readers of models and of what they come in, by name."""
    tensors = {
        "bert.pooler.dense.weight": np.ones((2, 2), np.float32),
        "bert.embeddings.LayerNorm.bias": np.ones(2, np.float32),
    }
    return {
        "safetensors": of_file(
            "a.safetensors",
            as_tensors(tensors),
            lambda path: _read_all(open_safetensors(path)),
        ),
        "checkpoint's index": _checkpoint(".index"),
        "checkpoint's data": _checkpoint(".data-00000-of-00001"),
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


def flag_readers() -> dict[str, Reader]:
    """Readers of command lines, by name."""
    custom = [
        "--task_name=custom",
        "--label_column=label",
        "--dev_share=0.1",
        '--class_weights={"spam": 2.5}',
    ]
    squad = ["--n_best_size=20", "--doc_stride=64", "--max_query_length=64"]
    requests = "--library=shelf --task=a,b --init_checkpoint=bert".split()
    limits = ["--model=exported", "--port=8501", "--max_rows=10"]
    library = "import\nshelf\nfolder\n--name=a\n--init_checkpoint=b\n--label=c"
    return {
        **_program(run_classifier, [*SHARED, *custom], _classifier),
        **_program(run_squad, [*SHARED[:-1], *squad], _squad),
        **_program(run_tagger, SHARED, run_from_flags.tuning_method),
        **_program(run_mlm, SHARED, run_from_flags.tuning_method),
        **_program(predict, requests, adapter_flags.read_flags),
        **_program(
            serve,
            limits,
            lambda: serve.limits_of(program_flags.read(serve.Serving)),
        ),
        "command line of library": _reader(library.encode(), _library),
    }


def readers() -> dict[str, Reader]:
    """All readers by name."""
    return {**text_readers(), **model_readers(), **flag_readers()}
