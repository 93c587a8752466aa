"""Checks that other programs compute equal logits of models like BERT.

    .venv/bin/python -m lab.speed.exchange_architectures \\
        --peer_python=.venv-peer/bin/python

For each model of `MODELS` both sides write adapters with
random weights, which the other side reads. This project also writes whole
models with an adapter merged into them, which transformers loads. The logits
may differ by 1e-5. `--record=tests/golden/exchange_architectures` keeps what
both sides wrote, with the peers' logits, for the tests.
"""

import argparse
import os
import shutil
import tempfile
import zlib
from typing import Any, Dict, Iterator, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert import command_line, files
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.hooks import rename_layer
from adapter_bert.checkpoints import (
    foreign_adapters,
    sources,
    written_form,
)
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.foreign_base import exported
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.commands.merge import add
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import parse
from adapter_bert.serving.frozen_bert import FrozenBert
from lab.speed.exchange import (
    NUMBER,
    QUESTIONS,
    THREE,
    Comparison,
    compare_theirs,
    difference,
    logits,
    random_artifact,
    read_examples,
    report,
    run_peer,
)

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
GOLDEN = os.path.join(ROOT, "tests", "golden")
PEER = os.path.join(
    os.path.dirname(__file__), "peers", "exchange_architectures.py"
)
# Models, and their folders in `GOLDEN`.
MODELS = {
    "distilbert": "architectures/distilbert",
    "electra": "architectures/electra",
    "albert": "architectures/albert",
    "roberta": "roberta/roberta",
    "mpnet": "architectures/mpnet",
}
# Program -> name -> method, task: of this project's adapters.
OURS: Dict[str, Dict[str, Tuple[str, Dict[str, Any]]]] = {
    "adapterhub": {
        "houlsby": ("houlsby(size=5, layer_norms=False)", THREE),
        "pfeiffer": ("pfeiffer(size=7, nonlinearity='mish')", QUESTIONS),
        "lora": (
            "lora(rank=3, alpha=2.5, "
            "targets='query,key,value,intermediate,output')",
            NUMBER,
        ),
        "prefix": ("prefix(length=3, reparameterize=False)", THREE),
    },
    "peft": {
        "lora": (
            "lora(rank=3, alpha=2.5, targets='query,key,value,"
            "attention_output,intermediate,output', alpha_pattern='query:7')",
            THREE,
        ),
        "lora_output": ("lora(rank=2, targets='value,output')", QUESTIONS),
        "dora": ("dora(rank=3, targets='query,intermediate')", NUMBER),
        "vera": ("vera(5, seed=13, targets='query,intermediate')", QUESTIONS),
        "ia3": ("ia3", THREE),
    },
}
# Of the model into which an adapter is merged, whose labels are sorted.
MERGED = "merged"
TWO = {**THREE, "labels": ["bad", "good"]}


def one_for_all(artifact: Artifact) -> Artifact:
    """An adapter with the values of the first layer in all layers."""
    weights = artifact.weights
    return Artifact(
        artifact.config,
        Weights(
            weights.source,
            weights.shapes,
            lambda name: weights.read(rename_layer(name, 0)),
        ),
    )


def our_artifact(
    bert: FrozenBert, case: str, text: str, task: Dict[str, Any]
) -> Artifact:
    """An adapter with random values, the same in layers that are shared."""
    seed = zlib.crc32(case.encode())
    found = random_artifact(bert, parse(text), task, seed)
    return one_for_all(found) if bert.config.num_hidden_groups else found


def our_artifacts(bert: FrozenBert) -> Iterator[Tuple[str, str, Artifact]]:
    """(program, case, adapter with random values) of all of `OURS`."""
    own = ARCHITECTURES[bert.config.model_type]
    for program, cases in OURS.items():
        if program == "adapterhub" and not own.in_adapterhub:
            continue
        for case, (text, task) in cases.items():
            if bert.config.num_hidden_groups and case == "houlsby":
                # After the attention the library's adapters are other ones.
                text = "houlsby(size=5, sites='ffn', layer_norms=False)"
            artifact = our_artifact(bert, f"{program}/{case}", text, task)
            yield program, case, artifact


def merged(bert: FrozenBert) -> Tuple[Artifact, Dict[str, Any]]:
    """An adapter, and the arguments of `write_model` with it merged."""
    artifact = our_artifact(bert, MERGED, OURS["peft"]["lora"][0], TWO)
    return artifact, add(bert.weights, [artifact], [1.0])


def write_merged(model: str, folder: str, found: Dict[str, Any]) -> None:
    """Writes a merged model with the tokenizer of the model in a folder."""
    files.make_folder(folder)
    opened = sources.open_init_checkpoint(model)
    path, config = sources.find_vocabulary(opened), found["config"]
    tokenizer = sources.read_tokenizer(opened, config, path)
    fields = written_form.tokenizer_fields(config, tokenizer)
    written_form.write_vocabulary(folder, path, tokenizer, **fields)
    written_form.write_model(folder, written_form.HUGGING_FACE, **found)


def compare(name: str, folder: str, peer: str) -> Iterator[Comparison]:
    """Exchanges adapters of a model in both directions."""
    model = os.path.join(GOLDEN, MODELS[name])
    run_peer([peer, PEER, "write", model, folder])
    bert = FrozenBert.open(model)
    examples = read_examples(folder)
    for place, method, worst in compare_theirs(folder, bert, examples):
        yield f"{name}: {place}", method, worst
    made = list(our_artifacts(bert))
    places = [os.path.join(folder, "ours", *names) for *names, _ in made]
    for (program, _, artifact), place in zip(made, places):
        ours = exported(artifact, "our_task")
        foreign_adapters.write(program, place, ours, "")
        os.remove(os.path.join(place, "README.md"))
    artifact, found = merged(bert)
    made.append(("transformers", MERGED, artifact))
    places.append(os.path.join(folder, MERGED))
    write_merged(model, places[-1], found)
    rows = os.path.join(folder, "examples.npz")
    run_peer([peer, PEER, "answer", model, rows, *places])
    for (program, case, artifact), place in zip(made, places):
        worst = difference(logits(bert, artifact, examples), place, examples)
        yield f"{name}: {case} -> {program}", artifact.config["method"], worst


def main() -> None:
    """Compares all models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer_python", required=True, type=os.path.abspath)
    parser.add_argument("--record", help="folder for the tests' recordings")
    parser.add_argument("--models", default=",".join(MODELS))
    arguments = parser.parse_args()
    if arguments.record and files.exists(arguments.record):
        raise UserError(f"--record {arguments.record} is there already")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models.split(","):
            place = os.path.join(folder, name)
            os.mkdir(place)
            found += compare(name, place, arguments.peer_python)
        if arguments.record:
            shutil.copytree(folder, arguments.record)
    report(found)


if __name__ == "__main__":
    command_line.run(main)
