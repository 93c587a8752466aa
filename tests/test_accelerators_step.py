"""A run's step as functions: its values, its update, that it is the run's."""

import fcntl
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import compilers_program
import jax_steps
import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, read_json, run_command
from engine_jobs import (
    CLASSIFICATION,
    EITHER,
    LENGTH,
    TASKS,
    check_equal,
    make_job,
    make_rows,
    new_engine,
    train,
    trained_values,
)
from numpy.testing import assert_allclose, assert_array_equal

from adapter_bert.accelerators.step import Step
from adapter_bert.data.input_pipeline import make_batch
from adapter_bert.optimization import SLOTS, AdamWeightDecay, Schedule
from adapter_bert.tasks.task_model import narrow_variables

SCHEDULE = Schedule(1e-3, 10, 1)


@pytest.fixture
def step(tiny_config):
    """Makes a step of eight rows; arguments are those of `make_job`."""

    def make(schedule=SCHEDULE, cores=1, **options):
        job = make_job(tiny_config, "unused", length=LENGTH, **options)
        batch = make_batch(make_rows(CLASSIFICATION), np.arange(8), LENGTH)
        return Step(job, batch, cores, schedule)

    return make


@pytest.mark.parametrize("is_training", [True, False])
def test_shapes_are_those_of_the_values(step, is_training):
    one = step(SCHEDULE if is_training else None)
    job = one.job
    narrow = narrow_variables(job.table)
    job = replace(job, narrow=narrow, compute_dtype="bfloat16")
    one = replace(one, job=job)
    for values, shapes in zip(one.values(), one.shapes()):
        assert {n: (v.shape, v.dtype) for n, v in values.items()} == {
            n: (v.shape, v.dtype) for n, v in shapes.items()
        }
    frozen, trained, slots = one.values()
    names = {p.name for p in job.table.trained}
    assert set(trained) == (names if is_training else set())
    assert set(frozen) == {p.name for p in job.table.parameters} - set(trained)
    assert set(slots) == {f"{n}/{slot}" for n in trained for slot in SLOTS}
    assert narrow and {n for n, v in frozen.items() if v.dtype != "f4"} == (
        narrow
    )
    name = "bert/embeddings/word_embeddings"
    expected = job.initial_values[name]()
    assert_allclose(frozen[name], expected, atol=1e-3)


def test_more_rows_repeat_the_batch(step):
    one = step()
    more = one.with_rows(20)
    assert one.rows == 8 and more.rows == 20
    for name, value in more.batch.items():
        assert value.dtype == one.batch[name].dtype
        if name != "row":
            repeated = [*one.batch[name], *one.batch[name]]
            assert_array_equal(value[:16], repeated)
    # Places in the batch, which decide the bits of dropout.
    assert more.batch["row"].tolist() == list(range(20))


@pytest.mark.parametrize(
    "bias_correction, method",
    [
        (False, "lora(rank=2)"),
        (True, "lora(rank=2)"),
        # Of eight singular values four are set to zero.
        (False, "adalora(2, 1, tinit=0.0, tfinal=0.9)"),
    ],
)
def test_the_update_is_that_of_the_optimizer(step, bias_correction, method):
    """Of some steps with gradients of different norms, above one and below."""
    one = step(adam_bias_correction=bias_correction, method=method)
    _, trained, slots = one.values()
    variables = {n: tf.Variable(v) for n, v in trained.items()}
    kept = {n: tf.Variable(v) for n, v in slots.items()}
    optimizer = AdamWeightDecay(
        list(variables.items()),
        kept,
        one.schedule,
        one.job.table.recipe,
        bias_correction,
    )
    counter = tf.Variable(0, dtype=tf.int64)
    rng = np.random.default_rng(0)
    for number, scale in enumerate((1.0, 1e-4, 1e-2)):
        gradients = {
            n: tf.constant(rng.normal(0, scale, v.shape), tf.float32)
            for n, v in trained.items()
        }
        done = tf.constant(number, tf.int64)
        optimizer.train(tf.constant(0.0), list(gradients.values()), counter)
        trained, slots = one.update(trained, slots, gradients, done)
    assert set(trained) == set(variables) and set(slots) == set(kept)
    for name, expected in {**variables, **kept}.items():
        value = {**trained, **slots}[name]
        assert_allclose(value, expected, rtol=1e-5, atol=1e-9, err_msg=name)


@pytest.fixture(scope="session")
def jax_folder(tmp_path_factory, tiny_config):
    """The files that `jax_steps` writes, once for tests of both TensorFlows.

    Where these run at the same time, JAX_STEPS names a folder.
    """
    named = os.environ.get("JAX_STEPS")
    folder = Path(named) if named else tmp_path_factory.mktemp("jax_steps")
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # What is written last.
        if not (folder / jax_steps.ACCOUNTS).exists():
            run_command(
                compilers_program.PYTHON,
                ROOT / "tests" / "jax_steps.py",
                json.dumps(vars(tiny_config)),
                folder,
                env=compilers_program.environment(),
                timeout=compilers_program.LONG,
                check=True,
            )
    return folder


@pytest.fixture(scope="session")
def jax_results(jax_folder):
    """The arrays of each case."""
    results = {}
    for path in jax_folder.glob("*.npz"):
        with np.load(path) as saved:
            results[path.stem] = dict(saved)
    assert set(results) == set(jax_steps.CASES)
    return results


@compilers_program.needed
@EITHER
@pytest.mark.parametrize("case", jax_steps.CASES)
def test_the_step_is_that_of_both_engines(
    jax_results, tiny_config, tmp_path, case, name
):
    """Losses and trained values of ten steps; dropout on, bits alike."""
    results, of = jax_results[case], jax_steps.CASES[case]
    rows, job = make_rows(TASKS[of.task]), of.job(tiny_config, tmp_path)
    losses = train(
        new_engine(name),
        job,
        rows,
        steps=jax_steps.STEPS,
        learning_rate=jax_steps.LEARNING_RATE,
        batch_size=jax_steps.BATCH_SIZE,
    )
    expected = np.array(losses)[:, 1]
    assert len(set(expected)) == jax_steps.STEPS
    assert_allclose(results["losses"], expected, atol=1e-5)
    prefix = "values/"
    values = {
        name.removeprefix(prefix): value
        for name, value in results.items()
        if name.startswith(prefix)
    }
    saved = trained_values(job)
    check_equal(values, {n: saved[n] for n in values}, 1e-4)
    assert set(values) == {p.name for p in job.table.trained}


@compilers_program.needed
def test_frozen_weights_are_arguments_and_no_results(jax_results, tiny_config):
    program = str(jax_results["classification"]["program"])
    job = jax_steps.CASES["classification"].job(tiny_config, "unused")
    trained = ["x".join(map(str, [*p.shape, "f32"])) for p in job.table.trained]
    # The loss, three values for each trained variable, the steps done.
    [main] = re.findall(r"func.func public @main\(.*\) -> \((.*)\) {", program)
    results = re.findall(r"tensor<(\w+)>", main)
    assert sorted(results) == sorted(["f32", *trained * 3, "i64"])
    # No value is written into the program, but equal ones and a few bytes.
    written = re.findall(
        r"stablehlo\.constant dense<[\[\"].* : tensor<((?:\d+x)+)", program
    )
    sizes = [np.prod([int(n) for n in x.split("x")[:-1]]) for x in written]
    assert max(sizes, default=0) < tiny_config.hidden_size


@compilers_program.needed
def test_cores_add_up_the_loss_and_every_gradient(jax_results, tiny_config):
    """One sum over the cores for each; a single core has none."""
    job = jax_steps.CASES["two_cores"].job(tiny_config, "unused")
    program = str(jax_results["two_cores"]["program"])
    assert program.count("stablehlo.all_reduce") == 1 + len(job.table.trained)
    alone = str(jax_results["classification"]["program"])
    assert alone.count("stablehlo.all_reduce") == 0


@compilers_program.needed
@pytest.mark.parametrize(
    "kind, words",
    [
        ("Filtered", "it has no static shapes; choose another"),
        ("Printed", "XLA has no operation AsString; choose another"),
    ],
)
def test_what_xla_cannot_compute_is_refused(jax_folder, kind, words):
    line = (jax_folder / kind).read_text()
    assert line.startswith("the step of houlsby(size=4")
    assert words in line and len(line) < 200


@compilers_program.needed
def test_gpus_compile_as_tensorflow_does_and_loops_are_not_counted(jax_folder):
    accounts = read_json(jax_folder / jax_steps.ACCOUNTS)
    exact = {"xla_gpu_deterministic_ops": True}
    expected = {"v5e": (None, "the compiler"), "h100": (exact, "XLA")}
    assert len(accounts) == 2 * len(jax_steps.TEXTS)
    for device, (options, counter) in expected.items():
        for name in jax_steps.TEXTS:
            # JAX cannot read what is compiled for TPUs.
            is_seen = name == "loop" or (device == "h100" and name != "plain")
            counts = (None, None) if is_seen else (5.0, 7.0)
            assert accounts[f"{device}, {name}"] == [options, *counts, counter]
