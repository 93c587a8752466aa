"""LoReFT and its variants: a layer's outputs are moved in a small subspace."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder, functional
from adapter_bert.bert.hooks import Hooks, TokenHooks, dropout
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.base import ALL_LAYERS, Declared, TuningMethod

SOURCE, BIAS = "source/kernel", "source/bias"
PROJECTION, REFLECTORS = "projection", "reflectors"


def reflected(reflectors: Any, library: Any) -> Any:
    """Computes an orthonormal basis, a product of Householder reflections.

    Reflection i is `I - 2 v v' / v'v`, where v has zeros above entry i, 1 there
    and column i of `reflectors` below. The first R columns of the product are
    the basis. Takes and gives float32 [D, R]; `library` is numpy or TensorFlow.

    Source: `torch.nn.utils.parametrizations.orthogonal` of a matrix with fewer
    rows than columns, without the fixed matrix by which that is multiplied.
    """
    size, rank = reflectors.shape
    below = np.tri(size, rank, -1, dtype=np.float32)
    basis = np.eye(size, rank, dtype=np.float32)
    vectors = reflectors * below + basis
    # Of the product the columns that are wanted, from its right end.
    for i in reversed(range(rank)):
        v = vectors[:, i : i + 1]
        scale = 2.0 / library.matmul(library.transpose(v), v)
        projected = library.matmul(library.transpose(v), basis)
        basis = basis - scale * library.matmul(v, projected)
    return basis


def random_reflectors(
    rng: np.random.Generator, shape: encoder.Shape
) -> np.ndarray:
    """An initializer: of a random subspace, each as likely as any other."""
    packed, _ = np.linalg.qr(rng.standard_normal(shape), mode="raw")
    return np.tril(packed.T, -1).astype(np.float32)


class ReftHooks(TokenHooks):
    """Moves the outputs of some layers at the first and the last tokens."""

    def after_norm(self, layer, site, hidden, context):
        scopes = self.method.scopes(layer)
        if site != "ffn" or f"{scopes[0]}/{BIAS}" not in self.values:
            return None
        # Positions [1, T, 1], which the last tokens of rows end at [B, 1, 1].
        places = tf.reshape(tf.range(tf.shape(hidden)[1]), [1, -1, 1])
        end = tf.reduce_sum(context.input_mask, axis=1)
        end = tf.reshape(end, [-1, 1, 1])
        first = places < self.method.prefix
        last = (places >= end - self.method.suffix) & (places < end)
        if len(scopes) == 1:
            return self._added(scopes[0], first | last, hidden, context)
        # A token that is both is moved as one of the last.
        added = self._added(scopes[0], first & ~last, hidden, context)
        return added + self._added(scopes[1], last, hidden, context)

    def _added(self, scope, where, hidden, context):
        kernel, bias = (
            tf.cast(self.values[f"{scope}/{name}"], hidden.dtype)
            for name in (SOURCE, BIAS)
        )
        basis = tf.cast(self.basis(scope), hidden.dtype)  # [D, R]
        inner = tf.matmul(hidden, kernel) + base.over_tokens(bias)
        inner = functional.activation(self.method.nonlinearity)(inner)
        if self.method.subtract:
            inner -= tf.matmul(hidden, basis)
        added = tf.matmul(inner, basis, transpose_b=True)
        if context.training and self.method.dropout:
            # Of what a token becomes, not only of what is added.
            moved = dropout(hidden + added, self.method.dropout, scope, context)
            added = moved - hidden
        return tf.where(where, added, tf.zeros_like(added))

    def basis(self, scope: str) -> tf.Tensor:
        return tf.convert_to_tensor(self.values[f"{scope}/{PROJECTION}"])


class OrthogonalReftHooks(ReftHooks):
    """Makes the basis of each subspace of reflections."""

    takes_rows = False

    def basis(self, scope):
        reflectors = self.values[f"{scope}/{REFLECTORS}"]
        return reflected(tf.convert_to_tensor(reflectors), tf)


@dataclasses.dataclass(frozen=True)
class LoReft(TuningMethod):
    """Layers' outputs are moved in a small subspace; BERT is frozen.

    The output h of a layer becomes `h + R'(act(W h + b) - R h)` at the first
    and the last tokens of a text, where R has `rank` orthonormal rows, the
    basis of the subspace. `loreft(orthogonal=False)` is NoReFT, and
    `loreft(orthogonal=False, subtract=False)` DiReFT.

    R is trained as the product of Householder reflections, whose vectors are
    the variables, so it stays orthonormal. The artifact holds R itself.

    BERT-base: 12 (2 rank 768 + rank) for the first tokens, 18,444 at rank 1,
    and as many for the last ones unless `tied`. The output at the start is not
    BERT's.

    Attributes:
        prefix: how many tokens are moved at the start of a text.
        suffix: how many at the end of a text, [SEP] included.
        tied: whether first and last tokens share a subspace.
        dropout: of what a moved token becomes, in training; 0 to 0.99.

    Source: Wu et al. 2024 (ReFT), sections 3.2 and 3.3; AdapterHub's
    `ReftConfig`, whose defaults these are.
    """

    name = "loreft"
    # Between those of `lora` and `ia3`, which train as little; not measured.
    learning_rate = 1e-3
    factored = True
    positive = ("rank",)
    limits = base.DROPOUT
    choices = {"nonlinearity": functional.ACTIVATIONS}
    rank: int = 1
    prefix: int = 3
    suffix: int = 0
    layers: str = ALL_LAYERS
    tied: bool = False
    orthogonal: bool = True
    subtract: bool = True
    nonlinearity: str = "linear"
    dropout: float = 0.05

    def __post_init__(self):
        super().__post_init__()
        if min(self.prefix, self.suffix) < 0 or self.prefix == self.suffix == 0:
            raise UserError(
                f"loreft: prefix is {self.prefix} and suffix is {self.suffix}, "
                "expected numbers of tokens from 0 on, not both 0"
            )
        if self.layers != ALL_LAYERS:
            base.layer_numbers(self.layers)

    @property
    def hooks_class(self) -> type[Hooks]:
        return OrthogonalReftHooks if self.orthogonal else ReftHooks

    @property
    def width(self) -> str:
        return "" if self.orthogonal else "rank"

    def check(self, config):
        base.choose_layers(self.layers, config)
        if self.rank >= config.hidden_size:
            raise UserError(
                f"loreft: rank is {self.rank}, expected less than the model's "
                f"hidden size {config.hidden_size}"
            )
        longest = config.max_position_embeddings
        if max(self.prefix, self.suffix) > longest:
            raise UserError(
                f"loreft: prefix is {self.prefix} and suffix is {self.suffix}, "
                f"expected at most the model's {longest} tokens"
            )

    @property
    def sides(self) -> list[str]:
        if self.tied:
            return ["both"]
        sizes = {"first": self.prefix, "last": self.suffix}
        return [side for side, size in sizes.items() if size]

    def scopes(self, layer: int) -> list[str]:
        scope = f"bert/encoder/layer_{layer}/output/reft"
        return [f"{scope}/{side}" for side in self.sides]

    def variables(self, config, pooler=True):
        declared: dict[str, Declared] = {}
        shape = config.hidden_size, self.rank
        for layer in base.choose_layers(self.layers, config):
            for scope in self.scopes(layer):
                linear = Declared(shape, base.uniform_by_inputs)
                bias = Declared((self.rank,), encoder.zeros)
                declared[f"{scope}/{SOURCE}"] = linear
                declared[f"{scope}/{BIAS}"] = bias
                if self.orthogonal:
                    declared[f"{scope}/{REFLECTORS}"] = Declared(
                        shape, random_reflectors, decays=False
                    )
                else:
                    declared[f"{scope}/{PROJECTION}"] = linear
        return declared

    def finish(self, config, values):
        kept, end = {}, f"/{REFLECTORS}"
        for name, value in values.items():
            if name.endswith(end):
                name = f"{name[: -len(end)]}/{PROJECTION}"
                value = reflected(value, np)
            kept[name] = value
        return dataclasses.replace(self, orthogonal=False), kept
