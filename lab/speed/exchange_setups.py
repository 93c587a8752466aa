"""Checks that AdapterHub's library computes equal logits of compositions.

    .venv/bin/python -m lab.speed.exchange_setups \
        --peer_python=.venv-peer/bin/python

As `lab.speed.exchange`, for what its `load_adapter_setup` loads, for fusions in
folders of their own, and for a language's adapter without a head.
`--record=tests/golden/exchange_setups` keeps the folders of both sides, with
the library's logits, for the tests.
"""

import argparse
import dataclasses
import glob
import os
import shutil
import tempfile
from typing import Any, Dict, Iterator, List, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf

from adapter_bert import command_line, files
from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints import foreign_adapters
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.adapterhub_setup import without_pooler
from adapter_bert.checkpoints.foreign_base import Foreign, exported
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.tasks.kinds import MASKED_LM, kind_of
from adapter_bert.tasks.masked_lm import MaskedLMHead, Masking
from lab.speed import exchange
from lab.speed.exchange import LOGITS, NUMBER, QUESTIONS, THREE, Comparison

PEER = os.path.join(os.path.dirname(exchange.PEER), "exchange_setups.py")
HUB = "adapterhub"
GUESSES: Dict[str, Any] = {"name": MASKED_LM, **Masking().describe()}
TWO = "'a': pfeiffer(13), 'b': pfeiffer(7)"
HOULSBY = "houlsby({}, layer_norms=False)"
# What is written with one call: name -> method, task, of this project's.
OURS: Dict[str, Dict[str, Tuple[str, Dict[str, Any]]]] = {
    "stack_language": {
        "task": ("stack({'en': mad_x(13, 3)}, pfeiffer(7))", THREE)
    },
    "stack_two_trained": {
        "task": (
            "stack(prefix(length=7, reparameterize=False), "
            "parallel(13, scale=2.0))",
            NUMBER,
        )
    },
    "stack_dropped": {
        "task": (
            "stack({'a.b': adapterdrop(1, 'pfeiffer', 5)}, "
            f"{HOULSBY.format(13)})",
            QUESTIONS,
        )
    },
    "average": {"mean": (f"average({{{TWO}}}, weights='0.7,0.3')", THREE)},
    "average_scaled": {
        "mean": (
            f"average({{'a': {HOULSBY.format(13)}, 'b': {HOULSBY.format(5)}}}, "
            "scale=0.3)",
            NUMBER,
        )
    },
    "average_lora": {
        "mean": (
            "average({'a': lora(rank=5), 'b': lora(rank=3, alpha=2.0), "
            "'c': lora(rank=1)}, weights='1,2,3', scale=0.4)",
            THREE,
        )
    },
    "fusion": {"fused": (f"fusion({{{TWO}}})", QUESTIONS)},
    "fusion_first": {
        "fused": (
            f"fusion({{'a': {HOULSBY.format(13)}, 'b': {HOULSBY.format(5)}}}, "
            "value=False, first=1)",
            THREE,
        )
    },
    "fusion_alone": {
        "b": (
            "fusion({'a': pfeiffer(13, layers='1'), 'b': pfeiffer(7)})",
            THREE,
        )
    },
    "stack_fusion": {
        "task": (
            f"stack({{'en': mad_x(5, 3), 'f': fusion({{{TWO}}})}})",
            NUMBER,
        )
    },
    "stack_average": {
        "task": (
            f"stack({{'m': average({{{TWO}}}, weights='1,3')}}, pfeiffer(3))",
            THREE,
        )
    },
    "parallel": {
        "mrpc": ("pfeiffer(13)", THREE),
        "rte": ("pfeiffer(7)", NUMBER),
        "squad": ("pfeiffer(5)", QUESTIONS),
    },
    "language": {"en": ("mad_x(13, 3)", GUESSES)},
}


def logits(
    bert: FrozenBert, artifact: Artifact, examples: Dict[str, np.ndarray]
) -> np.ndarray:
    """As of `exchange`; of masked words float32 [rows, tokens, words]."""
    if kind_of(artifact.config["task"]) != MASKED_LM:
        return exchange.logits(bert, artifact, examples)
    config, own = bert.config, artifact.weights
    method = registry.parse(artifact.config["method"])

    def create(name: str, shape: Any, initializer: Any) -> tf.Tensor:
        source = own if name in own.shapes else bert.weights
        return tf.constant(source.read(name), tf.float32)

    added = method.variables(config, pooler=False)
    values = {name: create(name, (), None) for name in added}
    variables = encoder.make_variables(encoder.declare(config, False), create)
    model = encoder.Bert(config, variables, method.hooks(config, values))
    head = MaskedLMHead(config, create)
    ids, mask, segments = (
        tf.constant(examples[name], tf.int32)
        for name in ("input_ids", "input_mask", "segment_ids")
    )
    context = Context(mask)
    output = model(ids, segments, context)
    everywhere = tf.broadcast_to(tf.range(ids.shape[1]), ids.shape)
    found = head(model, output.sequence_output, context, everywhere, ids)
    return found["logits"].numpy() * examples["input_mask"][..., np.newaxis]


def differences(
    ours: List[np.ndarray], folder: str, examples: Dict[str, np.ndarray]
) -> float:
    """The greatest between ours and the library's logits in a folder."""
    with np.load(os.path.join(folder, LOGITS)) as file:
        theirs = [file[name] for name in sorted(file.files)]
    mask, worst = examples["input_mask"], 0.0
    for own, other in zip(ours, theirs):
        if other.ndim == 3:
            other = other * mask[..., np.newaxis]
        worst = max(worst, float(np.abs(own - other).max()))
    return worst if len(ours) == len(theirs) else float("nan")


def imported(bert: FrozenBert, folder: str) -> Dict[str, Artifact]:
    """The library's adapters of a folder as this project has them, by name."""
    found = foreign_adapters.read_all(folder, bert.config)
    return {name: _artifact(bert, one, folder) for name, one in found.items()}


def _artifact(bert: FrozenBert, foreign: Foreign, folder: str) -> Artifact:
    values = foreign_adapters.complete(
        foreign, bert.weights, bert.config
    ).values
    config = {
        "method": str(foreign.method),
        "task": foreign.task,
        "base": bert.base.describe(),
        "bert_config": dataclasses.asdict(bert.config),
    }
    shapes = {name: value.shape for name, value in values.items()}
    return Artifact(config, Weights(folder, shapes, values.__getitem__))


def our_artifacts(
    bert: FrozenBert,
) -> Iterator[Tuple[str, Dict[str, Artifact]]]:
    """Adapters with random values, by name, of each case of `OURS`."""
    seed = 0
    for case, several in OURS.items():
        found = {}
        for name, (text, task) in several.items():
            seed += 1
            found[name] = exchange.random_artifact(
                bert, registry.parse(text), task, seed
            )
            if task is GUESSES:
                found[name] = _with_berts_head(bert, found[name])
        yield case, found


def _with_berts_head(bert: FrozenBert, artifact: Artifact) -> Artifact:
    """A language's adapter that answers with BERT's own head."""
    own = artifact.weights

    def read(name: str) -> np.ndarray:
        return (bert.weights if name.startswith("cls/") else own).read(name)

    weights = dataclasses.replace(own, read=read)
    return dataclasses.replace(artifact, weights=weights)


def write(bert: FrozenBert, several: Dict[str, Artifact], folder: str) -> None:
    """Writes adapters for the library, as one setup if they are several."""
    made = [
        exported(one, name, one.config["task"] != GUESSES)
        for name, one in several.items()
    ]
    if len(made) > 1:
        made = [without_pooler(one, bert.weights) for one in made]
    first, *others = made
    foreign_adapters.write(HUB, folder, first, "", others)
    os.remove(os.path.join(folder, "README.md"))


def compare_theirs(
    folder: str, bert: FrozenBert, examples: Dict[str, np.ndarray]
) -> Iterator[Comparison]:
    """Reads what the library has written."""
    places = glob.glob(os.path.join(folder, HUB, "*"))
    places += glob.glob(os.path.join(folder, "fusion_folders", "*"))
    for place in sorted(places):
        found = imported(bert, place)
        ours = [logits(bert, one, examples) for one in found.values()]
        methods = " and ".join(one.config["method"] for one in found.values())
        name = f"{os.path.relpath(place, folder)} -> here"
        yield name, methods, differences(ours, place, examples)


def compare_ours(
    folder: str, bert: FrozenBert, examples: Dict[str, np.ndarray], peer: str
) -> Iterator[Comparison]:
    """Writes folders, which the library loads."""
    made = dict(our_artifacts(bert))
    places = {case: os.path.join(folder, "ours", case) for case in made}
    for case, several in made.items():
        write(bert, several, places[case])
    path = os.path.join(folder, exchange.EXAMPLES)
    command = [peer, PEER, "answer", os.path.join(folder, "bert"), path]
    exchange.run_peer([*command, *places.values()])
    for case, several in made.items():
        ours = [logits(bert, one, examples) for one in several.values()]
        methods = " and ".join(one.config["method"] for one in several.values())
        found = differences(ours, places[case], examples)
        yield f"{case} -> {HUB}", methods, found


def main() -> None:
    """Compares both directions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer_python", required=True, type=os.path.abspath)
    parser.add_argument("--record", help="folder for the tests' recordings")
    arguments = parser.parse_args()
    if arguments.record and files.exists(arguments.record):
        raise UserError(f"--record {arguments.record} is there already")
    with tempfile.TemporaryDirectory() as folder:
        exchange.run_peer([arguments.peer_python, PEER, "write", folder])
        bert = FrozenBert.open(os.path.join(folder, "bert"))
        examples = exchange.read_examples(folder)
        found = [
            *compare_theirs(folder, bert, examples),
            *compare_ours(folder, bert, examples, arguments.peer_python),
        ]
        if arguments.record:
            shutil.copytree(folder, arguments.record)
    exchange.report(found)


if __name__ == "__main__":
    command_line.run(main)
