"""Checks that other programs compute equal outputs of exchanged adapters.

    .venv/bin/python -m lab.exchange --peer_python=.venv-peer/bin/python

For tiny models of `MODELS` this project writes adapters with random values for
AdapterHub's library and for peft. They load each one, give it other values, and
save it in their way. They also write adapters that have no twin here, and load
a model with an adapter merged into it. Both sides compute the same rows. A
difference above 1e-5 is an error. The last lines are tables of what BERT's
adapters gave, there and back.
"""

import argparse
import dataclasses
import functools
import glob
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf

from adapter_bert import command_line, files
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.bert.hooks import rename_layer
from adapter_bert.checkpoints import (
    sources,
    written_form,
)
from adapter_bert.checkpoints.adapter_artifact import Artifact, read
from adapter_bert.checkpoints.weights import Weights, choose_initial_values
from adapter_bert.commands.merge import add
from adapter_bert.data.added_tokens import NEW
from adapter_bert.errors import UserError
from adapter_bert.exchange import (
    foreign_adapters,
)
from adapter_bert.exchange.foreign_base import Exported, exported
from adapter_bert.exchange.model_card import make_card
from adapter_bert.methods import registry
from adapter_bert.methods.composition import Composition, Union
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEER = os.path.join(ROOT, "lab", "peer_exchange.py")
TOLERANCE = 1e-5
# Models, and their folders in tests/golden.
MODELS = {
    "bert": "exchange_heads/bert",
    "distilbert": "architectures/distilbert",
    "electra": "architectures/electra",
    "albert": "architectures/albert",
    "roberta": "roberta/roberta",
    "mpnet": "architectures/mpnet",
}

THREE: dict[str, Any] = {
    "name": "custom",
    "pairs": False,
    "labels": ["not at all", "yes, of course", "größer ≥ 7 日本"],
}
NUMBER: dict[str, Any] = {"name": "sts-b", "pairs": True, "regression": True}
SPANS: dict[str, Any] = {"name": "squad"}
LAYERS = {"layers": 3, "activation": "relu", "pooler": False, "bias": False}
TAGS = ["O", "B-per", "I-per", "B-größe", "I-größe"]
CHOICES = 2
# Head -> description of its task.
HEADS: dict[str, dict[str, Any]] = {
    CLASSIFICATION: THREE,
    "3 layers": {**THREE, "head": LAYERS},
    REGRESSION: {"name": "custom", "pairs": True, "regression": True},
    MULTI_LABEL: {**THREE, "multi_label": True, "label_threshold": 0.3},
    TAGGING: {"name": TAGGING, "tags": TAGS},
    CHOICE: {"name": "custom", "pairs": True, "choices": CHOICES},
    QUESTIONS: SPANS,
    MASKED_LM: {"name": MASKED_LM},
}
# Method -> arguments of odd sizes, with every head; a method that is not here
# has its defaults.
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
WIDE = "query,key,value,attention_output,intermediate,output"
# Program -> name -> method, task: with one head.
CASES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
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
            SPANS,
        ),
        "pfeiffer_100": (
            "pfeiffer(size=100, nonlinearity='gelu')",
            HEADS["3 layers"],
        ),
        "pfeiffer_dropped": ("adapterdrop(2, 'pfeiffer', 5)", THREE),
        "pfeiffer_robust": (
            "adapterdrop(1, 'pfeiffer', 5, robust=True)",
            THREE,
        ),
        "parallel_7": ("parallel(size=7, scale=2.0)", NUMBER),
        "parallel_mish": (
            "parallel(size=3, layers='0,2', nonlinearity='mish')",
            {**SPANS, "head": {**LAYERS, "bias": True}},
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
            SPANS,
        ),
        "houlsby_sizes": (
            "houlsby(size=13, layer_norms=False, sizes='0:5,2:1', gating=True)",
            NUMBER,
        ),
        "mam_13": (
            "union(prefix(length=7, reparameterize=False), "
            "parallel(size=13, scale=2.0))",
            SPANS,
        ),
        "unipelt_13": (
            "union(lora(rank=5, targets='key,output', gating=True), "
            "prefix(length=7, reparameterize=False, gating=True, "
            "shared_gating=False), pfeiffer(size=13, gating=True))",
            THREE,
        ),
        "prompt_7": ("prompt(length=7, heads_read='prompt')", THREE),
        "prompt_questions": ("prompt(length=3)", SPANS),
        "noreft_3": (
            "loreft(rank=3, prefix=2, suffix=1, layers='0,2', "
            "orthogonal=False)",
            SPANS,
        ),
        "direft_2": (
            "loreft(rank=2, orthogonal=False, subtract=False)",
            THREE,
        ),
        "houlsby": ("houlsby(size=5, layer_norms=False)", THREE),
        "pfeiffer": ("pfeiffer(size=7, nonlinearity='mish')", SPANS),
        "lora": (
            "lora(rank=3, alpha=2.5, "
            "targets='query,key,value,intermediate,output')",
            NUMBER,
        ),
        "prefix": ("prefix(length=3, reparameterize=False)", THREE),
    },
    "peft": {
        "lora_7": ("lora(rank=7, alpha=16.0)", THREE),
        "lora_everywhere": (
            f"lora(rank=3, alpha=2.5, targets='{WIDE}')",
            NUMBER,
        ),
        "lora_output": ("lora(rank=2, targets='value,output')", SPANS),
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
        "dora_everywhere": (f"dora(3, 2.5, '{WIDE}', rs=true)", SPANS),
        "vera_5": (
            "vera(5, seed=13, targets='query,intermediate', layers='0,2')",
            THREE,
        ),
        "vera_37": ("vera(37, targets='value,output')", SPANS),
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
        "lora": (
            f"lora(rank=3, alpha=2.5, targets='{WIDE}', "
            "alpha_pattern='query:7')",
            THREE,
        ),
        "dora": ("dora(rank=3, targets='query,intermediate')", NUMBER),
        "vera": ("vera(5, seed=13, targets='query,intermediate')", SPANS),
    },
}
# Of these, those of every model.
OF_ALL = {
    "adapterhub": ["houlsby", "pfeiffer", "lora", "prefix"],
    "peft": ["lora", "lora_output", "dora", "vera", "ia3"],
}
# Of the model into which an adapter is merged, whose labels are sorted.
MERGED = "merged"
TWO = {**THREE, "labels": ["bad", "good"]}


def random_artifact(
    bert: FrozenBert, method: str, task: dict[str, Any], seed: int
) -> Artifact:
    """Makes an adapter of this project's with random values."""
    parsed = registry.parse(method)
    table = bert.kind(parsed, restore_task(task, {}, "an adapter")).table
    rng = np.random.default_rng(seed)
    values = {}
    for p in table.parameters:
        if not p.trained and p.group != "parts":
            continue
        noise = rng.normal(0, 0.3, p.shape).astype(np.float32)
        values[p.name] = noise + ("ia3_scale" in p.name)
    config = {
        "method": str(parsed),
        "task": task,
        "base": bert.base.describe(),
        "bert_config": dataclasses.asdict(bert.config),
    }
    tokens = [f"new{n}" for n in range(parsed.new_words)]
    if tokens:
        config["tokenizer"] = {NEW: tokens}
    shapes = {name: value.shape for name, value in values.items()}
    weights = Weights("a random adapter", shapes, values.__getitem__)
    return Artifact(config, weights)


def one_for_all(artifact: Artifact) -> Artifact:
    """Gives all layers the values of the first layer."""
    weights = artifact.weights

    def read(name: str) -> np.ndarray:
        return weights.read(rename_layer(name, 0))

    return dataclasses.replace(
        artifact, weights=dataclasses.replace(weights, read=read)
    )


def our_artifact(
    bert: FrozenBert, case: str, method: str, task: dict[str, Any]
) -> Artifact:
    """Makes a case's adapter, with one for all layers that are shared."""
    is_shared = bool(bert.config.num_hidden_groups)
    if is_shared and case == "adapterhub/houlsby":
        # After the attention the library's adapters are other ones.
        method = "houlsby(size=5, sites='ffn', layer_norms=False)"
    # So that a case stays as it is, no matter which others there are.
    made = random_artifact(bert, method, task, zlib.crc32(case.encode()))
    return one_for_all(made) if is_shared else made


def outputs(
    bert: FrozenBert, artifact: Artifact, examples: dict[str, np.ndarray]
) -> np.ndarray:
    """Computes rows here, float32; new words are each row's second token.

    Returns:
        [rows, classes]; of tokens [rows, tokens, tags or 2 places], 0 at
        padding; of choices [rows / C, C]; of masked words the logarithms of
        shares, [rows, tokens, V].
    """
    described = artifact.config["task"]
    what, ids = kind_of(described), examples["input_ids"].copy()
    rows, length = ids.shape
    settings = {"n_best_size": length} if what == QUESTIONS else {}
    task = restore_task(described, settings, artifact.weights.source)
    method = registry.parse(artifact.config["method"])
    new, words = method.new_words, bert.config.vocab_size
    if new:
        ids[:, 1] = words + np.arange(rows) % new
    batch = {**examples, "input_ids": ids, "row": np.arange(rows)}
    kind, more = bert.kind(method, task), {}
    if what == MASKED_LM:
        # Each place is asked for each word.
        places = np.divmod(np.arange(length * words), words)
        for name, value in zip(("masked_positions", "masked_ids"), places):
            batch[name] = np.broadcast_to(value, (rows, len(value)))
            more[name] = tf.TensorSpec([None, None], tf.int32)
    function = bert.function(
        (kind.key, what),
        kind.table,
        lambda create: TaskModel(bert.config, method, task.build_head, create),
        more,
    ).get_concrete_function()
    initial = choose_initial_values(
        kind.table.parameters, bert.weights, artifact.weights, seed=0
    )
    values = {
        p.name: tf.constant(initial[p.name](), tf.float32)
        for p in kind.table.parameters
        if p.trained or p.is_added
    }
    batch = {k: tf.constant(v, tf.int32) for k, v in batch.items()}
    computed = {k: v.numpy() for k, v in function(values, batch).items()}
    is_token = examples["input_mask"][..., np.newaxis]
    if what == REGRESSION:
        return computed["scores"][:, np.newaxis]
    if what == CHOICE:
        return computed["logits"].reshape(-1, CHOICES)
    if what == MASKED_LM:
        shares = computed["log_probabilities"]
        return shares.reshape(rows, length, words) * is_token
    if what != QUESTIONS:
        logits = computed["logits"]
        return logits * is_token if what == TAGGING else logits
    spans = np.zeros((rows, length, 2), np.float32)
    for side, name in enumerate(("start", "end")):
        np.put_along_axis(
            spans[..., side],
            computed[f"{name}_indexes"],
            computed[f"{name}_logits"],
            axis=1,
        )
    return spans * is_token


def difference(
    bert: FrozenBert,
    artifact: Artifact,
    folder: str,
    examples: dict[str, np.ndarray],
) -> float:
    """Finds the greatest difference from the peer's outputs in a folder.

    Of logarithms of shares it is a share of the greatest one.
    """
    ours = outputs(bert, artifact, examples)
    with np.load(os.path.join(folder, "logits.npz")) as file:
        theirs = file["logits"]
    if theirs.ndim == 3:
        theirs = theirs * examples["input_mask"][..., np.newaxis]
    is_shares = kind_of(artifact.config["task"]) == MASKED_LM
    size = np.abs(ours).max() if is_shares else 1.0
    return float(np.abs(ours - theirs).max() / size)


def imported(
    bert: FrozenBert, folder: str, labels: tuple[str, ...] = ()
) -> Artifact:
    """Reads a peer's adapter as this project has it."""
    [foreign] = foreign_adapters.read_all(
        folder, bert.config, labels=labels
    ).values()
    foreign = foreign_adapters.complete(foreign, bert.weights, bert.config)
    shapes = {name: value.shape for name, value in foreign.values.items()}
    return Artifact(
        {"method": str(foreign.method), "task": foreign.task},
        Weights(folder, shapes, foreign.values.__getitem__),
    )


def prepared(bert: FrozenBert, artifact: Artifact) -> Exported:
    """Makes what is written for a program, which a head of words needs too."""
    ours = exported(artifact, "our_task")
    words = bert.weights.read(WORD_EMBEDDINGS)
    return dataclasses.replace(
        ours, head=dataclasses.replace(ours.head, words=words)
    )


def merged(bert: FrozenBert) -> tuple[Artifact, dict[str, Any]]:
    """Makes an adapter, and the arguments of `write_model` with it merged."""
    artifact = our_artifact(bert, MERGED, CASES["peft"]["lora"][0], TWO)
    return artifact, add(bert.weights, [artifact], [1.0])


def write_merged(model: str, folder: str, made: dict[str, Any]) -> None:
    """Writes a merged model with the tokenizer of the model in a folder."""
    files.make_folder(folder)
    opened = sources.open_init_checkpoint(model)
    path, config = sources.find_vocabulary(opened), made["config"]
    tokenizer = sources.read_tokenizer(opened, config, path)
    fields = written_form.tokenizer_fields(config, tokenizer)
    vocabulary = written_form.tokenizer_files(path, tokenizer, **fields)
    written_form.write_files(folder, vocabulary)
    written_form.write_model(folder, written_form.HUGGING_FACE, **made)


def method_text(name: str) -> str:
    """Gives a method its arguments of odd sizes."""
    return f"{name.split()[0]}({ARGUMENTS.get(name, '')})"


def matrix_name(method: str, head: str) -> str:
    """Names the case of a method with a head."""
    return re.sub(r"\W", "_", f"{method}--{head}")


def cases(model: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Lists program/name, method and task of a model's cases."""
    for program, rows in CASES.items():
        if model == "mpnet" and program == "adapterhub":
            # The library has no such model.
            continue
        for name, (method, task) in rows.items():
            if model == "bert" or name in OF_ALL[program]:
                yield f"{program}/{name}", method, task
        for method in METHODS if model == "bert" else ["lora"]:
            for head, task in HEADS.items():
                name = matrix_name(method, head)
                yield f"{program}/{name}", method_text(method), task


def make_examples(bert: FrozenBert) -> dict[str, np.ndarray]:
    """Makes rows of several lengths, int64 [4, 12], some of them pairs."""
    words = min(30, bert.config.vocab_size)
    ids = np.random.default_rng(5).integers(5, words, (4, 12))
    mask, segments = np.ones_like(ids), np.zeros_like(ids)
    for row, length in enumerate((12, 9, 5, 3)):
        ids[row, length:], mask[row, length:] = 0, 0
        if bert.config.type_vocab_size > 1:
            segments[row, length // 2 : length] = row % 2
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def write_ours(
    bert: FrozenBert, folder: str, cases: dict[str, Callable[[], Artifact]]
) -> dict[str, Artifact]:
    """Writes adapters for programs; prints which cannot be written."""
    written = {}
    for case, make in cases.items():
        place = f"ours/{case}"
        try:
            artifact = make()
            ours = prepared(bert, artifact)
            ours = dataclasses.replace(ours, base_name="model")
            program, _ = case.split("/")
            card = make_card(program, ours, place, artifact.config, {}, {})
            path = os.path.join(folder, place)
            foreign_adapters.write(program, path, ours, card)
        except UserError as error:
            print(f"{place}: refused: {error}")
            continue
        written[place] = artifact
    return written


def run_peer(*command: str, cwd: Optional[str] = None) -> None:
    """Runs a program in the peers' environment."""
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


def exchange(
    folder: str, peer: str, adapters: Sequence[str], only: str
) -> Iterator[tuple[str, float]]:
    """Exchanges adapters of the model in a folder; yields differences.

    `adapters` are trained ones, which take the place of the model's cases.
    """
    name = os.path.basename(folder)
    command = [peer, PEER, folder, only]
    bert = FrozenBert.open(os.path.join(folder, "model"))
    examples = make_examples(bert)
    np.savez(os.path.join(folder, "examples.npz"), **examples)
    make: dict[str, Callable[[], Artifact]] = {
        f"{program}/{number}": functools.partial(read, path, bert.weights)
        for number, path in enumerate(adapters)
        for program in CASES
    }
    if not adapters:
        make = {
            case: functools.partial(our_artifact, bert, case, method, task)
            for case, method, task in cases(name)
            if re.search(only, f"{name}/ours/{case}")
        }
    written = write_ours(bert, folder, make)
    if not adapters and re.search(only, f"{name}/{MERGED}"):
        written[MERGED], model = merged(bert)
        write_merged(
            os.path.join(folder, "model"), os.path.join(folder, MERGED), model
        )
    run_peer(*command, *([] if adapters else ["theirs"]), "answer")
    theirs = glob.glob("theirs/*/*", root_dir=folder)
    theirs += glob.glob("ours/*/*_again", root_dir=folder)
    for place in [*written, *sorted(theirs)]:
        path = os.path.join(folder, place)
        artifact = written.get(place) or imported(bert, path)
        error = difference(bert, artifact, path, examples)
        print(f"{error:.1e}  {name}/{place}  {artifact.config['method']}")
        yield f"{name}/{place}", error
        if adapters and place in written:
            # A card's code has to work as it is.
            card = files.read_text(os.path.join(path, "README.md"), "the card")
            code = card.partition("```python\n")[2].partition("```")[0]
            run_peer(peer, "-c", code, cwd=folder)


def table(differences: dict[str, float], program: str) -> Iterator[str]:
    """Makes lines of methods and heads, with differences there and back."""
    yield "| method | " + " | ".join(HEADS) + " |"
    yield "|---|" + "---|" * len(HEADS)
    for method in METHODS:
        cells = []
        for head in HEADS:
            place = f"bert/ours/{program}/{matrix_name(method, head)}"
            both = [differences.get(place + end) for end in ("", "_again")]
            cells.append(
                "-" if None in both else "{:.0e} / {:.0e}".format(*both)
            )
        if set(cells) != {"-"}:
            yield f"| `{method_text(method)}` | {' | '.join(cells)} |"


def main() -> None:
    """Exchanges the adapters of all models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer_python", required=True, type=os.path.abspath)
    parser.add_argument("--record", help="folder for what both sides wrote")
    parser.add_argument(
        "--only",
        default="",
        help="pattern of cases, as bert/ours/peft/lora; not with --adapter",
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--init_checkpoint", help="a Hugging Face BERT")
    parser.add_argument("--adapter", action="append", default=[])
    arguments = parser.parse_args()
    if bool(arguments.adapter) != bool(arguments.init_checkpoint):
        raise UserError("--adapter and --init_checkpoint go together")
    if arguments.record and files.exists(arguments.record):
        raise UserError(f"--record {arguments.record} is there already")
    models = {
        name: os.path.join(ROOT, "tests/golden", MODELS[name])
        for name in arguments.models.split(",")
    }
    if arguments.adapter:
        models = {"trained": os.path.abspath(arguments.init_checkpoint)}
    # Graphs of so many methods and heads take longer to build than to run.
    tf.config.run_functions_eagerly(True)
    differences: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in models.items():
            place = os.path.join(folder, name)
            os.mkdir(place)
            os.symlink(model, os.path.join(place, "model"))
            differences.update(
                exchange(
                    place,
                    arguments.peer_python,
                    arguments.adapter,
                    arguments.only,
                )
            )
        if arguments.record:
            shutil.copytree(folder, arguments.record)
    for program in CASES:
        print("\n".join([program, *table(differences, program)]))
    worst = max(differences.values(), default=0.0)
    print(f"{len(differences)} adapters, greatest difference {worst:.1e}")
    wrong = [k for k, v in differences.items() if not v <= TOLERANCE]
    if wrong:
        raise UserError(
            f"these differ by more than {TOLERANCE:.0e}: {', '.join(wrong)}"
        )
    if not differences:
        raise UserError("no adapter was compared; expected --only of a case")


if __name__ == "__main__":
    with command_line.run():
        main()
