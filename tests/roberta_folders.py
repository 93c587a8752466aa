"""What `roberta` and `xlm-roberta` of the recordings are."""

import dataclasses
import shutil
from typing import Any

import numpy as np
import pytest
from conftest import open_checkpoint, read_json, write_json

from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints.sources import read_config, read_tokenizer
from adapter_bert.checkpoints.weights import Pretrained
from adapter_bert.data.tokenization import TextTokenizer

NAMES = ("roberta", "xlm-roberta")
BOTH = pytest.mark.parametrize("name", NAMES)
FILES = ("config.json", "model.safetensors", "tokenizer.json")


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A model, what was opened of it, and what was recorded."""

    opened: Pretrained
    config: BertConfig
    tokenizer: TextTokenizer
    tokens: dict[str, Any]
    values: dict[str, np.ndarray]


def read_recorded(golden_dir, name):
    """Opens the recording of a name."""
    folder = golden_dir / "roberta" / name
    opened = open_checkpoint(folder)
    config = read_config(opened)
    with np.load(folder / "expected.npz") as values:
        return Recorded(
            opened,
            config,
            read_tokenizer(opened, config),
            read_json(folder / "expected.json"),
            dict(values),
        )


def copy_roberta(golden_dir, place):
    """A copy of the RoBERTa's folder, with the files that are published."""
    copied = place / "roberta"
    copied.mkdir()
    for name in FILES:
        shutil.copy(golden_dir / "roberta" / "roberta" / name, copied)
    return copied


def open_tokenizer(folder, **arguments):
    """Reads the tokenizer of a folder."""
    opened = open_checkpoint(folder)
    config = read_config(opened)
    return read_tokenizer(opened, config, **arguments)


def change(path, function):
    """Rewrites a JSON file."""
    content = read_json(path)
    function(content)
    write_json(path, content)


def drop(*keys):
    *path, last = keys

    def function(content):
        for key in path:
            content = content[key]
        del content[last]

    return function


def put(value, *keys):
    *path, last = keys

    def function(content):
        for key in path:
            content = content[key]
        content[last] = value

    return function
