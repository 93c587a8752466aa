"""The page in a real browser: what is typed is asked, and shown as text.

ChromeDriver tells Chromium what to do, by WebDriver's protocol.
"""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import time

import pytest
from sweep_stand_in import wait_for
from test_http_api import LIMITS, Echo, Server

from adapter_bert.serving.http_api import FILES, HEADERS

pytestmark = pytest.mark.newer_stack

EVIL = "<img src=x onerror=document.title='run'>"


KINDS = {
    "mood": ("classification", 1),
    "score": ("regression", 1),
    "where": ("questions", 2),
    EVIL: ("classification", 1),
    # More tasks than a request may have rows.
    **{f"t{i}": ("classification", 2) for i in range(LIMITS.max_rows)},
}


class AnyKind(Echo):
    """Tells what it was asked, in answers of every kind."""

    def __init__(self):
        super().__init__()
        self.tasks = {
            name: {"name": name, "kind": kind, "texts": [texts]}
            for name, (kind, texts) in KINDS.items()
        }

    def answers(self, rows):
        return [
            {
                "kind": self.tasks[row.task.decode()]["kind"],
                "label": row.text.decode(),
                "probability": 0.75,
                "value": 1.5,
                "answer": row.text_b.decode(),
                "score": 2.0,
            }
            for row in rows
        ]


@pytest.fixture(scope="module")
def server():
    made = Server(model=AnyKind())
    yield made
    made.close()


@pytest.mark.parametrize("path", FILES)
def test_files(server, path):
    with contextlib.closing(server.send("", "GET", path)) as connection:
        response = connection.getresponse()
        assert (response.status, len(response.read()) > 100) == (200, True)
        for name, value in HEADERS.items():
            assert response.headers[name] == value


ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
    "--no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


class Browser:
    """A page in headless Chromium."""

    def __init__(self, profile):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.driver = subprocess.Popen(
            [shutil.which("chromedriver"), f"--port={self.port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        options = {
            "binary": shutil.which("chromium"),
            "args": [*ARGUMENTS, f"--user-data-dir={profile}"],
        }
        capabilities = {"alwaysMatch": {"goog:chromeOptions": options}}
        self.session = ""
        until = time.monotonic() + 60
        while True:
            try:
                found = self("", {"capabilities": capabilities})
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.1)
        self.session = f"/{found['sessionId']}"

    def __call__(self, path, body, method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        with contextlib.closing(connection):
            path = f"/session{self.session}{path}"
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text)
            found = json.loads(connection.getresponse().read())["value"]
        assert not (isinstance(found, dict) and "error" in found), found
        return found

    def run(self, script, *arguments):
        return self(
            "/execute/sync", {"script": script, "args": list(arguments)}
        )

    def wait_for(self, script):
        wait_for(lambda: self.run(f"return {script}"))

    def element(self, name):
        using = {"using": "css selector", "value": f"#{name}"}
        (found,) = self("/element", using).values()
        return f"/element/{found}"

    def type(self, name, text):
        self(f"{self.element(name)}/clear", {})
        self(f"{self.element(name)}/value", {"text": text})

    def answers(self, text, text_b=""):
        """The rows of the table after typing and clicking."""
        self.type("text", text)
        if text_b:
            self.type("text_b", text_b)
        else:
            self.run("document.getElementById('text_b').value = ''")
        self(f"{self.element('ask')}/click", {})
        self.wait_for("!document.getElementById('ask').disabled")
        return self.run(
            "return [...document.querySelectorAll('tbody tr')].map("
            "row => [...row.cells].map(cell => cell.textContent))"
        )

    def close(self):
        # It would leave Chromium behind.
        self("", None, "DELETE")
        self.driver.terminate()
        self.driver.wait()


@pytest.fixture
def browser(tmp_path):
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("there is no chromium, or no chromedriver")
    found = Browser(tmp_path)
    yield found
    found.close()


@pytest.mark.gate
def test_a_person_asks(server, browser):
    browser("/url", {"url": f"http://127.0.0.1:{server.port}/"})
    browser.wait_for("!document.getElementById('ask').disabled")
    text = "return document.getElementById('{}').textContent".format
    about = f"tiny, version 3: {len(KINDS)} tasks on one BERT"
    assert browser.run(text("about")) == about
    assert browser.answers(EVIL) == [
        ["mood", EVIL, "75.0 %"],
        ["score", "1.500", ""],
        [EVIL, EVIL, "75.0 %"],
    ]
    # Nothing of it was taken for markup.
    assert browser.run("return document.title") == "Ask every task"
    assert browser.run("return document.querySelectorAll('img').length") == 0
    pairs = browser.answers("where ?", "here")
    assert pairs[0] == ["where", "here", "2.00"]
    assert [row[0] for row in pairs[1:]] == [f"t{i}" for i in range(5)]
    # Several texts that together are more than a request may hold.
    long = browser.answers("x" * 600, "y")
    assert [row[0] for row in long] == [row[0] for row in pairs]
    # What the server refuses is told.
    kept = server.model.tasks.pop("score")
    assert browser.answers("good") == []
    message = browser.run(text("message"))
    assert message.startswith("row 2: unknown task score; there are: mood")
    server.model.tasks["score"] = kept
