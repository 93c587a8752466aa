"""Features of texts by frozen layers: means of a middle layer, for novelty."""

import dataclasses

import numpy as np
import tensorflow as tf

from adapter_bert.bert.encoder import BertConfig, CreateVariable
from adapter_bert.data.input_pipeline import Features
from adapter_bert.methods.fine_tuning import HeadOnly
from adapter_bert.tasks.task import Head
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.tasks.vector_form import MEAN, pool
from adapter_bert.training import frozen_outputs
from adapter_bert.training.engines import Engine
from adapter_bert.training.setup import Setup
from adapter_bert.training.training_step import Job

# Name of the model's output.
FEATURES = "features"
# Squared lengths below count as this one.
SMALLEST = 1e-24


class MeanHead(Head):
    """Mean over a text's tokens, of length 1; it has no variables."""

    needs_pooler = False

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"features": float32 [B, D]}."""
        states = tf.cast(sequence_output, tf.float32)
        means = pool(states, context.input_mask, MEAN)
        return {FEATURES: tf.math.l2_normalize(means, 1, SMALLEST)}

    def loss(self, predictions, features):
        raise TypeError("the features of frozen layers have no loss")


def build_head(config: BertConfig, create: CreateVariable) -> MeanHead:
    """Gives the head of `model`."""
    return MeanHead()


def lower_half(config: BertConfig) -> BertConfig:
    """Gives the BERT up to its middle layer."""
    layers = (config.num_hidden_layers + 1) // 2
    return dataclasses.replace(config, num_hidden_layers=layers)


def model(config: BertConfig, create: CreateVariable) -> TaskModel:
    """A model of `FEATURES`, float32 [B, D], on a whole BERT's variables."""
    return TaskModel(lower_half(config), HeadOnly(), build_head, create)


def compute(
    engine: Engine, setup: Setup, job: Job, rows: Features
) -> np.ndarray:
    """Gives the features of rows, float32 [N, D], by a run's own BERT."""
    layers = lower_half(setup.model.config).num_hidden_layers
    with frozen_outputs.predictor(
        engine, setup, job, layers, build_head
    ) as predictor:
        size = setup.experiment.predict_batch_size
        return predictor.predict(rows, size, "novelty")[FEATURES]
