"""Which file holds a split: one that was named, or one of a folder."""

import hypothesis
import hypothesis.strategies as st
import pytest
from task_files import PROPERTY, refusal

from adapter_bert.data.tables import FLAGS_OF_SPLITS, SplitFiles, ending_of

pytestmark = pytest.mark.older_stack

ENDINGS = (".tsv", ".csv")
FOLDER = SplitFiles()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_split_of_a_folder_has_one_of_the_endings(tmp_path, ending):
    path = tmp_path / f"dev{ending}"
    path.write_text("x")
    (tmp_path / "dev.txt").write_text("x")
    assert FOLDER.find(str(tmp_path), "dev", ENDINGS) == str(path)
    message = refusal(FOLDER.find, str(tmp_path), "train", ENDINGS)
    assert message == (
        f"there is no {tmp_path}/train.tsv and no {tmp_path}/train.csv"
    )


def test_two_files_of_a_split_are_refused(tmp_path):
    for ending in ENDINGS:
        (tmp_path / f"dev{ending}").write_text("x")
    message = refusal(FOLDER.find, str(tmp_path), "dev", ENDINGS)
    assert message == (
        f"{tmp_path}/dev.tsv and {tmp_path}/dev.csv are both there; keep one"
    )


def test_a_split_that_was_not_named_is_missing_whatever_lies_there(tmp_path):
    (tmp_path / "dev.csv").write_text("x")
    named = SplitFiles(train=str(tmp_path / "tickets.csv"))
    assert named.found(str(tmp_path), "dev", ENDINGS) == []
    message = refusal(named.find, str(tmp_path), "dev", ENDINGS)
    assert message == "--eval_file is missing: the rows to evaluate on"
    message = refusal(named.find, str(tmp_path), "test", ENDINGS)
    assert message.startswith("--predict_file is missing")


@PROPERTY
@hypothesis.given(
    st.fixed_dictionaries(
        {},
        optional={
            split: st.text(min_size=1, max_size=5) for split in FLAGS_OF_SPLITS
        },
    )
)
def test_named_files_are_found_as_they_were_named(paths):
    named = SplitFiles(**paths)
    assert named.named == paths
    for split, path in paths.items():
        assert named.find("elsewhere", split, ENDINGS) == path


def test_files_that_cannot_be_read_are_refused_unread(tmp_path):
    for name in ("a.csv", "b.TSV", "c.xlsx"):
        (tmp_path / name).write_text("x")
    (tmp_path / "d.csv").mkdir()

    def check(**paths):
        named = {s: str(tmp_path / name) for s, name in paths.items()}
        SplitFiles(**named).check(ENDINGS)

    check(train="a.csv", dev="b.TSV", test="a.csv")
    assert refusal(lambda: check(dev="e.csv")) == (
        f"--eval_file is {tmp_path}/e.csv, which does not exist"
    )
    assert refusal(lambda: check(test="c.xlsx")) == (
        f"--predict_file is {tmp_path}/c.xlsx, expected the ending .tsv or .csv"
    )
    assert "a folder; expected a file" in refusal(lambda: check(train="d.csv"))


def test_training_rows_are_not_scored(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "link.csv").symlink_to("a.csv")
    monkeypatch.chdir(tmp_path)
    for dev in (str(tmp_path / "a.csv"), "link.csv"):
        message = refusal(SplitFiles("a.csv", dev).check, ENDINGS)
        assert "would score training rows" in message
        assert "--dev_share" in message


def test_endings_are_in_lower_case():
    assert ending_of("a.b/c.d.CSV") == ".csv"
    assert ending_of("a.b/c") == ""
