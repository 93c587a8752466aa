"""The shell scripts, run as a user runs them."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.pretrained
def test_quickstart_ends_with_a_row_for_each_task(tmp_path, pretrained_dir):
    done = subprocess.run(
        [
            ROOT / "scripts" / "quickstart.sh",
            tmp_path / "out",
            "--num_train_epochs=0.2",
        ],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    table, *answers = done.stdout.split("\n\n")[-6:]
    header, *rows = table.strip().splitlines()[-4:]
    assert header.split()[0] == "task"
    for row, task, score, trained in zip(
        rows,
        ("customer_intents", "same_meaning", "short_articles"),
        (("accuracy", ".3f"), ("accuracy", ".3f"), ("f1", ".1f")),
        ("609,034", "605,954", "605,954"),
    ):
        folder = tmp_path / "out" / task
        results = json.loads((folder / "eval_results.json").read_text())
        value = f"{results[f'eval_{score[0]}']:{score[1]}}"
        cells = row.split()
        assert cells[:4] == [task, score[0], value, trained]
        assert cells[-4:] == ["2.4", "MB", "90.9", "MB"]
    assert len(answers) == 5
    for text in answers:
        question, answered, right = text.strip().splitlines()
        assert question.endswith("?")
        assert answered.strip().startswith("answered: ")
        assert right.strip().startswith("right: ")


SQUAD_FILES = ("train-v1.1.json", "dev-v1.1.json")


@pytest.fixture
def download(tmp_path):
    """Runs the script for two small files of a local folder's."""
    source = tmp_path / "source"
    source.mkdir()
    script = (ROOT / "scripts" / "download_squad.sh").read_text()
    head = script[: script.index("<< 'FILES'")]
    lines = ""
    for name in SQUAD_FILES:
        content = f"the content of {name}".encode()
        (source / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        lines += f"{name} {len(content)} {digest}\n"
    small = tmp_path / "download_small.sh"
    small.write_text(f"{head}<< 'FILES'\n{lines}FILES\n")

    def run(folder, url=f"file://{source}"):
        return subprocess.run(
            ["bash", small, folder],
            env={**os.environ, "SQUAD_URL": url},
            capture_output=True,
            text=True,
        )

    run.source = source
    return run


def test_squad_is_fetched_once(download, tmp_path):
    folder = tmp_path / "squad"
    assert download(folder).returncode == 0
    assert sorted(os.listdir(folder)) == sorted(SQUAD_FILES)
    # A damaged file is fetched again, the other one is not.
    (folder / SQUAD_FILES[0]).write_text("damaged")
    again = download(folder)
    assert again.stdout.count("fetching") == 1
    assert again.stdout.count("is there already") == 1
    for name in SQUAD_FILES:
        content = (folder / name).read_bytes()
        assert content == (download.source / name).read_bytes()
    assert download(folder, "file:///nowhere").returncode == 0


def test_a_wrong_file_is_refused_and_gets_no_name(download, tmp_path):
    (download.source / SQUAD_FILES[1]).write_text("<html>moved</html>")
    done = download(tmp_path / "squad")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ") and "expected" in done.stderr
    assert not (tmp_path / "squad" / SQUAD_FILES[1]).exists()
    missing = download(tmp_path / "other", "file:///nowhere")
    assert missing.returncode == 1 and "cannot fetch" in missing.stderr
    assert os.listdir(tmp_path / "other") == []


@pytest.mark.pretrained
def test_the_shipped_questions_are_learned(tmp_path, pretrained_dir):
    """The quickstart's own flags, with fewer epochs."""
    done = subprocess.run(
        [
            sys.executable,
            "run_squad.py",
            "--flagfile=configs/short_articles.flags",
            f"--init_checkpoint={pretrained_dir}",
            f"--output_dir={tmp_path}",
            "--num_train_epochs=2",
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    results = json.loads((tmp_path / "eval_results.json").read_text())
    assert results["eval_f1"] > 30, done.stderr
