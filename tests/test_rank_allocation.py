"""The choice of singular values: against peft, in both engines, when killed."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import as_tensors
from engine_jobs import (
    CLASSIFICATION,
    EITHER,
    check_equal,
    make_job,
    make_rows,
    new_engine,
    train,
    trained_values,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from adapter_bert.checkpoints.training_state import (
    check_training_checkpoint,
    save_tensors,
)
from adapter_bert.errors import UserError
from adapter_bert.methods.base import below
from adapter_bert.methods.rank_allocation import Allocation
from adapter_bert.methods.registry import parse

# Of the recorded training.
STEPS, LEARNING_RATE = 15, 0.5
RECORDED = Allocation(2, 3 / STEPS, 4 / STEPS, 2, 0.8, 0.7)


def budget_of_peft(step, first, last, count, kept):
    """Source: peft 0.21, `RankAllocator.budget_schedule`."""
    left = 1 - (step - first) / (last - first)
    return int((count - kept) * (left**3) + kept)


@pytest.mark.newer_stack
@settings(max_examples=200)
@given(
    st.integers(1, 4000),
    st.floats(0, 0.6),
    st.floats(0, 0.39),
    st.integers(1, 30),
    st.integers(1, 8),
    st.integers(1, 8),
)
def test_the_budget_falls_as_pefts(steps, tinit, tfinal, matrices, rank, more):
    allocation = Allocation(rank, tinit, tfinal, 1, 0.9, 0.9)
    first, last = allocation.phases(steps)
    assert 0 <= first < last <= max(2, steps)
    kept, count = rank * matrices, (rank + more) * matrices
    cuts = np.array(allocation.cuts(count, matrices, steps))
    assert len(cuts) == count - kept and (cuts > first).all()
    for step in {first + 1, (first + last) // 2 + 1, last - 1, last} - {first}:
        budget = budget_of_peft(step, first, last, count, kept)
        assert count - (cuts <= step).sum() == budget


def test_a_training_chooses_what_pefts_does(recording):
    """Fifteen steps of SGD with given gradients: importances, zeros, ranks."""
    golden = recording("lora")
    values = below("adalora/values/", golden)
    drawn = below("training/gradients/", golden)
    expected = below("training/values/", golden)
    averages = below("training/averages/", golden)
    for name in tuple(values):
        for slot in Allocation.slots:
            values[f"{name}/{slot}"] = np.zeros_like(values[name])
    ranks = []
    for step in range(1, STEPS + 1):
        gradients = {name: one[step - 1] for name, one in drawn.items()}
        for name, gradient in gradients.items():
            values[name] = values[name] - np.float32(LEARNING_RATE) * gradient
        chosen = RECORDED.choose(
            list(gradients),
            as_tensors(values),
            as_tensors(gradients),
            tf.constant(step, tf.int64),
            STEPS,
        )
        values.update((name, value.numpy()) for name, value in chosen.items())
        for name, of_steps in expected.items():
            wanted = of_steps[step - 1]
            assert_array_equal(values[name] == 0, wanted == 0)
            assert_allclose(values[name], wanted, atol=1e-6)
        ranks.append(sum((values[name] != 0).sum() for name in expected))
    assert ranks == [16, 16, 16, 13, 16, 9, 16, 8, 16, 8, 8, 8, 8, 8, 8]
    assert len({(values[name] != 0).sum() for name in expected}) > 1
    assert set(averages) == {n for n in values if n.endswith(Allocation.slots)}
    for name, wanted in averages.items():
        assert_allclose(values[name], wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.newer_stack
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_the_shortest_trainings_keep_their_ranks(steps):
    """What no gradient has measured is not chosen."""
    allocation = Allocation(1, 0.15, 0.5, 1, 0.85, 0.85)
    rng = np.random.default_rng(0)
    shapes = {"x/lora_a": (5, 3), "x/lora_e": (3,), "x/lora_b": (3, 4)}

    def draw():
        return {
            name: tf.constant(rng.normal(size=shape), tf.float32)
            for name, shape in shapes.items()
        }

    values = draw()
    for name, shape in shapes.items():
        values.update(
            (f"{name}/{slot}", tf.zeros(shape)) for slot in Allocation.slots
        )
    for step in range(1, steps + 1):
        chosen = allocation.choose(
            list(shapes),
            {**values, **draw()},
            draw(),
            tf.constant(step, tf.int64),
            steps,
        )
        values.update(chosen)
    assert np.count_nonzero(values["x/lora_e"]) == 1


@pytest.mark.gate
@EITHER
def test_a_killed_training_ends_in_the_same_bits(tiny_config, folders, name):
    """Killed while the budget falls; the adapter is LoRA of its ranks."""
    method = parse("adalora(init_rank=4, rank=2, tinit=0.2, tfinal=0.3)")
    engine = new_engine(name)
    whole, parts = (
        make_job(tiny_config, folders(folder), method)
        for folder in ("whole", "parts")
    )
    rows = make_rows(CLASSIFICATION)
    train(engine, whole, rows, steps=10)
    train(engine, parts, rows, steps=10, stop_at=4)
    stopped = trained_values(parts)
    train(engine, parts, rows, steps=10)
    values = trained_values(whole)
    check_equal(trained_values(parts), values)
    ranks = []
    for one in (stopped, values):
        singular = [v for n, v in one.items() if n.endswith("/lora_e")]
        assert len(singular) == 4
        ranks.append([np.count_nonzero(v) for v in singular])
    assert 8 < sum(ranks[0]) < 16
    assert sum(ranks[1]) == 8 and len(set(ranks[1])) > 1
    trained = {p.name: values[p.name] for p in whole.table.trained}
    kept, finished = method.finish(tiny_config, trained)
    assert kept.name == "lora"
    assert sorted(m.rank for m in kept.matrices(tiny_config).values()) == (
        sorted(rank for rank in ranks[1] if rank)
    )
    assert not any(n.endswith("/lora_e") for n in finished)


@pytest.mark.newer_stack
def test_orthonormal_factors_have_a_gradient(tiny_config):
    """Of zero, where a distance's root has none."""
    method = parse("adalora(init_rank=2, rank=1)")
    factors = {
        name: tf.Variable(tf.eye(*one.shape))
        for name, one in method.variables(tiny_config).items()
        if name.endswith(("/lora_a", "/lora_b"))
    }
    hooks = method.hooks(tiny_config, factors)
    with tf.GradientTape() as tape:
        penalty = hooks.penalty(None)
    assert penalty.numpy() < 1e-12
    for gradient in tape.gradient(penalty, list(factors.values())):
        assert_array_equal(gradient, 0)


@pytest.mark.newer_stack
def test_a_checkpoint_without_importances_is_of_another_training(
    tiny_config, tmp_path
):
    job = make_job(tiny_config, "unused", "adalora(init_rank=4, rank=2)")
    table = job.table
    values = {n: np.zeros(shape) for n, shape in table.saved.items()}
    values["global_step"] = np.int64(1)
    path = str(tmp_path / "model.ckpt-1")
    save_tensors(path, values)
    check_training_checkpoint(path, table.saved)
    # Importances of A, B and E of four matrices.
    more = 2 * 4 * 4 * (16 + 16 + 1)
    assert table.saved_count == 3 * table.trained_count + more
    for slot in Allocation.slots:
        left = {n: v for n, v in values.items() if not n.endswith(slot)}
        assert len(values) - len(left) == 12
        save_tensors(path, left)
        with pytest.raises(UserError, match=slot):
            check_training_checkpoint(path, table.saved)
