"""Merges trained adapters into the weights of their BERT.

    python -m scripts.merge_adapter --init_checkpoint=BERT \
        --adapter=RUN/adapter --output_dir=MERGED

Writes a plain BERT as Google publishes them (`bert_model.ckpt`,
`bert_config.json`, `vocab.txt`) that computes what BERT and adapter did, with
the task's head if there is one adapter. (If the BERT came from Hugging Face,
its `gelu` is called `gelu_erf` there, which Google's program does not know.)
Of several adapters the changes are added up. Methods that add computation to
BERT cannot be merged.
"""

import argparse
import json
import os
from typing import Any, Dict, List

import start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf

import command_line
import files
import modeling
from errors import UserError
from methods import parsing
from weights import (
    adapter_artifact,
    google,
    run_record,
    sources,
    training_state,
)
from weights.base import Weights, identify


def merge(base: Weights, folders: List[str]) -> Dict[str, Any]:
    """Reads adapters and adds them to the base.

    Returns:
        `config`, the `modeling.BertConfig`; `values`, every variable by name.

    Raises:
        UserError: an adapter cannot be read or merged, or is of another BERT.
    """
    sums: Dict[str, np.ndarray] = {}
    values: Dict[str, np.ndarray] = {}
    config = None
    for folder in folders:
        artifact = adapter_artifact.read(folder, base)
        config = run_record.bert_config(artifact.config, folder)
        known = identify(base, modeling.list_variables(config))
        if not known.is_known_as(artifact.config["base"]["fingerprint"]):
            raise UserError(
                f"{folder} was trained upon another BERT than {base.source}"
            )
        method = parsing.parse(artifact.config["method"])
        trained = {
            name: artifact.weights.read(name)
            for name in artifact.weights.shapes
        }
        merged = method.merge(config, base.read, trained)
        for name, value in merged.items():
            change = value - base.read(name)
            sums[name] = sums[name] + change if name in sums else change
        if len(folders) == 1:
            # As it is: a sum of differences would round.
            values.update(merged)
            values.update(
                (name, value)
                for name, value in trained.items()
                if not name.startswith("bert/")
            )
    for name in modeling.list_variables(config):
        if name in base.shapes and name not in values:
            change = sums.get(name)
            value = base.read(name)
            values[name] = value if change is None else value + change
    return {"config": config, "values": values}


def main() -> None:
    """Merges what the arguments name.

    Raises:
        UserError: something cannot be read, merged or written.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--init_checkpoint", required=True, help="the BERT")
    parser.add_argument(
        "--adapter",
        required=True,
        action="append",
        help="folder of a trained adapter; may be given several times",
    )
    parser.add_argument("--output_dir", required=True, help="for the result")
    arguments = parser.parse_args()
    google.check_name(arguments.output_dir, "--output_dir")
    opened = sources.open_init_checkpoint(arguments.init_checkpoint)
    found = merge(opened.weights, arguments.adapter)
    vocabulary = os.path.join(opened.folder, "vocab.txt")
    words = files.read_bytes(vocabulary, "the vocabulary")
    folder = arguments.output_dir
    if files.exists(os.path.join(folder, "bert_config.json")):
        raise UserError(f"{folder} holds a BERT; choose another folder")
    files.prepare_folder(folder)
    prefix = os.path.join(folder, "bert_model.ckpt")
    try:
        training_state.save_tensors(prefix, found["values"])
    except (tf.errors.OpError, OSError) as error:
        raise UserError(f"cannot write {prefix}: {error}") from error
    files.write_bytes(os.path.join(folder, "vocab.txt"), words)
    config = vars(found["config"])
    files.write_text(
        os.path.join(folder, "bert_config.json"),
        json.dumps(config, indent=2) + "\n",
    )
    print(f"the merged BERT is {prefix}")


if __name__ == "__main__":
    command_line.run(main)
