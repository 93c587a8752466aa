"""What adapters of a library are called."""

import json

import pytest
from tiny_artifacts import CLASSIFICATION

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.errors import UserError
from adapter_bert.serving import library

# Has `make` and `shelf`.
pytest_plugins = ["library_folders"]
pytestmark = pytest.mark.newer_stack


@pytest.mark.parametrize(
    "description,kind",
    [
        ({"name": "sts-b", "regression": True, "pairs": True}, "regression"),
        ({"name": "squad"}, "questions"),
        ({**CLASSIFICATION, "name": "custom"}, "classification"),
    ],
)
def test_without_a_name_it_is_called_as_its_task(
    shelf, make, description, kind
):
    folder = make(description=description)
    assert shelf.add(str(folder)) == description["name"]
    assert shelf.entry(description["name"]).kind == kind


@pytest.mark.parametrize(
    "task,data,name",
    [
        ("custom", "tickets.csv", "tickets"),
        ("custom", "tickets-2.1", "tickets-2.1"),
        ("tagging", "conll2003", "conll2003"),
        ("tagging", "news.conll", "news"),
        ("masked_lm", "raw.TXT", "raw"),
        # They say no more, or cannot be names.
        ("custom", "train.csv", "custom"),
        ("custom", "all.csv", "custom"),
        ("custom", "my tickets.csv", "custom"),
        ("custom", "", "custom"),
        ("mrpc", "MRPC", "mrpc"),
    ],
)
def test_own_data_give_their_name(task, data, name):
    config = {"task": {"name": task}, "data_name": data}
    assert library.default_name(config) == name


def test_an_adapter_of_own_data_is_called_as_they_are(shelf, make):
    folder = make()
    path = folder / adapter_artifact.CONFIG_FILE
    config = json.loads(path.read_text())
    del config["content_sha256"]
    files.write_sealed(str(path), {**config, "data_name": "tickets.csv"})
    assert shelf.add(str(folder)) == "tickets"
    assert shelf.names() == ["tickets"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../outside",
        "/tmp/x",
        "a/b",
        "-rf",
        ".hidden",
        "all",
        "ALL",
        "a b",
        "a,b",
        "a\n",
        "ä",
        "x" * 101,
    ],
)
def test_names_that_are_none_are_refused(shelf, make, name):
    folder = make()
    with pytest.raises(UserError, match="cannot be an adapter's name"):
        shelf.add(str(folder), name)
    shelf.add(str(folder), "x" * 100)
    with pytest.raises(UserError, match="cannot be an adapter's name"):
        shelf.rename("x" * 100, name)
    assert shelf.names() == ["x" * 100]


def test_a_name_is_given_once_in_whatever_letters(shelf, make):
    shelf.add(str(make()), "Mine")
    other = make("other", seed=1)
    for name in ("Mine", "mine", "MINE"):
        with pytest.raises(UserError, match="has an adapter 'Mine' already"):
            shelf.add(str(other), name)
    shelf.add(str(other), "yours")
    with pytest.raises(UserError, match="has an adapter 'Mine' already"):
        shelf.rename("yours", "mINE")
    # Its own may change its letters.
    shelf.rename("Mine", "mine")
    assert shelf.names() == ["mine", "yours"]
