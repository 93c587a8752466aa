"""Several devices, several workers: the result is that of one."""

import json
import os
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
from weights import training_state

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


