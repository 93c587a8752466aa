"""Whatever stands in a JSON file, its reader gives a result or one line."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest
import refusals
from conftest import (
    module_fixture,
    open_checkpoint,
    read_adapter,
    read_adapter_config,
    write_json,
)
from fake_runs import FakeRuns
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sources import save_tensorflow
from tiny_artifacts import CLASSIFICATION, make_artifact, read_base

from adapter_bert.checkpoints import run_record
from adapter_bert.commands import ablate as ablate_module
from adapter_bert.commands import merge
from adapter_bert.errors import UserError
from adapter_bert.files import SEAL, read_object, write_sealed
from adapter_bert.reports import collect_runs
from adapter_bert.tasks.custom import custom_task
from adapter_bert.training import setup

pytestmark = pytest.mark.newer_stack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=4,
)


def places_of(value, place=()):
    """The keys that lead to every part of a value, itself among them."""
    yield place
    parts = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in parts:
        yield from places_of(part, (*place, key))


def spoil(value, data):
    """A copy with something else, or nothing, at a place."""
    value = json.loads(json.dumps(value))
    place = data.draw(st.sampled_from(list(places_of(value))))
    if not place:
        return data.draw(VALUES)
    parent = value
    for key in place[:-1]:
        parent = parent[key]
    if data.draw(st.booleans()):
        del parent[place[-1]]
    else:
        parent[place[-1]] = data.draw(VALUES)
    return value


@module_fixture
def files(tmp_path_factory, tiny_bert, tiny_config):
    """By what it is: the path of a file, and what reads it."""
    folder = tmp_path_factory.mktemp("files")
    base = open_checkpoint(tiny_bert)
    task = dataclasses.replace(custom_task(dev_share=0.5), labels=("a", "b"))
    adapters = {}
    for method in ("houlsby(size=4)", "lora(rank=2)"):
        adapters[method] = folder / method / "adapter"
        make_artifact(
            adapters[method],
            tiny_bert,
            method,
            description={
                **CLASSIFICATION,
                "labels": ["a", "b"],
                "held_out": {"share": 0.5, "seed": 1},
            },
            trained_with=method,
            parts={"a": "0" * 64},
            checkpoint="model.ckpt-3",
            data_name="mine",
            training={"seed": 1},
            parameters={"kept": 5},
            versions=run_record.versions(),
        )
    description = read_adapter_config(adapters[method])
    run = folder / "trained"
    run.mkdir()
    save_tensorflow(run / "model.ckpt-3", {"x": np.zeros(3, np.float32)})
    run_record.write(str(run), description, read_base(tiny_bert)[2])
    evaluated = FakeRuns(folder, tiny_config).add(
        "mine",
        "houlsby(size=4)",
        {"accuracy": 0.5},
        cost={
            "resumed": False,
            "seconds": 2.0,
            "processor_seconds": 1.5,
            "peak_memory_bytes": 5,
        },
    )

    def use_adapter():
        artifact = read_adapter(adapters["lora(rank=2)"])
        wanted = dict.fromkeys(
            field.name for field in dataclasses.fields(setup.Experiment)
        )
        wanted.update(
            task=task,
            data_dir="",
            output_dir="",
            named_arguments={},
            exchange_part={},
        )
        setup._task_of(setup.Experiment(**wanted), (base, artifact, None))
        setup._method_of(setup.Experiment(**wanted), artifact, task)
        lora = merge.read_all(base.weights, [str(adapters["lora(rank=2)"])])
        merge.add(base.weights, lora, [1.0])

    def ablate():
        run = adapters["houlsby(size=4)"].parent
        ablate_module.ablate_run(str(run), str(folder / "ablation"))

    def use_run():
        open_checkpoint(run / "model.ckpt-3")
        run_record.check(str(run), {**description, "training": {}}, True)

    def use_evaluated():
        collect_runs.read_run(evaluated)

    return {
        "adapter": (
            adapters["lora(rank=2)"] / "adapter_config.json",
            use_adapter,
        ),
        "ablated": (
            adapters["houlsby(size=4)"] / "adapter_config.json",
            ablate,
        ),
        "run": (run / "run.json", use_run),
        "places": (run / "places.json", use_run),
        "evaluated": (evaluated / "run.json", use_evaluated),
        "scores": (evaluated / "eval_results.json", use_evaluated),
        "costs": (evaluated / "cost.json", use_evaluated),
    }


KINDS_OF_FILES = "adapter ablated run places evaluated scores costs".split()


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
@settings(max_examples=60)
@given(data=st.data())
def test_a_spoiled_file_is_a_result_or_one_line(files, kind, data):
    path, use = files[kind]
    whole = path.read_text()
    value = json.loads(whole)
    # It would refuse all else.
    value.pop(SEAL, None)
    try:
        write_json(path, spoil(value, data))
        with contextlib.suppress(UserError):
            use()
    finally:
        path.write_text(whole)


def test_a_seal_is_of_what_is_read(tmp_path):
    """Keys become texts, which are in another order than numbers."""
    path = str(tmp_path / "a.json")
    write_sealed(path, {"steps": {2: (1, 0.5), 10: None}})
    content = read_object(path, "a file", {"steps": dict})
    assert content == {"steps": {"2": [1, 0.5], "10": None}}


def test_without_the_line_of_its_seal_a_changed_file_is_read(tmp_path):
    path = tmp_path / "a.json"
    write_sealed(str(path), {"name": "cat", "size": 8})
    lines = path.read_text().replace(": 8", ": 9").splitlines(True)
    path.write_text("".join(lines))
    refusals.check(lambda: read_object(str(path), "a file", {}), "that line")
    path.write_text("".join(line for line in lines if SEAL not in line))
    assert read_object(str(path), "a file", {}) == {"name": "cat", "size": 9}


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_the_whole_file_is_read(files, kind):
    """Else the test above would see one error only."""
    if kind in ("run", "places"):
        refusals.check(
            lambda: files[kind][1](), "training.seed was 1, now None"
        )
    else:
        files[kind][1]()
