"""What strangers have made is data: nothing of it is run as a program."""

import copy
import itertools
import json
import os
import pickle
import re
import types
import zipfile
from io import BytesIO

import numpy as np
import pytest
import tensorflow as tf
import yaml
from conftest import ROOT, TINY_WORDS, read_adapter
from hub_modules import write_tf2
from test_architecture import attributes, sources
from test_security_promises import JSON_READERS

from adapter_bert.bert.config import BertConfig
from adapter_bert.checkpoints import sources as models
from adapter_bert.checkpoints.hugging_face import open_safetensors
from adapter_bert.commands import predict
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.errors import UserError
from adapter_bert.exchange import foreign_adapters
from adapter_bert.library import adapter_library as library
from adapter_bert.training.frozen_outputs import FrozenLayers
from lab.trials import fuzz_inputs, fuzz_targets

pytestmark = pytest.mark.newer_stack


class Program:
    """A pickle that makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize(
    "file",
    [
        "adapter_config.json", "adapter.safetensors",
        "adapter_model.safetensors",
        "adapter_model.bin", "pytorch_adapter.bin", "head_config.json",
        "model.safetensors", "pytorch_model.bin", "tf_model.h5",
        "bert_model.ckpt.index", "saved_model.pb", "checkpoint", "config.json",
        "vocab.txt", "tokenizer.json", "run.json", "bert.zip", "bert.tar.gz",
        "train.tsv", "train.jsonl", "weights.npz",
    ],
)  # fmt: skip
def test_a_pickle_is_run_nowhere(tmp_path, file):
    """Whatever it is called, and whoever reads the folder or the file."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / file
    path.write_bytes(pickle.dumps(Program(str(tmp_path / "was run"))))
    config = BertConfig(9)
    frozen = types.SimpleNamespace(path=str(path), _shape=(1,), _dtype="f4")
    for read in (
        lambda: models.open_init_checkpoint(str(folder)),
        lambda: models.open_init_checkpoint(str(path)),
        lambda: foreign_adapters.read_all(str(folder), config),
        lambda: read_adapter(folder),
        lambda: library.check(str(folder)),
        lambda: open_safetensors(str(path)),
        lambda: BertConfig.from_json_file(str(path)),
        lambda: FullTokenizer(str(path)),
        lambda: FrozenLayers._open(frozen),
    ):
        try:
            read()
        except UserError as error:
            assert "\n" not in str(error)
    assert os.listdir(tmp_path) == ["folder"]
    pickle.loads(path.read_bytes())
    assert (tmp_path / "was run").exists()


def test_exported_models_alone_are_loaded_as_programs():
    """They, and libraries of other programs' operations, can do anything."""
    loading = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in sources().values()
        for name in attributes(path)
        if name.split(".")[-1]
        in (
            "load_library",
            "load_model",
            "load_op_library",
            "load_file_system_library",
        )
        or name.endswith(("saved_model.load", "loader.load"))
        or name == "import_graph_def"
    }
    assert loading == {
        ("adapter_bert/graph/exported.py", "tf.saved_model.load")
    }


class WritesWhenLoaded(tf.saved_model.experimental.TrackableResource):
    """A part of a SavedModel whose graph writes a file to be initialized."""

    def __init__(self, path):
        super().__init__()
        self._path = str(path)

    def _create_resource(self):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int32, shape=[], shared_name="program"
        )

    def _initialize(self):
        tf.io.write_file(self._path, "")


def test_a_module_is_read_and_not_loaded(tmp_path, tiny_weights):
    """Its graph would write a file."""
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(TINY_WORDS))
    was_run = tmp_path / "was run"
    program = WritesWhenLoaded(was_run)
    module = write_tf2(
        tmp_path / "module", vocabulary, tiny_weights, 2, program=program
    )
    was_run.unlink(missing_ok=True)
    opened = models.open_init_checkpoint(str(module))
    for name in tiny_weights:
        opened.weights.read(name)
    assert not was_run.exists()
    tf.saved_model.load(str(module))
    assert was_run.exists()


# Texts that make a folder, each by what would run it.
PROGRAMS = {
    "__import__('os').mkdir('{path}')": eval,
    "!!python/object/apply:os.mkdir ['{path}']": yaml.unsafe_load,
    "$(mkdir '{path}')": os.system,
}


def zipped(name, content):
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def numpy_file(value):
    file = BytesIO()
    np.save(file, value, allow_pickle=True)
    return file.getvalue()


def load_numpy(content):
    loaded = np.load(BytesIO(content), allow_pickle=True)
    return loaded["a"] if isinstance(loaded, np.lib.npyio.NpzFile) else loaded


def load_torch(content):
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return pickle.loads(archive.read("archive/data.pkl"))


def pickles(path):
    """Files that make a folder, and what would run each."""
    program = Program(path)
    array = numpy_file(np.array([program], object))
    return [
        (pickle.dumps(program), pickle.loads),
        (array, load_numpy),
        (zipped("a.npy", array), load_numpy),
        (zipped("archive/data.pkl", pickle.dumps(program)), load_torch),
    ]


def test_what_data_must_not_run_can_be_run(tmp_path):
    path = tmp_path / "was run"
    texts = [(text.format(path=path), run) for text, run in PROGRAMS.items()]
    for program, run in [*texts, *pickles(str(path))]:
        run(program)
        path.rmdir()


def with_values_replaced(value, text):
    """JSON, each time with another one of its values replaced."""
    yield text
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)
    # Of many the rest are alike.
    for key, old in itertools.islice(items, 20):
        for part in with_values_replaced(old, text):
            changed = copy.copy(value)
            changed[key] = part
            yield changed


def with_words_replaced(content, text):
    """A text, each time with another one of its words replaced."""
    for word in re.finditer(rb"\w+", content):
        yield content[: word.start()] + text.encode() + content[word.end() :]


DATA_READERS = {**fuzz_targets.text_readers(), **fuzz_targets.model_readers()}
# They take any bytes for a text, any file in an archive, or need no list.
TAKE_ALL = (
    "text",
    "lines in bulk",
    "zip",
    "zip, stored",
    "list of checkpoints",
)


def is_text(content):
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("name", DATA_READERS)
def test_data_run_nothing(tmp_path, name):
    """Programs in the place of a file, and of each value and word in it."""
    reader, was_run = DATA_READERS[name], tmp_path / "was run"
    folder = tmp_path / "folder"
    folder.mkdir()
    for file, content in reader.files.items():
        (folder / file).write_bytes(content)
    right = reader.files[reader.changed]
    inputs = []
    for text in PROGRAMS:
        text = text.format(path=was_run)
        inputs.append(text.encode())
        if name in JSON_READERS:
            values = with_values_replaced(json.loads(right), text)
            inputs += [json.dumps(value).encode() for value in values]
        elif is_text(right):
            inputs += with_words_replaced(right, text)
    for content in inputs:
        outcome = fuzz_inputs.try_input(reader, folder, content)
        assert outcome in ("taken", "refused"), content
        assert not was_run.exists(), content
    for content, _ in pickles(str(was_run)):
        outcome = fuzz_inputs.try_input(reader, folder, content)
        assert outcome == "refused" or name in TAKE_ALL, (outcome, content)
        assert not was_run.exists(), content


def test_texts_stay_as_they_are(tmp_path, monkeypatch):
    """Not as formulas, formats, templates or names of other files."""
    monkeypatch.chdir(tmp_path)
    texts = ("=cmd|' /C calc'!A0", "{0.__class__}", "${jndi:x}", "@/etc/passwd")
    table = "text\tlabel\n" + "".join(
        f"{t}\t{n}\n" for n, t in enumerate(texts)
    )
    (tmp_path / "train.tsv").write_text(table)
    task = fuzz_targets.readers()["tsv"]
    task.read(tmp_path)
    rows = list(
        predict.row_stream.file_rows("train.tsv", [["text"]], lambda _: None)
    )
    assert [row[0] for row, _ in rows] == list(texts)
    assert os.listdir(tmp_path) == ["train.tsv"]
