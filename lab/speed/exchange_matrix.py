"""The table of what is exchanged: method by head, program and direction.

    .venv/bin/python -m lab.speed.exchange_matrix \\
        --peer_python=.venv-peer/bin/python --table=results/exchange.md

Of every method of the registry and every kind of head an adapter with random
values is written for AdapterHub and for peft. The programs load it, give it
other values, and save it in their way, which is read here. Both sides compute
the same rows. A greater difference than 1e-5 is an error. `--record` keeps the
adapters of `RECORDED`, and those that the programs alone write, for the tests.
"""

import argparse
import dataclasses
import functools
import glob
import os
import re
import shutil
import tempfile
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf

from adapter_bert import command_line, files
from adapter_bert.checkpoints import foreign_adapters
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.foreign_base import exported
from adapter_bert.checkpoints.weights import choose_initial_values
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.composition import Composition, Union
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.kinds import (
    CHOICE,
    CLASSIFICATION,
    MASKED_LM,
    MULTI_LABEL,
    QUESTIONS,
    REGRESSION,
    TAGGING,
    kind_of,
)
from adapter_bert.tasks.masked_lm import WORD_EMBEDDINGS
from adapter_bert.tasks.task_model import TaskModel
from lab.speed import exchange
from lab.speed.exchange import TOLERANCE, run_peer

PEER = os.path.join(os.path.dirname(exchange.PEER), "exchange_matrix.py")
# Method -> arguments of odd sizes; a method that is not here has its defaults.
ARGUMENTS = {
    "houlsby": "13, layer_norms=False",
    "pfeiffer": "13, nonlinearity='mish'",
    "mad_x": "size=5, inverse_size=3, layers='0,2'",
    "parallel": "size=13, scale=2.5",
    "adapterdrop": "1, 'pfeiffer', 5",
    "lora": "rank=5, alpha=3.0, targets='query,key,value,output'",
    # A row of its own: other heads than of texts read no pooler.
    "lora pooler": "rank=5, targets='query,pooler', rank_pattern='pooler:7'",
    "dora": "rank=5, alpha=3.0, rank_pattern='2.query:13'",
    "vera": "rank=5, seed=13, layers='0,2'",
    "prefix": "length=7, reparameterize=False",
    "prompt": "length=7",
    "loreft": "rank=3, prefix=2, suffix=1, orthogonal=False",
    "union": "lora(rank=5), prefix(length=7, reparameterize=False), "
    "pfeiffer(13)",
}
# Other compositions are of trained adapters.
METHODS = [
    name
    for name, method in registry.METHODS.items()
    if not issubclass(method, Composition) or method is Union
]
METHODS.insert(METHODS.index("lora") + 1, "lora pooler")
TAGS = ["O", "B-per", "I-per", "B-größe", "I-größe"]
CHOICES = 2
# Head -> description of its task.
HEADS: Dict[str, Dict[str, Any]] = {
    CLASSIFICATION: exchange.THREE,
    "3 layers": {**exchange.THREE, "head": exchange.LAYERS},
    REGRESSION: {"name": "custom", "pairs": True, "regression": True},
    MULTI_LABEL: {
        **exchange.THREE,
        "multi_label": True,
        "label_threshold": 0.3,
    },
    TAGGING: {"name": TAGGING, "tags": TAGS},
    CHOICE: {"name": "custom", "pairs": True, "choices": CHOICES},
    QUESTIONS: {"name": "squad"},
    MASKED_LM: {"name": MASKED_LM},
}
# (Method, head) of the adapters that are kept for the tests.
RECORDED = (
    ("lora", CLASSIFICATION),
    ("lora", REGRESSION),
    ("lora", MULTI_LABEL),
    ("lora", TAGGING),
    ("lora", CHOICE),
    ("lora", QUESTIONS),
    ("lora", MASKED_LM),
    ("pfeiffer", "3 layers"),
    ("mad_x", MASKED_LM),
    ("prefix", TAGGING),
)
BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"


class Case(NamedTuple):
    """An adapter that goes to a program and comes back.

    Attributes:
        program: of `foreign_adapters.PROGRAMS`.
        method: its name.
        head: one of `HEADS`.
        artifact: this project's adapter.
        folder: where it is written; what comes back is in `<folder>_again`.
    """

    program: str
    method: str
    head: str
    artifact: Artifact
    folder: str


def outputs(
    bert: FrozenBert, artifact: Artifact, examples: Dict[str, np.ndarray]
) -> np.ndarray:
    """What this project computes, float32.

    Returns:
        [rows, classes]; of tokens [rows, tokens, tags or 2 places], 0 at
        padding; of choices [rows / C, C]; of masked words the logarithms of
        shares, [rows, tokens, V].
    """
    kind = kind_of(artifact.config["task"])
    if kind not in (TAGGING, CHOICE, MASKED_LM):
        return exchange.logits(bert, artifact, examples)
    task = restore_task(artifact.config["task"], {}, artifact.weights.source)
    method = registry.parse(artifact.config["method"])
    table = bert.kind(method, task).table
    initial = choose_initial_values(
        table.parameters, bert.weights, artifact.weights, seed=0
    )
    values = {
        p.name: tf.constant(initial[p.name](), tf.float32)
        for p in table.parameters
    }
    model = TaskModel(
        bert.config, method, task.build_head, lambda name, *_: values[name]
    )
    batch = {k: tf.constant(v, tf.int32) for k, v in examples.items()}
    rows, length = examples["input_ids"].shape
    words = bert.config.vocab_size
    if kind == MASKED_LM:
        # Each place is asked for each word.
        places, ids = np.divmod(np.arange(length * words), words)
        asked = {"masked_positions": places, "masked_ids": ids}
        for name, value in asked.items():
            whole = np.broadcast_to(value, (rows, len(value)))
            batch[name] = tf.constant(whole, tf.int32)
    batch["row"] = tf.range(rows)
    # A graph also where functions run eagerly: some kernels are for graphs.
    predict = tf.function(lambda: bert.predict(model, batch))
    found = {k: v.numpy() for k, v in predict.get_concrete_function()().items()}
    if kind == CHOICE:
        return found["logits"].reshape(-1, CHOICES)
    is_token = examples["input_mask"][..., np.newaxis]
    if kind == MASKED_LM:
        shares = found["log_probabilities"]
        return shares.reshape(rows, length, words) * is_token
    return found["logits"] * is_token


def difference(
    artifact: Artifact,
    folder: str,
    bert: FrozenBert,
    examples: Dict[str, np.ndarray],
) -> float:
    """The greatest between what both sides compute of an adapter.

    As a share of the greatest number, if that is above 1: logarithms of shares
    of masked words are.
    """
    found = outputs(bert, artifact, examples)
    size = max(1.0, float(np.abs(found).max()))
    return exchange.difference(found, folder, examples) / size


def imported(place: str, bert: FrozenBert) -> Artifact:
    """A peer's adapter; peft's files do not say how many choices there are."""
    lacks_choices = place.endswith(os.path.join("theirs", "peft", "choice"))
    labels = [f"choice{n}" for n in range(CHOICES)] if lacks_choices else []
    return exchange.imported(place, bert, labels)


def method_text(name: str) -> str:
    """A method with its arguments of odd sizes."""
    return f"{name.split()[0]}({ARGUMENTS.get(name, '')})"


def make_cases(
    bert: FrozenBert, folder: str, only: Optional[Tuple] = None
) -> Tuple[List[Case], Dict[Tuple[str, str, str], str]]:
    """Writes all adapters that can be, and says why others cannot."""
    cases, refused = [], {}
    words = bert.weights.read(WORD_EMBEDDINGS)
    wanted = only or [(m, h) for m in METHODS for h in HEADS]
    for number, (method, head) in enumerate(wanted):
        for program in foreign_adapters.PROGRAMS:
            name = re.sub(r"\W", "_", f"{method}_{head}")
            place = os.path.join(folder, "ours", program, name)
            try:
                artifact = exchange.random_artifact(
                    bert,
                    registry.parse(method_text(method)),
                    HEADS[head],
                    number,
                )
                ours = exported(artifact, "our_task")
                kept = dataclasses.replace(ours.head, words=words)
                ours = dataclasses.replace(ours, head=kept)
                foreign_adapters.write(program, place, ours, "")
            except UserError as error:
                refused[program, method, head] = str(error)
                continue
            os.remove(os.path.join(place, "README.md"))
            cases.append(Case(program, method, head, artifact, place))
    return cases, refused


def table(
    found: Dict[Tuple[str, str, str], Tuple[float, float]], program: str
) -> Iterator[str]:
    """Lines of a program's table: methods, heads, differences both ways."""
    names = [
        name
        for name in METHODS
        if any((program, name, head) in found for head in HEADS)
    ]
    yield "| method | " + " | ".join(HEADS) + " |"
    yield "|---|" + "---|" * len(HEADS)
    for name in names:
        cells = []
        for head in HEADS:
            both = found.get((program, name, head))
            cells.append(
                "-" if both is None else "{:.0e} / {:.0e}".format(*both)
            )
        yield f"| `{method_text(name)}` | " + " | ".join(cells) + " |"


def write_table(path: str, lines: List[str]) -> None:
    """Puts lines between the markers of a document.

    Raises:
        UserError: the document has no markers.
    """
    text = files.read_text(path, "the document")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{path} lacks {BEGIN} and {END}")
    middle = "\n".join(["", *lines, ""])
    files.write_text(path, f"{before}{begin}\n{middle}\n{end}{after}")


def compare(
    bert: FrozenBert,
    examples: Dict[str, np.ndarray],
    cases: List[Case],
) -> Dict[Tuple[str, str, str], Tuple[float, float]]:
    """The differences of each case, there and back."""
    compute = functools.partial(difference, bert=bert, examples=examples)
    found = {}
    for case in cases:
        there = compute(case.artifact, case.folder)
        place = f"{case.folder}_again"
        back = compute(imported(place, bert), place)
        found[case.program, case.method, case.head] = there, back
        print(f"{there:.1e} {back:.1e}  {os.path.basename(case.folder)}")
    return found


def main() -> None:
    """Exchanges all adapters, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer_python", required=True, type=os.path.abspath)
    parser.add_argument("--table", help="document that holds the table")
    parser.add_argument("--record", help="folder for the tests' recordings")
    arguments = parser.parse_args()
    if arguments.record and files.exists(arguments.record):
        raise UserError(f"--record {arguments.record} is there already")
    # Graphs of so many methods and heads take longer to build than to run.
    tf.config.run_functions_eagerly(True)
    with tempfile.TemporaryDirectory() as folder:
        run_peer([arguments.peer_python, PEER, "write", folder])
        path = os.path.join(folder, "bert")
        bert = FrozenBert.open(path)
        examples = exchange.read_examples(folder)
        only = RECORDED if arguments.record else None
        cases, refused = make_cases(bert, folder, only)
        for (program, method, head), reason in refused.items():
            print(f"{method} {head} -> {program}: refused: {reason}")
        asked = os.path.join(folder, exchange.EXAMPLES)
        places = [case.folder for case in cases]
        command = [arguments.peer_python, PEER, "again", path, asked]
        run_peer([*command, *places])
        found = compare(bert, examples, cases)
        for place in sorted(
            glob.glob(os.path.join(folder, "theirs", "*", "*"))
        ):
            there = difference(imported(place, bert), place, bert, examples)
            found[os.path.relpath(place, folder), "", ""] = there, there
            print(f"{there:.1e}  {os.path.relpath(place, folder)}")
        if arguments.record:
            shutil.copytree(folder, arguments.record)
    (case, worst), *_ = sorted(found.items(), key=lambda c: -max(c[1]))
    print(f"{len(found)} adapters, greatest difference {max(worst):.1e}")
    if not max(worst) <= TOLERANCE:
        raise UserError(f"{' '.join(case)} differs by {max(worst):.1e}")
    if arguments.table:
        lines: List[str] = []
        for program in foreign_adapters.PROGRAMS:
            lines += [f"**{program}**", "", *table(found, program), ""]
        write_table(arguments.table, lines[:-1])


if __name__ == "__main__":
    command_line.run(main)
