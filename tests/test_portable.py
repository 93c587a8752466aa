"""The package works where what Windows or macOS lack is hidden."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, read_json, run_command

# A `sitecustomize`, with Windows' locks made of others of Linux.
HIDDEN = """
import asyncio, ctypes, fcntl, logging, multiprocessing, os, platform, selectors
import shutil, signal, socket, ssl, subprocess, sys, tempfile, threading, types

lock = fcntl.lockf

def locking(file, mode, count):
    place = os.lseek(file, 0, os.SEEK_CUR)
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, place)
    except BlockingIOError as error:
        raise PermissionError(13, "Permission denied") from error

sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
for name in ("fcntl", "grp", "pwd", "resource", "syslog", "termios"):
    sys.modules[name] = None
for module, names in (
    (
        os,
        "O_DIRECTORY O_NOFOLLOW fork forkpty getloadavg killpg mkfifo "
        "posix_fallocate sched_getaffinity sched_setaffinity setsid",
    ),
    (signal, "SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 SIGALRM alarm"),
):
    for name in names.split():
        delattr(module, name)

def hide(event, arguments):
    path = arguments[0] if event == "open" else ""
    if isinstance(path, str) and path.startswith(("/proc", "/sys", "/dev/fd")):
        raise FileNotFoundError(2, "No such file or directory", path)

sys.addaudithook(hide)
"""
WORK = """
import importlib, pkgutil, sys
import adapter_bert as ab

for module in pkgutil.walk_packages(ab.__path__, "adapter_bert."):
    try:
        importlib.import_module(module.name)
    except (ModuleNotFoundError, AttributeError) as error:
        # Of environments of their own, and of TensorFlow 2.15.
        needed = ("apache_beam", "jax", "estimator")
        if error.name.partition(".")[0] not in needed:
            raise
from adapter_bert.commands import serve
serve._allow_files()
bert = ab.load_bert(sys.argv[1])
rows = {"message": ["a cat sat", "a dog ran"] * 8, "queue": ["x", "y"] * 8}
run = ab.train(
    bert, rows, eval_rows=rows, text_a_column="message", label_column="queue",
    max_seq_length=16, train_batch_size=4, num_train_steps=4,
    cache_frozen_layers=True, tuning_method="top_layers(k=1)",
    output_dir=sys.argv[2],
)
ab.Library(sys.argv[2] + "-shelf").add(run.adapter, name="tickets")
print(ab.Predictor(bert, run).predict(["a cat sat"])[0].label)
"""
HOLD = """
import sys, time
from adapter_bert import folder_lock
with folder_lock.hold(sys.argv[1], wait=sys.argv[2] == "wait") as is_locked:
    print("held", is_locked, flush=True)
    time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDDEN)
    paths = f"{tmp_path / 'hidden'}{os.pathsep}{ROOT}"
    return {**os.environ, "PYTHONPATH": paths}


@pytest.mark.gate
@pytest.mark.older_stack
def test_the_package_is_imported_trains_and_answers(
    environment, tiny_bert, tmp_path
):
    output = tmp_path / "out"
    done = run_command(
        *(sys.executable, "-c", WORK, tiny_bert, output), env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("x", "y")
    cost = read_json(output / "cost.json")
    assert cost["peak_memory_bytes"] is None and "processor" in cost


def test_the_locks_of_windows(environment, tmp_path):
    def start(*words):
        return subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path), *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    holder = start("", "600")
    assert holder.stdout.readline() == "held True\n"
    refused, waiting = start("", "0"), start("wait", "0")
    assert (
        f"in use by another process (process {holder.pid} on "
        in (refused.communicate()[1])
    )
    assert waiting.poll() is None
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert waiting.communicate()[0] == "held True\n"
