"""The adapter artifact: round trip, damage, descriptions that lack a part."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adapter_artifact
from errors import UserError


@pytest.fixture
def artifact(tmp_path):
    (tmp_path / "adapter").mkdir()
    config = {
        "method": "houlsby(size=4)",
        "task": {"name": "tiny", "labels": ["a", "b"]},
        "base": {"path": "x", "fingerprint": "0"},
        "tokenizer": {"vocabulary": "0", "do_lower_case": True},
        "bert_config": {},
    }
    values = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    adapter_artifact.write(str(tmp_path / "adapter"), config, values)
    return tmp_path / "adapter"


def test_artifact_comes_back_as_it_was_written(artifact):
    opened = adapter_artifact.read(str(artifact))
    assert opened.config["method"] == "houlsby(size=4)"
    assert opened.weights.shapes == {"x": (2, 3)}
    np.testing.assert_array_equal(
        opened.weights.read("x"), [[0, 1, 2], [3, 4, 5]]
    )


def test_a_changed_artifact_is_refused(artifact):
    path = artifact / "adapter.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match="damaged"):
        adapter_artifact.read(str(artifact))


def test_an_artifact_without_its_keys_is_refused(artifact):
    path = artifact / "adapter_config.json"
    config = json.loads(path.read_text())
    del config["base"]
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match="no base of type dict"):
        adapter_artifact.read(str(artifact))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(place=st.floats(0, 0.999), byte=st.binary(min_size=0, max_size=3))
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter.safetensors"])
def test_a_spoiled_file_is_a_result_or_one_line(
    tmp_path_factory, name, place, byte
):
    folder = tmp_path_factory.mktemp("spoiled")
    config = {
        "method": "houlsby(size=4)",
        "task": {"name": "tiny", "labels": ["a", "b"]},
        "base": {"path": "x", "fingerprint": "0"},
        "tokenizer": {},
        "bert_config": {},
    }
    values = {"x": np.zeros(3, np.float32)}
    adapter_artifact.write(str(folder), config, values)
    content = (folder / name).read_bytes()
    at = int(len(content) * place)
    (folder / name).write_bytes(content[:at] + byte + content[at + 1 :])
    try:
        adapter_artifact.read(str(folder))
    except UserError as error:
        assert "\n" not in str(error)
