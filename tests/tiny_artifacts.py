"""Adapters of the tiny BERT with random values, made without training."""

from threading import Event, Thread

import tensorflow as tf
from conftest import read_adapter_config, read_json, write_json
from safetensors.numpy import load_file

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.tasks import task_model
from adapter_bert.tasks.task_model import TaskModel
from lab.random_adapters import (  # noqa: F401
    CLASSIFICATION,
    LENGTH,
    make_artifact,
    random_values,
    read_base,
)

# The adapters of `make_library`.
LIBRARY = {
    "a": "pfeiffer(size=4)",
    "b": "pfeiffer(size=8)",
    "norms": "houlsby(size=4)",
    "sparse": "lt_sft(sparsity=0.02)",
    "low": "lora(rank=2)",
}


def make_adapters(place, bert, tasks):
    """Writes adapters, and gives their folders by name.

    `tasks` has methods, tasks and, where they are not as always, settings.
    """
    for seed, (name, (method, task, *more)) in enumerate(tasks.items()):
        settings = {"task_settings": more[0]} if more else {}
        make_artifact(place / name, bert, method, None, task, seed, **settings)
    return {name: str(place / name) for name in tasks}


def edit_config(folder, **values):
    """Changes an adapter's description by hand."""
    path = folder / adapter_artifact.CONFIG_FILE
    config = {**read_json(path), **values}
    config.pop(files.SEAL, None)
    write_json(path, config)


def make_library(folder, bert):
    """Writes the adapters of `LIBRARY`, of a classification."""
    for number, (name, text) in enumerate(LIBRARY.items()):
        make_artifact(folder / name, bert, text, seed=number)
    # Of which only a few entries are left as they were changed.
    config = read_adapter_config(folder / "sparse")
    values = load_file(folder / "sparse" / "adapter.safetensors")
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
    parameters = {p.name: p for p in table.parameters}

    def create(name, shape, initializer):
        p = parameters[name]
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
        outputs = model(batch, Context(batch["input_mask"]))
        rows.append({name: value.numpy()[0] for name, value in outputs.items()})
    return rows


def run_while_changing(change, works):
    """Runs each work in a thread, while another one changes things.

    Args:
        change: a function, called again and again with 0, 1, 2, ...
        works: functions without arguments.
    """
    done = Event()

    def keep_changing():
        number = 0
        while not done.is_set():
            change(number)
            number += 1

    changing = Thread(target=keep_changing)
    threads = [Thread(target=work) for work in works]
    for thread in [changing, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    changing.join()
