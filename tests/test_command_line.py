"""How programs end."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT, own_lines


def run_unread(*arguments):
    """Runs a Python program whose stdout nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(writing)


def program(body):
    """The code of a program whose `main` is `body`."""
    return (
        "import sys, command_line, errors\n"
        f"def main():\n    {body}\n"
        "command_line.run(main)\n"
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
    done = run_unread("-c", program(body))
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run_classifier.py", "--help"),
        (
            "run_squad.py",
            "--describe",
            "--bert_config_file=configs/bert_base_uncased.json",
        ),
        ("-m", "scripts.list_flags"),
    ],
    ids=" ".join,
)
@pytest.mark.newer_stack
def test_the_programs_end_so(arguments):
    done = run_unread(*arguments)
    assert (done.returncode, own_lines(done.stderr)) == (141, [])


@pytest.mark.parametrize(
    "body, code, printed, complained",
    [
        ("print('a')", 0, "a\n", ""),
        ("print('a'); raise errors.UserError('b')", 1, "a\n", "error: b\n"),
        ("raise KeyboardInterrupt", 130, "", ""),
        ("sys.exit(3)", 3, "", ""),
    ],
)
def test_an_end_has_its_code_and_at_most_one_line(
    body, code, printed, complained
):
    done = subprocess.run(
        [sys.executable, "-c", program(body)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        code,
        printed,
        complained,
    )


def test_a_defect_keeps_its_traceback():
    done = subprocess.run(
        [sys.executable, "-c", program("1 / 0")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_a_program_without_stdout_ends_as_others_do():
    for body, code in (("pass", 0), ("raise errors.UserError('x')", 1)):
        line = f'{sys.executable} -c "{program(body)}" >&-'
        done = subprocess.run(
            ["bash", "-c", line], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
