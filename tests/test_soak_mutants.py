"""Mutants are drawn, tried, and told of."""

import json
import os

import pytest
from conftest import ROOT

from adapter_bert.errors import UserError
from lab.trials import mutants
from lab.trials.mutants import KILLED, OUT_OF_TIME, SURVIVED, TIMED_OUT


def gate(test):
    """Marks a test that runs tests, or needs cosmic-ray."""
    return pytest.mark.gate(pytest.mark.newer_stack(test))


MODULE = "adapter_bert/optimization.py"
SOURCE = "def larger(a, b):\n    return a > b\n"
TESTS = {
    "test_one.py": "import thing\n\ndef test_one():\n    thing.larger(1, 2)\n",
    "test_two.py": (
        "import thing\n\ndef test_two():\n    assert not thing.larger(1, 2)\n"
    ),
}


@pytest.fixture
def try_source(tmp_path, monkeypatch):
    """Runs the tests of a small project on a source of its module."""
    (tmp_path / "tests").mkdir()
    for name, text in TESTS.items():
        (tmp_path / "tests" / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npythonpath = ["."]\n'
    )
    (tmp_path / "thing.py").write_text(SOURCE)
    groups = [["tests/test_one.py"], ["tests/test_two.py"]]
    monkeypatch.setattr(mutants, "tests_of", lambda path: groups)

    def run(source, limit=600.0):
        mutant = {"path": "thing.py", "source": source, "change": []}
        found = mutants.try_mutant(tmp_path, mutant, limit)
        assert (tmp_path / "thing.py").read_text() == SOURCE
        assert "source" not in found and found["seconds"] > 0
        return found["outcome"], found["by"]

    return run


@gate
@pytest.mark.parametrize(
    "before, after, found",
    [
        ("a > b", "not b >= a", (SURVIVED, "")),
        (">", "<", (KILLED, "tests/test_two.py::test_two")),
        (SOURCE, "raise ValueError", (KILLED, "tests/test_one.py")),
    ],
)
def test_a_mutant_is_killed_by_the_first_test_that_fails(
    try_source, before, after, found
):
    assert try_source(SOURCE.replace(before, after)) == found


@gate
def test_a_mutant_with_which_no_tests_can_start_is_killed(try_source, tmp_path):
    (tmp_path / "tests" / "conftest.py").write_text("import thing\n")
    outcome, by = try_source("raise ValueError")
    assert (outcome, by) == (KILLED, "pytest ended with 4")


@gate
def test_a_test_that_does_not_end_is_ended(try_source, monkeypatch):
    endless = SOURCE.replace("return", "while True: pass\n    return")
    assert try_source(endless, limit=2) == (SURVIVED, OUT_OF_TIME)
    monkeypatch.setattr(mutants, "PATIENCE", 1)
    assert try_source(endless) == (TIMED_OUT, "tests/test_one.py::test_one")


@gate
def test_tests_that_are_not_there_are_no_outcome(tmp_path):
    with pytest.raises(UserError, match="pytest cannot run tests/test_a.py"):
        mutants.run_tests(tmp_path, ["tests/test_a.py"], 60)


def test_the_tests_of_a_module_are_its_own_then_those_that_name_it():
    own, others = mutants.tests_of(MODULE)
    assert own == ["tests/test_optimization.py"]
    assert "tests/test_progress.py" in others
    assert not set(own) & set(others)
    own, others = mutants.tests_of("adapter_bert/checkpoints/training_state.py")
    assert own == ["tests/test_training_state.py"]
    # By `from adapter_bert.checkpoints import google, training_state`.
    assert "tests/test_estimator.py" in others


def test_every_named_file_and_module_is_there():
    for name in mutants.OF_ALL:
        assert (ROOT / "tests" / f"test_{name}.py").exists()
    for pattern in mutants.CORE:
        assert list((ROOT / mutants.PACKAGE).glob(f"{pattern}.py")), pattern


def drawn(before, after):
    source = (ROOT / MODULE).read_text()
    assert before in source
    changed = source.replace(before, after, 1)
    change = mutants._change(source, changed)
    return {"path": MODULE, "line": 1, "source": changed, "change": change}


@pytest.fixture
def answers(monkeypatch):
    """What each run of tests comes to, and the tests that were run."""
    given, asked = [], []

    def run_tests(folder, tests, limit):
        asked.append((tests, (folder / MODULE).read_text()))
        return given.pop(0)

    def copy(folder):
        (folder / MODULE).parent.mkdir(parents=True)
        (folder / MODULE).write_text((ROOT / MODULE).read_text())

    monkeypatch.setattr(mutants, "run_tests", run_tests)
    monkeypatch.setattr(mutants, "copy_project", copy)
    return given, asked


KILLER = "tests/test_a.py::test_b"


def test_mutants_are_tried_and_their_killers_confirmed(tmp_path, answers):
    given, asked = answers
    two = [drawn("0.999", "1.999"), drawn("import", "import ")]
    tried = tmp_path / "tried.jsonl"
    # Two turns of each, and the confirmation.
    given += [(SURVIVED, ""), (KILLED, KILLER)]
    given += [(SURVIVED, ""), (SURVIVED, ""), (SURVIVED, "")]
    killed, survived = mutants.try_all(two, tried, 1, 60)
    assert (killed["outcome"], killed["by"]) == (KILLED, KILLER)
    assert survived["outcome"] == SURVIVED
    assert "source" not in killed
    minus, plus = killed["change"]
    assert "0.999" in minus and "1.999" in plus
    own, others = mutants.tests_of(MODULE)
    changed, other = (mutant["source"] for mutant in two)
    right = (ROOT / MODULE).read_text()
    assert asked == [
        (own, changed),
        (others, changed),
        (own, other),
        (others, other),
        # The last question is about nothing that has changed.
        ([KILLER], right),
    ]
    # What was killed is known.
    given += [(SURVIVED, "")] * 3
    again, _ = mutants.try_all(two, tried, 1, 60)
    assert again == killed and len(asked) == 8


def test_a_killer_that_fails_by_itself_is_found(tmp_path, answers):
    given, _ = answers
    given += [(KILLED, KILLER), (KILLED, KILLER)]
    with pytest.raises(UserError, match="test_b: killed where nothing"):
        mutants.try_all(
            [drawn("0.999", "1.999")], tmp_path / "tried.jsonl", 1, 60
        )


def test_what_changes_nothing_is_not_counted():
    found = [
        {"path": "adapter_bert/methods/a.py", "outcome": KILLED},
        {"path": "adapter_bert/methods/b.py", "outcome": TIMED_OUT},
        {"path": "adapter_bert/files.py", "outcome": SURVIVED, "is_same": True},
        {
            "path": "adapter_bert/errors.py",
            "outcome": SURVIVED,
            "is_same": False,
        },
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


@gate
def test_a_seed_draws_the_same_mutants(monkeypatch):
    if not os.path.isdir(mutants.PACKAGES):
        pytest.skip(f"no {mutants.PACKAGES}; `make mutants` makes it")
    with pytest.raises(UserError, match="`make mutants` installs it"):
        mutants.draw(1, 1, "/nothing")
    monkeypatch.setattr(mutants, "CORE", ("optimization", "data/*"))
    found = mutants.draw(1, 20, mutants.PACKAGES)
    # More are the same, and others.
    assert found == mutants.draw(1, 25, mutants.PACKAGES)[:20]
    assert len({(m["path"], m["source"]) for m in found}) == 20
    for mutant in found:
        compile(mutant["source"], mutant["path"], "exec")
        assert mutant["change"]


def test_every_survivor_was_looked_at():
    found = json.loads(mutants.RESULTS.read_text())
    for one in found["survivors"]:
        assert one["why"], f"{one['path']}:{one['line']}: write why it survives"
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert f"Seed {found['seed']}, {found['mutants']} mutants" in page
