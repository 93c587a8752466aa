"""Whether operations of our graphs have kernels for GPUs in TensorFlow.

    .venv-compilers/bin/python -m lab.devices.kernels

TensorFlow's package `tensorflow` registers kernels for GPUs on a machine
without one; `tensorflow-cpu` does not. Engines build the graphs of all runs of
`lab/devices/runs.py`, and of a model that answers texts. The kind of kernel of
each operation goes into `results/gpu_kernels.json`, with which tests compare
the graphs of any TensorFlow, and into the table of docs/devices.md.
"""

import argparse
import functools
import pathlib
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import tensorflow as tf
from absl import logging
from tensorflow.core.framework import attr_value_pb2, kernel_def_pb2
from tensorflow.python.framework import kernels, op_def_registry

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from adapter_bert.serving.text_model import TextModel
from lab import report
from lab.devices import graphs, matrix, mixed, runs
from lab.devices.runs import Run

RESULTS = report.ROOT / "results" / "gpu_kernels.json"
STRATEGY, ESTIMATOR, EXPORT = "strategy", "estimator", "export"
ALL = (STRATEGY, ESTIMATOR, EXPORT)
# Kinds of kernels: for a GPU's memory; for a GPU, but between values in the
# host's memory, as shapes; none, so that the operation runs on the host.
ON_GPU, IN_HOST_MEMORY, ON_HOST = "GPU", "host memory", "host"
# Operations that may run on the host, by graphs, and why.
TEXT = "texts are tokenized and told on the host"
PLACES = "rows' places in tables"
EXPECTED: Dict[str, Dict[str, str]] = {
    STRATEGY: {},
    ESTIMATOR: {
        "PyFunc Tin= Tout=float32": "reads first values of variables, once",
        "ScalarSummary T=float32": "TPUEstimator's own, which nothing reads",
    },
    EXPORT: {
        "ArgMax T=int32 Tidx=int32 output_type=int64": "a row's task, by name",
        "AsString T=int64": TEXT,
        "Pad T=int64 Tpaddings=int32": "number of a wrong row, for a message",
        "ReduceJoin": TEXT,
        "ResourceGather Tindices=int32 dtype=int32": PLACES,
        "ResourceGather Tindices=int64 dtype=int32": TEXT,
        "StringJoin": TEXT,
        "StringLength": TEXT,
        "Substr T=int32": TEXT,
        "TensorScatterUpdate T=bool Tindices=int32": TEXT,
        "UnicodeDecode Tsplits=int64": TEXT,
        "UnicodeTranscode": TEXT,
    },
}
# Operations without a deterministic kernel for GPUs, which
# `enable_op_determinism` refuses. Source: TensorFlow 2.21, the messages
# "Determinism is not yet supported" and "deterministic GPU implementation" of
# tensorflow/core/kernels; their list is in no documentation.
REFUSED = frozenset(
    "AdjustContrast AdjustContrastv2 Bincount CropAndResizeGradBoxes "
    "CropAndResizeGradImage DebugNumericSummaryV2 DenseBincount "
    "DepthwiseConv2dNativeBackpropFilter Dilation2DBackpropFilter "
    "Dilation2DBackpropInput FakeQuantWithMinMaxVarsGradient "
    "FakeQuantWithMinMaxVarsPerChannelGradient FusedBatchNormGrad "
    "FusedBatchNormGradV2 FusedBatchNormGradV3 MaxPoolGradWithArgmax "
    "NonDeterministicInts ResizeNearestNeighborGrad ScatterAdd ScatterDiv "
    "ScatterMax ScatterMin ScatterMul ScatterNdAdd ScatterNdSub "
    "ScatterNdUpdate ScatterSub ScatterUpdate SoftmaxCrossEntropyWithLogits "
    "SparseSoftmaxCrossEntropyWithLogits SparseTensorDenseMatMul Svd "
    "Timestamp".split()
)
# Operations that `enable_op_determinism` computes on the host. Source:
# https://github.com/tensorflow/tensorflow/releases/tag/v2.8.0
MOVED = frozenset(
    "ResourceScatterAdd ResourceScatterNdAdd ResourceScatterNdSub "
    "ResourceScatterNdUpdate ResourceScatterSub ResourceScatterUpdate "
    "ScatterNd TensorScatterAdd TensorScatterSub TensorScatterUpdate".split()
)
# The kind of device, and kernels that serve every kind.
GPU, ANY = "GPU", "DEFAULT"


class Operation(NamedTuple):
    """An operation with its types.

    Attributes:
        name: of the operation.
        types: (attribute, names of types).
    """

    name: str
    types: Tuple[Tuple[str, Tuple[str, ...]], ...]

    def __str__(self) -> str:
        """The operation as `MatMul T=float32`."""
        words = [f"{name}={','.join(of)}" for name, of in self.types]
        return " ".join([self.name, *words])


def operations(graph: tf.compat.v1.GraphDef) -> Set[Operation]:
    """The operations of a graph and of all functions that it reaches.

    Nodes that the graph itself places on a CPU, as those of input pipelines,
    do not count, nor do their functions.
    """
    functions = {f.signature.name: f.node_def for f in graph.library.function}
    found: Set[Operation] = set()
    waiting, seen = [graph.node], set()
    while waiting:
        for node in waiting.pop():
            if "CPU" in node.device.upper():
                continue
            called = {node.op} & set(functions)
            if not called:
                found.add(_operation(node))
            for value in node.attr.values():
                called |= {f.name for f in (value.func, *value.list.func)}
            for name in called & set(functions) - seen:
                seen.add(name)
                waiting.append(functions[name])
    return found


def _operation(node: tf.compat.v1.NodeDef) -> Operation:
    found = []
    for attribute in op_def_registry.get(node.op).attr:
        if attribute.type in ("type", "list(type)"):
            value = node.attr.get(attribute.name, attribute.default_value)
            found.append((attribute.name, _types(value)))
    return Operation(node.op, tuple(sorted(found)))


def _types(value: attr_value_pb2.AttrValue) -> Tuple[str, ...]:
    numbers = [value.type] if value.type else value.list.type
    return tuple(sorted({tf.as_dtype(number).name for number in numbers}))


@functools.lru_cache(None)
def _kernels(device: str) -> Dict[str, List[kernel_def_pb2.KernelDef]]:
    """Kernels by operation, those of the device before those of any.

    Kernels with a label are for who asks for them.
    """
    found: Dict[str, List[kernel_def_pb2.KernelDef]] = {}
    registered = kernels.get_all_registered_kernels().kernel
    for kind in (device, ANY):
        for kernel in registered:
            if kernel.device_type == kind and not kernel.label:
                found.setdefault(kernel.op, []).append(kernel)
    return found


def kernel_of(operation: Operation, device: str = GPU) -> str:
    """The kind of kernel that this TensorFlow registers for an operation."""
    types = dict(operation.types)
    definition = op_def_registry.get(operation.name)
    values = [*definition.input_arg, *definition.output_arg]
    for kernel in _kernels(device).get(operation.name, ()):
        if all(
            {*types.get(one.name, ())} <= {*_types(one.allowed_values)}
            for one in kernel.constraint
        ):
            is_apart = {v.name for v in values} <= {*kernel.host_memory_arg}
            return IN_HOST_MEMORY if values and is_apart else ON_GPU
    return ON_HOST


def is_expected(graphs: str, operation: str) -> bool:
    """Whether an operation may run on the host, as those on strings.

    Args:
        graphs: of `ALL`, which have the operation.
        operation: with its types.
    """
    return "=string" in operation or operation in EXPECTED[graphs]


def engines() -> Dict[str, Dict[str, Any]]:
    """The classes that take graphs, by engine and step."""
    found = {
        STRATEGY: {
            runs.TRAINING: graphs.TrainingGraph,
            runs.PREDICTION: graphs.PredictionGraph,
        }
    }
    if report.has_estimator():
        # It predicts with the other engine's function.
        from lab.devices import estimator_graphs

        found[ESTIMATOR] = {runs.TRAINING: estimator_graphs.TrainingGraph}
    return found


def of_run(engine: type, run: Run, data: pathlib.Path) -> Set[Operation]:
    """The operations of a run's graph.

    Args:
        engine: of `engines`.
        run: the run.
        data: folder of `runs.make`.
    """
    with runs.given(run, data, engine) as module:
        return operations(graphs.taken(module.run))


def of_export(data: pathlib.Path, dtype: str) -> Set[Operation]:
    """The operations of an exported model, from texts to answers."""
    bert = mixed.open_bert(data, dtype)
    tasks = mixed.load_tasks(data, bert)
    serve = TextModel(bert, tasks, batch_size=8).serve
    return operations(serve.get_concrete_function().graph.as_graph_def())


def everything(
    names: Sequence[str], data: pathlib.Path
) -> Iterator[Tuple[str, Set[Operation]]]:
    """The operations of each graph, with the name of `engines` or `EXPORT`."""
    for engine, classes in engines().items():
        for run in runs.runs():
            if engine in names and run.step in classes:
                yield engine, of_run(classes[run.step], run, data)
    for dtype in runs.DTYPES if EXPORT in names else ():
        yield EXPORT, of_export(data, dtype)


def main() -> None:
    """Looks for kernels, and writes the file.

    Raises:
        UserError: this TensorFlow registers none for GPUs.
        SystemExit: an operation runs on the host, or is not deterministic.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=ALL, action="append")
    only = parser.parse_args().only or ALL
    logging.set_verbosity(logging.ERROR)
    if kernel_of(Operation("MatMul", (("T", ("float32",)),))) != ON_GPU:
        raise UserError(
            f"TensorFlow {tf.__version__} registers no kernels for GPUs here; "
            "run this with the package `tensorflow`, as .venv-compilers has it"
        )
    began = time.monotonic()
    found: Dict[str, Set[Operation]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder)
        runs.make(data)
        for number, (engine, more) in enumerate(everything(only, data), 1):
            found.setdefault(engine, set()).update(more)
            seconds = time.monotonic() - began
            print(f"{number} graphs, {seconds:.0f} s", file=sys.stderr)
    known = files.read_json(str(RESULTS), "kernels") if RESULTS.exists() else {}
    own = known.setdefault(tf.__version__, {})
    for engine, of_engine in found.items():
        own[engine] = {str(one): kernel_of(one) for one in sorted(of_engine)}
    own["date"] = time.strftime("%Y-%m-%d")
    files.write_json(str(RESULTS), known)
    report.write(matrix.PAGE, "kernels", page_table(known))
    wrong = wrong_in(own)
    if wrong:
        raise SystemExit("\n".join(wrong))


def page_table(known: Dict[str, Any]) -> str:
    """The page's table of all TensorFlows and engines."""
    columns = ["graphs", ON_GPU, IN_HOST_MEMORY, ON_HOST, "on the host"]
    table = [columns]
    for version, own in known.items():
        for engine in (name for name in ALL if name in own):
            kinds = list(own[engine].values())
            on_host = [
                f"`{operation}`"
                for operation, kind in own[engine].items()
                if kind == ON_HOST and "=string" not in operation
            ]
            counts = [str(kinds.count(kind)) for kind in columns[1:4]]
            row = [f"{engine}, TensorFlow {version} ({own['date']})"]
            table.append([*row, *counts, ", ".join(on_host)])
    return report.markdown(table)


def wrong_in(recorded: Dict[str, Any]) -> List[str]:
    """Operations that unexpectedly run on the host, or are refused."""
    found = []
    for engine in ALL:
        for operation, kind in recorded.get(engine, {}).items():
            if kind == ON_HOST and not is_expected(engine, operation):
                found.append(f"{engine}: {operation} runs on the host")
            elif engine != EXPORT and operation.split()[0] in REFUSED | MOVED:
                found.append(f"{engine}: {operation} is not deterministic")
    return found


if __name__ == "__main__":
    command_line.run(main)
