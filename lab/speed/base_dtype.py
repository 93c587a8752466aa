r"""Compares a BERT in int8 with itself in float32: bytes, speed, answers.

    .venv/bin/python -m lab.speed.base_dtype MODEL mrpc=DATA=ADAPTER ... \
        [--compute_dtype=bfloat16] [--rounds=9]

Each adapter answers the dev set of its task in the folder DATA on both BERTs,
which take turns in one process. Prints a table for docs/performance.md.
"""

import argparse
import math
import statistics
import time
from typing import Dict, List, Sequence, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import tensorflow as tf

from adapter_bert import command_line
from adapter_bert.errors import UserError
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.predictor import Predictor
from adapter_bert.tasks.registry import get_task
from adapter_bert.training.compute_dtype import BASE_DTYPES, DTYPES, FLOAT32
from lab import report
from lab.speed import measuring

# Rows that are asked at once.
BATCHES = (128, 1)


def bytes_of(bert: FrozenBert) -> int:
    """Bytes of BERT's own variables."""
    return sum(
        x.dtype.size * math.prod(x.shape)
        for x in tf.nest.flatten(list(bert.variables.values()))
    )


def seconds(predictor: Predictor, name: str, rows: Sequence) -> float:
    """The time that an adapter takes to answer rows at once."""
    began = time.perf_counter()
    predictor(name, list(rows))
    return time.perf_counter() - began


def read_rows(task_name: str, folder: str) -> Tuple[List, List[str]]:
    """The rows of texts of a task's dev set, and their labels."""
    task = get_task(task_name)
    (_, split), *_ = task.dev_splits
    _, read = task.read(folder, [split])
    rows = read[split]
    texts = filter(None, (rows.text_a, rows.text_b))
    return list(zip(*texts)), list(rows.label)


def share(labels: Sequence[str], others: Sequence[str]) -> float:
    """The share of rows whose labels are equal."""
    return statistics.mean(a == b for a, b in zip(labels, others))


def main() -> None:
    """Measures, and prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("adapters", nargs="+")
    parser.add_argument("--compute_dtype", choices=DTYPES, default=FLOAT32)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    named: Dict[str, List[str]] = {}
    for text in arguments.adapters:
        name, *folders = text.split("=")
        if len(folders) != 2:
            raise UserError(f"{text}: expected TASK=DATA=ADAPTER")
        named[name] = folders
    predictors, sizes = {}, {}
    for base in BASE_DTYPES:
        bert = FrozenBert.open(
            arguments.model,
            compute_dtype=arguments.compute_dtype,
            base_dtype=base,
        )
        sizes[base] = bytes_of(bert)
        predictors[base] = Predictor(bert, batch_size=max(BATCHES))
        for name, (_, adapter) in named.items():
            predictors[base].add(adapter, name)
    of_texts: Dict[str, List] = {}
    table = [["task", "rows", "equal labels", *(f"right, {b}" for b in sizes)]]
    for name, (data, _) in named.items():
        of_texts[name], expected = read_rows(name, data)
        found = [
            [answer["label"] for answer in predictor(name, of_texts[name])]
            for predictor in predictors.values()
        ]
        shares = [share(*found), *(share(one, expected) for one in found)]
        count = f"{len(expected):,}"
        table.append([name, count, *(f"{x:.2%}" for x in shares)])
    print(report.markdown(table))
    speeds = [["rows at once", *(f"{base}, ms" for base in sizes), "ratio"]]
    name = next(iter(named))
    for count in BATCHES:
        times: Dict[str, List[float]] = {base: [] for base in sizes}
        for number in range(arguments.rounds + 1):
            for base, predictor in predictors.items():
                found = seconds(predictor, name, of_texts[name][:count])
                if number:
                    times[base].append(1e3 * found)
        float32, int8 = times.values()
        speeds.append(
            [
                str(count),
                *(measuring.cell(measuring.spread(t)) for t in times.values()),
                measuring.ratio_cell(measuring.ratio(int8, float32)),
            ]
        )
    print(report.markdown(speeds))
    float32, int8 = sizes.values()
    print(f"weights: {int8:,} of {float32:,} bytes, {int8 / float32:.3f}")


if __name__ == "__main__":
    command_line.run(main)
