"""The program that XLA compiles of a training step: its products, by shape."""

import dataclasses
import re
from math import prod

import pytest
import tensorflow as tf
from engine_jobs import make_job, zero_step

from lab.speed import flops

pytestmark = [pytest.mark.older_stack, pytest.mark.gate]

ROWS, TOKENS = 3, 7
HOULSBY = "houlsby(size=4)"
INSTRUCTION = re.compile(
    r"(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<result>\(.*?\)|\S+) "
    r"(?P<kind>[\w-]+)\((?P<rest>.*)"
)
NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Of a program: its kind, the shape it gives, the names it reads."""

    kind: str
    shape: tuple
    read: list
    rest: str


def numbers(text):
    return tuple(int(x) for x in text.split(",") if x)


def parse(text):
    """The instructions that lead to the entry's results, by name.

    XLA removes all others.
    """
    parsed, waiting = {}, []
    entry = text[text.index("\nENTRY") :]
    for line in entry.splitlines()[2:]:
        match = INSTRUCTION.match(line.strip())
        if not match:
            continue
        shape = re.match(r"\w+\[([\d,]*)\]", match["result"])
        rest = match["rest"].partition(", metadata=")[0]
        # An instruction comes after those that it reads.
        read = [name for name in NAME.findall(rest) if name in parsed]
        parsed[match["name"]] = Instruction(
            match["kind"], numbers(shape[1]) if shape else (), read, rest
        )
        if match["root"]:
            waiting.append(match["name"])
    assert len(waiting) == 1
    needed = {}
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = parsed[name]
            waiting += parsed[name].read
    return needed


def program(config, method, **changes):
    """The parameters of a training step, and what XLA is given to compile."""
    job = make_job(config, "unused", method)
    job = dataclasses.replace(job, use_xla=True, **changes)
    step = tf.function(
        zero_step(job, ROWS)[1], autograph=False, jit_compile=True
    )
    # Deterministic operations, which other tests turn on, ask for a seed.
    tf.random.set_seed(1)
    ids, label = tf.zeros([ROWS, TOKENS], tf.int32), tf.zeros([ROWS], tf.int32)
    text = step.experimental_get_compiler_ir(ids, label)(stage="hlo")
    return job.table, parse(text)


def products(instructions):
    """Operations of the products, without the head's and the segments'."""
    total = 0
    for one in instructions.values():
        if one.kind != "dot":
            continue
        left, right = (instructions[name].shape for name in one.read)
        # Two classes and two segments; attention has two heads.
        if len(left) == 2 and 2 in left + right:
            continue
        inner = re.search(r"lhs_contracting_dims=\{([\d,]+)\}", one.rest)
        summed = prod(left[axis] for axis in numbers(inner[1]))
        total += 2 * prod(one.shape) * summed
    return total


def formula(config, table):
    """Operations of a step, from sizes; results/performance.md derives them.

    Gives those of a training step and those of the layers' forward pass.
    """
    pooler = 2 * ROWS * config.hidden_size**2
    step = flops.training(config, table, ROWS, TOKENS)
    is_trained = any(
        p.name == "bert/pooler/dense/kernel" for p in table.trained
    )
    return step + (2 + is_trained) * pooler, flops.forward(
        config, table, ROWS, TOKENS
    )


def test_accelerators_compute_scores_again_and_nothing_larger(tiny_config):
    table, instructions = program(tiny_config, HOULSBY, for_accelerator=True)
    expected, _ = formula(tiny_config, table)
    scores = sum(flops._attentions(tiny_config, ROWS, TOKENS)) // 2
    assert products(instructions) == expected + scores
    barriers = [i for i in instructions.values() if i.kind == "opt-barrier"]
    assert barriers


def test_recomputed_layers_cost_one_more_forward_pass(tiny_config):
    table, instructions = program(tiny_config, HOULSBY, recompute_layers=True)
    expected, forward = formula(tiny_config, table)
    assert products(instructions) == expected + forward


WAYS = {
    "plain": {},
    "accelerator": {"for_accelerator": True},
    "layers": {"for_accelerator": True, "recompute_layers": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_no_frozen_matrix_has_a_gradient_in_the_program(tiny_config, way):
    """Full fine-tuning has all of them."""
    products = {}
    for method in (HOULSBY, "full"):
        table, instructions = program(tiny_config, method, **WAYS[way])
        gradients = [
            one.shape
            for one in instructions.values()
            if one.kind in ("dot", "scatter")
        ]
        products[method] = {
            p.name
            for p in table.parameters
            if len(p.shape) == 2
            and p.name.startswith("bert/encoder/")
            and p.name.endswith("/kernel")
            and p.shape in gradients
        }
        words = tiny_config.vocab_size, tiny_config.hidden_size
        assert (words in gradients) == (method == "full")
    assert not products[HOULSBY]
    assert len(products["full"]) == 6 * tiny_config.num_hidden_layers
