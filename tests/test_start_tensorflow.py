"""TensorFlow is loaded without its notices, and with its warnings."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT, run_command

NOTICES = (
    "WARNING: All log messages before absl::InitializeLog() is called are\n"
    "I0000 00:00:1795466418.030654    2960 port.cc:153] oneDNN custom\n"
)
REAL = "W0000 00:00:1795466418.030654    2960 gpu.cc:1] Cannot find drivers\n"

MODULE = "adapter_bert.start_tensorflow"


@pytest.fixture
def load(tmp_path):
    """What a process prints that loads a TensorFlow that prints much."""
    (tmp_path / "tensorflow.py").write_text(
        "import os\n"
        f"os.write(2, {(NOTICES + REAL).encode()!r})\n"
        "if 'BROKEN' in os.environ: raise ImportError('no such library')\n"
    )

    def run(**environment):
        code = f"import os, {MODULE}\nos.write(2, b'after\\n')"
        path = f"{tmp_path}{os.pathsep}{ROOT}"
        env = {**os.environ, "PYTHONPATH": path, **environment}
        return run_command(sys.executable, "-c", code, env=env).stderr

    return run


def test_notices_are_left_out(load):
    assert load() == f"{REAL}after\n"


def test_whoever_sets_the_level_sees_all(load):
    output = load(TF_CPP_MIN_LOG_LEVEL="0")
    assert output == f"{NOTICES}{REAL}after\n"


def test_a_disk_that_cannot_be_written_hinders_nothing(load, tmp_path):
    """Then the notices are seen as well."""
    code = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'none')!r}\n"
    (tmp_path / "usercustomize.py").write_text(code)
    (tmp_path / "sitecustomize.py").write_text(code)
    assert load() == f"{NOTICES}{REAL}after\n"


def test_an_error_is_seen(load):
    output = load(BROKEN="1")
    assert output.startswith(REAL)
    assert output.endswith("ImportError: no such library\n")


def test_without_stderr(load, tmp_path):
    command = f"{sys.executable} -c 'import {MODULE}; print(1)' 2>&-"
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": path}
    (tmp_path / "tensorflow.py").write_text("")
    output = subprocess.check_output(command, shell=True, env=environment)
    assert output == b"1\n"


@pytest.mark.parametrize(
    "first", [f"import {MODULE}", f"import tensorflow, {MODULE}"]
)
def test_keras_can_be_imported(first):
    code = (
        f"{first}\nimport sys\nloads = 'keras' in sys.modules\n"
        "from tensorflow.keras import layers\nimport tensorflow as tf\n"
        "assert loads == ('import tensorflow,' in "
        f"{first!r}), 'loaded at once'\n"
        "assert layers.Dense(2)(tf.ones([1, 3])).shape == (1, 2)\n"
        "assert tf.keras.layers.Dense is layers.Dense\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
