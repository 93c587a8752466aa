"""The soak finds what a program loses, and tells of it."""

import dataclasses
import itertools
import random
import time
from functools import partial

import benches
import pytest
from conftest import read_json, run_process

from lab import report
from lab.trials import __main__ as soak
from lab.trials import faults, runs, starts
from lab.trials.starts import Moment
from lab.trials.trial import (
    DIFFERENT,
    HALF,
    LOST,
    REFUSED,
    SAME,
    WHOLE,
    Plan,
)

pytestmark = pytest.mark.older_stack

# Counts to 20 in steps that a file remembers. `{write}` writes the file.
PROGRAM = """
import json, os, pathlib, sys, time
out = pathlib.Path(sys.argv[1])
path = out / "state.json"
number = 0
if path.exists():
    try:
        number = json.loads(path.read_text())["number"]
        total = json.loads(path.read_text())["total"]
    except (ValueError, KeyError, TypeError) as error:
        {damaged}
else:
    total = 0
while number < 20:
    number += 1
    total += number
    content = json.dumps(dict(number=number, total=total))
    {write}
    time.sleep(0.002)
(out / "result.txt").write_text(str(total))
"""
REFUSE = 'raise SystemExit("error: damaged")'
REPLACE = (
    'new = out / "state.json.tmp-1"; new.write_text(content); '
    "os.replace(new, path)"
)
# Half of it, then the rest.
IN_PLACE = (
    'file = open(path, "w"); file.write(content[:9]); file.flush(); '
    "time.sleep(0.002); file.write(content[9:]); file.close()"
)


@pytest.fixture
def make_bench(tmp_path):
    """A stand-in of the program, and the reference of its run."""

    def make(write=REPLACE, damaged=REFUSE):
        source = PROGRAM.replace("{write}", write)
        return benches.make_bench(
            tmp_path, source.replace("{damaged}", damaged)
        )

    return make


def outcomes(only, bench, seeds, **plan):
    """Yields the outcomes of the trials of some seeds."""
    for seed in range(seeds):
        drawn = dataclasses.replace(Plan.draw(only, seed), **plan)
        yield faults.TRIALS[only](drawn, bench)


def is_found(what, only, bench):
    return any(outcome.what == what for outcome in outcomes(only, bench, 20))


def test_a_program_that_goes_on_loses_nothing(make_bench):
    bench = make_bench()
    for only in (faults.KILL, faults.WRITE):
        for outcome in outcomes(only, bench, 2):
            assert outcome.what == SAME, outcome
            starts = len(outcome.note.split(";"))
            assert bench.kills == starts - outcome.note.count("had ended")
            bench.kills = 0
    assert bench.reference.has(WHOLE) and bench.reference.has(HALF)
    # Damage is refused or mended.
    for what in (SAME, REFUSED):
        assert is_found(what, faults.DAMAGE, bench)
    # A write that fails must be refused too.
    plan = {"state": "", "mounts": False, "part": 0.5}
    [outcome] = outcomes(faults.FULL, bench, 1, **plan)
    assert outcome.what == LOST and "OSError" in outcome.note


def test_a_program_that_writes_in_place_is_found(make_bench):
    assert is_found(LOST, faults.WRITE, make_bench(IN_PLACE))


def test_a_program_that_begins_anew_with_other_numbers_is_found(make_bench):
    bench = make_bench(IN_PLACE, "number = total = 7")
    assert is_found(DIFFERENT, faults.WRITE, bench)


@pytest.mark.parametrize(
    "damaged",
    [
        "raise",
        'print("error: damaged", file=sys.stderr); sys.exit(3)',
        '(out / "result.txt").unlink(); raise SystemExit("error: damaged")',
    ],
)
def test_no_traceback_no_other_code_and_no_change_is_a_refusal(
    make_bench, damaged
):
    bench = make_bench(REPLACE, damaged)
    kinds = {outcome.what for outcome in outcomes(faults.DAMAGE, bench, 8)}
    assert LOST in kinds and REFUSED not in kinds


def test_a_program_that_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(starts, "PATIENCE", 0.2)
    program = tmp_path / "program.py"
    program.write_text("import time; time.sleep(100)")
    end = starts.start([str(program)], str(tmp_path), Moment(seconds=0.2))
    assert end.is_late and not end.was_killed
    assert str(end).startswith("no end")


@pytest.mark.parametrize("inside", [None, {"largest_file": 9**9}])
def test_the_end_of_a_program_is_told(tmp_path, inside):
    program = tmp_path / "program.py"
    for text, code, line in (
        ("import sys; sys.exit('error: no')", 1, "error: no"),
        ("raise ValueError('odd')", 1, "ValueError: odd"),
        (f"import sys; assert sys.argv[0] == {str(program)!r}", 0, ""),
    ):
        program.write_text(text)
        end = starts.start([str(program)], str(tmp_path), inside=inside)
        assert end.code == code and line in end.stderr
        assert end.refusal == ("error: no" if line == "error: no" else None)


def test_a_seed_draws_the_same_trial():
    for seed in range(50):
        plan = Plan.draw(faults.KILL, seed)
        assert plan == Plan.draw(faults.KILL, seed)
        assert plan != Plan.draw(faults.WRITE, seed)
    assert len({Plan.draw(faults.KILL, seed) for seed in range(50)}) == 50


@pytest.mark.parametrize("how", faults.DAMAGES)
def test_damage_changes_a_file(tmp_path, how):
    content = random.Random(0).randbytes(100)
    path = tmp_path / "file"
    path.write_bytes(content)
    assert faults.do_damage(path, how, 0.5)
    assert not path.exists() or path.read_bytes() != content


def test_what_tells_of_a_process_is_not_compared(tmp_path):
    for name, text in (
        ("run.json", '{"a": 1, "b": 2}'),
        ("cost.json", "1"),
        ("run.lock", "process 1"),
        ("events.out.tfevents.1", "x"),
        ("run.json.tmp-12", "{"),
        ("model.ckpt-4.index", "old"),
        ("model.ckpt-8.index", "new"),
        ("checkpoint", "newest\nall\n"),
    ):
        (tmp_path / name).write_text(text)
    contents = runs.result(tmp_path)
    assert set(contents) == {"run.json", "model.ckpt-8.index", "checkpoint"}
    (tmp_path / "run.json").write_text('{"b": 2,\n"a": 1}')
    (tmp_path / "checkpoint").write_text("newest\n")
    assert runs.result(tmp_path) == contents
    (tmp_path / "model.ckpt-8.index").write_text("bad")
    different = runs.differences(contents, runs.result(tmp_path))
    assert different == ["model.ckpt-8.index"]
    # Two versions of an export must be the same.
    for version in "12":
        (tmp_path / version).mkdir()
        (tmp_path / version / "file").write_text("a")
    assert runs.result(tmp_path)["version/file"] != "several"
    (tmp_path / "2" / "file").write_text("b")
    assert runs.result(tmp_path)["version/file"] == "several"


def test_soaks_add_up(tmp_path, monkeypatch):
    page, path = tmp_path / "page.md", tmp_path / "soaks.json"
    monkeypatch.setattr(report, "RELIABILITY", page)
    begin, end = report.marks("soak")
    page.write_text(f"before\n{begin}earlier\n{end}after\n")
    name = runs.RUNS[0].name
    about = dict(cores=2, processor="p", tensorflow="2", tried="damage")
    for number, what in enumerate((SAME, REFUSED, SAME)):
        trial = {"only": "damage", "run": name, "what": what}
        more = dict(minutes=number + 1.2, seeds=[number, 9], kills=number)
        soak.add(path, {**about, **more}, soak.count([trial, trial]))
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "earlier" not in text
    assert (
        "- damage: 2 trials with 2 kills in 3 minutes on 2 cores (p), "
        "TensorFlow 2; seeds 2 to 9\n" in text
    )
    assert "- damage: 2 trials in 1 minutes on" in text
    row = next(line for line in text.splitlines() if "| all |" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert [c for c in cells if c != "0"] == ["all", "6", "6", "2"]


def test_items_are_worked_on_in_processes_until_the_time_is_over():
    calls = (partial(abs, -number) for number in itertools.count())
    results = list(soak.in_processes(2, calls, time.monotonic() + 0.5))
    assert len(results) > 5
    assert sorted(results) == list(range(len(results)))
    with pytest.raises(ZeroDivisionError):
        list(soak.in_processes(1, [partial(divmod, 1, 0)]))


@pytest.mark.gate
def test_a_trial_of_the_program_itself(tmp_path):
    seed = next(n for n, run in enumerate(runs.RUNS) if run.name == "library")
    done = run_process(
        "-m",
        "lab.trials",
        "--only=damage",
        f"--seed={seed}",
        f"--output_dir={tmp_path}",
        program="-u",
    )
    assert done.stdout.splitlines()[-1].startswith("all ")
    record = read_json(tmp_path / "soak.json")
    assert record["seeds"] == [seed, seed]
    [trial] = record["trials"]
    assert trial["run"] == "library" and trial["what"] in (SAME, REFUSED)
    # The page is of soaks that try all.
    assert [path.name for path in tmp_path.iterdir()] == ["soak.json"]
