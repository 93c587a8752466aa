"""Chooses the singular values that a training of AdaLoRA keeps.

Updates are `A diag(E) B`, variables `<scope>/lora_a` [inputs, R], `lora_e` [R]
and `lora_b` [R, outputs]. Values of the least importance are set to zero.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Says how the budget shrinks, and how importance is measured.

    Steps count from 1. After `tinit` the budget falls by a cubic law from all
    singular values to `rank` of each matrix, which all matrices share. The last
    `tfinal` train what is left. Both are shares of the training; `delta_t` are
    steps, `beta1` and `beta2` decays of averages.

    Source: Zhang et al. 2023, section 3; as peft 0.21, `RankAllocator`, whose
    `update_and_allocate` follows the optimizer's step, with steps from 1.
    """

    # Suffixes of the averages that are kept of each element.
    slots: ClassVar[tuple[str, ...]] = ("importance", "uncertainty")
    rank: int
    tinit: float
    tfinal: float
    delta_t: int
    beta1: float
    beta2: float

    def phases(self, steps: int) -> tuple[int, int]:
        """Gives the last step before the budget falls, and when it has.

        Importance is measured before the second, which is 2 at least.
        """
        last = max(2, steps - round(self.tfinal * steps))
        return min(round(self.tinit * steps), last - 1), last

    def cuts(self, count: int, matrices: int, steps: int) -> list[int]:
        """Gives the steps from which on 1, 2, 3, ... of `count` are zero."""
        first, last = self.phases(steps)
        kept = self.rank * matrices

        def cut_at(step: int) -> int:
            left = 1 - (step - first) / (last - first)
            return count - int((count - kept) * left**3 + kept)

        cuts = []
        for number in range(1, count - kept + 1):
            # The budget never rises.
            below, above = first, last
            while above - below > 1:
                step = (below + above) // 2
                if cut_at(step) < number:
                    below = step
                else:
                    above = step
            cuts.append(above)
        return cuts

    def choose(
        self,
        names: Sequence[str],
        values: Mapping[str, tf.Tensor],
        gradients: Mapping[str, tf.Tensor],
        step: tf.Tensor,
        steps: int,
    ) -> dict[str, tf.Tensor]:
        """Gives what follows Adam's step: E with zeros, and new averages.

        The averages are of `|value gradient|` and of the distance from the
        average of that. Their product is an element's score. A singular value's
        is the sum of its own, the mean of its column of A and the mean of its
        row of B. `names` are of all A, E and B that share the budget. Values,
        float32, are those after Adam's step, with `<name>/<slot>` of each;
        gradients, float32, are clipped, of all devices. `step` is int64 [],
        from 1 to `steps`.
        """
        _, last = self.phases(steps)
        kept: dict[str, tf.Tensor] = {}
        scores = {}
        for name in names:
            slots = [f"{name}/{slot}" for slot in self.slots]
            smooth, spread = (values[slot] for slot in slots)
            now = tf.abs(values[name] * gradients[name])
            new = self.beta1 * smooth + (1 - self.beta1) * now
            far = tf.abs(now - new)
            far = self.beta2 * spread + (1 - self.beta2) * far
            # Afterwards the choice stays what it is.
            new, far = (
                tf.where(step < last, after, before)
                for after, before in ((new, smooth), (far, spread))
            )
            kept.update(zip(slots, (new, far)))
            scores[name] = new * far
        singular = [name for name in names if name.endswith("/lora_e")]
        for name in singular:
            down, up = (scores.pop(name[:-1] + factor) for factor in "ab")
            scores[name] += tf.reduce_mean(down, 0) + tf.reduce_mean(up, 1)
        ranking = tf.sort(tf.concat(list(scores.values()), 0))
        cuts = self.cuts(ranking.shape[0], len(singular), steps)
        # `==` compares no values in a TensorFlow 1 graph.
        is_due = tf.equal(step % self.delta_t, 0)
        chooses = (step >= last) | is_due
        cut = tf.reduce_sum(tf.cast((step >= cuts) & chooses, tf.int32))
        # The greatest score of what is cut, below all if that is nothing.
        limit = tf.gather(tf.concat([[-1.0], ranking], 0), cut)
        for name, score in scores.items():
            keeps = score > limit
            kept[name] = tf.where(keeps, values[name], 0.0)
        return kept
