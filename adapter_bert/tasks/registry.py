"""Tasks that `--task_name` knows."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from adapter_bert.errors import UserError
from adapter_bert.tasks.kinds import DECLARED, load

if TYPE_CHECKING:
    from adapter_bert.tasks.task import Task


class _Declared(Mapping):
    def __getitem__(self, name: str) -> "Task":
        return load(DECLARED[name])

    def __iter__(self):
        return iter(DECLARED)

    def __len__(self):
        return len(DECLARED)


TASKS: Mapping[str, "Task"] = _Declared()


def get_task(name: str, others: Iterable[str] = ()) -> "Task":
    """Finds the declared task called `name`, in any case of letters."""
    task = TASKS.get(name.lower())
    if task is None:
        raise UserError(
            f"unknown task {name!r}; expected one of "
            f"{', '.join((*others, *TASKS))}, or custom for files of your own"
        )
    return task
