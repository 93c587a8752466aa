"""Merges trained adapters into their BERT, or several of them into one.

    .venv/bin/adapter-bert merge --init_checkpoint=BERT \
        --adapter=RUN/adapter --output_dir=MERGED

The result is a plain BERT in Google's form (`bert_model.ckpt`,
`bert_config.json`, `vocab.txt`). It computes what BERT and adapter did. It has
the task's head if there is one adapter, of weight 1. `bert_config.json` then
names the head's labels and kind, as Hugging Face's configs do. The labels are
sorted, as `run_classifier.py` sorts those of a table. The `gelu` of a BERT from
Hugging Face is called `gelu_erf` there; Google's own program does not know this
name.

The changes of several adapters are added up, each times its number in --weights
(task arithmetic, Ilharco et al. 2023). Methods that add computation to BERT
cannot be merged.

The result is an adapter if --average is given: the weighted mean of the
parameters of adapters of one method and task, heads included (Chronopoulou et
al. 2023). All methods can be averaged.
"""

import math
import os
from typing import Any, Dict, Iterable, List, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import command_line, files
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import (
    adapter_artifact,
    google,
    run_record,
    sources,
)
from adapter_bert.checkpoints.hugging_face import describe_head
from adapter_bert.checkpoints.weights import (
    Weights,
    check_shape,
    identify,
    with_labels,
)
from adapter_bert.checkpoints.written_form import (
    GOOGLE,
    check_form,
    check_free,
    write_model,
    write_vocabulary,
)
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.base import PARTS
from adapter_bert.tasks import from_description, kinds
from adapter_bert.tasks.text_regression import LabelUnit

# Fields in which adapters must agree to have a mean.
ALIKE = ("method", "parts", "carries_parts", "task")
# Fields that the mean has from the adapters.
KEPT = (
    *ALIKE,
    "trained_with",
    "base",
    "tokenizer",
    "task_settings",
    "bert_config",
)


def merge(
    base: Weights, folders: List[str], weights: List[float]
) -> Dict[str, Any]:
    """Reads adapters and adds them to the base, each times its weight.

    Returns:
        Arguments of `write_model`: `config`, `values` and `head`.

    Raises:
        UserError: an adapter cannot be read or merged, or is of another BERT;
            or the result cannot be written in Google's form.
    """

    def read(folder: str) -> adapter_artifact.Artifact:
        artifact = read_adapter(base, folder)
        check_form(run_record.bert_config(artifact.config, folder), GOOGLE)
        return artifact

    return add(base, map(read, folders), weights)


def add(
    base: Weights,
    artifacts: Iterable[adapter_artifact.Artifact],
    weights: List[float],
) -> Dict[str, Any]:
    """Adds adapters to their base, as `merge` does.

    Raises:
        UserError: an adapter cannot be merged, or its head has no place in a
            plain BERT.
    """
    sums: Dict[str, np.ndarray] = {}
    values: Dict[str, np.ndarray] = {}
    config, head = None, {}
    for artifact, weight in zip(artifacts, weights):
        config = run_record.bert_config(
            artifact.config, artifact.weights.source
        )
        method = registry.parse(artifact.config["method"])
        trained = {
            name: artifact.weights.read(name)
            for name in artifact.weights.shapes
        }
        merged = method.merge(config, base.read, trained)
        for name, value in merged.items():
            change = weight * (value - base.read(name))
            sums[name] = sums[name] + change if name in sums else change
        if weights == [1.0]:
            # Without the rounding of a sum of differences.
            values.update(merged)
            own, head = head_of(artifact, config)
            values.update(own)
    for name in encoder.list_variables(config):
        if name in base.shapes and name not in values:
            change = sums.get(name)
            value = base.read(name)
            values[name] = value if change is None else value + change
    return {"config": config, "values": values, "head": head}


def head_of(
    artifact: adapter_artifact.Artifact, config: encoder.BertConfig
) -> Tuple[Dict[str, np.ndarray], Dict[str, Any]]:
    """Values of an adapter's head for a plain BERT, and fields of its config.

    Raises:
        UserError: the head has a form that only an adapter can describe, or
            does not fit its labels.
    """
    source, described = artifact.weights.source, artifact.config["task"]
    settings = artifact.config.get("task_settings", {})
    task = from_description.restore_task(described, settings, source)
    if "head" in described:
        raise UserError(
            f"{source} has a head of another form, {described['head']}, of "
            "which a plain BERT cannot tell; use the adapter as it is"
        )
    weights, kind = artifact.weights, kinds.kind_of(described)
    labels = list(described.get("labels") or described.get("tags") or ())
    if kind in (kinds.CLASSIFICATION, kinds.MULTI_LABEL):
        labels = list(task.labels)
        if described["name"] == "custom":
            # Labels of another program's adapter may be in any order.
            shape = len(labels), config.hidden_size
            check_shape(weights, "output_weights", shape)
            check_shape(weights, "output_bias", shape[:1])
            weights = with_labels(weights, labels, sorted(labels))
            labels = sorted(labels)
    values = {
        name: weights.read(name)
        for name in weights.shapes
        if not name.startswith("bert/")
    }
    if kind == kinds.REGRESSION:
        # A plain BERT has no place for a unit.
        names = "output_weights", "output_bias"
        unit = LabelUnit.restore(described, source)
        values.update(zip(names, unit.join(*map(weights.read, names))))
    return values, describe_head(kind, labels)


def average(
    base: Weights, folders: List[str], weights: List[float]
) -> Tuple[Dict[str, Any], Dict[str, np.ndarray]]:
    """The weighted mean of adapters' parameters.

    Args:
        base: the BERT of the adapters.
        folders: of the adapters.
        weights: one for each, which are divided by their sum.

    Returns:
        The mean's description, and its values; parts of the adapters, which
        are the same for all, stay as they are.

    Raises:
        UserError: an adapter cannot be read, is of another BERT, or of another
            method, task or parts than the first.
    """
    sums: Dict[str, np.ndarray] = {}
    averaged: List[Dict[str, Any]] = []
    first, own = None, {}
    for folder, weight in zip(folders, weights):
        artifact = read_adapter(base, folder)
        if first is None:
            first = artifact
            own = encoder.list_variables(
                run_record.bert_config(first.config, folder)
            )
        for key in ALIKE:
            ours, others = artifact.config.get(key), first.config.get(key)
            if ours != others:
                raise UserError(
                    f"{folder} has the {key} {ours}, but {folders[0]} "
                    f"{others}; only adapters with one method, one task and "
                    "the same parts have a mean"
                )
        averaged.append({"sha256": artifact.config["sha256"], "weight": weight})
        for name in artifact.weights.shapes:
            value = artifact.weights.read(name)
            if name.startswith(PARTS):
                sums[name] = value
                continue
            # The mean of differences keeps what did not change.
            before = base.read(name) if name in own else 0.0
            change = (value - before) * (weight / sum(weights))
            sums[name] = sums.get(name, before) + change
    values = {name: value.astype(np.float32) for name, value in sums.items()}
    text = first.config.get("trained_with") or first.config["method"]
    if registry.parse(text).changes_few:
        values = adapter_artifact.changes(values, base.read, own)
    values = adapter_artifact.few(values)
    found = {key: first.config[key] for key in KEPT if key in first.config}
    length = first.config.get("training", {}).get("max_seq_length")
    found["training"] = {"max_seq_length": length}
    found["parameters"] = {"kept": adapter_artifact.count(values)}
    found["averaged"] = averaged
    return found, values


def read_adapter(base: Weights, folder: str) -> adapter_artifact.Artifact:
    """Reads an adapter; raises UserError if it is of another BERT."""
    artifact = adapter_artifact.read(folder, base)
    config = run_record.bert_config(artifact.config, folder)
    known = identify(base, encoder.list_variables(config))
    if known.fingerprint != artifact.config["base"]["fingerprint"]:
        raise UserError(
            f"{folder} was trained on another BERT than {base.source}"
        )
    return artifact


def read_weights(text: str, count: int, positive: bool) -> List[float]:
    """The weight of each of `count` adapters; raises UserError for others."""
    try:
        weights = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        weights = [math.nan]
    weights = weights or [1.0] * count
    least = 0.0 if positive else -math.inf
    if len(weights) != count or not all(least < w < math.inf for w in weights):
        raise UserError(
            f"--weights is {text!r}, expected {count} "
            f"{'positive ' if positive else ''}numbers with commas between "
            "them, one for each --adapter"
        )
    return weights


def main() -> None:
    """Merges the adapters that the arguments name."""
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--init_checkpoint", required=True, help="the BERT")
    parser.add_argument(
        "--adapter",
        required=True,
        action="append",
        help="folder of a trained adapter; repeat it for several adapters",
    )
    parser.add_argument(
        "--weights",
        default="",
        help="one number per adapter, as 0.5,0.5; default: 1 each",
    )
    parser.add_argument(
        "--average",
        action="store_true",
        help="write the mean of several adapters as an adapter, not a BERT",
    )
    parser.add_argument(
        "--vocab_file",
        default="",
        help="vocabulary of the merged BERT, if none lies next to the BERT",
    )
    parser.add_argument(
        "--output_dir", required=True, help="folder for the result"
    )
    arguments = parser.parse_args()
    folder, adapters = arguments.output_dir, arguments.adapter
    google.check_name(folder, "--output_dir")
    weights = read_weights(arguments.weights, len(adapters), arguments.average)
    opened = sources.open_init_checkpoint(arguments.init_checkpoint)
    if arguments.average:
        if files.exists(os.path.join(folder, adapter_artifact.CONFIG_FILE)):
            raise UserError(f"{folder} holds an adapter; choose another folder")
        description, values = average(opened.weights, adapters, weights)
        files.prepare_folder(folder)
        adapter_artifact.write(folder, description, values)
        print(f"the averaged adapter is {folder}")
        return
    check_free(folder)
    vocabulary = arguments.vocab_file or sources.find_vocabulary(opened)
    tokenizer = FullTokenizer(vocabulary)
    found = merge(opened.weights, adapters, weights)
    files.prepare_folder(folder)
    write_vocabulary(folder, vocabulary, tokenizer)
    prefix = write_model(folder, GOOGLE, **found)
    print(f"the merged BERT is {prefix}")
