"""Adapters of the tiny BERT with random values, made without training."""

import dataclasses
import threading

import numpy as np
import safetensors.numpy
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints import adapter_artifact, sources
from adapter_bert.checkpoints.sources import open_init_checkpoint
from adapter_bert.checkpoints.weights import identify
from adapter_bert.methods.base import PARTS
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.task_model import TaskModel

CLASSIFICATION = {"name": "custom", "labels": ["bad", "good"], "pairs": False}
LENGTH = 24
# The adapters of `make_library`.
LIBRARY = {
    "a": "pfeiffer(size=4)",
    "b": "pfeiffer(size=8)",
    "norms": "houlsby(size=4)",
    "sparse": "lt_sft(sparsity=0.02)",
    "low": "lora(rank=2)",
}


def read_base(folder):
    """The weights of a BERT, its sizes, and which it is."""
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
        stored = adapter_artifact.changes(
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
                open_init_checkpoint(str(bert)), config
            ).describe(),
            "bert_config": dataclasses.asdict(config),
            "training": {"max_seq_length": LENGTH},
            **more,
        },
        stored,
    )
    return kept, values


def make_library(folder, bert):
    """Writes the adapters of `LIBRARY`, of a classification."""
    for number, (name, text) in enumerate(LIBRARY.items()):
        make_artifact(folder / name, bert, text, seed=number)
    # Of which only a few entries are left as they were changed.
    config = adapter_artifact.read_config(str(folder / "sparse"))
    values = safetensors.numpy.load_file(
        folder / "sparse" / "adapter.safetensors"
    )
    few = {
        name: value[:5] if name.startswith("bert/") else value
        for name, value in values.items()
    }
    adapter_artifact.write(str(folder / "sparse"), config, few)
    return folder


def outputs_of(bert, method, values, task, features):
    """The head's outputs of each row alone, computed without any sharing."""
    weights, config, _ = read_base(bert)
    table = task_model.list_parameters(config, method, task.build_head)
    own = {p.name: p for p in table.parameters}

    def create(name, shape, initializer):
        p = own[name]
        if name in values:
            return tf.Variable(values[name], trainable=p.trained)
        if p.is_added:
            value = encoder.initial_values(name, shape, initializer, 0)
            return tf.Variable(value, trainable=False)
        return tf.Variable(weights.read(name), trainable=False)

    model = TaskModel(config, method, task.build_head, create)
    rows = []
    for tokens, segments in features:
        batch = {
            "input_ids": tf.constant([tokens]),
            "input_mask": tf.ones([1, len(tokens)], tf.int32),
            "segment_ids": tf.constant([segments]),
        }
        found = model(batch, Context(batch["input_mask"]))
        rows.append({name: value.numpy()[0] for name, value in found.items()})
    return rows


def run_while_changing(change, works):
    """Runs each work in a thread, while another one changes things.

    Args:
        change: a function, called again and again with 0, 1, 2, ...
        works: functions without arguments.
    """
    done = threading.Event()

    def keep_changing():
        number = 0
        while not done.is_set():
            change(number)
            number += 1

    changing = threading.Thread(target=keep_changing)
    threads = [threading.Thread(target=work) for work in works]
    for thread in [changing, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    changing.join()
