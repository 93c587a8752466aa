"""The benchmarks' arithmetic and protocol; nothing here is about speed."""

import dataclasses
import os
import sys

import numpy as np
import pytest
import refusals
from conftest import ROOT, module_fixture, read_json

from adapter_bert.bert import encoder
from adapter_bert.data.input_pipeline import Features, TrainPlan, sorted_batches
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from lab import report
from lab.speed import compare, flops, measuring, worker

pytestmark = pytest.mark.newer_stack


def measurement(examples, seconds, **values):
    return {"examples": examples, "seconds": seconds, "tokens": 0, **values}


@pytest.fixture
def measured():
    """Three rounds: ours at 10, 20, 40 examples/s, the peer at 5, 5, 80."""
    return {
        "products": [measurement(0, s, flops=8e9) for s in (0.5, 1.0, 0.25)],
        "ours": [
            measurement(20, s, flops=8e9, tokens=100, peak_bytes=peak)
            for s, peak in ((2.0, 2**28), (1.0, 2**29), (0.5, 2**30))
        ],
        "dynamic": [
            measurement(10, s, flops=0, tokens=80, peak_bytes=2**31)
            for s in (2.0, 2.0, 0.125)
        ],
    }


def test_a_summary_has_medians_and_ratios_of_neighbours(measured):
    summary = compare.summarize(measured)
    assert summary["examples_per_second"] == {
        "ours": {"median": 20, "lowest": 10, "highest": 40},
        "dynamic": {"median": 5, "lowest": 5, "highest": 80},
    }
    # 10/5, 20/5, 40/80: not the ratio of the medians, which is 4.
    assert summary["ratio"] == {
        "dynamic": {"median": 2, "lowest": 0.5, "highest": 4}
    }
    assert summary["peak_gflops"] == 16
    # 4 of 16, 8 of 8, 16 of 32 GFLOP/s.
    assert summary["share_of_peak"] == 0.5
    assert summary["memory_bytes"] == {"ours": 2**30, "dynamic": 2**31}
    assert summary["tokens_per_example"] == {"ours": 5, "dynamic": 8}


def test_the_table_goes_between_its_marks(measured, tmp_path, monkeypatch):
    table = compare.to_markdown(
        {
            **report.environment(),
            "rounds": 3,
            "rows": "some",
            "comparisons": {"train-x": compare.summarize(measured)},
        }
    )
    row = table.splitlines()[-1]
    assert row == (
        "| train x | 20.0 (10.0 to 40.0) | padded to the longest of a batch "
        "| 5.0 (5.0 to 80.0) | **2.00** (0.50 to 4.00) "
        "| 1.00 / 2.00 GiB = 0.50 | 50% of 16 GFLOP/s |"
    )
    widths = {line.count("|") for line in table.splitlines()[2:]}
    assert len(widths) == 1
    page = tmp_path / "page.md"
    begin, end = report.marks("compare")
    page.write_text(f"before\n{begin}old\n{end}after\n")
    monkeypatch.setattr(report, "SPEED", page)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    for _ in range(2):
        measuring.publish("compare", {"a": 1}, table)
        assert page.read_text() == f"before\n{begin}\n{table}\n{end}after\n"
    path = tmp_path / "results" / "compare.json"
    assert read_json(path) == {"a": 1}


@pytest.mark.parametrize(
    "page, names",
    [
        (report.SPEED, ("compare", "live", "start", "summary")),
        (report.RELIABILITY, ("soak",)),
    ],
)
def test_the_pages_have_the_marks_once(page, names):
    text = page.read_text()
    for begin, end in map(report.marks, names):
        assert text.count(begin) == text.count(end) == 1
        assert text.index(begin) < text.index(end)


class FakeWorker:
    """Writes down what is asked of it; its answers are numbered."""

    def __init__(self, name, log, fails_at=None):
        self.name, self.log, self.fails_at = name, log, fails_at
        self.count = -1

    def measure(self):
        self.log.append(self.name)
        self.count += 1
        if self.count == self.fails_at:
            raise UserError("died")
        return {"round": self.count}

    def stop(self):
        self.log.append(f"stop {self.name}")


def test_workers_take_turns_and_the_first_round_is_dropped():
    log = []
    workers = {name: FakeWorker(name, log) for name in "AB"}
    rounds = measuring.in_turn(workers, 2)
    assert log == [*"ABABAB", "stop A", "stop B"]
    assert rounds == {name: [{"round": 1}, {"round": 2}] for name in "AB"}


def test_all_workers_are_stopped_when_one_fails():
    log = []
    workers = {"A": FakeWorker("A", log), "B": FakeWorker("B", log, 1)}
    refusals.check(lambda: measuring.in_turn(workers, 2), "died")
    assert log == [*"ABAB", "stop A", "stop B"]


ECHO = (
    "import sys, tempfile\n"
    "open(tempfile.mkstemp()[1], 'w').close()\n"
    "for line in sys.stdin: print(line, flush=True, end='')\n"
)


def test_a_worker_is_asked_for_its_steps_and_leaves_no_files():
    echo = measuring.Worker([sys.executable, "-c", ECHO], {}, steps=5)
    assert echo.measure() == {"steps": 5}
    scratch = echo._scratch.name
    assert os.listdir(scratch)
    echo.stop()
    assert not os.path.exists(scratch)


def small_rows():
    """20 rows of 3 to 12 tokens."""
    rng = np.random.default_rng(0)
    rows = [(rng.integers(1, 100, n), [0] * n) for n in rng.integers(3, 13, 20)]
    return Features.from_rows(rows, {})


CONFIG = encoder.BertConfig(100, 16, 2, 2, 32, max_position_embeddings=32)
METHOD = "houlsby(size=4)"


@module_fixture
def answers(tmp_path_factory):
    """The second of each kind of worker; they get ready together."""
    rows = str(tmp_path_factory.mktemp("rows") / "rows.npz")
    measuring.write_rows(rows, small_rows())
    options = {
        "rows": rows,
        "batch_size": 4,
        "dtype": "float32",
        "method": METHOD,
        "model": None,
        "config": dataclasses.asdict(CONFIG),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        workers = {
            kind: measuring.Worker(
                measuring.OURS, {**options, "kind": kind}, steps=3
            )
            for kind in ("train", "predict")
        }
    return measuring.in_turn(workers, 1)


def train_batches(rows):
    plan = TrainPlan(rows.lengths, 4, worker.MANY_STEPS, 1)
    # The first step of each measurement is not measured, and the first
    # measurement of all, of steps 1 to 3, is dropped.
    return [plan.rows(step) for step in range(5, 8)]


@pytest.mark.gate
@pytest.mark.parametrize(
    "kind,count,batches",
    [
        ("train", flops.training, train_batches),
        (
            "predict",
            flops.forward,
            # The first batch builds the graph.
            lambda rows: sorted_batches(rows, 4)[1:],
        ),
    ],
)
def test_a_worker_counts_what_it_measures(kind, count, batches, answers):
    rows = small_rows()
    table = task_model.list_parameters(
        CONFIG, parse(METHOD), worker.TASK.build_head
    )
    [answer] = answers[kind]
    lengths = [int(rows.lengths[batch].max()) for batch in batches(rows)]
    seconds, peak = answer.pop("seconds"), answer.pop("peak_bytes")
    assert seconds > 0 and peak > 2**24
    assert answer == {
        "examples": 4 * len(lengths),
        "tokens": 4 * sum(lengths),
        "flops": sum(count(CONFIG, table, 4, n) for n in lengths),
    }
