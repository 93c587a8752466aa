"""What a script may replace and delete in the folder of its results."""

import json

import pytest
import refusals
from conftest import read_json

from adapter_bert.commands import plot, summarize
from adapter_bert.reports.collect_runs import replace_results

pytestmark = pytest.mark.older_stack


def names(folder):
    """Paths of all files below a folder, but for the list of them."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "files_of_me.json"
    }


def test_earlier_results_are_replaced_and_deleted(tmp_path):
    out = tmp_path / "out"
    replace_results(str(out), "me", {"a": b"1", "b/c": b"2", "b/d/e": b"3"})
    replace_results(str(out), "me", {"a": b"4", "b/c": b"5"})
    assert names(out) == {"a", "b/c"}
    assert (out / "a").read_bytes() == b"4"
    assert not (out / "b/d").exists()
    assert read_json(out / "files_of_me.json") == ["a", "b/c"]


def test_what_others_have_written_stays(tmp_path):
    replace_results(str(tmp_path), "me", {"b/c": b"1"})
    replace_results(str(tmp_path), "you", {"d": b"2"})
    for name in ("a", "b/other"):
        (tmp_path / name).touch()
    replace_results(str(tmp_path), "me", {"e": b"3"})
    assert names(tmp_path) == {"a", "b/other", "d", "e", "files_of_you.json"}


def test_a_file_of_somebody_elses_is_not_replaced(tmp_path):
    (tmp_path / "b").write_text("mine")
    refusals.check(
        lambda: replace_results(str(tmp_path), "me", {"a": b"1", "b": b"2"}),
        "the list of what me wrote",
    )
    assert names(tmp_path) == {"b"}
    assert (tmp_path / "b").read_text() == "mine"


def test_nothing_outside_of_the_folder_is_deleted(tmp_path):
    (tmp_path / "a").touch()
    out = tmp_path / "out"
    out.mkdir()
    paths = json.dumps(["../a", str(tmp_path / "a"), 1])
    (out / "files_of_me.json").write_text(paths)
    replace_results(str(out), "me", {})
    assert (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "program, taken", [(summarize, "methods.md"), (plot, "per_task.png")]
)
def test_tables_and_figures_leave_other_files_alone(
    tmp_path, fake, run_main, program, taken
):
    fake.add("rte", "houlsby(size=8)", 0.5)
    out = tmp_path / "out"
    # Neither has anything to say of SQuAD.
    mine = {"squad.md", "squad.png", "hparams/mine", "ablation_scores.json"}
    for name in mine:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).touch()
    run_main(program, fake.folder, f"--output_dir={out}")
    assert mine < names(out)
    other = tmp_path / "other"
    other.mkdir()
    (other / taken).write_text("mine")
    refusals.check(
        lambda: run_main(program, fake.folder, f"--output_dir={other}"),
        f"{taken} is there and not in",
    )
    assert names(other) == {taken}
