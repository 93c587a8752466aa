"""Rights, mounts, clocks and company, as the soak gives them to a stand-in."""

import datetime
import json
import multiprocessing
import os
import subprocess
import sys
import time

import pytest
from conftest import ROOT

from lab.trials import (
    clock,
    company,
    kills,
    mounts,
    references,
    runs,
    surroundings,
)
from lab.trials.references import HALF, WHOLE
from lab.trials.runs import OUT, Run
from lab.trials.starts import NEVER, Moment
from lab.trials.surroundings import PERMISSION, VANISHED, Away, Mounted, Plan
from lab.trials.trials import DIFFERENT, LOST, SAME, Bench

pytestmark = pytest.mark.newer_stack

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

command_line.run(main)
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

    def make(**changes):
        program = tmp_path / "program.py"
        text = PROGRAM.format(**{"root": str(ROOT), **CAREFUL, **changes})
        program.write_text(text)
        run = Run("stand-in", str(program), ("{place}/out", "{data}/number"))
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "number").write_text("2")
        references.make(tmp_path, run, forked=False)
        reference = references.read(tmp_path, run)
        return Bench(tmp_path, reference, tmp_path / "trial", forked=False)

    return make


def try_plan(monkeypatch, bench, only, **plan):
    """The outcome of a plan, and not of a seed's."""
    default = Plan("", 0.5, False, 0.0, 0.0, False)
    monkeypatch.setattr(
        surroundings, "draw", lambda *_: default._replace(**plan)
    )
    return surroundings.run_trial(only, 0, bench)


@pytest.mark.parametrize(
    "plan",
    [
        dict(share=None, state=HALF),
        dict(share=None, reads=True),
        dict(mode=0.3),
        dict(which=0.99, state=WHOLE, mode=0.99),
    ],
)
def test_a_right_that_is_missing_is_refused(make_bench, monkeypatch, plan):
    outcome = try_plan(monkeypatch, make_bench(), PERMISSION, **plan)
    assert outcome.what == SAME, outcome
    if plan.get("share", 0) is None:
        assert "Permission denied" in outcome.note


def test_a_right_that_is_missing_and_a_traceback_are_found(
    make_bench, monkeypatch
):
    bench = make_bench(failure="raise", hold="contextlib.nullcontext()")
    outcome = try_plan(monkeypatch, bench, PERMISSION, share=None, state=HALF)
    assert outcome.what == LOST and "PermissionError" in outcome.note
    # The trial has given back what it took.
    assert (bench.place / OUT).stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mounted", [False, True])
@pytest.mark.parametrize("plan", [dict(), dict(reads=True, share=None)])
def test_a_folder_that_vanishes_is_told(make_bench, monkeypatch, plan, mounted):
    plan["mounted"] = mounted
    outcome = try_in_fork(monkeypatch, make_bench(), VANISHED, plan)
    if plan.get("reads"):
        # A file, which cannot be a mount.
        assert "No such file" in outcome.note
        mounted = False
    else:
        # It may be gone between a look and a write.
        told = "moved, deleted or unmounted;", "No such file"
        assert any(text in outcome.note for text in told)
    assert outcome.what == SAME
    how = "unmounted" if mounted and may_mount() else "moved away"
    if plan.get("reads"):
        assert f" {how} at the start" in outcome.note
    else:
        assert f"out {how} at change" in outcome.note


def try_in_fork(monkeypatch, bench, only, plan):
    """As `try_plan`, in a process that may have mounts of its own."""
    return in_fork(lambda: try_plan(monkeypatch, bench, only, **plan))


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
    return in_fork(mounts.are_own)


@pytest.mark.parametrize("mounted", [False, True])
def test_a_folder_that_is_made_anew_is_found(make_bench, monkeypatch, mounted):
    bench = make_bench(check="out.mkdir(exist_ok=True)")
    for share in range(20, 60, 2):
        plan = dict(mounted=mounted, share=share / 100)
        outcome = try_in_fork(monkeypatch, bench, VANISHED, plan)
        # Else it was gone between a look and a write.
        if outcome.what != SAME:
            break
    assert outcome.what == LOST and "state.json" in outcome.note
    assert "came into its place" in outcome.note
    # All is where it was, to be looked at.
    assert (bench.place / OUT / "run.lock").exists()


def test_what_is_mounted_is_taken_from_its_users(tmp_path):
    folder = tmp_path / "folder"
    (folder / "in").mkdir(parents=True)
    (folder / "file").write_text("text")

    def look():
        assert mounts.are_own()
        thing = Mounted(folder)
        with open(folder / "file") as file:
            thing.take()
            assert file.read() == "text"
        assert list(folder.iterdir()) == []
        (folder / "new").write_text("new")
        assert thing.give_back() == ["new"]
        assert (folder / "file").read_text() == "text"
        thing.end()
        mounts.small(folder / "in", 4096)
        with pytest.raises(OSError, match="No space"):
            (folder / "in" / "large").write_bytes(bytes(9000))
        mounts.take(folder / "in")

    if not may_mount():
        pytest.skip("this user may not mount")
    in_fork(look)
    names = sorted(path.name for path in folder.rglob("*"))
    assert names == ["file", "in"]


def test_a_file_can_be_moved_away(tmp_path):
    (tmp_path / "file").write_text("text")
    thing = Away(tmp_path / "file")
    thing.take()
    assert not (tmp_path / "file").exists()
    assert thing.give_back() == []
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.gate
def test_of_several_processes_one_runs(make_bench, monkeypatch):
    bench = make_bench()
    for killed in (None, 0):
        plan = company.Plan([0.0, 0.0, 0.1], killed, 0.3, "", False)
        monkeypatch.setattr(company, "draw", lambda *_, plan=plan: plan)
        # They may miss each other where a machine is slow.
        found = [company.run_trial(0, bench) for _ in range(5)]
        assert {outcome.what for outcome in found} == {SAME}, found
        assert any("refused" in outcome.note for outcome in found)


@pytest.mark.gate
def test_several_processes_that_disturb_each_other_are_found(
    make_bench, monkeypatch
):
    bench = make_bench(
        hold="contextlib.nullcontext()", failure="raise", between="0.02"
    )
    plan = company.Plan([0.0, 0.0, 0.0], None, 0.0, "", False)
    monkeypatch.setattr(company, "draw", lambda *_: plan)
    assert any(company.run_trial(0, bench).what == LOST for _ in range(5))


def test_runs_that_share_a_cache_are_others(tmp_path):
    found = company.cached_runs(runs.RUNS[0])
    assert len({run.words for run in found}) == len(found) == 3
    for run in found:
        command = run.command(tmp_path, tmp_path / "trial" / "0")
        folder = f"--frozen_layers_dir={tmp_path}/trial/0/../frozen"
        assert folder in command
        assert "--engine=estimator" in command


def test_a_program_that_believes_no_clock_is_the_same(make_bench):
    bench = make_bench()
    for seed in range(2):
        outcome = clock.run_trial(seed, bench)
        assert outcome.what == SAME, outcome


def test_a_program_that_believes_its_clock_is_found(make_bench, monkeypatch):
    bench = make_bench(also="time.time() > path.stat().st_mtime - 60")
    start = clock.Start((-clock.YEAR, -clock.YEAR), 0.0, 0.0, 0.0)
    plan = clock.Plan([], start, False)
    monkeypatch.setattr(clock, "draw", lambda *_: plan)
    monkeypatch.setattr(
        clock, "finish", lambda bench, note: compare(bench, note)
    )
    assert clock.run_trial(0, bench).what == DIFFERENT


def compare(bench, note):
    """Without another start."""
    what = DIFFERENT if bench.different() else SAME
    return surroundings.Outcome(what, note)


def test_a_process_sees_the_clock_that_it_is_given(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import datetime, json, sys, time\n"
        "first = time.time()\n"
        "time.sleep(0.4)\n"
        "utc = datetime.timezone.utc\n"
        "print(json.dumps([first, time.time(), time.time_ns() / 1e9,\n"
        "    datetime.datetime.now(utc).timestamp(),\n"
        "    datetime.datetime.now().timestamp(), sys.argv[1:]]))\n"
    )
    changed = {"clock": [[0, -7200], [0.3, 86400]]}
    words = ["lab/trials/inside.py", json.dumps(changed), str(program), "word"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    now = time.time()
    first, *later, arguments = json.loads(done.stdout)
    assert first == pytest.approx(now - 7200, abs=60)
    assert later == [pytest.approx(now + 86400, abs=60)] * 4
    assert arguments == ["word"]
    # This process has its own.
    assert time.time() == pytest.approx(
        datetime.datetime.now().timestamp(), abs=60
    )


def test_rights_can_be_dropped(tmp_path, plain_user):
    (tmp_path / "file").write_text("text")
    (tmp_path / "file").chmod(0)

    def read():
        try:
            return (tmp_path / "file").read_text()
        except PermissionError:
            return "denied"

    assert plain_user(read) == "denied"
    # Of another thread they are as before.
    assert read() == ("denied" if os.geteuid() else "text")


def test_a_moment_is_within_what_is_left():
    reference = references.Reference(None, None, {}, 1.0, 100, [])
    plan = Plan("", 0.5, False, 0.0, 0.0, False)
    find = surroundings.moment_of
    assert find(plan, reference) == Moment(changes=51)
    assert find(plan._replace(state=HALF), reference) == Moment(changes=26)
    assert find(plan._replace(share=None), reference) == NEVER


def test_what_a_run_reads_and_writes(tmp_path):
    by_name = {run.name: run for run in runs.RUNS}
    for name, reads in (
        ("classification, strategy", ["bert", "table"]),
        ("export", ["bert", "source"]),
        ("library", ["source"]),
    ):
        reference = references.Reference(by_name[name], None, {}, 1.0, 1, [])
        bench = Bench(tmp_path, reference, tmp_path / "trial")
        found = surroundings.places(bench, reads=True)
        assert [path.name for path in found] == reads
        (out,) = surroundings.places(bench, reads=False)
        assert out == tmp_path / "trial" / "out"


def test_a_seed_draws_the_same():
    for seed in range(30):
        for only in surroundings.KINDS:
            plan = surroundings.draw(only, seed)
            assert plan == surroundings.draw(only, seed)
        assert clock.draw(seed) == clock.draw(seed)
        assert company.draw(seed) == company.draw(seed)
    assert len({repr(clock.draw(seed)) for seed in range(30)}) == 30


@pytest.mark.gate
@pytest.mark.parametrize("failure", [CAREFUL["failure"], "raise"])
def test_a_disk_that_is_full_must_be_refused(make_bench, monkeypatch, failure):
    if not may_mount():
        pytest.skip("this user may not mount")
    # It is filled before the program goes on.
    monkeypatch.setattr(kills, "DISK", 2**20)
    bench = make_bench(failure=failure, pause="0.1")
    plan = kills.Plan([0.3], (0.0, 0.0), False, True)
    monkeypatch.setattr(kills, "draw", lambda *_: plan)
    outcome = in_fork(lambda: kills.run_trial(kills.FULL, 0, bench))
    assert "0 bytes left" in outcome.note
    assert "No space left on device" in outcome.note
    assert outcome.what == (LOST if failure == "raise" else SAME)
    assert not os.path.ismount(bench.place / OUT)
