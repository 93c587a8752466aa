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
    called = tf.function(tf.math.erf)

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
    hosted = dict.fromkeys(
        (
            "Const dtype=string",
            "PyFunc Tin= Tout=float32",
            "ScalarSummary T=float32",
            "StringJoin",
        ),
        kernels.ON_HOST,
    )
    record = {
        kernels.STRATEGY: {
            "MatMul T=float16": kernels.ON_HOST,
            "MatMul T=float32": kernels.ON_GPU,
            "SparseSoftmaxCrossEntropyWithLogits T=float32": kernels.ON_GPU,
            **hosted,
        },
        kernels.ESTIMATOR: {
            "TensorScatterUpdate T=float32": kernels.ON_GPU,
            **hosted,
        },
        # Answers are computed without deterministic operations.
        kernels.EXPORT: {
            "TensorScatterUpdate T=float32": kernels.ON_GPU,
            **hosted,
        },
    }
    assert {*kernels.wrong_in(record)} == {
        "strategy: MatMul T=float16 runs on the host",
        "strategy: PyFunc Tin= Tout=float32 runs on the host",
        "strategy: ScalarSummary T=float32 runs on the host",
        "strategy: SparseSoftmaxCrossEntropyWithLogits T=float32 is not "
        "deterministic",
        "strategy: StringJoin runs on the host",
        "estimator: StringJoin runs on the host",
        "estimator: TensorScatterUpdate T=float32 is not deterministic",
        "export: PyFunc Tin= Tout=float32 runs on the host",
        "export: ScalarSummary T=float32 runs on the host",
    }


def test_nothing_recorded_runs_on_the_host_unexpectedly(recorded):
    for record in recorded.values():
        assert not kernels.wrong_in(record)
    for engine, expected in kernels.EXPECTED.items():
        records = [r[engine] for r in recorded.values() if engine in r]
        assert records, engine
        hosted = {
            operation
            for record in records
            for operation, kind in record.items()
            if kind == kernels.ON_HOST
        }
        assert {*expected} <= hosted


def check(engine, found, recorded):
    """All operations are recorded, if not with the TensorFlow that is here.

    What is recorded of other engines counts too, unless it runs on the host.
    """
    kinds = {}
    for record in recorded.values():
        # The engine's own kinds go before others.
        for name in (*kernels.ALL, engine):
            kinds.update(record.get(name, {}))
    found = {str(one) for one in found}
    new = sorted(found - {*kinds})
    assert not new, f"look for their kernels: python -m {kernels.__name__}"
    own = {operation: kinds[operation] for operation in found}
    assert not kernels.wrong_in({engine: own})


def test_what_another_engine_has_on_the_host_is_told(recorded):
    [operation, *_] = kernels.EXPECTED[kernels.EXPORT]
    check(kernels.EXPORT, [operation], recorded)
    with pytest.raises(AssertionError):
        check(kernels.STRATEGY, [operation], recorded)
    with pytest.raises(AssertionError, match="look for their kernels"):
        check(kernels.STRATEGY, ["MatMul T=string"], recorded)


DEFAULTS = [
    (name, Run(dtype=dtype, step=step))
    for name, step in (
        *((kernels.STRATEGY, step) for step in STEPS),
        # It predicts with the other engine's function.
        (kernels.ESTIMATOR, runs.TRAINING),
    )
    for dtype in DTYPES
]


def needs(name):
    if name not in kernels.engines():
        pytest.skip(f"no engine {name} here")


@pytest.mark.gate
@pytest.mark.parametrize("name, run", DEFAULTS, ids=str)
def test_the_default_method_has_recorded_kernels(name, run, data, recorded):
    needs(name)
    engine = kernels.engines()[name][run.step]
    found = kernels.of_run(engine, run, data)
    assert len(found) > 30
    check(name, found, recorded)


@pytest.mark.gate
def test_an_export_has_recorded_kernels(data, recorded):
    found = kernels.of_export(data, "bfloat16")
    check(kernels.EXPORT, found, recorded)


@pytest.mark.slow
@pytest.mark.parametrize("name", (kernels.STRATEGY, kernels.ESTIMATOR))
def test_every_method_and_head_has_recorded_kernels(name, data, recorded):
    needs(name)
    for engine, found in kernels.everything([name], data):
        check(engine, found, recorded)


def test_a_run_without_a_graph_is_told():
    with pytest.raises(AssertionError, match="ends with a graph"):
        graphs.taken(lambda: None)
