"""Counts, times and sizes of a server's requests, for Prometheus."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from adapter_bert.serving.model_versions import ModelVersions

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
# What becomes of a row that is put to a shadow.
OUTCOMES = EQUAL, DIFFERENT, DROPPED, FAILED = (
    "equal",
    "different",
    "dropped",
    "failed",
)


class RequestMetrics:
    """Metrics of a server, and of its process."""

    def __init__(
        self,
        models: Callable[[], Mapping[str, ModelVersions]],
        waiting: Callable[[], int],
    ):
        """Takes what tells the models by name, and how many rows wait."""
        self._models = models
        self._registry = CollectorRegistry()
        of_task = ["model", "task"]
        kept = {"registry": self._registry, "namespace": "adapter_bert"}
        self._requests = Counter(
            "requests",
            "Requests for answers, and all refused for their token, by HTTP's "
            "code.",
            ["code"],
            **kept,
        )
        self._task_requests = Counter(
            "task_requests",
            "The same by task; one of several tasks counts for each.",
            [*of_task, "code"],
            **kept,
        )
        # Metrics of tasks with their labels: model, task, and some a third one.
        self._counted: set[tuple[Any, tuple[str, ...]]] = set()
        self._rows = Counter("rows", "Rows answered, by task.", of_task, **kept)
        self._seconds = Histogram(
            "request_seconds", "From a request to its answer.", **kept
        )
        sizes = [2**n for n in range(11)]
        self._batch_rows = Histogram(
            "batch_rows", "Rows computed at once.", buckets=sizes, **kept
        )
        self._shadow_rows = Counter(
            "shadow_rows",
            "Rows answered that the shadow was to answer too, by what became "
            "of them.",
            [*of_task, "outcome"],
            **kept,
        )
        self._shadow_distance = Histogram(
            "shadow_distance",
            "Distance of a regression's two values.",
            of_task,
            buckets=[10.0**n for n in range(-4, 4)],
            **kept,
        )
        self._shadow_seconds = Histogram(
            "shadow_batch_seconds",
            "From a batch of rows to the shadow's answers.",
            ["model"],
            **kept,
        )
        Gauge("waiting_rows", "Rows not yet computed.", **kept).set_function(
            waiting
        )
        Gauge("adapters", "Adapters loaded.", **kept).set_function(
            lambda: len(self._served())
        )
        # Memory, time and open files of the process.
        prometheus_client.ProcessCollector(registry=self._registry)

    def _served(self) -> set[tuple[str, str, str]]:
        """Model, version and name of each task."""
        return {
            (name, version, task)
            for name, model in self._models().items()
            for version, served in model.served.items()
            for task in served.tasks
        }

    def count(
        self, model: str, tasks: Sequence[str], code: int, seconds: float
    ) -> None:
        """Counts a request.

        Args:
            model: its name.
            tasks: those of its accepted rows, one for each row.
            code: HTTP's.
            seconds: until its end.
        """
        self._requests.labels(str(code)).inc()
        self._seconds.observe(seconds)
        for task, rows in collections.Counter(tasks).items():
            self._of_task(self._task_requests, model, task, str(code)).inc()
            if code == 200:
                self._of_task(self._rows, model, task).inc(rows)

    def count_refused(self, code: int) -> None:
        """Counts a request that was refused for its token."""
        self._requests.labels(str(code)).inc()

    def count_shadow(self, model: str, task: str, outcome: str) -> None:
        """Counts a row put to a model's shadow, by what became of it."""
        # A share of rows can be computed where there is a 0.
        for one in OUTCOMES:
            counter = self._of_task(self._shadow_rows, model, task, one)
            counter.inc(one == outcome)

    def count_distance(self, model: str, task: str, distance: float) -> None:
        """Counts the distance of a regression's value to the shadow's."""
        self._of_task(self._shadow_distance, model, task).observe(distance)

    def count_shadow_batch(self, model: str, seconds: float) -> None:
        """Counts a batch that a shadow has answered, in any thread."""
        self._shadow_seconds.labels(model).observe(seconds)

    def _of_task(self, metric: Any, *labels: str) -> Any:
        """A metric of a model's task, until the task goes."""
        self._counted.add((metric, labels))
        return metric.labels(*labels)

    def count_batch(self, rows: int) -> None:
        """Counts rows that are computed at once."""
        self._batch_rows.observe(rows)

    def _forget_tasks(self) -> None:
        """Drops the metrics of tasks that have gone, which may be many."""
        served = {(model, task) for model, _, task in self._served()}
        gone = {one for one in self._counted if one[1][:2] not in served}
        self._counted -= gone
        for metric, labels in gone:
            metric.remove(*labels)

    def tell(self) -> bytes:
        """The metrics in Prometheus' text format, `CONTENT_TYPE`."""
        self._forget_tasks()
        return prometheus_client.generate_latest(self._registry)
