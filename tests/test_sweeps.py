"""How the runs of a sweep are run: failures, states, kills, and jobs."""

import os
import signal

import pytest
from conftest import read_lines, run_command
from sweep_stand_in import RUNS, SCRIPTS, counts, wait_for

pytestmark = pytest.mark.newer_stack


def test_a_failed_run_is_reported_and_stops_no_other(sweep):
    sweep.mark("fail", RUNS[0], RUNS[2])
    done = sweep.run()
    assert done.returncode == 1
    assert counts(done.stdout) == {"finished": 2, "failed": 2, "all": 4}
    assert f"{RUNS[0]}: failed: error: the data is missing" in done.stderr
    assert f"failed: {RUNS[2]}: error: the data is missing" in done.stdout
    assert sweep.started() == [str(sweep.name(name)) for name in RUNS]
    # Only those are tried again.
    (sweep.folder / "fail").unlink()
    assert counts(sweep.succeed().stdout)["finished"] == 4
    assert sweep.started()[4:] == [str(sweep.name(n)) for n in RUNS[::2]]


def test_the_state_is_shown_without_running_anything(sweep):
    assert "start the sweep first" in sweep.run("--status").stderr
    sweep.mark("slow", RUNS[1])
    process = sweep.start()
    wait_for(lambda: len(sweep.started()) == 2)
    wait_for(lambda: (sweep.name(RUNS[1]) / "log.txt").read_text())
    shown = sweep.run("--status", BERT="", GLUE_DIR="").stdout
    states = {"finished": 1, "running": 1, "waiting": 2, "all": 4}
    assert counts(shown) == states
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
    # xargs and the run live on; a second driver must not start it again, but
    # another one at the same time.
    sweep.mark("slow", RUNS[0], RUNS[1])
    second = sweep.start("--jobs", "2")
    wait_for(lambda: len(sweep.started()) >= 2)
    wait_for(lambda: counts(sweep.run("--status").stdout)["running"] == 2)
    (sweep.folder / "go").touch()
    output, _ = second.communicate(timeout=60)
    assert f"{RUNS[0]}: runs already elsewhere, waiting for it" in output
    assert counts(output)["finished"] == 4
    assert sorted(sweep.started()) == [str(sweep.name(n)) for n in RUNS]


def test_a_driver_runs_the_grid_that_it_wrote(sweep):
    sweep.mark("slow", RUNS[0])
    process = sweep.start()
    wait_for(lambda: len(sweep.started()) == 1)
    # As another one that began with it does.
    other = sweep.out / "other"
    other.write_text("")
    other.rename(sweep.out / "grid.tsv")
    (sweep.folder / "go").touch()
    process.communicate(timeout=60)
    assert sweep.started() == [str(sweep.name(name)) for name in RUNS]


def test_jobs_share_the_gpus(sweep, folders):
    driver, gpus = folders("bin") / "nvidia-smi", sweep.folder / "gpus"
    driver.write_text("#!/bin/sh\nseq 0 3\n")
    driver.chmod(0o755)
    path = {"PATH": f"{driver.parent}:{os.environ['PATH']}"}
    sweep.environment.pop("CUDA_VISIBLE_DEVICES", None)
    assert "only the GPUs 0 1 2 3, and TensorFlow takes" in sweep.refused(
        "--jobs", "5", **path
    )
    assert not sweep.out.exists()
    sweep.succeed("--jobs", "2", **path)
    used = read_lines(gpus)
    assert len(used) == 4 and set(used) == {"0,1", "2,3"}
    # Without a driver there is none.
    driver.write_text("#!/bin/sh\necho failed\nexit 9\n")
    sweep.succeed("--jobs", "5", **path, SEEDS="4")
    # Of the user's choice, and none.
    for number, (visible, shares) in enumerate(
        {"3,1": {"3", "1"}, "-1": {"-1"}}.items(), 5
    ):
        path.update(CUDA_VISIBLE_DEVICES=visible, SEEDS=str(number))
        gpus.unlink()
        sweep.succeed("--jobs", "2", **path)
        assert {*read_lines(gpus)} == shares


def test_what_another_command_came_to_is_not_taken_for_this_ones(sweep):
    sweep.succeed()
    assert f"{RUNS[0]}: finished by another command" in sweep.refused(
        "--", "--compute_dtype=bfloat16"
    )
    assert len(sweep.started()) == 4
    kept = [sweep.name(name) / "flags" for name in RUNS]
    times = [path.stat().st_mtime_ns for path in kept]
    sweep.succeed()
    assert [path.stat().st_mtime_ns for path in kept] == times
    # Unless the user says that only paths have changed.
    for path in kept:
        path.unlink()
    sweep.succeed("--", "--data=elsewhere")
    # Where it lies, and which Python runs it, is another matter.
    sweep.out = sweep.out.rename(sweep.folder / "moved")
    other = sweep.folder / "another python"
    (sweep.folder / "python").rename(other)
    sweep.succeed("--", "--data=elsewhere", PYTHON=str(other))
    assert len(sweep.started()) == 4


def test_a_grid_does_not_change_under_a_running_one(sweep):
    sweep.mark("slow", RUNS[0])
    process = sweep.start()
    wait_for(lambda: sweep.started())
    errors = sweep.refused("--grid", SIZES="2")
    assert errors.startswith("error: another grid is running in ")
    sweep.succeed("--grid")
    (sweep.folder / "go").touch()
    process.communicate(timeout=60)
    sweep.succeed("--grid", SIZES="2")
    assert len(sweep.rows()) == 2


def test_a_grid_whose_state_cannot_be_told_is_left_alone(sweep):
    sweep.run("--grid")
    grid = sweep.out / "grid.tsv"
    before = grid.read_text()
    assert "error: false cannot tell whether another" in sweep.refused(
        "--grid", SIZES="2", PYTHON="false"
    )
    assert grid.read_text() == before
    assert [*sweep.out.iterdir()] == [grid]


def test_the_reason_of_a_failure_is_its_own_attempts(sweep):
    quiet = {"TASKS": "RTE", "SIZES": "2"}
    sweep.mark("fail", RUNS[0])
    sweep.run(**quiet)
    (sweep.folder / "fail").unlink()
    stand_in = sweep.folder / "python"
    text = stand_in.read_text()
    for ending, reason in (
        ("echo 'ValueError: x' >&2; exit 1\n", "ValueError: x"),
        ("kill -9 $$\n", "killed by signal 9; was there too little memory?"),
    ):
        stand_in.write_text(text + ending)
        assert f"failed: {RUNS[0]}: {reason}\n" in sweep.run(**quiet).stdout
    # Interrupted from the keyboard: the programs end so.
    stand_in.write_text(text + "exit 130\n")
    assert counts(sweep.run(**quiet).stdout)["interrupted"] == 1


def test_a_sweep_may_start_anywhere_and_cores_are_those_of_the_process(
    sweep, folders
):
    name = folders("a folder with spaces")
    done = run_command(
        SCRIPTS / "sweep_glue.sh",
        *("it's out", "--jobs", "2"),
        env={
            **sweep.environment,
            "PYTHON": "../python",
            "OMP_NUM_THREADS": "8",
        },
        cwd=name,
        check=True,
    )
    assert counts(done.stdout)["finished"] == 4
    assert sweep.started()[0].startswith(f"{name}/it's out/runs/")
    cores = len(os.sched_getaffinity(0)) // 2
    shares = set(read_lines(sweep.folder / "cores"))
    if cores:
        sizes = [len(share.split(",")) for share in shares]
        assert sizes == [cores] * 2
