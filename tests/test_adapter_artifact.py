"""The adapter artifact: round trip, damage, descriptions that lack a part."""

import numpy as np
import pytest
import refusals
from conftest import read_adapter, read_json, write_json
from numpy.testing import assert_array_equal

from adapter_bert.bert.encoder import WORD_EMBEDDINGS
from adapter_bert.checkpoints import adapter_artifact, changed_entries
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.errors import UserError

CONFIG = {
    "method": "houlsby(size=4)",
    "task": {"name": "tiny", "labels": ["a", "b"]},
    "base": {"name": "x", "fingerprint": "0"},
    "tokenizer": {"vocabulary": "0", "do_lower_case": True},
    "bert_config": {},
}


@pytest.fixture
def artifact(tmp_path):
    (tmp_path / "adapter").mkdir()
    values = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    adapter_artifact.write(str(tmp_path / "adapter"), CONFIG, values)
    return tmp_path / "adapter"


def test_a_changed_artifact_is_refused(artifact):
    path = artifact / "adapter.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refusals.check(lambda: read_adapter(artifact), "damaged")
    path = artifact / "adapter_config.json"
    config = read_json(path)
    del config["base"]
    write_json(path, config)
    refusals.check(lambda: read_adapter(artifact), "no base of type dict")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("", "pass {0}/adapter"),
        ("adapter/adapter.safetensors", "pass {0}/adapter"),
        ("adapter/adapter_config.json", "pass {0}/adapter"),
        ("none", "description {0}/none/adapter_config.json does not exist"),
        ("empty", "description {0}/empty/adapter_config.json does not exist"),
    ],
)
def test_an_adapter_beside_the_named_folder_is_told(artifact, name, expected):
    run = artifact.parent
    (run / "empty" / "adapter").mkdir(parents=True)
    with pytest.raises(UserError, match=f"{expected.format(run)}$"):
        read_adapter(run / name)


BASE = {
    "bert/a": np.array([[1.0, 0.0], [2.0, 3.0]], np.float32),
    "bert/b": np.array([5.0], np.float32),
}


def weights(values, source="the base"):
    shapes = {name: value.shape for name, value in values.items()}
    return Weights(source, shapes, values.__getitem__)


@pytest.fixture
def changes(artifact):
    """An artifact of changes to `BASE`: the values, and its folder."""
    trained = {
        "bert/a": np.array([[1.0, -0.0], [2.0, 4.5]], np.float32),
        "bert/b": BASE["bert/b"],
        "bert/adapter": np.array([6.0], np.float32),
        "head": np.array([7.0], np.float32),
    }
    stored = changed_entries.changes(trained, BASE.__getitem__, BASE)
    adapter_artifact.write(str(artifact), CONFIG, stored)
    return trained, stored, artifact


def test_only_changes_are_stored_and_nothing_is_lost(changes):
    trained, stored, folder = changes
    changed = {"bert/a/indices", "bert/a/values"}
    assert set(stored) == {*changed, "bert/adapter", "head"}
    assert stored["bert/a/indices"].tolist() == [1, 3]
    opened = read_adapter(folder, weights(BASE)).weights
    assert set(opened.shapes) == set(trained)
    for name, value in trained.items():
        assert opened.shapes[name] == value.shape
        assert opened.read(name).tobytes() == value.tobytes(), name
    assert_array_equal(BASE["bert/a"], [[1, 0], [2, 3]])


def test_an_adapter_that_changed_nothing_has_variables_of_the_bert():
    base = {WORD_EMBEDDINGS: np.ones((2, 3), np.float32)}
    stored = changed_entries.changes(dict(base), base.__getitem__, base)
    assert [value.size for value in stored.values()] == [0, 0]


@pytest.mark.parametrize(
    "kind, base",
    [
        (np.float32, BASE),
        (bool, BASE),
        (np.int64, {"bert/b": BASE["bert/b"]}),
        (np.int64, {"bert/a": np.zeros(3)}),
    ],
)
def test_changes_that_do_not_fit_the_base_are_refused(changes, kind, base):
    _, stored, folder = changes
    places = stored["bert/a/indices"].astype(kind)
    values = {**stored, "bert/a/indices": places}
    adapter_artifact.write(str(folder), CONFIG, values)
    refusals.check(
        lambda: read_adapter(folder, weights(base)),
        "the changes of bert/a do not fit",
    )


def test_what_a_part_changes_is_known_by_a_whole_folder_of_its_name():
    mostly_zero = np.array([0.0, 0.0, 0.0, 1.0], np.float32)
    stored = changed_entries.few(
        {
            "parts.a/changes/bert/a": mostly_zero,
            "parts.exchanges/bert/adapter": mostly_zero,
        }
    )
    assert set(stored) == {
        "parts.a/changes/bert/a/indices",
        "parts.a/changes/bert/a/values",
        "parts.exchanges/bert/adapter",
    }
