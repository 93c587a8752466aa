"""The benchmark of many tasks: what it asks, and what it writes of that."""

import numpy as np
import pytest

from adapter_bert.serving.frozen_bert import FrozenBert
from lab.speed import serving, serving_worker

pytestmark = pytest.mark.newer_stack


@pytest.fixture(scope="module")
def folders(tiny_bert, tmp_path_factory):
    return serving.write_tasks(
        tmp_path_factory.mktemp("tasks"),
        FrozenBert.open(str(tiny_bert)),
        {"houlsby": 5, "lora": 2, "full": 2},
    )


def make_tasks(tiny_bert, folders):
    return serving_worker.Tasks(
        {
            "model": str(tiny_bert),
            "folders": folders,
            "tokens": 6,
            "batches": 3,
            "batch_size": 4,
        }
    )


def test_tasks_take_turns_in_their_sizes(folders):
    sizes = [folder.split("/")[-2] for folder in folders["houlsby"]]
    assert sizes == ["8", "16", "32", "64", "8"]
    assert len(set(folders["houlsby"])) == 5


@pytest.mark.gate
def test_each_way_computes_all_rows(tiny_bert, folders, monkeypatch):
    tasks = make_tasks(tiny_bert, folders["houlsby"])
    seen = {"alone": 0, "mixed": 0}
    alone, mixed = tasks._alone, tasks._tables.compute

    def count_alone(ids, number):
        seen["alone"] += len(ids)
        alone(ids, number)

    def count_mixed(batch):
        # Different tasks, as there are enough.
        assert len(np.unique(batch["task"])) == len(batch["task"])
        seen["mixed"] += len(batch["task"])
        return mixed(batch)

    monkeypatch.setattr(tasks, "_alone", count_alone)
    monkeypatch.setattr(tasks._tables, "compute", count_mixed)
    found = tasks.measure()
    assert list(found) == list(serving_worker.WAYS)
    assert all(rate > 0 for rate in found.values())
    # One task's batches, and all rows one task after another.
    assert seen == {"alone": 24, "mixed": 12}


def test_whole_models_are_not_mixed(tiny_bert, folders):
    found = make_tasks(tiny_bert, folders["full"]).measure()
    assert list(found) == ["one", "one after another"]


def test_the_table_and_the_figure(tmp_path):
    def rates(**by_way):
        return {way: {"median": rate} for way, rate in by_way.items()}

    ways = {"one": 100.0, "mixed": 90.0, "one after another": 20.0}
    results = {
        "machine": {"processor": "fast", "cores": 2},
        "versions": {"tensorflow": "2"},
        "rounds": 1,
        "rates": {
            "minilm": {
                32: {
                    1: {
                        "houlsby": rates(**ways, memory_bytes=2e9),
                        "lora": rates(**ways, memory_bytes=1e9),
                        "full": rates(
                            **{"one after another": 7.0}, memory_bytes=3e9
                        ),
                        "adapterhub": rates(mixed=45.0, memory_bytes=1e9),
                    },
                    10: {
                        "houlsby": rates(**ways, memory_bytes=2e9),
                        "lora": rates(**ways, memory_bytes=1e9),
                    },
                }
            }
        },
    }
    lines = serving.to_markdown(results).splitlines()
    assert lines[-2] == (
        "| minilm, 32 | 1 | 100 | 90 (90%) | 20 | 45 (ours **2.00** times) | 7 "
        "| 100 | 90 (90%) | - | 2,000 / 1,000 / 3,000 |"
    )
    assert lines[-1].endswith("| - | 2,000 / - / - |")
    assert all(line.count("|") == 12 for line in lines[2:])
    serving.draw(results, str(tmp_path / "serving.png"))
    assert 0 < (tmp_path / "serving.png").stat().st_size < 300_000
