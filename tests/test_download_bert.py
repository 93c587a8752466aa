"""scripts/download_bert.sh, with a local server in Google's place."""

# Fixtures are imported.
# ruff: noqa: F401, F811

import hashlib
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from functools import partial

import pytest
from conftest import ROOT, open_checkpoint
from test_sources import check_values, google_bert

from adapter_bert.checkpoints import sources

pytestmark = pytest.mark.newer_stack

SCRIPT = ROOT / "scripts" / "download_bert.sh"
SMALL = "uncased_L-2_H-128_A-2"
BASE = "uncased_L-12_H-768_A-12"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves parts of files; may end in the middle of one."""

    def do_GET(self):
        server = self.server
        path = server.folder / self.path.lstrip("/")
        wanted = self.headers.get("Range")
        server.requests.append((self.path, wanted))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        server.may_send.wait(timeout=20)
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if wanted:
            size = len(content)
            self.send_header(
                "Content-Range", f"bytes {start}-{size - 1}/{size}"
            )
        self.end_headers()
        end = server.cut or len(content)
        self.wfile.write(content[start:end])

    def log_message(self, *arguments):
        """Not on the tests' stderr."""


@pytest.fixture
def server(tmp_path):
    """A server of the archives in a folder, which writes down its requests."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.folder, made.requests, made.cut = tmp_path / "served", [], None
        made.may_send = threading.Event()
        made.may_send.set()
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def publish(server, google_bert):
    """Puts the tiny BERT on the server under a name."""

    def put(name=f"2020_02_20/{SMALL}", inner="", leave_out=""):
        path = server.folder / f"{name}.zip"
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for file in google_bert.iterdir():
                if file.name != leave_out:
                    archive.write(file, f"{inner}{file.name}")
        return path

    return put


@pytest.fixture
def download(server, tmp_path):
    whole = partial(subprocess.run, capture_output=True)

    def run(*arguments, script=SCRIPT, start=whole):
        return start(
            ["bash", script, *arguments],
            env={
                **os.environ,
                "BERT_URL": f"http://127.0.0.1:{server.server_port}",
                "PYTHON": sys.executable,
            },
            cwd=tmp_path,
            text=True,
        )

    return run


@pytest.mark.parametrize(
    "name, place, inner",
    [
        (SMALL, f"2020_02_20/{SMALL}", ""),
        (SMALL, f"2020_02_20/{SMALL}", f"{SMALL}/"),
        # The base that was pretrained again has a name of its own.
        (f"2020_02_20/{BASE}", f"2020_02_20/{BASE}", ""),
    ],
)
def test_a_bert_is_fetched_once(
    download, publish, server, tmp_path, tiny_weights, name, place, inner
):
    publish(place, inner)
    done = download(name, "berts")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"--init_checkpoint=berts/{name}"
    folder = tmp_path / "berts" / name
    assert os.listdir(folder.parent) == [folder.name]
    check_values(open_checkpoint(folder).weights, tiny_weights)
    again = download(name, "berts")
    assert again.stdout == f"berts/{name} is there already\n"
    assert server.requests == [(f"/{place}.zip", None)]


def test_a_download_that_was_cut_off_goes_on(
    download, publish, server, tmp_path
):
    publish()
    server.cut = 1000
    failed = download(SMALL, "berts")
    assert failed.returncode == 1
    assert (
        f"error: cannot fetch http://127.0.0.1:{server.server_port}/2020"
        in (failed.stderr)
    )
    server.cut = None
    assert download(SMALL, "berts").returncode == 0
    assert server.requests[-1][1] == "bytes=1000-"
    assert os.listdir(tmp_path / "berts") == [SMALL]


def test_of_two_runs_at_once_one_fetches(download, publish, server, tmp_path):
    publish()
    server.may_send.clear()
    start = partial(subprocess.Popen, stdout=subprocess.PIPE)
    try:
        first = download(SMALL, "berts", start=start)
        assert first.stdout.readline().startswith("fetching ")
        second = download(SMALL, "berts", start=start)
        waiting = "another run is fetching it; waiting\n"
        assert second.stdout.readline() == waiting
    finally:
        server.may_send.set()
    assert first.communicate()[0] == f"--init_checkpoint=berts/{SMALL}\n"
    assert second.communicate()[0] == f"berts/{SMALL} is there now\n"
    assert first.returncode == second.returncode == 0
    assert os.listdir(tmp_path / "berts") == [SMALL]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "what, message",
    [
        ("page", "not a zip"),
        ("vocab.txt", "no vocab.txt"),
        ("bert_model.ckpt.index", "no bert_model.ckpt.index"),
        ("damage", "Bad CRC-32 for file 'vocab.txt'"),
    ],
)
def test_what_is_no_bert_is_refused_and_fetched_again(
    download, publish, tmp_path, what, message
):
    path = publish(leave_out=what)
    content = bytearray(path.read_bytes())
    if what == "page":
        content = b"<html>moved</html>"
    elif what == "damage":
        content[content.index(b"[PAD]")] ^= 1
    path.write_bytes(content)
    failed = download(SMALL, "berts")
    assert failed.returncode == 1
    [line] = failed.stderr.splitlines()
    assert line.startswith("error: what was fetched is no whole archive of")
    assert message in line
    assert os.listdir(tmp_path / "berts") == [f"{SMALL}.lock"]
    if what == "page":
        publish()
        assert download(SMALL, "berts").returncode == 0


def test_known_weights_are_compared(download, publish, tmp_path, google_bert):
    publish(f"2018_10_18/{BASE}")
    failed = download(BASE, "berts")
    assert failed.returncode == 1
    assert "ckpt.data-00000-of-00001 has the SHA-256" in failed.stderr
    # With the tiny one's sum in the table.
    shutil.copytree(SCRIPT.parent, tmp_path / "scripts")
    (tmp_path / "adapter_bert").symlink_to(ROOT / "adapter_bert")
    script = tmp_path / "scripts" / SCRIPT.name
    data = google_bert / "bert_model.ckpt.data-00000-of-00001"
    right = hashlib.sha256(data.read_bytes()).hexdigest()
    script.write_text(
        re.sub(rf"({BASE}) [0-9a-f]{{64}}", rf"\1 {right}", script.read_text())
    )
    assert download(BASE, "berts", script=script).returncode == 0


def test_the_list_has_every_name_once(download):
    names = download("--list").stdout.split()
    assert len(names) == len(set(names)) == 9 + 24
    assert sum(name.startswith("uncased_L-") for name in names) == 2 + 23
    for name in names:
        layers, size, heads = re.search(
            r"L-(\d+)_H-(\d+)_A-(\d+)", name
        ).groups()
        assert int(heads) * 64 == int(size)


def test_other_names_are_refused(download):
    for arguments in ((), ("x",), ("x", "y", "z")):
        done = download(*arguments)
        assert done.returncode == 1
        assert done.stderr.startswith("usage: scripts/download_bert.sh NAME FO")
    done = download("bert-base-uncased", "berts")
    assert done.returncode == 1
    assert "no BERT called bert-base-uncased; scripts/download" in done.stderr


def test_an_archive_for_which_there_is_no_room_stays(
    download, publish, server, tmp_path
):
    publish()
    folder = tmp_path / "berts"
    folder.mkdir()
    # In the way of what is unpacked.
    (folder / SMALL).write_text("")
    failed = download(SMALL, "berts")
    assert failed.returncode == 1
    assert f"error: cannot write berts/{SMALL}: " in failed.stderr
    (folder / SMALL).unlink()
    assert download(SMALL, "berts").returncode == 0
    assert len(server.requests) == 1
