"""Versions come, are damaged, and go, while some have requests."""

import gc
import shutil

import pytest
from tensorflow.core.protobuf import saved_model_pb2
from test_http_api import Echo

from adapter_bert.errors import UserError
from adapter_bert.serving.exported import GRAPH
from adapter_bert.serving.model_versions import (
    VersionFolder,
    VersionPolicy,
    load_export,
)
from adapter_bert.serving.served import AskedRow, ServedExport

pytestmark = pytest.mark.newer_stack

NEWEST = VersionPolicy()


class Loaded(ServedExport):
    """A version that a file names."""

    def __init__(self, version):
        model = Echo()
        model.version = version
        super().__init__(model)


def load(folder, version):
    path = f"{folder}/{version}/content"
    with open(path) as file:
        if file.read() != "whole":
            raise UserError(f"{path} is damaged")
    return Loaded(version)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "model"


@pytest.fixture
def write(place):
    """Writes versions, by default whole."""

    def write(*versions, content="whole"):
        for version in map(str, versions):
            (place / version).mkdir(parents=True, exist_ok=True)
            (place / version / "content").write_text(content)

    return write


def open_folder(place, policy=NEWEST):
    return VersionFolder(str(place), policy, {}, load)


def states(folder):
    return [(one.version, one.state) for one in folder.states()]


@pytest.mark.parametrize(
    "policy, chosen",
    [
        (VersionPolicy(), ["12"]),
        (VersionPolicy(2), ["9", "12"]),
        (VersionPolicy(9), ["2", "9", "12"]),
        (VersionPolicy(None), ["2", "9", "12"]),
        (VersionPolicy(None, ("12", "2", "5")), ["2", "12"]),
    ],
)
def test_policies(policy, chosen):
    assert policy.choose(["2", "9", "12"]) == chosen
    assert policy.choose([]) == []


def test_the_newest_one_is_served(place, write):
    write(1, 9)
    (place / "not a version").mkdir()
    folder = open_folder(place)
    assert list(folder.served) == ["9"]
    assert states(folder) == [("9", "AVAILABLE")]
    folder.look()
    assert list(folder.served) == ["9"]
    write(10)
    folder.look()
    assert list(folder.served) == ["10"]
    # Nobody asks the older one any more.
    assert states(folder) == [("10", "AVAILABLE"), ("9", "END")]
    # Back to the one before.
    shutil.rmtree(place / "10")
    folder.look()
    assert states(folder) == [("10", "END"), ("9", "AVAILABLE")]


def test_an_older_one_stays_until_its_requests_end(place, write):
    write(1)
    folder = open_folder(place)
    model = folder.served["1"]
    question = model.accept(AskedRow(b"one", b"a cat"))
    write(2)
    folder.look()
    assert list(folder.served) == ["2"]
    assert states(folder) == [("2", "AVAILABLE"), ("1", "UNLOADING")]
    assert model.compute([question]) == [{"echo": "a cat", "n": 0}]
    folder.look()
    assert states(folder)[1] == ("1", "UNLOADING")
    del model
    folder.look()
    assert states(folder)[1] == ("1", "END")


def test_a_damaged_one_is_left_out_until_it_is_whole(place, write, caplog):
    write(1)
    folder = open_folder(place)
    write(2, content="half")
    for _ in range(3):
        folder.look()
    assert list(folder.served) == ["1"]
    assert list(folder.left_out) == ["2"]
    assert states(folder) == [("2", "END"), ("1", "AVAILABLE")]
    assert "2/content is damaged" in folder.states()[0].error
    said = [x for x in caplog.messages if "version 2 is left out" in x]
    assert len(said) == 1 and said[0].endswith("2/content is damaged")
    write(2)
    folder.look()
    assert list(folder.served) == ["2"] and not folder.left_out


def test_what_is_left_out_and_goes_is_forgotten(place, write):
    write(1)
    folder = open_folder(place)
    write(2, content="half")
    folder.look()
    shutil.rmtree(place / "2")
    folder.look()
    assert list(folder.served) == ["1"] and not folder.left_out


def test_what_is_wanted_again_is_tried_again(place, write):
    write(1, 2)
    folder = open_folder(place)
    write(3, content="half")
    folder.look()
    assert "3" in folder.left_out
    folder.policy = VersionPolicy(None, ("2",))
    folder.look()
    assert not folder.left_out
    folder.policy = NEWEST
    folder.look()
    assert "is damaged" in folder.left_out["3"]


def test_a_defect_of_one_keeps_no_other_away(place, write, caplog):
    def load_most(folder, version):
        if version == "2":
            raise RuntimeError("no such kernel\nat a node")
        return load(folder, version)

    write(1)
    folder = VersionFolder(str(place), VersionPolicy(None), {}, load_most)
    write(2, 3)
    for _ in range(2):
        folder.look()
    assert list(folder.served) == ["1", "3"]
    assert folder.left_out == {"2": "no such kernel"}
    assert caplog.text.count("Traceback") == 1


def test_the_last_one_stays(place, write):
    write(1)
    folder = open_folder(place)
    shutil.rmtree(place / "1")
    with pytest.raises(UserError, match="model holds no version any more"):
        folder.look()
    assert list(folder.served) == ["1"]
    write(3)
    folder.look()
    assert list(folder.served) == ["3"]


def test_all_and_some(place, write):
    write(1, 2, 10)
    folder = open_folder(place, VersionPolicy(None))
    assert list(folder.served) == ["1", "2", "10"]
    write(3)
    shutil.rmtree(place / "1")
    folder.look()
    assert list(folder.served) == ["2", "3", "10"]
    folder.policy = VersionPolicy(None, ("3",))
    folder.look()
    assert list(folder.served) == ["3"]


@pytest.mark.parametrize(
    "versions, policy, message",
    [
        ((), VersionPolicy(), "holds no version of an exported model; pass"),
        ((1, 2), VersionPolicy(None, ("3",)), "holds no version 3; there are"),
        ((), VersionPolicy(None, ("3", "4")), "no version 3, 4; there are: no"),
    ],
)
def test_a_folder_without_them_is_refused(
    place, write, versions, policy, message
):
    write(*versions)
    with pytest.raises(UserError, match=message):
        open_folder(place, policy)


def test_a_damaged_one_is_refused_at_the_start(place, write):
    write(1)
    write(2, content="half")
    with pytest.raises(UserError, match="2/content is damaged"):
        open_folder(place)


def test_an_export_has_nothing_that_holds_it_in_memory(tiny_exported):
    """TensorFlow keeps functions of gradients, and so their variables."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((tiny_exported / "1" / GRAPH).read_bytes())
    library = saved.meta_graphs[0].graph_def.library
    assert library.function and not library.registered_gradients


@pytest.mark.gate
def test_a_whole_export_and_one_that_is_being_copied(tiny_exported, tmp_path):
    place = tmp_path / "exported"
    shutil.copytree(tiny_exported, place)
    folder = VersionFolder(str(place), VersionPolicy(), {}, load_export)
    row = AskedRow(b"small", b"a cat")
    expected = folder.served["1"].compute([folder.served["1"].accept(row)])
    variables = "variables/variables.data-00000-of-00001"
    shutil.copytree(place / "1", place / "2")
    content = (place / "2" / variables).read_bytes()
    (place / "2" / variables).write_bytes(content[:-1])
    folder.look()
    assert list(folder.served) == ["1"]
    assert "variables" in folder.left_out["2"]
    (place / "2" / variables).write_bytes(content)
    folder.look()
    gc.collect()
    folder.look()
    assert states(folder) == [("2", "AVAILABLE"), ("1", "END")]
    model = folder.served["2"]
    assert model.version == "2"
    assert model.compute([model.accept(row)]) == expected
