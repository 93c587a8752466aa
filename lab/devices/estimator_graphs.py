"""Graphs of the engine of TPUEstimator, which TensorFlow has up to 2.15."""

import unittest.mock

import tensorflow as tf

from adapter_bert.progress import TrainingProgress
from adapter_bert.training import estimator
from adapter_bert.training.engines import Course
from adapter_bert.training.estimator import EstimatorEngine
from adapter_bert.training.training_step import Job
from lab.devices.graphs import GraphTaken

v1 = tf.compat.v1


class _TakeGraph(v1.train.SessionRunHook):
    def begin(self) -> None:
        raise GraphTaken(v1.get_default_graph().as_graph_def())


class TrainingGraph(EstimatorEngine):
    """Ends a run with the graph of its training."""

    def train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:
        """Ends the run; raises GraphTaken."""
        with unittest.mock.patch.object(
            estimator, "TrainingHook", lambda *_: _TakeGraph()
        ):
            super().train(job, course, progress)
