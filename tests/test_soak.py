"""The soak finds what a program loses, and tells of it."""

import json
import random

import pytest
from conftest import ROOT, run_process

from adapter_bert.errors import UserError
from lab.trials import damage, kills, references, report, runs, starts, trials
from lab.trials.runs import Run
from lab.trials.starts import Moment
from lab.trials.trials import DIFFERENT, LOST, REFUSED, SAME, Bench

pytestmark = pytest.mark.newer_stack

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
        program = tmp_path / "program.py"
        program.write_text(
            PROGRAM.replace("{write}", write).replace("{damaged}", damaged)
        )
        run = Run("stand-in", str(program), ("{place}/out",))
        (tmp_path / "data").mkdir()
        references.make(tmp_path, run, forked=False)
        reference = references.read(tmp_path, run)
        return Bench(tmp_path, reference, tmp_path / "trial", forked=False)

    return make


def is_found(what, trial, seeds):
    return any(trial(seed).what == what for seed in range(seeds))


def test_a_program_that_goes_on_loses_nothing(make_bench):
    bench = make_bench()
    for only in (kills.KILL, kills.WRITE):
        for seed in range(2):
            bench.kills = 0
            outcome = kills.run_trial(only, seed, bench)
            assert outcome.what == SAME, outcome
            told = len(outcome.note.split(";"))
            assert bench.kills == told - outcome.note.count("had ended")
    assert bench.reference.states == [references.WHOLE, references.HALF]


def test_a_program_that_writes_in_place_is_found(make_bench):
    bench = make_bench(IN_PLACE)
    assert is_found(
        LOST, lambda seed: kills.run_trial(kills.WRITE, seed, bench), 20
    )


def test_a_program_that_begins_anew_with_other_numbers_is_found(make_bench):
    bench = make_bench(IN_PLACE, "number = total = 7")
    assert is_found(
        DIFFERENT, lambda seed: kills.run_trial(kills.WRITE, seed, bench), 20
    )


def test_damage_is_refused_or_mended(make_bench):
    bench = make_bench()
    for what in (SAME, REFUSED):
        assert is_found(what, lambda seed: damage.run_trial(seed, bench), 20)


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
    found = [damage.run_trial(seed, bench).what for seed in range(6)]
    assert LOST in found and REFUSED not in found


def test_a_write_that_fails_must_be_refused(make_bench, monkeypatch):
    bench = make_bench()
    plan = kills.draw(kills.FULL, 1)._replace(disk=False)
    monkeypatch.setattr(kills, "draw", lambda *_: plan)
    outcome = kills.run_trial(kills.FULL, 1, bench)
    assert outcome.what == LOST and "OSError" in outcome.note


def test_a_program_that_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(starts, "PATIENCE", 0.2)
    program = tmp_path / "program.py"
    program.write_text("import time; time.sleep(100)")
    end = starts.start(
        [str(program)], str(tmp_path), False, Moment(seconds=0.2)
    )
    assert end.is_late and not end.was_killed
    assert trials.about(end).startswith("no end")


def test_a_fork_ends_as_a_program_does(tmp_path):
    program = tmp_path / "program.py"
    for text, code, said in (
        ("import sys; sys.exit('error: no')", 1, "error: no"),
        ("raise ValueError('odd')", 1, "ValueError: odd"),
        (f"import sys; assert sys.argv[0] == {str(program)!r}", 0, ""),
    ):
        program.write_text(text)
        ends = [
            starts.start([str(program)], str(tmp_path), forked)
            for forked in (False, True)
        ]
        for end in ends:
            assert end.code == code and said in end.said
        assert ends[0].refusal == ends[1].refusal


def test_a_seed_draws_the_same_trial():
    for seed in range(50):
        assert kills.draw(kills.KILL, seed) == kills.draw(kills.KILL, seed)
        assert damage.draw(seed) == damage.draw(seed)
        assert trials.run_of(seed) == trials.run_of(seed)
    assert len({damage.draw(seed) for seed in range(50)}) == 50
    assert kills.draw(kills.KILL, 1) != kills.draw(kills.WRITE, 1)


@pytest.mark.parametrize("how", damage.HOW)
def test_damage_changes_a_file(tmp_path, how):
    content = random.Random(0).randbytes(100)
    path = tmp_path / "file"
    path.write_bytes(content)
    plan = damage.Plan(False, False, 0.0, how, 0.5, 3)
    assert damage.do(path, plan)
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
    found = runs.result(tmp_path)
    assert set(found) == {"run.json", "model.ckpt-8.index", "checkpoint"}
    (tmp_path / "run.json").write_text('{"b": 2,\n"a": 1}')
    (tmp_path / "checkpoint").write_text("newest\n")
    assert runs.result(tmp_path) == found
    (tmp_path / "model.ckpt-8.index").write_text("bad")
    different = runs.differences(found, runs.result(tmp_path))
    assert different == ["model.ckpt-8.index"]


def test_two_exported_versions_must_be_the_same(tmp_path):
    for version in "12":
        (tmp_path / version).mkdir()
        (tmp_path / version / "file").write_text("a")
    assert set(runs.result(tmp_path)) == {"version/file"}
    (tmp_path / "2" / "file").write_text("b")
    assert runs.result(tmp_path) == {"version/file": "several"}


def test_a_table_counts(tmp_path):
    names = [runs.RUNS[0].name, runs.RUNS[1].name]
    lines = [
        {"only": "kill", "seed": 2, "run": names[0], "what": SAME},
        {"only": "damage", "seed": 1, "run": names[0], "what": REFUSED},
        {"only": "damage", "seed": 3, "run": names[1], "what": LOST},
    ]
    for number, line in enumerate(lines):
        path = tmp_path / f"trials-{number}.jsonl"
        path.write_text(json.dumps(line) + "\n")
    found = report.read(tmp_path)
    assert [trial["seed"] for trial in found] == [1, 2, 3]
    table = report.rows(report.count(found))
    header, *others = table
    assert header[2:-3] == list(report.COLUMNS.values())
    counted = [
        {name: cell for name, cell in zip(header, row) if cell != "0"}
        for row in others
    ]
    kind, damaged = "kind of run", "a file is damaged"
    one = {"trials": "2", "killed": "1", damaged: "1", "refused": "1"}
    two = {"trials": "1", damaged: "1", "lost": "1"}
    total = {"trials": "3", "killed": "1", damaged: "2"}
    assert counted == [
        {kind: names[0], **one},
        {kind: names[1], **two},
        {kind: "all", **total, "lost": "1", "refused": "1"},
    ]
    widths = {len(line) for line in report.plain(table).splitlines()}
    assert len(widths) == 1


def test_soaks_add_up(tmp_path):
    page, path = tmp_path / "page.md", tmp_path / "soaks.json"
    begin, end = report.marks("soak")
    page.write_text(f"before\n{begin}earlier\n{end}after\n")
    name = runs.RUNS[0].name
    about = dict(cores=2, processor="p", tensorflow="2")
    for number, what in enumerate((SAME, REFUSED, SAME)):
        trial = {"only": "damage", "run": name, "what": what}
        report.add(
            path,
            {
                **about,
                "tried": "damage",
                "minutes": number + 1.2,
                "seeds": [number, 9],
                "kills": number,
            },
            report.count([trial, trial]),
            page,
        )
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


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[{"counts": 1}]'])
def test_a_file_of_no_soaks(tmp_path, content):
    path = tmp_path / "soaks.json"
    path.write_text(content)
    with pytest.raises(UserError, match="is no file of soaks"):
        report.read_soaks(path)


def test_the_page_names_all_that_is_tried():
    page = (ROOT / "docs" / "reliability.md").read_text()
    for only in report.COLUMNS:
        assert f"| `{only}` |" in page
    for mark in report.marks("soak"):
        assert page.count(mark) == 1


@pytest.mark.gate
def test_a_trial_of_the_program_itself(tmp_path):
    seed = next(n for n, run in enumerate(runs.RUNS) if run.name == "library")
    done = run_process(
        "-m",
        "soak",
        "--only=damage",
        f"--seed={seed}",
        f"--output_dir={tmp_path}",
        program="-u",
    )
    assert done.stdout.splitlines()[-1].split()[0] in (SAME, REFUSED)
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["seeds"] == [seed, seed]
    assert [trial["run"] for trial in found["trials"]] == ["library"]
    # The page is of soaks that try all.
    assert [path.name for path in tmp_path.iterdir()] == ["soak.json"]
