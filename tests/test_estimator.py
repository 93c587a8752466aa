"""The TPUEstimator engine: what its graphs hold, on CPU and mocked TPU."""

import contextlib
import dataclasses
import functools
import re
import unittest.mock

import numpy as np
import pytest
import tensorflow as tf

import checkpoints
import modeling
import optimization
import task_model
from adapter_modeling import parse
from engines import Hardware, Job, engine_class
from engines import estimator as estimator_module
from engines.estimator import EstimatorEngine
from errors import UserError
from hooks import Hooks
from input_pipeline import Features, TrainPlan
from tasks.text_classification import Layout, TextClassification

v1 = tf.compat.v1
TASK = TextClassification("tiny", ("a", "b"), Layout(0), Layout(0))
LENGTH = 12
CORES = 8
# Refused inside a TPU computation (tensorflow/python/tpu/tpu_replication.py).
REFUSED_OPS = {
    "AudioSummary",
    "AudioSummaryV2",
    "HistogramSummary",
    "ImageSummary",
    "MergeSummary",
    "Print",
    "ScalarSummary",
    "TensorSummary",
    "TensorSummaryV2",
    "Placeholder",
    "PyFunc",
    "EagerPyFunc",
}


class StopBeforeRunning(Exception):
    """The graph is built; no session is wanted."""


class CaptureGraph(v1.train.SessionRunHook):
    def begin(self):
        self.graph = v1.get_default_graph()
        raise StopBeforeRunning


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, LENGTH + 1, 40)
    return Features.from_rows(
        [(rng.integers(4, 30, n), [0] * n) for n in lengths],
        {"label_ids": rng.integers(0, 2, 40).astype(np.int32)},
    )


def make_job(config, folder, method="houlsby(size=4)", length=None, seed=5):
    method = parse(method)
    table = task_model.list_parameters(config, method, TASK.build_head)
    values = {
        p.name: functools.partial(
            modeling.initial_values, p.name, p.shape, p.initializer, seed
        )
        for p in table.parameters
    }
    return Job(
        lambda create: task_model.TaskModel(
            config, method, TASK.build_head, create
        ),
        table,
        values,
        str(folder),
        seed,
        length,
    )


def train(engine, job, rows, steps=3, save_steps=100, batch_size=8):
    progress = unittest.mock.Mock()
    engine.train(
        job,
        rows,
        TrainPlan(rows.lengths, batch_size, steps, 1),
        optimization.Schedule(1e-2, steps, 1),
        checkpoints.latest_step(job.output_dir)[1],
        batch_size,
        save_steps,
        progress,
    )
    return [call.args for call in progress.update.call_args_list]


@contextlib.contextmanager
def mocked_tpu(cores=CORES, hosts=1):
    """A TPU that TensorFlow believes in until it runs something on it."""
    from tensorflow.python.tpu import tpu_system_metadata

    metadata = tpu_system_metadata.TPUSystemMetadata(
        num_cores=cores,
        num_hosts=hosts,
        num_of_cores_per_host=cores // hosts,
        topology=None,
        devices=[],
    )
    with unittest.mock.patch.object(
        tpu_system_metadata,
        "_query_tpu_system_metadata",
        return_value=metadata,
    ):
        yield


def tpu_training_graph(config, folder, rows, length=LENGTH, reduce=None):
    """Builds the training graph for eight cores and returns it."""
    hardware = Hardware(use_tpu=True, tpu_name="local", num_tpu_cores=CORES)
    capture = CaptureGraph()
    patches = [
        unittest.mock.patch.object(
            estimator_module, "_ProgressHook", lambda progress: capture
        )
    ]
    if reduce is not None:
        patches.append(
            unittest.mock.patch.object(v1.tpu, "cross_replica_sum", reduce)
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(mocked_tpu())
        for patch in patches:
            stack.enter_context(patch)
        engine = EstimatorEngine(hardware)
        engine.check_devices()
        with pytest.raises(StopBeforeRunning):
            train(
                engine,
                make_job(config, folder, length=length),
                rows,
                batch_size=16,
            )
    return capture.graph


def all_operations(graph):
    """Operations of a graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += function.node_def
    return nodes


@pytest.fixture(scope="module")
def tpu_graph(tiny_config, tmp_path_factory):
    rng = np.random.default_rng(0)
    rows = Features.from_rows(
        [(rng.integers(4, 30, 9), [0] * 9) for _ in range(40)],
        {"label_ids": rng.integers(0, 2, 40).astype(np.int32)},
    )
    return tpu_training_graph(tiny_config, tmp_path_factory.mktemp("tpu"), rows)


def infeed_shapes(graph):
    return [
        [
            [d.size for d in shape.dim]
            for shape in node.attr["shapes"].list.shape
        ]
        for node in all_operations(graph)
        if node.op == "InfeedDequeueTuple"
    ]


def test_tpu_graph_has_one_infeed_with_static_shapes(tpu_graph):
    shapes = infeed_shapes(tpu_graph)
    assert len(shapes) == 1
    local = 16 // CORES
    assert sorted(shapes[0]) == [[local]] * 2 + [[local, LENGTH]] * 3


def test_tpu_graph_is_replicated_over_all_cores(tpu_graph):
    metadata = [
        node
        for node in all_operations(tpu_graph)
        if node.op == "TPUReplicateMetadata"
    ]
    assert {node.attr["num_replicas"].i for node in metadata} == {CORES}


def test_tpu_graph_reduces_every_trained_gradient_once(tpu_graph, tiny_config):
    job = make_job(tiny_config, "unused")
    sums = [n for n in all_operations(tpu_graph) if n.op == "CrossReplicaSum"]
    assert len(sums) == len(job.table.trained)


def test_tpu_graph_has_slots_of_trained_variables_only(tpu_graph, tiny_config):
    names = {n.name for n in tpu_graph.as_graph_def().node}
    slots = {
        re.sub("/adam_[mv]$", "", name)
        for name in names
        if re.search("/adam_[mv]$", name)
    }
    job = make_job(tiny_config, "unused")
    assert slots == {p.name for p in job.table.trained}


def inside_tpu(graph):
    """Types of the operations that the TPU itself would run: the loop body."""
    bodies = [
        {node.op for node in function.node_def}
        for function in graph.as_graph_def().library.function
    ]
    return set().union(*(ops for ops in bodies if "InfeedDequeueTuple" in ops))


def test_tpu_graph_has_no_refused_operation(tpu_graph):
    inside = inside_tpu(tpu_graph)
    assert {"MatMul", "CrossReplicaSum"} <= inside
    assert not inside & REFUSED_OPS
    kinds = {n.op for n in all_operations(tpu_graph)}
    assert "VarHandleOp" in kinds and "VariableV2" not in kinds


def test_dynamic_lengths_fail_on_a_tpu(tiny_config, tmp_path, rows):
    """A negative control: shapes must be static."""
    hardware = Hardware(use_tpu=True, tpu_name="local", num_tpu_cores=CORES)
    with mocked_tpu(), pytest.raises((ValueError, RuntimeError), match="shape"):
        engine = EstimatorEngine(hardware)
        engine.check_devices()
        train(
            engine,
            make_job(tiny_config, tmp_path, length=None),
            rows,
            batch_size=16,
        )


def test_a_missing_reduction_is_seen(tiny_config, tmp_path, rows):
    """A negative control: the count of reductions can fail."""
    graph = tpu_training_graph(
        tiny_config, tmp_path, rows, reduce=lambda gradient: gradient
    )
    assert not [n for n in all_operations(graph) if n.op == "CrossReplicaSum"]


def test_a_refused_operation_is_seen(tiny_config, tmp_path, rows):
    """A negative control: the search looks where the TPU computes."""
    convert = Hooks.parameter

    def convert_and_print(self, variable, context):
        return v1.Print(convert(self, variable, context), [])

    with unittest.mock.patch.object(Hooks, "parameter", convert_and_print):
        graph = tpu_training_graph(tiny_config, tmp_path, rows)
    assert "Print" in inside_tpu(graph) & REFUSED_OPS


def test_variables_without_resources_fail_on_a_tpu(tiny_config, tmp_path, rows):
    """A negative control: references cannot be used inside."""
    create = v1.Variable

    def create_reference(*args, **options):
        return create(*args, **{**options, "use_resource": False})

    with (
        unittest.mock.patch.object(v1, "Variable", create_reference),
        pytest.raises(TypeError, match="float32_ref"),
    ):
        tpu_training_graph(tiny_config, tmp_path, rows)


def test_tpu_prediction_graph_has_static_batches_for_each_core(
    tiny_config, tmp_path, rows
):
    """The graph is whole before a session looks for the TPU in vain."""
    job = make_job(tiny_config, tmp_path, length=LENGTH)
    graphs = []

    def build_model(create):
        graphs.append(v1.get_default_graph())
        return job.build_model(create)

    hardware = Hardware(use_tpu=True, tpu_name="local", num_tpu_cores=CORES)
    with mocked_tpu(), pytest.raises(tf.errors.InvalidArgumentError):
        engine = EstimatorEngine(hardware)
        engine.check_devices()
        engine.predict(
            dataclasses.replace(job, build_model=build_model), rows, 16, "eval"
        )
    graph = graphs[0]
    while hasattr(graph, "outer_graph"):
        graph = graph.outer_graph
    shapes = sorted(infeed_shapes(graph)[0])
    # `row`, then two of TPUEstimator's own: padding and end of the input.
    assert shapes == [[2], [2], [2, 1]] + [[2, LENGTH]] * 3


def test_a_loss_that_is_no_number_is_one_clear_line(
    tiny_config, tmp_path, rows
):
    job = make_job(tiny_config, tmp_path)
    values = dict(job.initial_values)
    values["output_bias"] = lambda: np.full(2, np.nan, np.float32)
    job = dataclasses.replace(job, initial_values=values)
    with pytest.raises(UserError, match="lower --learning_rate"):
        train(EstimatorEngine(Hardware()), job, rows)


def test_the_tpu_name_comes_from_the_flag_or_the_environment(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    with pytest.raises(UserError, match="--tpu_name"):
        EstimatorEngine(Hardware(use_tpu=True)).check_devices()
    with mocked_tpu():
        EstimatorEngine(
            Hardware(use_tpu=True, tpu_name="local")
        ).check_devices()
        monkeypatch.setenv("TPU_NAME", "local")
        EstimatorEngine(Hardware(use_tpu=True)).check_devices()
    with mocked_tpu(hosts=2), pytest.raises(UserError, match="has 2 hosts"):
        EstimatorEngine(Hardware(use_tpu=True)).check_devices()
    with mocked_tpu(cores=4), pytest.raises(UserError, match="has 4 cores"):
        EstimatorEngine(Hardware(use_tpu=True)).check_devices()


def test_no_tpu_is_one_clear_line(monkeypatch):
    with pytest.raises(UserError, match="'local'"):
        EstimatorEngine(
            Hardware(use_tpu=True, tpu_name="local")
        ).check_devices()
    with pytest.raises(UserError, match="run on the TPU VM itself"):
        EstimatorEngine(
            Hardware(use_tpu=True, master="grpc://127.0.0.1:9")
        ).check_devices()


def test_training_saves_trained_variables_slots_and_step_only(
    tiny_config, tmp_path, rows
):
    job = make_job(tiny_config, tmp_path)
    updates = train(EstimatorEngine(Hardware()), job, rows)
    assert [step for step, _ in updates] == [1, 2, 3]
    path, step = checkpoints.latest_step(str(tmp_path))
    assert step == 3
    trained = [p.name for p in job.table.trained]
    assert set(checkpoints.open_tensorflow(path).shapes) == {
        *trained,
        *(f"{name}/adam_{slot}" for name in trained for slot in "mv"),
        "global_step",
    }


@pytest.mark.parametrize(
    "method", ["houlsby(size=4)", "full", "top_layers(1)", "layernorm", "head"]
)
def test_frozen_variables_keep_every_bit(tiny_config, tmp_path, rows, method):
    """Read at the end of a real training, from its own session."""
    job = make_job(tiny_config, tmp_path, method)
    values = {}

    class ReadAll(v1.train.SessionRunHook):
        def end(self, session):
            for variable in v1.global_variables() + v1.local_variables():
                values[variable.op.name] = session.run(variable)

    reader = ReadAll()
    with unittest.mock.patch.object(
        estimator_module, "_ProgressHook", lambda progress: reader
    ):
        train(EstimatorEngine(Hardware()), job, rows)
    for p in job.table.parameters:
        same = np.array_equal(values[p.name], job.initial_values[p.name]())
        assert same == (not p.trained), p.name


def test_training_in_two_parts_equals_training_at_once(
    tiny_config, tmp_path, rows
):
    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    whole = make_job(tiny_config, tmp_path / "whole")
    losses = train(EstimatorEngine(Hardware()), whole, rows, steps=6)
    parts = make_job(tiny_config, tmp_path / "parts")

    class Stop(Exception):
        pass

    progress = unittest.mock.Mock()

    def stop_after_four(step, loss):
        if step == 4:
            raise Stop

    progress.update.side_effect = stop_after_four
    with (
        unittest.mock.patch.object(
            unittest.mock, "Mock", return_value=progress
        ),
        pytest.raises(Stop),
    ):
        train(EstimatorEngine(Hardware()), parts, rows, steps=6, save_steps=2)
    assert checkpoints.latest_step(parts.output_dir)[1] == 2
    resumed = train(EstimatorEngine(Hardware()), parts, rows, steps=6)
    assert resumed == losses[2:]
    for name in (p.name for p in whole.table.trained):
        read = [
            checkpoints.open_tensorflow(
                checkpoints.latest_step(job.output_dir)[0]
            ).read(name)
            for job in (whole, parts)
        ]
        np.testing.assert_array_equal(*read)


def test_predictions_come_in_row_order_for_every_batch_size(
    tiny_config, tmp_path, rows
):
    job = make_job(tiny_config, tmp_path)
    engine = EstimatorEngine(Hardware())
    together = engine.predict(job, rows, 64, "eval")["logits"]
    alone = engine.predict(job, rows, 7, "eval")["logits"]
    assert together.shape == (40, 2)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert len(np.unique(together[:, 0])) == 40


def engine_step(job, compile_step):
    """One step of the engine's own graph: the loss and what it trained."""
    batch = {
        "input_ids": np.arange(96, dtype=np.int32).reshape(8, 12) % 30,
        "segment_ids": np.zeros([8, 12], np.int32),
        "input_mask": np.ones([8, 12], np.int32),
        "row": np.arange(8, dtype=np.int32),
        "label_ids": np.array([0, 1] * 4, np.int32),
    }
    schedule = optimization.Schedule(1e-3, 10, 0)
    model_fn = EstimatorEngine(Hardware())._model_fn(job, schedule)

    def step():
        features = {name: tf.constant(value) for name, value in batch.items()}
        spec = model_fn(features, None, tf.estimator.ModeKeys.TRAIN, {})
        return [spec.loss, spec.train_op]

    with tf.Graph().as_default(), v1.Session() as session:
        if compile_step:
            # Outputs of a compiled computation wait for its operations.
            loss = tf.xla.experimental.compile(step)[0]
        else:
            loss, train_op = step()
            with tf.control_dependencies([train_op]):
                loss = tf.identity(loss)
        session.run(
            [
                v1.global_variables_initializer(),
                v1.local_variables_initializer(),
            ]
        )
        value = session.run(loss)
        trained = {p.name for p in job.table.trained}
        return value, {
            v.op.name: session.run(v)
            for v in v1.global_variables()
            if v.op.name in trained
        }


def test_the_training_step_compiled_by_xla_equals_the_plain_one(tiny_config):
    """Dropout on; the very graph that the engine builds."""
    job = make_job(tiny_config, "unused", length=LENGTH)
    plain_loss, plain = engine_step(job, compile_step=False)
    xla_loss, xla = engine_step(job, compile_step=True)
    assert abs(plain_loss - xla_loss) < 1e-5
    assert len(plain) == len(job.table.trained)
    for name, value in plain.items():
        np.testing.assert_allclose(xla[name], value, atol=1e-5, err_msg=name)
        assert (value != job.initial_values[name]()).any()


def test_an_unknown_engine_is_refused():
    with pytest.raises(UserError, match="expected auto or one of estimator"):
        engine_class("keras")
