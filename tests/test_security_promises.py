"""What SECURITY.md promises of files that strangers have made.

Each test would fail if a promise were broken. More of them are next to what
they test; SECURITY.md has a list.
"""

import contextlib
import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import refusals
from conftest import load_predictor, read_adapter_config, write_json
from limits import limited
from tiny_artifacts import edit_config, make_artifact

from adapter_bert.bert.config import BertConfig
from adapter_bert.checkpoints.foreign_tensors import Tensors
from adapter_bert.checkpoints.hugging_face import open_safetensors
from adapter_bert.errors import UserError
from adapter_bert.library import adapter_library as library
from adapter_bert.tasks.from_description import restore_task
from lab.trials import fuzz_inputs, fuzz_targets

pytestmark = pytest.mark.newer_stack

# Beside what the process has; what a file's header claims is far more.
LITTLE = 2**28


# A tensor of a Hugging Face model.
NAME = "classifier.bias"


def safetensors_file(header, data=b""):
    """A file of any header, also of one that is no JSON."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def tensor(shape, kind="F32", size=0):
    header = {"dtype": kind, "shape": shape, "data_offsets": [0, size]}
    return safetensors_file({NAME: header}, bytes(size))


ODD_TENSORS = {
    "a header of 2^60 bytes": struct.pack("<Q", 2**60) + b"{}",
    "a header of 100 MB that is not there": struct.pack("<Q", 10**8 - 1),
    "a header that is nested deeply": safetensors_file(b"[" * 10**6),
    "2^62 numbers in no bytes": tensor([2**62]),
    "2^64 numbers in no bytes": tensor([2**32, 2**32]),
    "nothing times 2^62": tensor([0, 2**62]),
    "an axis of 2^64": tensor([0, 2**64 - 1]),
    "a hundred axes": tensor([1] * 100, size=4),
    "eight bits": tensor([1], "F8_E4M3", 1),
    "four bits": tensor([2], "F4", 1),
    "complex numbers": tensor([1], "C64", 8),
    "bytes before the first": safetensors_file(
        {NAME: {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}
    ),
    "bytes behind the last": safetensors_file(
        {NAME: {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    ),
}


def read_model(folder):
    weights = open_safetensors(str(folder / "a.safetensors"))
    for name in weights.shapes:
        weights.read(name)


def read_foreign(folder):
    Tensors(str(folder), "a.safetensors", "a.bin")


def write_files(folder, reader):
    for name, content in reader.files.items():
        (folder / name).write_bytes(content)


def read_artifact(folder):
    reader = fuzz_targets.readers()["adapter's weights"]
    write_files(folder, reader)
    shutil.copy(folder / "a.safetensors", folder / reader.changed)
    reader.read(folder)


@pytest.mark.parametrize("read", [read_model, read_foreign, read_artifact])
@pytest.mark.parametrize("name", ODD_TENSORS)
def test_no_header_of_tensors_allocates_more_than_the_file(
    tmp_path, name, read
):
    (tmp_path / "a.safetensors").write_bytes(ODD_TENSORS[name])
    with limited(more=LITTLE), pytest.raises(UserError) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_size_of_a_config_is_believed(tmp_path, tiny_config):
    path = tmp_path / "config.json"
    for name, value in (
        ("hidden_size", 2**40),
        ("num_hidden_layers", 10**9),
        ("vocab_size", 10**12),
        ("max_position_embeddings", 10**12),
        ("num_attention_heads", 2**62),
        ("type_vocab_size", 10**30),
        ("intermediate_size", 1e300),
    ):
        write_json(path, {**vars(tiny_config), name: value})
        with limited(more=LITTLE), pytest.raises(UserError, match=name):
            BertConfig.from_json_file(str(path))


QUESTIONS = {"name": "squad"}
# What an adapter's description may say of itself.
CLAIMS = {
    "bert_config": {"hidden_size": 10**7},
    "method": "houlsby(size=1000000000)",
    "method ": "prefix(length=1000000000)",
    "method  ": f"stack({', '.join(['houlsby'] * 3000)})",
    "method   ": "stack(" * 9000,
    "task": {"name": "squad", "head": {"layers": 10**9}},
    "task ": {"name": "custom", "choices": 10**9},
    "task_settings": {"n_best_size": 10**6},
    "task_settings ": {"n_best_size": 10**12},
    "training": {"max_seq_length": 10**9},
}


@pytest.mark.parametrize("name", CLAIMS)
def test_no_number_of_an_adapter_is_believed(tmp_path, tiny_bert, name):
    folder = tmp_path / "adapter"
    make_questions(folder, tiny_bert, "houlsby(size=4)")
    claim, key = CLAIMS[name], name.strip()
    if isinstance(claim, dict):
        claim = {**read_adapter_config(folder).get(key, {}), **claim}
    edit_config(folder, **{key: claim})
    with limited(more=2**30), pytest.raises(UserError) as caught:
        adapters = {"a": str(folder)}
        load_predictor(tiny_bert, adapters).ask([("a", ("the", "a cat"))])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 2000


def is_json(content):
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


JSON_READERS = {
    name: reader
    for name, reader in fuzz_targets.readers().items()
    if is_json(reader.files[reader.changed])
}
# One of each way to read a file.
NAMES = (
    "tsv,conll,squad,vocabulary,adapter,adapterhub,peft weights,zip,tar.gz,"
    "list of checkpoints,safetensors,checkpoint's index"
)
FILE_READERS = {name: fuzz_targets.readers()[name] for name in NAMES.split(",")}
BOMBS = {
    "lists in lists": b"[" * 10**5 + b"]" * 10**5,
    "objects in objects": b'{"a":' * 10**5 + b"1" + b"}" * 10**5,
    "a number of 10^5 digits": b'{"a": ' + b"9" * 10**5 + b"}",
    "a number of 10^5 digits after the point": b"[0." + b"9" * 10**5 + b"]",
    "many lists": b"[" + b"[]," * 10**5 + b"[]]",
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("name", JSON_READERS)
def test_json_that_is_nested_or_long_is_refused(tmp_path, name, bomb):
    reader = JSON_READERS[name]
    write_files(tmp_path, reader)
    outcome = fuzz_inputs.try_input(reader, tmp_path, BOMBS[bomb])
    # A line in bulk is answered by what is wrong with it.
    assert outcome == ("taken" if name == "lines in bulk" else "refused")


@pytest.mark.parametrize("name", FILE_READERS)
def test_no_pipe_or_device_is_read(tmp_path, name):
    """One may lie, or a link may lead to it, where a file is expected."""
    reader = FILE_READERS[name]
    write_files(tmp_path, reader)
    path = tmp_path / reader.changed
    path.unlink()
    os.mkfifo(path)
    # Else whoever opens it would wait for ever.
    held = os.open(path, os.O_RDWR)
    try:
        refusals.check(
            lambda: reader.read(tmp_path), "is a pipe or a device, expected"
        )
    finally:
        os.close(held)
    path.unlink()
    path.symlink_to("/dev/zero")
    with limited(more=2**30), pytest.raises(UserError, match="or a device, "):
        reader.read(tmp_path)


def make_questions(folder, bert, method="head"):
    task = restore_task(QUESTIONS, {"max_query_length": 8}, "")
    make_artifact(folder, bert, method, task, QUESTIONS)


NAMES_ELSEWHERE = "../x /tmp/x a/../../x x\0y x\ny .. \ud800".split(" ")


@pytest.mark.parametrize("name", NAMES_ELSEWHERE)
def test_no_name_leads_out_of_a_library(tmp_path, tiny_bert, name, shelf):
    (tmp_path / "x").mkdir()
    make_questions(tmp_path / "a", tiny_bert)
    for act in (
        lambda: shelf.add(str(tmp_path / "a"), name),
        lambda: shelf.folder(name),
        lambda: shelf.entry(name),
        lambda: shelf.remove(name),
        lambda: shelf.rename(name, "b"),
    ):
        with pytest.raises(UserError) as caught:
            act()
        assert str(caught.value).isprintable()
    assert sorted(os.listdir(tmp_path)) == ["a", "shelf", "x"]
    assert set(os.listdir(shelf.path)) <= {library.LOCK_FILE}


def test_no_task_of_an_adapter_is_a_name_that_leads_elsewhere(
    tmp_path, tiny_bert, shelf
):
    """It is called as its task if nobody names it."""
    make_questions(tmp_path / "a", tiny_bert)
    for name in NAMES_ELSEWHERE[:-1]:
        edit_config(tmp_path / "a", task={"name": name})
        with pytest.raises(UserError):
            shelf.add(str(tmp_path / "a"))
    assert sorted(os.listdir(tmp_path)) == ["a", "shelf"]


@pytest.fixture
def linked(tmp_path, tiny_bert, shelf):
    """A library of one adapter, of a folder of links."""
    make_questions(tmp_path / "real", tiny_bert)
    (tmp_path / "links").mkdir()
    for path in (tmp_path / "real").iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    shelf.add(str(tmp_path / "links"), "mine")
    return shelf


def test_a_library_holds_no_links(linked):
    paths = list(Path(linked.path).rglob("*"))
    assert len(paths) == 5 and not any(path.is_symlink() for path in paths)


@pytest.mark.parametrize(
    "file",
    ["adapter.safetensors", "adapter_config.json", "library_entry.json", "x"],
)
def test_no_link_of_a_librarys_adapter_is_followed(linked, tmp_path, file):
    path = Path(linked.path) / "mine" / file
    (tmp_path / "secret").write_text("secret")
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "secret")
    for read in (linked.folder, linked.entry):
        with pytest.raises(UserError, match=f"mine/{file} is a link, expected"):
            read("mine")
    # Deleted is the link alone.
    linked.remove("mine")
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize("name", [".lock", ".unfinished-1", "mine"])
def test_no_link_in_a_library_is_written_through(linked, tmp_path, name):
    """Whoever made the folder may have put links there."""
    linked.remove("mine")
    path = Path(linked.path) / name
    elsewhere = tmp_path / "elsewhere"
    if name == ".lock":
        path.unlink()
        elsewhere.write_text("mine")
    else:
        elsewhere.mkdir()
        (elsewhere / "adapter.safetensors").write_text("mine")
    path.symlink_to(elsewhere)
    is_refused = pytest.raises(UserError, match="is a link|cannot write")
    with contextlib.nullcontext() if name.startswith(".un") else is_refused:
        linked.add(str(tmp_path / "real"), "mine")
    file = elsewhere if name == ".lock" else elsewhere / "adapter.safetensors"
    assert file.read_text() == "mine"
    assert elsewhere.is_file() or len(os.listdir(elsewhere)) == 1


@pytest.mark.gate
def test_a_run_writes_through_no_link_of_its_folder(
    classify, tiny_flags, tmp_path
):
    """Whatever has been put there; only its lock is refused."""
    classify(**tiny_flags, do_eval=True, do_predict=True)
    first = tiny_flags["output_dir"]
    written = [p.relative_to(first) for p in first.rglob("*") if p.is_file()]
    tiny_flags["output_dir"] = tmp_path / "second"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number, path in enumerate(written):
        link = tmp_path / "second" / path
        link.parent.mkdir(parents=True, exist_ok=True)
        if not path.name.startswith(("run.lock", "model.ckpt")):
            # It leads to what is not there yet, so nothing is read by it.
            link.symlink_to(elsewhere / str(number))
        if path.name.startswith("model.ckpt") and path.suffix == ".index":
            # A folder for a moment, which is deleted then.
            kept = tmp_path / f"kept{number}"
            kept.mkdir()
            (kept / "thesis.txt").write_text("mine")
            link.with_name(f"{path.stem}_temp").symlink_to(kept)
    classify(**tiny_flags, do_eval=True, do_predict=True)
    assert len(written) > 8 and os.listdir(elsewhere) == []
    all_kept = list(tmp_path.glob("kept*"))
    assert all_kept
    for kept in all_kept:
        assert os.listdir(kept) == ["thesis.txt"]
    for path in written:
        if "tfevents" not in path.name:
            assert not (tmp_path / "second" / path).is_symlink()
