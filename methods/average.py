"""The mean of what several adapters say."""

import dataclasses
import math
from typing import ClassVar, List, Optional, Sequence

import tensorflow as tf

from errors import UserError
from methods.base import added_later
from methods.composition import ComposedHooks, Composition, PartHooks


class AverageHooks(ComposedHooks):
    """The weighted mean of what each part makes of the same."""

    def __init__(self, parts: Sequence[PartHooks], weights: Sequence[float]):
        """Takes the parts, and the weight of each."""
        super().__init__(parts)
        self.weights = weights

    def parameter(self, name, variable, context):
        """With the mean of the changes."""
        value = tf.convert_to_tensor(variable)
        for part, weight in zip(self.parts, self.weights):
            change = part.change_of(name, variable, context)
            if change is not None:
                value += weight * change
        return value

    def project(self, name, inputs, dense, context):
        """The mean of the projections; BERT's own is computed once."""
        if not self.acting_at("project"):
            return dense(inputs)
        own = dense(inputs)
        found = [
            part.project(
                name,
                inputs,
                lambda x: own if x is inputs else dense(x),
                context,
            )
            for part in self.parts
        ]
        return _weighted(found, self.weights)

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        """The mean of what is added."""
        return _weighted(
            [
                part.before_norm(
                    layer, site, inputs, outputs, layer_norm, context
                )
                for part in self.parts
            ],
            self.weights,
        )

    def after_norm(self, layer, site, hidden, context):
        """The mean of what is added."""
        return _weighted(
            [
                part.after_norm(layer, site, hidden, context)
                for part in self.parts
            ],
            self.weights,
        )


def _weighted(
    tensors: Sequence[Optional[tf.Tensor]], weights: Sequence[float]
) -> Optional[tf.Tensor]:
    """The sum of weighted tensors, of which None is zero; None for none."""
    found = [w * x for x, w in zip(tensors, weights) if x is not None]
    return tf.add_n(found) if found else None


@dataclasses.dataclass(frozen=True)
class Average(Composition):
    """The weighted mean of what trained adapters make of the same.

    What they have changed of BERT is averaged too. The head is trained alone.

    BERT-base: 0.

    Attributes:
        parts: names of trained adapters.
        weights: one for each, with commas between them; they are divided by
            their sum. All are alike if there are none.

    Raises:
        UserError: no parts, a name twice, a part that is no trained adapter,
            or weights that are no positive numbers, one for each.

    Source: Chronopoulou et al. 2023 (AdapterSoup) average parameters, which
    `scripts/merge_adapter.py` does; Wang et al. 2021 the outputs.
    """

    name: ClassVar[str] = "average"
    weights: str = added_later("")

    def __post_init__(self):
        super().__post_init__()
        if self.trained:
            raise UserError(
                f"average: {self.trained[0]} is no trained adapter; expected "
                "names of those alone"
            )
        self.shares()

    def shares(self) -> List[float]:
        """The weight of each part; their sum is 1.

        Raises:
            UserError: `weights` are none.
        """
        count = len(self.parts)
        try:
            found = list(map(float, self.weights.split(",")))
        except ValueError:
            found = []
        if not self.weights:
            found = [1.0] * count
        if len(found) != count or not all(0 < w < math.inf for w in found):
            raise UserError(
                f"average: weights are {self.weights!r}, expected {count} "
                "positive numbers, as in '0.7,0.3'"
            )
        return [weight / sum(found) for weight in found]

    def check(self, config):
        """Compares the parts with the model; they may act within layers only.

        Raises:
            UserError: as of `Composition`; or a part that adds keys, or acts
                on embeddings, of which there is no mean.
        """
        super().check(config)
        hooks = self.build(config, lambda *_: None, True)
        for part, composed in zip(self.parts, hooks.parts):
            for place in ("key_value", "embeddings", "vocabulary"):
                if composed.acts_at(place):
                    raise UserError(
                        f"average: {part.name} is an adapter of "
                        f"{part.method.name}, which acts on what has no mean; "
                        "expected adapters that act on a layer's outputs"
                    )

    def compose(self, config, create, parts):
        """The mean of the parts' hooks."""
        return AverageHooks(parts, self.shares())
