"""Rights, mounts, clocks and company, as the soak gives them to a stand-in."""

import dataclasses
import multiprocessing
import os

import benches
import pytest
from conftest import ROOT

from lab.trials import faults, linux
from lab.trials.faults import PERMISSION, TWO, VANISHED
from lab.trials.runs import OUT
from lab.trials.trial import DIFFERENT, HALF, LOST, SAME, WHOLE, YEAR, Plan

pytestmark = pytest.mark.older_stack

# Counts in steps that a file remembers, by the number that it reads.
PROGRAM = """
import contextlib, json, os, pathlib, sys, time
sys.path.insert(0, {root!r})
from adapter_bert import command_line
from adapter_bert import folder_lock
from adapter_bert.errors import UserError

def work(out, step):
    path = out / "state.json"
    number = json.loads(path.read_text()) if path.exists() else 0
    while number < 20:
        number += step
        {check}
        new = out / "state.json.tmp-1"
        new.write_text(json.dumps(number))
        time.sleep({between})
        os.replace(new, path)
        time.sleep({pause})
    (out / "result.txt").write_text(f"{{number}} {{{also}}}")

def main():
    out = pathlib.Path(sys.argv[1])
    with {hold}:
        try:
            work(out, int(pathlib.Path(sys.argv[2]).read_text()))
        except OSError as error:
            {failure}

with command_line.run():
    main()
"""
CAREFUL = dict(
    between="0",
    # Longer than it takes to see a change and to act, on a busy machine.
    pause="0.02",
    check="folder_lock.check(str(path))",
    also="''",
    hold="folder_lock.hold(str(out))",
    failure="raise UserError(str(error)) from error",
)


@pytest.fixture
def make_bench(tmp_path):
    """A stand-in of the program, and the reference of its run."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "number").write_text("2")

    def make(**changes):
        source = PROGRAM.format(**{"root": str(ROOT), **CAREFUL, **changes})
        return benches.make_bench(tmp_path, source, "{data}/number")

    return make


DEFAULT = Plan(
    state="",
    shares=(0.5, 0.5, 0.5),
    count=1,
    is_first=False,
    which=0.0,
    part=0.0,
    how=0.0,
    reads=False,
    mounts=False,
    rare=1.0,
    wrong=(0.0,) * 9,
)


def try_plan(bench, only, **plan):
    """The outcome of a plan, and not of a seed's."""
    return faults.TRIALS[only](dataclasses.replace(DEFAULT, **plan), bench)


@pytest.mark.parametrize(
    "plan",
    [dict(is_first=True, state=HALF), dict(which=0.99, state=WHOLE, part=0.99)],
)
def test_a_right_that_is_missing_is_refused(make_bench, plan):
    outcome = try_plan(make_bench(), PERMISSION, **plan)
    assert outcome.what == SAME, outcome
    if plan.get("is_first"):
        assert "Permission denied" in outcome.note


def test_a_right_that_is_missing_and_a_traceback_are_found(make_bench):
    bench = make_bench(failure="raise", hold="contextlib.nullcontext()")
    outcome = try_plan(bench, PERMISSION, is_first=True, state=HALF)
    assert outcome.what == LOST and "PermissionError" in outcome.note
    # The trial has given back what it took.
    assert (bench.place / OUT).stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mounts", [False, True])
@pytest.mark.parametrize("plan", [dict(), dict(reads=True, is_first=True)])
def test_a_folder_that_vanishes_is_told(make_bench, plan, mounts):
    bench = make_bench()
    outcome = in_fork(lambda: try_plan(bench, VANISHED, mounts=mounts, **plan))
    assert outcome.what == SAME
    if plan:
        # A file, which cannot be a mount.
        assert "No such file" in outcome.note
        assert " moved away at the start" in outcome.note
        return
    # It may be gone between a look and a write.
    reasons = "moved, deleted or unmounted;", "No such file"
    assert any(text in outcome.note for text in reasons)
    how = "unmounted" if mounts and may_mount() else "moved away"
    assert f"out {how} at change" in outcome.note


def in_fork(function):
    """What a function gives in a process that may have mounts of its own."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(function()))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return queue.get()


def may_mount():
    """Whether this user may have mounts, which not every superuser may."""
    return in_fork(linux.has_own_mounts)


@pytest.mark.parametrize("mounts", [False, True])
def test_a_folder_that_is_made_anew_is_found(make_bench, mounts):
    bench = make_bench(check="out.mkdir(exist_ok=True)")
    for share in range(20, 60, 2):
        plan = dict(mounts=mounts, shares=(share / 100,))
        outcome = in_fork(lambda plan=plan: try_plan(bench, VANISHED, **plan))
        # Else it was gone between a look and a write.
        if outcome.what != SAME:
            break
    assert outcome.what == LOST and "state.json" in outcome.note
    assert "came into its place" in outcome.note
    # All is where it was, to be looked at.
    assert (bench.place / OUT / "run.lock").exists()


@pytest.mark.gate
def test_of_several_processes_one_runs(make_bench):
    bench = make_bench()
    for rare in (1.0, 0.0):
        plan = dict(count=3, rare=rare, part=0.3)
        # They may miss each other where a machine is slow.
        outcomes = [try_plan(bench, TWO, **plan) for _ in range(5)]
        assert {outcome.what for outcome in outcomes} == {SAME}, outcomes
        assert any("refused" in outcome.note for outcome in outcomes)


@pytest.mark.gate
def test_several_processes_that_disturb_each_other_are_found(make_bench):
    bench = make_bench(
        hold="contextlib.nullcontext()", failure="raise", between="0.02"
    )
    outcomes = (try_plan(bench, TWO, count=3, which=1.0) for _ in range(5))
    assert any(outcome.what == LOST for outcome in outcomes)


def test_a_program_that_believes_no_clock_is_the_same(make_bench):
    bench = make_bench()
    for seed in range(2):
        outcome = faults.set_clocks(Plan.draw(faults.CLOCK, seed), bench)
        assert outcome.what == SAME, outcome


def test_a_program_that_believes_its_clock_is_found(make_bench, monkeypatch):
    bench = make_bench(also="time.time() > path.stat().st_mtime - 60")
    # Without another start.
    monkeypatch.setattr(bench, "finish", bench.judge)
    wrong = (0.0, -YEAR, -YEAR)
    assert try_plan(bench, faults.CLOCK, wrong=wrong).what == DIFFERENT


@pytest.mark.gate
@pytest.mark.parametrize("failure", [CAREFUL["failure"], "raise"])
def test_a_disk_that_is_full_must_be_refused(make_bench, monkeypatch, failure):
    if not may_mount():
        pytest.skip("this user may not mount")
    # It is filled before the program goes on.
    monkeypatch.setattr(faults, "DISK", 2**20)
    bench = make_bench(failure=failure, pause="0.1")
    plan = dict(shares=(0.3,), mounts=True)
    outcome = in_fork(lambda: try_plan(bench, faults.FULL, **plan))
    assert "0 bytes left" in outcome.note
    assert "No space left on device" in outcome.note
    assert outcome.what == (LOST if failure == "raise" else SAME)
    assert not os.path.ismount(bench.place / OUT)
