"""The benchmark of whole programs; stand-ins take their place here."""

import argparse
import sys

import pytest
from conftest import read_json, write_table

from adapter_bert import command_line
from lab import report
from lab.speed import measuring, start

pytestmark = pytest.mark.older_stack

STEPS = (
    "import sys, time\n"
    "print('step 2', file=sys.stderr)\n"
    "print('step 3')\n"
    "time.sleep(0.2)\n"
    "assert sys.argv[1].startswith('--output_dir=')\n"
    "print('the end')\n"
)


def stand_in(source, step_line=""):
    return start.Program([sys.executable, "-c", source], step_line)


def test_a_step_is_timed_when_its_line_comes():
    times = stand_in(STEPS, "step 3\n").measure()
    # The program has buffered nothing until its end.
    assert 0 < times["step"] <= times["exit"] - 0.2
    assert set(stand_in(STEPS).measure()) == {"exit"}


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """The files that a benchmark writes, elsewhere, as a folder."""
    page = tmp_path / "page.md"
    parts = (begin + end for begin, end in map(report.marks, MARKS))
    page.write_text("\n".join(parts))
    monkeypatch.setattr(report, "SPEED", page)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "found")
    return tmp_path


MARKS = ("start", "summary")


def table_of(page, name):
    begin, end = report.marks(name)
    return page.read_text().partition(begin)[2].partition(end)[0].strip()


def run(monkeypatch, *arguments):
    words = ["--peer_python", sys.executable, "--rounds=1", *arguments]
    monkeypatch.setattr(sys, "argv", ["start", *words])
    monkeypatch.delenv("GLUE_DIR", raising=False)
    with command_line.run():
        start.main()


def replace_programs(monkeypatch, peer):
    sides = {
        name: {"strategy": stand_in(STEPS, "step 3\n"), "peer": stand_in(*peer)}
        for name in start.TIMES
    }
    counts = {"train": 1000, "dev": 10}
    monkeypatch.setattr(start, "programs", lambda _: (sides, counts))


def test_what_was_found_is_written(outputs, monkeypatch):
    replace_programs(monkeypatch, ("print('step 3')", "step 3\n"))
    # The median of rounds' ratios, not the ratio of medians.
    assert measuring.ratio([10, 20, 40], [5, 5, 80])["median"] == 2
    run(monkeypatch)
    record = read_json(outputs / "found" / "start.json")
    assert record["machine"] and record["versions"]
    for name in start.TIMES:
        summary = record["summary"][name]
        assert set(summary) == {"seconds", "ratio"}
        ours, peer = (
            summary["seconds"][side]["median"] for side in ("strategy", "peer")
        )
        assert summary["ratio"]["strategy"]["median"] == ours / peer
        for rounds in record["measurements"][name].values():
            assert [set(times) for times in rounds] == [{"step", "exit"}]
    table = start.to_markdown(record)
    assert table_of(outputs / "page.md", "start") == table.strip()
    # There is no comparison yet.
    assert not table_of(outputs / "page.md", "summary")
    assert "1 rounds; the project's own texts, 1,000 rows" in table
    header, _, *rows = (line.split("|") for line in table.splitlines()[2:])
    assert [cell.strip() for cell in header] == (
        ["", "", "ours, strategy, s", "peer, s", "strategy / peer", ""]
    )
    assert [row[1].strip() for row in rows] == [*start.TIMES]
    assert {len(row) for row in rows} == {len(header)}


def test_nothing_is_written_when_a_program_fails(outputs, monkeypatch):
    replace_programs(monkeypatch, ("raise SystemExit('error: no disk')",))
    with pytest.raises(SystemExit, match="^error: .*code 1.*no disk.*alone"):
        run(monkeypatch)
    assert not (outputs / "found").exists()
    assert not table_of(outputs / "page.md", "start")


@pytest.mark.parametrize("rows", [96, 127, 2490])
def test_both_sides_read_one_folder_and_the_third_step_ends_an_epoch(
    rows, tmp_path
):
    (tmp_path / "RTE").mkdir()
    table = [("1", "a", "b", "entailment")] * rows
    names = ("index", "sentence1", "sentence2", "label")
    for split in ("train", "dev"):
        write_table(tmp_path / f"RTE/{split}.tsv", table, names)
    arguments = argparse.Namespace(
        glue_dir=str(tmp_path), model="bert", peer_python="python"
    )
    programs, counts = start.programs(arguments)
    assert counts == {"train": rows, "dev": rows}
    assert set(programs) == set(start.TIMES)
    for sides in programs.values():
        assert [*sides] == [*start.engines(), start.PEER]
        for program in sides.values():
            assert f"--data_dir={tmp_path}/RTE" in program.command
    [epochs] = [
        float(word.split("=")[1])
        for word in programs[start.THIRD_STEP]["strategy"].command
        if word.startswith("--num_train_epochs=")
    ]
    assert int(rows / measuring.BATCH_SIZE * epochs) == start.STEPS


def test_every_measurement_has_a_row_of_the_summary():
    compared, started = (
        read_json(report.RESULTS / f"{name}.json")
        for name in ("compare", "start")
    )
    table = start.to_summary(compared, started)
    _, *rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in rows}) == 1
    programs = sum(len(s["ratio"]) for s in started["summary"].values())
    assert len(rows) == len(compared["comparisons"]) + programs
    comparison = compared["comparisons"]["train-pairs-minilm-float32"]
    median = comparison["ratio"]["grouped"]["median"]
    assert "| train MRPC, minilm, float32 | " in rows[0]
    assert f"| {median:.2f} |" in rows[0]
    assert f"| {comparison['share_of_peak']:.0%} |" in rows[0]
