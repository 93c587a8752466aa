"""The tasks that `--task_name` knows."""

from typing import Dict

from errors import UserError
from tasks import commonsense, glue
from tasks.base import Task

TASKS: Dict[str, Task] = {
    task.name: task for task in (*glue.GLUE, *commonsense.COMMONSENSE)
}


def get_task(name: str) -> Task:
    """The declared task called `name`, in any case of letters.

    Raises:
        UserError: no task has this name.
    """
    task = TASKS.get(name.lower())
    if task is None:
        raise UserError(
            f"unknown task {name!r}; expected one of "
            f"{', '.join(TASKS)}, or custom for files of your own"
        )
    return task
