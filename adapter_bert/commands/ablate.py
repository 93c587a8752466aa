"""Writes a run's adapter without the adapters of each span of layers.

    .venv/bin/adapter-bert ablate RUN OUTPUT_DIR [BERT]

Prints BERT, or the path of the run's BERT, then the name of each artifact.
OUTPUT_DIR/adapters gets the artifacts: `none`, where nothing is taken out, and
`layers<first>-<last>`; ablation.json describes them. Zeros in an adapter's
up-projection make the adapter the exact identity.
"""

import os
import re
import sys

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact, run_record
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.tasks.kinds import TAGGING, find_kind, kind_of

# Methods whose adapters end in `weights2` and `biases2`.
METHODS = ("houlsby", "pfeiffer", "bapna", "parallel")
ABOUT_FILE = "ablation.json"
UP = re.compile(r"bert/encoder/layer_(\d+)/.*(weights2|biases2)")


def ablate(
    values: dict[str, np.ndarray], first: int, last: int
) -> dict[str, np.ndarray]:
    """Gets the values, with zero up-projections in layers `first` to `last`."""

    def is_inside(name: str) -> bool:
        match = UP.fullmatch(name)
        return bool(match) and first <= int(match.group(1)) <= last

    return {
        name: np.zeros_like(value) if is_inside(name) else value
        for name, value in values.items()
    }


def ablate_run(run: str, output: str) -> list[str]:
    """Writes all artifacts, and returns their names."""
    artifact = adapter_artifact.read(os.path.join(run, "adapter"))
    config = artifact.config
    method = registry.parse(config["method"])
    if method.name not in METHODS:
        raise UserError(
            f"{run} was trained with {method}, which has no adapters to take "
            f"out; expected one of {', '.join(METHODS)}"
        )
    values = artifact.weights.read_all()
    about = os.path.join(output, ABOUT_FILE)
    if files.exists(about) and (
        files.read_object(about, "the ablation", {"sha256": str})["sha256"]
        != config["sha256"]
    ):
        raise UserError(
            f"{output} holds the ablation of another adapter; choose another "
            "OUTPUT_DIR"
        )
    layers = run_record.bert_config(config, run).num_hidden_layers
    spans = {"none": (0, -1)} | {
        f"layers{first}-{last}": (first, last)
        for first in range(layers)
        for last in range(first, layers)
    }
    for name, (first, last) in spans.items():
        folder = os.path.join(output, "adapters", name)
        files.prepare_folder(folder)
        adapter_artifact.write(folder, config, ablate(values, first, last))
    task = config["task"]["name"]
    # The paper shows CoLA in accuracy, too.
    score = find_kind(kind_of(config["task"])).main_score
    files.write_json(
        about,
        {
            "name": config.get("data_name") or ""
            if task in ("custom", TAGGING)
            else task,
            "task": task,
            "score": score,
            "layers": layers,
            "sha256": config["sha256"],
        },
    )
    return list(spans)


def main() -> None:
    """Prints the lines that `ablate.sh` reads; raises as `ablate_run`."""
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: .venv/bin/adapter-bert ablate RUN OUTPUT_DIR [BERT]")
    run, output, *bert = sys.argv[1:]
    base = bert[0] if bert else run_record.place_of_base(run)
    print(base, *ablate_run(run, output), sep="\n")
