"""Several devices, several workers: the result is that of one."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, run_process
from engine_jobs import (
    ESTIMATOR,
    SQUAD,
    check_equal,
    make_job,
    trained_values,
)

from engines import Hardware, choose_engine, devices
from engines.strategy import StrategyEngine
from errors import UserError
from runs import folder_lock
from weights import training_state

DEVICES = """
import sys
sys.path[:0] = {paths!r}
import dataclasses, json
import numpy as np
import modeling
from engine_jobs import *
from engines import Hardware, choose_engine
from tasks import text_classification
from weights import training_state

text_classification.dropout = lambda x, *arguments: x
config = modeling.BertConfig(**json.loads({config!r}))
engine = choose_engine({name!r})[0](Hardware(num_devices={devices}))
engine.check_devices()
job = dataclasses.replace(
    make_job(config, {folder!r}), parts={parts}, length={length}
)
rows = make_rows(CLASSIFICATION)
losses = train(engine, job, rows, steps=6)
outputs = engine.predict(job, rows, 7, "eval")["logits"]
print(json.dumps([losses, outputs.tolist()]))
"""


def run_on_devices(config, folder, name, devices, parts=1, length=None):
    """Losses and predictions of a training on logical CPUs."""
    code = DEVICES.format(
        paths=[str(ROOT), str(ROOT / "tests")],
        config=json.dumps(vars(config)),
        name=name,
        devices=devices,
        folder=str(folder),
        parts=parts,
        length=length,
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "name", [pytest.param("estimator", marks=ESTIMATOR), "strategy"]
)
def test_two_devices_give_the_result_of_one(steady_config, folders, name):
    runs = {}
    for count, parts in ((1, 1), (2, 1), (2, 2)):
        folder = folders(f"{count}x{parts}")
        runs[folder] = run_on_devices(steady_config, folder, name, count, parts)
    (first, (losses, outputs)), *others = runs.items()
    assert len(losses) == 6 and len(outputs) == 40
    job = make_job(steady_config, first)
    for folder, (other_losses, other_outputs) in others:
        np.testing.assert_allclose(other_losses, losses, rtol=0, atol=1e-5)
        np.testing.assert_allclose(other_outputs, outputs, rtol=0, atol=1e-5)
        check_equal(
            trained_values(make_job(steady_config, folder)),
            trained_values(job),
            1e-5,
        )


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def start_workers(command, folder):
    """Two processes that know each other by TF_CONFIG."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    workers = []
    for index in (0, 1):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": cluster, "task": task})
        with open(folder / f"worker{index}.log", "w") as log:
            workers.append(
                subprocess.Popen(
                    [sys.executable, "run_squad.py", *command],
                    cwd=ROOT,
                    env={**os.environ, "TF_CONFIG": config},
                    stderr=log,
                )
            )
    return workers


def test_two_workers_give_the_result_of_one(
    tiny_bert, tiny_squad, steady_config, tmp_path
):
    """One of them is killed on the way, and both are started again."""
    config = tmp_path / "steady.json"
    config.write_text(json.dumps(vars(steady_config)))

    def command(folder):
        return [
            "--engine=strategy",
            f"--train_file={tiny_squad}/v1.json",
            f"--predict_file={tiny_squad}/v1.json",
            f"--init_checkpoint={tiny_bert}",
            f"--bert_config_file={config}",
            f"--output_dir={tmp_path / folder}",
            "--do_train",
            "--do_predict",
            "--max_seq_length=20",
            "--max_query_length=8",
            "--train_batch_size=8",
            "--learning_rate=1e-3",
            "--num_train_epochs=100",
            "--save_checkpoints_steps=20",
            "--adapter_size=4",
        ]

    workers = start_workers(command("two"), tmp_path)
    try:
        while not training_state.latest_step(str(tmp_path / "two"))[1]:
            assert workers[0].poll() is None, "ended before it was killed"
            time.sleep(0.01)
        workers[1].kill()
        assert workers[0].wait(300) != 0
        step = training_state.latest_step(str(tmp_path / "two"))[1]
        assert 0 < step < 200
        workers = start_workers(command("two"), tmp_path)
        for index, worker in enumerate(workers):
            log = tmp_path / f"worker{index}.log"
            assert worker.wait(300) == 0, log.read_text()[-3000:]
            assert f"from step {step}" in log.read_text()
    finally:
        for worker in workers:
            worker.kill()
    run_process(*command("one"), program="run_squad.py")
    files = [
        {name.split("events")[0] for name in os.listdir(tmp_path / folder)}
        for folder in ("one", "two")
    ]
    # Of two workers none knows what both took.
    assert files[0] == files[1] | {"cost.json"}
    jobs = [
        make_job(steady_config, tmp_path / folder, task=SQUAD)
        for folder in ("one", "two")
    ]
    one, two = map(trained_values, jobs)
    for values in (one, two):
        # The softmax over tokens does not see a shift of all logits: their
        # gradient is rounding noise, of which Adam makes whole steps.
        del values["cls/squad/output_bias"]
        del values["bert/encoder/layer_1/output/LayerNorm/beta"]
    check_equal(two, one, 1e-4)


@pytest.mark.newer_stack
@pytest.mark.parametrize("when", ["at the start", "in the training"])
def test_a_chief_that_fails_ends_the_others_in_one_line(
    tiny_bert, tiny_squad, tmp_path, when
):
    """Another run is in the folder; or it is the chief's that cannot save."""
    (tmp_path / "out").mkdir()
    # In place of the folder for the parts of the first save.
    (tmp_path / "out" / "model.ckpt-20_temp").touch()
    reason = "cannot write the checkpoint"
    command = [
        "--engine=strategy",
        f"--train_file={tiny_squad}/v1.json",
        f"--init_checkpoint={tiny_bert}",
        f"--output_dir={tmp_path / 'out'}",
        "--do_train",
        "--max_seq_length=20",
        "--max_query_length=8",
        "--train_batch_size=8",
        "--num_train_epochs=1000",
        "--save_checkpoints_steps=20",
        "--adapter_size=4",
    ]
    with contextlib.ExitStack() as until_end:
        if when == "at the start":
            reason = "in use by another process"
            until_end.enter_context(folder_lock.hold(str(tmp_path / "out")))
        workers = start_workers(command, tmp_path)
        for worker in workers:
            until_end.callback(worker.kill)
        codes = [worker.wait(300) for worker in workers]
    logs = [(tmp_path / f"worker{i}.log").read_text() for i in (0, 1)]
    assert codes == [1, 1], logs[1][-3000:]
    assert re.search(f"error: .*{reason}", logs[0])
    assert "error: another worker has stopped" in logs[1]
    assert "Traceback" not in logs[0] + logs[1]


def test_a_port_in_use_is_one_clear_line(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code = (
            "from engines import Hardware\n"
            "from engines.strategy import StrategyEngine\n"
            "from errors import UserError\n"
            "try:\n"
            "    StrategyEngine(Hardware()).check_devices()\n"
            "except UserError as error:\n"
            "    print('line:', error)\n"
        )
        config = {
            "cluster": {"worker": [address]},
            "task": {"type": "worker", "index": 0},
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "TF_CONFIG": json.dumps(config)},
            capture_output=True,
            text=True,
        )
    assert "line: the workers of TF_CONFIG cannot be used" in done.stdout, done


def test_the_number_of_devices_is_no_matter_of_workers(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(UserError, match="leave it out under TF_CONFIG"):
        StrategyEngine(Hardware(num_devices=2)).check_devices()


WORKERS = '"cluster": {"worker": ["a:1"]}'


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        f"{{{WORKERS}}}",
        f'{{{WORKERS}, "task": {{"type": "worker", "index": 4}}}}',
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
    ],
)
def test_a_broken_tf_config_is_one_clear_line(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(UserError, match="TF_CONFIG cannot be used"):
        StrategyEngine(Hardware()).check_devices()


def test_more_gpus_than_there_are_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: ["one GPU"]
    )
    with pytest.raises(UserError, match="there are only 1 GPUs"):
        devices.count(Hardware(num_devices=2))


def test_no_tpu_is_one_clear_line(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    for hardware, words in (
        (Hardware(use_tpu=True), "--tpu_name"),
        (Hardware(use_tpu=True, tpu_name="local"), "'local'"),
    ):
        with pytest.raises(UserError, match=words):
            StrategyEngine(hardware).check_devices()


# Lanes


@pytest.fixture
def threads(monkeypatch):
    """A machine without a GPU; collects what operations are allowed."""
    allowed = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(
        tf.config.threading,
        "set_intra_op_parallelism_threads",
        allowed.append,
    )
    return allowed


@pytest.mark.parametrize(
    "cores, asked, lanes, one_thread",
    [
        (1, 0, 1, False),
        (2, 0, 2, True),
        (8, 0, 8, True),
        (64, 0, devices.MAX_LANES, False),
        (2, 1, 1, False),
        (4, 3, 3, False),
        (4, 4, 4, True),
        (2, 12, 12, True),
    ],
)
def test_lanes_are_those_asked_for_or_one_on_each_core(
    monkeypatch, threads, cores, asked, lanes, one_thread
):
    """Where there is one on each, an operation takes no other core."""
    monkeypatch.setattr(devices, "_cores", lambda: cores)
    assert devices.use_lanes(Hardware(cpu_lanes=asked)) == lanes
    assert threads == [1] * one_thread


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    """Not all systems tell; then they are those of the machine."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda process: {1, 3}, raising=False
    )
    assert devices._cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert devices._cores() == 4


def test_lanes_are_taken_though_threads_cannot_be_set_any_more(
    monkeypatch, threads
):
    def refuse(number):
        raise RuntimeError("Intra op parallelism cannot be modified")

    monkeypatch.setattr(devices, "_cores", lambda: 2)
    monkeypatch.setattr(
        tf.config.threading, "set_intra_op_parallelism_threads", refuse
    )
    assert devices.use_lanes(Hardware()) == 2


OTHERS = [{"use_tpu": True}, {"num_devices": 2}]


@pytest.mark.parametrize("others", OTHERS)
def test_there_is_one_lane_beside_other_devices(threads, others):
    for asked in (0, 1):
        assert devices.use_lanes(Hardware(cpu_lanes=asked, **others)) == 1
    assert not threads


def test_there_is_one_lane_on_a_gpu(monkeypatch, threads):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["x"])
    assert devices.use_lanes(Hardware()) == 1
    with pytest.raises(UserError, match="--cpu_lanes=2 .* leave it out"):
        devices.use_lanes(Hardware(cpu_lanes=2))
    assert not threads


@pytest.mark.parametrize("others", OTHERS)
def test_lanes_beside_other_devices_are_one_clear_line(engine, threads, others):
    """Of either engine, before it looks for those devices."""
    hardware = Hardware(cpu_lanes=2, **others)
    with pytest.raises(UserError, match="--cpu_lanes=2 .* leave it out"):
        choose_engine(engine)[0](hardware).check_devices()
