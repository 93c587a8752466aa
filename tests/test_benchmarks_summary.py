"""The one table of all comparisons."""

import json

import pytest
from task_files import refusal

from lab.speed import compare, start, summary

pytestmark = pytest.mark.older_stack


def test_the_page_has_the_marks_once():
    page = compare.PAGE.read_text()
    assert page.count(summary.BEGIN) == page.count(summary.END) == 1


def test_every_measurement_has_a_row():
    compared, started = summary.read_results()
    table = summary.to_markdown(compared, started)
    _, *rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    programs = sum(len(s["ratio"]) for s in started["summary"].values())
    assert len(rows) == 1 + len(compared["comparisons"]) + programs
    found = compared["comparisons"]["train-pairs-minilm-float32"]
    median = found["ratio"]["grouped"]["median"]
    assert f"| {median:.2f} |" in rows[1]
    assert f"| {found['share_of_peak']:.0%} |" in rows[1]


@pytest.mark.parametrize("module", [compare, start])
def test_it_comes_after_both(module, tmp_path, monkeypatch):
    for one in (compare, start):
        path = tmp_path / f"{one.__name__}.json"
        if one is not module:
            path.write_text(json.dumps({}))
        monkeypatch.setattr(one, "RESULTS", path)
    assert f"run {module.__name__} first" in refusal(summary.read_results)
