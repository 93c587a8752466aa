"""Several workers give the result of one; what TF_CONFIG may say."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import socket
import subprocess
import sys
import time
from unittest import mock

import pytest
import refusals
import tensorflow as tf
from conftest import ROOT, flag_words, latest_step, run_command, write_json
from engine_jobs import (
    CLASSIFICATION,
    SQUAD,
    check_equal,
    make_job,
    make_rows,
    train,
    trained_values,
)

from adapter_bert import folder_lock
from adapter_bert.errors import UserError
from adapter_bert.training import multi_worker, two_phases
from adapter_bert.training.engines import choose_engine
from adapter_bert.training.experiment import start
from adapter_bert.training.settings import Hardware
from adapter_bert.training.strategy import StrategyEngine

NEWER = pytest.mark.newer_stack


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def squad_flags(bert, squad):
    """Flags of a small training on questions."""
    return {
        "engine": "strategy",
        "train_file": squad / "v1.json",
        "init_checkpoint": bert,
        "do_train": True,
        "max_seq_length": 20,
        "max_query_length": 8,
        "train_batch_size": 8,
        "adapter_size": 4,
    }


@pytest.fixture
def command(tiny_bert, tiny_squad, tmp_path):
    """The words of that training, in a folder `out`."""
    flags = squad_flags(tiny_bert, tiny_squad)
    return flag_words({**flags, "output_dir": tmp_path / "out"})


def start_workers(commands, folder, kinds=("worker", "worker")):
    """Two processes of run_squad.py that know each other by TF_CONFIG.

    Args:
        commands: flags of each.
        folder: for their logs.
        kinds: what they are called.
    """
    cluster = {}
    tasks = []
    for kind, port in zip(kinds, free_ports(2)):
        hosts = cluster.setdefault(kind, [])
        tasks.append({"type": kind, "index": len(hosts)})
        hosts.append(f"127.0.0.1:{port}")
    workers = []
    for number, (task, command) in enumerate(zip(tasks, commands)):
        config = json.dumps({"cluster": cluster, "task": task})
        with open(folder / f"worker{number}.log", "w") as log:
            workers.append(
                subprocess.Popen(
                    [sys.executable, "run_squad.py", *command],
                    cwd=ROOT,
                    env={**os.environ, "TF_CONFIG": config},
                    stderr=log,
                )
            )
    return workers


def run_workers(commands, folder, **options):
    """Exit codes and logs of two such processes."""
    workers = start_workers(commands, folder, **options)
    try:
        codes = [worker.wait(300) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    return codes, [(folder / f"worker{i}.log").read_text() for i in (0, 1)]


@pytest.mark.gate
@NEWER
def test_two_workers_give_the_result_of_one(
    answer, tiny_bert, tiny_squad, steady_config, tmp_path
):
    """One of them is killed on the way, and both are started again.

    Then the first is called master, which is a chief.
    """
    config = tmp_path / "steady.json"
    write_json(config, vars(steady_config))

    flags = {
        **squad_flags(tiny_bert, tiny_squad),
        "predict_file": tiny_squad / "v1.json",
        "bert_config_file": config,
        "do_predict": True,
        "learning_rate": 1e-3,
        "num_train_epochs": 100,
        "save_checkpoints_steps": 20,
    }
    command = flag_words({**flags, "output_dir": tmp_path / "two"})
    workers = start_workers([command] * 2, tmp_path)
    try:
        until = time.monotonic() + 300
        while not latest_step(tmp_path / "two")[1]:
            assert workers[0].poll() is None, "ended before it was killed"
            log = (tmp_path / "worker0.log").read_text()
            assert time.monotonic() < until, log[-3000:]
            time.sleep(0.01)
        workers[1].kill()
        assert workers[0].wait(300) != 0
    finally:
        for worker in workers:
            worker.kill()
    step = latest_step(tmp_path / "two")[1]
    assert 0 < step < 200
    codes, logs = run_workers(
        [command] * 2, tmp_path, kinds=("master", "worker")
    )
    for code, log in zip(codes, logs):
        assert code == 0, log[-3000:]
        assert f"from step {step}" in log
    answer(**flags, output_dir=tmp_path / "one")
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
        # gradient is rounding noise, which Adam turns into whole steps.
        del values["cls/squad/output_bias"]
        del values["bert/encoder/layer_1/output/LayerNorm/beta"]
    check_equal(two, one, 1e-4)


@pytest.mark.gate
@NEWER
@pytest.mark.parametrize("when", ["at the start", "in the training"])
def test_a_chief_that_fails_ends_the_others_in_one_line(
    command, tmp_path, when
):
    """Another run is in the folder; or it is the chief's that cannot save.

    Till then both train in bfloat16, in which TensorFlow cannot send a first
    value.
    """
    (tmp_path / "out").mkdir()
    # In place of the folder for the parts of the first save.
    (tmp_path / "out" / "model.ckpt-20_temp").touch()
    reason = "cannot write the checkpoint"
    command = [
        *command,
        "--compute_dtype=bfloat16",
        "--num_train_epochs=1000",
        "--save_checkpoints_steps=20",
    ]
    with contextlib.ExitStack() as until_end:
        if when == "at the start":
            reason = "in use by another process"
            until_end.enter_context(folder_lock.hold(str(tmp_path / "out")))
        codes, logs = run_workers([command] * 2, tmp_path)
    assert codes == [1, 1], logs[1][-3000:]
    assert re.search(f"error: .*{reason}", logs[0])
    assert "error: another worker has stopped" in logs[1]
    assert "Traceback" not in logs[0] + logs[1]


@pytest.mark.gate
@NEWER
def test_a_port_in_use_is_one_clear_line():
    code = (
        "from adapter_bert.training.engines import Hardware\n"
        "from adapter_bert.training.strategy import StrategyEngine\n"
        "from adapter_bert.errors import UserError\n"
        "try:\n"
        "    StrategyEngine(Hardware()).check_devices()\n"
        "except UserError as error:\n"
        "    print('line:', error)\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        value = config("worker 0", worker=[address, "127.0.0.1:1"])
        done = run_command(
            *(sys.executable, "-c", code),
            cwd=ROOT,
            env={**os.environ, "TF_CONFIG": value},
        )
    assert "line: the workers of TF_CONFIG cannot be used" in done.stdout, done


def config(task, **cluster):
    """TF_CONFIG of a task, as `worker 0`."""
    kind, index = task.split()
    return json.dumps(
        {"cluster": cluster, "task": {"type": kind, "index": int(index)}}
    )


CLUSTER = config("chief 0", chief=["a:1"], worker=["b:1"])


@pytest.mark.parametrize(
    "value, part",
    [
        ("{", "Expecting"),
        ("[]", "list"),
        ('{"cluster": {"worker": ["a:1"]}}', "task"),
        (config("worker 4", worker=["a:1"]), "out of range"),
        (config("worker 0", ps=["a:1"], worker=["b:1"]), "only chief and wo"),
        (config("worker -1", worker=["a:1"]), "the index is -1"),
        (config("worker 0", worker="a:1"), "no list of host:port"),
        (config("worker 0", worker=["a:1"], chief=None), "None is no list"),
    ],
)
def test_a_broken_tf_config_is_one_clear_line(monkeypatch, value, part):
    """Met when the engine is chosen, before anything is opened."""
    monkeypatch.setenv("TF_CONFIG", value)
    refusals.check(lambda: choose_engine("auto"), "cannot be used", part)
    engine = StrategyEngine(Hardware())
    refusals.check(engine.check_devices, "cannot be used", part)


ALONE = [
    "",
    "{}",
    '{"cluster": {}, "task": {"type": "worker", "index": 0}}',
    config("master 0", master=["a:1"]),
    config("chief 0", chief=["a:1"]),
    config("worker 0", worker=["a:1"]),
]


@pytest.mark.parametrize("value", ALONE)
def test_a_machine_alone_is_no_cluster(monkeypatch, value):
    """Whatever starts the program calls it."""
    monkeypatch.setenv("TF_CONFIG", "")
    expected = choose_engine("auto")
    monkeypatch.setenv("TF_CONFIG", value)
    assert choose_engine("auto") == expected
    engine = StrategyEngine(Hardware())
    engine.check_devices()
    assert engine.is_chief and engine.workers == 1


def test_a_cluster_is_a_matter_of_the_strategy_engine(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", CLUSTER)
    chosen, why = choose_engine("auto")
    assert chosen is StrategyEngine and "names several processes" in why
    refusals.check(lambda: choose_engine("estimator"), "--engine=strategy")


def test_one_machine_alone_uses_a_tpu(monkeypatch):
    experiment = mock.MagicMock()
    experiment.hardware.use_tpu = True
    monkeypatch.setenv("TF_CONFIG", CLUSTER)
    refusals.check(lambda: start(experiment), "--use_tpu needs one process")


def test_two_phases_are_trained_on_a_machine_alone(monkeypatch):
    def check():
        run = mock.MagicMock()
        run.model.trained = None
        two_phases.FirstPhase().check(run)

    for value in ALONE:
        monkeypatch.setenv("TF_CONFIG", value)
        check()
    monkeypatch.setenv("TF_CONFIG", CLUSTER)
    refusals.check(check, "needs one process", "TF_CONFIG")


@pytest.mark.parametrize(
    "change, part",
    [
        ([4, 0], "different checkpoints in --output_dir (steps [3, 7])"),
        ([0, 1], "different flags or training data"),
    ],
)
def test_workers_that_do_not_agree_are_refused(monkeypatch, change, part):
    """One, and what another one would say."""
    strategy = tf.distribute.get_strategy()
    results = strategy.experimental_local_results

    def of_two(value):
        mine = results(value)[0]
        return [tf.concat([mine, mine + tf.constant([change], tf.int64)], 0)]

    rounds, run = [], strategy.run

    def counted(work):
        # It runs each time that the graph does.
        tf.py_function(lambda: rounds.append(work) or [], [], [])
        return run(work)

    monkeypatch.setattr(strategy, "experimental_local_results", of_two)
    monkeypatch.setattr(strategy, "run", counted)
    refusals.check(
        lambda: multi_worker.check_agreement(strategy, 3, "training"), part
    )
    # Another one reads the difference too before this one ends.
    assert len(rounds) == 2


def test_a_worker_takes_all_of_its_gpus(monkeypatch):
    """None is at hand: what TensorFlow's strategy would be told."""
    seen = []
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: ["one", "two"]
    )
    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", seen.append
    )
    monkeypatch.setenv("TF_CONFIG", CLUSTER)
    multi_worker.strategy()
    assert seen[0].num_accelerators() == {"GPU": 2}


def test_workers_compare_their_rows_labels_and_flags(
    tiny_config, folders, monkeypatch
):
    seen = []

    def note(strategy, step, training):
        seen.append(training)
        raise UserError("enough")

    monkeypatch.setattr(multi_worker, "check_agreement", note)
    engine = StrategyEngine(Hardware())
    engine.workers = 2
    rows = make_rows(CLASSIFICATION)
    labels = {"label_ids": 1 - rows.labels["label_ids"]}
    other = dataclasses.replace(rows, labels=labels)
    for number, (one, rate) in enumerate(
        ((rows, 0.1), (rows, 0.1), (other, 0.1), (rows, 0.2))
    ):
        job = make_job(tiny_config, folders(str(number)))
        call = functools.partial(train, engine, job, one, learning_rate=rate)
        refusals.check(call, "enough")
    assert seen[0] == seen[1] and len(set(seen)) == 3
    job = dataclasses.replace(job, about="class_weights")
    refusals.check(
        lambda: train(engine, job, rows, learning_rate=0.2), "enough"
    )
    assert seen[-1] not in seen[:-1]
