"""Tables and figures of the paper: divided rows, choice, results, tables."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from conftest import (
    ROOT,
    cells,
    module_fixture,
    read_json,
    read_lines,
    write_json,
    write_table,
)
from fake_runs import FakeRuns
from hypothesis import given
from hypothesis import strategies as st
from sweep_stand_in import SCRIPTS, wait_for
from task_files import PROPERTY, refusal
from test_plot import write_ablation
from tiny_artifacts import make_artifact

from adapter_bert.commands import paper
from adapter_bert.reports import difference
from adapter_bert.tasks import metrics
from adapter_bert.tasks.kinds import get_task

pytestmark = pytest.mark.newer_stack

HEADERS = {
    "RTE": ("index", "sentence1", "sentence2", "label"),
    "MRPC": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "CoLA": (),
    "STS-B": ("index", "sentence1", "sentence2", "score"),
}


def write_dev(folder, name, labels):
    """Writes a task's dev file, whose texts name their row; its lines."""
    names = getattr(get_task(name), "labels", ("1.5", "4.0"))
    rows = []
    for row, place in enumerate(labels):
        number, label, texts = str(row), names[place], (f'a "{row}', f"b {row}")
        rows.append(
            {
                "RTE": (number, *texts, label),
                "MRPC": (label, number, number, *texts),
                "CoLA": ("gj04", label, "", texts[0]),
                "STS-B": (number, *texts, label),
            }[name]
        )
    write_table(folder / "dev.tsv", rows, HEADERS[name])
    shutil.copy(folder / "dev.tsv", folder / "train.tsv")
    return read_lines(folder, "dev.tsv")


@pytest.mark.parametrize("name", HEADERS)
@PROPERTY
@given(
    labels=st.lists(st.integers(0, 1), min_size=4, max_size=40),
    seed=st.integers(0, 3),
)
def test_halves_are_disjoint_complete_and_balanced(name, labels, seed):
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        lines = write_dev(folder, name, labels)
        new = folder / "halves"
        for _ in range(2):
            paper.divide(name, place, str(new), seed)
        halves = [read_lines(new, file) for file in ("dev.tsv", "report.tsv")]
        head = lines[: len(HEADERS[name]) > 0]
        texts = [half[len(head) :] for half in halves]
        assert [half[: len(head)] for half in halves] == [head, head]
        # Texts name their rows, so no two lines are equal.
        assert sorted(sum(texts, [])) == sorted(lines[len(head) :])
        # The same rows as run_classifier.py reads them, without labels.
        task = get_task(name)
        _, rows = task.read(str(new), ["dev", "test"])
        report = paper.read_report(name, new / "report.tsv")
        # Numbers are divided evenly in all, labels each.
        of_half = [task.strata(x) for x in (rows["dev"], report)]
        for stratum in {*of_half[0], *of_half[1]}:
            both = [half.count(stratum) for half in of_half]
            assert abs(both[0] - both[1]) <= 1
        assert rows["test"].label is None
        assert rows["test"].text_a == report.text_a
        assert rows["test"].text_b == report.text_b


def test_one_file_is_cut_in_tenths(tmp_path):
    rows = [("ham" if n % 4 else "spam", f"text {n}") for n in range(200)]
    write_table(tmp_path / "all.tsv", rows, ())
    paper.divide("sms", str(tmp_path / "all.tsv"), str(tmp_path / "sms"), 1)
    tables = {
        split: read_lines(tmp_path, f"sms/{split}.tsv")
        for split in ("train", "dev", "test", "report")
    }
    assert {x: len(y) - 1 for x, y in tables.items()} == {
        **{"train": 160, "dev": 20, "test": 20, "report": 20}
    }
    assert {lines[0] for lines in tables.values()} == {"text\tlabel"}
    cut = [x for y in ("train", "dev", "test") for x in tables[y][1:]]
    assert sorted(cut) == sorted(f"{text}\t{label}" for label, text in rows)
    assert sum(line.endswith("\tspam") for line in tables["test"]) == 5


# Writes what a run writes: of houlsby, size 4 is best on the choice half. Each
# seed has wrong answers of its own, and more of them without adapters.
FINISH = """#!{python}
import json, pathlib, shutil, sys
out, _, *words = sys.argv[1:]
out = pathlib.Path(out)
flags = dict(x[2:].split("=", 1) for x in words if "=" in x)
# Without layers it knows less.
if "adapter" in flags:
    scores = {{"eval_accuracy": 0.5 + 0.1 * flags["adapter"].endswith("none")}}
    (out / "eval_results.json").write_text(json.dumps(scores))
    raise SystemExit
run = json.loads(pathlib.Path("{folder}/run.json").read_text())
size = flags.get("adapter_size")
scale = flags.get("adapter_init_scale", "1e-2")
run["method"] = flags["tuning_method"]
if size:
    run["method"] = f"houlsby(size={{size}}, init_scale={{scale}})"
shutil.copytree("{folder}/adapter", out / "adapter")
places = {{"base": flags["init_checkpoint"]}}
(out / "places.json").write_text(json.dumps(places))
seed = int(flags["seed"])
run["training"].update(
    learning_rate=float(flags["learning_rate"]),
    epochs=float(flags["num_train_epochs"]),
    seed=seed,
    compute_dtype=flags["compute_dtype"],
)
run["parameters"]["kept"] = int(size or 1000)
name = flags.get("task_name", "squad").lower()
run["task"]["name"] = name
(out / "run.json").write_text(json.dumps(run))
(out / "eval_results.json").write_text(json.dumps({{
    "eval_accuracy": 0.5 + 0.1 * (size == "4"), "global_step": 3,
    **({{"eval_f1": 50.0 + 10 * bool(size)}} if name == "squad" else {{}}),
    "dev_data": {{"dev": "rows"}},
}}))
(out / "cost.json").write_text(json.dumps({{
    "resumed": False, "seconds": 36.0, "processor_seconds": 2.0,
    "peak_memory_bytes": 3.0,
}}))
if flags.get("do_predict", "false") == "false":
    raise SystemExit
report = pathlib.Path(flags["data_dir"], "report.tsv").read_text()
column = "label" if flags["task_name"] == "custom" else "prediction"
lines = ["index\\t" + column]
rows = [line.split("\\t")[-1] for line in report.splitlines()[1:]]
both = sorted(set(rows))
for row, label in enumerate(rows):
    wrong = row % 10 == seed or (not size and row % 5 == 0)
    lines.append(f"{{row}}\\t{{both[both.index(label) ^ wrong]}}")
(out / "test_predictions.tsv").write_text("\\n".join(lines) + "\\n")
"""
RTE_RUNS = [
    "RTE/houlsby2-lr1e-3-epochs0.2-seed1",
    "RTE/houlsby4-lr1e-3-epochs0.2-seed1",
    "RTE/full-lr5e-5-epochs0.2-seed1",
    "RTE/houlsby4-lr1e-3-epochs0.2-seed2",
    "RTE/full-lr5e-5-epochs0.2-seed2",
]


@module_fixture
def commands(tmp_path_factory):
    """What runs a command without the seconds of its imports."""
    words = [sys.executable, str(ROOT / "tests/forked_commands.py")]
    place = tmp_path_factory.mktemp("commands") / "socket"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*words, place], env=environment)
    try:
        wait_for(lambda: place.exists() or process.poll() is not None, 180)
        assert process.poll() is None
        yield " ".join([words[0], "-SE", words[1], str(place)])
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def study(sweep, tiny_bert, tiny_config, commands):
    """Starts a study with a stand-in; its sweep is the attribute."""
    write_dev(sweep.folder / "glue/RTE", "RTE", [0, 1] * 20)
    rows = [(f"good film {n} {n % 2}", "ab"[n % 2]) for n in range(40)]
    for split in ("train", "dev", "test"):
        folder = sweep.folder / "glue/primary_emotions"
        folder.mkdir(exist_ok=True)
        write_table(folder / f"{split}.tsv", rows, ("text", "label"))
    fake = FakeRuns(sweep.folder / "fake", tiny_config)
    run = fake.add("rte", "full", {}, examples=40) / "run.json"
    run.rename(sweep.folder / "run.json")
    make_artifact(sweep.folder / "adapter", tiny_bert, "houlsby(size=2)")
    for split in ("train", "dev"):
        (sweep.folder / f"glue/{split}-v1.1.json").touch()
    finish = sweep.folder / "finish"
    finish.write_text(FINISH.format(python=sys.executable, folder=sweep.folder))
    finish.chmod(0o755)

    def start(name, *arguments, **environment):
        return sweep.run_script(
            f"paper/{name}.sh",
            *arguments,
            DATA=sweep.folder / "glue",
            COMMANDS=commands,
            **environment,
        )

    start.sweep = sweep
    return start


def started(study):
    """The names of the runs that were started."""
    runs = f"{study.sweep.out}/runs/"
    return [path.removeprefix(runs) for path in study.sweep.started()]


@pytest.mark.gate
def test_table_1_chooses_on_one_half_and_reports_the_other(study):
    done = study("table_1", "--quick")
    assert done.returncode == 0, done.stderr
    assert started(study) == RTE_RUNS
    assert "| full fine-tuning | 70.0 ± 0.0 (2) | 70.0 |" in done.stdout
    assert "| adapters, best size | 90.0 ± 0.0 (2) | 90.0 |" in done.stdout
    line = re.search(
        r"within 0.4 points.*?\+20.0 \((.*?)\), (\w+)", done.stdout
    )
    low, high = map(float, line[1].split(" to "))
    assert 0 <= low < 20 < high and line[2] == "confirmed"
    out = study.sweep.out
    runs = read_json(out, "table_1.json")["runs"]
    of_splits = {
        split: sorted(row["run"] for row in runs if row["split"] == split)
        for split in ("dev", "test")
    }
    assert of_splits == dict.fromkeys(("dev", "test"), sorted(RTE_RUNS))
    assert {row["score"] for row in runs if row["split"] == "dev"} == {50, 60}
    first = runs[0]
    assert first["bert"].endswith(" parameters, f")
    assert first["conditions"]["compute_dtype"] == "float32"
    assert not {*paper.TUNED} & {*first["conditions"]}
    assert {*first} >= {
        *("task", "method", "size", "rate", "epochs", "seed", "split", "score"),
        *("seconds", "commit", "bert", "processor"),
    }
    assert (out / "table_1.tsv").read_text().startswith("\tRTE\tmean\n")
    # What a file of results holds is not run again, wherever its runs are.
    results = (out / "table_1.json").read_bytes()
    for path in out.iterdir():
        path.rename(study.sweep.folder / f"old_{path.name}")
    (out / "table_1.json").write_bytes(results)
    again = study("table_1", "--quick")
    assert again.returncode == 0 and len(started(study)) == len(RTE_RUNS)
    assert again.stdout.splitlines()[-7:] == done.stdout.splitlines()[-7:]
    assert (out / "table_1.json").read_bytes() == results


@pytest.mark.gate
def test_a_grid_has_all_missing_runs_of_its_preset(study):
    done = study("figure_7", "--quick", "--grid")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t")[0] for line in study.sweep.rows(done)]
    assert len(rows) == 12 and len({name.split("/")[0] for name in rows}) == 2
    assert done.stdout.count("--array") == 1 and "--array=1-12" in done.stdout
    # Its rows may run elsewhere by now.
    for other in (["--preset=two_cores"], ["--quick", "--", "--seed=2"]):
        done = study("figure_7", *other)
        assert done.returncode == 1
        assert "begun with --preset=quick" in done.stderr
    study.sweep.mark("fail", rows[0])
    done = study("figure_7", "--quick")
    assert done.returncode == 1 and len(started(study)) == 12
    assert done.stderr.splitlines()[-1].startswith("error: something fail")
    done = study("figure_7", "--quick", "--grid")
    assert [x.split("\t")[0] for x in study.sweep.rows(done)] == rows[:1]
    # As a loss of power may leave it.
    (study.sweep.out / "begun").write_text("")
    assert study("figure_7", "--quick", "--grid").returncode == 0


def test_rows_that_another_study_has_divided_are_not_taken_whole(study):
    assert study("table_1", "--quick", "--grid").returncode == 0
    done = study("figure_1", "--quick", "--grid")
    assert done.returncode == 1
    assert "data/RTE is there and is not " in done.stderr


def test_a_flag_of_the_grid_is_not_replaced(study):
    """Which has --noadam_bias_correction."""
    done = study("figure_7", "--quick", "--", "--adam_bias_correction")
    assert "each run has its own" in done.stderr
    assert started(study) == []


@pytest.mark.gate
def test_table_2_has_a_column_without_bert(study):
    done = study("table_2", "--quick")
    assert done.returncode == 0, done.stderr
    (line,) = re.findall(r"^\| primary_emotions.*", done.stdout, re.M)
    row = [cell.strip() for cell in line.strip("|").split("|")]
    # The texts hold their labels as words, so words alone answer all rows.
    assert row[:5] == [
        "primary_emotions *",
        *("100.0", "70.0 ± 0.0 (2)", "70.0 ± 0.0 (2)", "90.0 ± 0.0 (2)"),
    ]
    assert row[5:] == ["33.5", "36.9 ± 1.6", "38.2 ± 1.0", "33.9 ± 1.4"]


# Study -> lines of its table, some cells of each.
CURVES = {
    "figure_1": {
        ("GLUE (1)", "houlsby", "2"): ("+0.0", "+0.0", "+0.0"),
        ("GLUE (1)", "top_layers", "1"): ("+0.0", "+0.0", "+0.0"),
        ("GLUE (1)", "full", "-"): ("+0.0", "+0.0", "+0.0"),
    },
    "figure_3": {
        (panel, method, size): ("+0.0", "+0.0", gain)
        for panel, gain in (("GLUE (1)", "+0.0"), ("other tasks (1)", "+0.0"))
        for method, size in (
            ("houlsby", "2"),
            ("top_layers", "1"),
            ("full", "-"),
        )
    },
    "figure_4": {
        ("RTE", method, "", size): ("50", "0", "2", "-")
        for method, size in (
            *(("houlsby", "2"), ("top_layers", "1")),
            *(("layernorm", "-"), ("full", "-")),
        )
    },
    "figure_5": {
        ("SQuAD", "houlsby", "", "2"): ("60", "0", "2", "89.9"),
        ("SQuAD", "top_layers", "", "1"): ("50", "0", "2", "-"),
        ("SQuAD", "full", "", "-"): ("50", "0", "2", "90.7"),
    },
    "figure_6": {
        ("RTE", "houlsby", "", "0.01"): ("50", "0", "2", "-"),
        ("RTE", "houlsby", "", "1"): ("50", "0", "2", "-"),
        **{
            ("RTE", f"without layers {span}", "", "-"): ("-10", "-", "1", "-")
            for span in ("0-0", "0-1", "1-1")
        },
    },
    "figure_7": {
        ("RTE", method, variant, rate): ("50", "0", "2", "-")
        for variant in ("", "bias_correction")
        for method, rate in (
            *(("houlsby", "0.0001"), ("houlsby", "0.001")),
            ("full", "0.0001"),
        )
    },
    "section_3_6": {
        ("houlsby, size 2",): ("50.0 ± 0.0 (2)", "50.0 of 1", "-"),
        ("houlsby(depth=2), size 2",): ("50.0 ± 0.0 (2)", "50.0 of 1", "-"),
    },
}


@pytest.mark.gate
@pytest.mark.parametrize("name", CURVES)
def test_a_figure_has_each_point(study, name):
    done = study(name, "--quick")
    assert done.returncode == 0, done.stderr
    out, expected = study.sweep.out, CURVES[name]
    _, *rows = cells(out / f"{name}.tsv")
    count = len(next(iter(expected)))
    ends = {
        tuple(row[:count]): tuple(row[-len(expected[tuple(row[:count])]) :])
        for row in rows
    }
    assert ends == expected
    for picture in (name, *["RTE_spans"] * (name == "figure_6")):
        content = (out / f"{picture}.png").read_bytes()
        assert content.startswith(b"\x89PNG")


@pytest.mark.gate
def test_a_killed_study_goes_on_and_says_what_is_missing(study, commands):
    sweep = study.sweep
    sweep.mark("slow", RTE_RUNS[3])
    process = subprocess.Popen(
        [SCRIPTS / "paper/table_1.sh", sweep.out, "--quick"],
        env=sweep.own_environment(
            {"DATA": sweep.folder / "glue", "COMMANDS": commands}
        ),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: len(sweep.started()) == 4)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (sweep.folder / "go").touch()
    done = study("table_1", "--quick")
    assert done.returncode == 0, done.stderr
    # Only the one that was killed is run again: 36 seconds an epoch.
    assert started(study) == [*RTE_RUNS[:4], *RTE_RUNS[3:]]
    assert "1 of 1 runs are missing: about 0.0 hours\n" in done.stderr


def row(**changes):
    """A row of results."""
    return {
        **{"run": "RTE/full-lr1e-3-epochs1-seed1", "task": "RTE"},
        **{"method": "full", "bert": "b", "commit": "c", "variant": ""},
        **{"conditions": {"dtype": "d", "batch_size": 32}, **changes},
    }


@pytest.mark.parametrize("key", ["bert", "commit", "dtype"])
def test_results_of_two_berts_commits_or_conditions_are_refused(tmp_path, key):
    path = tmp_path / "table_1.json"
    other = {key: "other"} if key != "dtype" else {"conditions": {key: "other"}}
    write_json(path, {"runs": [row(), row(**other)]})
    message = refusal(paper.read_results, str(path))
    assert str(path) in message and "other" in message and key in message
    write_json(path, {"runs": [row()]})
    assert "new" in refusal(paper.read_results, str(path), "new")
    examples = [{"conditions": {"examples": n}} for n in (100, 1600)]
    baseline = row(**examples[1], method=paper.BASELINE, bert=None)
    write_json(path, {"runs": [row(**examples[0]), baseline]})
    assert "100 and 1600" in refusal(paper.read_results, str(path))
    # Tasks and variants have conditions of their own.
    others = [
        row(**{key: "other", "conditions": {"batch_size": 16}})
        for key in ("task", "variant")
    ]
    write_json(path, {"runs": [row(), *others]})
    assert len(paper.read_results(str(path))) == 3


def test_of_equal_scores_the_smallest_size_is_chosen(tmp_path, capsys):
    """In whatever order runs were collected."""
    equal = [
        row(
            run=f"RTE/houlsby{size}-lr1e-3-epochs1-seed1",
            **{"method": "houlsby", "size": size, "rate": 1e-3, "epochs": 1.0},
            **{"seed": 1, "split": "dev", "metric": "accuracy", "score": 60.0},
        )
        for size in (64, 8, 256)
    ]
    for runs in (equal, equal[::-1]):
        write_json(tmp_path / "table_1.json", {"runs": runs})
        paper.print_best(str(tmp_path / "table_1.json"), "task=RTE")
        assert "SIZES=8\t" in capsys.readouterr().out


def test_figure_6_has_the_ablations_of_the_best_setting_alone(tmp_path):
    runs = []
    for rate, score in ((1e-3, 60.0), (3e-3, 50.0)):
        name = f"RTE/houlsby2-scale1e-2-lr{rate}-epochs1-seed1"
        run = {"run": name, "method": "houlsby", "size": 2, "scale": 1e-2}
        run.update(rate=rate, epochs=1.0, seed=1, split="dev", trained=9)
        runs.append(row(**run, metric="accuracy", score=score))
        write_ablation(tmp_path / "ablation" / name)
    # The worse one's is of other numbers.
    none = tmp_path / "ablation" / name / "runs/none/eval_results.json"
    write_json(none, {"eval_accuracy": 0.9})
    path = tmp_path / "figure_6.json"
    write_json(path, {"runs": runs})
    rows = paper.read_results(str(path))
    lines = paper.figure_6(rows, tmp_path / "figure_6.png", {})
    spans = {line[1]: line[4:7] for line in lines if "without" in line[1]}
    assert spans == {
        "without layers 0-0": ["-10", "-", "1"],
        "without layers 0-1": ["-30", "-", "1"],
        "without layers 1-1": ["+0", "-", "1"],
    }


def test_rows_that_other_runs_answered_are_refused(tmp_path):
    write_dev(tmp_path, "RTE", [0, 1] * 5)
    report = tmp_path / "data/RTE/report.tsv"
    report.parent.mkdir(parents=True)
    (tmp_path / "dev.tsv").rename(report)
    rows = [
        row(
            **{"method": method, "seed": seed, "split": split, "score": 90.0},
            **{"metric": "accuracy", "answers": [0, 1] * 4 + [0, 0]},
        )
        for method in ("houlsby", "full")
        for seed in (1, 2)
        for split in ("dev", "test")
    ]
    lines = show(tmp_path, "table_1", rows)
    assert lines[-1][1].startswith("+0.0 ")
    for answers in ([0, 0, 1, 1] * 2, [0, 1] * 5):
        rows[-1]["answers"] = answers
        message = refusal(show, tmp_path, "table_1", rows)
        for part in (report, rows[-1]["run"], f"commit, {rows[-1]['commit']}"):
            assert str(part) in message


def test_runs_of_another_bert_do_not_spoil_results(tmp_path, monkeypatch):
    path, folder = tmp_path / "table_1.json", tmp_path / "runs/RTE/new"
    write_json(path, {"runs": [row()]})
    before = path.read_bytes()
    folder.mkdir(parents=True)
    (folder / "done").touch()
    monkeypatch.setattr(paper, "_rows_of", lambda *_: [row(bert="other")])
    assert "other" in refusal(paper.collect, str(path), str(tmp_path), "c")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: paper.show("table_3", x), "'table_3', expected one of"),
        (lambda x: paper.print_best(x, "tsk=RTE"), "'tsk=RTE', expected each"),
    ],
)
def test_wrong_words_are_refused(tmp_path, call, message):
    write_json(tmp_path / "results.json", {"runs": []})
    assert message in refusal(call, str(tmp_path / "results.json"))


def test_an_interval_of_one_seed_is_refused(tmp_path):
    rows = [row(seed=1, split=x, score=50.0) for x in ("dev", "test")]
    assert "one seed" in refusal(show, tmp_path, "table_1", rows)


def show(folder, study, rows):
    """Shows a study of rows; cells of its lines."""
    path = folder / "results.json"
    write_json(path, {"runs": [*rows]})
    paper.show(study, str(path))
    return cells(folder / f"{study}.tsv")


def dev_rows(*kinds):
    """Rows of dev sets, each of (task, method, size, score)."""
    for task, method, size, score in kinds:
        yield row(
            **{"task": task, "method": method, "size": size, "score": score},
            **{"split": "dev", "variant": "", "seed": 1, "trained": 10},
        )


def test_means_of_section_3_6_are_of_the_same_tasks(tmp_path):
    kinds = ("RTE", "houlsby", 8, 50.0), ("RTE", "houlsby", 64, 60.0)
    alone = "SST-2", "houlsby", 8, 90.0
    lines = show(tmp_path, "section_3_6", dev_rows(*kinds, alone))
    assert [line[-2] for line in lines] == ["mean", "50.0 of 1", "60.0 of 1"]
    assert (tmp_path / "section_3_6.png").exists()
    lines = show(tmp_path, "section_3_6", dev_rows(kinds[1], alone))
    assert [line[-2] for line in lines[1:]] == ["-", "-"]


def test_a_trade_off_without_full_fine_tuning_is_refused(tmp_path):
    kinds = ("RTE", "houlsby", 8, 50.0), ("MRPC", "houlsby", 8, 80.0)
    rows = dev_rows(kinds[0])
    assert "full fine-tuning" in refusal(show, tmp_path, "figure_1", rows)
    # Of the other task there is one.
    rows = dev_rows(*kinds, ("MRPC", "full", None, 82.0))
    lines = show(tmp_path, "figure_1", rows)
    assert [line[0::4] for line in lines[1:]] == [
        ["GLUE (1)", "-2.0"],
        ["GLUE (1)", "+0.0"],
    ]


def test_a_task_without_other_runs_than_the_baseline_s_has_no_star(tmp_path):
    named = {"run": "a/no BERT", "task": "a", "method": paper.BASELINE}
    alone = row(**named, split="test", variant="", score=50.0)
    lines = show(tmp_path, "table_2", [alone])
    assert lines[1] == ["a", "50.0", *["-"] * 7]


def test_a_folder_without_the_third_split_is_refused(tmp_path):
    (tmp_path / "old").mkdir()
    for split in ("train", "dev"):
        (tmp_path / f"old/{split}.tsv").write_text("text\tlabel\na\tb\n")
    message = refusal(
        paper.divide, "own", str(tmp_path / "old"), str(tmp_path / "new"), 1
    )
    assert "test.tsv is missing" in message


def test_correlations_are_those_of_the_rows():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 50).astype(float)
    answers = labels + rng.normal(size=(2, 50))
    compared = difference.compare("pearson", labels, answers, answers[:1], 1)
    for score, predictions in zip(compared.adapters, answers):
        expected = 100 * metrics.pearson(labels, predictions)
        assert score == pytest.approx(expected)
