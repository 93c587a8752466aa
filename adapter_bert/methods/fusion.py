"""AdapterFusion: each token attends to the outputs of trained adapters."""

import dataclasses
from typing import ClassVar, Dict, Iterable, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder, functional
from adapter_bert.bert.hooks import Context, dropout
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.adapter_variants import drop_at_random
from adapter_bert.methods.base import Added, Tensors, added_later
from adapter_bert.methods.composition import (
    ComposedHooks,
    Composition,
    PartHooks,
)
from adapter_bert.methods.houlsby import SCOPES, AdapterHooks, Place

# The name of the values of a batch for people to see.
ATTENTION = "fusion_attention"


def near_identity(rng: np.random.Generator, shape: encoder.Shape) -> np.ndarray:
    """An initializer: ones in the diagonal, 1e-6 beside it (section 4.1)."""
    return np.where(np.eye(*shape) == 1.0, 1.0, 1e-6).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Attention:
    """One query for each token, a key and a value for each adapter.

    `softmax_n(q k_n) v_n` with `q = Q h + b_q`, `k_n = K u_n + b_k`,
    `v_n = V u_n` (Pfeiffer et al. 2021, section 3.2; not divided by the root
    of D). Parameters: 3 D^2 + 2 D, or 2 D^2 + 2 D without V. A single adapter
    needs no choice, and has V alone.

    Attributes:
        scope: of the variables `<scope>/{query,key,value}/...`.
        rate: dropout of the scores.
        values: of the variables.
    """

    scope: str
    rate: float
    values: Tensors

    @staticmethod
    def variables(
        scope: str, size: int, value: bool, count: int
    ) -> Dict[str, Added]:
        """Declares the variables, V if `value`, of `count` adapters."""
        found = {}
        # The deviation of AdapterHub's.
        normal = base.normal(0.02)
        for name in ("query", "key") if count > 1 else ():
            found[f"{scope}/{name}/kernel"] = Added((size, size), normal)
            found[f"{scope}/{name}/bias"] = Added((size,), encoder.zeros)
        if value:
            kernel = Added((size, size), near_identity)
            found[f"{scope}/value/kernel"] = kernel
        return found

    def _read(self, name: str, dtype: tf.DType) -> tf.Tensor:
        return tf.cast(self.values[f"{self.scope}/{name}"], dtype)

    def __call__(
        self, query: tf.Tensor, values: Sequence[tf.Tensor], context: Context
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Mixes the outputs of adapters.

        Args:
            query: float32 [B, T, D].
            values: of each adapter float32 [B, T, D].
            context: of this forward pass.

        Returns:
            float32 [B, T, D], and how much of each adapter is in it,
            float32 [B, T, N].
        """
        shape, size = tf.shape(query), query.shape[-1]
        flat = [tf.reshape(x, [-1, size]) for x in values]
        weights = tf.ones_like(flat[0][:, :1], tf.float32)
        mixed = flat[0]
        if f"{self.scope}/query/kernel" in self.values:
            weights = self._weights(query, flat, context)
            shares = tf.unstack(tf.cast(weights, query.dtype), axis=-1)
            mixed = tf.add_n(
                [w[:, tf.newaxis] * x for w, x in zip(shares, flat)]
            )
        if f"{self.scope}/value/kernel" in self.values:
            mixed = tf.matmul(mixed, self._read("value/kernel", query.dtype))
        mixed = tf.reshape(mixed, shape)
        mixed.set_shape(query.shape)
        shape = tf.concat([shape[:2], [len(values)]], axis=0)
        return mixed, tf.reshape(weights, shape)

    def _weights(self, query, values, context: Context) -> tf.Tensor:
        """The softmax over adapters, float32 [B T, N].

        Args:
            query: float32 [B, T, D].
            values: of each adapter float32 [B T, D].
            context: of this forward pass.
        """
        kernel, bias = (
            self._read(f"query/{name}", query.dtype)
            for name in ("kernel", "bias")
        )
        flat = tf.reshape(query, [-1, kernel.shape[0]])
        flat = functional.add_bias(tf.matmul(flat, kernel), bias)
        # q (u K + b) = (q K') u + q b: one product for all adapters' keys, as
        # for all their values.
        kernel, bias = (
            self._read(f"key/{name}", query.dtype)
            for name in ("kernel", "bias")
        )
        to_key = tf.matmul(flat, kernel, transpose_b=True)
        offset = tf.linalg.matvec(flat, bias)
        scores = tf.stack(
            [tf.reduce_sum(to_key * x, axis=-1) + offset for x in values],
            axis=-1,
        )
        scores = dropout(
            tf.cast(scores, tf.float32), self.rate, self.scope, context
        )
        return tf.nn.softmax(scores)


class FusionHooks(ComposedHooks):
    """Where parts have adapters, tokens attend to all of them."""

    def __init__(
        self,
        parts: Sequence[PartHooks],
        present: Dict[Place, List[int]],
        method: "Fusion",
        config: encoder.BertConfig,
        values: Tensors,
    ):
        """Takes the parts and the trained values.

        Args:
            parts: hooks of adapters, none with changes of BERT's own.
            present: the numbers of the parts with an adapter, by place.
            method: the arguments.
            config: of the BERT.
            values: of the attentions' variables.
        """
        super().__init__(parts)
        self.takes_rows = False
        self.present, self.method, self.values = present, method, values
        self.layers = config.num_hidden_layers
        self.rate = config.attention_probs_dropout_prob

    def layer_kind(self, layer, training):
        kind = super().layer_kind(layer, training)
        sites = tuple(
            (site, tuple(self.present[layer, site]))
            for site in SCOPES
            if (layer, site) in self.present
        )
        is_kept = training or layer >= self.method.first
        return None if kind is None else (kind, sites, is_kept)

    def _attention(self, place: Place) -> Attention:
        return Attention(_scope(place), self.rate, self.values)

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        """A mix of all adapters' outputs; shapes as in `Hooks`."""

        def attend():
            parts = [self.parts[n] for n in self.present[layer, site]]
            values = [
                part.before_norm(
                    layer, site, inputs, outputs, layer_norm, context
                )
                for part in parts
            ]
            query = parts[0].hooks.reads(inputs, outputs, layer_norm)
            return self._attention((layer, site))(query, values, context)

        if (layer, site) not in self.present:
            return None
        if context.training and self.method.robust:
            return drop_at_random(
                layer, self.layers, lambda: attend()[0], outputs, context
            )
        if layer < self.method.first:
            return None
        mixed, weights = attend()
        if context.show:
            context.show(_scope((layer, site)), weights)
        return mixed

    def observe(self, shown, context):
        """`fusion_attention`: float32 [B, places, parts], means over tokens."""
        mask = tf.cast(context.input_mask, tf.float32)
        share = mask / tf.reduce_sum(mask, axis=1, keepdims=True)
        rows = []
        for place in self.method.kept(self.present):
            mean = tf.einsum("bt,btn->bn", share, shown[_scope(place)])
            columns = tf.unstack(mean, axis=1)
            none = tf.zeros_like(columns[0])
            of_part = dict(zip(self.present[place], columns))
            rows.append(
                tf.stack(
                    [of_part.get(n, none) for n in range(len(self.parts))],
                    axis=1,
                )
            )
        return {ATTENTION: tf.stack(rows, axis=1)}

    def penalty(self, context):
        if not self.method.value:
            return None
        found = []
        for place in self.present:
            value = self.values[f"{_scope(place)}/value/kernel"]
            identity = tf.eye(value.shape[0])
            found.append(tf.reduce_sum(tf.square(value - identity)))
        return self.method.penalty * tf.add_n(found)


def _scope(place: Place) -> str:
    """Of an `Attention`."""
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
        parts: names of at least two trained adapters of one method.
        value: whether there are matrices of values.
        penalty: weight of the squared distance of each of those from the
            identity, in the loss.
        first: the lowest layer that keeps its adapters, as of `adapterdrop`.
        robust: whether each batch of a training goes without those of a random
            number of the lowest layers, so that any `first` can be used after.

    Raises:
        UserError: fewer than two parts, a name twice, a part that is no
            trained adapter, a negative penalty or layer.

    Source: Pfeiffer et al. 2021, section 3.2; initial values and inputs as of
    AdapterHub's code. Rueckle et al. 2021 (AdapterDrop) for `first`.
    """

    name: ClassVar[str] = "fusion"
    # Pfeiffer et al. 2021, section 4.1.
    learning_rate: ClassVar[float] = 5e-5
    observes: ClassVar[Tuple[str, ...]] = (ATTENTION,)
    value: bool = added_later(True)
    penalty: float = added_later(0.01)
    first: int = added_later(0)
    robust: bool = added_later(False)

    def __post_init__(self):
        super().__post_init__()
        if len(self.parts) < 2 or self.trained:
            raise UserError(
                "fusion takes names of two or more trained adapters, and "
                "nothing else, as in fusion(mrpc, rte)"
            )
        if not 0 <= self.penalty < float("inf") or self.first < 0:
            raise UserError(
                f"fusion: penalty is {self.penalty} and first is {self.first}; "
                "expected numbers from 0 on"
            )

    def check(self, config):
        """Compares the parts with the model and with one another.

        Raises:
            UserError: as of `Composition`; or a part that is no bottleneck
                adapter, is another one than the first, or has changed BERT;
                no two adapters anywhere; no such layer.
        """
        super().check(config)
        self._present(config)
        if self.first >= config.num_hidden_layers:
            raise UserError(
                f"fusion: first is {self.first}, but the model has only the "
                f"layers 0 to {config.num_hidden_layers - 1}"
            )
        for part in self.parts:
            if part.method.trains(config):
                raise UserError(
                    f"fusion: {part.name} was trained with {part.method}, "
                    "which changes BERT itself too; expected adapters of "
                    "pfeiffer, or of houlsby(layer_norms=false)"
                )
        present = self._present(config)
        if not any(len(present[place]) > 1 for place in self.kept(present)):
            raise UserError(
                f"fusion: from layer {self.first} on no two parts have an "
                "adapter at the same place"
            )

    def fits(self, trained):
        """Equal; a robust one was trained for any `first`."""
        if isinstance(trained, Fusion) and self.robust:
            return dataclasses.replace(trained, first=self.first) == self
        return self == trained

    @property
    def as_part(self):
        """As of trained adapters; nothing is dropped at random."""
        return dataclasses.replace(super().as_part, robust=False)

    def _present(self, config: encoder.BertConfig) -> Dict[Place, List[int]]:
        """The numbers of the parts with an adapter, by place.

        Raises:
            UserError: a part is no bottleneck adapter, or another one than
                the first.
        """
        hooks = [part.method.hooks(config, {}) for part in self.parts]
        kind = type(hooks[0])
        for part, own in zip(self.parts, hooks):
            alike = type(own) is kind and own.places == {"before_norm"}
            if not (alike and issubclass(kind, AdapterHooks)):
                raise UserError(
                    f"fusion: {part.name} is an adapter of "
                    f"{part.method.name}, {self.parts[0].name} of "
                    f"{self.parts[0].method.name}; expected adapters that read "
                    "the same, as pfeiffer's"
                )
        lowest = 0 if self.robust else self.first
        present: Dict[Place, List[int]] = {}
        for layer in range(lowest, config.num_hidden_layers):
            for site in SCOPES:
                found = [
                    number
                    for number, own in enumerate(hooks)
                    if (layer, site) in own.scopes
                ]
                if found:
                    present[layer, site] = found
        return present

    def variables(self, config, pooler=True):
        """The parts', and `<place>/fusion/{query,key,value}/...`."""
        found = super().variables(config, pooler)
        for place, numbers in self._present(config).items():
            found.update(
                Attention.variables(
                    _scope(place), config.hidden_size, self.value, len(numbers)
                )
            )
        return found

    def compose(self, config, values, parts):
        return FusionHooks(parts, self._present(config), self, config, values)

    def kept(self, places: Iterable[Place]) -> List[Place]:
        """The places where tokens attend in prediction."""
        return [(layer, site) for layer, site in places if layer >= self.first]

    def places(self, config: encoder.BertConfig) -> List[Place]:
        """Where tokens attend in prediction, in the order of `observe`."""
        return self.kept(self._present(config))
