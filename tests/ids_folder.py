"""Folders of TensorFlow Lite and ONNX Runtime, as a user reads them."""

import importlib.util

import numpy as np
import pytest
import tokenizers
from conftest import read_json

from adapter_bert.graph import runtimes
from adapter_bert.graph.runtimes import ONNX, TFLITE

HAS_ONNX = all(map(importlib.util.find_spec, runtimes.ONNX_PACKAGES))
FORMS = [
    TFLITE,
    pytest.param(
        ONNX,
        marks=pytest.mark.skipif(
            not HAS_ONNX,
            reason="test_onnx_in_its_environment runs it where `make onnx` has",
        ),
    ),
]


class Folder:
    """A folder, without this project."""

    def __init__(self, place, form):
        runtime = runtimes.RUNTIMES[form]
        self.described = read_json(place / "task.json")
        self.size = (place / runtime.file).stat().st_size
        self.run = runtime.load(str(place / runtime.file))
        path = str(place / "tokenizer.json")
        self.tokenizer = tokenizers.Tokenizer.from_file(path)
        self.tokenizer.enable_padding()

    def batch(self, rows):
        """Inputs of texts, pairs, or lists of pairs of a row's choices."""
        of_choices = isinstance(rows[0], list)
        flat = [pair for row in rows for pair in row] if of_choices else rows
        encoded = self.tokenizer.encode_batch(flat)
        shape = [len(rows), *[-1] * of_choices, len(encoded[0].ids)]
        columns = {
            "input_ids": [row.ids for row in encoded],
            "input_mask": [row.attention_mask for row in encoded],
            "segment_ids": [row.type_ids for row in encoded],
        }
        return {
            name: np.array(x, np.int32).reshape(shape)
            for name, x in columns.items()
        }

    def ask(self, rows):
        return self.run(self.batch(rows))
