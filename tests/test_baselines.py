"""Scores without BERT in the tables."""

import functools

import pytest
import refusals
from conftest import read_json, write_json, write_table

from adapter_bert.commands import summarize
from adapter_bert.reports.baselines import find_baselines

pytestmark = pytest.mark.older_stack


def baselines_of(fake):
    return find_baselines([str(fake.folder)], fake.runs())


def no_bert(fake):
    """The row without BERT of GLUE, the column of other tasks."""
    settings, baselines = fake.settings(), baselines_of(fake)
    glue = summarize.glue_table(settings, 64, baselines)
    other = summarize.other_table(settings, baselines)
    assert [*other][0] == glue.index[0] == "no BERT"
    return {**glue.loc["no BERT"]}, {**other["no BERT"]}


def test_tables_have_scores_without_bert(fake, tmp_path, run_main):
    def written():
        """Tells whether GLUE's tables, in three formats, have such scores."""
        out = tmp_path / "summary"
        run_main(summarize, fake.folder, f"--output_dir={out}")
        return {
            "no BERT" in (out / f"glue.{ending}").read_text()
            for ending in ("md", "tex", "csv")
        }

    fake.add("rte", "full", 0.8)
    assert written() == {False}
    # A head is no fact of the data.
    described = {"name": "rte", "head": {"mean": True}}
    scores = {"accuracy": 0.5, "loss": 0.7}
    fake.add_baseline("rte", scores, described=described)
    assert written() == {True}
    for task in ("sst-2", "wnli", "spam"):
        fake.add(task, "full", 0.8)
    fake.add("news", "full", {"micro_f1": 0.7, "macro_f1": 0.5})
    fake.add_baseline("spam", {"accuracy": 0.6})
    glue, other = no_bert(fake)
    assert glue["RTE (acc.)"] == "50.0"
    assert glue["SST-2 (acc.)"] == glue["mean"] == glue["parameters"] == "-"
    assert (other["spam"], other["mean"]) == ("60.0", "-")
    fake.add_baseline("sst-2", {"accuracy": 0.9})
    fake.add_baseline("news", {"micro_f1": 0.4, "macro_f1": 0.2})
    glue, other = no_bert(fake)
    assert glue["mean"] == "70.0"
    assert other == {
        "spam": "60.0",
        "news": "40.0",
        "mean": "50.0",
        "parameters": "-",
        "of a task": "-",
    }


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"examples": 11}, "differ in their number of training"),
        (
            {"described": {"name": "rte", "labels": ["a"]}},
            "differ in their labels or held-out rows",
        ),
    ],
)
def test_a_baseline_of_other_data_is_refused(fake, changes, part):
    fake.add("rte", "full", 0.8)
    fake.add_baseline("rte", {"accuracy": 0.5}, **changes)
    refusals.check(lambda: baselines_of(fake), part)


def test_a_baseline_of_other_dev_rows_is_refused(fake):
    """As of runs with --max_eval_examples."""
    for folder, count in (
        (fake.add("rte", "full", 0.8), "70"),
        (fake.add_baseline("rte", {"accuracy": 0.5}), "277"),
    ):
        table = [("yes", count, "0.5")]
        header = ("label", "examples", "f1")
        write_table(folder / "eval_labels.tsv", table, header)
    refusals.check(lambda: baselines_of(fake), "differ in their dev rows")


def test_windows_are_not_the_rows_of_a_baseline(fake):
    path = fake.add("rte", "full", 0.8, examples=40) / "run.json"
    run = read_json(path)
    run["training"]["window_stride"] = 4
    write_json(path, run)
    fake.add_baseline("rte", {"accuracy": 0.5})
    assert len(baselines_of(fake)) == 1


def test_a_baseline_without_runs_is_left_out(fake, capsys):
    fake.add("rte", "full", 0.8)
    folder = fake.add_baseline("mrpc", {"f1": 0.5})
    assert not baselines_of(fake)
    assert f"{folder} is left out" in capsys.readouterr().err


def test_a_baseline_with_a_run_or_damaged_is_refused(fake):
    fake.add("spam", "full", 0.9)
    folder = fake.add_baseline("spam", {"accuracy": 0.6})
    call = functools.partial(find_baselines, [str(fake.folder)], fake.runs())
    (folder / "run.json").write_text("{}")
    refusals.check(call, "holds a baseline and a run of BERT")
    (folder / "run.json").unlink()
    (folder / "baseline.json").write_text("{")
    refusals.check(call, "baseline.json")
