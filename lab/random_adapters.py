"""Adapters with random values, made without training."""

import dataclasses

import numpy as np

from adapter_bert.bert import encoder
from adapter_bert.checkpoints import adapter_artifact, changed_entries, sources
from adapter_bert.checkpoints.sources import open_init_checkpoint
from adapter_bert.checkpoints.weights import identify
from adapter_bert.methods.base import PARTS
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.from_description import restore_task

CLASSIFICATION = {"name": "custom", "labels": ["bad", "good"], "pairs": False}
LENGTH = 24


def read_base(folder):
    """Returns the weights of a BERT, its sizes, and which it is."""
    opened = open_init_checkpoint(str(folder))
    config = sources.read_config(opened)
    base = identify(opened.weights, encoder.list_variables(config))
    return opened.weights, config, base


def random_values(table, weights, seed):
    """Values of all that is trained, near the base's where it has any.

    And of a composition's parts.
    """
    rng = np.random.default_rng(seed)
    values = {}
    for p in (p for p in table.parameters if p.trained or p.group == "parts"):
        noise = rng.normal(0, 0.2, p.shape).astype(np.float32)
        near = not p.is_added
        values[p.name] = weights.read(p.name) + noise if near else noise
    return values


def make_artifact(
    folder, bert, text, task=None, description=CLASSIFICATION, seed=0, **more
):
    """Writes an adapter of a method and a task, by default the described one.

    Returns:
        The method that its values are of, and all of these.
    """
    method = parse(text)
    task = task or restore_task(description, {}, "a test")
    weights, config, base = read_base(bert)
    table = task_model.list_parameters(config, method, task.build_head)
    values = random_values(table, weights, seed)
    kept, values = method.finish(config, values)
    stored = values
    if method.changes_few:
        stored = changed_entries.changes(
            values, weights.read, encoder.list_variables(config)
        )
    if task.name == "squad":
        # Questions leave room for contexts.
        more.setdefault("task_settings", {"max_query_length": LENGTH // 2})
    if kept.parts:
        more.setdefault("carries_parts", True)
        names = [part.name for part in kept.parts if part.name]
        more.setdefault("parts", dict.fromkeys(names, ""))
        if not more["carries_parts"]:
            stored = {k: v for k, v in stored.items() if k[:6] != PARTS}
    folder.mkdir(parents=True)
    adapter_artifact.write(
        str(folder),
        {
            "method": str(kept),
            "task": description,
            "base": base.describe(),
            "tokenizer": sources.read_tokenizer(
                open_init_checkpoint(str(bert)),
                config,
                new_tokens=[f"new{n}" for n in range(kept.new_words)],
            ).describe(),
            "bert_config": dataclasses.asdict(config),
            "training": {"max_seq_length": LENGTH},
            **more,
        },
        stored,
    )
    return kept, values
