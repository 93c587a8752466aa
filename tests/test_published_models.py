"""Models that are named by TF-Hub's and Kaggle's handles."""

import hashlib
import socket
import sys
import types
from shutil import copytree

import pytest
import refusals
from conftest import module_fixture
from hub_modules import write_tf2
from test_sources import check_values, refuses

from adapter_bert.checkpoints import published_models, sources

pytestmark = pytest.mark.older_stack

TF_HUB = "https://tfhub.dev/tensorflow/small_bert/bert_en_uncased_L-2/1"
KAGGLE = "tensorflow/bert/tensorFlow2/en-uncased-l-2-h-16-a-2"


@pytest.fixture(autouse=True, params=["named", "default"])
def caches(tmp_path, monkeypatch, request):
    """Empty caches, named or by default, and no library that fetches."""
    hub, kaggle = tmp_path / "tfhub_modules", tmp_path / ".cache" / "kagglehub"
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(hub))
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(kaggle))
    if request.param == "default":
        monkeypatch.delenv("TFHUB_CACHE_DIR")
        monkeypatch.delenv("KAGGLEHUB_CACHE")
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
    # So that an import of it fails.
    monkeypatch.setitem(sys.modules, "tensorflow_hub", None)
    monkeypatch.setitem(sys.modules, "kagglehub", None)
    return hub, kaggle


@module_fixture
def module(tmp_path_factory, tiny_bert, tiny_weights):
    """A module of the tiny BERT, not in a cache yet."""
    folder = tmp_path_factory.mktemp("published") / "module"
    return write_tf2(folder, tiny_bert / "vocab.txt", tiny_weights, 2)


@pytest.fixture
def in_tf_hub(module, caches):
    """The folder of the module in TF-Hub's cache."""
    digest = hashlib.sha1(TF_HUB.encode()).hexdigest()
    return copytree(module, caches[0] / digest)


@pytest.fixture
def in_kaggle(module, caches):
    """The folder of the module's version 3 in Kaggle's cache."""
    folder = caches[1] / "models" / KAGGLE / "3"
    copytree(module, folder)
    folder.with_name("3.complete").touch()
    return folder


def check(path, folder, weights):
    opened = sources.open_init_checkpoint(path)
    assert opened.folder == str(folder)
    check_values(opened.weights, weights)


def test_what_tf_hub_has_cached_is_opened(in_tf_hub, tiny_weights):
    check(TF_HUB, in_tf_hub, tiny_weights)
    refuses(TF_HUB[:-1] + "2", "/2 is not on this machine")


def test_what_kagglehub_has_cached_is_opened(in_kaggle, tiny_weights):
    for start in ("", "https://www.kaggle.com/models/"):
        check(f"{start}{KAGGLE}/3", in_kaggle, tiny_weights)
    # Of a download that was cut off there is no such file.
    in_kaggle.with_name("3.complete").unlink()
    refuses(f"{KAGGLE}/3", "is not on this machine")


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
    fetched = []
    fake = types.ModuleType(library)
    setattr(fake, function, lambda name: fetched.append(name) or str(module))
    monkeypatch.setitem(sys.modules, library, fake)
    check(handle, module, tiny_weights)
    assert fetched == [handle]

    def fail(name):
        raise OSError("no route to host\nand more")

    setattr(fake, function, fail)
    refuses(handle, "cannot fetch it: no route to host; download it from")


@pytest.mark.parametrize(
    "handle, advice",
    [
        (TF_HUB, ["tensorflow-hub, which ", "tfhub.dev", "compressed"]),
        (KAGGLE, ["kagglehub, which ", f"kaggle.com/models/{KAGGLE} "]),
    ],
)
def test_without_a_library_one_line_says_what_to_do(handle, advice):
    refuses(handle, " here", *advice)


@pytest.mark.parametrize(
    "path",
    "model.ckpt a/b/c/d out/tensorFlow2/x/y/3 gs://bucket/bert/bert_model.ckpt "
    "/tensorflow/bert/tensorFlow2/x ../bert/tensorFlow2/x".split(),
)
def test_other_paths_are_no_handles(path):
    assert published_models.resolve(path) == path


@pytest.mark.parametrize(
    "path, end, reason",
    [
        (KAGGLE, "/saved_model.pb", "no variables"),
        ("models/bert/tensorflow1/bert_model.ckpt", ".index", "damaged"),
        ("x/y/transformers/model.ckpt-100", ".index", "damaged"),
    ],
)
def test_a_path_that_is_there_is_no_handle(
    tmp_path, monkeypatch, path, end, reason
):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{path}{end}"
    file.parent.mkdir(parents=True)
    file.touch()
    refuses(path, path, reason)


PRESET = "keras/bert/keras/bert_tiny_en_uncased/2"
OTHERS = ["no handle of TF-Hub", "download_bert"]
KERAS = ["is a preset of Keras, which is not"]


@pytest.mark.parametrize(
    "address, parts",
    [
        ("https://storage.googleapis.com/bert_models/2018/x.zip", OTHERS),
        ("http://tfhub.dev/google/x/1", OTHERS),
        ("https://www.kaggle.com/models/tensorflow/bert", OTHERS),
        (PRESET, KERAS),
        (f"https://www.kaggle.com/models/{PRESET}", KERAS),
    ],
)
def test_other_addresses_are_refused(address, parts):
    refuses(address, *parts)


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


def test_tf_hub_itself_finds_the_same_folder(library, in_tf_hub):
    hub = library("tensorflow_hub")
    assert (
        hub.resolve(TF_HUB)
        == published_models.resolve(TF_HUB)
        == str(in_tf_hub)
    )
    refusals.check(
        lambda: published_models.resolve(TF_HUB[:-1] + "2"),
        "tensorflow-hub cannot fetch it: ",
    )


def test_kagglehub_itself_finds_the_same_folder(library, in_kaggle):
    hub = library("kagglehub")
    folder = hub.model_download(f"{KAGGLE}/3")
    assert folder == published_models.resolve(f"{KAGGLE}/3") == str(in_kaggle)
    refusals.check(
        lambda: published_models.resolve(f"{KAGGLE}/4"),
        "kagglehub cannot fetch it: ",
    )
