"""Reports of runs and sweeps."""

import shutil

import pytest
import refusals
from conftest import read_json, write_json, write_table
from html_reader import Page
from test_report_run import write_curve

from adapter_bert.commands import report as report_command

pytestmark = pytest.mark.newer_stack

COST = {
    "resumed": False,
    "seconds": 90.0,
    "processor_seconds": 120.0,
    "peak_memory_bytes": 2**30,
}
EVIL = "<script>alert('x')</script> & \"y\""


@pytest.fixture
def report(fake):
    """Makes a report, and reads it."""
    return fake.report


def sections(page):
    return page.texts("h2")


def change(path, **values):
    """Changes members of a file of JSON."""
    write_json(path, {**read_json(path), **values})


def test_a_run_that_has_nothing_more_says_what_it_lacks(fake, report):
    folder = fake.add("rte", "houlsby(size=8)", 0.625)
    page = report(folder)
    assert sections(page) == page.texts("a")
    assert sections(page) == [
        "Scores",
        "Curves",
        "Labels",
        "Confusions",
        "Hardest examples",
        "Norms of the adapter",
        "Parameters, time and memory",
        "Command",
        "Configuration, versions and hashes",
    ]
    # What few readers look at is folded.
    [folded] = page.texts("details")
    assert "Pretrained model" in folded and "dev rows" in folded
    assert page.texts("td")[0] == "0.6250"
    for words in (
        "no curve of its training",
        "no curve of scores",
        "no scores of single labels",
        "no confusion matrix",
        "no list of its hardest",
        "no adapter",
        "does not say what it took",
    ):
        assert words in page.text
    assert not page.all("svg")
    (folder / "eval_results.json").unlink()
    page = report(folder)
    assert "has not been evaluated" in page.text
    assert "does not record its command" in page.text
    words = ["--task_name=rte", "--output_dir=a folder", "--do_train"]
    write_json(folder / "places.json", {"command": words})
    assert report(folder).texts("pre") == [
        ".venv/bin/python run_classifier.py \\ --task_name=rte \\ "
        "'--output_dir=a folder' \\ --do_train"
    ]


def test_what_users_wrote_is_text(fake, report):
    folder = fake.add("custom", EVIL, 1.0)
    change(
        folder / "run.json",
        data_name=EVIL,
        base={"name": EVIL, "fingerprint": EVIL},
        task={"name": "custom", "labels": [EVIL] * 40},
        versions={"python": EVIL},
    )
    write_table(folder / "eval_labels.tsv", [(EVIL, "1")], (EVIL, EVIL))
    page = report(folder)
    assert page.text.count(EVIL) > 10
    assert page.texts("td").count(EVIL) >= 4
    assert "and 10 more" in page.text


def test_curves_are_drawn_and_told(fake, report):
    folder = fake.add("rte", "houlsby(size=8)", 0.5)
    curves = {
        "": {"loss": {10: 2.0, 20: 0.25, 30: 1.5}, "learning_rate": {10: 1.0}},
        "eval": {"accuracy": {15: 0.5, 30: 0.75}, "loss": {30: 0.4}},
    }
    for place, scalars in curves.items():
        for name, values in scalars.items():
            write_curve(folder / place, name, values.items())
    page = report(folder)
    assert page.texts("title")[1:] == [
        "training loss by step",
        "dev accuracy by step",
    ]
    assert page.texts("figcaption")[0] == (
        "training loss: 2 at step 10, 1.5 at step 30; lowest 0.25 at step 20, "
        "highest 2 at step 10."
    )
    # Of the dev set, by step.
    cells = ("15", "0.5000", "–", "30", "0.7500", "0.4000")
    assert "".join(cells) in "".join(page.texts("table"))


def test_size_and_cost(fake, report):
    folder = fake.add("rte", "full", 0.5, cost=COST, kept=25)
    parameters = {"total": 200, "trained": 50, "kept": 25}
    change(folder / "run.json", parameters=parameters)
    page = report(folder)
    cells = page.texts("td")
    first = cells.index("200")
    sizes = ["200", "100.00%", "50", "25.00%", "25", "12.50%"]
    assert cells[first : first + 6] == sizes
    costs = ["1.5 min", "2.0 min", "1.00 GiB"]
    assert cells[first + 6 : first + 9] == costs
    assert "was resumed" not in page.text
    change(folder / "cost.json", resumed=True)
    assert "was resumed" in report(folder).text


def test_each_of_several_tasks_has_a_part(fake, report):
    folder = fake.add("rte", "head", {"mean": 0.5})
    tasks = {name: {"name": name} for name in ("cola", "rte")}
    training = read_json(folder / "run.json")["training"]
    training["trained_together"] = [*tasks]
    task = {"name": "cola,rte", "tasks": tasks}
    change(folder / "run.json", task=task, training=training)
    member = folder / "tasks" / "rte"
    member.mkdir(parents=True)
    for name in ("eval_results.json", "run.json"):
        shutil.copy(folder / name, member)
    change(member / "run.json", task=tasks["rte"])
    write_table(member / "eval_labels.tsv", [("a", "0.9")], ("label", "f1"))
    page = report(folder)
    own_parts = [h for h in sections(page) if "Task" in h]
    assert own_parts == ["Task cola", "Task rte"]
    assert page.texts("h3").count("Labels") == 2
    # No scores of the first one, as of a side of pairs, are no news.
    assert page.texts("h3").count("Scores") == 1
    assert "has not been evaluated" not in page.text
    assert "0.9" in page.texts("td")


def test_a_sweep_names_the_best_of_each_task(fake, report):
    """Of those with the initial scale that most have."""
    for task, base in (("rte", 0.5), ("mrpc", 0.7)):
        name = "f1" if task == "mrpc" else "accuracy"
        for seed in (1, 2):
            for size in (8, 64):
                method = f"houlsby(size={size})"
                scores = {name: base + size / 1000 + seed / 100}
                fake.add(task, method, scores, seed=seed, kept=100 * size)
    for seed in (1, 2):
        method = "houlsby(size=64, init_scale=0.0001)"
        fake.add("rte", method, 0.9, seed=seed)
    # One that is not finished.
    (fake.add("rte", "full", 1.0) / "eval_results.json").unlink()
    page = report(fake.folder)
    assert page.texts("h1") == ["Sweep runs: 10 runs"]
    assert sections(page) == ["Best settings", "Task mrpc", "Task rte"]
    # 0.7 + 0.064 + the mean of 0.01 and 0.02.
    best = page.texts("strong")
    assert best == ["77.90 ± 0.50, best", "57.90 ± 0.50, best"]
    heads = [a["scope"] for a, text in page.all("th") if text == "mrpc"]
    assert heads == ["row"]
    assert len(page.all("figure")) == 2
    assert "Runs that are left out: 1." in page.text
    assert {"6,400", "90.00 ± 0.00"} <= set(page.texts("td"))


def test_an_old_report_is_replaced_and_nothing_else(fake, report, tmp_path):
    folder = fake.add("rte", "head", 0.5)
    report(folder)
    report(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html", "runs"]
    other = tmp_path / "page.html"
    other.write_text("<html>mine</html>")
    refusals.check(lambda: report(folder), "is no report of this program")
    assert other.read_text() == "<html>mine</html>"


def test_folders_without_runs_are_refused(report, tmp_path):
    for name, words in (
        ("none", "is no folder of a run or of runs"),
        (".", "no finished and evaluated run"),
    ):
        refusals.check(lambda n=name: report(tmp_path / n), words)


@pytest.mark.gate
def test_a_trained_run_has_all_parts(classify, tiny_flags, report):
    flags = {**tiny_flags, "do_eval": True, "eval_steps": 5}
    classify(**{**flags, "num_train_epochs": 2})
    page = report(tiny_flags["output_dir"])
    titles = page.texts("title")[1:]
    assert "dev accuracy by step" in titles
    assert "Norms of what was added, by layer" in titles
    for caption in ("Confusion matrix", "The 8 dev rows", "Scores of each"):
        assert any(text.startswith(caption) for text in page.texts("caption"))
    # All but the training loss, whose points are ten steps each.
    assert "The run has no" not in page.text.replace(
        "The run has no curve of its training", ""
    )


def test_the_program_writes_into_the_runs_folder(fake, run_main, capsys):
    folder = fake.add("rte", "head", 0.5)
    run_main(report_command, folder)
    path = folder / "report.html"
    assert capsys.readouterr().out == f"the report is {path}\n"
    Page(path.read_text()).check()
