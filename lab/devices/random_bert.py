"""Writes a BERT of given sizes with random weights, as Hugging Face has it.

    .venv/bin/python -m lab.devices.random_bert CONFIG.json VOCAB.txt FOLDER

For programs whose weights are drawn where they run: only sizes matter.
"""

import pathlib
import shutil
import sys

import numpy as np
import safetensors.numpy

from adapter_bert.bert.config import BertConfig
from adapter_bert.bert.encoder import list_variables
from adapter_bert.checkpoints.hugging_face import hugging_face_name


def main() -> None:
    """Writes the folder; see the file's description."""
    config_file, vocabulary, folder = map(pathlib.Path, sys.argv[1:])
    config = BertConfig.from_json_file(str(config_file))
    chance = np.random.default_rng(1)
    values = {}
    for name, shape in list_variables(config).items():
        mean = 1.0 if name.endswith("gamma") else 0.0
        value = chance.standard_normal(shape, np.float32)
        value = mean + np.float32(config.initializer_range) * value
        theirs, transposed = hugging_face_name(name)
        values[theirs] = np.ascontiguousarray(value.T if transposed else value)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(config_file, folder / "config.json")
    shutil.copy(vocabulary, folder / "vocab.txt")
    safetensors.numpy.save_file(values, folder / "model.safetensors")


if __name__ == "__main__":
    main()
