"""Compares training of vectors with sentence-transformers' own trainer.

    GLUE_DIR=... .venv/bin/python -m lab.speed.vectors

`run_vectors.py` and that library's trainer with peft train LoRA on the same
MiniLM, rows, batch size and number of steps, in processes that take turns. The
trained vectors of both are scored on the dev set. Writes
`lab/results/vectors.json`, and prints a table.
"""

import json
import os
import sys
import tempfile
from typing import Any, Dict

import numpy as np

from adapter_bert import command_line, files
from adapter_bert.data.tables import Rows
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.errors import UserError
from adapter_bert.tasks.vectors import Vectors, known_pairs
from adapter_bert.training import cpu_cores
from lab import report
from lab.speed import measuring
from lab.speed.measuring import BATCH_SIZE, DTYPES, PEERS, Measured, Worker

TASKS = ("STS-B", "MRPC")
RANK, ALPHA = 8, 8.0
OURS = (sys.executable, "-m", "lab.speed.vectors_worker")
# What both sides train with.
SHARED = {"max_seq_length": 64, "learning_rate": 5e-4}
PEER = "sentence-transformers"


def peer_rows(rows: Rows, has_scores: bool) -> Dict[str, Any]:
    """Rows as the library's data sets have them."""
    columns: Dict[str, Any] = {"text": rows.text_a, "match": rows.text_b}
    if has_scores:
        columns["score"] = list(map(float, rows.label))
    return columns


def compare(name: str, folder: str, steps: int, given: Any) -> Dict[str, Any]:
    """The measurements and dev scores of one task.

    Args:
        name: of the task.
        folder: of its rows.
        steps: in each measurement.
        given: the command line.

    Raises:
        UserError: rows cannot be read, or a process has died.
    """
    layout, matching = known_pairs(name)
    task = Vectors(layout=layout, matching=matching)
    _, rows = task.read(folder, ["train", "dev"])
    model = measuring.open_model(given.model)["model"]
    # A first round is not counted, nor is the first step of a measurement.
    total = (given.rounds + 1) * (steps + 1)
    ours = {
        **SHARED,
        "task_name": name,
        "data_dir": folder,
        "init_checkpoint": model,
        "tuning_method": f"lora(rank={RANK},alpha={ALPHA})",
        # As the library's optimizer.
        "adam_bias_correction": True,
        "compute_dtype": given.dtype,
        "train_batch_size": BATCH_SIZE,
        "num_train_steps": total,
        "do_train": True,
        "do_eval": True,
        "eval_batch_size": BATCH_SIZE,
        "engine": "strategy",
    }
    with tempfile.TemporaryDirectory() as scratch:
        theirs = {
            **SHARED,
            "rows": f"{scratch}/rows.json",
            "vectors": f"{scratch}/vectors.npy",
            "model": model,
            "rank": RANK,
            "alpha": ALPHA,
            "dtype": given.dtype,
            "batch_size": BATCH_SIZE,
            "steps": total,
            "cores": cpu_cores.count(),
        }
        files.write_json(
            theirs["rows"],
            {s: peer_rows(r, task.has_scores) for s, r in rows.items()},
        )
        peer = [given.peer_python, str(PEERS / "vectors_worker.py")]
        workers = {
            "ours": Worker(OURS, ours, steps),
            PEER: Worker(peer, theirs, steps),
        }
        # The last request is answered at the end of the program.
        measured = measuring.in_turn(workers, given.rounds + 1)
        vectors = np.load(theirs["vectors"])
    ends = {side: rounds.pop() for side, rounds in measured.items()}
    tokenizer = FullTokenizer(os.path.join(model, "vocab.txt"), True)
    features = task.featurize(rows["dev"], tokenizer, SHARED["max_seq_length"])
    scores = {
        "ours": ends["ours"]["scores"],
        PEER: task.evaluate(task.keep(rows["dev"]), features, vectors),
    }
    main_score = task.score_names[0]
    return {
        **summarize(measured),
        "score": main_score,
        "scores": {side: found[main_score] for side, found in scores.items()},
        "steps": total,
        "trained": ends[PEER]["trained"],
        "measurements": measured,
    }


def summarize(measured: Measured) -> Dict[str, Any]:
    """Medians, spreads and ratios of one task."""
    rates = measuring.rates(measured)
    return {
        "pairs_per_second": measuring.spreads(rates),
        "seconds_per_step": {
            side: BATCH_SIZE / found["median"]
            for side, found in measuring.spreads(rates).items()
        },
        "ratio": measuring.ratio(rates["ours"], rates[PEER]),
        "memory_bytes": {
            side: rounds[-1]["peak_bytes"] for side, rounds in measured.items()
        },
    }


def to_markdown(results: Dict[str, Any]) -> str:
    """Both sides by task, as a table."""
    rows = [
        [
            "",
            "ours, pairs/s",
            f"{PEER}, pairs/s",
            "ratio (lowest to highest)",
            "seconds a step",
            "memory",
            "dev score",
        ]
    ]
    for name, found in results["tasks"].items():
        rates = found["pairs_per_second"]
        seconds, memory, scores = (
            [found[key][side] for side in ("ours", PEER)]
            for key in ("seconds_per_step", "memory_bytes", "scores")
        )
        rows.append(
            [
                name,
                measuring.cell(rates["ours"]),
                measuring.cell(rates[PEER]),
                measuring.ratio_cell(found["ratio"]),
                " / ".join(f"{each:.2f}" for each in seconds),
                " / ".join(f"{each / 2**30:.2f}" for each in memory) + " GiB",
                f"{found['score']} "
                + " / ".join(f"{100 * each:.1f}" for each in scores),
            ]
        )
    steps = {found["steps"] for found in results["tasks"].values()}
    about = (
        f"MiniLM, LoRA of rank {RANK}, {results['dtype']}, batches of "
        f"{BATCH_SIZE}, {', '.join(map(str, sorted(steps)))} steps, "
        f"{results['rounds']} rounds"
    )
    return measuring.table(results, about, rows)


def main() -> None:
    """Runs the comparison.

    Raises:
        UserError: there is no such peer, no GLUE, or nothing to measure; rows
            cannot be read, or a process has died.
    """
    parser = measuring.make_parser(__doc__, rounds=4)
    parser.add_argument("--steps", type=int, default=16, help="a measurement's")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0])
    given = measuring.parse(parser)
    if not given.glue_dir:
        raise UserError(
            f"--glue_dir is missing, the folder of {' and '.join(TASKS)}; or "
            "set GLUE_DIR"
        )
    results: Dict[str, Any] = {
        **report.environment(),
        "rounds": given.rounds,
        "dtype": given.dtype,
        "tasks": {},
    }
    for name in TASKS:
        folder = os.path.join(given.glue_dir, name)
        found = compare(name, folder, given.steps, given)
        results["tasks"][name] = found
        print(name, json.dumps(found, indent=1), flush=True)
    print(to_markdown(results))
    files.write_json(str(report.RESULTS / "vectors.json"), results)


if __name__ == "__main__":
    command_line.run(main)
