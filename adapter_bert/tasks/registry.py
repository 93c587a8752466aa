"""Tasks that `--task_name` knows."""

from collections.abc import Iterable, Mapping

from adapter_bert.errors import UserError
from adapter_bert.tasks import kinds
from adapter_bert.tasks.kinds import Kind
from adapter_bert.tasks.task import Task

GLUE = {
    "cola": "adapter_bert.tasks.glue:COLA",
    "sst-2": "adapter_bert.tasks.glue:SST_2",
    "mrpc": "adapter_bert.tasks.glue:MRPC",
    "sts-b": "adapter_bert.tasks.glue:STS_B",
    "qqp": "adapter_bert.tasks.glue:QQP",
    "mnli": "adapter_bert.tasks.glue:MNLI",
    "qnli": "adapter_bert.tasks.glue:QNLI",
    "rte": "adapter_bert.tasks.glue:RTE",
    "wnli": "adapter_bert.tasks.glue:WNLI",
    "ax": "adapter_bert.tasks.glue:AX",
}
PLACES = {
    **GLUE,
    "xnli": "adapter_bert.tasks.xnli:XNLI",
    "swag": "adapter_bert.tasks.multiple_choice:SWAG",
    "copa": "adapter_bert.tasks.multiple_choice:COPA",
}


class _Declared(Mapping):
    """Tasks by name; each one's module is imported at its first use."""

    def __getitem__(self, name: str) -> Task:
        return kinds.load(PLACES[name])

    def __iter__(self):
        return iter(PLACES)

    def __len__(self):
        return len(PLACES)


TASKS: Mapping[str, Task] = _Declared()


def find_kind(name: str) -> Kind:
    """Finds the declaration of a kind of tasks."""
    return kinds.load(kinds.KINDS.get(name) or PLACES[name]).kind


def get_task(name: str, others: Iterable[str] = ()) -> Task:
    """Finds the declared task called `name`, in any case of letters."""
    task = TASKS.get(name.lower())
    if task is None:
        raise UserError(
            f"unknown task {name!r}; expected one of "
            f"{', '.join((*others, *TASKS))}, or custom for files of your own"
        )
    return task
