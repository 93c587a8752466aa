"""What the tests of exchanged adapters share with one another."""

import functools
import pathlib
import shutil

import numpy as np
import pytest
from conftest import open_checkpoint, read_json, write_json
from safetensors.numpy import load_file, save_file

from adapter_bert.checkpoints import sources
from adapter_bert.exchange import foreign_adapters
from adapter_bert.exchange.foreign_base import exported
from lab import exchange


@functools.cache
def config_of(bert):
    return sources.read_config(open_checkpoint(bert))


def read_one(*arguments, **more):
    """Reads the one adapter of a folder, by arguments of `read_all`."""
    [foreign] = foreign_adapters.read_all(*arguments, **more).values()
    return foreign


def reader(golden):
    """Reads a recorded adapter by its name or its path."""

    def read(case, *arguments, **more):
        config = config_of(golden / "bert")
        folder = str(golden / case)
        return read_one(folder, config, *arguments, **more)

    return read


@pytest.fixture
def copied(request, tmp_path):
    """A copy of a recorded adapter, whose files may be changed."""

    def copy(case):
        source = request.module.GOLDEN / case
        return pathlib.Path(shutil.copytree(source, tmp_path / "copy"))

    return copy


def read_examples(folder):
    """Rows of a recorded folder: `input_ids`, ..., int [rows, tokens]."""
    while not (folder / "examples.npz").exists():
        folder = folder.parent
    with np.load(folder / "examples.npz") as file:
        return dict(file)


def change(path, **values):
    """Replaces parts of a JSON file; `a__b` is `b` in `a`."""
    content = read_json(path)
    for key, value in values.items():
        *parents, last = key.split("__")
        inner = content
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    write_json(path, content)


def change_tensors(path, function):
    tensors = function(load_file(path))
    save_file(tensors, path)


def without(words):
    """What leaves out the tensors whose names have these words."""
    return lambda tensors: {k: v for k, v in tensors.items() if words not in k}


def write(program, folder, artifact, name="x", **more):
    """Writes one of this project's adapters for a program."""
    ours = exported(artifact, name, **more)
    foreign_adapters.write(program, str(folder), ours, "a card")


def assert_same_values(values, expected):
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def assert_same_files(folder, recorded):
    """Compares JSON and tensors of all recorded files."""
    for path in recorded.glob("*.json"):
        assert read_json(folder / path.name) == read_json(path)
    for path in recorded.glob("*.safetensors"):
        assert_same_values(*map(load_file, (folder / path.name, path)))


def assert_computes(bert, artifact, folder):
    """Compares with what the other program computed in a recorded folder."""
    examples = read_examples(folder)
    gap = exchange.difference(bert, artifact, str(folder), examples)
    assert gap < 1e-5
