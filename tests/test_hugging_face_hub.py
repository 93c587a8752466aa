"""Models and adapters of Hugging Face's hub, by a server on this machine."""

import errno
import os
import re
import sys

import numpy as np
import pytest
import refusals
import safetensors.numpy
from conftest import (
    open_checkpoint,
    own_lines,
    read_adapter_config,
    run_process,
)
from hub_server import TOKEN, HubServer, contents_of
from test_architecture import sources as modules_of_the_package
from test_sentence_transformers import write as write_sentence_transformers
from test_sources import check_values, refuses

from adapter_bert.checkpoints import hugging_face_hub, run_record, sources
from adapter_bert.errors import UserError
from adapter_bert.tasks.vector_form import Dense, Pooled

pytest_plugins = ["hub_server"]
pytestmark = pytest.mark.newer_stack

NAME = "hf:org/tiny-bert"


@pytest.fixture
def repository(hub, tiny_bert):
    """A repository of the tiny BERT."""
    return hub.add("org/tiny-bert", tiny_bert)[0]


@pytest.fixture
def bert(repository, tiny_bert):
    """The repository's second commit, with files that are not read."""
    others = {
        "modeling.py": b"raise SystemExit",
        "tf_model.h5": b"tf",
        "flax_model.msgpack": b"flax",
        "onnx/model.onnx": b"onnx",
        "model.fp16.safetensors": b"half",
        "pytorch_model.bin": b"torch",
        "training_args.bin": b"pickle",
        "spiece.model": b"spiece",
        "1_Pooling/config.json": b"{}",
        "README.md": b"a card",
    }
    return repository.commit({**contents_of(tiny_bert), **others})


def fetched(hub):
    """Names of the files in the cache's snapshots, and of their folder."""
    snapshots = hub.cache / "models--org--tiny-bert" / "snapshots"
    return {
        str(path.relative_to(snapshots)).partition("/")[2]
        for path in snapshots.rglob("*")
        if path.is_file()
    }


def test_a_model_is_fetched_once(hub, bert, tiny_weights):
    opened = open_checkpoint(NAME)
    check_values(opened.weights, tiny_weights)
    assert opened.weights.hub == f"{NAME}@{bert}"
    read = {"config.json", "vocab.txt", "model.safetensors", "README.md"}
    assert fetched(hub) >= read
    assert fetched(hub) - read <= {
        "1_Pooling/config.json",
        "tokenizer_config.json",
    }
    hub.requests.clear()
    open_checkpoint(NAME)
    assert not [path for _, path in hub.requests if "resolve" in path]
    # A commit cannot change, so the hub is not even asked.
    hub.requests.clear()
    again = open_checkpoint(f"{NAME}@{bert}")
    assert not hub.requests and again.weights.hub == opened.weights.hub


@pytest.mark.parametrize("revision", ["main", "v1", "v2", "commit"])
def test_a_revision_can_be_named(repository, bert, revision):
    first = next(iter(repository.commits))
    expected = first if revision in ("v1", "commit") else bert
    if revision == "commit":
        revision = first
    opened = open_checkpoint(f"{NAME}@{revision}")
    assert opened.weights.hub == f"{NAME}@{expected}"


def test_a_folder_of_a_repository(repository, tiny_bert, tiny_weights):
    files = contents_of(tiny_bert)
    commit = repository.commit({f"a/b/{k}": v for k, v in files.items()})
    opened = open_checkpoint(f"{NAME}/a/b")
    check_values(opened.weights, tiny_weights)
    assert opened.weights.hub == f"{NAME}/a/b@{commit}"
    refuses(f"{NAME}/c", f"{NAME}/c@{commit} holds no file")


@pytest.mark.parametrize("place", ["", "0_Transformer"])
@pytest.mark.parametrize("bias", [(), (np.ones(3, np.float32),)])
def test_a_folder_of_sentence_transformers(
    hub, tiny_bert, tiny_weights, tmp_path, place, bias
):
    """With the way to its vectors, wherever its model lies."""
    kernel = np.arange(48, dtype=np.float32).reshape(16, 3)
    dense = Dense(16, 3, bool(bias), "tanh", (kernel, *bias))
    pooled = Pooled("mean", True, 12, {"query": "q: "}, "query", dense=(dense,))
    folder = write_sentence_transformers(
        tmp_path / "st", tiny_bert, pooled, place
    )
    _, commit = hub.add("org/tiny-bert", folder)
    opened = open_checkpoint(NAME)
    assert opened.pooled == pooled
    [layer] = opened.pooled.dense
    for value, expected in zip(layer.values, dense.values):
        np.testing.assert_array_equal(value, expected)
    check_values(opened.weights, tiny_weights)
    assert opened.weights.hub == f"{NAME}@{commit}"


def test_an_adapter_is_fetched_whatever_its_model_is_made_of(repository):
    names = "adapter_config.json", "adapter_model.safetensors"
    files = {**dict.fromkeys(names, b"{}"), "modules.json": b"[]"}
    repository.commit(files)
    folder, _ = hugging_face_hub.fetch_adapter(NAME)
    assert {*names} <= {*os.listdir(folder)}


def test_pytorchs_file_is_fetched_where_there_is_no_other(
    repository, tiny_bert
):
    files = contents_of(tiny_bert)
    del files["model.safetensors"]
    repository.commit({**files, "pytorch_model.bin": b"none"})
    path, _ = hugging_face_hub.fetch_model(NAME)
    assert os.path.basename(path) == "pytorch_model.bin"
    # And is read as any other.
    refuses(NAME, "pytorch_model.bin")


def test_a_model_without_weights_or_config(repository, tiny_bert):
    files = contents_of(tiny_bert)
    repository.commit({"tf_model.h5": b"tf", "config.json": b"{}"})
    words = "holds no model.safetensors and no pytorch_model.bin; expected"
    with pytest.raises(UserError, match=words):
        open_checkpoint(NAME)
    del files["config.json"]
    repository.commit(files)
    opened = open_checkpoint(NAME)
    refusals.check(
        lambda: sources.read_config(opened),
        "no bert_config.json or config.json",
    )
    del files["vocab.txt"]
    repository.commit(files)
    opened = open_checkpoint(NAME)
    refusals.check(
        lambda: sources.find_vocabulary(opened),
        "no vocab.txt or tokenizer.json lies",
    )


def refused(match, text=NAME):
    with pytest.raises(UserError, match=match) as caught:
        open_checkpoint(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "text",
    "hf: hf:bert hf:/a hf:a/ hf:a/b@ hf:a/b/../c hf:a/b/. hf:a/b@../c "
    "hf:a/b@-/x/.. hf:a//b hf:../b hf:.a/b hf:a/b\nc hf://a/b".split(" "),
)
def test_other_texts_name_no_repository(hub, text):
    if text == "hf:a/b@-/x/..":
        # The hub has none of that name.
        hub.repositories.clear()
        refused("has no repository", text)
    else:
        refused("names no repository of the hub; expected hf:ORG/NAME", text)
        assert not hub.requests


def test_what_the_hub_does_not_have(repository, bert, monkeypatch):
    refused("has no repository org/none, or a private one; .* HF_TOKEN to a",
            "hf:org/none")  # fmt: skip
    refused("org/tiny-bert has no revision v9; expected a branch", NAME + "@v9")
    none = "0" * 40
    refused(f"org/tiny-bert has no revision {none}", f"{NAME}@{none}")
    repository.gated = True
    refused("its owner lets those in who ask; ask at .*/org/tiny-bert, and set")
    repository.gated, repository.private = False, True
    refused("has no repository org/tiny-bert, or a private one")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    open_checkpoint(NAME)
    refused("has no repository org/none", "hf:org/none")


@pytest.mark.parametrize(
    "place", ["/revision/", "/tree/", "/resolve/", "/lfs/"]
)
@pytest.mark.parametrize(
    "fault, words",
    [(503, "answered: .*503.*; try again later"), ("cut", "failed: ")],
)
def test_a_hub_that_is_out_of_order(hub, bert, place, fault, words):
    hub.faults[place] = fault
    refused(words)
    # The library tried more than once where a file was begun.
    hub.faults.clear()
    open_checkpoint(NAME)


def test_a_hub_that_is_not_there(hub, bert):
    open_checkpoint(NAME)
    hub.shutdown()
    hub.socket.close()
    # What was fetched before is taken when it is asked for alone.
    words = "failed: .*read what was fetched before with HF_HUB_OFFLINE=1"
    refused(words)
    open_checkpoint(f"{NAME}@{bert}")


def test_without_a_network(hub, bert, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    words = "not all of it lies in the cache .*, and HF_HUB_OFFLINE forbids"
    refused(words)
    refused(words, f"{NAME}@{bert}")
    assert not hub.requests
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    open_checkpoint(NAME)
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for text in (NAME, f"{NAME}@{bert}"):
        assert open_checkpoint(text).weights.hub.endswith(bert)
    assert not hub.requests


@pytest.mark.parametrize("file", ["vocab.txt", "model.safetensors"])
def test_altered_content_is_found(hub, bert, file):
    """Of the right length, as the library looks at that alone."""
    hub.faults[file] = lambda content: bytes([content[0] ^ 1]) + content[1:]
    refused(f"tiny-bert@{bert}: {file} is damaged, its hash is .*, expected")
    # It is gone, and does not stay in the cache.
    assert file not in fetched(hub)
    hub.faults.clear()
    open_checkpoint(NAME)


@pytest.mark.parametrize("file", ["vocab.txt", "model.safetensors"])
def test_what_is_cut_off_goes_on_or_is_refused(hub, bert, file, tiny_weights):
    """The library asks for the rest of a file."""
    hub.faults[file] = lambda content: content[:20]
    refused("failed: ")
    # The first time alone.
    ends = [20]
    hub.faults[file] = lambda content: content[: ends.pop() if ends else None]
    check_values(open_checkpoint(NAME).weights, tiny_weights)


def test_a_text_that_is_too_large_is_not_read(repository, bert, monkeypatch):
    size = len(repository.commits[bert]["config.json"])
    monkeypatch.setattr(hugging_face_hub, "LARGEST_TEXT", size)
    open_checkpoint(NAME)
    monkeypatch.setattr(hugging_face_hub, "LARGEST_TEXT", size - 1)
    refused(
        f"{bert}: config.json has {size} bytes, expected at most {size - 1}"
    )


def test_a_cache_that_was_changed_is_found(hub, bert):
    place = open_checkpoint(NAME).path
    real = os.path.realpath(place)
    os.chmod(real, 0o644)
    with open(real, "r+b") as file:
        file.write(b"x")
    refused("model.safetensors is damaged")
    open_checkpoint(NAME)
    # A disk without links has copies, whose hashes are not known.
    os.rename(real, place)
    refused("does not lead to content that is named by its hash")


def test_content_that_repositories_share_is_compared(hub, bert, tiny_weights):
    """As Xet's, which the library moves behind a second link."""
    place = open_checkpoint(NAME).path
    content = os.path.join(os.path.dirname(place), os.readlink(place))
    shared = hub.cache / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    os.rename(content, shared)
    os.symlink(shared, content)
    check_values(open_checkpoint(NAME).weights, tiny_weights)
    shared.write_bytes(b"x" + shared.read_bytes()[1:])
    refused("model.safetensors is damaged")
    # Else the library would take it again.
    assert not shared.exists() and not os.path.lexists(content)
    check_values(open_checkpoint(NAME).weights, tiny_weights)


def test_names_of_files_lead_nowhere_else(repository, tiny_bert, tmp_path):
    for name in ("../../../../x.json", "/x.json", "a/../../../../../x.json"):
        repository.commit({**contents_of(tiny_bert), name: b"{}"})
        try:
            open_checkpoint(NAME)
        except UserError as error:
            assert "\n" not in str(error)
        outside = [*tmp_path.glob("x.json"), *tmp_path.parent.glob("x.json")]
        assert not outside and not os.path.exists("/x.json")


def test_a_full_disk(hub, bert, monkeypatch):
    def write(*arguments, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("huggingface_hub.file_download.http_get", write)
    refused("failed: .*No space left on device")


def test_a_branch_that_moves_while_it_is_fetched(repository, bert, tiny_bert):
    files = contents_of(tiny_bert)
    find, revisions = repository.find, []

    def moving(revision):
        revisions.append(revision)
        if len(revisions) == 2:
            repository.commit({**files, "README.md": b"new"})
        return find(revision)

    repository.find = moving
    refused(f"moved on from commit {bert} while it was fetched")


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused("needs huggingface_hub, which cannot be imported here: ")


@pytest.mark.gate
def test_a_run_keeps_its_commit(
    repository, bert, classify, tiny_flags, tiny_bert, tmp_path
):
    """The commit is in the records, and a run that goes on takes it again."""
    files = contents_of(tiny_bert)
    out = tiny_flags["output_dir"]
    flags = {**tiny_flags, "init_checkpoint": NAME, "num_train_epochs": 1}
    classify(**flags)
    run = run_record.read_run(str(out))
    base = {"name": "tiny-bert", "hub": f"{NAME}@{bert}"}
    assert {k: run["base"][k] for k in base} == base
    assert run_record.place_of_base(str(out)) == base["hub"]
    adapter = read_adapter_config(out / "adapter")
    assert adapter["base"] == run["base"]
    # The branch moves on to another model.
    words = safetensors.numpy.load(files["model.safetensors"])
    words = {name: value + 1 for name, value in words.items()}
    changed = {**files, "model.safetensors": safetensors.numpy.save(words)}
    repository.commit(changed)
    for path in (NAME, ""):
        classify(**{**flags, "init_checkpoint": path, "do_eval": True})
        assert run_record.read_run(str(out))["base"] == run["base"]
    refusals.check(
        lambda: classify(**{**flags, "init_checkpoint": f"{NAME}@main"}),
        "base.fingerprint was",
    )
    # Elsewhere the newest is taken, and the adapter's own is named.
    other = {"output_dir": tmp_path / "other", "adapter": out / "adapter"}
    refusals.check(
        lambda: classify(
            **{**flags, **other, "do_train": False, "do_eval": True}
        ),
        f"; pass --init_checkpoint={NAME}@",
    )


def test_one_module_asks_the_hub():
    """When a repository is named; and one command writes there."""

    def users(pattern):
        return {
            module.partition(".")[2]
            for module, path in modules_of_the_package().items()
            if re.search(pattern, path.read_text(), re.MULTILINE)
        }

    load = "(from|import) huggingface_hub"
    assert users(f"^ *{load}") == {"checkpoints.hugging_face_hub"}
    assert not users(f"^{load}")
    assert users(r"hugging_face_hub\.push\(") == {"library.foreign"}


def test_a_program_reads_the_environment(tmp_path):
    """And ends with one line and exit code 1."""
    rows = tmp_path / "rows.txt"
    rows.write_text("the cat sat\n")
    with HubServer() as server:
        environment = {
            "HF_ENDPOINT": server.endpoint,
            "HF_HOME": str(tmp_path / "home"),
        }
        done = run_process(
            f"--input={rows}",
            f"--output={tmp_path / 'out.npy'}",
            "--embeddings=mean",
            "--init_checkpoint=hf:org/none",
            program="predict",
            env={**os.environ, **environment},
            check=False,
        )
        assert ("GET", "/api/models/org/none") in server.requests
    assert done.returncode == 1
    assert own_lines(done.stderr) == [
        f"error: hf:org/none: the hub {server.endpoint} has no repository "
        "org/none, or a private one; check the name, or set HF_TOKEN to a "
        "token that may read it"
    ]
