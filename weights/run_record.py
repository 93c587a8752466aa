"""`run.json`: what a run in an output folder was, and whether another fits."""

import os
import platform
from typing import Any, Dict, Iterator, Tuple

import numpy as np
import tensorflow as tf
from absl import logging

import files
from errors import UserError

RUN_FILE = "run.json"
# Dotted key -> type of what a description holds there.
DESCRIPTION = {
    "method": str,
    "base": dict,
    "base.path": str,
    "base.fingerprint": str,
    "task": dict,
    "task.name": str,
    "tokenizer": dict,
    "bert_config": dict,
}

# Two runs are the same if they agree in these; `training` only counts for a
# run that trains.
IDENTITY = ("base", "tokenizer", "method", "task", "bert_config")
# What runs did that were recorded before they could do otherwise.
LATER = {"training.adam_bias_correction": False}


def versions() -> Dict[str, str]:
    """The versions that a run's numbers may depend on."""
    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
    }


def read_description(path: str, what: str) -> Dict[str, Any]:
    """Reads `run.json` or `adapter_config.json`.

    Raises:
        UserError: the file cannot be read, or lacks a part of `DESCRIPTION`.
    """
    description = files.read_json(path, what)
    for key, kind in DESCRIPTION.items():
        value = description
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            raise UserError(
                f"{path} is no description of a run: it has no {key} of type "
                f"{kind.__name__}"
            )
    return description


def write(output_dir: str, record: Dict[str, Any]) -> None:
    """Writes `run.json`."""
    files.write_json(os.path.join(output_dir, RUN_FILE), record)


def check(
    output_dir: str,
    record: Dict[str, Any],
    do_train: bool,
    partial: bool = False,
) -> None:
    """Compares a run with the one that a folder already holds.

    Args:
        output_dir: the folder; may be empty.
        record: of the new run.
        do_train: whether the new run trains.
        partial: whether the record will have more when data has been read;
            what it does not have is not compared.

    Raises:
        UserError: the folder holds another run; the message says what differs.
    """
    path = os.path.join(output_dir, RUN_FILE)
    if not tf.io.gfile.exists(path):
        if tf.train.latest_checkpoint(output_dir):
            raise UserError(
                f"{output_dir} holds checkpoints of another program (no "
                f"{RUN_FILE}); choose another --output_dir"
            )
        return
    old = read_description(path, "the run's description")
    keys = IDENTITY + (("training",) if do_train else ())
    differences = [
        f"{name} was {before!r}, now {now!r}"
        for key in keys
        for name, before, now in _compare(
            key, old.get(key), record[key], partial
        )
        if (before, now) != (None, LATER.get(name))
        # The same weights may lie at another path. Beside a dev or test set of
        # its own, nothing is held out.
        and name != "base.path"
        and (name, now) != ("task.held_out", None)
    ]
    if differences:
        raise UserError(
            f"{output_dir} holds a run with another configuration: "
            f"{'; '.join(differences)}; choose another --output_dir"
        )
    if partial:
        return
    for name, before, now in _compare(
        "versions", old.get("versions"), record["versions"]
    ):
        logging.warning(
            "%s was %s when this run began, now %s: bits may differ",
            name,
            before,
            now,
        )


def _compare(
    name: str, old: Any, new: Any, partial: bool = False
) -> Iterator[Tuple[str, Any, Any]]:
    """Yields (dotted name, old, new) for every leaf that differs.

    Of those that the new one does not have only if it is not partial.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(new) if partial else set(old) | set(new)):
            yield from _compare(
                f"{name}.{key}", old.get(key), new.get(key), partial
            )
    elif old != new:
        yield name, old, new
