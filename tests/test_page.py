"""The page in a real browser: what is typed is asked, and shown as text.

ChromeDriver tells Chromium what to do, by WebDriver's protocol.
"""

import http.client
import json
import re
import shutil
import socket
import subprocess
import time
from contextlib import closing

import pytest
from conftest import module_fixture, run_command
from sweep_stand_in import wait_for
from test_http_api import LIMITS, Echo, Server

from adapter_bert.answering.answers import Answer
from adapter_bert.errors import UserError
from adapter_bert.server.http_api import FILES, HEADERS
from adapter_bert.server.http_guard import Tokens
from adapter_bert.server.shelf import ExportedShelf

pytestmark = [pytest.mark.newer_stack, pytest.mark.gate]

EVIL = "<img src=x onerror=document.title='run'>"


def described(name, kind, texts=1, **more):
    return {"name": name, "kind": kind, "texts": [texts], **more}


CHOICE = {"labels": ["c1", "c2"], "questions": ["cause", "effect"]}
# A letter that JavaScript counts twice.
WIDE = "\U0001f600"
TASKS = {
    task["name"]: task
    for task in (
        described("mood", "classification", labels=["bad", "good"]),
        described("sets", "multi-label", labels=["a", "b"]),
        described("score", "regression"),
        described("where", "questions", 2, columns=["question", "context"]),
        described("names", "tagging", types=["LOC", "PER"]),
        described("because", "multiple choice", 4, **CHOICE),
        described(EVIL, "classification", labels=["x"]),
        # More tasks than a request may have rows.
        *(
            described(f"t{i}", "classification", 2, labels=["no", "yes"])
            for i in range(LIMITS.max_rows)
        ),
    )
}


class AnyKind(Echo):
    """Tells what it was asked, in answers of every kind."""

    def __init__(self):
        super().__init__()
        self.tasks = dict(TASKS)

    def answers(self, rows):
        self.rows += rows
        return [self._outputs(row) for row in rows]

    def _outputs(self, row):
        task = self.tasks[row.task.decode()]
        words = row.text.decode().split()
        labels = list(task.get("labels", ()))
        start = row.text_b.decode().find("1907")
        label = "" if task["kind"] == "multi-label" else (labels or [""])[-1]
        return {
            "kind": task["kind"],
            "adapter": task["name"],
            "label": label,
            "probability": 0.75,
            "labels": labels,
            "scores": [0.25, 0.75][-len(labels) :],
            "value": 1.5,
            "answer": "1907" if start >= 0 else "",
            "start": start,
            "end": start + 4 if start >= 0 else -1,
            "score": 2.0,
            "null_score": -1.0,
            "tokens": words,
            "tags": ["B-PER", "I-PER", *["O"] * len(words)][: len(words)],
            "entity_starts": [0, -1],
            "entity_ends": [row.text.decode().find(" sleeps"), -1],
            "entity_texts": ["Anna  Berg", ""],
            "entity_scores": [0.5, 0.0],
        }


@module_fixture
def server():
    with closing(Server(model=AnyKind())) as made:
        yield made


@pytest.mark.parametrize("path", FILES)
def test_files(server, path):
    with closing(server.send("", "GET", path)) as connection:
        response = connection.getresponse()
        assert (response.status, len(response.read()) > 100) == (200, True)
        for name, value in HEADERS.items():
            assert response.headers[name] == value


ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
    "--no-first-run --window-size=1280,1500 --disable-background-networking "
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
                session = self("", {"capabilities": capabilities})
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.1)
        self.session = f"/{session['sessionId']}"

    def __call__(self, path, body, method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        with closing(connection):
            path = f"/session{self.session}{path}"
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text)
            value = json.loads(connection.getresponse().read())["value"]
        assert not (isinstance(value, dict) and "error" in value), value
        return value

    def run(self, script, *arguments):
        return self(
            "/execute/sync", {"script": script, "args": list(arguments)}
        )

    def wait_for(self, script):
        wait_for(lambda: self.run(f"return {script}"))

    def element(self, name):
        using = {"using": "css selector", "value": f"#{name}"}
        [number] = self("/element", using).values()
        return f"/element/{number}"

    def type(self, name, text):
        self(f"{self.element(name)}/clear", {})
        self.press(name, text)

    def press(self, name, keys):
        """Types keys into an element."""
        self(f"{self.element(name)}/value", {"text": keys})

    def click(self, name):
        self(f"{self.element(name)}/click", {})

    def emulate(self, command, **parameters):
        """Has Chromium behave as another device."""
        command = {"cmd": f"Emulation.{command}", "params": parameters}
        self("/goog/cdp/execute", command)

    def open(self, server):
        self("/url", {"url": f"http://127.0.0.1:{server.port}/"})
        self.wait_for("!/Loading/.test(document.body.textContent)")

    def choose(self, *names):
        """Has the tasks of these names chosen alone."""
        self.run(
            "const names = arguments[0];"
            "for (const [i, task] of served.tasks.entries()) {"
            "  const box = document.getElementById(`task-${i}`);"
            "  if (box.checked !== names.includes(task.name)) box.click();"
            "}",
            names,
        )

    def text(self, selector):
        """The text of each element that CSS selects, as a person sees it."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].filter("
            "x => x.checkVisibility()).map(x => x.innerText)",
            selector,
        )

    def answers(self):
        """The text of each answer after a click at the button."""
        self.click("ask")
        self.wait_for("!document.getElementById('ask').disabled")
        return [list(filter(None, x.split("\n"))) for x in self.text("article")]

    def close(self):
        # It would leave Chromium behind.
        self("", None, "DELETE")
        self.driver.terminate()
        self.driver.wait()


@module_fixture
def browser(tmp_path_factory):
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("there is no chromium, or no chromedriver")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def test_a_person_asks(server, browser):
    browser.open(server)
    about = f"tiny, version 3: {len(TASKS)} tasks on one BERT"
    assert browser.text("#about") == [about]
    shown = browser.text(".task")
    assert shown[0] == "mood\nreads a text\nanswers one of bad, good"
    assert shown[3].split("\n")[1:] == [
        "reads question and context",
        "answers words of the context, or none",
    ]
    assert shown[4].endswith("answers entities: LOC, PER")
    # The first task is chosen, and its field alone is there.
    assert browser.text("#fields label") == ["Text"]
    browser.type("text", EVIL)
    browser.choose("mood", "score", EVIL)
    assert browser.answers() == [
        ["mood", "good", "75.0 %", "bad", "25.0 %"],
        ["score", "1.500"],
        [EVIL, "x", "75.0 %"],
    ]
    # Nothing of it was taken for markup.
    assert browser.run("return document.title") == "Ask every task"
    assert browser.run("return document.querySelectorAll('img').length") == 0
    message = browser.text("#message")
    assert re.fullmatch(r"3 answers in \d+ ms", message[0])
    browser.choose("sets")
    assert browser.answers()[0][:2] == ["sets", "no label"]


def test_an_answer_is_shown_in_its_context(server, browser):
    browser.open(server)
    browser.choose("where")
    assert browser.text("#fields label") == ["question", "context"]
    examples = ["When was the bridge finished?", "Who paid for the bridge?"]
    assert browser.text("#examples button") == examples
    browser.click("example-0")
    [answer] = browser.answers()
    assert answer[:2] == ["where", "1907"]
    assert browser.text("mark") == ["1907"]
    # A person's letters are counted, not JavaScript's.
    browser.type("text_b", f"{WIDE} in 1907.".replace(WIDE, "\u00e9"))
    browser.run(
        "document.getElementById('text_b').value = arguments[0]",
        f"{WIDE} in 1907.",
    )
    browser.answers()
    assert browser.text("mark") == ["1907"]
    browser.type("text_b", "in 1908")
    [answer] = browser.answers()
    assert answer[:3] == ["where", "no answer", "in 1908"]
    assert browser.text("mark") == []


def test_entities_are_shown_in_the_sentence(server, browser):
    browser.open(server)
    browser.choose("names")
    browser.type("text", "Anna  Berg sleeps")
    browser.answers()
    assert browser.text("mark") == ["Anna  BergPER"]
    assert browser.text(".passage") == ["Anna  BergPER sleeps"]


def test_choices_have_fields_of_their_own(server, browser):
    browser.open(server)
    browser.choose("because")
    assert browser.text("#fields label")[1:] == ["Question", "c1", "c2"]
    browser.click("example-0")
    browser.run("document.getElementById('question').value = 'effect'")
    [answer] = browser.answers()
    assert answer == [
        "because",
        *("the street was dry.", "75.0 %", "the street was wet.", "25.0 %"),
    ]
    row = server.model.rows[-1]
    assert (row.text_b, len(row.choices)) == (b"effect", 2)


def test_more_tasks_than_a_request_may_have(server, browser):
    browser.open(server)
    browser.type("filter", "t")
    assert len(browser.text(".task")) < len(TASKS)
    names = [name for name in TASKS if name.startswith("t")]
    browser.choose(*names)
    browser.type("text", "where ?")
    browser.type("text_b", "here")
    assert [x[0] for x in browser.answers()] == names
    # Several texts that together are more than a request may hold.
    browser.run("document.getElementById('text').value = 'x'.repeat(600)")
    assert [x[0] for x in browser.answers()] == names
    assert "requests" in browser.text("#message")[0]
    # What the server refuses is told.
    kept = server.model.tasks.pop("t1")
    assert browser.answers() == []
    [message] = browser.text("#message")
    assert "unknown task t1; there are: mood" in message
    server.model.tasks["t1"] = kept


def word(text, start, attribution, **more):
    place = {"column": "text", "start": start, "end": start + len(text)}
    return {"text": text, "attribution": attribution, **place, **more}


class Explains(ExportedShelf):
    """Explains answers of `mood`, but not at first."""

    is_ready = False

    def explained(self):
        return ["mood"]

    def compute(self, questions):
        if questions[0].kind == "explain" and not self.is_ready:
            self.is_ready = True
            raise UserError("ask once more")
        return super().compute(questions)

    def answer(self, question, result):
        words = [
            word("not", 2, -0.5, left_out=0.125),
            word("bad", 6, 2.0, left_out=-0.25),
            word("at", 10, 0.0),
        ]
        explanation = {
            "label": "good",
            "words": words,
            "completeness": {"error": 0.0625},
        }
        answer = super().answer(question, result)
        return Answer({**answer, "explanation": explanation})


def test_words_are_coloured_at_a_click(browser):
    made = Server(shelf=Explains(AnyKind()))
    browser.open(made)
    browser.choose("mood", "score")
    # ChromeDriver types no letter beyond U+FFFF.
    browser.run(
        "document.getElementById('text').value = arguments[0]",
        f"{WIDE} not bad at",
    )
    browser.answers()
    assert browser.text(".why") == ["Why this answer"]
    browser.run("document.querySelector('.why').click()")
    browser.wait_for("document.querySelector('.card .wrong')")
    browser.run("document.querySelector('.why').click()")
    browser.wait_for("document.querySelectorAll('.word').length === 3")
    assert browser.text(".card .wrong") == []
    assert browser.text(".word") == ["not", "bad", "at"]
    assert browser.text(".against") == ["not"]
    assert browser.text(".passage") == [f"{WIDE} not bad at"]
    assert browser.text("ul.told li") == [
        "without \u201cbad\u201d: \u22120.250",
        "without \u201cnot\u201d: +0.125",
    ]
    colours = (
        "return [...document.querySelectorAll('.word')].map("
        "x => getComputedStyle(x).backgroundColor)"
    )
    assert len(set(browser.run(colours))) == 3
    made.close()


def test_the_line_for_a_shell_asks_the_same(server, browser):
    browser.open(server)
    browser.choose("mood")
    browser.type("text", 'it\'s "so" $HOME `x` \u00e9')
    browser.answers()
    browser.run("document.getElementById('request').open = true")
    [line] = browser.text("#curl")
    done = run_command("sh", "-c", line, check=True)
    [answer] = json.loads(done.stdout)["answers"]
    assert answer["label"] == "good"
    first, second = server.model.rows[-2:]
    assert first == second


TOKEN = "a-token-of-letters"


def test_a_server_that_asks_for_tokens(browser):
    guarded = Server(model=AnyKind(), tokens=Tokens([TOKEN]))
    browser.open(guarded)
    browser.wait_for("!document.getElementById('sign-in').hidden")
    assert browser.text("main") == []
    browser.press("token", "another-token-of-letters\n")
    browser.wait_for("/not know/.test(document.body.textContent)")
    assert browser.text("main") == []
    browser.type("token", TOKEN + "\n")
    browser.wait_for("!document.getElementById('main').hidden")
    browser.type("text", "a")
    assert len(browser.answers()) == 1
    # Nobody's screenshot shows the token.
    browser.run("document.getElementById('request').open = true")
    [line] = browser.text("#curl")
    assert TOKEN not in line and "Bearer $TOKEN" in line
    guarded.close()


# Keys by WebDriver's numbers.
TAB, CONTROL, ENTER, SPACE = "\ue004", "\ue009", "\ue007", " "


def test_by_keys_alone(server, browser):
    browser.open(server)
    focused = "return document.activeElement.id"
    browser.run("document.getElementById('filter').focus()")
    seen = []
    while browser.run(focused) != "text":
        seen.append(browser.run(focused))
        assert len(seen) < 40
        browser.press(seen[-1], TAB)
    assert seen[:4] == ["filter", "all", "none", "task-0"]
    # A space chooses a task.
    browser.press("task-2", SPACE)
    browser.press("text", "good" + CONTROL + ENTER)
    browser.wait_for("document.querySelectorAll('article').length === 2")
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    browser.press("text", TAB)
    assert browser.run(focused) == "ask"
    assert browser.run(outline) == "solid"


CONTRAST = """
const parts = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(Number);
const light = (color) => {
  const [r, g, b] = parts(color).map((x) => x / 255).map((x) =>
    x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const back = (node) => {
  const color = getComputedStyle(node).backgroundColor;
  const isSeen = !/, 0\\)$/.test(color);
  return isSeen || !node.parentElement ? color : back(node.parentElement);
};
return [...document.querySelectorAll(
  "h1, h3, p, b, small, label, legend, button, mark, .share, .track i"
)].filter((x) => x.checkVisibility()).map((x) => {
  const all = [light(getComputedStyle(x).color), light(back(x))];
  return [x.outerHTML.slice(0, 80),
    (Math.max(...all) + 0.05) / (Math.min(...all) + 0.05)];
});
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(server, browser, scheme):
    browser.emulate(
        "setDeviceMetricsOverride",
        **dict(width=360, height=740, deviceScaleFactor=2, mobile=True),
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.emulate("setEmulatedMedia", features=features)
    browser.open(server)
    browser.choose("mood", "where", "names", "because")
    browser.click("example-2")
    browser.click("example-6")
    browser.run(
        "document.getElementById('text').value = 'Anna Berg ' +"
        "'x'.repeat(200); document.getElementById('text_b').value ="
        "'in 1907 ' + 'y'.repeat(200)"
    )
    assert len(browser.answers()) == 4
    browser.run("document.getElementById('request').open = true")
    width = "return document.documentElement.scrollWidth"
    assert browser.run(width) <= 360
    lowest = min(browser.run(CONTRAST), key=lambda found: found[1])
    # Source: WCAG 2.2, criterion 1.4.3.
    assert lowest[1] >= 4.5, lowest
    back = "return getComputedStyle(document.body).backgroundColor"
    red = int(re.findall(r"\d+", browser.run(back))[0])
    assert (red < 80) == (scheme == "dark")
