"""Mutants are drawn, tried, and told of."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from lab.trials.mutant_tests import KILLED, OUT_OF_TIME, SURVIVED, TIMED_OUT

from adapter_bert.errors import UserError
from lab.trials import mutants, report

PACKAGES = os.path.join(sys.prefix, "mutants")
SOURCE = "def larger(a, b):\n    return a > b\n"
TESTS = {
    "test_one.py": "import thing\n\ndef test_one():\n    thing.larger(1, 2)\n",
    "test_two.py": (
        "import thing\n\ndef test_two():\n    assert not thing.larger(1, 2)\n"
    ),
}


@pytest.fixture
def try_sources(tmp_path):
    """Runs the tests of a small project upon sources of its module."""
    (tmp_path / "soak").mkdir()
    (tmp_path / "tests").mkdir()
    for name in (
        "lab/trials/mutant_tests.py",
        "adapter_bert/start_tensorflow.py",
    ):
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in TESTS.items():
        (tmp_path / "tests" / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npythonpath = ["."]\n'
    )
    (tmp_path / "thing.py").write_text(SOURCE)

    def run(*sources, patience=60.0, limit=600.0):
        requests = [
            {
                "path": "thing.py",
                "source": source,
                "tests": ["tests/test_one.py", "tests/test_two.py"],
                "patience": patience,
                "limit": limit,
            }
            for source in sources
        ]
        done = subprocess.run(
            [sys.executable, "-m", "lab.trials.mutant_tests"],
            cwd=tmp_path,
            input="".join(json.dumps(r) + "\n" for r in requests),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        assert (tmp_path / "thing.py").read_text() == SOURCE
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_mutant_is_killed_by_the_first_test_that_fails(try_sources):
    same, wrong, broken, absent = try_sources(
        SOURCE.replace("a > b", "not b >= a"),
        SOURCE.replace(">", "<"),
        "raise ValueError",
        SOURCE.replace("larger", "smaller"),
    )
    assert (same["outcome"], same["by"]) == (SURVIVED, "")
    assert wrong["outcome"] == KILLED
    assert wrong["by"] == "tests/test_two.py::test_two"
    assert (broken["outcome"], broken["by"]) == (KILLED, "tests/test_one.py")
    assert absent["by"] == "tests/test_one.py::test_one"


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_mutant_with_which_no_tests_can_start_is_killed(
    try_sources, tmp_path
):
    (tmp_path / "tests" / "conftest.py").write_text("import thing\n")
    broken, wrong = try_sources("raise ValueError", SOURCE.replace(">", "<"))
    assert (broken["outcome"], broken["by"]) == (KILLED, "pytest ended with 4")
    # The others are tried none the less.
    assert wrong["by"] == "tests/test_two.py::test_two"


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_test_that_does_not_end_is_ended(try_sources):
    endless = SOURCE.replace("return", "while True: pass\n    return")
    late, wrong = try_sources(endless, SOURCE.replace(">", "<"), patience=4)
    assert late["outcome"] == TIMED_OUT
    assert late["by"] == "tests/test_one.py::test_one"
    # What runs afterwards is not disturbed.
    assert wrong["outcome"] == KILLED
    (out_of_time,) = try_sources(endless, limit=4)
    assert (out_of_time["outcome"], out_of_time["by"]) == (
        SURVIVED,
        OUT_OF_TIME,
    )


def test_the_tests_of_a_module_are_its_own_then_those_that_import_it():
    own, others = mutants.tests_of("optimization.py")
    assert own == ["tests/test_optimization.py"]
    assert "tests/test_progress.py" in others
    assert not set(own) & set(others)
    # It has none of its name, and nothing imports it.
    (of_package,) = mutants.tests_of("adapter_bert/methods/fine_tuning.py")
    assert "tests/test_golden_methods.py" in of_package
    own, others = mutants.tests_of("adapter_bert/checkpoints/training_state.py")
    assert own == ["tests/test_training_state.py"]
    # By `from adapter_bert.checkpoints import google, training_state`.
    assert "tests/test_estimator.py" in others


def test_every_named_file_of_tests_is_there():
    for names in [mutants.OF_ALL, *mutants.OF_PACKAGE.values()]:
        for name in names:
            assert (ROOT / "tests" / f"test_{name}.py").exists()


class FakeRunners:
    """Gives answers that are known."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def ask_all(self, requests, note):
        for number, request in enumerate(requests):
            self.asked.append(request)
            note(number, self.answers.pop(0))


def answer(outcome, by=""):
    return {"outcome": outcome, "by": by, "seconds": 1.0}


def drawn(path, before, after, line=1):
    source = (ROOT / path).read_text()
    assert before in source
    return {
        "path": path,
        "line": line,
        "operator": "Some",
        "occurrence": 0,
        "source": source.replace(before, after, 1),
    }


def test_mutants_are_tried_and_their_killers_confirmed(tmp_path):
    two = [
        drawn("optimization.py", "0.999", "1.999"),
        drawn("adapter_bert/methods/fine_tuning.py", "import", "import "),
    ]
    tried = tmp_path / "tried.jsonl"
    killer = "tests/test_a.py::test_b"
    runners = FakeRunners(
        # The first turn, the second, and the confirmation.
        answer(SURVIVED),
        answer(SURVIVED),
        answer(KILLED, killer),
        answer(SURVIVED),
    )
    killed, survived = mutants.try_all(runners, two, tried)
    assert (killed["outcome"], killed["by"]) == (KILLED, killer)
    assert killed["seconds"] == 2.0
    assert survived["outcome"] == SURVIVED
    assert "source" not in killed
    minus, plus = killed["change"]
    assert minus.startswith("-BETA_1") and "1.999" in plus
    assert [r["path"] for r in runners.asked[:3]] == [
        "optimization.py",
        "adapter_bert/methods/fine_tuning.py",
        "optimization.py",
    ]
    # The last question is about nothing that has changed.
    assert runners.asked[-1]["tests"] == [killer]
    assert runners.asked[-1]["source"] == (ROOT / "optimization.py").read_text()
    # What was killed is known.
    runners = FakeRunners(answer(SURVIVED), answer(SURVIVED))
    again, _ = mutants.try_all(runners, two, tried)
    assert again == killed
    assert runners.asked[0]["path"] == "adapter_bert/methods/fine_tuning.py"


def test_a_killer_that_fails_by_itself_is_found(tmp_path):
    runners = FakeRunners(
        answer(KILLED, "tests/test_a.py::test_b"),
        answer(KILLED, "tests/test_a.py::test_b"),
    )
    with pytest.raises(UserError, match="test_b: killed where nothing"):
        mutants.try_all(
            runners,
            [drawn("optimization.py", "0.999", "1.999")],
            tmp_path / "tried.jsonl",
        )


def test_what_changes_nothing_is_not_counted():
    found = [
        {"path": "methods/a.py", "outcome": KILLED},
        {"path": "methods/b.py", "outcome": TIMED_OUT},
        {"path": "hooks.py", "outcome": SURVIVED, "is_same": True},
        {"path": "modeling.py", "outcome": SURVIVED, "is_same": False},
    ]
    assert mutants.rows_of(found)[1:] == [
        ["methods/", "2", "1", "1", "0", "0"],
        ["other modules", "2", "0", "0", "1", "1"],
        ["all", "4", "1", "1", "1", "1"],
    ]
    assert mutants.share_killed(found) == pytest.approx(2 / 3)


def test_reasons_of_the_same_change_are_kept(tmp_path):
    path = tmp_path / "mutants.json"
    one = {"path": "a.py", "change": ["-x", "+y"], "outcome": SURVIVED}
    mutants.keep_reasons([one], path)
    assert one["why"] == "" and one["is_same"] is False
    kept = {**one, "why": "a reason", "is_same": True}
    path.write_text(json.dumps({"survivors": [kept]}))
    other = {**one, "change": ["-x", "+z"]}
    mutants.keep_reasons([one, other], path)
    assert one["why"] == "a reason" and one["is_same"] is True
    assert other["why"] == "" and other["is_same"] is False


def test_what_draws_must_be_installed(tmp_path):
    with pytest.raises(UserError, match="`make mutants` installs it"):
        mutants.draw(1, 1, str(tmp_path / "nothing"))


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_seed_draws_the_same_mutants():
    if not os.path.isdir(PACKAGES):
        pytest.skip(f"no {PACKAGES}; `make mutants` makes it")
    found = mutants.draw(1, 20)
    # More are the same, and others.
    assert found == mutants.draw(1, 25)[:20]
    places = {(m["path"], m["operator"], m["occurrence"]) for m in found}
    assert len(places) == 20
    for mutant in found:
        compile(mutant["source"], mutant["path"], "exec")
        assert mutants.change_of(mutant)


def test_every_survivor_was_looked_at():
    found = json.loads(mutants.RESULTS.read_text())
    for one in found["survivors"]:
        assert one["why"], f"{one['path']}:{one['line']}: write why it survives"
    page = (ROOT / "docs" / "reliability.md").read_text()
    for mark in report.marks("mutants"):
        assert page.count(mark) == 1
    assert f"Seed {found['seed']}, {found['mutants']} mutants" in page
    assert pathlib.Path(ROOT / "requirements" / "mutants.txt").exists()
