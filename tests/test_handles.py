"""Models that are named by TF-Hub's and Kaggle's handles."""

import hashlib
import shutil
import socket
import sys
import types

import numpy as np
import pytest
from hub_modules import write_tf2

from adapter_bert.checkpoints import handles, sources
from adapter_bert.errors import UserError

TF_HUB = "https://tfhub.dev/tensorflow/small_bert/bert_en_uncased_L-2/1"
KAGGLE = "tensorflow/bert/tensorFlow2/en-uncased-l-2-h-16-a-2"


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """Empty caches, and no library that fetches."""
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(tmp_path / "tfhub"))
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "kaggle"))
    # So that an import of it fails.
    monkeypatch.setitem(sys.modules, "tensorflow_hub", None)
    monkeypatch.setitem(sys.modules, "kagglehub", None)


@pytest.fixture
def module(tmp_path, tiny_bert, tiny_weights):
    """A module of the tiny BERT, not in a cache yet."""
    return write_tf2(
        tmp_path / "module", tiny_bert / "vocab.txt", tiny_weights, 2
    )


def cached_by_tf_hub(module, tmp_path, handle=TF_HUB):
    folder = tmp_path / "tfhub" / hashlib.sha1(handle.encode()).hexdigest()
    shutil.copytree(module, folder)
    return folder


def cached_by_kaggle(module, tmp_path, version="3"):
    folder = tmp_path / "kaggle" / "models" / KAGGLE / version
    shutil.copytree(module, folder)
    folder.with_name(f"{version}.complete").touch()
    return folder


def check(path, folder, weights):
    opened = sources.open_init_checkpoint(path)
    assert opened.folder == str(folder)
    for name, value in weights.items():
        np.testing.assert_array_equal(opened.weights.read(name), value)


def test_what_tf_hub_has_cached_is_opened(module, tmp_path, tiny_weights):
    folder = cached_by_tf_hub(module, tmp_path)
    check(TF_HUB, folder, tiny_weights)
    with pytest.raises(UserError, match="/2 is not on this machine"):
        sources.open_init_checkpoint(TF_HUB[:-1] + "2")


def test_without_its_variable_tf_hubs_cache_is_a_temporary_folder(
    module, tmp_path, tiny_weights, monkeypatch
):
    monkeypatch.delenv("TFHUB_CACHE_DIR")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = cached_by_tf_hub(module, tmp_path)
    folder.parent.rename(tmp_path / "tfhub_modules")
    check(TF_HUB, tmp_path / "tfhub_modules" / folder.name, tiny_weights)


@pytest.mark.parametrize("start", ["", "https://www.kaggle.com/models/"])
def test_what_kagglehub_has_cached_is_opened(
    module, tmp_path, tiny_weights, start
):
    folder = cached_by_kaggle(module, tmp_path)
    check(f"{start}{KAGGLE}/3", folder, tiny_weights)
    # Of a download that was cut off there is no such file.
    folder.with_name("3.complete").unlink()
    with pytest.raises(UserError, match="is not on this machine"):
        sources.open_init_checkpoint(f"{KAGGLE}/3")


def test_without_its_variable_kagglehubs_cache_is_at_home(
    module, tmp_path, tiny_weights, monkeypatch
):
    monkeypatch.delenv("KAGGLEHUB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    cached_by_kaggle(module, tmp_path)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "kaggle").rename(tmp_path / ".cache" / "kagglehub")
    folder = tmp_path / ".cache" / "kagglehub" / "models" / KAGGLE / "3"
    check(f"{KAGGLE}/3", folder, tiny_weights)


@pytest.mark.parametrize(
    "handle, library, function",
    [
        (TF_HUB, "tensorflow_hub", "resolve"),
        (KAGGLE, "kagglehub", "model_download"),
        (f"{KAGGLE}/3", "kagglehub", "model_download"),
    ],
)
def test_what_is_not_cached_is_fetched_by_the_library(
    module, tiny_weights, monkeypatch, handle, library, function
):
    asked = []
    fake = types.ModuleType(library)
    setattr(fake, function, lambda name: asked.append(name) or str(module))
    monkeypatch.setitem(sys.modules, library, fake)
    check(handle, module, tiny_weights)
    assert asked == [handle]

    def fail(name):
        raise OSError("no route to host\nand more")

    setattr(fake, function, fail)
    with pytest.raises(
        UserError, match="cannot fetch it: no route to host; download it from"
    ):
        sources.open_init_checkpoint(handle)


@pytest.mark.parametrize(
    "handle, advice",
    [
        (
            TF_HUB,
            "tensorflow-hub, which .* imported here.*tfhub.dev.*compressed",
        ),
        (
            KAGGLE,
            f"kagglehub, which .* imported here.*kaggle.com/models/{KAGGLE} ",
        ),
    ],
)
def test_without_a_library_one_line_says_what_to_do(handle, advice):
    with pytest.raises(UserError, match=advice) as caught:
        sources.open_init_checkpoint(handle)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "model.ckpt",
        "a/b/c/d",
        "out/tensorFlow2/x/y/3",
        "gs://bucket/bert/bert_model.ckpt",
        "/tensorflow/bert/tensorFlow2/x",
        "../bert/tensorFlow2/x",
    ],
)
def test_other_paths_are_no_handles(path):
    assert handles.resolve(path) == path


def test_a_path_that_is_there_is_no_handle(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / KAGGLE
    folder.parent.mkdir(parents=True)
    module.rename(folder)
    assert handles.resolve(KAGGLE) == KAGGLE


@pytest.mark.parametrize(
    "prefix",
    [
        "models/bert/tensorflow1/bert_model.ckpt",
        "x/y/transformers/model.ckpt-100",
    ],
)
def test_a_checkpoint_that_is_there_is_no_handle(tmp_path, monkeypatch, prefix):
    monkeypatch.chdir(tmp_path)
    (tmp_path / prefix).parent.mkdir(parents=True)
    (tmp_path / f"{prefix}.index").touch()
    assert handles.resolve(prefix) == prefix


@pytest.mark.parametrize(
    "address",
    [
        "https://storage.googleapis.com/bert_models/2018_10_18/x.zip",
        "http://tfhub.dev/google/x/1",
        "https://www.kaggle.com/models/tensorflow/bert",
    ],
)
def test_other_addresses_are_refused(address):
    with pytest.raises(UserError, match="no handle of TF-Hub.*download_bert"):
        sources.open_init_checkpoint(address)


@pytest.fixture
def library(monkeypatch):
    """Imports a real library, without any network."""

    def fail(*arguments):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", fail)

    def load(name):
        monkeypatch.delitem(sys.modules, name)
        return pytest.importorskip(name, exc_type=ImportError)

    return load


def test_tf_hub_itself_finds_the_same_folder(library, module, tmp_path):
    hub = library("tensorflow_hub")
    folder = cached_by_tf_hub(module, tmp_path)
    assert hub.resolve(TF_HUB) == handles.resolve(TF_HUB) == str(folder)
    with pytest.raises(UserError, match="tensorflow-hub cannot fetch it: "):
        handles.resolve(TF_HUB[:-1] + "2")


def test_kagglehub_itself_finds_the_same_folder(library, module, tmp_path):
    hub = library("kagglehub")
    folder = cached_by_kaggle(module, tmp_path)
    found = hub.model_download(f"{KAGGLE}/3")
    assert found == handles.resolve(f"{KAGGLE}/3") == str(folder)
    with pytest.raises(UserError, match="kagglehub cannot fetch it: "):
        handles.resolve(f"{KAGGLE}/4")


@pytest.mark.parametrize("start", ["", "https://www.kaggle.com/models/"])
def test_a_preset_of_keras_is_named(start):
    path = f"{start}keras/bert/keras/bert_tiny_en_uncased/2"
    with pytest.raises(UserError, match="is a preset of Keras, which is not"):
        handles.resolve(path)
