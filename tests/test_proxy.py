"""Two servers behind nginx: the page's configuration, and a short run."""

import json
import shutil
import subprocess
import sys
import threading

import pytest

from adapter_bert.errors import UserError
from lab.speed import live_load
from lab.trials import proxy

pytestmark = pytest.mark.newer_stack


def run(monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["proxy", *words])
    proxy.main()


def test_the_page_has_the_configuration():
    page = proxy.PAGE.read_text(encoding="utf-8")
    text = proxy.configuration(page, 1, [2, 3])
    assert "listen 127.0.0.1:1;" in text
    assert "server 127.0.0.1:2 " in text and "server 127.0.0.1:3 " in text
    assert "10.0.0" not in text and "proxy_next_upstream" in text
    with pytest.raises(AssertionError, match="fewer servers"):
        proxy.configuration(page, 1, [2, 3, 4])


def test_a_run_without_time_or_nginx_is_refused(
    tiny_bert, tmp_path, monkeypatch
):
    with pytest.raises(UserError, match="--minutes asks nothing"):
        run(monkeypatch, ["--minutes=0"])
    monkeypatch.setattr(proxy, "NGINX", "no-such-nginx")
    with pytest.raises(UserError, match="no program no-such-nginx; install"):
        with proxy.nginx(tmp_path, "", 1):
            raise AssertionError


def test_servers_are_killed_and_ended_in_turn(tmp_path, monkeypatch):
    class Server:
        def __init__(self, folder, flags, port):
            self.port, self.ends = port, []

        def __enter__(self):
            started.append(self)
            return self

        def kill(self):
            self.ends.append("killed")
            if len(started) == 7:
                is_over.set()

        def __exit__(self, *_):
            self.ends.append("ended")

        @property
        def has_answered_all(self):
            return self.port == 5

        def log(self):
            return "Traceback" if "killed" in self.ends else ""

        def memory_mb(self):
            return 2.0

    started, is_over = [], threading.Event()
    monkeypatch.setattr(proxy, "LiveServer", Server)
    servers = proxy.Servers(tmp_path, [], [5, 6])
    servers.end_in_turn(is_over, 0.0)
    servers.stop()
    assert [server.port for server in started] == [5, 6, 5, 6, 5, 6, 5, 6]
    killed, ended = ["killed"], ["ended"]
    ends = [killed, killed, ended, ended, killed, killed, ended, ended]
    assert [server.ends for server in started] == ends
    assert servers.ends == {"killed": 4, "terminated": 2, "not_in_time": 1}
    assert servers.tracebacks == 4
    assert servers.memory_mb() == 4.0


@pytest.mark.gate
@pytest.mark.skipif(not shutil.which(proxy.NGINX), reason="no nginx here")
def test_no_request_is_lost_in_a_short_run(tiny_bert, tmp_path, monkeypatch):
    for name, value in {
        **{"NAMES": 4, "STAYING": 1, "KNOWN_TEXTS": 5, "CHANGE_S": 0.5},
        "METHOD": "houlsby(size=2)",
    }.items():
        monkeypatch.setattr(live_load, name, value)
    monkeypatch.setattr(live_load.measuring, "MAX_LENGTH", 16)
    monkeypatch.setattr(proxy, "ENDED_S", 1.0)
    output = f"--output_dir={tmp_path / 'out'}"
    run(monkeypatch, ["--minutes=0.3", f"--model={tiny_bert}", output])
    found = json.loads((tmp_path / "out" / "proxy.json").read_text())
    assert found["answers"] > 20 and found["changes"] > 5
    assert found["killed"] and not found["faults"]
    left = subprocess.run(
        ["pgrep", "-f", str(tiny_bert)], capture_output=True, text=True
    )
    assert not left.stdout
