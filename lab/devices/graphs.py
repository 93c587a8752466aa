"""Graphs of TensorFlow that engines run on a GPU, taken before they run."""

import unittest.mock
from typing import Any, Callable, Iterator, List

import tensorflow as tf

from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.progress import TrainingProgress
from adapter_bert.training import strategy
from adapter_bert.training.engines import Course
from adapter_bert.training.prediction import Outputs, RowPredictor
from adapter_bert.training.strategy import StrategyEngine, StrategyPredictor
from adapter_bert.training.training_step import Job
from lab.devices import runs


class GraphTaken(Exception):
    """Ends a run whose graph is known."""

    def __init__(self, graph: tf.compat.v1.GraphDef):
        """Takes the graph, with all functions that it calls."""
        super().__init__()
        self.graph = graph


def _take(function: Callable, *arguments: Any) -> None:
    traced = function.get_concrete_function(*arguments)
    raise GraphTaken(traced.graph.as_graph_def())


class TrainingGraph(StrategyEngine):
    """Ends a run with the graph of its training."""

    # As on GPUs.
    _steps_per_call = strategy.GPU_STEPS

    def train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:
        """Ends the run; raises GraphTaken."""
        with unittest.mock.patch.object(strategy, "_run", _take):
            super().train(job, course, progress)


class PredictionGraph(StrategyEngine):
    """Ends a run with the graph of the prediction after its training."""

    def train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:
        """Ends the run; raises GraphTaken."""
        runs.predict(self, job, course)

    def _new_predictor(self, job: Job) -> RowPredictor:
        return _Predictor(job, self._strategy)


class _Predictor(StrategyPredictor):
    def _run(
        self, read: Callable[[], Iterator[List[Batch]]], features: Features
    ) -> Iterator[Outputs]:
        model, _ = self._build()
        group = tf.nest.map_structure(tf.constant, next(read()))
        _take(self._make_function(model, features), group)
        raise AssertionError("the graph is taken")


def taken(run: Callable[[], Any]) -> tf.compat.v1.GraphDef:
    """The graph with which a run ends."""
    try:
        run()
    except GraphTaken as end:
        return end.graph
    raise AssertionError("the run ends with a graph")
