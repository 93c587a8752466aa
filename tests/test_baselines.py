"""Scores without BERT in the tables."""

import functools

import pytest
import refusals

from adapter_bert.commands import summarize
from adapter_bert.reports.baselines import find_baselines
from adapter_bert.reports.collect_runs import find_runs, group_by_task

pytestmark = pytest.mark.older_stack


def read(fake):
    runs = find_runs([str(fake.folder)])
    return group_by_task(runs), find_baselines([str(fake.folder)], runs)


def cells(table):
    return {row[0]: dict(zip(table.header, row)) for row in table.rows}


def test_glue_has_a_row_without_bert(fake):
    for task in ("rte", "sst-2", "wnli"):
        fake.add(task, "full", 0.8)
    fake.add_baseline("rte", {"accuracy": 0.5, "loss": 0.7})
    by_task, baselines = read(fake)
    row = cells(summarize.glue_table(by_task, 64, baselines))["no BERT"]
    assert row["RTE (acc.)"] == "50.0"
    assert row["SST-2 (acc.)"] == row["mean"] == row["parameters"] == "-"
    fake.add_baseline("sst-2", {"accuracy": 0.9})
    by_task, baselines = read(fake)
    row = cells(summarize.glue_table(by_task, 64, baselines))["no BERT"]
    assert row["mean"] == "70.0"


def test_other_tasks_have_a_column_without_bert(fake):
    fake.add("spam", "full", 0.9)
    fake.add("news", "full", {"micro_f1": 0.7, "macro_f1": 0.5})
    fake.add_baseline("spam", {"accuracy": 0.6})
    fake.add_baseline("news", {"micro_f1": 0.4, "macro_f1": 0.2})
    by_task, baselines = read(fake)
    table = summarize.other_table(by_task, baselines)
    assert table.header[:2] == ("", "no BERT")
    column = {name: row["no BERT"] for name, row in cells(table).items()}
    assert column == {
        "spam": "60.0",
        "news": "40.0",
        "mean": "50.0",
        "parameters": "-",
        "of a task": "-",
    }
    assert cells(table)["news"]["full fine-tuning"] == "70.0"


def test_tables_without_baselines_do_not_mention_them(fake):
    fake.add("rte", "full", 0.8)
    fake.add("spam", "full", 0.9)
    by_task, baselines = read(fake)
    assert not baselines
    for table in (
        summarize.glue_table(by_task, 64, baselines),
        summarize.other_table(by_task, baselines),
    ):
        assert "no BERT" not in table.to_markdown()


def test_all_tables_are_written_with_baselines(fake, tmp_path, run_main):
    fake.add("rte", "full", 0.8)
    fake.add_baseline("rte", {"accuracy": 0.5})
    out = tmp_path / "summary"
    run_main(summarize, fake.folder, f"--output_dir={out}")
    for ending in ("md", "tex", "csv"):
        assert "no BERT" in (out / f"glue.{ending}").read_text()


OTHER = {"described": {"name": "rte", "labels": ["a"]}}
REFUSED = {
    "rows": ({"examples": 11}, "", "", "differ in their number of training"),
    "labels": (OTHER, "", "", "differ in their labels or held-out rows"),
    "damaged": ({}, "baseline.json", "{", "baseline.json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_baseline_of_other_data_or_damaged_is_refused(fake, name):
    changes, file, content, part = REFUSED[name]
    fake.add("rte", "full", 0.8)
    folder = fake.add_baseline("rte", {"accuracy": 0.5}, **changes)
    if file:
        (folder / file).write_text(content)
    refusals.check(lambda: read(fake), part)


def test_a_baseline_without_runs_is_left_out(fake, capsys):
    fake.add("rte", "full", 0.8)
    folder = fake.add_baseline("mrpc", {"f1": 0.5})
    assert not read(fake)[1]
    assert f"{folder} is left out" in capsys.readouterr().err


def test_a_run_in_a_baselines_folder_is_refused(fake):
    fake.add("spam", "full", 0.9)
    folder = fake.add_baseline("spam", {"accuracy": 0.6})
    (folder / "run.json").write_text("{}")
    call = functools.partial(find_baselines, [str(fake.folder)], [])
    refusals.check(call, "holds a baseline and a run of BERT")
