"""Bearer tokens: who may ask, and how often."""

import json
import shutil
import ssl
import subprocess
import threading
import urllib.request
from contextlib import closing

import pytest
import refusals
from conftest import module_fixture
from test_http_api import PREDICT, Echo, Running, Server, app

from adapter_bert.commands import serve
from adapter_bert.errors import UserError
from adapter_bert.server.http_api import FILES
from adapter_bert.server.http_guard import (
    Allowance,
    Tokens,
    guarded,
    origin_of,
    read_tokens,
)
from adapter_bert.server.shelf import ExportedShelf

pytestmark = pytest.mark.newer_stack

TOKENS = ["a-token-of-letters", "another.token~1234=="]


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@module_fixture
def server():
    tokens = Tokens(TOKENS)
    with closing(Server(tokens=tokens, origins=["https://a.example"])) as made:
        yield made


@pytest.mark.parametrize("token", TOKENS)
def test_who_has_a_token_is_answered(server, token):
    body = server.rows("one")
    assert server.ask(body, headers=bearer(token))[0] == 200
    lower = {"authorization": f"bearer {token}"}
    assert server.ask(body, headers=lower)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer(TOKENS[0][:-1]),
        bearer(f"{TOKENS[0]} x"),
        {"Authorization": TOKENS[0]},
        {"Authorization": f"Basic {TOKENS[0]}"},
        {"Authorization": "Bearer \xff"},
    ],
)
def test_who_has_none_is_refused(server, headers):
    before = len(server.model.rows)
    for method, path in (
        ("POST", PREDICT),
        ("GET", "/tasks"),
        ("GET", "/monitoring/prometheus/metrics"),
        ("GET", "/nowhere"),
    ):
        status, answered, content = server.whole(
            server.rows("one"), method, path, headers
        )
        assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
        error = "expected Authorization: Bearer and a known token"
        assert json.loads(content) == {"error": error}
    assert len(server.model.rows) == before


def test_probes_and_browsers_first_questions_need_no_token(server):
    # A person types the token into the page.
    for path in ("/healthz", "/readyz", *FILES):
        assert server.whole("", "GET", path)[0] == 200
    asking = {
        "Origin": "https://a.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    assert server.whole("", "OPTIONS", headers=asking)[0] == 200


@pytest.mark.parametrize(
    "text, origin",
    [
        ("https://a.example", "https://a.example"),
        ("https://a.example/", "https://a.example"),
        ("HTTPS://A.Example:443", "https://a.example"),
        ("http://a.example:8080/", "http://a.example:8080"),
        ("http://[::1]:80", "http://[::1]"),
        ("https://b\u00fccher.example", "https://xn--bcher-kva.example"),
        ("*", "*"),
        ("null", "null"),
    ],
)
def test_origins_have_the_form_that_browsers_send(text, origin):
    assert origin_of(text) == origin


@pytest.mark.parametrize(
    "text", ["a.example", "https://a.example/b", "https://*.example", "http://"]
)
def test_origins_that_no_browser_sends(text):
    parts = "--cors_origins", repr(text), "https://example.org"
    refusals.check(lambda: origin_of(text), *parts)


def test_too_many_requests_of_a_token():
    with closing(Server(tokens=Tokens(TOKENS, 2))) as server:
        codes = [
            server.whole(server.rows("one"), headers=bearer(TOKENS[0]))[0]
            for _ in range(3)
        ]
        assert codes == [200, 200, 429]
        status, headers, content = server.whole("", headers=bearer(TOKENS[0]))
        assert status == 429 and 1 <= int(headers["Retry-After"]) <= 31
        error = "too many requests of this token"
        assert json.loads(content) == {"error": error}
        assert b'requests_total{code="429"} 2.0' in server.core.metrics.tell()
        assert server.whole("")[0] == 401
        assert b'requests_total{code="401"} 1.0' in server.core.metrics.tell()
        # The other token has requests of its own.
        assert server.whole("", headers=bearer(TOKENS[1]))[0] == 400


def test_who_runs_it_has_tokens_of_another_file():
    """The ones are not the others."""
    tokens, admin = Tokens(TOKENS[:1]), Tokens(TOKENS[1:])
    both = Server(tokens=tokens, admin=admin)
    open_to_all = Server(admin=admin)
    with closing(both), closing(open_to_all):
        for server in (both, open_to_all):
            for method, path in (
                ("GET", "/admin/models"),
                ("POST", "/admin/reload"),
                ("GET", "/admin/nothing"),
            ):
                for headers in ({}, bearer(TOKENS[0]), bearer("x" * 20)):
                    answer = server.ask("", method, path, headers)
                    assert answer[0] == 401
        body = both.rows("one")
        assert both.ask(body, headers=bearer(TOKENS[0]))[0] == 200
        assert both.ask(body, headers=bearer(TOKENS[1]))[0] == 401
        assert open_to_all.ask(body)[0] == 200
        answer = both.ask("", "GET", "/admin/reload", bearer(TOKENS[1]))
        assert answer[0] == 405


class Changing(ExportedShelf):
    """Looks when it is told to, and a test says what it sees."""

    left_out = {"bad": "it is damaged"}
    problem = None

    def look(self):
        # The threads of other requests are not held up.
        assert threading.current_thread().name.startswith("look")
        if self.problem:
            raise self.problem
        del self.tasks["two"]


def test_the_list_of_models_and_a_look_for_changes():
    shelf = Changing(Echo())

    def ask(method, path):
        return server.ask("", method, f"/admin/{path}", bearer(TOKENS[0]))

    with closing(Server(shelf=shelf, admin=Tokens(TOKENS))) as server:
        status, content = ask("GET", "models")
        [model] = content["models"]
        assert status == 200 and model["name"] == "tiny"
        assert model["tasks"] == {"3": ["broken", "one", "two"]}
        assert model["left_out"] == {"bad": "it is damaged"}
        expected = {"error_code": "OK", "error_message": ""}
        expected = {"version": "3", "state": "AVAILABLE", "status": expected}
        assert model["model_version_status"] == [expected]
        status, content = ask("POST", "reload")
        [model] = content["models"]
        assert status == 200 and model["tasks"] == {"3": ["broken", "one"]}
        shelf.problem = UserError("there is no library any more")
        message = {"error": "there is no library any more"}
        assert ask("POST", "reload") == (400, message)


def test_requests_come_back_with_time():
    now = [100.0]
    allowance = Allowance(60, lambda: now[0])
    assert [allowance.take() for _ in range(60)] == [0.0] * 60
    assert allowance.take() == pytest.approx(1)
    now[0] += 0.25
    assert allowance.take() == pytest.approx(0.75)
    now[0] += 0.75
    assert allowance.take() == 0 and allowance.take() > 0
    # No more than a minute's.
    now[0] += 3600
    assert [allowance.take() for _ in range(60)] == [0.0] * 60
    assert allowance.take() > 0


def test_a_file_of_tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("\n".join([TOKENS[0], "", f" {TOKENS[1]} ", ""]))
    assert read_tokens(str(path)) == TOKENS


@pytest.mark.parametrize(
    "text, part",
    [
        ("", "tokens"),
        ("\n \n", "tokens"),
        (f"{TOKENS[0]}\nshort\n", "tokens:2"),
        ("two words of a line\n", "tokens:1"),
    ],
)
def test_files_without_tokens(tmp_path, text, part):
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        read_tokens(str(path))
    assert part in str(refused.value) and "token" in str(refused.value)
    # No token is told.
    assert TOKENS[0] not in str(refused.value)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_https(tmp_path):
    certificate, key = (str(tmp_path / name) for name in ("cert", "key"))
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=a"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    files = {"ssl_certfile": certificate, "ssl_keyfile": key}
    serve.check_certificate(serve.Serving(**files))
    files = {"ssl_certfile": key, "ssl_keyfile": certificate}
    refusals.check(
        lambda: serve.check_certificate(serve.Serving(**files)),
        *(certificate, key, "PEM"),
    )
    guarded_app = guarded(app, Tokens(TOKENS))
    made = Running(guarded_app, ssl_certfile=certificate, ssl_keyfile=key)
    with closing(made):
        request = urllib.request.Request(
            f"https://127.0.0.1:{made.port}/small", headers=bearer(TOKENS[0])
        )
        context = ssl.create_default_context(cafile=certificate)
        with urllib.request.urlopen(request, context=context) as response:
            assert response.read() == b"small"
