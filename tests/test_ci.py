"""`.ci/run`, with a `make` that does nothing but wait."""

import os
import shutil
import signal

import pytest
from conftest import ROOT, run_command

# `make beam` runs on, as pip and pytest do, with a pipe open to its reader.
MAKE = """#!/bin/sh
case $1 in
  beam) echo began >&3; sleep 100 & wait ;;
  lint) read line <&4; exit 7 ;;
esac
"""


def test_a_failure_ends_what_runs_beside_it(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    programs = tmp_path / "bin"
    programs.mkdir()
    # Nothing is installed.
    for name, text in (("make", MAKE), ("apt-get", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    began, writing = os.pipe()
    done = run_command(
        "bash",
        "-c",
        f"exec .ci/run 3>&{writing} 4<&{began}",
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        pass_fds=(began, writing),
        timeout=60,
    )
    os.close(writing)
    assert done.returncode == 7, done.stderr
    assert "== TensorFlow 2.21 with" in done.stdout

    def late(*_):
        pytest.fail("what was started still runs")

    # It ends when the last process that could write has ended.
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    try:
        with open(began, "rb") as pipe:
            assert pipe.read() == b""
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
