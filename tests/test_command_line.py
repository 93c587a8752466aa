"""How programs end."""

import importlib.metadata
import os
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from conftest import ROOT, run_command, write_json

import adapter_bert
from adapter_bert import commands
from adapter_bert.commands import show


def program(body):
    """The code of a program whose `main` is `body`."""
    return (
        "import sys\nfrom adapter_bert import command_line, errors\n"
        f"def main():\n    {body}\n"
        "with command_line.run():\n    main()\n"
    )


@pytest.mark.parametrize(
    "body",
    [
        "print('a')",
        "print('a' * 10**6)",
        "print('a', flush=True)",
        "print('a'); sys.exit(1)",
    ],
)
def test_a_closed_pipe_ends_a_program_without_a_word(body):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", program(body)],
        cwd=ROOT,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    "body, code, printed, complained",
    [
        ("print('a')", 0, "a\n", ""),
        ("print('a'); raise errors.UserError('b')", 1, "a\n", "error: b\n"),
        ("raise KeyboardInterrupt", 130, "", ""),
        ("sys.exit(3)", 3, "", ""),
        # Keras and scikit-learn would load it.
        (
            "import sklearn.metrics; print('pandas' in sys.modules)",
            0,
            "False\n",
            "",
        ),
    ],
)
def test_an_end_has_its_code_and_at_most_one_line(
    body, code, printed, complained
):
    done = run_command(sys.executable, "-c", program(body), cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (
        code,
        printed,
        complained,
    )


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(SystemExit, match="error: this Python lacks apache_be"):
        commands.run("beam")


@pytest.mark.parametrize(
    "scores, shown",
    [
        ({"accuracy": 0.5, "f1": 0.4}, "accuracy 0.500"),
        ({"loss": 0.1, "f1": 0.83}, "f1 0.830"),
        ({"f1": 83.21}, "f1 83.2"),
        ({"pearson": 0.9, "loss": 2.0}, "pearson 0.900"),
        ({"micro_f1": 0.2}, "micro_f1 0.200"),
    ],
)
def test_a_score_of_any_task_is_shown(tmp_path, capsys, scores, shown):
    results = {f"eval_{name}": value for name, value in scores.items()}
    write_json(tmp_path / "eval_results.json", results)
    write_json(
        tmp_path / "run.json", {"parameters": {"trained": 1, "total": 2}}
    )
    (tmp_path / "adapter").mkdir()
    path = tmp_path / "adapter/adapter.safetensors"
    path.touch()
    show.show_table(path, tmp_path)
    assert shown in capsys.readouterr().out


def test_a_defect_keeps_its_traceback():
    done = run_command(sys.executable, "-c", program("1 / 0"), cwd=ROOT)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


CLOSED = "error: cannot write to stdout: Bad file descriptor; redirect it to "
FULL = CLOSED.replace("Bad file descriptor", "No space left on device")
LONG = "print('a' * 10**6)"


@pytest.mark.parametrize(
    "body, end, code, complained",
    [
        ("pass", ">&-", 0, ""),
        ("pass", ">/dev/full", 0, ""),
        ("raise errors.UserError('x')", ">&-", 1, "error: x"),
        ("raise errors.UserError('x')", "<&- >&- 2>&-", 1, ""),
        ("print('a')", ">&-", 1, CLOSED),
        ("print('a')", "<&- >&-", 1, CLOSED),
        ("print('a')", ">/dev/full", 1, FULL),
        ("print('a')", ">/dev/full 2>&1", 1, ""),
        (LONG, ">/dev/full", 1, FULL),
        ("sys.stdout.write('a'); sys.exit(3)", ">/dev/full", 1, FULL),
        # No other handler of errors takes it for an input's.
        (f"try: {LONG}\n    except Exception: pass", ">/dev/full", 1, FULL),
        (LONG, "| head -c 1", 141, ""),
        # Without stderr there is somebody to tell all the same.
        ("assert not sys.stderr.isatty()", "2>&-", 0, ""),
        ("assert open(sys.argv[0]).fileno() > 2", "<&- >&- 2>&-", 0, ""),
    ],
)
def test_stdout_that_cannot_be_written_is_one_line(
    tmp_path, body, end, code, complained
):
    (tmp_path / "program.py").write_text(program(body))
    line = f'set -o pipefail; "$0" {tmp_path}/program.py {end}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_command("bash", "-c", line, sys.executable, env=environment)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(complained)
    assert len(done.stderr.splitlines()) == bool(complained)


def test_a_pipe_that_refuses_when_it_is_full_is_waited_for():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    process = subprocess.Popen(
        [sys.executable, "-c", program(LONG)], cwd=ROOT, stdout=writing
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert file.read() == b"a" * 10**6 + b"\n"
    assert process.wait() == 0


ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
# Of a folder in which `localedef` has made it.
LATIN = {"LC_ALL": "xx", "LOCPATH": "{}", "PYTHONUTF8": "0"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        ASCII,
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C"},
        {**ASCII, "PYTHONIOENCODING": "utf-8:strict"},
        LATIN,
        # Python leaves its own flags no way out.
        {**ASCII, "PYTHONUTF8": "1"},
    ],
)
def test_texts_and_paths_are_utf8_in_any_locale(tmp_path, environment):
    name = "caf\xe9 \u732b \U0001f408"
    if environment is LATIN:
        made = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", tmp_path / "xx"]
        if subprocess.run(made, capture_output=True).returncode:
            pytest.skip("there are no sources of locales")
        environment = {**LATIN, "LOCPATH": str(tmp_path)}
    (tmp_path / name).write_text("caf\xe9 \u732b", "utf-8")
    body = (
        "path, *rest = sys.argv[1:]; assert rest == ['', '-x']; "
        "assert sys.stdin.read() == 'in'; "
        "print(path, open(path).read(), chr(0xd800)); "
        "raise errors.UserError(path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program(body), tmp_path / name, "", "-x"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        input=b"in",
    )
    assert done.stderr.decode() == f"error: {tmp_path / name}\n"
    printed = f"{tmp_path / name} caf\xe9 \u732b \\ud800\n"
    assert (done.returncode, done.stdout.decode()) == (1, printed)


@pytest.mark.parametrize("name", [*commands.STEPS, "env"])
def test_programs_without_flags_have_a_page(name, monkeypatch, capsys):
    for word in ("-h", "--help"):
        monkeypatch.setattr(sys, "argv", [f"adapter-bert {name}", word])
        commands.run(name)
        doc = sys.modules[f"adapter_bert.commands.{name}"].__doc__
        assert capsys.readouterr().out == f"{doc.strip()}\n"


def test_a_checkout_that_is_not_installed_has_no_version(monkeypatch):
    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    assert adapter_bert.__version__ == "unknown"


def test_env_takes_no_flag(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["adapter-bert env", "--otput_dir=x"])
    with pytest.raises(SystemExit, match="usage: adapter-bert env"):
        commands.run("env")


def test_env_prints_what_a_report_about_a_fault_needs(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    done = run_command(sys.executable, "-m", "adapter_bert", "env")
    facts = dict(re.findall(r"^([^:]+): +(.*)$", done.stdout, re.M))
    assert facts["adapter-bert"] == adapter_bert.__version__
    assert facts["tensorflow"] == tf.__version__
    assert facts["oneDNN kernels"] == "none"
    assert facts["variables"] == "TF_ENABLE_ONEDNN_OPTS=0"
    version = run_command(sys.executable, "-m", "adapter_bert", "--version")
    assert version.stdout.strip() == facts["adapter-bert"]
