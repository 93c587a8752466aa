"""Grids of runs: sweeps, their states, kills, and Slurm."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, SENTENCES, write_table

SCRIPTS = ROOT / "scripts"
SMALL = {
    "TASKS": "RTE SST-2",
    "SIZES": "2 4",
    "RATES": "1e-3",
    "EPOCHS": "1",
    "SEEDS": "1",
}
# In the place of Python: appends to `runs`, fails where `fail` names the run,
# takes a while where `slow` does, and writes what a run writes.
STAND_IN = """#!/usr/bin/env bash
case $1 in *grid_status.py) exec {python} "$@" ;; esac
for argument; do
  case $argument in --output_dir=*) out=${{argument#*=}} ;; esac
done
echo "$out" >> {folder}/runs
if grep -qs "$out" {folder}/fail; then
  echo 'error: the data is missing' >&2
  echo 'a notice of TensorFlow' >&2
  exit 1
fi
if grep -qs "$out" {folder}/slow; then
  echo "I1121 15:53:31.1 139 progress.py:55] train: 64/80 examples"
  sleep 31.41
fi
echo '{{}}' > "$out/eval_results.json"
"""


class Sweep:
    """A sweep over two tasks and two sizes, with a stand-in for Python."""

    def __init__(self, folder):
        self.folder = folder
        self.out = folder / "out"
        stand_in = folder / "python"
        stand_in.write_text(
            STAND_IN.format(python=sys.executable, folder=folder)
        )
        stand_in.chmod(0o755)
        for task in SMALL["TASKS"].split():
            (folder / "glue" / task).mkdir(parents=True)
        self.environment = {
            **os.environ,
            **SMALL,
            "PYTHON": str(stand_in),
            "BERT": str(folder),
            "GLUE_DIR": str(folder / "glue"),
        }

    def start(self, *arguments, **environment):
        return subprocess.Popen(
            [SCRIPTS / "sweep_glue.sh", self.out, *arguments],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(
            arguments, process.returncode, output, errors
        )

    def name(self, name):
        """The folder of a run."""
        return self.out / "runs" / name

    def started(self):
        """Folders of the runs that were started, in order."""
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def mark(self, kind, *names):
        """Says which runs are to fail or to be slow."""
        lines = "".join(f"{self.name(name)}\n" for name in names)
        (self.folder / kind).write_text(lines)


@pytest.fixture
def sweep(tmp_path):
    return Sweep(tmp_path)


def counts(text):
    """The numbers of the table of states."""
    lines = text[text.index("state") :].splitlines()[1:7]
    return {line.split()[0]: int(line.split()[1]) for line in lines}


RUNS = [
    f"{task}/houlsby{size}-lr1e-3-epochs1-seed1"
    for task in ("RTE", "SST-2")
    for size in (2, 4)
]


def wait_for(condition, seconds=60):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


# What is run


def test_the_default_grid_is_the_papers(sweep):
    for axis in SMALL:
        del sweep.environment[axis]
    done = sweep.run("--grid")
    assert done.returncode == 0, done.stderr
    lines = (sweep.out / "grid.tsv").read_text().splitlines()
    assert len(lines) == 8 * 3 * 3 * 2 * 5
    assert "sbatch --array=1-720 scripts/sweep.sbatch" in done.stdout
    assert sweep.started() == []


def test_a_row_is_a_command_that_can_be_copied(sweep):
    sweep.run("--grid", "--", "--compute_dtype=bfloat16", METHODS="houlsby")
    row = (sweep.out / "grid.tsv").read_text().splitlines()[1]
    name, command = row.split("\t")
    assert name == RUNS[1]
    words = shlex.split(command)
    assert words[0] == sweep.environment["PYTHON"]
    assert words[1] == "run_classifier.py"
    assert {
        "--task_name=RTE",
        f"--data_dir={sweep.folder}/glue/RTE",
        "--tuning_method=houlsby",
        "--adapter_size=4",
        "--learning_rate=1e-3",
        "--num_train_epochs=1",
        "--seed=1",
        f"--output_dir={sweep.name(name)}",
        "--compute_dtype=bfloat16",
    } <= set(words)


def test_methods_have_the_axes_that_they_need(sweep):
    sweep.run(
        "--grid",
        METHODS="full top_layers ia3",
        LAYERS="1 2",
        FULL_RATES="2e-5",
        TASKS="RTE",
    )
    rows = (sweep.out / "grid.tsv").read_text().splitlines()
    assert [row.split("\t")[0] for row in rows] == [
        "RTE/full-lr2e-5-epochs3-seed1",
        "RTE/top_layers1-lr2e-5-epochs3-seed1",
        "RTE/top_layers2-lr2e-5-epochs3-seed1",
        "RTE/ia3-lr1e-3-epochs1-seed1",
    ]
    words = shlex.split(rows[2].split("\t")[1])
    assert "--tuning_method=top_layers(k=2)" in words


def test_squad_has_a_grid_of_its_own(sweep):
    done = subprocess.run(
        [SCRIPTS / "sweep_squad.sh", sweep.out, "--grid"],
        env={
            **os.environ,
            "BERT": str(sweep.folder),
            "SQUAD_DIR": str(sweep.folder),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = (sweep.out / "grid.tsv").read_text().splitlines()
    # Adapters: 3 sizes x 4 rates x 3 epochs x 3 seeds; full: 3 x 3 x 3.
    assert len(rows) == 108 + 27
    assert all("run_squad.py --train_file=" in row for row in rows)


@pytest.mark.parametrize(
    "arguments, environment, expected",
    [
        ((), {}, "usage: BERT="),
        (("out", "--jobs", "0"), {}, "error: --jobs 0, expected a number"),
        (("out", "--job", "2"), {}, "error: unknown option --job"),
        (("out", "two"), {}, "error: one OUTPUT_DIR is expected"),
        (("out",), {"BERT": ""}, "error: the variable BERT is not set"),
        (("out",), {"GLUE_DIR": ""}, "error: the variable GLUE_DIR is not"),
    ],
)
def test_a_wrong_command_is_refused(sweep, arguments, environment, expected):
    done = subprocess.run(
        [SCRIPTS / "sweep_glue.sh", *arguments],
        env={**sweep.environment, **environment},
        cwd=sweep.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert expected in done.stderr
    assert not (sweep.folder / "out").exists()


# How it is run


def test_a_failed_run_is_reported_and_stops_no_other(sweep):
    sweep.mark("fail", RUNS[0], RUNS[2])
    done = sweep.run()
    assert done.returncode == 1
    assert counts(done.stdout) == {
        "finished": 2,
        "running": 0,
        "interrupted": 0,
        "failed": 2,
        "waiting": 0,
        "all": 4,
    }
    assert f"{RUNS[0]}: failed: error: the data is missing" in done.stderr
    assert f"failed: {RUNS[2]}: error: the data is missing" in done.stdout
    assert sweep.started() == [str(sweep.name(name)) for name in RUNS]
    # Only those are tried again.
    (sweep.folder / "fail").unlink()
    again = sweep.run()
    assert again.returncode == 0
    assert counts(again.stdout)["finished"] == 4
    assert sweep.started()[4:] == [
        str(sweep.name(name)) for name in (RUNS[0], RUNS[2])
    ]


def test_the_state_is_shown_without_running_anything(sweep):
    assert "start the sweep first" in sweep.run("--status").stderr
    sweep.mark("slow", RUNS[1])
    process = sweep.start()
    wait_for(lambda: len(sweep.started()) == 2)
    wait_for(lambda: (sweep.name(RUNS[1]) / "log.txt").read_text())
    shown = sweep.run("--status", BERT="", GLUE_DIR="").stdout
    assert counts(shown) == {
        "finished": 1,
        "running": 1,
        "interrupted": 0,
        "failed": 0,
        "waiting": 2,
        "all": 4,
    }
    assert f"running: {RUNS[1]}: train: 64/80 examples" in shown
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shown = sweep.run("--status").stdout
    assert counts(shown)["interrupted"] == 1
    assert f"interrupted: {RUNS[1]}: train: 64/80 examples" in shown


def test_a_run_that_outlives_its_driver_is_waited_for(sweep):
    sweep.mark("slow", RUNS[0])
    first = sweep.start()
    wait_for(lambda: len(sweep.started()) == 1)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    # xargs and the run live on; a second driver must not start it again.
    second = sweep.start("--jobs", "2")
    wait_for(lambda: len(sweep.started()) >= 2)
    subprocess.run(["pkill", "-f", "-x", "sleep 31.41"], check=True)
    output, _ = second.communicate(timeout=60)
    assert f"{RUNS[0]}: runs already elsewhere, waiting for it" in output
    assert counts(output)["finished"] == 4
    assert sorted(sweep.started()) == [str(sweep.name(n)) for n in RUNS]


def test_jobs_run_at_the_same_time(sweep):
    sweep.mark("slow", RUNS[0], RUNS[1])
    process = sweep.start("--jobs", "2")
    wait_for(lambda: len(sweep.started()) == 2)
    shown = sweep.run("--status").stdout
    assert counts(shown)["running"] == 2
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# With the real program


@pytest.fixture
def real(sweep, tiny_bert):
    """The sweep with real runs over two tiny tasks, a thing of seconds."""
    pairs = [
        (str(i), text, "the cat", {"good": "entailment"}.get(x, "not_" + E))
        for i, (text, x) in enumerate(SENTENCES * 5)
    ]
    singles = [(text, str(int(x == "good"))) for text, x in SENTENCES * 5]
    for split in ("train", "dev"):
        write_table(sweep.folder / "glue/RTE" / f"{split}.tsv", pairs, "abcd")
        write_table(sweep.folder / "glue/SST-2" / f"{split}.tsv", singles)
    sweep.environment.update(PYTHON=sys.executable, BERT=str(tiny_bert))
    return sweep


E = "entailment"
TINY = ("--", "--max_seq_length=24", "--save_checkpoints_steps=5")


def test_a_killed_sweep_ends_in_the_same_bits(real):
    quiet = {"SIZES": "4", "TASKS": "RTE", "EPOCHS": "20"}
    process = real.start(*TINY, **quiet)
    run = real.name("RTE/houlsby4-lr1e-3-epochs20-seed1")
    wait_for(lambda: (run / "model.ckpt-5.index").exists())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (run / "done").exists()
    done = real.run(*TINY, **quiet)
    assert done.returncode == 0, done.stderr
    attempts = (run / "attempts.tsv").read_text().splitlines()
    assert [line.split("\t")[1] for line in attempts] == [
        "start",
        "start",
        "end 0",
    ]
    killed = (run / "adapter" / "adapter.safetensors").read_bytes()
    shutil.rmtree(run)
    assert real.run(*TINY, **quiet).returncode == 0
    assert (run / "adapter" / "adapter.safetensors").read_bytes() == killed
    assert json.loads((run / "eval_results.json").read_text())
