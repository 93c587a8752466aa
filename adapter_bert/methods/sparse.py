"""Methods that change few of BERT's own parameters, chosen by a first training.

A second training trains these alone, as long again. The artifact holds what has
changed.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.functional import custom_gradient
from adapter_bert.bert.hooks import Context, Hooks, seed_at
from adapter_bert.errors import UserError
from adapter_bert.methods.base import Declared, TuningMethod, Values
from adapter_bert.methods.fine_tuning import Full

# The hard-concrete distribution is stretched to this interval (Louizos et al.
# 2018; Guo et al. 2021, section 3.1).
LEFT, RIGHT = -1.5, 1.5
# Where log alpha starts: nearly all gates are open.
OPEN = 5.0
# Handed on next to changes, which have variables' names.
PENALTY = "penalty"
# Before the names of changes and their gates.
SCOPE = "diff_pruning/"
# Parameters that did not change must stay as they were.
UNDECAYED = frozenset({"bert", "head"})


class MaskHooks(Hooks):
    """Lets the gradient reach only some entries of BERT's variables.

    Reads float32 masks of zeros and ones, `mask/<variable>`.
    """

    alike = True
    by_token = True

    def parameter(self, name, variable, context):
        value = tf.convert_to_tensor(variable)
        if not context.training:
            return value
        mask = tf.convert_to_tensor(self.values[f"mask/{name}"])

        @custom_gradient
        def masked(value):
            def gradient(upstream):
                return tf.convert_to_tensor(upstream) * mask

            return tf.identity(value), gradient

        return masked(value)


@dataclasses.dataclass(frozen=True)
class SparseMethod(TuningMethod):
    """A second phase: masked entries stay as they were to the last bit."""

    trained_names = "bert/.*"
    undecayed = UNDECAYED
    changes_few = True
    positive = ("sparsity",)
    limits = {"sparsity": (0.0, 1.0)}
    hooks_class = MaskHooks

    def check(self, config):
        count = sum(
            math.prod(shape)
            for shape in encoder.list_variables(config).values()
        )
        if not self.changed_count(count):
            raise UserError(
                f"{self.name}: a sparsity of {self.sparsity} is none of BERT's "
                f"{count:,} parameters; expected at least {1 / count:.1e}"
            )

    def changed_count(self, count):
        return round(self.sparsity * count)

    def variables(self, config, pooler=True):
        return {
            f"mask/{name}": Declared(shape, encoder.ones, trained=False)
            for name, shape in encoder.list_variables(config, pooler).items()
        }

    def finish(self, config, values):
        return Full(), values


def largest(sizes: Values, share: float) -> Values:
    """Marks the largest entries of all arrays together.

    Takes what is compared, not negative, by name. Gives float32 arrays like
    it, 1 for exactly round(share x entries) of them and 0 for the rest. Of
    equals the first is taken.
    """
    flat = np.concatenate([value.ravel() for value in sizes.values()])
    count = round(share * flat.size)
    mask = np.zeros(flat.size, np.float32)
    if count:
        threshold = np.partition(flat, flat.size - count)[flat.size - count]
        mask[flat > threshold] = 1.0
        equal = np.flatnonzero(flat == threshold)
        mask[equal[: count - int(mask.sum(dtype=np.int64))]] = 1.0
    ends = np.cumsum([value.size for value in sizes.values()])[:-1]
    return {
        name: part.reshape(sizes[name].shape)
        for name, part in zip(sizes, np.split(mask, ends))
    }


@dataclasses.dataclass(frozen=True)
class LtSft(SparseMethod):
    """Lottery-ticket sparse fine-tuning.

    BERT is trained whole; the parameters that have changed the most are chosen
    out of all of BERT's; everything is set back, the head too; and these are
    trained again. BERT-base: 1,094,822 at a sparsity of 0.01. The changes of
    two tasks can be added up.

    Source: Ansell et al. 2022, section 3. Entries that were not chosen are
    left exactly as they were; the published code chooses all equals.
    """

    name = "lt_sft"
    # Ansell et al. 2022, for question answering.
    learning_rate = 3e-5
    sparsity: float = 0.01

    @property
    def first_phase(self):
        return Full()

    def second_start(self, names, others, read, first):
        changes = {name: np.abs(first(name) - read(name)) for name in names}
        masks = largest(changes, self.sparsity)
        return {f"mask/{name}": mask for name, mask in masks.items()}


class GateHooks(Hooks):
    """`theta + z w` for BERT's variables, with gates z from 0 to 1.

    Reads `diff_pruning/<variable>/{diff,gate,group}`.
    """

    alike = True
    by_token = True

    @property
    def names(self) -> list[str]:
        return [
            name[len(SCOPE) : -len("/diff")]
            for name in self.values
            if name.startswith(SCOPE) and name.endswith("/diff")
        ]

    def prepare(self, context):
        made = {name: self._change(name, context) for name in self.names}
        made[PENALTY] = self._penalty()
        return made

    def parameter(self, name, variable, context):
        change = context.handed_on.get(name)
        if change is None:
            change = self._change(name, context)
        return tf.convert_to_tensor(variable) + change

    def penalty(self, context):
        made = context.handed_on.get(PENALTY)
        return self._penalty() if made is None else made

    def _change(self, name: str, context: Context) -> tf.Tensor:
        change = tf.convert_to_tensor(self.values[f"{SCOPE}{name}/diff"])
        for site in (f"{name}/gate", f"{name}/group"):
            if SCOPE + site in self.values:
                change *= self._open(self.values[SCOPE + site], site, context)
        return change

    def _open(self, gate: Any, site: str, context: Context) -> tf.Tensor:
        logits = tf.convert_to_tensor(gate)
        if context.training:
            # Not of 0, whose logarithm is infinite.
            noise = tf.random.stateless_uniform(
                tf.shape(logits),
                seed_at(context.step_seed, site, context),
                1e-6,
                1.0 - 1e-6,
                alg="philox",
            )
            logits += tf.math.log(noise) - tf.math.log1p(-noise)
        return gate_value(tf.sigmoid(logits))

    def _penalty(self) -> tf.Tensor:
        shift = math.log(-LEFT / RIGHT)
        expected = []
        for name in self.names:
            gate = self.values[f"{SCOPE}{name}/gate"]
            share = tf.reduce_sum(tf.sigmoid(gate - shift))
            group = self.values.get(f"{SCOPE}{name}/group")
            if group is not None:
                share *= tf.sigmoid(group - shift)
            expected.append(share)
        return self.method.penalty * tf.add_n(expected)


def gate_value(opened: Any) -> Any:
    """Stretches the sigmoid of a gate and cuts it to 0 and 1."""
    stretched = opened * (RIGHT - LEFT) + LEFT
    if tf.is_tensor(stretched):
        return tf.clip_by_value(stretched, 0.0, 1.0)
    return np.clip(stretched, 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Gates(TuningMethod):
    """Trains as the first phase of diff pruning; see there."""

    name = "gates"
    undecayed = UNDECAYED
    hooks_class = GateHooks
    structured: bool = True
    penalty: float = 1.25e-7
    gate_rate: float = 1e3

    def variables(self, config, pooler=True):

        def gate(shape):
            return Declared(
                shape,
                lambda rng, shape: np.full(shape, OPEN, np.float32),
                decays=False,
                rate=self.gate_rate,
            )

        declared = {}
        for name, shape in encoder.list_variables(config, pooler).items():
            declared[f"{SCOPE}{name}/diff"] = Declared(
                shape, encoder.zeros, decays=False
            )
            declared[f"{SCOPE}{name}/gate"] = gate(shape)
            if self.structured:
                declared[f"{SCOPE}{name}/group"] = gate(())
        return declared


@dataclasses.dataclass(frozen=True)
class DiffPruning(SparseMethod):
    """Diff pruning: few changes, found by gates under an L0 penalty.

    In the first phase BERT's parameters are theta + z w, with hard-concrete
    gates z, one for each parameter and, if structured, one for each variable,
    their expected number penalized. Then the largest |z w| are kept, fixed,
    and trained on. BERT-base: 547,411 at a sparsity of 0.005.

    Attributes:
        sparsity: share of BERT's parameters that may change.
        structured: whether each variable has a gate of its own too.
        penalty: weight of each expected change in the loss.
        gate_rate: what the learning rate is multiplied by for gates. The
            published code has 0.1 for gates and 1e-5 for w, whatever the task;
            here gates get 0.1 too, at the method's own rate for w.

    Source: Guo et al. 2021, sections 3.1 to 3.3. The head is not penalized.
    """

    name = "diff_pruning"
    # Measured (results/methods.md), with gates at 0.1 as published.
    learning_rate = 1e-4
    positive = (
        "sparsity",
        "penalty",
        "gate_rate",
    )
    sparsity: float = 0.005
    structured: bool = True
    penalty: float = 1.25e-7
    gate_rate: float = 1e3

    @property
    def first_phase(self):
        return Gates(self.structured, self.penalty, self.gate_rate)

    def second_start(self, names, others, read, first):
        changes = {}
        for name in names:
            scope = f"{SCOPE}{name}"
            change = first(f"{scope}/diff")
            for part in ("gate", "group")[: 1 + self.structured]:
                opened = 1.0 / (1.0 + np.exp(-first(f"{scope}/{part}")))
                change = change * gate_value(opened)
            changes[name] = change.astype(np.float32)
        masks = largest(
            {n: np.abs(c) for n, c in changes.items()}, self.sparsity
        )
        # Not a product with the mask: it would turn -0.0 into 0.0.
        start = {
            name: np.where(
                masks[name] == 1.0, read(name) + changes[name], read(name)
            )
            for name in names
        }
        start.update((f"mask/{name}", mask) for name, mask in masks.items())
        start.update((name, first(name)) for name in others)
        return start
