"""The protocol of the paper on small tasks: halves, choice, summary."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from conftest import write_table
from fake_runs import FakeRuns
from hypothesis import given
from hypothesis import strategies as st
from sweep_stand_in import SCRIPTS, counts, wait_for
from task_files import PROPERTY, refusal

from adapter_bert.commands import paper_protocol
from adapter_bert.tasks.registry import get_task

pytestmark = pytest.mark.newer_stack

HEADERS = {
    "RTE": ("index", "sentence1", "sentence2", "label"),
    "MRPC": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "CoLA": (),
}


def write_dev(folder, name, labels):
    """Writes a task's dev file, whose texts name their row; its lines."""
    one = get_task(name).labels
    rows = []
    for row, place in enumerate(labels):
        number, label, texts = str(row), one[place], (f'a "{row}', f"b {row}")
        rows.append(
            {
                "RTE": (number, *texts, label),
                "MRPC": (label, number, number, *texts),
                "CoLA": ("gj04", label, "", texts[0]),
            }[name]
        )
    write_table(folder / "dev.tsv", rows, HEADERS[name])
    return (folder / "dev.tsv").read_text().splitlines()


@pytest.mark.parametrize("name", HEADERS)
@PROPERTY
@given(
    labels=st.lists(st.integers(0, 1), min_size=4, max_size=40),
    seed=st.integers(0, 3),
)
def test_halves_are_disjoint_complete_and_balanced(name, labels, seed):
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        lines = write_dev(folder, name, labels)
        new = folder / "halves"
        for _ in range(2):
            paper_protocol.cut_halves(name, place, str(new), seed)
        choice, report = (
            (new / file).read_text().splitlines()
            for file in ("dev.tsv", "report.tsv")
        )
        head = lines[: len(HEADERS[name]) > 0]
        assert choice[: len(head)] == report[: len(head)] == head
        halves = choice[len(head) :], report[len(head) :]
        # Texts name their rows, so no two lines are equal.
        assert sorted(sum(halves, [])) == sorted(lines[len(head) :])
        # The same rows as run_classifier.py reads them, without labels.
        _, rows = get_task(name).read(str(new), ["dev", "test"])
        own = get_task(name).labels
        for label in own:
            wanted = labels.count(own.index(label))
            assert abs(rows["dev"].label.count(label) * 2 - wanted) <= 1
        assert rows["test"].label is None
        (folder / "reported").mkdir()
        (new / "report.tsv").rename(folder / "reported/dev.tsv")
        _, reported = get_task(name).read(f"{place}/reported", ["dev"])
        assert rows["test"].text_a == reported["dev"].text_a
        assert rows["test"].text_b == reported["dev"].text_b
        assert json.loads((new / "halves.json").read_text()) == {
            "seed": seed,
            "choice": len(halves[0]),
            "report": len(halves[1]),
        }


def test_other_halves_than_those_of_earlier_runs_are_refused(tmp_path):
    write_dev(tmp_path, "RTE", [0, 1] * 20)
    new = tmp_path / "new"
    given = ("RTE", str(tmp_path), str(new))
    paper_protocol.cut_halves(*given, 1)
    before = {path: path.read_text() for path in new.iterdir()}
    message = refusal(paper_protocol.cut_halves, *given, 2)
    assert message.startswith(f"{new / 'dev.tsv'} is there, but ")
    assert message.endswith("choose another OUTPUT_DIR")
    assert {path: path.read_text() for path in new.iterdir()} == before
    # One that was killed is completed.
    (new / "test.tsv").unlink()
    paper_protocol.cut_halves(*given, 1)
    assert {path: path.read_text() for path in new.iterdir()} == before


@pytest.mark.parametrize("name", ["STS-B", "MNLI", "AX", "copa"])
def test_tasks_without_the_protocol_are_refused(name, tmp_path):
    message = refusal(
        paper_protocol.cut_halves, name, str(tmp_path), str(tmp_path), 1
    )
    assert message == (
        f"the task {name} has no such protocol; expected one of cola, mrpc, "
        "qnli, qqp, rte, sst-2, wnli (TASKS)"
    )


# Writes what a run writes: of houlsby, size 4 is best on the choice half, and
# of any method the higher rate. Each seed has wrong answers of its own.
FINISH = """#!{python}
import json, pathlib, sys
out, _, *words = sys.argv[1:]
out = pathlib.Path(out)
flags = dict(x[2:].split("=", 1) for x in words if "=" in x)
run = json.loads(pathlib.Path("{folder}/run.json").read_text())
size = flags.get("adapter_size")
run["method"] = f"houlsby(size={{size}})" if size else "full"
seed = int(flags["seed"])
run["training"].update(
    learning_rate=float(flags["learning_rate"]),
    epochs=float(flags["num_train_epochs"]),
    seed=seed,
)
run["parameters"]["trained"] = int(size or 1000)
run["task"]["name"] = flags["task_name"].lower()
(out / "run.json").write_text(json.dumps(run))
score = 0.5 + 0.1 * (size == "4") + float(flags["learning_rate"])
(out / "eval_results.json").write_text(json.dumps({{
    "eval_accuracy": score, "global_step": 3, "dev_data": {{"dev": "rows"}},
}}))
report = pathlib.Path(flags["data_dir"], "report.tsv").read_text()
lines = ["index\\tprediction"]
both = ["entailment", "not_entailment"]
for row, line in enumerate(report.splitlines()[1:]):
    place = both.index(line.split("\\t")[-1])
    wrong = row % 10 == seed or (not size and row % 5 == 0)
    lines.append(f"{{row}}\\t{{both[place ^ wrong]}}")
(out / "test_predictions.tsv").write_text("\\n".join(lines) + "\\n")
"""
AXES = {
    "TASKS": "RTE",
    "SIZES": "2 4",
    "RATES": "1e-3 1e-2",
    "EPOCHS": "2",
    "FULL_RATES": "1e-5",
    "FULL_EPOCHS": "1",
    "SEEDS": "1 2 3",
}
CHOSEN = "RTE/houlsby4-lr1e-2-epochs2-seed"


@pytest.fixture
def protocol(sweep, tiny_config):
    """Starts the script with a stand-in; its sweep is the attribute."""
    task = sweep.folder / "glue/RTE"
    write_dev(task, "RTE", [0, 1] * 20)
    (task / "train.tsv").write_text((task / "dev.tsv").read_text())
    fake = FakeRuns(sweep.folder / "fake", tiny_config)
    run = fake.add("rte", "full", {}) / "run.json"
    run.rename(sweep.folder / "run.json")
    finish = sweep.folder / "finish"
    finish.write_text(FINISH.format(python=sys.executable, folder=sweep.folder))
    finish.chmod(0o755)

    def start(*arguments, **environment):
        return sweep.run_script(
            "paper_protocol.sh",
            *arguments,
            GLUE_DIR=sweep.folder / "glue",
            **{**AXES, **environment},
        )

    start.sweep = sweep
    return start


def mark(protocol, kind, *runs):
    """Says which runs are to fail or to be slow."""
    lines = (f"{protocol.sweep.out}/{x}\n" for x in runs)
    (protocol.sweep.folder / kind).write_text("".join(lines))


@pytest.mark.gate
def test_the_best_on_one_half_is_repeated_and_scored_on_the_other(protocol):
    assert "holds no sweep; start it first" in protocol("--status").stderr
    done = protocol()
    assert done.returncode == 0, done.stderr
    sweep = protocol.sweep
    names = [path.removeprefix(f"{sweep.out}/") for path in sweep.started()]
    assert names[:5] == [
        *(
            f"choice/runs/RTE/houlsby{size}-lr{rate}-epochs2-seed1"
            for size in (2, 4)
            for rate in ("1e-3", "1e-2")
        ),
        "choice/runs/RTE/full-lr1e-5-epochs1-seed1",
    ]
    assert names[5:] == [
        *(f"seeds_RTE_houlsby/runs/{CHOSEN}{seed}" for seed in (2, 3)),
        *(
            f"seeds_RTE_full/runs/RTE/full-lr1e-5-epochs1-seed{seed}"
            for seed in (2, 3)
        ),
    ]
    found = json.loads((sweep.out / "protocol.json").read_text())
    assert found["missing"] == []
    task = found["tasks"]["RTE"]
    assert task["halves"] == {"seed": 1, "choice": 20, "report": 20}
    assert task["majority_class"] == 50
    adapters, full = task["houlsby"], task["full"]
    assert adapters["chosen"] == "houlsby4-lr1e-2-epochs2"
    assert len(adapters["choice_scores"]) == 4
    assert max(adapters["choice_scores"].values()) == pytest.approx(61)
    assert adapters["seeds"] == full["seeds"] == [1, 2, 3]
    assert adapters["scores"] == [90, 90, 90]
    assert full["scores"] == [70, 70, 70]
    # Of 10 rows, as FakeRuns has them.
    assert adapters["examples_trained_on"] == 20
    assert full["examples_trained_on"] == 10
    assert adapters["trained_parameters"] == 4
    assert full["trained_parameters"] == 1000
    assert task["difference"] == pytest.approx(20)
    low, high = task["interval"]
    assert 0 < low < 20 < high and task["verdict"] == "confirmed"
    assert found["mean"]["difference"] == pytest.approx(20)
    line = "| RTE (acc.) | 50.0 | 90.0 ± 0.0 (3) | 70.0 ± 0.0 (3) | +20.0 | "
    assert line in done.stdout
    # Again: nothing is run, and the same is said.
    again = protocol()
    assert len(sweep.started()) == 9
    assert (
        again.stdout.partition("Scores on")[2]
        == (done.stdout.partition("Scores on")[2])
    )
    shown = protocol("--status").stdout
    assert re.findall("^== (.*)", shown, re.M) == [
        *("choice", "seeds_RTE_full", "seeds_RTE_houlsby")
    ]


@pytest.mark.gate
def test_missing_runs_are_named_and_run_later(protocol):
    lost = "choice/runs/RTE/houlsby2-lr1e-3-epochs2-seed1"
    later = "seeds_RTE_full/runs/RTE/full-lr1e-5-epochs1-seed3"
    mark(protocol, "fail", lost, later)
    done = protocol()
    assert done.returncode == 1
    assert "| RTE (acc.) | - | - | - | - | - | runs are missing |" in (
        done.stdout
    )
    missing = [path.partition("/runs/")[2] for path in (lost, later)]
    for name in missing:
        assert f"missing: {name}\n" in done.stdout
    results = protocol.sweep.out / "protocol.json"
    found = json.loads(results.read_text())
    assert found["missing"] == missing
    assert found["tasks"] == {"RTE": None} and found["mean"] is None
    (protocol.sweep.folder / "fail").unlink()
    assert protocol().returncode == 0
    assert json.loads(results.read_text())["missing"] == []


@pytest.mark.gate
def test_a_protocol_that_was_killed_goes_on(protocol):
    sweep = protocol.sweep
    mark(protocol, "slow", f"seeds_RTE_houlsby/runs/{CHOSEN}2")
    process = subprocess.Popen(
        [SCRIPTS / "paper_protocol.sh", sweep.out],
        env=sweep.own_environment({"GLUE_DIR": sweep.folder / "glue", **AXES}),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: len(sweep.started()) == 6)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (sweep.folder / "go").touch()
    done = protocol()
    assert done.returncode == 0, done.stderr
    # The one that was killed is run again, no other.
    assert len(sweep.started()) == 9 + 1
    assert sweep.started()[5] == sweep.started()[6]


@pytest.mark.gate
def test_what_the_script_does_not_take_is_refused(protocol):
    for changed, message in (
        ({"SEEDS": "1"}, "error: SEEDS is '1', expected two seeds or more"),
        ({"TASKS": ""}, "error: TASKS is empty"),
        ({"TASKS": "STS-B"}, "where there is no folder"),
        ({"TASKS": "RTE SST-2"}, "where there is no file: the rows to train"),
        ({"HALVES_SEED": "x"}, "invalid int value: 'x'"),
    ):
        done = protocol(**changed)
        assert done.returncode == 1 and message in done.stderr
        assert len(done.stderr.splitlines()) == 1
    refused = protocol("--", "--seed=3")
    assert refused.returncode == 1
    assert "error: --seed is given after --" in refused.stderr
    assert protocol.sweep.started() == []
    grid = protocol("--grid")
    assert grid.returncode == 0 and "has 5 runs; with Slurm:" in grid.stdout
    assert counts(protocol("--status").stdout)["waiting"] == 5


def test_predictions_of_other_rows_are_refused(tmp_path):
    path = tmp_path / "test_predictions.tsv"
    path.write_text("index\tprediction\n0\tentailment\n1\tnot_entailment\n")
    chosen = paper_protocol.Chosen(None, "", (tmp_path,) * 2, ())
    task = get_task("RTE")
    found = chosen.predictions(task, 2)
    assert (found == np.array([[0, 1]] * 2)).all()
    message = refusal(chosen.predictions, task, 3)
    assert message.startswith(f"{path} has 2 predictions, expected 3: ")
