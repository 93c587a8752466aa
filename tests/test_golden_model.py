"""Parity with google-research/adapter-bert: forward, gradients, training."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import read_json
from numpy.testing import assert_allclose, assert_array_equal

from adapter_bert import optimization
from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints import google
from adapter_bert.checkpoints.weights import choose_initial_values
from adapter_bert.data.tables import Layout
from adapter_bert.methods.houlsby import Houlsby
from adapter_bert.tasks import task_model
from adapter_bert.tasks.text_classification import TextClassification


class Recorded:
    """The recorded model, loaded by name from one of its checkpoints."""

    def __init__(self, folder, checkpoint):
        self.training = read_json(folder / "training.json")
        self.config = encoder.BertConfig.from_json_file(
            str(folder / "bert_config.json")
        )
        self.arrays = np.load(folder / "forward.npz")
        self.features = {
            name: tf.constant(self.arrays[name])
            for name in ("input_ids", "input_mask", "segment_ids", "label_ids")
        }
        labels = tuple(map(str, range(self.training["num_labels"])))
        task = TextClassification(
            "recorded", Layout(0), Layout(0), labels=labels
        )
        method = Houlsby(self.training["adapter_size"])
        self.table = task_model.list_parameters(
            self.config, method, task.build_head
        )
        values = choose_initial_values(
            self.table.parameters,
            google.open_tensorflow(str(folder / checkpoint)),
            None,
            seed=0,
        )
        self.variables = {}

        def create(name, shape, initializer):
            self.variables[name] = tf.Variable(values[name]())
            return self.variables[name]

        self.model = task_model.TaskModel(
            self.config, method, task.build_head, create
        )
        # All dropout probabilities of the recording are 0, the head's too.
        self.context = Context(self.features["input_mask"], training=False)
        self.trained = [
            (p.name, self.variables[p.name]) for p in self.table.trained
        ]

    def loss(self):
        predictions = self.model(self.features, self.context)
        return tf.reduce_mean(self.model.head.loss(predictions, self.features))

    def gradients(self):
        with tf.GradientTape() as tape:
            loss = self.loss()
        return loss, [
            tf.convert_to_tensor(g)
            for g in tape.gradient(loss, [v for _, v in self.trained])
        ]


@pytest.fixture
def folder(golden_dir):
    return golden_dir / "adapter_bert_tiny"


@pytest.fixture
def recorded(folder):
    return Recorded(folder, "model.ckpt-0")


def test_golden_forward_pass(recorded):
    output = recorded.model.bert(
        recorded.features["input_ids"],
        recorded.features["segment_ids"],
        recorded.context,
    )
    computed = {
        "embedding_output": output.embedding_output,
        "sequence_output": output.sequence_output,
        "pooled_output": recorded.model.bert.pooled_output(
            output.sequence_output, recorded.context
        ),
        "logits": recorded.model(recorded.features, recorded.context)["logits"],
        "loss": recorded.loss(),
    }
    for layer, hidden in enumerate(output.layer_outputs):
        computed[f"layer_{layer}"] = hidden
    inputs = set(recorded.features)
    assert set(computed) == set(recorded.arrays.files) - inputs
    for name, value in computed.items():
        assert_allclose(value, recorded.arrays[name], atol=1e-5, err_msg=name)


def test_golden_trained_variables(recorded):
    assert {name for name, _ in recorded.trained} == set(
        recorded.training["trainable"]
    )
    assert {name: list(v.shape) for name, v in recorded.variables.items()} == {
        name: shape for name, shape in recorded.training["all"]
    }


def test_golden_gradients(folder, recorded):
    expected = np.load(folder / "gradients.npz")
    _, gradients = recorded.gradients()
    for (name, _), gradient in zip(recorded.trained, gradients):
        difference = np.linalg.norm(gradient - expected[name])
        assert difference <= 1e-5 * np.linalg.norm(expected[name]), name


def test_golden_twenty_optimizer_steps(folder, recorded):
    schedule = optimization.Schedule(
        recorded.training["learning_rate"],
        recorded.training["num_train_steps"],
        recorded.training["num_warmup_steps"],
    )
    slots = {
        f"{name}/{slot}": tf.Variable(tf.zeros_like(variable))
        for name, variable in recorded.trained
        for slot in optimization.SLOTS
    }
    optimizer = optimization.AdamWeightDecay(recorded.trained, slots, schedule)
    done, losses = tf.Variable(0, dtype=tf.int64), []
    for step in range(20):
        loss, gradients = recorded.gradients()
        losses.append(float(loss))
        optimizer.train(loss, gradients, done)
        after = folder / f"after_{step + 1}.npz"
        if after.exists():
            expected = np.load(after)
            for name, variable in recorded.trained:
                assert_allclose(
                    variable, expected[name], atol=1e-4, err_msg=name
                )
    assert_allclose(losses, recorded.training["losses"], atol=1e-4)


def test_golden_trained_checkpoint(folder):
    """The checkpoint after 20 steps holds what the 20 steps lead to."""
    recorded = Recorded(folder, "model.ckpt-20")
    expected = np.load(folder / "after_20.npz")
    for name, variable in recorded.trained:
        assert_array_equal(variable, expected[name])
    # The last step's learning rate is zero.
    assert abs(recorded.loss() - recorded.training["losses"][-1]) < 1e-5
