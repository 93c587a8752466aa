"""Workers that take turns, spreads and tables, for all benchmarks."""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import packaged_models
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.errors import UserError
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.kinds import get_task
from lab import report
from lab.report import ROOT

OURS = (sys.executable, "-m", "lab.speed.worker")
PEERS = ROOT / "lab" / "speed" / "peers"
BATCH_SIZE, ADAPTER_SIZE, MAX_LENGTH = 32, 64, 128
DTYPES = ("float32", "bfloat16")
OWN_TEXTS = "the project's own texts"

Measured = dict[str, list[dict[str, float]]]


class Worker:
    """A process that holds a model; `worker.py` has its protocol."""

    def __init__(
        self, command: Sequence[str], options: dict[str, Any], steps: int = 0
    ):
        """Starts the process, which gets ready meanwhile.

        Args:
            command: the program; `options` become its one argument.
            options: the model, the rows and what to do with them.
            steps: of a training in each measurement.
        """
        self._request = json.dumps({"steps": steps}) + "\n"
        # A worker that ends on request leaves its checkpoints behind.
        self._scratch = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TMPDIR": self._scratch.name},
        )

    def measure(self) -> dict[str, float]:
        """Makes one measurement."""
        # The empty answer tells of a process that has died.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(self._request)
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UserError(
                f"the benchmark's process {self._process.args} has died with "
                f"exit code {self._process.wait()}; run it alone to see why"
            )
        return json.loads(line)

    def stop(self) -> None:
        """Ends the process, and removes its temporary files."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._scratch.cleanup()


def in_turn(workers: Mapping[str, Any], rounds: int) -> Measured:
    """Measures all workers in turn, A B C A B C, and stops them.

    A first round is thrown away: it builds graphs and fills caches. A worker is
    whatever has the methods `measure` and `stop`.
    """
    measured: Measured = {name: [] for name in workers}
    try:
        for number in range(rounds + 1):
            for name, worker in workers.items():
                values = worker.measure()
                if number:
                    measured[name].append(values)
    finally:
        for worker in workers.values():
            worker.stop()
    return measured


def rates(measured: Measured) -> dict[str, list[float]]:
    """Gets the examples per second of each round, of all that have examples."""
    return {
        name: [m["examples"] / m["seconds"] for m in rounds]
        for name, rounds in measured.items()
        if any(m["examples"] for m in rounds)
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns the `median`, `lowest` and `highest` of the rounds' values."""
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
    }


def spreads(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Returns the spread of each name's values."""
    return {name: spread(of_name) for name, of_name in values.items()}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Returns the spread of ours / theirs, each measured in the same round."""
    return spread([a / b for a, b in zip(ours, theirs)])


def cell(spread: dict[str, float], digits: int = 1, bold: bool = False) -> str:
    """A cell of a table: the median, then from the lowest to the highest."""
    median, low, high = (
        f"{spread[key]:.{digits}f}" for key in ("median", "lowest", "highest")
    )
    return f"{f'**{median}**' if bold else median} ({low} to {high})"


def ratio_cell(spread: dict[str, float]) -> str:
    """A cell of ratios, the median in bold type."""
    return cell(spread, digits=2, bold=True)


def table(results: dict[str, Any], about: str, rows: report.Table) -> str:
    """A table of results/performance.md, with a line about the measurement.

    Args:
        results: with what `report.environment` tells.
        about: what else the numbers depend on.
        rows: of the table, the header first.
    """
    machine, versions = results["machine"], results["versions"]
    return (
        f"{machine['processor']}, {machine['cores']} cores; TensorFlow "
        f"{versions['tensorflow']}; {about}.\n\n{report.markdown(rows)}"
    )


def publish(name: str, results: dict[str, Any], text: str) -> None:
    """Writes `lab/results/NAME.json` and a table of results/performance.md."""
    report.RESULTS.mkdir(parents=True, exist_ok=True)
    files.write_json(str(report.RESULTS / f"{name}.json"), results)
    report.write(report.SPEED, name, text)


def make_parser(module_doc: str, rounds: int) -> argparse.ArgumentParser:
    """Returns the command line of a benchmark against the peer.

    Args:
        module_doc: the module's docstring, whose first line is shown.
        rounds: how often is measured where `--rounds` is not given.
    """
    parser = argparse.ArgumentParser(description=module_doc.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--glue_dir", default=os.environ.get("GLUE_DIR", ""))
    parser.add_argument("--model", help="a pretrained BERT's folder")
    parser.add_argument(
        "--peer_python", default=str(ROOT / ".venv-peer" / "bin" / "python")
    )
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Reads the command line."""
    arguments = parser.parse_args()
    peer = arguments.peer_python
    if not os.access(peer, os.X_OK):
        raise UserError(
            f"the peer's Python {peer} cannot be run; `make peers` installs it"
        )
    if arguments.rounds < 1:
        raise UserError(
            f"--rounds={arguments.rounds} measures nothing; expected at least 1"
        )
    return arguments


def open_model(folder: str = "") -> dict[str, Any]:
    """Gets `model` and `config` of a worker's options: MiniLM's by default."""
    folder = folder or packaged_models.folder("minilm")
    config = BertConfig.from_json_file(os.path.join(folder, "config.json"))
    return {"model": folder, "config": dataclasses.asdict(config)}


def read_features(model: str, glue_dir: str) -> dict[str, Features]:
    """Pairs and sentences: MRPC and CoLA where present, else `data/`.

    Args:
        model: folder of the BERT that has the vocabulary.
        glue_dir: folder of GLUE's tasks, or "".
    """
    tokenizer = FullTokenizer(os.path.join(model, "vocab.txt"), True)
    data = ROOT / "data"
    if glue_dir:
        sources = {
            "pairs": (get_task("mrpc"), os.path.join(glue_dir, "MRPC")),
            "sentences": (get_task("cola"), os.path.join(glue_dir, "CoLA")),
        }
    else:
        pairs = custom_task("sentence1", "sentence2", "label")
        sentences = custom_task("text", None, "intent")
        sources = {
            "pairs": (pairs, str(data / "same_meaning")),
            "sentences": (sentences, str(data / "customer_intents")),
        }
    features = {}
    for name, (task, folder) in sources.items():
        task, rows = task.read(folder, ["train"])
        features[name] = task.featurize(rows["train"], tokenizer, MAX_LENGTH)
    return features


def write_rows(path: str, features: Features, count: int = 0) -> None:
    """Writes tokenized rows with labels 0 and 1 for both sides to read.

    Args:
        path: of the file, `.npz`.
        features: the rows.
        count: how many of the first are written; 0 for all.
    """
    count = min(count or len(features), len(features))
    end = features.starts[count]
    np.savez(
        path,
        tokens=features.tokens[:end],
        segments=features.segments[:end],
        starts=features.starts[: count + 1],
        # Which label is right makes no difference to speed.
        labels=(np.arange(count) % 2).astype(np.int32),
    )
