"""A library of adapters: names, contents, changes by several processes."""

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import disk_order
import numpy as np
import pytest
import refusals
from conftest import ROOT, read_adapter_config
from safetensors.numpy import load_file, save_file
from tiny_artifacts import CLASSIFICATION, edit_config

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact, part_values
from adapter_bert.errors import UserError
from adapter_bert.library import adapter_library as library
from adapter_bert.library.adapter_library import AdapterLibrary

# Has `make` and `shelf`.
pytest_plugins = ["library_folders"]
pytestmark = pytest.mark.newer_stack

CONFIG, WEIGHTS = "adapter_config.json", "adapter.safetensors"
BIAS, NAN = "output_bias", np.float32([np.nan, 0])


def test_an_adapter_is_looked_up_without_all_others(shelf, make, monkeypatch):
    shelf.add(str(make()), "a")
    monkeypatch.setattr(AdapterLibrary, "names", None)
    assert shelf.folder("a") == os.path.join(shelf.path, "a")


@pytest.mark.parametrize(
    "text",
    [
        "prefix(length=3, inner_size=8)",
        "diff_pruning(sparsity=0.05)",
        "top_layers(1)",
    ],
)
def test_an_adapter_of_any_method_is_added_and_listed(shelf, make, text):
    folder = make(text=text)
    assert shelf.add(str(folder), "mine") == "mine"
    assert shelf.names() == ["mine"]
    entry = shelf.entry("mine")
    config = read_adapter_config(folder)
    weights = folder / adapter_artifact.WEIGHTS_FILE
    assert (entry.name, entry.task) == ("mine", "custom")
    assert (entry.kind, entry.labels) == ("classification", ["bad", "good"])
    assert entry.method == config["method"]
    assert entry.bytes == weights.stat().st_size
    assert entry.base_fingerprint == config["base"]["fingerprint"]
    assert (entry.scores, entry.data) == ({}, {})
    copied = shelf.folder("mine")
    assert sorted(os.listdir(copied)) == [
        "adapter.safetensors",
        "adapter_config.json",
        "library_entry.json",
    ]
    library.check(copied)


@pytest.fixture
def add(shelf, make):
    """Makes an adapter of a name, and adds it."""
    return lambda name, **more: shelf.add(str(make(name, **more)), name)


@pytest.fixture
def run(make, tmp_path):
    """The folder of a run, whose adapter is of step 12."""
    make("run/adapter", checkpoint="model.ckpt-12")
    files.write_json(str(tmp_path / "run" / "run.json"), {})
    return tmp_path / "run"


def write_scores(run, step=12, **scores):
    text = json.dumps({"global_step": step, **scores})
    (run / "eval_results.json").write_text(text)


def test_a_run_is_added_with_its_scores(shelf, run):
    data = {"dev": "ab" * 32}
    write_scores(run, eval_f1=0.75, eval_accuracy=0.5, dev_data=data)
    shelf.add(str(run), "mine")
    entry = shelf.entry("mine")
    assert list(entry.scores.items()) == [("f1", 0.75), ("accuracy", 0.5)]
    assert entry.data == data
    write_scores(run, eval_f1=0.8, dev_data=data)
    shelf.add(str(run), "mine")
    assert shelf.entry("mine") == replace(entry, scores={"f1": 0.8})


def test_scores_that_are_none_are_not_taken(shelf, run):
    """Else the library would hold what it cannot read."""
    odd = None, True, "0.5", [0.5], np.nan, np.inf, 10**400, "\ud800"
    wrong = [{"eval_f1": x} for x in odd] + [{"dev_data": "0.5"}]
    wrong += [{"dev_data": {"a": x}} for x in odd if x != "0.5"]
    for scores in wrong:
        write_scores(run, **scores)
        refusals.check(lambda: shelf.add(str(run)), "eval_results.json")
    assert shelf.names() == []


@pytest.mark.parametrize("missing", ["step", "run.json", "scores"])
def test_scores_of_other_weights_are_not_taken(shelf, run, missing):
    if missing == "run.json":
        (run / "run.json").unlink()
    if missing != "scores":
        write_scores(run, 13 if missing == "step" else 12, eval_accuracy=0.5)
    shelf.add(str(run), "mine")
    assert shelf.entry("mine").scores == {}


def test_the_same_adapter_is_taken_once(shelf, make, add):
    add("first")
    again = str(make("again"))
    refusals.check(lambda: shelf.add(again, "x"), "'first'", "rename")
    entry = shelf.entry("first")
    assert shelf.add(again, "first") == "first"
    assert shelf.names() == ["first"] and shelf.entry("first") == entry
    # As in a folder that was copied by hand.
    os.remove(os.path.join(shelf.folder("first"), library.ENTRY_FILE))
    assert shelf.entry("first") == dataclasses.replace(entry, added="")
    other = str(make("other", seed=1))
    refusals.check(lambda: shelf.add(other, "first"), "first", "already")
    labels = {**CLASSIFICATION, "labels": ["good", "bad"]}
    add("second", description=labels)
    fitted = {"calibration": {"temperature": 2.0, "abstain_below": 0.5}}
    add("third", task_settings=fitted)


def test_all_are_upon_one_bert(shelf, make, tiny_bert, tmp_path, add):
    other = copytree(tiny_bert, tmp_path / "other_bert")
    path = other / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        tensors[name] = tensors[name] + np.float32(1e-3)
    save_file(tensors, path)
    add("first")
    folder = str(make("b", bert=other, seed=1))
    refusals.check(lambda: shelf.add(folder, "second"), "other_bert")
    shelf.remove("first")
    shelf.add(str(tmp_path / "b"), "second")


def test_what_can_be_no_adapter_is_passed_over(
    shelf, make, tmp_path, caplog, plain_user
):
    """A disk's own folders in silence, adapters by name."""
    shelf.add(str(make()), "mine")
    (tmp_path / "shelf" / "theirs").symlink_to(tmp_path / "adapter")
    copytree(tmp_path / "adapter", tmp_path / "shelf" / "my adapter")
    copytree(tmp_path / "adapter", tmp_path / "shelf" / "caf\udce9")
    for name in ("lost+found", "@eaDir"):
        (tmp_path / "shelf" / name).mkdir(mode=0)
    assert shelf.names() == shelf.names() == shelf.answering() == ["mine"]
    for name in (
        "theirs' is passed over: it is a link",
        "my adapter'",
        "dce9'",
    ):
        assert caplog.text.count(name) == 1
    assert "lost+found" not in caplog.text and "@eaDir" not in caplog.text
    # Parts of compositions are searched there, too.
    names = plain_user(part_values.adapters_in, str(tmp_path / "shelf"))
    assert {"mine", "my adapter", "theirs"} == set(names)
    refusals.check(lambda: shelf.folder("theirs"), "'theirs'")


def edit_weights(folder, function):
    """Changes the weights, and the hash of them that the config has."""
    config = read_adapter_config(folder)
    tensors = load_file(folder / WEIGHTS)
    function(tensors)
    adapter_artifact.write(str(folder), config, tensors)


def flip(path, old, new):
    """Changes a word of a file, as a disk may do it."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def new_weights(change):
    return lambda folder: edit_weights(folder, change)


@refusals.table(
    {
        "another label": (
            lambda f: flip(f / CONFIG, '"good"', '"gokd"'),
            f"{CONFIG} is damaged",
        ),
        "no description": (lambda f: (f / CONFIG).unlink(), CONFIG),
        "half a file": (
            lambda f: (f / WEIGHTS).write_bytes(b"half"),
            f"{WEIGHTS} is damaged",
        ),
        "a pickle": (
            lambda f: (f / WEIGHTS).rename(f / "weights.bin"),
            *("weights.bin is a pickle", WEIGHTS),
        ),
        "another method": (
            lambda f: edit_config(f, method="houlsby(size=5)"),
            *((1, 4), "houlsby(size=5)"),
        ),
        "an unknown method": (
            lambda f: edit_config(f, method="magic"),
            "'magic'",
        ),
        "an unknown task": (
            lambda f: edit_config(f, task={"name": "chess"}),
            "'chess'",
        ),
        "one tensor less": (new_weights(lambda t: t.pop(BIAS)), BIAS, "None"),
        "one tensor more": (
            new_weights(lambda t: t.update(x=np.ones(2))),
            *("x has", (2,), "None"),
        ),
        "no number": (
            new_weights(lambda t: t.update({BIAS: NAN})),
            *(BIAS, "finite"),
        ),
    }
)
def test_what_is_damaged_is_not_added(shelf, make, call, parts):
    folder = make()
    call(folder)
    refusals.check(lambda: shelf.add(str(folder)), *parts)
    assert os.listdir(shelf.path) in ([], [library.LOCK_FILE])


def test_a_composition_may_carry_its_parts(shelf, make):
    folder = make(text="stack({'a': pfeiffer(size=4)}, pfeiffer(size=2))")
    shelf.add(str(folder), "mine")
    config = read_adapter_config(shelf.folder("mine"))
    assert config["carries_parts"]


def test_what_has_not_changed_of_bert_may_be_missing(shelf, make):
    folder = make(text="lt_sft(sparsity=0.05)")
    stored = "bert/pooler/dense/bias/indices", "bert/pooler/dense/bias/values"
    edit_weights(folder, lambda t: [t.pop(name) for name in stored])
    assert shelf.add(str(folder), "mine") == "mine"


def test_another_score_is_noticed(shelf, add):
    add("mine")
    path = Path(shelf.folder("mine")) / "library_entry.json"
    flip(path, '"scores"', '"scorez"')
    refusals.check(lambda: shelf.entry("mine"), path, "damaged")


@refusals.table(
    {
        "no folder": (lambda shelf: shelf.add("nowhere"), "nowhere"),
        "no library": (
            lambda _: AdapterLibrary("nowhere"),
            *("nowhere", "adapter-bert library add"),
        ),
        "a remote library": (
            lambda _: AdapterLibrary("gs://bucket/shelf", create=True),
            *("gs://bucket/shelf", "local disk"),
        ),
        "no adapter": (lambda shelf: shelf.folder("x"), "'x'", "none"),
    }
)
def test_a_folder_that_is_none_is_refused(shelf, call, parts):
    refusals.check(lambda: call(shelf), *parts)


def test_an_adapter_is_renamed_and_removed(shelf, add, monkeypatch):
    add("first")
    add("second", seed=1)
    # A full disk has room for no folder, but can be made room on.
    monkeypatch.delattr(os, "mkdir")
    shelf.rename("first", "third")
    assert shelf.names() == ["second", "third"]
    assert shelf.entry("third").name == "third"
    shelf.remove("third")
    assert shelf.names() == ["second"]
    for act in (shelf.remove, shelf.entry, shelf.folder):
        with pytest.raises(UserError, match="'third'; it has: second"):
            act("third")
    assert sorted(os.listdir(shelf.path)) == [library.LOCK_FILE, "second"]


def test_an_adapter_is_on_the_disk_before_it_has_its_name(
    shelf, make, monkeypatch
):
    folder = str(make())
    events = disk_order.watch(monkeypatch)
    shelf.add(folder, "first")
    assert disk_order.check(events) == 4
    events.clear()
    shelf.rename("first", "second")
    shelf.remove("second")
    # The name is gone before its files are.
    steps = [disk_order.RENAME, disk_order.SYNC, disk_order.REMOVE]
    assert [event[0] for event in events] == steps * 2
    assert {event[1] for event in events[1::3]} == {shelf.path}


def test_a_damaged_neighbour_does_not_keep_others_out(shelf, add):
    add("first")
    (Path(shelf.folder("first")) / CONFIG).write_text("{")
    refusals.check(lambda: shelf.entry("first"), "JSON")
    assert add("second", seed=1) == "second"
    shelf.remove("first")


def test_what_a_killed_process_left_is_cleaned_up(shelf, add):
    """What is half there is under no name, and is gone after the next one."""
    left = os.path.join(shelf.path, f"{library.UNFINISHED}7")
    os.mkdir(left)
    with open(os.path.join(left, "adapter.safetensors"), "w") as file:
        file.write("half")
    assert shelf.names() == []
    add("mine")
    assert sorted(os.listdir(shelf.path)) == [library.LOCK_FILE, "mine"]


@pytest.mark.parametrize("step", ["write_json", "read"])
def test_nothing_half_written_is_seen(shelf, make, monkeypatch, step):
    folder = make()
    artifact = library.check(str(folder))
    place = library.files if step == "write_json" else adapter_artifact
    monkeypatch.setattr(library, "check", lambda _: artifact)

    def fail(*_):
        assert shelf.names() == []
        raise KeyboardInterrupt

    monkeypatch.setattr(place, step, fail)
    with pytest.raises(KeyboardInterrupt):
        shelf.add(str(folder), "mine")
    assert os.listdir(shelf.path) == [library.LOCK_FILE]


def test_a_full_disk_is_one_line(shelf, make, monkeypatch):
    folder = make()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(library.os, "rename", full)
    parts = shelf.path, "No space left on device"
    refusals.check(lambda: shelf.add(str(folder), "mine"), *parts)
    assert os.listdir(shelf.path) == [library.LOCK_FILE]


# Adds folders, when told, under a name with numbers.
ADD_ALL = """
import sys
import adapter_bert.start_tensorflow
from adapter_bert.errors import UserError
from adapter_bert.library.adapter_library import AdapterLibrary
shelf = AdapterLibrary(sys.argv[1], create=True)
print("ready", flush=True)
sys.stdin.readline()
for number, folder in enumerate(sys.argv[3:]):
    try:
        shelf.add(folder, f"{sys.argv[2]}{number}")
    except UserError as error:
        print(error)
"""


def test_processes_that_add_at_once_lose_nothing(make, tmp_path):
    """One of two takes what both bring; all else of both is there."""
    shared = make("shared", seed=99)
    path = str(tmp_path / "shelf")
    processes = []
    for name in "ab":
        seeds = range(10 * ord(name), 10 * ord(name) + 4)
        folders = [make(f"{name}{seed}", seed=seed) for seed in seeds]
        words = map(str, (path, name, *folders, shared))
        process = subprocess.Popen(
            [sys.executable, "-c", ADD_ALL, *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    shelf = AdapterLibrary(path)
    wanted = {f"{process}{n}" for process in "ab" for n in range(4)}
    names = set(shelf.names())
    assert wanted < names
    assert names - wanted in ({"a4"}, {"b4"})
    assert "".join(printed).count("has this adapter already") == 1
    for name in names:
        library.check(shelf.folder(name))


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


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../outside", "/tmp/x", "a/b", "-rf", ".hidden"),
        *("all", "ALL", "a b", "a,b", "a\n", "ä", "x" * 101),
    ],
)
def test_names_that_are_none_are_refused(name):
    refusals.check(lambda: library.check_name(name), repr(name), "--name")


def test_a_name_is_given_once_in_whatever_letters(shelf, make, add):
    add("Mine")
    other = str(make("other", seed=1))
    for name in ("Mine", "mine", "MINE"):
        with pytest.raises(UserError, match="'Mine'"):
            shelf.add(other, name)
    shelf.add(other, "yours")
    refusals.check(lambda: shelf.rename("yours", "mINE"), "'Mine'", "--name")
    # Its own may change its letters.
    shelf.rename("Mine", "mine")
    assert shelf.names() == ["mine", "yours"]
