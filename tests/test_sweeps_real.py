"""Sweeps of real trainings, killed; the long one runs with `pytest -m slow`."""

import os
import random
import signal
import subprocess
import time
from shutil import rmtree

import pytest
from conftest import cells, read_json
from run_folders import artifact_bytes
from safetensors.numpy import load_file
from sweep_stand_in import TINY, Sweep, counts, make_real, wait_for

from adapter_bert.reports import collect_runs

pytestmark = pytest.mark.newer_stack

AXES = {
    "TASKS": "RTE SST-2",
    "SIZES": "2 4 8",
    "RATES": "1e-3 3e-3",
    "EPOCHS": "1",
    "SEEDS": " ".join(map(str, range(1, 26))),
}
# Alone, a driver or its xargs leaves runs alive, which end by themselves.
KILLS = ("all", "driver", "all", "xargs", "all") * 2


def kill(process, how):
    """Kills a driver alone, its xargs alone, or it with all its runs."""
    if how == "all":
        os.killpg(process.pid, signal.SIGKILL)
    elif how == "driver":
        process.kill()
    else:
        subprocess.run(["pkill", "-9", "-P", str(process.pid), "xargs"])
    process.wait()


def events(run):
    """When a run's attempts started and ended."""
    return [row[1] for row in cells(run / "attempts.tsv")]


@pytest.mark.gate
def test_a_killed_sweep_ends_in_the_same_bits(tmp_path, tiny_bert):
    sweep = make_real(Sweep(tmp_path), tiny_bert)
    quiet = {"SIZES": "4", "TASKS": "RTE", "EPOCHS": "20"}
    process = sweep.start(*TINY, **quiet)
    run = sweep.name("RTE/houlsby4-lr1e-3-epochs20-seed1")
    wait_for(lambda: (run / "model.ckpt-5.index").exists())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (run / "done").exists()
    sweep.succeed(*TINY, **quiet)
    assert events(run) == ["start", "start", "end 0"]
    killed = artifact_bytes(run)
    assert read_json(run / "cost.json")["resumed"] is True
    rmtree(run)
    sweep.succeed(*TINY, **quiet)
    assert artifact_bytes(run) == killed
    # What the whole took is only known of the second.
    [(_, collected)] = collect_runs.find_runs([str(sweep.out)]).iterrows()
    assert collected.cost["processor_seconds"] > 1
    assert collected.cost["peak_memory_bytes"] > 2**27
    held = load_file(run / "adapter/adapter.safetensors")
    assert collected.kept == sum(value.size for value in held.values())
    results = read_json(run / "eval_results.json")
    assert len(results["dev_data"]["dev"]) == 64


@pytest.mark.slow
def test_no_run_is_lost_or_doubled(tmp_path, tiny_bert):
    sweep = make_real(Sweep(tmp_path), tiny_bert)
    rng = random.Random(0)
    for number, how in enumerate(KILLS, 1):
        process = sweep.start("--jobs", "2", *TINY, **AXES)
        time.sleep(rng.uniform(5, 60))
        kill(process, how)
        shown = counts(sweep.run("--status").stdout)
        print(f"kill {number}, {how}: {shown}", flush=True)
    process = sweep.start("--jobs", "2", *TINY, **AXES)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert counts(output)["finished"] == 300
    names = [row[0] for row in cells(sweep.out / "grid.tsv")]
    assert len(set(names)) == 300
    interrupted = []
    for name in names:
        *begun, end = events(sweep.name(name))
        # Nothing starts while another attempt runs, nothing after its end.
        assert end == "end 0" and {*begun} == {"start"}
        if len(begun) > 1:
            interrupted.append(name)
    print(f"{len(interrupted)} runs were cut off and went on")
    assert len(interrupted) >= 3
    # They ended in the bits of runs that were not.
    for name in rng.sample(interrupted, 3):
        content = artifact_bytes(sweep.name(name))
        rmtree(sweep.name(name))
        row = str(names.index(name) + 1)
        environment = {**sweep.environment, "SLOT": "0", "JOBS": "2"}
        subprocess.run(
            ["scripts/internal/run_grid_row.sh", sweep.out, row],
            env=environment,
            check=True,
        )
        assert artifact_bytes(sweep.name(name)) == content
