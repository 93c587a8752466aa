"""What a run's scores are judged by in its report."""

import pytest
from conftest import ROOT, read_json, write_json, write_table

from adapter_bert.errors import UserError
from adapter_bert.reports.known_scores import PAPER
from adapter_bert.tasks.kinds import TASKS

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def scores_of(fake):
    """The table of scores of a run's report, row by row, and its text."""

    def make(folder, earlier=""):
        page = fake.report(folder, earlier)
        rows = [
            texts
            for tag, _, texts, around in page.elements
            if tag == "table" and "details" not in around
        ][0]
        return page, [text for text in rows if text.strip()]

    return make


def write_confusion(folder, rows, suffix=""):
    labels = [row[0] for row in rows]
    path = folder / f"eval_confusion{suffix}.tsv"
    write_table(path, rows, ("label", *labels))


def test_the_most_frequent_label(fake, scores_of):
    scores = {"accuracy": 0.75, "f1": 0.5, "loss": 0.4}
    folder = fake.add("sentiment (custom)", "houlsby(size=8)", scores)
    write_confusion(folder, [("no", "1", "1"), ("yes", "3", "5")])
    page, cells = scores_of(folder)
    assert cells[1:] == [
        *("score", "this run", "one label for all"),
        *("accuracy", "0.7500", "0.8000"),
        # Twice 8 of 2 times 8 and 2.
        *("f1", "0.5000", "0.8889"),
        *("loss", "0.4000", "–"),
    ]
    assert "gives all rows the dev set's most frequent label" in page.text
    # "no" is not what F1 is of.
    write_confusion(folder, [("no", "6", "1"), ("yes", "2", "1")])
    assert scores_of(folder)[1][6:10] == ["0.7000", "f1", "0.5000", "0.0000"]


def test_each_dev_set_has_its_own_label(fake, scores_of):
    scores = {"accuracy": 0.5, "accuracy_mismatched": 0.25}
    folder = fake.add("mnli", "head", scores)
    for suffix, count in (("", "3"), ("_mismatched", "1")):
        rows = [("a", count, "0"), ("b", "1", "0")]
        write_confusion(folder, rows, suffix)
    _, cells = scores_of(folder)
    assert cells[5:] == [
        *("accuracy", "0.5000", "0.7500", "0.849 / 0.867"),
        *("accuracy mismatched", "0.2500", "0.5000", "0.851 / 0.859"),
    ]


def test_a_dev_set_without_rows_has_no_label(fake, scores_of):
    folder = fake.add("sentiment (custom)", "head", 0.0)
    write_confusion(folder, [("a", "0", "0"), ("b", "0", "0")])
    assert scores_of(folder)[1][1:] == [
        *("score", "this run", "accuracy", "0.0000")
    ]


def test_the_papers_scores_are_of_glues_own():
    for task in set(PAPER) - {"squad"}:
        assert set(PAPER[task]) <= set(TASKS[task].dev_score_names)
        for pair in PAPER[task].values():
            assert all(0.5 < score < 1 for score in pair)
    # Five of them are in the docs too.
    text = (ROOT / "docs" / "reproduction.md").read_text()
    table = text.partition("| mean of these |")[2]
    for row, place in (("full fine-tuning", 1), ("adapters, best size", 0)):
        line = table.partition(f"| {row} |")[2].partition("\n")[0]
        scores = list(map(float, line.split("|")[2:7]))
        tasks = ("cola", "sst-2", "mrpc", "sts-b", "rte")
        pairs = [pair for task in tasks for pair in PAPER[task].values()]
        assert [pair[place] * 100 for pair in pairs] == pytest.approx(scores)


def test_squad_2_is_not_the_papers(fake, scores_of):
    """Nor are questions of a user's own."""
    folder = fake.add("squad", "head", {"exact_match": 80.0, "f1": 88.25})
    run = read_json(folder / "run.json")
    for name, pair in (
        ("train-v1.1.json", ["90.4 / 90.7"]),
        ("train-v2.0.json", []),
        ("own.json", []),
    ):
        write_json(folder / "run.json", {**run, "data_name": name})
        assert scores_of(folder)[1][-2 - len(pair) :] == [
            "f1",
            "88.2500",
            *pair,
        ]


def test_an_earlier_run(fake, scores_of, tmp_path):
    folder = fake.add("rte", "lora(rank=4)", 0.625)
    earlier = fake.add("rte", "houlsby(size=8)", 0.75)
    page, cells = scores_of(folder, earlier)
    assert cells[1:] == [
        *("score", "this run", "paper: adapters / full", "earlier run"),
        *("accuracy", "0.6250", "0.715 / 0.701", "0.7500 (-0.1250 since)"),
    ]
    assert f"{earlier.name}, houlsby(size=8)" in page.text
    other_rows = fake.add("rte", "head", 0.5, dev="others")
    other_task = fake.add("mrpc", "head", {"f1": 0.5})
    sweep = tmp_path / "runs"
    for one, earlier, message in (
        (folder, other_rows, "was scored on other dev rows, so its scores"),
        (folder, other_task, "is a run of the task mrpc, expected rte"),
        (folder, tmp_path / "none", "the earlier run's description"),
        (sweep, folder, "is no run, whose scores --earlier could stand"),
    ):
        with pytest.raises(UserError, match=message):
            scores_of(one, earlier)


def test_an_earlier_run_of_several_tasks(fake, scores_of):
    """Each task is compared to its own."""
    folders = []
    for score in (0.5, 0.25):
        folder = fake.add("rte", "head", {"mean": score})
        run = read_json(folder / "run.json")
        run["task"] = {"name": "cola,rte", "tasks": {"rte": {"name": "rte"}}}
        run["training"]["trained_together"] = ["cola", "rte"]
        write_json(folder / "run.json", run)
        other = fake.add("rte", "head", score)
        place = folder / "tasks"
        place.mkdir()
        other.rename(place / "rte")
        folders.append(folder)
    page, cells = scores_of(*folders)
    assert cells[-3:] == ["mean", "0.5000", "0.2500 (+0.2500 since)"]
    assert page.texts("td").count("0.2500 (+0.2500 since)") == 2
