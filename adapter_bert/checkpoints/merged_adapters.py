"""One adapter of several: what is read of them, and what is written.

`methods/weighted_sums.py` has the mathematics of the methods' values. A head
is the weighted mean of the adapters' heads, since sums would change what its
outputs are: scores, logarithms of odds, a label's unit.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert.bert import encoder
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import (
    adapter_artifact,
    changed_entries,
    run_record,
)
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.weights import (
    OUTPUTS,
    POOLER,
    Weights,
    check_shape,
    identify,
)
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.base import PARTS, TuningMethod, Values
from adapter_bert.methods.weighted_sums import WeightedSum
from adapter_bert.tasks.novelty import NOVELTY
from adapter_bert.tasks.text_task import CALIBRATION

# Fields in which all adapters must agree.
ALIKE = ("parts", "carries_parts", "tokenizer")
# Fields that the sum has from the adapters.
KEPT = (*ALIKE, "trained_with", "base", "bert_config")
# Fields of its head's adapter.
OF_HEAD = ("task", "task_settings")
# Fields of a task that name a head's outputs, in their order.
NAMES = ("labels", "tags")


def merge_adapters(
    base: Weights,
    folders: Sequence[str],
    weights: Sequence[float],
    how: WeightedSum,
    head_of: str = "",
) -> tuple[dict[str, Any], Values]:
    """Adds adapters up.

    Args:
        base: the BERT of the adapters.
        folders: of the adapters.
        weights: one for each.
        how: they are added.
        head_of: the folder of the adapter whose task and head are taken as
            they are; "" is for the mean of all heads.

    Returns:
        The sum's description, and its values.
    """
    artifacts = [read_adapter(base, folder) for folder in folders]
    first = artifacts[0]
    for artifact, folder in zip(artifacts, folders):
        for key in ALIKE:
            ours, others = artifact.config.get(key), first.config.get(key)
            if ours != others:
                raise UserError(
                    f"{folder} has the {key} {ours}, but {folders[0]} "
                    f"{others}; only adapters with the same {key} can be merged"
                )
    config = run_record.bert_config(first.config, folders[0])
    methods = [registry.parse(one.config["method"]) for one in artifacts]
    bodies, heads = zip(
        *(
            _divide(artifact, base, config, method)
            for artifact, method in zip(artifacts, methods)
        )
    )
    method, values = how.merge(config, base.read, methods, bodies, weights)
    chosen = first
    if head_of:
        number = folders.index(head_of)
        chosen, head = artifacts[number], heads[number]
    else:
        head = _mean_head(artifacts, folders, heads, weights)
    values = {**values, **head}
    description = {
        key: first.config[key] for key in KEPT if key in first.config
    }
    description["method"] = str(method)
    if str(method) != first.config["method"]:
        # No training came to this sum.
        description.pop("trained_with", None)
    description.update(
        (k, chosen.config[k]) for k in OF_HEAD if k in chosen.config
    )
    settings = dict(description.get("task_settings", {}))
    for name, fitted_to in (
        (CALIBRATION, "other logits"),
        ("label_thresholds", "other logits"),
        (NOVELTY, "one adapter's training rows"),
    ):
        if settings.pop(name, None) is not None:
            logging.warning(
                "the merged adapter has no %s: %s had one, fitted to %s",
                name,
                chosen.weights.source,
                fitted_to,
            )
            description["task_settings"] = settings
    length = chosen.config.get("training", {}).get("max_seq_length")
    description["training"] = {"max_seq_length": length}
    text = first.config.get("trained_with") or str(method)
    if registry.parse(text).changes_few:
        shapes = encoder.list_variables(config)
        values = changed_entries.changes(values, base.read, shapes)
    values = changed_entries.few(values)
    description["parameters"] = {"kept": adapter_artifact.count(values)}
    description["merged"] = {
        **{k: v for k, v in dataclasses.asdict(how).items() if v is not None},
        "adapters": [
            {"sha256": artifact.config["sha256"], "weight": weight}
            for artifact, weight in zip(artifacts, weights)
        ],
    }
    return description, values


def read_adapter(base: Weights, folder: str) -> Artifact:
    """Reads an adapter of this BERT."""
    artifact = adapter_artifact.read(folder, base)
    config = run_record.bert_config(artifact.config, folder)
    pretrained = identify(base, encoder.list_variables(config))
    if pretrained.fingerprint != artifact.config["base"]["fingerprint"]:
        raise UserError(
            f"{folder} was trained on another BERT than {base.source}"
        )
    return artifact


def _divide(
    artifact: Artifact, base: Weights, config: BertConfig, method: TuningMethod
) -> tuple[Values, Values]:
    weights = artifact.weights
    pooler = any(name.startswith(POOLER) for name in base.shapes)
    added = method.variables(config, pooler)
    of_bert = encoder.list_variables(config, pooler)
    for name in weights.shapes:
        if name in of_bert:
            check_shape(weights, name, base.shapes[name])
    for name, declared in added.items():
        if declared.trained:
            check_shape(weights, name, declared.shape)
    body: Values = {}
    head: Values = {}
    for name in weights.shapes:
        is_body = name in added or name in of_bert or name.startswith(PARTS)
        (body if is_body else head)[name] = weights.read(name)
    return body, head


def _mean_head(
    artifacts: Sequence[Artifact],
    folders: Sequence[str],
    heads: Sequence[Values],
    weights: Sequence[float],
) -> Values:
    if any(heads) and min(weights) <= 0:
        raise UserError(
            "heads have no mean with weights that are not positive; pass the "
            "adapter whose task and head to keep as --head_of"
        )
    first = artifacts[0].config["task"]
    mean: Values = {}
    for artifact, folder, head, weight in zip(
        artifacts, folders, heads, weights
    ):
        task = artifact.config["task"]
        order = _order(task, first)
        shapes = {name: value.shape for name, value in head.items()}
        if order is None or shapes != {k: v.shape for k, v in heads[0].items()}:
            raise UserError(
                f"{folder} has the task {task}, but {folders[0]} {first}; only "
                "heads of one task, with the same labels in any order, have a "
                "mean; pass the adapter whose task and head to keep as "
                "--head_of"
            )
        for name, value in head.items():
            if order and name in OUTPUTS:
                value = value[order]
            share = np.float32(weight / sum(weights)) * value
            mean[name] = mean[name] + share if name in mean else share
    return mean


def _order(
    task: Mapping[str, Any], first: Mapping[str, Any]
) -> Optional[list[int]]:
    """Maps the first head's outputs to a head's; [] for the same order.

    None if the tasks differ by more than the order of labels.
    """
    if task == first:
        return []
    for key in NAMES:
        theirs, ours = task.get(key), first.get(key)
        if (
            isinstance(theirs, list)
            and {**task, key: ours} == first
            and len(set(theirs)) == len(theirs)
            and sorted(theirs) == sorted(ours)
        ):
            return [theirs.index(name) for name in ours]
    return None
