"""Makes the task that a trained adapter describes, without its data."""

import functools
import pkgutil
import typing
from collections.abc import Mapping
from typing import Any

from adapter_bert.data.table_flags import LongTexts, OwnTables
from adapter_bert.errors import UserError
from adapter_bert.flags import declared
from adapter_bert.tasks.calibration import calibrated
from adapter_bert.tasks.custom import MOST_CHOICES, custom_task
from adapter_bert.tasks.kinds import OF_PROGRAMS, TASKS
from adapter_bert.tasks.long_texts import with_windows
from adapter_bert.tasks.novelty import with_novelty
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.text_task import TEXT_COLUMNS

# Types of settings, for messages.
TYPES = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}


def restore_task(
    description: Mapping[str, Any], settings: Mapping[str, Any], source: str
) -> Task:
    """Makes the task of a trained head, ready to predict.

    `description` and `settings` are `task` and `task_settings` of the
    `adapter_config.json` at `source`; settings may be empty.
    """
    name = description["name"]
    if name == "custom":
        task = custom_task(**custom_arguments(description, settings, source))
    elif name in TASKS:
        task = TASKS[name]
    elif name in OF_PROGRAMS:
        task = pkgutil.resolve_name(OF_PROGRAMS[name]).from_settings(
            functools.partial(recorded_in, settings=settings, source=source),
            settings,
            source,
        )
    else:
        raise UserError(
            f"{source} was trained on the task {name!r}, which this version "
            "does not know; expected "
            f"{', '.join((*TASKS, *OF_PROGRAMS))} or custom"
        )
    task = calibrated(task.restore(description, source), settings, source)
    task = task.with_fitted(settings, source)
    windows = LongTexts(**recorded_in(LongTexts, settings, source))
    return with_windows(with_novelty(task, settings, source), windows, source)


def recorded_in(
    declaring: type, settings: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Reads the settings that `declaring`, a dataclass, has recorded."""
    values: dict[str, Any] = {}
    for name, about, field in declared([declaring]):
        if not about.recorded or name not in settings:
            continue
        value = settings[name]
        kind, *_ = typing.get_args(field.type) or (field.type,)
        if kind is float and type(value) is int and abs(value) < 2**53:
            value = float(value)
        expected = f"expected {TYPES[kind]}"
        if type(value) is kind:
            if about.within is None or about.within.holds(value):
                values[field.name] = value
                continue
            expected = about.within.problem
        raise UserError(
            f"{source}: task_settings.{name} is {value!r}, {expected}"
        )
    return values


def custom_arguments(
    description: Mapping[str, Any], settings: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Makes arguments of `custom_task` for the tables of a trained head."""
    texts = 1 + bool(description.get("pairs"))
    choices = description.get("choices", 0)
    if type(choices) is not int or not 0 <= choices <= MOST_CHOICES:
        raise UserError(
            f"{source}: task.choices is {choices!r}, expected a number up to "
            f"{MOST_CHOICES}"
        )
    usual = [*TEXT_COLUMNS[:texts], *map("choice{}".format, range(choices))]
    has_header = settings.get("column_numbers") is None
    kind = str if has_header else int

    def check(name: str, columns: Any, kind: type) -> list[str]:
        if (
            not isinstance(columns, list)
            or not name.startswith("label")
            and len(columns) != len(usual)
            or not all(
                type(x) is kind and (kind is str or x >= 0) for x in columns
            )
        ):
            raise UserError(
                f"{source}: task_settings.{name} is {settings.get(name)!r}, "
                f"expected columns of {len(usual)} texts and of labels, by "
                "their names, or by numbers from 0 where files have no header"
            )
        return list(map(str, columns))

    columns = check("columns", settings.get("columns", usual), str)
    if not has_header:
        columns = check("column_numbers", settings["column_numbers"], int)
    marks = check("label_columns", settings.get("label_columns", []), kind)
    labels = [] if marks else [settings.get("label_column", "label")]
    multi_label = bool(description.get("multi_label"))
    return {
        **dict(zip(("text_a_column", "text_b_column"), columns[:texts])),
        "choice_columns": columns[texts:],
        **dict(zip(("label_column",), check("label_column", labels, kind))),
        "label_columns": marks,
        "header": has_header,
        "regression": bool(description.get("regression")),
        "multi_label": multi_label,
        **(recorded_in(OwnTables, settings, source) if multi_label else {}),
    }
