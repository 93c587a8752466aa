"""Lanes: rows that are computed at the same time give what one group gives."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from engine_jobs import (
    CLASSIFICATION,
    ESTIMATOR,
    LENGTH,
    MULTI,
    SQUAD,
    TAGGING,
    TASKS,
    VECTORS,
    check_equal,
    make_job,
    make_rows,
    new_engine,
    predict,
    train,
    train_alike,
    trained_values,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from adapter_bert.bert.hooks import Hooks, dropout
from adapter_bert.checkpoints import training_state
from adapter_bert.methods.registry import parse
from adapter_bert.methods.sparse import GateHooks, Gates
from adapter_bert.tasks import task_model
from adapter_bert.training import training_step
from adapter_bert.training.training_step import Job, Prediction

# The engines share what divides a batch: each has some of the tasks.
SHARED_OUT = [*zip(TASKS.values(), ("estimator", "strategy") * 3)]
# A job of nothing but its division.
BARE = Job(None, None, {}, "", 5, None)
FULL_ROWS = make_rows(CLASSIFICATION, [LENGTH] * 40)


def case(*values):
    """One for the engine that stands last, where it runs here."""
    marks = ESTIMATOR if values[-1] == "estimator" else ()
    return pytest.param(*values, marks=marks)


def name_of(value):
    """A task's name, or another value as text."""
    return getattr(value, "name", str(value))


@pytest.fixture
def make_engine(engine):
    """Makes each engine in turn."""
    return lambda: new_engine(engine)


def in_lanes(
    lanes,
    config,
    folder,
    task=CLASSIFICATION,
    method="houlsby(size=4)",
    layers=1,
    **changes,
):
    """A job with as many lanes, of a BERT that is soon built."""
    config = replace(config, num_hidden_layers=layers)
    return replace(
        make_job(config, folder, method, task=task), lanes=lanes, **changes
    )


@pytest.mark.parametrize(
    "changes, shares",
    [
        ({}, True),
        ({"share_layers": False}, False),
        ({"use_xla": True}, False),
        ({"observes": True}, False),
    ],
)
def test_layers_are_shared_in_prediction_where_nothing_speaks_against_it(
    changes, shares
):
    seen = []

    def model(lane, context):
        seen.append(context.share_layers)
        return {"ids": lane["input_ids"]}

    ids = tf.reshape(tf.range(12), [4, 3])
    outputs = training_step.predict(
        Prediction(**changes), model, {"input_ids": ids, "input_mask": ids}
    )
    assert seen == [shares]
    assert_array_equal(outputs["ids"], ids)


# Methods that draw for a whole batch, or add to its loss.
PENALTY = 1e-4
DRAWING = {
    "gates": Gates(structured=False, penalty=PENALTY, gate_rate=1.0),
    "adapterdrop": parse("adapterdrop(first=0, size=4, robust=True)"),
}


@pytest.mark.gate
@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "name, changes",
    [
        ("gates", {"lanes": 3}),
        ("adapterdrop", {"lanes": 2, "parts": 2}),
        ("adapterdrop", {"lanes": 1, "use_xla": True}),
    ],
    ids=["gates", "parts", "xla"],
)
def test_what_is_drawn_for_a_batch_is_the_same_in_all_of_its_rows(
    steady_config, steady, folders, name, changes
):
    jobs = [
        in_lanes(
            config=steady_config,
            folder=folders(str(number)),
            method=DRAWING[name],
            layers=1 if name == "gates" else 2,
            length=LENGTH,
            **more,
        )
        for number, more in enumerate(({"lanes": 1}, changes))
    ]
    train_alike(jobs, FULL_ROWS, 1e-4)


@pytest.mark.gate
@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "method, for_accelerator",
    [("houlsby(size=4)", False), (DRAWING["adapterdrop"], True)],
    ids=["houlsby", "adapterdrop"],
)
def test_layers_that_are_computed_again_train_the_same(
    tiny_config, folders, method, for_accelerator
):
    """Dropout on: both passes draw the same masks."""
    jobs = [
        in_lanes(
            1,
            tiny_config,
            folders(str(again)),
            method=method,
            layers=2,
            length=LENGTH,
            use_xla=True,
            for_accelerator=for_accelerator,
            recompute_layers=again,
        )
        for again in (False, True)
    ]
    losses = [train(new_engine(), job, FULL_ROWS, steps=3) for job in jobs]
    assert_allclose(*losses, rtol=1e-5)
    check_gradients_alike(*map(trained_values, jobs), 1e-4)


def check_gradients_alike(values, others, tolerance):
    """Updates of the youngest averages are their signs."""
    for key, value in values.items():
        if key.endswith("/adam_m"):
            atol = tolerance * np.abs(value).max() + 1e-9
            assert_allclose(others[key], value, 0, atol, key)


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_step_for_an_accelerator_trains_what_others_do(
    steady_config, steady, folders
):
    """Without dropout, whose masks are others."""
    compiled = {"use_xla": True, "length": LENGTH, "for_accelerator": True}
    jobs = [
        in_lanes(1, steady_config, folders(str(len(changes))), **changes)
        for changes in ({}, compiled)
    ]
    train_alike(jobs, FULL_ROWS, 1e-4)


@pytest.mark.gate
@pytest.mark.newer_stack
def test_gates_that_are_drawn_once_train_what_those_of_every_lane_train(
    tiny_config, folders, monkeypatch
):
    """Dropout on; gradients of all lanes and parts reach the gates."""
    losses, values, draws = [], [], []
    draw = GateHooks._open

    def note(*arguments):
        draws[-1] += 1
        return draw(*arguments)

    monkeypatch.setattr(GateHooks, "_open", note)
    for prepare in (GateHooks.prepare, Hooks.prepare):
        monkeypatch.setattr(GateHooks, "prepare", prepare)
        job = in_lanes(
            3,
            tiny_config,
            folders(str(len(draws))),
            method=Gates(penalty=PENALTY, gate_rate=10.0),
            parts=2,
            length=LENGTH,
        )
        draws.append(0)
        losses.append(train(new_engine(), job, FULL_ROWS, steps=2))
        values.append(trained_values(job))
    assert draws[0] == sum(
        p.name.endswith(("/gate", "/group")) for p in job.table.trained
    )
    assert draws[1] >= 2 * draws[0]
    assert_allclose(*losses, rtol=1e-6)
    for key, value in values[0].items():
        if key.endswith("/adam_m"):
            assert_allclose(values[1][key], value, 0, 1e-6, key)


def test_a_penalty_is_added_once_to_the_loss_of_a_batch():
    class Adds(Hooks):
        def penalty(self, context):
            return tf.constant(0.5)

    losses = []
    for hooks in (Hooks(), Adds()):
        model = Rows(12)
        model.hooks = hooks
        job = replace(BARE, lanes=3, parts=2)
        losses.append(one_step(model, job, 12, 0)[0].numpy())
    assert losses[1] - losses[0] == pytest.approx(0.5, abs=1e-3)


def test_a_variable_that_is_read_twice_is_a_defect():
    """Its gradient of the second place would be lost."""

    class Twice(Hooks):
        def prepare(self, context):
            return {"doubled": 2.0 * model.weights}

        def penalty(self, context):
            return tf.reduce_sum(context.handed_on["doubled"])

    model = Rows(4)
    model.hooks = Twice()
    with pytest.raises(ValueError, match="weights is read outside"):
        one_step(model, BARE, 4, 0)


@pytest.mark.gate
@pytest.mark.parametrize(
    "task, parts, engine",
    [
        *(case(task, 1, engine) for task, engine in SHARED_OUT),
        # Parts of four rows, and of two, which fill two lanes of the three.
        case(MULTI, 2, "strategy"),
        case(TAGGING, 4, "estimator"),
        case(VECTORS, 2, "strategy"),
    ],
    ids=name_of,
)
def test_lanes_train_what_one_trains(
    steady_config, steady, folders, make_engine, task, parts
):
    """Of eight rows; three lanes have two or three each."""
    jobs = [
        in_lanes(lanes, steady_config, folders(str(lanes)), task, parts=of)
        for lanes, of in ((1, 1), (3, parts))
    ]
    # The loss of questions does not depend on the head's bias, whose update is
    # what rounding left of its gradient.
    train_alike(jobs, make_rows(task), 1e-5, make_engine, learning_rate=1e-3)


@pytest.mark.gate
def test_a_graph_is_the_same_each_time(steady_config, folders, make_engine):
    """TensorFlow may not order the terms of a sum anew, as it would."""
    rows = make_rows(CLASSIFICATION)
    jobs = [
        make_job(steady_config, folders(n), compute_dtype="bfloat16")
        for n in ("first", "second", "third")
    ]
    for job in jobs:
        train(make_engine(), job, rows, steps=2)
    first, *others = map(trained_values, jobs)
    for other in others:
        check_equal(other, first)


@pytest.mark.gate
@pytest.mark.parametrize(
    "text, engine",
    [
        case("top_layers(k=1)", "estimator"),
        case("houlsby(size=4)", "strategy"),
    ],
)
def test_frozen_kernels_in_bfloat16_change_no_bit(
    steady_config, folders, make_engine, text
):
    """They are rounded once instead of in each step."""
    rows = make_rows(CLASSIFICATION)
    plain = make_job(
        steady_config, folders("plain"), text, lanes=2, compute_dtype="bfloat16"
    )
    names = task_model.narrow_variables(plain.table)
    assert "bert/encoder/layer_0/intermediate/dense/kernel" in names
    assert not names & {p.name for p in plain.table.trained}
    narrow = replace(plain, output_dir=str(folders("narrow")), narrow=names)
    jobs = plain, narrow
    train_alike(jobs, rows, 0, make_engine)
    assert_array_equal(
        *(predict(make_engine(), job, rows, 13)["logits"] for job in jobs)
    )


def test_what_changes_kernels_reads_them_whole(tiny_config):
    for text in ("diff_pruning", "lt_sft", "stack({'a': bitfit}, pfeiffer)"):
        method = parse(text)
        table = task_model.list_parameters(
            tiny_config, method, CLASSIFICATION.build_head
        )
        assert not task_model.narrow_variables(table)


@pytest.mark.gate
@pytest.mark.parametrize(
    "changes, tolerance, engine",
    [
        case({"compute_dtype": "bfloat16"}, 3e-2, "estimator"),
        case({"use_xla": True, "length": LENGTH}, 1e-4, "strategy"),
    ],
    ids=["bfloat16", "xla"],
)
def test_lanes_of_other_ways_to_compute_are_close(
    steady_config, steady, folders, make_engine, changes, tolerance
):
    rows = make_rows(CLASSIFICATION)
    jobs = (
        in_lanes(1, steady_config, folders("plain")),
        in_lanes(3, steady_config, folders("other"), **changes),
    )
    losses = [train(make_engine(), job, rows) for job in jobs]
    assert_allclose(*losses, atol=tolerance)
    # The last of these batches has one row.
    plain, other = (
        predict(make_engine(), job, rows, 13)["logits"] for job in jobs
    )
    assert other.dtype == np.float32 and (plain != other).any()
    assert_allclose(plain, other, atol=5 * tolerance)
    saved = trained_values(jobs[1])
    for p in jobs[1].table.trained:
        assert saved[p.name].dtype == np.float32


@pytest.mark.parametrize(
    "task, engine", [case(*one) for one in SHARED_OUT], ids=name_of
)
@pytest.mark.parametrize("length", [None, LENGTH])
def test_lanes_predict_what_one_predicts_in_row_order(
    tiny_config, folders, make_engine, task, length
):
    """The last batch has one row, so that two of the lanes have none."""
    rows, folder = make_rows(task), folders("run")
    alone = in_lanes(1, tiny_config, folder, task)
    expected = predict(make_engine(), alone, rows, 40)
    job = in_lanes(3, tiny_config, folder, task, length=length)
    outputs = predict(make_engine(), job, rows, 13)
    assert set(outputs) == set(expected)
    for key, values in expected.items():
        assert len(values) == len(rows.unlabelled())
        shown = np.full(values.shape, True)
        if task is SQUAD and values.shape[1] == 5:
            # Not what fills up the five best of a shorter row.
            shown = expected[f"{key.split('_')[0]}_logits"] > -1e6
        elif task is TAGGING:
            # Not what is computed of padding.
            shown = np.arange(LENGTH) < rows.lengths[:, np.newaxis]
        assert_allclose(
            outputs[key][shown], values[shown], atol=1e-5, err_msg=key
        )


@pytest.mark.gate
def test_dropout_in_lanes_is_reproducible_and_resumed(
    tiny_config, folders, make_engine
):
    """Every bit, of a run that is done again and interrupted."""
    rows = make_rows(CLASSIFICATION)
    whole, parts = (
        in_lanes(2, tiny_config, folders(name)) for name in ("whole", "parts")
    )
    losses = train(make_engine(), whole, rows, steps=6)
    first = train(make_engine(), parts, rows, steps=6, stop_at=4)
    assert first == losses[:4]
    assert training_state.latest_step(parts.output_dir)[1] == 4
    assert train(make_engine(), parts, rows, steps=6) == losses[4:]
    check_equal(trained_values(parts), trained_values(whole))


class Rows:
    """A model whose gradient shows what dropout kept of each row."""

    def __init__(self, rows):
        self.head = self.bert = self
        self.berts = [self]
        self.hooks = Hooks()
        self.weights = tf.Variable(tf.ones([rows, 200]))

    def __call__(self, features, context):
        weights = tf.gather(self.weights, features["row"])
        return dropout(weights, 0.5, "site", context)

    def loss(self, predictions, features):
        return tf.reduce_sum(predictions, axis=1)


def one_step(model, job, rows, step):
    """The loss and the gradient of the model's weights."""
    ones = tf.ones([rows, 4], tf.int32)
    features = {"input_ids": ones, "input_mask": ones, "row": tf.range(rows)}

    @tf.function(autograph=False)
    def compute():
        return training_step.loss_and_gradients(
            job,
            model,
            [("weights", model.weights)],
            features,
            tf.constant(step, tf.int64),
            rows,
        )

    return compute()


def kept(lanes, parts, step=0, rows=12):
    """Bool [rows, 200], what dropout kept."""
    job = replace(BARE, parts=parts, lanes=lanes)
    loss, (gradient,) = one_step(Rows(rows), job, rows, step)
    assert abs(loss - 200) < 20
    assert_allclose(np.unique(gradient), [0, 2 / rows], rtol=1e-6)
    return gradient.numpy() > 0


@pytest.mark.newer_stack
@pytest.mark.parametrize("lanes, parts", [(1, 1), (2, 1), (5, 1), (2, 3)])
def test_every_row_has_its_own_dropout_in_every_lane_and_part(lanes, parts):
    """About half of two rows' bits differ, and of a row's in two steps."""
    bits = [*kept(lanes, parts), *kept(lanes, parts, step=1)]
    for number, one in enumerate(bits):
        for other in bits[:number]:
            assert 60 < (one != other).sum() < 140


@pytest.mark.parametrize("parts", [1, 3])
def test_so_many_rows_are_computed_at_once(parts):
    """Those of a part, which is what parts save memory by."""
    seen = set()

    class Noting(Rows):
        def __call__(self, features, context):
            seen.add(features["row"].shape[0])
            return super().__call__(features, context)

    job = replace(BARE, parts=parts)
    one_step(Noting(12), job, 12, 0)
    assert seen == {12 // parts}


def test_lanes_call_one_function_that_is_prepared_once():
    job = replace(BARE, lanes=3)
    model = Rows(12)
    step = tf.function(lambda: one_step(model, job, 12, 0), autograph=False)
    library = step.get_concrete_function().graph.as_graph_def().library
    # TensorFlow puts a copy of another kind at the place of each call.
    kept = {f.signature.name for f in library.function if f.attr["_noinline"].b}
    called = [
        node.attr["f"].func.name
        for function in library.function
        for node in function.node_def
        if node.attr["f"].func.name in kept
    ]
    assert len(called) == 3 and len(set(called)) == 1


@settings(max_examples=50)
@given(rows=st.integers(1, 20), lanes=st.integers(1, 9))
def test_rows_are_divided_into_nearly_equal_groups_in_order(rows, lanes):
    ids = tf.reshape(tf.range(rows * 4), [rows, 4])
    groups = training_step._divide({"input_ids": ids, "row": ids[:, 0]}, lanes)
    for name, whole in (("input_ids", ids), ("row", ids[:, 0])):
        parts = [group[name] for group in groups]
        sizes = list(map(len, parts))
        assert len(parts) == min(rows, lanes)
        assert max(sizes) - min(sizes) <= 1
        assert_array_equal(tf.concat(parts, axis=0), whole)


def test_accelerators_are_tpus_and_gpus(monkeypatch):
    assert not new_engine().has_accelerators
    assert new_engine(use_tpu=True).has_accelerators
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    assert new_engine().has_accelerators
