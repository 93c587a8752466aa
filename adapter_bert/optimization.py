"""BERT's learning-rate schedule, clipping and Adam, for all engines."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from adapter_bert.graph_building import leave_with_graph

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-6
WEIGHT_DECAY = 0.01
CLIP_NORM = 1.0
# Suffixes of the averages that Adam keeps of each variable's gradients.
SLOTS = ("adam_m", "adam_v")
# Searched in variable names, as google-research/bert does.
NO_DECAY = re.compile(r"LayerNorm|layer_norm|bias")
# Prefix of one task's variables among several; a task may be called bias.
TASK_SCOPE = re.compile(r"^tasks\.[^/]*/")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Warms up to the peak `learning_rate`, then decays to zero, linearly.

    From step `num_train_steps` on it is zero.

    Source: google-research/bert, `optimization.py`, `create_optimizer`: the
    decay counts from the first step, so the rate falls from `1 - warmup` at
    the end of the warm-up. Its steps count from 1 in practice.
    """

    learning_rate: float
    num_train_steps: int
    num_warmup_steps: int

    def __call__(self, step: Any) -> Any:
        """Gives a step's rate, of an int a float, of an int [] float32 []."""
        if not tf.is_tensor(step):
            if step < self.num_warmup_steps:
                return self.learning_rate * step / self.num_warmup_steps
            left = max(0.0, 1 - step / self.num_train_steps)
            return self.learning_rate * left
        done = tf.cast(step, tf.float32)
        left = tf.maximum(0.0, 1.0 - done / self.num_train_steps)
        decayed = self.learning_rate * left
        if not self.num_warmup_steps:
            return decayed
        warming = self.learning_rate * (done / self.num_warmup_steps)
        return tf.where(step < self.num_warmup_steps, warming, decayed)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Says how variables are updated in another way than most.

    Attributes:
        undecayed: names of variables without weight decay, in addition to
            biases and LayerNorms.
        rates: factors of learning rates, by name; 1 for other variables.
        allocations: how AdaLoRA chooses singular values, by the names of its
            variables (`methods/rank_allocation.py`).
    """

    undecayed: frozenset[str] = frozenset()
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    allocations: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> "Recipe":
        return cls(
            frozenset(n for n, one in declared.items() if not one.decays),
            {n: one.rate for n, one in declared.items() if one.rate != 1.0},
            {
                n: one.allocation
                for n, one in declared.items()
                if one.allocation and one.trained
            },
        )

    def decay_of(self, name: str) -> float:
        is_plain = NO_DECAY.search(TASK_SCOPE.sub("", name))
        return 0.0 if is_plain or name in self.undecayed else WEIGHT_DECAY

    def slots_of(self, name: str) -> tuple[str, ...]:
        """Gives suffixes of the averages that are kept of a variable."""
        return SLOTS + getattr(self.allocations.get(name), "slots", ())


class AdamWeightDecay:
    """Adam with decoupled weight decay, by default without bias correction.

    Source: google-research/bert, `optimization.py`, `AdamWeightDecayOptimizer`
    (slots `<variable>/adam_m` and `<variable>/adam_v`); Loshchilov and Hutter
    2019 for the decay; Kingma and Ba 2015, section 3, for the correction.
    """

    def __init__(
        self,
        variables: Sequence[tuple[str, Any]],
        slots: Mapping[str, Any],
        schedule: Schedule,
        recipe: Recipe = Recipe(),
        bias_correction: bool = False,
    ):
        """Takes (name, float32 variable) of everything that is trained.

        `slots` are `<name>/<slot>` -> variable of the same shape, for the slots
        of the recipe. With `bias_correction` the averages of the first steps
        are divided by the weight that they have gathered.
        """
        self._schedule = schedule
        self._bias_correction = bias_correction
        self._updates = [
            (
                functools.partial(
                    update_variable,
                    recipe.decay_of(name),
                    recipe.rates.get(name, 1.0),
                ),
                variable,
                *(slots[f"{name}/{slot}"] for slot in SLOTS),
            )
            for name, variable in variables
        ]
        self._names = [name for name, _ in variables]
        self._allocations = recipe.allocations
        # All that the choice of ranks reads and changes, by name.
        self._allocated = {n: v for n, v in variables if n in self._allocations}
        for name in tuple(self._allocated):
            for slot in self._allocations[name].slots:
                slot = f"{name}/{slot}"
                self._allocated[slot] = slots[slot]

    def train(
        self, loss: tf.Tensor, gradients: Sequence[tf.Tensor], step: tf.Variable
    ) -> tuple[tf.Tensor, list[tf.Operation]]:
        """Adds up over all devices, clips, and updates every copy alike.

        Called on each device, or on the only one, with float32 shares of the
        loss [] and of each gradient, and `step`, integer [], which is counted
        up. Gives the whole batch's loss, float32 [], and the updates.
        """
        replica = tf.distribute.get_replica_context()
        loss, *gradients = replica.all_reduce(
            tf.distribute.ReduceOp.SUM, [loss, *gradients]
        )
        leave_with_graph(loss)
        number = tf.convert_to_tensor(step) + 1
        rates = rates_of(self._schedule, self._bias_correction, number)

        def update(strategy, number, gradients, *rates) -> list[tf.Operation]:
            on_device = strategy.extended.update
            updates = [
                on_device(
                    variable, apply, (m, v, gradient, *rates), group=False
                )
                for (apply, variable, m, v), gradient in zip(
                    self._updates, gradients
                )
            ]
            # Everything else of this step reads the step before it is counted.
            with tf.control_dependencies(tf.nest.flatten(updates)):
                if self._allocations:
                    by_name = dict(zip(self._names, gradients))
                    by_name = {
                        name: by_name[name] for name in self._allocations
                    }
                    updates.append(
                        on_device(
                            step,
                            self._allocate,
                            (self._allocated, by_name, number),
                            group=False,
                        )
                    )
                counted = on_device(
                    step,
                    lambda step: tf.group(step.assign_add(1)),
                    group=False,
                )
            return tf.nest.flatten([*updates, counted])

        arguments = number, clip(gradients), *rates
        return loss, replica.merge_call(update, args=arguments)

    def _allocate(self, _, variables, gradients, number) -> tf.Operation:
        allocated = allocate(
            self._allocations,
            {n: tf.convert_to_tensor(v) for n, v in variables.items()},
            gradients,
            number,
            self._schedule.num_train_steps,
        )
        assigned = (
            variables[name].assign(value, read_value=False)
            for name, value in allocated.items()
        )
        return tf.group(*assigned)


def allocate(
    allocations: Mapping[str, Any],
    values: Mapping[str, tf.Tensor],
    gradients: Mapping[str, tf.Tensor],
    step: tf.Tensor,
    steps: int,
) -> dict[str, tf.Tensor]:
    """Gives what `Allocation.choose` does; equal ones share a budget."""
    chosen: dict[str, tf.Tensor] = {}
    for allocation in dict.fromkeys(allocations.values()):
        names = [name for name, one in allocations.items() if one == allocation]
        chosen.update(allocation.choose(names, values, gradients, step, steps))
    return chosen


def rates_of(
    schedule: Schedule, bias_correction: bool, step: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Gives the learning rate of a step, which counts from 1, float32 [].

    With bias correction also `1 - BETA_1^step` and `1 - BETA_2^step`.
    """
    rates = (schedule(step),)
    if bias_correction:
        count = tf.cast(step, tf.float32)
        # Not 1 - beta^step, which cancels in the first steps.
        rates += tuple(
            -tf.math.expm1(count * math.log(beta)) for beta in (BETA_1, BETA_2)
        )
    return rates


def clip(gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Scales gradients down to a global norm of at most `CLIP_NORM`."""
    return tf.clip_by_global_norm(gradients, CLIP_NORM)[0]


def update_variable(
    weight_decay: float,
    rate_scale: float,
    variable: Any,
    m_slot: Any,
    v_slot: Any,
    gradient: tf.Tensor,
    learning_rate: Any,
    *corrections: tf.Tensor,
) -> tf.Operation:
    """Takes one step of Adam for one variable and its two slots, of its shape.

    Uses TensorFlow's fused kernel; with beta powers of 0 it corrects no bias.
    The kernel computes 1 - beta in float32, so `v` is smaller by 1.3e-5 of
    itself. Kingma and Ba add epsilon to the corrected root, so the correction
    scales both rate and epsilon: `(m / c1) / (sqrt(v / c2) + epsilon)` is
    `sqrt(c2) / c1 * m / (sqrt(v) + sqrt(c2) epsilon)`. `weight_decay` is the
    share of the rate by which the variable shrinks; `corrections` are none, or
    c1 and c2 of `rates_of`.
    """
    rate, adam_rate, epsilon = _scaled(rate_scale, learning_rate, corrections)
    decayed = []
    if weight_decay:
        # In TensorFlow 1 graphs, nothing else keeps the forward pass from
        # reading the decayed value.
        with tf.control_dependencies([gradient]):
            value = tf.convert_to_tensor(variable)
            decayed = [variable.assign(value * (1.0 - weight_decay * rate))]
    with tf.control_dependencies(decayed):
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m_slot.handle,
            v=v_slot.handle,
            beta1_power=0.0,
            beta2_power=0.0,
            lr=adam_rate,
            beta1=BETA_1,
            beta2=BETA_2,
            epsilon=epsilon,
            grad=gradient,
        )


def updated(
    weight_decay: float,
    rate_scale: float,
    value: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    gradient: tf.Tensor,
    learning_rate: tf.Tensor,
    *corrections: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gives the new value and both averages, as `update_variable`, for XLA."""
    rate, adam_rate, epsilon = _scaled(rate_scale, learning_rate, corrections)
    # As the fused kernel has them: differences of float32.
    new_m, new_v = (1.0 - tf.constant(beta) for beta in (BETA_1, BETA_2))
    m += (gradient - m) * new_m
    v += (tf.square(gradient) - v) * new_v
    value *= 1.0 - weight_decay * rate
    return value - adam_rate * m / (tf.sqrt(v) + epsilon), m, v


def _scaled(
    rate_scale: float, learning_rate: Any, corrections: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor, Any]:
    rate = tf.cast(learning_rate, tf.float32)
    if rate_scale != 1.0:
        rate *= rate_scale
    if not corrections:
        return rate, rate, EPSILON
    root = tf.sqrt(corrections[1])
    return rate, rate * root / corrections[0], EPSILON * root
