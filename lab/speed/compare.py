"""Compares speed and memory with AdapterHub's `adapters`, in one run.

    make benchmark

Both sides train, or predict with, the same weights, rows, batch size,
precision and adapter size, in processes that take turns. The machine's own
matrix products are measured between them. Writes `results/compare.json` and
the table in docs/performance.md.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import tempfile
from typing import Any, Dict, List, Sequence

import tensorflow as tf

from adapter_bert import command_line, files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.commands import minilm
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.errors import UserError
from adapter_bert.tasks import get_task
from adapter_bert.tasks.custom import custom_task
from adapter_bert.training import cpu_cores
from lab.speed import processes

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "lab" / "results" / "compare.json"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- compare: begin -->\n", "<!-- compare: end -->\n"

# What the rows are where GLUE is at hand.
GLUE_ROWS = "MRPC and CoLA"
BATCH_SIZE = 32
ADAPTER_SIZE = 64
MAX_LENGTH = 128
PREDICTED_ROWS = 512
DTYPES = ("float32", "bfloat16")
# How AdapterHub's users pad: what its examples do, what is usual, and the
# Trainer's option that they leave off.
PADDINGS = {
    "full": f"padded to {MAX_LENGTH}",
    "dynamic": "padded to the longest of a batch",
    "grouped": "grouped by length",
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One of our configurations beside the peer's.

    Attributes:
        kind: `train` or `predict`.
        rows: `pairs` or `sentences`.
        model: `minilm` or `base`.
        dtype: of the computation.
        steps: of ours in each measurement, a multiple of the batches that are
            grouped by length together, so that all lengths occur.
        peer_steps: of the peer's.
    """

    kind: str
    rows: str
    model: str
    dtype: str
    steps: int = 0
    peer_steps: int = 0

    @property
    def name(self) -> str:
        """For people and for `--only`."""
        return f"{self.kind}-{self.rows}-{self.model}-{self.dtype}"


def comparisons() -> List[Comparison]:
    """All of them; `base` has BERT-base's size and random weights."""
    trainings = (
        ("pairs", "minilm", 24, 12),
        ("sentences", "minilm", 48, 32),
        ("pairs", "base", 8, 4),
    )
    return [
        Comparison("train", rows, model, dtype, steps, peer_steps)
        for rows, model, steps, peer_steps in trainings
        for dtype in DTYPES
    ] + [
        Comparison("predict", rows, "minilm", dtype)
        for rows in ("pairs", "sentences")
        for dtype in DTYPES
    ]


def read_features(
    tokenizer: FullTokenizer, glue_dir: str
) -> Dict[str, Features]:
    """Pairs and sentences: MRPC and CoLA where present, else `data/`."""
    if glue_dir:
        sources = {
            "pairs": (get_task("mrpc"), os.path.join(glue_dir, "MRPC")),
            "sentences": (get_task("cola"), os.path.join(glue_dir, "CoLA")),
        }
    else:
        pairs = custom_task("sentence1", "sentence2", "label")
        sentences = custom_task("text", None, "intent")
        sources = {
            "pairs": (pairs, str(ROOT / "data" / "same_meaning")),
            "sentences": (sentences, str(ROOT / "data" / "customer_intents")),
        }
    features = {}
    for name, (task, folder) in sources.items():
        task, rows = task.read(folder, ["train"])
        features[name] = task.featurize(rows["train"], tokenizer, MAX_LENGTH)
    return features


def compare(
    comparison: Comparison,
    row_files: Dict[str, str],
    models: Dict[str, Dict[str, Any]],
    peer: List[str],
    rounds: int,
) -> Dict[str, Any]:
    """Runs one comparison.

    Returns:
        The measurements of `products`, `ours` and each of the peer's paddings.
    """
    options = {
        "kind": comparison.kind,
        "rows": row_files[f"{comparison.kind}-{comparison.rows}"],
        "batch_size": BATCH_SIZE,
        "dtype": comparison.dtype,
        "method": f"houlsby(size={ADAPTER_SIZE})",
        "adapter_size": ADAPTER_SIZE,
        "cores": cpu_cores.count(),
        **models[comparison.model],
    }
    paddings = ["dynamic"] if comparison.kind == "predict" else list(PADDINGS)
    if comparison.model == "base":
        paddings = ["dynamic"]
    workers = {
        "products": processes.Worker(
            processes.OURS, {"kind": "products", "dtype": comparison.dtype}
        ),
        "ours": processes.Worker(processes.OURS, options, comparison.steps),
    }
    for padding in paddings:
        steps = comparison.peer_steps
        workers[padding] = processes.Worker(
            peer,
            {**options, "padding": padding},
            # All of these batches are equally long, and slow.
            steps // 4 if padding == "full" else steps,
        )
    return processes.measure_in_turn(workers, rounds)


def summarize(measured: Dict[str, List[Dict[str, float]]]) -> Dict[str, Any]:
    """Medians, spreads and ratios of one comparison."""
    rates = {
        name: [m["examples"] / m["seconds"] for m in values]
        for name, values in measured.items()
        if name != "products"
    }
    peak = [m["flops"] / m["seconds"] for m in measured["products"]]
    used = [m["flops"] / m["seconds"] for m in measured["ours"]]
    return {
        "examples_per_second": {
            name: spread(values) for name, values in rates.items()
        },
        # Ours against each peer, measured one after the other.
        "ratio": {
            name: spread_of_ratios(rates["ours"], values)
            for name, values in rates.items()
            if name != "ours"
        },
        "peak_gflops": statistics.median(peak) / 1e9,
        "share_of_peak": statistics.median(map(_divide, used, peak)),
        "memory_bytes": {
            name: values[-1]["peak_bytes"]
            for name, values in measured.items()
            if name != "products"
        },
        "tokens_per_example": {
            name: sum(m["tokens"] for m in values)
            / sum(m["examples"] for m in values)
            for name, values in measured.items()
            if name != "products"
        },
    }


def spread(values: Sequence[float]) -> Dict[str, float]:
    """The `median`, `lowest` and `highest` of what each round measured."""
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
    }


def spread_of_ratios(
    ours: Sequence[float], theirs: Sequence[float]
) -> Dict[str, float]:
    """The same of ours / theirs, each measured in the same round."""
    return spread(list(map(_divide, ours, theirs)))


def _divide(a: float, b: float) -> float:
    return a / b


def to_markdown(results: Dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    lines = [
        f"{results['machine']['processor']}, {results['machine']['cores']} "
        f"cores; TensorFlow {results['versions']['tensorflow']}; batches of "
        f"{BATCH_SIZE}, adapters of size {ADAPTER_SIZE}, "
        f"{results['rounds']} rounds; {results['rows']}.",
        "",
        "| | ours, examples/s | peer's padding | peer, examples/s | ratio "
        "(lowest to highest) | memory, ours / peer | of the products' best of "
        "5 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, summary in results["comparisons"].items():
        rates = summary["examples_per_second"]
        first = True
        for padding, ratio in summary["ratio"].items():
            memory = summary["memory_bytes"]
            row = [
                name.replace("-", " ") if first else "",
                format_spread(rates["ours"]) if first else "",
                PADDINGS[padding],
                format_spread(rates[padding]),
                format_ratio(ratio),
                f"{memory['ours'] / 2**30:.2f} / "
                f"{memory[padding] / 2**30:.2f} GiB = "
                f"{memory['ours'] / memory[padding]:.2f}",
                f"{summary['share_of_peak']:.0%} of "
                f"{summary['peak_gflops']:.0f} GFLOP/s"
                if first
                else "",
            ]
            lines.append("| " + " | ".join(row) + " |")
            first = False
    return "\n".join(lines) + "\n"


def format_spread(found: Dict[str, float]) -> str:
    """A cell of a table: the median, then from the lowest to the highest."""
    return (
        f"{found['median']:.1f} ({found['lowest']:.1f} to "
        f"{found['highest']:.1f})"
    )


def format_ratio(ratio: Dict[str, float]) -> str:
    """The same for ratios, the median in bold type."""
    return (
        f"**{ratio['median']:.2f}** ({ratio['lowest']:.2f} to "
        f"{ratio['highest']:.2f})"
    )


def write_table(table: str, begin: str, end: str) -> None:
    """Puts a table between its marks in docs/performance.md.

    Args:
        table: in Markdown.
        begin: the mark's line before it.
        end: the mark's line after it.
    """
    page = PAGE.read_text()
    before, rest = page.split(begin)
    _, after = rest.split(end)
    files.write_text(str(PAGE), f"{before}{begin}\n{table}\n{end}{after}")


def main() -> None:
    """Runs the comparisons that the arguments name; raises as `run`."""
    run(parse_arguments())


def parse_arguments() -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UserError: there is no such peer, no comparison of that name, or
            nothing to measure.
    """
    parser = make_parser(__doc__.split("\n")[0], rounds=3)
    parser.add_argument("--only", default="", help="part of a name")
    arguments = parser.parse_args()
    check_arguments(arguments)
    names = [comparison.name for comparison in comparisons()]
    if not any(arguments.only in name for name in names):
        raise UserError(
            f"no comparison's name holds --only={arguments.only}; they are "
            f"{', '.join(names)}"
        )
    return arguments


def make_parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """The arguments of every benchmark beside the peer.

    Args:
        description: what the benchmark measures, one line.
        rounds: how often, if `--rounds` is not given.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--peer_python", default=str(ROOT / ".venv-peer" / "bin" / "python")
    )
    parser.add_argument("--glue_dir", default=os.environ.get("GLUE_DIR", ""))
    parser.add_argument("--model", help="a pretrained BERT's folder")
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what `make_parser` reads.

    Raises:
        UserError: there is no such peer, or nothing to measure.
    """
    if not os.access(arguments.peer_python, os.X_OK):
        raise UserError(
            f"the peer's Python {arguments.peer_python} cannot be run; "
            "`make benchmark` installs it"
        )
    if arguments.rounds < 1:
        raise UserError(
            f"--rounds={arguments.rounds} measures nothing; expected at least 1"
        )


def run(arguments: argparse.Namespace) -> None:
    """Runs the comparisons.

    Raises:
        UserError: a model or its rows cannot be read, or a process has died.
    """
    glue_dir = arguments.glue_dir
    folder = arguments.model or minilm.folder()
    config = BertConfig.from_json_file(os.path.join(folder, "config.json"))
    tokenizer = FullTokenizer(os.path.join(folder, "vocab.txt"), True)
    models = {
        "minilm": {"model": folder, "config": dataclasses.asdict(config)},
        "base": {
            "model": None,
            "config": dataclasses.asdict(BertConfig(config.vocab_size)),
        },
    }
    peer = [
        arguments.peer_python,
        str(ROOT / "lab" / "speed" / "peers" / "adapters_worker.py"),
    ]
    results = {
        **environment(),
        "rounds": arguments.rounds,
        "rows": GLUE_ROWS if glue_dir else "the project's own texts",
        "comparisons": {},
        "measurements": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        row_files = {}
        for name, rows in read_features(tokenizer, glue_dir).items():
            row_files[f"train-{name}"] = f"{scratch}/train-{name}.npz"
            processes.write_rows(row_files[f"train-{name}"], rows)
            row_files[f"predict-{name}"] = f"{scratch}/predict-{name}.npz"
            processes.write_rows(
                row_files[f"predict-{name}"], _first(rows, PREDICTED_ROWS)
            )
        for comparison in comparisons():
            if arguments.only not in comparison.name:
                continue
            measured = compare(
                comparison, row_files, models, peer, arguments.rounds
            )
            results["measurements"][comparison.name] = measured
            summary = summarize(measured)
            results["comparisons"][comparison.name] = summary
            print(comparison.name, json.dumps(summary, indent=1), flush=True)
    table = to_markdown(results)
    print(table)
    if not arguments.only:
        RESULTS.parent.mkdir(exist_ok=True)
        files.write_json(str(RESULTS), results)
        write_table(table, BEGIN, END)


def _first(features: Features, count: int) -> Features:
    count = min(count, len(features))
    end = features.starts[count]
    return Features(
        features.tokens[:end],
        features.segments[:end],
        features.starts[: count + 1],
        {name: values[:count] for name, values in features.labels.items()},
    )


def environment() -> Dict[str, Any]:
    """The machine and versions, for the head of every file of results."""
    return {
        "machine": {"processor": cpu_cores.name(), "cores": cpu_cores.count()},
        "versions": {
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
    }


if __name__ == "__main__":
    command_line.run(main)
