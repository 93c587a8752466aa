"""`adapter-bert compile` as its user runs it, in the compilers' environment."""

import os
import sys

import pytest
from conftest import ROOT, run_command

NAMED = os.environ.get("ADAPTER_BERT_COMPILERS")
MADE = ROOT / ".venv-compilers"
PYTHON = NAMED or str(MADE / "bin/python")
# Seconds, more than compiles of a tiny BERT take on a busy machine.
LONG = 600


def needed(test):
    """Marks a test, or a class of tests, that needs the compilers."""
    # `make` writes this file when all is installed.
    is_missing = not os.path.exists(NAMED or MADE / "installed")
    why = f"no {PYTHON}; `make compilers` makes it, ADAPTER_BERT_COMPILERS "
    skipped = pytest.mark.skipif(is_missing, reason=f"{why}names another")
    return pytest.mark.gate(skipped(test))


def environment(**more):
    """Variables of a process that imports this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def compile_run(*words, **options):
    """Runs `adapter-bert compile` with these words."""
    command = [sys.executable, "-m", "adapter_bert", "compile", *words]
    return run_command(*command, **{"cwd": ROOT, "timeout": LONG, **options})
