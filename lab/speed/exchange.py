"""Checks that other programs compute equal logits of exchanged adapters.

    .venv/bin/python -m lab.speed.exchange --peer_python=.venv-peer/bin/python

Both sides write adapters with random weights, which the other side reads. With
`--init_checkpoint` and `--adapter` a trained adapter is exchanged too. The
logits may differ by 1e-5. `--record=tests/golden/exchange` keeps the adapters
of both sides, with the peers' logits, for the tests.
"""

import argparse
import dataclasses
import glob
import os
import shutil
import subprocess
import tempfile
import zlib
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf

from adapter_bert import command_line, files
from adapter_bert.checkpoints import adapter_artifact, foreign_adapters
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.foreign_base import exported
from adapter_bert.checkpoints.model_card import make_card
from adapter_bert.checkpoints.weights import Weights, choose_initial_values
from adapter_bert.data.added_tokens import NEW
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.new_words import count_of
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.tasks.from_description import restore_task

PEER = os.path.abspath(
    os.path.join(os.path.dirname(__file__), "peers", "exchange.py")
)
TOLERANCE = 1e-5
EXAMPLES = "examples.npz"
LOGITS = "logits.npz"
# What cards call a BERT here.
BASE = "the_bert"

THREE: Dict[str, Any] = {
    "name": "custom",
    "pairs": False,
    "labels": ["not at all", "yes, of course", "größer ≥ 7 日本"],
}
NUMBER: Dict[str, Any] = {"name": "sts-b", "pairs": True, "regression": True}
QUESTIONS: Dict[str, Any] = {"name": "squad"}
LAYERS = {"layers": 3, "activation": "relu", "pooler": False, "bias": False}
# Program -> name -> method, task: of this project's adapters.
OURS: Dict[str, Dict[str, Tuple[str, Dict[str, Any]]]] = {
    "adapterhub": {
        "houlsby_7": ("houlsby(size=7, layer_norms=False)", THREE),
        "houlsby_48": (
            "houlsby(size=48, layers='1', nonlinearity='gelu_erf', "
            "sites='ffn', layer_norms=False)",
            NUMBER,
        ),
        "houlsby_attention": (
            "houlsby(size=5, nonlinearity='mish', sites='attention', "
            "layer_norms=False)",
            QUESTIONS,
        ),
        "pfeiffer_100": (
            "pfeiffer(size=100, nonlinearity='gelu')",
            {**THREE, "head": LAYERS},
        ),
        "pfeiffer_dropped": ("adapterdrop(2, 'pfeiffer', 5)", THREE),
        "pfeiffer_robust": (
            "adapterdrop(1, 'pfeiffer', 5, robust=True)",
            THREE,
        ),
        "parallel_7": ("parallel(size=7, scale=2.0)", NUMBER),
        "parallel_mish": (
            "parallel(size=3, layers='0,2', nonlinearity='mish')",
            {**QUESTIONS, "head": {**LAYERS, "bias": True}},
        ),
        "lora_7": ("lora(rank=7, alpha=16.0)", THREE),
        "lora_everywhere": (
            "lora(rank=3, alpha=2.5, "
            "targets='query,key,value,intermediate,output')",
            NUMBER,
        ),
        "prefix_4": ("prefix(length=4, reparameterize=False)", THREE),
        "mad_x_5": (
            "mad_x(size=5, inverse_size=3, nonlinearity='mish', layers='0,2')",
            QUESTIONS,
        ),
        "houlsby_sizes": (
            "houlsby(size=13, layer_norms=False, sizes='0:5,2:1', gating=True)",
            NUMBER,
        ),
        "mam_13": (
            "union(prefix(length=7, reparameterize=False), "
            "parallel(size=13, scale=2.0))",
            QUESTIONS,
        ),
        "unipelt_13": (
            "union(lora(rank=5, targets='key,output', gating=True), "
            "prefix(length=7, reparameterize=False, gating=True, "
            "shared_gating=False), pfeiffer(size=13, gating=True))",
            THREE,
        ),
        "prompt_7": ("prompt(length=7, heads_read='prompt')", THREE),
        "prompt_questions": ("prompt(length=3)", QUESTIONS),
        "noreft_3": (
            "loreft(rank=3, prefix=2, suffix=1, layers='0,2', "
            "orthogonal=False)",
            QUESTIONS,
        ),
        "direft_2": (
            "loreft(rank=2, orthogonal=False, subtract=False)",
            THREE,
        ),
    },
    "peft": {
        "lora_7": ("lora(rank=7, alpha=16.0)", THREE),
        "lora_everywhere": (
            "lora(rank=3, alpha=2.5, targets='query,key,value,"
            "attention_output,intermediate,output')",
            NUMBER,
        ),
        "lora_output": ("lora(rank=2, targets='value,output')", QUESTIONS),
        "ia3": ("ia3", THREE),
        "rslora_5": (
            "lora(5, 3.0, 'query,value,output', rs=true, "
            "rank_pattern='1:0, 2.query:0, output:7', "
            "alpha_pattern='0.value:0.7, 2:10')",
            THREE,
        ),
        "dora_5": (
            "dora(5, 3.0, 'query,intermediate', rank_pattern='2.query:13')",
            NUMBER,
        ),
        "dora_everywhere": (
            "dora(3, 2.5, 'query,key,value,attention_output,intermediate,"
            "output', rs=true)",
            QUESTIONS,
        ),
        "vera_5": (
            "vera(5, seed=13, targets='query,intermediate', layers='0,2')",
            THREE,
        ),
        "vera_37": ("vera(37, targets='value,output')", QUESTIONS),
        "lora_pooler": (
            "lora(5, 3.0, 'query,output,pooler', rank_pattern='1:3, pooler:7')",
            THREE,
        ),
        "dora_pooler": ("dora(5, 3.0, 'value,pooler')", NUMBER),
        "vera_pooler": ("vera(5, targets='key,pooler', layers='1')", THREE),
        "new_words": (
            "stack(lora(5, alpha_pattern='1:3'), new_words(2))",
            THREE,
        ),
    },
}


# The names of program and case, the method, and the greatest difference of all
# logits, of one adapter that both sides compute.
Comparison = Tuple[str, str, float]


def random_artifact(
    bert: FrozenBert, method: TuningMethod, task: Dict[str, Any], seed: int
) -> Artifact:
    """An adapter of this project's with random values."""
    restored = restore_task(task, {}, "a random adapter")
    table = bert.kind(method, restored).table
    rng = np.random.default_rng(seed)
    values = {}
    for p in table.parameters:
        if not p.trained and p.group != "parts":
            continue
        noise = rng.normal(0, 0.3, p.shape).astype(np.float32)
        values[p.name] = noise + ("ia3_scale" in p.name)
    config = {
        "method": str(method),
        "task": task,
        "base": bert.base.describe(),
        "bert_config": dataclasses.asdict(bert.config),
    }
    tokens = [f"new{n}" for n in range(count_of(method))]
    if tokens:
        config["tokenizer"] = {NEW: tokens}
    shapes = {name: value.shape for name, value in values.items()}
    weights = Weights("a random adapter", shapes, values.__getitem__)
    return Artifact(config, weights)


def logits(
    bert: FrozenBert, artifact: Artifact, examples: Dict[str, np.ndarray]
) -> np.ndarray:
    """This project's logits, float32.

    If the adapter has new words, one is each row's second token.

    Returns:
        [rows, classes], or of questions [rows, tokens, 2], 0 at padding.
    """
    source = artifact.weights.source
    count = examples["input_ids"].shape[1]
    settings = {"n_best_size": count}
    questions = artifact.config["task"]["name"] == "squad"
    task = restore_task(
        artifact.config["task"], settings if questions else {}, source
    )
    method = registry.parse(artifact.config["method"])
    new = count_of(method)
    if new:
        ids = examples["input_ids"].copy()
        ids[:, 1] = bert.config.vocab_size + np.arange(len(ids)) % new
        examples = {**examples, "input_ids": ids}
    kind = bert.kind(method, task)
    initial = choose_initial_values(
        kind.table.parameters, bert.weights, artifact.weights, seed=0
    )
    values = {
        p.name: tf.constant(initial[p.name](), tf.float32)
        for p in kind.table.parameters
        if p.trained or p.is_added
    }
    batch = {k: tf.constant(v, tf.int32) for k, v in examples.items()}
    batch["row"] = tf.range(len(examples["input_ids"]))
    outputs = {k: v.numpy() for k, v in kind.compute(values, batch).items()}
    if "logits" in outputs:
        return outputs["logits"]
    if "scores" in outputs:
        return outputs["scores"][:, np.newaxis]
    found = np.zeros((*examples["input_ids"].shape, 2), np.float32)
    for side, name in enumerate(("start", "end")):
        places = outputs[f"{name}_indexes"]
        np.put_along_axis(
            found[..., side], places, outputs[f"{name}_logits"], axis=1
        )
    return found * examples["input_mask"][..., np.newaxis]


def difference(
    ours: np.ndarray, folder: str, examples: Dict[str, np.ndarray]
) -> float:
    """The greatest between ours and the peer's logits in a folder."""
    with np.load(os.path.join(folder, LOGITS)) as file:
        theirs = file["logits"]
    if theirs.ndim == 3:
        theirs = theirs * examples["input_mask"][..., np.newaxis]
    return float(np.abs(ours - theirs).max())


def read_examples(folder: str) -> Dict[str, np.ndarray]:
    """`input_ids`, `input_mask` and `segment_ids`, int [rows, tokens]."""
    with np.load(os.path.join(folder, EXAMPLES)) as file:
        return dict(file)


def imported(
    folder: str, bert: FrozenBert, labels: Sequence[str] = ()
) -> Artifact:
    """A peer's adapter as this project has it."""
    foreign = foreign_adapters.read(folder, bert.config, labels=labels)
    foreign = foreign_adapters.complete(foreign, bert.weights, bert.config)
    shapes = {name: value.shape for name, value in foreign.values.items()}
    return Artifact(
        {"method": str(foreign.method), "task": foreign.task},
        Weights(folder, shapes, foreign.values.__getitem__),
    )


def compare_theirs(
    folder: str, bert: FrozenBert, examples: Dict[str, np.ndarray]
) -> Iterator[Comparison]:
    """Reads what the peers have written."""
    for program in foreign_adapters.PROGRAMS:
        for place in sorted(glob.glob(os.path.join(folder, program, "*"))):
            artifact = imported(place, bert)
            found = logits(bert, artifact, examples)
            yield (
                f"{os.path.relpath(place, folder)} -> here",
                artifact.config["method"],
                difference(found, place, examples),
            )


def our_artifacts(
    bert: FrozenBert,
) -> Iterator[Tuple[str, str, Artifact]]:
    """(program, case, adapter with random values) of all of `OURS`."""
    for program, cases in OURS.items():
        for case, (text, task) in cases.items():
            # So that a case stays as it is whatever others there are.
            seed = zlib.crc32(f"{program}/{case}".encode())
            method = registry.parse(text)
            yield program, case, random_artifact(bert, method, task, seed)


def compare_ours(
    folder: str, bert: FrozenBert, examples: Dict[str, np.ndarray], peer: str
) -> Iterator[Comparison]:
    """Writes adapters, which the peers load."""
    made = list(our_artifacts(bert))
    places = []
    for program, case, artifact in made:
        place = os.path.join(folder, "ours", program, case)
        foreign_adapters.write(
            program, place, exported(artifact, "our_task"), ""
        )
        os.remove(os.path.join(place, "README.md"))
        places.append(place)
    answer(peer, os.path.join(folder, "bert"), folder, places)
    for (program, case, artifact), place in zip(made, places):
        found = logits(bert, artifact, examples)
        yield (
            f"{case} -> {program}",
            artifact.config["method"],
            difference(found, place, examples),
        )


def compare_trained(
    folder: str, path: str, adapter: str, peer: str
) -> Iterator[Comparison]:
    """Writes a trained adapter for each program that can hold it."""
    bert = FrozenBert.open(path)
    artifact = adapter_artifact.read(adapter, bert.weights)
    method = artifact.config["method"]
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, bert.config.vocab_size, (16, 40))
    ids[:, 0], ids[:, -1] = 101, 102
    ones = np.ones_like(ids)
    examples = {"input_ids": ids, "input_mask": ones, "segment_ids": 0 * ones}
    examples["segment_ids"][:, 20:] = 1
    np.savez(os.path.join(folder, EXAMPLES), **examples)
    os.symlink(os.path.abspath(path), os.path.join(folder, BASE))
    ours = logits(bert, artifact, examples)
    for program in foreign_adapters.PROGRAMS:
        place = os.path.join(folder, program)
        named = dataclasses.replace(
            exported(artifact, "trained"), base_name=BASE
        )
        card = make_card(program, named, program, artifact.config, {}, {})
        try:
            foreign_adapters.write(program, place, named, card)
        except UserError as error:
            print(f"{adapter} -> {program}: refused: {error}")
            continue
        answer(peer, path, folder, [place])
        # Its usage lines have to work as they are.
        code = card.partition("```python\n")[2].partition("```")[0]
        run_peer([peer, "-c", code], cwd=folder)
        name = f"{adapter} -> {program}"
        yield name, method, difference(ours, place, examples)
        back = logits(bert, imported(place, bert), examples)
        yield f"{program} -> here", method, difference(back, place, examples)


def answer(peer: str, bert: str, folder: str, places: List[str]) -> None:
    """Lets the peers compute adapters that were written for them."""
    examples = os.path.join(folder, EXAMPLES)
    run_peer([peer, PEER, "answer", bert, examples, *places])


def run_peer(command: List[str], cwd: Optional[str] = None) -> None:
    """Runs a program in the peers' environment.

    Raises:
        UserError: it fails.
    """
    try:
        subprocess.run(
            command, check=True, stderr=subprocess.PIPE, text=True, cwd=cwd
        )
    except OSError as error:
        raise UserError(
            f"{command[0]} cannot be run: {error.strerror}; `make peers` makes "
            "the peers' environment"
        ) from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UserError(f"the peers failed: {last[0]}") from error


def report(comparisons: List[Comparison]) -> None:
    """Prints the differences.

    Raises:
        UserError: one is too great.
    """
    for name, method, found in comparisons:
        print(f"{found:.1e}  {name}  {method}")
    name, _, worst = max(comparisons, key=lambda c: c[2])
    if not worst <= TOLERANCE:
        raise UserError(
            f"{name} differs by {worst:.1e}, expected at most {TOLERANCE:.0e}"
        )
    print(f"{len(comparisons)} adapters, greatest difference {worst:.1e}")


def main() -> None:
    """Compares both directions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer_python", required=True, type=os.path.abspath)
    parser.add_argument("--record", help="folder for the tests' recordings")
    parser.add_argument("--init_checkpoint", help="a Hugging Face BERT")
    parser.add_argument("--adapter", action="append", default=[])
    arguments = parser.parse_args()
    if bool(arguments.adapter) != bool(arguments.init_checkpoint):
        raise UserError("--adapter and --init_checkpoint go together")
    if arguments.record and files.exists(arguments.record):
        raise UserError(f"--record {arguments.record} is there already")
    with tempfile.TemporaryDirectory() as folder:
        run_peer([arguments.peer_python, PEER, "write", folder])
        bert = FrozenBert.open(os.path.join(folder, "bert"))
        examples = read_examples(folder)
        found = [
            *compare_theirs(folder, bert, examples),
            *compare_ours(folder, bert, examples, arguments.peer_python),
        ]
        if arguments.record:
            shutil.copytree(folder, arguments.record)
    for adapter in arguments.adapter:
        with tempfile.TemporaryDirectory() as folder:
            path, peer = arguments.init_checkpoint, arguments.peer_python
            found += compare_trained(folder, path, adapter, peer)
    report(found)


if __name__ == "__main__":
    command_line.run(main)
