"""AdapterFusion: each token attends to the outputs of trained adapters."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder, functional
from adapter_bert.bert.hooks import dropout
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.adapter_variants import drop_at_random
from adapter_bert.methods.base import Declared, Tensors, added_later
from adapter_bert.methods.composition import ComposedHooks, Composition, below
from adapter_bert.methods.houlsby import SCOPES, AdapterHooks, Place

# The name of the values of a batch for people to see.
ATTENTION = "fusion_attention"


def near_identity(rng: np.random.Generator, shape: encoder.Shape) -> np.ndarray:
    """Initializes ones in the diagonal, 1e-6 next to it (section 4.1)."""
    return np.where(np.eye(*shape) == 1.0, 1.0, 1e-6).astype(np.float32)


def mix(
    variables: Tensors,
    query: tf.Tensor,
    values: Sequence[tf.Tensor],
    drop: functional.OfTensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes each token's attention to the outputs of adapters.

    `softmax_n(q k_n) v_n` with `q = Q h + b_q`, `k_n = K u_n + b_k`,
    `v_n = V u_n` (Pfeiffer et al. 2021, section 3.2; not divided by the root
    of D). A single adapter needs no choice, and has V alone.

    Takes the variables `{query,key,value}/...`, h as `query` and u of each
    adapter as `values`, float32 [B, T, D]; `drop` drops scores. Gives
    float32 [B, T, D], and the adapters' shares, float32 [B, T, N].
    """
    shape, size = tf.shape(query), query.shape[-1]
    variables = {
        name: tf.cast(value, query.dtype) for name, value in variables.items()
    }
    outputs = [tf.reshape(x, [-1, size]) for x in values]
    weights = tf.ones_like(outputs[0][:, :1], tf.float32)
    mixed = outputs[0]
    if "query/kernel" in variables:
        flat = tf.matmul(
            tf.reshape(query, [-1, size]), variables["query/kernel"]
        )
        flat = functional.add_bias(flat, variables["query/bias"])
        # q (u K + b) = (q K') u + q b: one product for all adapters' keys, as
        # for all their values.
        to_key = tf.matmul(flat, variables["key/kernel"], transpose_b=True)
        offset = tf.linalg.matvec(flat, variables["key/bias"])
        scores = tf.stack(
            [tf.reduce_sum(to_key * x, axis=-1) + offset for x in outputs],
            axis=-1,
        )
        weights = tf.nn.softmax(drop(tf.cast(scores, tf.float32)))
        shares = tf.unstack(tf.cast(weights, query.dtype), axis=-1)
        mixed = tf.add_n(
            [tf.expand_dims(w, 1) * x for w, x in zip(shares, outputs)]
        )
    if "value/kernel" in variables:
        mixed = tf.matmul(mixed, variables["value/kernel"])
    mixed = functional.shaped_as(mixed, query)
    shape = tf.concat([shape[:2], [len(values)]], axis=0)
    return mixed, tf.reshape(weights, shape)


class FusionHooks(ComposedHooks):
    """Makes tokens attend to all adapters at a place."""

    def __init__(self, parts, method: "Fusion", config, values):
        super().__init__(parts, method, config, values)
        self.takes_rows = False
        self.present = method.present(config)

    def layer_kind(self, layer, training):
        kind = super().layer_kind(layer, training)
        sites = tuple(
            (site, tuple(self.present[layer, site]))
            for site in SCOPES
            if (layer, site) in self.present
        )
        is_kept = training or layer >= self.method.first
        return None if kind is None else (kind, sites, is_kept)

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):

        scope = _scope((layer, site))

        def attend():
            parts = [self.parts[n] for n in self.present[layer, site]]
            values = [
                part.before_norm(
                    layer, site, inputs, outputs, layer_norm, context
                )
                for part in parts
            ]
            query = parts[0].hooks.reads(inputs, outputs, layer_norm)
            rate = self.config.attention_probs_dropout_prob
            return mix(
                below(f"{scope}/", self.values),
                query,
                values,
                lambda scores: dropout(scores, rate, scope, context),
            )

        if (layer, site) not in self.present:
            return None
        if context.training and self.method.robust:
            layers = self.config.num_hidden_layers
            return drop_at_random(
                layer, layers, lambda: attend()[0], outputs, context
            )
        if layer < self.method.first:
            return None
        mixed, weights = attend()
        if context.show:
            context.show(scope, weights)
        return mixed

    def observe(self, shown, context):
        """`fusion_attention`: float32 [B, places, parts], means over tokens."""
        mask = tf.cast(context.input_mask, tf.float32)
        share = mask / tf.reduce_sum(mask, axis=1, keepdims=True)
        rows = []
        for place in self.method.kept(self.present):
            mean = tf.einsum("bt,btn->bn", share, shown[_scope(place)])
            columns = [tf.zeros_like(mean[:, 0])] * len(self.parts)
            for number, column in zip(
                self.present[place], tf.unstack(mean, axis=1)
            ):
                columns[number] = column
            rows.append(tf.stack(columns, axis=1))
        return {ATTENTION: tf.stack(rows, axis=1)}

    def penalty(self, context):
        if not self.method.value:
            return None
        penalties = []
        for place in self.present:
            value = self.values[f"{_scope(place)}/value/kernel"]
            identity = tf.eye(value.shape[0])
            penalties.append(tf.reduce_sum(tf.square(value - identity)))
        return self.method.penalty * tf.add_n(penalties)


def _scope(place: Place) -> str:
    layer, site = place
    return f"bert/encoder/layer_{layer}/{SCOPES[site]}/fusion"


@dataclasses.dataclass(frozen=True)
class Fusion(Composition):
    """AdapterFusion: tokens attend to several trained adapters, which stay.

    In each layer the inputs of an adapter make a query, the outputs of each
    adapter a key and a value. Queries, keys, values and the head are trained.

    BERT-base, whatever the number of adapters: for each place where they are
    3 x 768^2 + 2 x 768, 21,252,096 for `pfeiffer`, twice as much for `houlsby`.

    Attributes:
        value: whether there are matrices of values.
        penalty: weight of the squared distance of each of those from the
            identity, in the loss.
        robust: whether each batch of a training goes without those of a random
            number of the lowest layers, so that any `first` can be used after.

    Source: Pfeiffer et al. 2021, section 3.2; initial values and inputs are
    those of AdapterHub's code. Rueckle et al. 2021 (AdapterDrop) for `first`.
    """

    name = "fusion"
    # Pfeiffer et al. 2021, section 4.1.
    learning_rate = 5e-5
    observes = (ATTENTION,)
    hooks_class = FusionHooks
    made_of = "trained adapters"
    limits = {
        "penalty": (0.0, math.inf),
        "first": (0, math.inf),
    }
    value: bool = added_later(True)
    penalty: float = added_later(0.01)
    first: int = added_later(0)
    robust: bool = added_later(False)

    def __post_init__(self):
        super().__post_init__()
        if len(self.parts) < 2:
            raise UserError(
                "fusion takes two or more adapters, as in fusion(mrpc, rte)"
            )

    def check(self, config):
        super().check(config)
        base.choose_layers(str(self.first), config)
        for part in self.parts:
            if part.method.trains(config):
                raise UserError(
                    f"fusion: {part.name} was trained with {part.method}, "
                    "which changes BERT itself too; expected adapters of "
                    "pfeiffer, or of houlsby(layer_norms=false)"
                )
        present = self.present(config)
        if not any(len(present[place]) > 1 for place in self.kept(present)):
            raise UserError(
                f"fusion: from layer {self.first} on no two parts have an "
                "adapter at the same place"
            )

    def fits(self, trained):
        if isinstance(trained, Fusion) and self.robust:
            return dataclasses.replace(trained, first=self.first) == self
        return self == trained

    @property
    def as_part(self):
        return dataclasses.replace(super().as_part, robust=False)

    def present(self, config: encoder.BertConfig) -> dict[Place, list[int]]:
        hooks = [part.method.hooks(config, {}) for part in self.parts]
        kind = type(hooks[0])
        for part, acting in zip(self.parts, hooks):
            alike = type(acting) is kind and acting.places == {"before_norm"}
            if not (alike and issubclass(kind, AdapterHooks)):
                raise UserError(
                    f"fusion: {part.name} is an adapter of "
                    f"{part.method.name}, {self.parts[0].name} of "
                    f"{self.parts[0].method.name}; expected adapters that read "
                    "the same, as pfeiffer's"
                )
        lowest = 0 if self.robust else self.first
        present: dict[Place, list[int]] = {}
        for place in itertools.product(
            range(lowest, config.num_hidden_layers), SCOPES
        ):
            numbers = [
                n for n, acting in enumerate(hooks) if place in acting.scopes
            ]
            if numbers:
                present[place] = numbers
        return present

    def variables(self, config, pooler=True):
        declared = super().variables(config, pooler)
        size = config.hidden_size
        # The deviation of AdapterHub's.
        kernel = Declared((size, size), base.normal(0.02))
        bias = Declared((size,), encoder.zeros)
        for place, numbers in self.present(config).items():
            scope = _scope(place)
            for name in ("query", "key") if len(numbers) > 1 else ():
                declared[f"{scope}/{name}/kernel"] = kernel
                declared[f"{scope}/{name}/bias"] = bias
            if self.value:
                value = Declared((size, size), near_identity)
                declared[f"{scope}/value/kernel"] = value
        return declared

    def kept(self, places: Iterable[Place]) -> list[Place]:
        return [(layer, site) for layer, site in places if layer >= self.first]

    def places(self, config: encoder.BertConfig) -> list[Place]:
        """Lists places where tokens attend, in the order of `observe`."""
        return self.kept(self.present(config))
