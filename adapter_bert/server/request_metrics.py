"""Counts, times and sizes of a server's requests, for Prometheus."""

import collections
from collections.abc import Collection, Sequence
from typing import Any, Callable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST


class RequestMetrics:
    """Metrics of a server, and of its process."""

    def __init__(
        self,
        model: str,
        tasks: Callable[[], Collection[str]],
        waiting: Callable[[], int],
    ):
        """Takes a model's name, its tasks' names, and how many rows wait."""
        self._model, self._tasks = model, tasks
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
        Gauge("waiting_rows", "Rows not yet computed.", **kept).set_function(
            waiting
        )
        Gauge("adapters", "Adapters loaded.", **kept).set_function(
            lambda: len(tasks())
        )
        # Memory, time and open files of the process.
        prometheus_client.ProcessCollector(registry=self._registry)

    def count(self, tasks: Sequence[str], code: int, seconds: float) -> None:
        """Counts a request.

        Args:
            tasks: those of its accepted rows, one for each row.
            code: HTTP's.
            seconds: until its end.
        """
        self.count_refused(code)
        self._seconds.observe(seconds)
        for task, rows in collections.Counter(tasks).items():
            self._of_task(self._task_requests, task, str(code)).inc()
            if code == 200:
                self._of_task(self._rows, task).inc(rows)

    def count_refused(self, code: int) -> None:
        """Counts a request by its code alone, as one refused for its token."""
        self._requests.labels(str(code)).inc()

    def _of_task(self, metric: Any, *labels: str) -> Any:
        labels = (self._model, *labels)
        self._counted.add((metric, labels))
        return metric.labels(*labels)

    def count_batch(self, rows: int) -> None:
        """Counts rows that are computed at once."""
        self._batch_rows.observe(rows)

    def tell(self) -> bytes:
        """Writes the metrics in Prometheus' text format, `CONTENT_TYPE`."""
        # Tasks that have gone may be many.
        tasks = set(self._tasks())
        gone = {one for one in self._counted if one[1][1] not in tasks}
        self._counted -= gone
        for metric, labels in gone:
            metric.remove(*labels)
        return prometheus_client.generate_latest(self._registry)
