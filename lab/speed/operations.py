"""Measures where the time of a training step goes, operation by operation.

    .venv/bin/python -m lab.speed.operations

Traces steps of MiniLM with adapters, upon MRPC's rows where `GLUE_DIR` names
GLUE, on one core: one lane, one thread. Writes a table in docs/performance.md.
"""

import argparse
import collections
import dataclasses
import os
import re
import statistics
import tempfile
from typing import Any, Dict, Iterator, List, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from adapter_bert import command_line, files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.commands import minilm
from adapter_bert.data import input_pipeline
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.training import training_step
from adapter_bert.training.engines import Job
from lab.speed import compare, worker

RESULTS = compare.RESULTS.parent / "operations.json"
BEGIN, END = "<!-- operations: begin -->\n", "<!-- operations: end -->\n"
DTYPES = ("float32", "bfloat16")
# How many operations the table names.
SHOWN = 12
PRODUCTS = ("MatMul", "BatchMatMulV2", "FusedMatMul")
# As `name = _MklMatMul(input, input)` of a node's trace.
LABEL = re.compile(r" = (?:_Mkl(?:Native)?)?_?(\w+)\(")


def one_step(job: Job, batch: Dict[str, Any]) -> Tuple[tf.Graph, Any]:
    """The graph of a step, and its loss and gradients."""
    graph = tf.Graph()
    variables: Dict[str, tf.Variable] = {}

    def create(name, shape, initializer):
        del shape, initializer
        value = job.initial_values[name]()
        variables[name] = tf.compat.v1.get_variable(
            name,
            initializer=lambda: tf.cast(value, job.dtype_of(name)),
            trainable=name in trained,
            use_resource=True,
        )
        return variables[name]

    trained = {p.name for p in job.table.trained}
    with graph.as_default():
        model = job.build_model(create)
        loss, gradients = training_step.loss_and_gradients(
            job,
            model,
            [(name, variables[name]) for name in sorted(trained)],
            {name: tf.constant(value) for name, value in batch.items()},
            tf.constant(1, tf.int64),
            len(batch["row"]),
        )
        return graph, [loss, *gradients]


def traces(
    graph: tf.Graph, step: Any, dtype: str, count: int
) -> Iterator[Dict[str, float]]:
    """Seconds of each kind of operation, in each of some steps."""
    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    rewriting = options.graph_options.rewrite_options
    # As the engines compute.
    rewriting.disable_meta_optimizer = dtype == "float32"
    rewriting.arithmetic_optimization = RewriterConfig.OFF
    traced = tf.compat.v1.RunOptions(
        trace_level=tf.compat.v1.RunOptions.FULL_TRACE
    )
    with tf.compat.v1.Session(graph=graph, config=options) as session:
        with graph.as_default():
            session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(2):
            session.run(step)
        for _ in range(count):
            found = tf.compat.v1.RunMetadata()
            session.run(step, options=traced, run_metadata=found)
            yield seconds_of_operations(found)


def seconds_of_operations(metadata: Any) -> Dict[str, float]:
    """Sums of a trace, by operation, without those that call functions."""
    seconds: Dict[str, float] = collections.defaultdict(float)
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            label = LABEL.search(node.timeline_label)
            if label and not label[1].endswith("PartitionedCall"):
                seconds[label[1]] += (
                    node.op_end_rel_nanos - node.op_start_rel_nanos
                ) / 1e9
    return dict(seconds)


def summarize(found: List[Dict[str, float]]) -> Dict[str, Any]:
    """Medians of steps, milliseconds, the longest first."""
    names = {name for step in found for name in step}
    medians = {
        name: 1e3 * statistics.median(step.get(name, 0.0) for step in found)
        for name in names
    }
    ordered = dict(
        sorted(medians.items(), key=lambda item: item[1], reverse=True)
    )
    return {
        "products": sum(ordered.get(name, 0.0) for name in PRODUCTS),
        "all": sum(ordered.values()),
        "operations": ordered,
    }


def to_markdown(results: Dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    machine, found = results["machine"], results["types"]
    lines = [
        f"{machine['processor']}, one core; TensorFlow "
        f"{results['versions']['tensorflow']}; {results['rows']}, "
        f"{compare.BATCH_SIZE} rows of {results['length']} tokens; medians of "
        f"{results['steps']} steps, milliseconds.",
        "",
        f"| | {' | '.join(found)} |",
        f"|---|{'---|' * len(found)}",
    ]

    def add(name: str, values: List[float]) -> None:
        cells = [
            f"{value:.0f} ({value / found[dtype]['all']:.0%})"
            for dtype, value in zip(found, values)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")

    add("all", [x["all"] for x in found.values()])
    add("products of matrices", [x["products"] for x in found.values()])
    first = next(iter(found.values()))["operations"]
    for name in [n for n in first if n not in PRODUCTS][:SHOWN]:
        add(f"`{name}`", [x["operations"].get(name, 0) for x in found.values()])
    return "\n".join(lines) + "\n"


def main() -> None:
    """Traces steps of both types and writes what was found.

    Raises:
        UserError: the model or its rows cannot be read.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--glue_dir", default=os.environ.get("GLUE_DIR", ""))
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    folder = minilm.folder()
    config = BertConfig.from_json_file(os.path.join(folder, "config.json"))
    tokenizer = FullTokenizer(os.path.join(folder, "vocab.txt"), True)
    rows = compare.read_features(tokenizer, arguments.glue_dir)["pairs"]
    # Those of median length, as a batch of grouped rows.
    order = rows.lengths.argsort(kind="stable")
    middle = len(order) // 2
    chosen = order[middle - compare.BATCH_SIZE // 2 :][: compare.BATCH_SIZE]
    batch = input_pipeline.make_batch(rows, chosen, None)
    results = {
        **compare.environment(),
        "rows": "MRPC" if arguments.glue_dir else "the project's own pairs",
        "length": batch["input_ids"].shape[1],
        "steps": arguments.steps,
        "types": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in DTYPES:
            options = {
                "config": dataclasses.asdict(config),
                "method": f"houlsby(size={compare.ADAPTER_SIZE})",
                "model": folder,
                "dtype": dtype,
            }
            # Of layers that share a function the trace has not all.
            job = dataclasses.replace(
                worker.make_job(options, scratch), share_layers=False
            )
            graph, step = one_step(job, batch)
            found = list(traces(graph, step, dtype, arguments.steps))
            results["types"][dtype] = summarize(found)
    table = to_markdown(results)
    print(table)
    files.write_json(str(RESULTS), results)
    compare.write_table(table, BEGIN, END)


if __name__ == "__main__":
    command_line.run(main)
