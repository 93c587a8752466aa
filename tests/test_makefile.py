"""What `make` refuses."""

import os
import shutil
import sys

import pytest
from conftest import ROOT, run_command

pytestmark = pytest.mark.newer_stack


# By these a make that runs the tests would hand on its own VENV.
OUTER = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL")


def make(target, folder, project, **environment):
    """Runs make in a copy of the project's rules.

    Args:
        target: what to make.
        folder: for the virtual environment.
        project: an empty folder, made the copy.
        **environment: variables that are other ones.
    """
    project.mkdir(exist_ok=True)
    shutil.copy(ROOT / "Makefile", project)
    shutil.copytree(
        ROOT / "requirements", project / "requirements", dirs_exist_ok=True
    )
    return run_command(
        shutil.which("make"),
        target,
        cwd=project,
        env={
            **{k: v for k, v in os.environ.items() if k not in OUTER},
            "VENV": str(folder),
            "PYTHON": sys.executable,
            # Nothing is fetched.
            "PIP_NO_INDEX": "1",
            **environment,
        },
    )


@pytest.mark.parametrize("target", ["setup", "clean"])
def test_a_folder_that_is_no_environment_is_left_alone(tmp_path, target):
    """Nor is the project one, even if it has been made one."""
    mine, project = tmp_path / "mine", tmp_path / "project"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    project.mkdir()
    (project / "pyvenv.cfg").touch()
    for folder in mine, project:
        done = make(target, folder, project)
        assert done.returncode != 0
        [line] = [x for x in done.stderr.splitlines() if x.startswith("error")]
        assert str(folder) in line and "no virtual environment" in line
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    assert (project / "Makefile").exists()


@pytest.mark.gate
def test_an_empty_folder_and_an_environment_are_taken_and_no_link(tmp_path):
    folder, link = tmp_path / "venv", tmp_path / "link"
    folder.mkdir()
    for _ in range(2):
        # It gets as far as what it cannot fetch.
        done = make("setup", folder, tmp_path / "project")
        assert "no virtual environment" not in done.stderr
        assert (folder / "pyvenv.cfg").exists()
    (folder / "mine.txt").write_text("mine")
    link.symlink_to(folder)
    done = make("setup", link, tmp_path / "project")
    assert done.returncode != 0
    assert f"{link} is a link" in done.stderr
    assert (folder / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("target", ["notebooks", "docs"])
def test_what_needs_a_newer_python_says_so(tmp_path, target):
    """What `make setup` takes may be too old."""
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 9\n")
    old.chmod(0o755)
    folder, project = tmp_path / "venv", tmp_path / "project"
    make("clean", folder, project)
    (folder / "bin").mkdir(parents=True)
    for kind in ("cpu", "cuda"):
        (folder / f"installed-tf215-{kind}-3.9").touch()
    done = make(target, folder, project, PYTHON=str(old), STACK="tf215")
    assert done.returncode != 0
    message = (
        f"error: make {target} needs Python 3.10 to 3.13; name one: PYTHON="
    )
    assert done.stderr.startswith(message)


def test_beam_without_a_python_says_so(tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "sh").symlink_to(shutil.which("sh"))
    done = make("beam", tmp_path / "venv", tmp_path / "project", PATH=str(bare))
    assert done.returncode != 0
    assert "error: make beam needs Python 3.10 to 3.13, and none" in done.stderr


def test_a_fetch_that_fails_is_no_finished_setup(tmp_path):
    folder, project = tmp_path / "venv", tmp_path / "project"
    (folder / "bin").mkdir(parents=True)
    project.mkdir()
    (project / "pyproject.toml").touch()
    for kind in ("cpu", "cuda"):
        (folder / f"installed-tf215-{kind}-3.9").touch()
    python = folder / "bin/python"
    # Its pip installs a command that fails.
    python.write_text(
        "#!/bin/sh\ncase $1 in -c) echo 9 ;; *) "
        f"cp {shutil.which('false')} {folder}/bin/adapter-bert ;; esac\n"
    )
    python.chmod(0o755)
    for _ in range(2):
        done = make("setup", folder, project, PYTHON=str(python), STACK="tf215")
        assert "minilm --fetch" in done.stdout and done.returncode != 0
