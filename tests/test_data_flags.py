"""Flags that say where the files of a task's splits are."""

import pytest
from absl import flags
from absl.testing import flagsaver
from task_files import refusal

from adapter_bert.data.tables import SplitFiles
from adapter_bert.training.data_flags import (
    FILE_FLAGS,
    define_data_flags,
    named_files,
)

pytestmark = pytest.mark.older_stack

FLAGS = flags.FLAGS


@pytest.fixture(autouse=True)
def defined():
    """The flags alone."""
    before = set(FLAGS)
    define_data_flags("A folder.", "A file")
    FLAGS(["program"])
    yield
    FLAGS.remove_flag_values(set(FLAGS) - before)
    FLAGS.unparse_flags()


def test_each_flag_names_the_file_of_its_split(tmp_path):
    paths = [str(tmp_path / f"{name}.csv") for name in FILE_FLAGS]
    for path in paths:
        open(path, "w").close()
    with flagsaver.flagsaver(**dict(zip(FILE_FLAGS, paths))):
        assert named_files([".csv"]) == SplitFiles(*paths)
        assert "expected the ending .tsv" in refusal(named_files, [".tsv"])


def test_without_them_splits_are_in_the_folder():
    with flagsaver.flagsaver(data_dir="/nowhere"):
        assert not named_files([".csv"]).named


@pytest.mark.parametrize("name", FILE_FLAGS)
def test_a_file_and_a_folder_exclude_each_other(name):
    with flagsaver.flagsaver(data_dir="/nowhere", **{name: "/none.csv"}):
        message = refusal(named_files, [".csv"])
    assert message.startswith(f"--{name} and --data_dir exclude each other")
