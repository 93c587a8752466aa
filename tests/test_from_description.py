"""The task of a trained head, from its description alone."""

import json

import hypothesis
import hypothesis.strategies as st
import pytest
from task_files import refusal

from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.from_description import custom_arguments


@hypothesis.given(
    header=st.booleans(),
    pairs=st.booleans(),
    kind=st.sampled_from(["labels", "numbers", "sets", "columns", "choices"]),
    names=st.lists(
        st.text(st.characters(categories=["L"]), min_size=1),
        min_size=5,
        max_size=5,
        unique=True,
    ),
    numbers=st.permutations(range(5)),
)
def test_tables_are_read_as_the_trained_ones_were(
    header, pairs, kind, names, numbers
):
    columns = names if header else list(map(str, numbers))
    task = custom_task(
        text_a_column=columns[0],
        text_b_column=columns[1] if pairs else None,
        label_column=columns[2],
        header=header,
        regression=kind == "numbers",
        multi_label=kind == "sets",
        label_separator=";" if kind == "sets" else None,
        label_threshold=0.25 if kind in ("sets", "columns") else None,
        label_columns=columns[3:] if kind == "columns" else (),
        choice_columns=columns[3:] if kind == "choices" else (),
    )
    description, settings = json.loads(
        json.dumps([{"name": "custom", **task.describe()}, task.settings])
    )
    arguments = custom_arguments(description, settings, "head")
    assert custom_task(**arguments) == task


def test_descriptions_without_settings_mean_the_defaults():
    arguments = custom_arguments({"name": "custom", "pairs": True}, {}, "head")
    assert custom_task(**arguments) == custom_task(text_b_column="text_b")


@pytest.mark.parametrize(
    "settings",
    [
        {"column_numbers": "0", "label_column": 1},
        {"column_numbers": [0, 1], "label_column": 1},
        {"column_numbers": [-1], "label_column": 1},
        {"column_numbers": [True], "label_column": 1},
        {"label_column": 1},
        {"label_column": "label", "column_numbers": [0]},
        {"columns": ["a", "b"]},
        {"label_columns": "a"},
        {"label_columns": ["a", 1]},
        {"label_columns": ["1"], "column_numbers": [0]},
    ],
)
def test_malformed_settings_are_refused(settings):
    message = refusal(custom_arguments, {"pairs": False}, settings, "head")
    name = next(iter(settings))
    assert message.startswith(f"head: task_settings.{name} is ")
