"""A tuning method on the tiny BERT, outside of any engine."""

import numpy as np
import tensorflow as tf
from numpy.random import default_rng

from adapter_bert import optimization
from adapter_bert.bert.encoder import initial_values
from adapter_bert.bert.hooks import Context
from adapter_bert.data.tables import Layout
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.text_classification import TextClassification


def create_variable(name, shape, initializer, *, seed=0):
    """A float32 variable with fresh values."""
    values = initial_values(name, shape, initializer, seed)
    return tf.Variable(values, name=name)


TASK = TextClassification("tiny", Layout(0), Layout(0), labels=("a", "b"))


class TinyModel:
    """A method, also as text, on the tiny BERT, with fresh values.

    Layers are computed eagerly, one by one, or as runs do it: `is_shared`.
    """

    def __init__(self, config, method, is_shared=False):
        self.config, self.is_shared = config, is_shared
        if isinstance(method, str):
            method = parse(method)
        self.table = task_model.list_parameters(config, method, TASK.build_head)
        self.variables = {}
        parameters = {p.name: p for p in self.table.parameters}

        def read(name):
            p = parameters[name]
            return initial_values(name, p.shape, p.initializer, 3)

        def create(name, shape, initializer):
            assert name not in self.variables
            self.variables[name] = tf.Variable(
                initial_values(name, shape, initializer, 3, read),
                trainable=parameters[name].trained,
            )
            return self.variables[name]

        self.model = task_model.TaskModel(
            config, method, TASK.build_head, create
        )
        rng = default_rng(0)
        ids = rng.integers(0, config.vocab_size, (4, 9)).astype(np.int32)
        self.features = {
            "input_ids": tf.constant(ids),
            "segment_ids": tf.constant(ids % 2),
            "input_mask": tf.ones([4, 9], tf.int32),
            "label_ids": tf.constant([0, 1, 1, 0]),
        }

    def context(self, training=False, step=0):
        seed = tf.constant([1, step])
        return Context(
            self.features["input_mask"],
            training,
            seed,
            step_seed=seed,
            share_layers=self.is_shared,
        )

    def logits(self):
        return self.model(self.features, self.context())["logits"]

    def shake(self, scale=0.3, frozen=False):
        """Adds random values to what is trained, or to what is frozen too."""
        rng = default_rng(7)
        for p in self.table.parameters if frozen else self.table.trained:
            value = rng.normal(0, scale, p.shape).astype(np.float32)
            self.variables[p.name].assign_add(value)

    def encode(self, context=None, bert=None):
        """What the model's BERT, or another one, gives."""
        ids, segments = (
            self.features[name] for name in ("input_ids", "segment_ids")
        )
        bert = bert or self.model.bert
        return bert(ids, segments, context or self.context())

    def train_one_step(self, step=0):
        trained = [(p.name, self.variables[p.name]) for p in self.table.trained]
        optimizer = optimization.AdamWeightDecay(
            trained,
            {
                name: tf.Variable(tf.zeros(shape))
                for name, shape in self.table.slots.items()
            },
            # The rate of the first step is the peak's.
            optimization.Schedule(1e-3, 2**40, 0),
            self.table.recipe,
        )
        context = self.context(True, step)
        with tf.GradientTape() as tape:
            predictions = self.model(self.features, context)
            loss = tf.reduce_mean(
                self.model.head.loss(predictions, self.features)
            )
            penalty = self.model.bert.hooks.penalty(context)
            if penalty is not None:
                loss += penalty
        gradients = tape.gradient(
            loss,
            [v for _, v in trained],
            # Outside of graphs a branch that is not taken has none.
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        optimizer.train(loss, gradients, tf.Variable(0, dtype=tf.int64))


def shaken(config, text, **how):
    """A tiny model whose trained values, or all, are random."""
    tiny = TinyModel(config, text)
    tiny.shake(**how)
    return tiny


def table_of(config, method, task=TASK):
    """The variables of a method, refused if it does not fit."""
    if isinstance(method, str):
        method = parse(method)
    return task_model.list_parameters(config, method, task.build_head)
