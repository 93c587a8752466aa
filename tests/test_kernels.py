"""Operations of graphs, compared with kernels that were recorded for GPUs."""

import pytest
import tensorflow as tf

from adapter_bert import files
from lab.devices import graphs, kernels, runs
from lab.devices.kernels import Operation
from lab.devices.runs import DTYPES, STEPS, Run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    runs.make(folder)
    return folder


@pytest.fixture(scope="module")
def recorded():
    """Kinds of kernels by TensorFlow, engine and operation."""
    return files.read_json(str(kernels.RESULTS), "kernels")


def operations_of(function, *arguments):
    traced = tf.function(function, autograph=False)
    graph = traced.get_concrete_function(*arguments).graph.as_graph_def()
    return {str(one) for one in kernels.operations(graph)}


def test_operations_of_called_functions_count():
    called = tf.function(tf.erf if hasattr(tf, "erf") else tf.math.erf)

    def compute(x):
        with tf.device("CPU:0"):
            x = tf.cast(tf.math.tan(x), tf.float16)
        looped = tf.while_loop(
            lambda y: tf.reduce_all(y < 3), lambda y: [tf.exp(y)], [x]
        )
        return called(looped[0])

    found = operations_of(compute, tf.ones([2]))
    assert {"Erf T=float16", "Exp T=float16", "Less T=float16"} <= found
    assert not {"Tan T=float32", "Cast DstT=float16 SrcT=float32"} & found


def test_kernels_are_found_by_types():
    def kind(name, **types):
        pairs = tuple((key, (value,)) for key, value in types.items())
        return kernels.kernel_of(Operation(name, pairs), "CPU")

    assert kind("MatMul", T="float32") == kernels.ON_GPU
    assert kind("MatMul", T="string") == kernels.ON_HOST
    # Kernels of the device go before those of any.
    assert kind("Shape", T="int32", out_type="int32") == kernels.ON_GPU
    assert kind("Assert", T="string") == kernels.IN_HOST_MEMORY
    assert kind("NoOp") == kernels.ON_GPU


def test_what_runs_on_the_host_is_told():
    record = {
        "strategy": {
            "MatMul T=float16": kernels.ON_HOST,
            "MatMul T=float32": kernels.ON_GPU,
            "Const dtype=string": kernels.ON_HOST,
            "Split T=int32": kernels.ON_HOST,
            "SparseSoftmaxCrossEntropyWithLogits T=float32": kernels.ON_GPU,
        },
        # Answers are computed without deterministic operations.
        "export": {"TensorScatterUpdate T=float32": kernels.ON_GPU},
    }
    [first, second] = kernels.wrong_in(record)
    assert "MatMul T=float16 runs on the host" in first
    assert "SparseSoftmaxCrossEntropyWithLogits" in second


def test_nothing_recorded_runs_on_the_host_unexpectedly(recorded):
    for record in recorded.values():
        assert not kernels.wrong_in(record)
    engines = {name for record in recorded.values() for name in record}
    assert engines >= {*kernels.ALL}
    hosted = {
        operation
        for record in recorded.values()
        for engine in kernels.ALL
        for operation, kind in record.get(engine, {}).items()
        if kind == kernels.ON_HOST
    }
    for name in kernels.EXPECTED:
        assert any(operation.startswith(name) for operation in hosted), name


def check(found, recorded):
    """All operations are recorded, if not with the TensorFlow that is here."""
    known = {
        operation
        for record in recorded.values()
        for engine in kernels.ALL
        for operation in record.get(engine, {})
    }
    new = sorted({*map(str, found)} - known)
    assert not new, f"look for their kernels: python -m {kernels.__name__}"


DEFAULTS = [Run(dtype=dtype, step=step) for dtype in DTYPES for step in STEPS]


@pytest.mark.gate
@pytest.mark.parametrize("name", (kernels.STRATEGY, kernels.ESTIMATOR))
@pytest.mark.parametrize("run", DEFAULTS, ids=lambda r: f"{r.dtype}-{r.step}")
def test_the_default_method_has_recorded_kernels(name, run, data, recorded):
    engine = kernels.engines().get(name, {}).get(run.step)
    if engine is None:
        pytest.skip(f"no {run.step} by the engine {name} here")
    found = kernels.of_run(engine, run, data)
    assert len(found) > 30
    check(found, recorded)


@pytest.mark.gate
def test_an_export_has_recorded_kernels(data, recorded):
    check(kernels.of_export(data, "bfloat16"), recorded)


@pytest.mark.slow
@pytest.mark.parametrize("name", (kernels.STRATEGY, kernels.ESTIMATOR))
def test_every_method_and_head_has_recorded_kernels(name, data, recorded):
    for engine, found in kernels.everything([name], data):
        assert engine == name
        check(found, recorded)


def test_a_run_without_a_graph_is_told():
    with pytest.raises(AssertionError, match="ends with a graph"):
        graphs.taken(lambda: None)
