"""Tasks that `--task_name` knows."""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from adapter_bert.errors import UserError
from adapter_bert.tasks.task import Task

GLUE = {
    "cola": "glue:COLA",
    "sst-2": "glue:SST_2",
    "mrpc": "glue:MRPC",
    "sts-b": "text_regression:STS_B",
    "qqp": "glue:QQP",
    "mnli": "glue:MNLI",
    "qnli": "glue:QNLI",
    "rte": "glue:RTE",
    "wnli": "glue:WNLI",
    "ax": "glue:AX",
}
PLACES = {
    **GLUE,
    "xnli": "xnli:XNLI",
    "swag": "multiple_choice:SWAG",
    "copa": "multiple_choice:COPA",
}


def load(place: str) -> Any:
    """Imports what a place, as `glue:MRPC`, names in this folder."""
    module, name = place.split(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


class _Declared(Mapping):
    """Tasks by name; each one's module is imported at its first use."""

    def __getitem__(self, name: str) -> Task:
        return load(PLACES[name])

    def __iter__(self):
        return iter(PLACES)

    def __len__(self):
        return len(PLACES)


TASKS: Mapping[str, Task] = _Declared()


def get_task(name: str, others: Iterable[str] = ()) -> Task:
    """Finds the declared task called `name`, in any case of letters."""
    task = TASKS.get(name.lower())
    if task is None:
        raise UserError(
            f"unknown task {name!r}; expected one of "
            f"{', '.join((*others, *TASKS))}, or custom for files of your own"
        )
    return task
