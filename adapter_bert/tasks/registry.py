"""Tasks that `--task_name` knows."""

from collections.abc import Iterable

from adapter_bert.errors import UserError
from adapter_bert.tasks import glue, multiple_choice, xnli
from adapter_bert.tasks.task import Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (*glue.GLUE, xnli.XNLI, *multiple_choice.COMMONSENSE)
}


def get_task(name: str, others: Iterable[str] = ()) -> Task:
    """Finds the declared task called `name`, in any case of letters."""
    task = TASKS.get(name.lower())
    if task is None:
        raise UserError(
            f"unknown task {name!r}; expected one of "
            f"{', '.join((*others, *TASKS))}, or custom for files of your own"
        )
    return task
