"""Counts, times and sizes of a server's requests, for Prometheus."""

import collections
import contextlib
from typing import Callable, Sequence, Set, Tuple

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from adapter_bert.serving.served_models import ServedModels

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST


class RequestMetrics:
    """Metrics of a server, and of its process."""

    def __init__(self, models: ServedModels, waiting: Callable[[], int]):
        """Takes the models, and tells the number of rows that wait."""
        self._models = models
        self._registry = CollectorRegistry()
        kept = {"registry": self._registry, "namespace": "adapter_bert"}
        self._requests = Counter(
            "requests",
            "Requests for answers, by HTTP's code.",
            ["code"],
            **kept,
        )
        self._task_requests = Counter(
            "task_requests",
            "The same by task; one of several tasks counts for each.",
            ["model", "task", "code"],
            **kept,
        )
        # Labels of the tasks' metrics.
        self._counted: Set[Tuple[str, str, str]] = set()
        self._rows = Counter(
            "rows", "Rows answered, by task.", ["model", "task"], **kept
        )
        self._seconds = Histogram(
            "request_seconds", "From a request to its answer.", **kept
        )
        sizes = [2**n for n in range(11)]
        self._batch_rows = Histogram(
            "batch_rows", "Rows computed at once.", buckets=sizes, **kept
        )
        Gauge("waiting_rows", "Rows not yet computed.", **kept).set_function(
            waiting
        )
        Gauge("adapters", "Adapters loaded.", **kept).set_function(
            lambda: len(self._served())
        )
        # Memory, time and open files of the process.
        prometheus_client.ProcessCollector(registry=self._registry)

    def _served(self) -> Set[Tuple[str, str, str]]:
        """Model, version and name of each task."""
        return {
            (name, version, task)
            for name, model in self._models.models.items()
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
            labels = (model, task, str(code))
            self._counted.add(labels)
            self._task_requests.labels(*labels).inc()
            if code == 200:
                self._rows.labels(model, task).inc(rows)

    def count_batch(self, rows: int) -> None:
        """Counts rows that are computed at once."""
        self._batch_rows.observe(rows)

    def _forget_tasks(self) -> None:
        """Drops the metrics of tasks that have gone, which may be many."""
        served = {(model, task) for model, _, task in self._served()}
        gone = {one for one in self._counted if one[:2] not in served}
        self._counted -= gone
        for labels in gone:
            self._task_requests.remove(*labels)
        for labels in {one[:2] for one in gone}:
            # Refused requests have no rows.
            with contextlib.suppress(KeyError):
                self._rows.remove(*labels)

    def tell(self) -> bytes:
        """The metrics in Prometheus' text format, `CONTENT_TYPE`."""
        self._forget_tasks()
        return prometheus_client.generate_latest(self._registry)
