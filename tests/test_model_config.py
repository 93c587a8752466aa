"""TensorFlow Serving's file of models, and the models as it changes."""

import threading
import weakref

import pytest
from sweep_stand_in import wait_for
from test_http_api import Echo, Versions

from adapter_bert.errors import UserError
from adapter_bert.serving import model_versions, served_models
from adapter_bert.serving.model_versions import VersionFolder, VersionPolicy
from adapter_bert.serving.served import ServedExport
from adapter_bert.serving.served_models import (
    ModelEntry,
    NotServed,
    ServedModels,
)

model_config = pytest.importorskip("adapter_bert.serving.model_config")

pytestmark = pytest.mark.newer_stack

# From TensorFlow Serving's guide, "Configuration", but for the names.
FILE = """
model_config_list {
  # The first.
  config {
    name: 'support'
    base_path: '/models/support'
    model_platform: "tensorflow"
    model_version_policy { specific { versions: 42 versions: 43 } }
    version_labels { key: 'stable' value: 42 }
    version_labels { key: 'canary' value: 43 }
  }
  config { name: "a.b" base_path: "other" }
  config {
    name: "c" base_path: "c" model_type: TENSORFLOW
    model_version_policy: { latest: { num_versions: 2 } }
  }
  config { name: "d" base_path: "d" model_version_policy { all {} } }
  config { name: "e" base_path: "e" model_version_policy { latest {} } }
}
"""


NEWEST = VersionPolicy()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "models.config"


def test_a_file_of_models(path):
    path.write_text(FILE)
    assert model_config.read_config(str(path)) == [
        ModelEntry(
            "support",
            "/models/support",
            VersionPolicy(None, ("42", "43")),
            {"stable": "42", "canary": "43"},
        ),
        ModelEntry("a.b", "other", VersionPolicy(1), {}),
        ModelEntry("c", "c", VersionPolicy(2), {}),
        ModelEntry("d", "d", VersionPolicy(None), {}),
        ModelEntry("e", "e", VersionPolicy(1), {}),
    ]


def of_one(rest):
    return f"model_config_list {{ config {{ {rest} }} }}"


NAMED = 'name: "a" base_path: "a" '


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "models.config names no model, expected model_config_list"),
        ("model_config_list {}", "names no model"),
        ("{", "is no model_config_list in protobuf's text format: 1:1"),
        ("model_config_list { config {", "is no model_config_list"),
        (of_one("nobody: 1"), 'no model_config_list .* named "nobody"'),
        (of_one("name: 1"), "is no model_config_list"),
        (of_one('base_path: "a"'), "a model of the name '', expected letters"),
        (of_one('name: "a/b" base_path: "a"'), "a model of the name 'a/b'"),
        (of_one('name: "a"'), "the model a has no base_path"),
        (of_one(NAMED + 'model_platform: "x"'), 'has no model_platform: "te'),
        (of_one(NAMED + "model_type: OTHER"), "has no model_platform"),
        (of_one(NAMED + "logging_config {}"), "a has a logging_config; reque"),
        (
            of_one(NAMED + "model_version_policy { specific {} }"),
            "the model a has no versions in its policy specific",
        ),
        (
            of_one(NAMED + "} config {" + NAMED),
            "has two models of the name a",
        ),
        ("custom_model_config {}", "custom_model_config is not supported"),
    ],
)
def test_what_is_no_such_file(path, text, message):
    path.write_text(text)
    with pytest.raises(UserError, match=message) as found:
        model_config.read_config(str(path))
    assert "\n" not in str(found.value)


def test_without_a_file(path):
    with pytest.raises(UserError, match="models.config"):
        model_config.read_config(str(path))


@pytest.fixture
def loaded(monkeypatch):
    """Folders are models; those that are damaged are in the set."""

    class Damaged(set):
        tries = []

    damaged = Damaged()

    def load(folder, version):
        damaged.tries.append(folder)
        if folder in damaged:
            raise UserError(f"{folder} is damaged")
        model = Echo()
        model.version = version
        return ServedExport(model)

    class Folder(VersionFolder):
        def __init__(self, *arguments):
            super().__init__(*arguments, load)

    monkeypatch.setattr(model_versions, "versions_in", lambda _: ["1", "2"])
    monkeypatch.setattr(served_models, "look_of", lambda x: x in damaged)
    monkeypatch.setattr(served_models, "VersionFolder", Folder)
    return damaged


def test_models_come_and_go_as_the_file_changes(loaded):
    def entry(name, folder, policy=NEWEST, **labels):
        return ModelEntry(name, folder, policy, labels)

    entries = [entry("a", "x"), entry("b", "y")]
    models = ServedModels.of_file(lambda: entries)
    assert list(models.models) == ["a", "b"]
    first = models.version("a")
    models.look()
    assert models.version("a") is first
    # Another policy and labels of the same folder.
    entries[:] = [entry("a", "x", VersionPolicy(None), old="1")]
    models.look()
    assert models.version("a") is first
    assert models.version("a", label="old").version == "1"
    assert [one.version for one in models.states("a")] == ["2", "1"]
    assert [one.version for one in models.states("a", label="old")] == ["1"]
    with pytest.raises(NotServed, match="no model 'b'; there is 'a'"):
        models.find("b")
    # One that cannot be loaded does not keep others away.
    loaded.update("zw")
    entries[:] = [entry("c", "z"), entry("a", "w"), entry("d", "v")]
    with pytest.raises(UserError, match="is damaged"):
        models.look()
    assert list(models.models) == ["a", "d"]
    assert models.version("a", version="2") is first
    loaded.clear()
    models.look()
    assert list(models.models) == ["c", "a", "d"]
    assert models.version("a") is not first
    with pytest.raises(NotServed, match="no version 1 of 'a'; there is 2"):
        models.version("a", "1")


def test_what_is_refused_is_loaded_again_when_its_files_change(loaded):
    entries = [ModelEntry("a", "x", NEWEST, {})]
    models = ServedModels.of_file(lambda: entries)
    entries.append(ModelEntry("b", "y", NEWEST, {}))
    loaded.add("y")
    messages = set()
    for _ in range(3):
        with pytest.raises(UserError) as found:
            models.look()
        messages.add(str(found.value))
    assert messages == {"y is damaged"} and loaded.tries.count("y") == 1
    loaded.clear()
    models.look()
    assert list(models.models) == ["a", "b"]


def test_a_model_that_has_gone_is_freed(loaded):
    entries = [ModelEntry(name, name, NEWEST, {}) for name in "ab"]
    models = ServedModels.of_file(lambda: entries)
    held, gone = models.version("a"), weakref.ref(models.version("a"))
    # As what TensorFlow has loaded.
    held.itself = held
    del entries[0]
    models.look()
    assert gone()
    del held
    models.look()
    assert not gone()


def test_a_file_that_is_damaged_changes_nothing(loaded):
    found = [[ModelEntry("a", "x", NEWEST, {})]]

    def read():
        if not found[0]:
            raise UserError("the file is damaged")
        return found[0]

    models = ServedModels.of_file(read)
    found[0] = []
    for _ in range(2):
        with pytest.raises(UserError, match="the file is damaged"):
            models.look()
    assert list(models.models) == ["a"]


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_a_problem_is_logged_once_until_it_is_another(caplog):
    class Failing(Versions):
        # The last one ends the thread.
        problems = [SystemExit(), RuntimeError("x"), *map(UserError, "baa")]

        def look(self):
            raise self.problems.pop()

    ServedModels({"tiny": Failing(Echo())}).watch(0.01)
    wait_for(lambda: "watch" not in [t.name for t in threading.enumerate()])
    said = [x for x in caplog.messages if x in ("a", "b")]
    assert said == ["a", "b"]
    assert "cannot look for changes" in caplog.messages
