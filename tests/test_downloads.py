"""The scripts that fetch data sets, with local files in their place."""

import hashlib
import os
import re
import shutil
import sys
import zipfile

import pytest
from conftest import ROOT, run_command

from adapter_bert.tasks.kinds import get_task

pytestmark = pytest.mark.newer_stack

SCRIPTS = ROOT / "scripts"
SQUAD_FILES = ("train-v1.1.json", "dev-v1.1.json")


def digest(path):
    content = path.read_bytes()
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def fetch(tmp_path):
    """Runs fetch.sh for two small files of a local folder's."""
    source = tmp_path / "source"
    source.mkdir()
    table = ""
    for name in SQUAD_FILES:
        (source / name).write_text(f"the content of {name}")
        table += f"{name} {digest(source / name)}\n"

    def run(folder, url=f"file://{source}"):
        return run_command(
            SCRIPTS / "internal/fetch.sh", url, folder, input=table
        )

    run.source = source
    return run


def test_files_are_fetched_once(fetch, tmp_path):
    folder = tmp_path / "squad"
    assert fetch(folder).returncode == 0
    assert sorted(p.name for p in folder.iterdir()) == sorted(SQUAD_FILES)
    # Even a file that was cut off before.
    (folder / SQUAD_FILES[0]).write_text("the con")
    again = fetch(folder)
    assert again.returncode == 0
    assert f"{SQUAD_FILES[1]} is there already" in again.stdout
    for name in SQUAD_FILES:
        content = (folder / name).read_bytes()
        assert content == (fetch.source / name).read_bytes()
    assert fetch(folder, "file:///nowhere").returncode == 0


def test_a_wrong_file_is_refused_and_gets_no_name(fetch, tmp_path):
    (fetch.source / SQUAD_FILES[1]).write_text("<html>moved</html>")
    failed = fetch(tmp_path / "squad")
    assert failed.returncode == 1
    [line] = failed.stderr.splitlines()
    assert line.startswith("error: ") and "18 bytes" in line
    assert (tmp_path / "squad" / SQUAD_FILES[0]).exists()
    assert not (tmp_path / "squad" / SQUAD_FILES[1]).exists()


@pytest.mark.parametrize("name", ["download_squad.sh", "download_glue.sh"])
def test_downloads_name_whole_sums_and_where_they_go(name):
    for words in (), ("--help",):
        done = run_command(SCRIPTS / name, *words)
        assert done.returncode == 1
        assert done.stderr == f"usage: scripts/{name} FOLDER\n"
    text = (SCRIPTS / name).read_text()
    table = text[text.index("<< 'FILES'") :].splitlines()[1:]
    rows = [line.split() for line in table if " " in line and "rm" not in line]
    assert len(rows) == (4 if "squad" in name else 12)
    for row in rows:
        assert row[-2].isdigit() and re.fullmatch("[0-9a-f]{64}", row[-1])


@pytest.fixture
def glue(tmp_path):
    """Runs download_glue.sh for small files, with their sums in its table."""
    source, scripts = tmp_path / "source", tmp_path / "scripts"
    (scripts / "internal").mkdir(parents=True)
    shutil.copy(SCRIPTS / "internal" / "fetch.sh", scripts / "internal")
    (tmp_path / "adapter_bert").symlink_to(SCRIPTS.parent / "adapter_bert")
    text = (SCRIPTS / "download_glue.sh").read_text()
    start = text.index("<< 'FILES'\n") + len("<< 'FILES'\n")
    end = text.index("FILES\n", start)
    table = ""
    for line in text[start:end].splitlines():
        task, path = line.split()[:2]
        file = source / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".zip"):
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(f"{task}/train.tsv", f"{task}\n")
        elif path.endswith("ids.tsv"):
            file.write_text("1\t2\n")
        elif task == "MRPC":
            rows = "1\t1\t2\ta\tb\r\n0\t3\t4\tc\td\r\n"
            header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
            file.write_bytes(f"\ufeff{header}{rows}".encode())
        else:
            file.write_text("the diagnostic set\n")
        table += f"{task} {path} {digest(file)}\n"
    script = scripts / "download_glue.sh"
    script.write_text(text[:start] + table + text[end:])

    def run():
        return run_command(
            "bash",
            script,
            tmp_path / "glue",
            env={
                **os.environ,
                "GLUE_URL": f"file://{source}",
                "PYTHON": sys.executable,
            },
        )

    run.source = source
    return run


def test_each_task_of_glue_gets_its_folder(glue, tmp_path):
    done = glue()
    assert done.returncode == 0, done.stderr
    tasks = "CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE WNLI AX".split()
    folder = tmp_path / "glue"
    assert sorted(p.name for p in folder.iterdir()) == sorted(tasks)
    for task in set(tasks) - {"MRPC", "AX"}:
        assert (folder / task / "train.tsv").read_text() == f"{task}\n"
    assert (folder / "AX/diagnostic.tsv").read_text() == "the diagnostic set\n"
    mrpc = folder / "MRPC"
    header = "#1 ID\t#2 ID\t#1 String\t#2 String\n"
    assert (mrpc / "dev.tsv").read_text() == f"Quality\t{header}1\t1\t2\ta\tb\n"
    assert (mrpc / "train.tsv").read_text() == (
        f"Quality\t{header}0\t3\t4\tc\td\n"
    )
    assert (mrpc / "test.tsv").read_text() == (
        f"index\t{header}0\t1\t2\ta\tb\n1\t3\t4\tc\td\n"
    )
    _, rows = get_task("MRPC").read(str(mrpc), ["train", "dev", "test"])
    assert {split: rows[split].text_a for split in rows} == (
        {"train": ["c"], "dev": ["a"], "test": ["a", "c"]}
    )
    again = glue()
    assert again.returncode == 0
    assert "fetching" not in again.stdout


def test_a_download_that_failed_goes_on(glue, tmp_path):
    archive = glue.source / "glue/data/QNLIv2.zip"
    away = archive.rename(archive.with_suffix(".away"))
    failed = glue()
    assert failed.returncode == 1
    assert "error: cannot fetch" in failed.stderr
    assert not (tmp_path / "glue" / "QNLI").exists()
    assert (tmp_path / "glue" / "MNLI").exists()
    away.rename(archive)
    assert glue().returncode == 0
    assert (tmp_path / "glue" / "QNLI" / "train.tsv").exists()
    assert not list((tmp_path / "glue").glob("*.part*"))
