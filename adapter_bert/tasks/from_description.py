"""The task that a trained adapter's description means, without its data."""

from typing import Any, Dict, Mapping

from adapter_bert.errors import UserError
from adapter_bert.tasks import TASKS
from adapter_bert.tasks.custom import MOST_CHOICES, custom_task
from adapter_bert.tasks.masked_lm import NAME as MASKED_LM
from adapter_bert.tasks.masked_lm import masked_lm_task
from adapter_bert.tasks.squad import MOST_CANDIDATES, SETTINGS, Squad
from adapter_bert.tasks.tagging import NAME as TAGGING
from adapter_bert.tasks.tagging import tagging_task
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.text_task import TEXT_COLUMNS

# Kinds of answers; `TAGGING` and `MASKED_LM` are kinds too.
CLASSIFICATION, REGRESSION = "classification", "regression"
QUESTIONS, MULTI_LABEL, CHOICE = "questions", "multi-label", "multiple choice"
# Arguments of `custom_task` for rows with sets of labels.
SETTINGS_OF_SETS = {"label_separator": str, "label_threshold": float}


def kind_of(description: Mapping[str, Any]) -> str:
    """The kind of answers of a task in `adapter_config.json`."""
    if description["name"] == "squad":
        return QUESTIONS
    if description["name"] in (TAGGING, MASKED_LM):
        return description["name"]
    if description.get("multi_label"):
        return MULTI_LABEL
    if "choices" in description:
        return CHOICE
    return REGRESSION if description.get("regression") else CLASSIFICATION


def restore_task(
    description: Mapping[str, Any], settings: Mapping[str, Any], source: str
) -> Task:
    """The task of a trained head, ready to predict.

    Args:
        description: `task` of `adapter_config.json`.
        settings: `task_settings` of the same file; may be empty.
        source: the file, for messages.

    Raises:
        UserError: the description fits no task.
    """
    name = description["name"]
    if name == "squad":
        task: Task = _restore_squad(settings, source)
    elif name == TAGGING:
        task = tagging_task(**tagging_columns(settings, source))
    elif name == MASKED_LM:
        task = masked_lm_task()
    elif name == "custom":
        task = custom_task(**custom_arguments(description, settings, source))
    elif name in TASKS:
        task = TASKS[name]
    else:
        raise UserError(
            f"{source} was trained on the task {name!r}, which this version "
            f"does not know; expected {', '.join(TASKS)}, squad, {TAGGING}, "
            f"{MASKED_LM} or custom"
        )
    return task.restore(description, source)


def _restore_squad(settings: Mapping[str, Any], source: str) -> Squad:
    found = {name: getattr(Squad, name) for name in SETTINGS}
    for name, value in settings.items():
        if name not in found:
            raise UserError(f"{source}: task_settings has an unknown {name!r}")
        expected = type(found[name])
        if type(value) is int and expected is float:
            value = float(value)
        if type(value) is not expected or expected is int and value < 1:
            raise UserError(
                f"{source}: task_settings.{name} is {value!r}, expected a "
                f"value like {found[name]!r}"
            )
        found[name] = value
    if found["n_best_size"] > MOST_CANDIDATES:
        raise UserError(
            f"{source}: task_settings.n_best_size is {found['n_best_size']}, "
            f"expected at most {MOST_CANDIDATES}"
        )
    return Squad("squad", **found)


def tagging_columns(settings: Mapping[str, Any], source: str) -> Dict[str, str]:
    """The arguments of `tagging_task` that name columns.

    Takes arguments, and raises, as `restore_task`.
    """
    names = "token_column", "tag_column"
    return {n: settings[n] for n in names if _has(settings, n, str, source)}


def custom_arguments(
    description: Mapping[str, Any], settings: Mapping[str, Any], source: str
) -> Dict[str, Any]:
    """The arguments of `custom_task` for the tables of a trained head.

    Takes arguments, and raises, as `restore_task`.
    """
    pairs = bool(description.get("pairs"))
    choices = description.get("choices", 0)
    if type(choices) is not int or choices < 0 or choices > MOST_CHOICES:
        raise UserError(
            f"{source}: task.choices is {choices!r}, expected a number up to "
            f"{MOST_CHOICES}"
        )
    texts = 1 + pairs
    usual = [*TEXT_COLUMNS[:texts], *map("choice{}".format, range(choices))]
    columns = settings.get("columns", usual)
    if (
        not isinstance(columns, list)
        or len(columns) != len(usual)
        or not all(isinstance(column, str) for column in columns)
    ):
        raise UserError(
            f"{source}: task_settings.columns is {columns!r}, expected the "
            f"names of {len(usual)} columns"
        )
    multi_label = bool(description.get("multi_label"))
    about_sets = {
        name: settings[name]
        for name, expected in SETTINGS_OF_SETS.items()
        if multi_label and _has(settings, name, expected, source)
    }
    numbers = settings.get("column_numbers")
    if numbers is not None:
        if (
            not isinstance(numbers, list)
            or len(numbers) != len(usual)
            or not all(type(x) is int and x >= 0 for x in numbers)
        ):
            raise UserError(
                f"{source}: task_settings.column_numbers is {numbers!r}, "
                f"expected {len(usual)} numbers from 0"
            )
        columns = list(map(str, numbers))
    marks = settings.get("label_columns", [])
    label = [] if marks else [settings.get("label_column", "label")]
    for name, found in (("label_column", label), ("label_columns", marks)):
        if not isinstance(found, list) or any(
            type(x) is not (str if numbers is None else int) for x in found
        ):
            raise UserError(
                f"{source}: task_settings.{name} is {settings.get(name)!r}, "
                "expected the column's name, or its number where files have no "
                "header"
            )
    return {
        **dict(zip(("text_a_column", "text_b_column"), columns[:texts])),
        "choice_columns": columns[texts:],
        **dict(zip(("label_column",), map(str, label))),
        "label_columns": list(map(str, marks)),
        "header": numbers is None,
        "regression": bool(description.get("regression")),
        "multi_label": multi_label,
        **about_sets,
    }


def _has(
    settings: Mapping[str, Any], name: str, expected: type, source: str
) -> bool:
    """Whether there is a setting; refuses one of another type."""
    if name in settings and type(settings[name]) is not expected:
        raise UserError(
            f"{source}: task_settings.{name} is {settings[name]!r}, expected a "
            f"{expected.__name__}"
        )
    return name in settings
