"""The TPUEstimator engine's graphs for a TPU, on mocked cores."""

import contextlib
import itertools
import re
import unittest.mock
from dataclasses import replace

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import module_fixture
from engine_jobs import (
    CLASSIFICATION,
    LENGTH,
    TASKS,
    make_job,
    make_rows,
    predict,
    train,
)
from test_methods import METHOD_TEXTS

from adapter_bert.errors import UserError
from adapter_bert.methods.sparse import Gates
from adapter_bert.training.frozen_outputs import KnownOutputs
from adapter_bert.training.settings import Hardware

if not hasattr(tf, "estimator"):
    pytest.skip(
        f"TensorFlow {tf.__version__} has no TPUEstimator",
        allow_module_level=True,
    )
from adapter_bert.training import estimator as estimator_module  # noqa: E402
from adapter_bert.training.estimator import EstimatorEngine  # noqa: E402

v1 = tf.compat.v1
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
        tpu_system_metadata, "_query_tpu_system_metadata", return_value=metadata
    ):
        yield


@contextlib.contextmanager
def tpu_engine():
    """An engine of a TPU of eight cores."""
    hardware = Hardware(use_tpu=True, tpu_name="local", num_tpu_cores=CORES)
    with mocked_tpu():
        engine = EstimatorEngine(hardware)
        engine.check_devices()
        yield engine


def tpu_training_graph(
    config, folder, rows=None, recompute_layers=False, **job
):
    """Builds the training graph for eight cores and returns it."""
    capture = CaptureGraph()
    hook = unittest.mock.patch.object(
        estimator_module, "TrainingHook", lambda *_: capture
    )
    with tpu_engine() as engine, hook:
        job = make_job(config, folder, length=LENGTH, share_layers=False, **job)
        job = replace(
            job, for_accelerator=True, recompute_layers=recompute_layers
        )
        rows = rows or make_rows(CLASSIFICATION, [9] * 40)
        with pytest.raises(StopBeforeRunning):
            train(engine, job, rows, batch_size=16)
    return capture.graph


def all_operations(graph, kind):
    """Operations of a kind, in a graph and the functions that it calls."""
    definition = graph.as_graph_def()
    functions = (f.node_def for f in definition.library.function)
    nodes = itertools.chain(definition.node, *functions)
    return [node for node in nodes if node.op == kind]


# Those that train some of BERT's own variables compute what BERT does.
PLAIN = {"bitfit", "full", "head", "ia3", "layernorm", "stack", "top_layers"}
ONE_TEXT_A_METHOD = {
    name: text
    for text in reversed(METHOD_TEXTS)
    if (name := text.split("(")[0]) not in PLAIN
}.values()


@pytest.fixture(scope="module", params=TASKS)
def task(request):
    return TASKS[request.param]


@module_fixture
def tpu_graph(task, tiny_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tpu")
    rows = make_rows(task, [9] * 40)
    return tpu_training_graph(tiny_config, folder, rows, task=task)


@pytest.mark.gate
def test_every_method_builds_a_tpu_graph(tiny_config, folders):
    """Methods that train other variables share a graph, which takes long."""
    unions = []
    for text in ONE_TEXT_A_METHOD:
        for union in unions:
            method = f"union({', '.join([*union, text])})"
            with contextlib.suppress(UserError):
                make_job(tiny_config, "unused", method)
                union.append(text)
                break
        else:
            unions.append([text])
    methods = [
        f"union({', '.join(union)})" if union[1:] else union[0]
        for union in unions
    ]
    for number, method in enumerate([*methods, Gates()]):
        # Of whose layers the first has no adapter.
        layers = 1 + ("adapterdrop" in str(method))
        config = replace(tiny_config, num_hidden_layers=layers)
        folder = folders(str(number))
        check_inside(tpu_training_graph(config, folder, method=method))


@pytest.mark.gate
@pytest.mark.parametrize(
    "method, more",
    [
        ("houlsby(size=4)", {}),
        # An MPNet's scores by distance are trained, through all layers.
        ("full", {"first_position": 2, "relative_attention_num_buckets": 32}),
    ],
)
def test_a_tpu_computes_layers_again(tiny_config, folders, method, more):
    config = replace(tiny_config, **more)
    plain, again = (
        tpu_training_graph(
            config, folders(str(again)), method=method, recompute_layers=again
        )
        for again in (False, True)
    )
    for graph in (plain, again):
        check_inside(graph, "XlaOptimizationBarrier")
    counts = [len(all_operations(graph, "MatMul")) for graph in (plain, again)]
    assert counts[0] < counts[1]


def infeed_shapes(graph):
    return [
        [
            [d.size for d in shape.dim]
            for shape in node.attr["shapes"].list.shape
        ]
        for node in all_operations(graph, "InfeedDequeueTuple")
    ]


def test_tpu_graph_has_one_infeed_with_static_shapes(tpu_graph, task):
    shapes = infeed_shapes(tpu_graph)
    assert len(shapes) == 1
    local = 16 // CORES
    # `row` and the labels; tokens, mask and segments; labels of tokens; labels
    # of several tasks.
    features = make_rows(task)
    of_tokens = features.token_labels is not None
    per_row = [*features.labels.values(), *features.columns.values()]
    rows = [[local]] * (1 + of_tokens)
    rows += [[local, *values.shape[1:]] for values in per_row]
    tokens = [[local, *features.row_shape, LENGTH]] * (3 + of_tokens)
    added = [[local, *shape] for shape, _ in features.added(LENGTH).values()]
    assert sorted(shapes[0]) == sorted(rows + tokens + added)


def test_a_tpu_is_fed_known_outputs_as_bfloat16(tiny_config, tmp_path):
    """Its infeed does not know the type of their bits."""
    rows = make_rows(CLASSIFICATION, [9] * 40)
    bits = np.zeros((len(rows.tokens), tiny_config.hidden_size), np.uint16)
    cached = KnownOutputs(rows, bits, first_token=False)
    graph = tpu_training_graph(
        tiny_config, tmp_path, cached, method="head", compute_dtype="bfloat16"
    )
    [infeed] = all_operations(graph, "InfeedDequeueTuple")
    types = infeed.attr["dtypes"].list.type
    assert tf.bfloat16.as_datatype_enum in types
    assert tf.uint16.as_datatype_enum not in types


def inside_tpu(graph):
    """Types of the operations that the TPU itself would run: the loop body."""
    bodies = [
        {node.op for node in function.node_def}
        for function in graph.as_graph_def().library.function
    ]
    return set().union(*(ops for ops in bodies if "InfeedDequeueTuple" in ops))


def check_inside(graph, *more):
    inside = inside_tpu(graph)
    assert {"MatMul", "CrossReplicaSum", *more} <= inside
    assert not inside & REFUSED_OPS


def test_tpu_graph_trains_what_it_should_on_all_cores(
    tpu_graph, tiny_config, task
):
    """One sum of each trained gradient; slots of nothing else."""
    check_inside(tpu_graph)
    assert all_operations(tpu_graph, "VarHandleOp")
    assert not all_operations(tpu_graph, "VariableV2")
    metadata = all_operations(tpu_graph, "TPUReplicateMetadata")
    assert {node.attr["num_replicas"].i for node in metadata} == {CORES}
    trained = {
        p.name for p in make_job(tiny_config, "", task=task).table.trained
    }
    # The loss as well.
    sums = all_operations(tpu_graph, "CrossReplicaSum")
    assert len(sums) == len(trained) + 1
    slots = re.compile("(.*)/adam_[mv]")
    names = (slots.fullmatch(n.name) for n in tpu_graph.as_graph_def().node)
    assert trained == {match[1] for match in names if match}


def test_tpu_prediction_graph_has_static_batches_for_each_core(
    tiny_config, tmp_path, task
):
    """The graph is whole before a session looks for the TPU in vain."""
    job = make_job(
        tiny_config, tmp_path, length=LENGTH, task=task, share_layers=False
    )
    graphs, build = [], job.build_model

    def build_model(create):
        graphs.append(v1.get_default_graph())
        return build(create)

    job = replace(job, build_model=build_model)
    refused = pytest.raises(tf.errors.InvalidArgumentError)
    with tpu_engine() as engine, refused:
        predict(engine, job, make_rows(task), 16)
    graph = graphs[0]
    while hasattr(graph, "outer_graph"):
        graph = graph.outer_graph
    shapes = sorted(infeed_shapes(graph)[0])
    # `row` and columns, then two of TPUEstimator's: padding, the input's end.
    rows = [[2]] * (2 + len(make_rows(task).columns))
    assert shapes == [*rows, [2, 1]] + [[2, LENGTH]] * 3


def check_devices(**hardware):
    EstimatorEngine(Hardware(use_tpu=True, **hardware)).check_devices()


def test_the_tpu_name_comes_from_the_flag_or_the_environment(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    refusals.check(check_devices, "--tpu_name")
    with mocked_tpu():
        check_devices(tpu_name="local")
        monkeypatch.setenv("TPU_NAME", "local")
        check_devices()
    for part, wrong in (("2 hosts", {"hosts": 2}), ("4 cores", {"cores": 4})):
        with mocked_tpu(**wrong):
            refusals.check(check_devices, f"has {part}")
