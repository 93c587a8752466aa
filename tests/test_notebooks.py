"""The notebooks: what is kept of them, and whether they run."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, read_json, run_process, write_json

from lab import run_notebook

pytestmark = pytest.mark.newer_stack

COLAB, SWEEP = "adapter_bert_colab", "sweep_results"
NOTEBOOKS = {
    name: read_json(ROOT / f"notebooks/{name}.ipynb") for name in (COLAB, SWEEP)
}
# Folders of a machine: what is shown names none.
PLACES = re.compile(
    r"/(content|home|mnt|opt|root|srv|tmp|usr|Users|var|work)/|-packages"
)
# Flags of programs other than those that `--help` describes.
OTHERS = {
    "depth",
    "fetch",
    "hash",
    "line-buffered",
    "no-deps",
    "require-hashes",
}
every = pytest.mark.parametrize("name", NOTEBOOKS)


def cells(name, kind):
    """The sources of a notebook's cells of one kind."""
    return [
        "".join(cell["source"])
        for cell in NOTEBOOKS[name]["cells"]
        if cell["cell_type"] == kind
    ]


def shown(notebook):
    """Yields (cell, text) of all text that the cells of a notebook show."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            assert output["output_type"] != "error", output
            parts = output.get("data", {"text/plain": output.get("text", "")})
            for kind, text in parts.items():
                if kind.startswith("text/"):
                    yield "".join(cell["source"]), "".join(text)


@every
def test_what_is_shown_names_no_place_of_a_machine_and_no_error(name):
    texts = [text for _, text in shown(NOTEBOOKS[name])]
    assert len(texts) > 5
    for text in texts:
        assert not PLACES.search(text), text
        assert "error:" not in text and "Traceback" not in text


@every
def test_cells_are_of_one_run_and_a_text_stands_before_each(name):
    kinds = [cell["cell_type"] for cell in NOTEBOOKS[name]["cells"]]
    assert kinds[0] == "markdown"
    assert ("code", "code") not in set(zip(kinds, kinds[1:]))
    counts = [
        cell["execution_count"]
        for cell in NOTEBOOKS[name]["cells"]
        if cell["cell_type"] == "code"
    ]
    assert counts == list(range(1, len(counts) + 1))


@every
def test_what_it_names_is_there(name):
    """Flags, scripts, and the pages that its texts lead to."""
    code = "\n".join(cells(name, "code"))
    flags = (ROOT / "docs" / "flags.md").read_text()
    names = {"flagfile", *OTHERS, *re.findall(r"`--(\w+)`", flags)}
    assert set(re.findall(r"(?<![\w-])--(\w[\w-]+)", code)) <= names
    paths = re.findall(r"\b(?:configs|scripts|requirements)/[\w./-]+", code)
    for text in cells(name, "markdown"):
        links = re.findall(r"\]\((?!https:)([^)#]+)", text)
        paths += [link.replace("../", "") for link in links]
        paths += re.findall(r"`((?:configs|results|scripts)/[\w./]+)`", text)
    assert len(paths) >= 4
    for path in paths:
        assert (ROOT / path).exists(), path


def pins(name):
    """The (package, version, marker) of a lock."""
    text = (ROOT / "requirements" / name).read_text()
    return set(re.findall(r"^([\w.-]+)==(\S+)(.*?) *\\$", text, re.MULTILINE))


def test_the_lock_of_the_notebooks_changes_no_other():
    """They lie in front of TensorFlow's when a notebook runs."""
    mine, theirs = pins("notebooks.txt"), pins("tf221-cpu.txt")
    assert {"ipykernel", "nbclient", "nbformat"} <= {name for name, *_ in mine}
    for name in {name for name, *_ in mine} & {name for name, *_ in theirs}:
        versions = {version for package, version, _ in mine if package == name}
        assert versions <= {v for package, v, _ in theirs if package == name}, (
            name
        )


# The cell that sets up a notebook.
(SET_UP,) = [source for source in cells(COLAB, "code") if "PACKAGES" in source]


class SetUp:
    """Runs the cell that sets up, and keeps what it would have started."""

    def __init__(self, monkeypatch):
        self.started = []
        self.absent = set()
        self.really = ()
        find_spec = importlib.util.find_spec
        run = subprocess.run

        def find(module, *rest):
            return None if module in self.absent else find_spec(module, *rest)

        def start(command, **options):
            self.started.append(command)
            if command[0] in self.really:
                return run(command, **options)
            # pip.
            if "libtpu==0.0.14" in command:
                self.absent.discard("tensorflow")
            return None

        monkeypatch.setattr(importlib.util, "find_spec", find)
        monkeypatch.setattr(subprocess, "run", start)
        # It is put back at the test's end.
        monkeypatch.setenv("PATH", os.environ["PATH"])

    def __call__(self, **settings):
        exec(SET_UP, {"REPOSITORY": "", "TPU": False, **settings})


@pytest.fixture
def set_up(monkeypatch):
    return SetUp(monkeypatch)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with what the cell looks at; the test runs in its notebooks'."""
    root = tmp_path / "checkout"
    (root / "notebooks").mkdir(parents=True)
    (root / "run_classifier.py").touch()
    shutil.copytree(ROOT / "requirements", root / "requirements")
    monkeypatch.chdir(root / "notebooks")
    return root


def test_nothing_is_installed_where_all_is_there(set_up, checkout, capsys):
    # Twice, as of one who runs the cell again.
    for _ in range(2):
        set_up()
        assert Path.cwd() == checkout
        assert "nothing, all was there" in capsys.readouterr().out
    assert {command[-1] for command in set_up.started} == {"--fetch"}
    python = shutil.which("python")
    assert os.path.realpath(python) == os.path.realpath(sys.executable)


def test_what_is_missing_comes_from_the_lock(set_up, checkout, capsys):
    set_up.absent = {"safetensors", "tqdm"}
    set_up()
    first, second = set_up.started
    words = "--no-deps --require-hashes -r out/missing.txt"
    assert first[-4:] == words.split()
    assert second[1:] == "-m adapter_bert minilm --fetch".split()
    pins = (checkout / "out" / "missing.txt").read_text()
    lock = (ROOT / "requirements" / "tf221-cpu.txt").read_text()
    names = set(re.findall("^[a-z-]+", pins, re.MULTILINE))
    assert names == {"safetensors", "tqdm"}
    assert pins.count("--hash=") > 10
    # Each is whole.
    for block in re.split(r"\n(?=\w)", pins.strip()):
        assert f"{block}\n" in lock and not block.endswith("\\")
    printed = capsys.readouterr().out
    assert printed == "installed: safetensors, tqdm\n"


def test_every_package_of_the_set_up_is_locked(set_up, checkout):
    """One by one, so that none is found by another's name."""
    packages = dict(re.findall(r'"(\w+)": "([\w-]+)",', SET_UP))
    assert len(packages) >= 7
    for module, package in packages.items():
        set_up.absent = {module}
        set_up()
        pins = (checkout / "out" / "missing.txt").read_text()
        assert set(re.findall("^([a-z-]+)==", pins, re.M)) == {package}


def test_a_runtime_with_a_tpu_gets_its_own_tensorflow(set_up, checkout):
    set_up.absent = {"tensorflow"}
    with pytest.raises(AssertionError, match="has no TensorFlow"):
        set_up()
    set_up(TPU=True)
    assert "tensorflow-tpu==2.20.0" in set_up.started[0]
    # The versions of the page about Cloud TPU.
    page = (ROOT / "docs" / "accelerators.md").read_text()
    assert "tensorflow-tpu==2.20.0 libtpu==0.0.14 tensorboard" in page


def test_without_a_checkout_one_is_cloned(
    set_up, checkout, tmp_path, monkeypatch
):
    set_up.really = ("git",)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], cwd=checkout, check=True)
    alone = tmp_path / "alone"
    alone.mkdir()
    monkeypatch.chdir(alone)
    with pytest.raises(AssertionError, match="REPOSITORY"):
        set_up()
    set_up.started.clear()
    for _ in range(2):
        set_up(REPOSITORY=checkout.as_uri())
        assert Path.cwd() == alone / "adapter-bert"
    assert [command[0] for command in set_up.started].count("git") == 1
    # Jupyter was started anew.
    monkeypatch.chdir(alone)
    set_up(REPOSITORY=checkout.as_uri())
    assert [command[0] for command in set_up.started].count("git") == 1


@pytest.fixture
def run(tmp_path):
    """Runs a notebook as a user does; returns the process."""
    installed = importlib.util.find_spec("nbclient")
    if not installed and not os.path.isdir(run_notebook.CLIENT):
        pytest.skip(f"no {run_notebook.CLIENT}; `make notebooks` makes it")

    def start(notebook, *arguments, **settings):
        changed = [f"--set={name}={v!r}" for name, v in settings.items()]
        return run_process(
            "-m",
            "lab.run_notebook",
            str(notebook),
            *arguments,
            *changed,
            program="-u",
            check=False,
            env={**os.environ, "HOME": str(tmp_path / "home")},
        )

    return start


def write(path, *sources):
    """Writes a notebook whose first cell has the parameters."""
    made = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "metadata": {} if number else {"tags": ["parameters"]},
            "source": source,
            "outputs": [],
            "execution_count": None,
        }
        for number, source in enumerate(sources)
    ]
    body = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    write_json(path, body)
    return path


def test_a_notebook_keeps_what_it_shows(tmp_path, run):
    path = write(
        tmp_path / "a.ipynb",
        "A = 1\nB = 2",
        "import os, sys\nprint(A, B, os.getcwd())",
        "!printf '10%%\\r20%%\\r30%%\\nend\\n'\n"
        "!printf 'a\\nb: 1\\033[A\\n\\rb: 2\\033[A\\n\\rb: 3\\nc\\n'",
        "sys.executable",
    )
    before = path.read_text()
    out = tmp_path / "b.ipynb"
    done = run(path, f"--output={out}", B="x=y")
    assert done.returncode == 0, done.stderr
    assert path.read_text() == before
    texts = [text for _, text in shown(read_json(out))]
    assert texts == [
        f"1 x=y {tmp_path}\n",
        "30%\nend\na\nb: 3\nc\n",
        repr(sys.executable),
    ]
    assert {p.name for p in tmp_path.iterdir()} == {"a.ipynb", "b.ipynb"}


@pytest.fixture
def copied(tmp_path):
    """A copy of the project's files, in whose folder `out` runs may write."""
    folder = tmp_path / "copy"
    unneeded = shutil.ignore_patterns(
        ".*", "__pycache__", "lab", "out", "tests"
    )
    shutil.copytree(ROOT, folder, ignore=unneeded)
    return folder


def run_copy(run, copied, name, **settings):
    """Runs a notebook of a copy; returns all text that it shows."""
    path = copied / "notebooks" / f"{name}.ipynb"
    done = run(path, **settings)
    assert done.returncode == 0, done.stderr
    printed = "\n".join(text for _, text in shown(read_json(path)))
    assert "error:" not in printed and "Traceback" not in printed, printed
    return printed


@pytest.mark.gate
@pytest.mark.pretrained
def test_the_notebook_for_colab_runs(run, copied, pretrained_dir):
    printed = run_copy(run, copied, COLAB, EPOCHS=0.05)
    assert "installed: nothing, all was there" in printed
    assert "/physical_device:CPU:0" in printed
    assert printed.count("***** Eval results *****") == 2
    assert re.search(r"^\w+, probability 0\.\d\d$", printed, re.MULTILINE)
    assert printed.count("| label | examples | predicted |") == 2
    assert "| id | label | probability |" in printed
    assert (copied / "out/own_adapter.tar.gz").stat().st_size > 1e6


@pytest.mark.gate
def test_the_notebook_of_a_sweep_runs(run, copied, tiny_bert):
    printed = run_copy(
        run,
        copied,
        SWEEP,
        BERT=str(tiny_bert),
        METHODS="houlsby full",
        SIZES="4",
        SEEDS="1",
        EPOCHS="0.1",
        LENGTH=24,
    )
    assert re.search(r"finished +2\n", printed)
    assert "Other tasks, chosen" in printed
    assert len(re.findall(r"parameters  accuracy \d", printed)) == 2
    assert "the report is out/small_sweep/report.html" in printed
    drawn = copied / "out/small_sweep/figures"
    assert {p.name for p in drawn.glob("*.png")} == {
        "per_task.png",
        "trade_off.png",
    }
