"""VeRA: scales of frozen random matrices that all layers share."""

import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import TokenHooks, dropout
from adapter_bert.methods import base
from adapter_bert.methods.base import Declared
from adapter_bert.methods.lora import (
    TargetsMethod,
    places,
    scope_of,
)

# Names under which the two matrices are handed on to layers.
DOWN, UP = "vera/down", "vera/up"


class VeraHooks(TokenHooks):
    """Adds `((dropout(x) A) d B) b` to the products of some kernels.

    Reads the scales `<kernel's scope>/vera_d` and `vera_b`.
    """

    def begin(self, context):
        """A and B, float32 [inputs, R] and [R, outputs] of all targets."""
        down, up = self.method.matrices(self.config)
        return {DOWN: tf.constant(down), UP: tf.constant(up)}

    def project(self, name, inputs, dense, context):
        outputs = dense(inputs)
        if f"{name}/vera_d" not in self.values:
            return outputs
        inner, outer = (
            base.over_tokens(
                tf.cast(self.values[f"{name}/vera_{part}"], context.dtype)
            )
            for part in "db"
        )
        x = tf.cast(inputs, context.dtype)
        x = dropout(x, self.method.dropout, f"{name}/vera", context)
        shared = context.handed_on
        if name == encoder.POOLER:
            # To which nothing is handed on.
            shared = self.begin(context)
        # Else a shared layer would compute their gradients too.
        down, up = (tf.stop_gradient(shared[x]) for x in (DOWN, UP))
        down, up = down[: inputs.shape[-1]], up[:, : outer.shape[-1]]
        x = tf.matmul(x, tf.cast(down, x.dtype)) * inner
        return outputs + tf.matmul(x, tf.cast(up, x.dtype)) * outer


@dataclasses.dataclass(frozen=True)
class Vera(TargetsMethod):
    """Updates `W + A diag(d) B diag(b)` of random A and B; BERT is frozen.

    All layers share A and B, which follow from the seed and are in no file. A
    kernel that is smaller than others reads the first rows or columns of them.
    BERT-base, for each target in each layer: rank + outputs; 12 x 2 x
    (256 + 768) = 24,576 at rank 256 for queries and values. The output at the
    start is plain BERT's, since b is zero. The scales do not decay.

    Attributes:
        rank: of the update; may be above BERT's sizes.
        seed: of A and B, from 0 to 2^32 - 1.
        d_initial: first value of d.

    Source: Kopiczko et al. 2024, section 3. A and B are those of peft 0.21,
    `VeraModel._init_vera_A_vera_B`, so that both compute the same.
    """

    name = "vera"
    # Kopiczko et al. 2024 on SST-2 with RoBERTa-base; 1e-2 on small tasks.
    learning_rate = 4e-3
    factored = True
    hooks_class = VeraHooks
    positive = ("rank", "d_initial")
    limits = {
        **base.DROPOUT,
        "seed": (0, 2**32 - 1),
    }
    rank: int = 256
    seed: int = 0
    targets: str = "query,value"
    dropout: float = 0.0
    d_initial: float = 0.1
    layers: str = base.ALL_LAYERS

    def check(self, config):
        super().check(config)
        base.choose_layers(self.layers, config)

    def kernels(self, config: encoder.BertConfig) -> dict[str, tuple[int, ...]]:
        shapes = encoder.list_variables(config)
        layers = base.choose_layers(self.layers, config)
        scopes = map(scope_of, places(self.targets.split(","), layers))
        return {
            scope: shapes[config.variable(f"{scope}/kernel")]
            for scope in scopes
        }

    def matrices(
        self, config: encoder.BertConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """A and B, float32 [inputs, rank] and [rank, outputs] at the most."""
        shapes = self.kernels(config).values()
        return _draw(
            self.seed,
            self.rank,
            max(inputs for inputs, _ in shapes),
            max(outputs for _, outputs in shapes),
        )

    def variables(self, config, pooler=True):

        def initial(rng, shape):
            return np.full(shape, self.d_initial, np.float32)

        declared = {}
        for scope, (_, outputs) in self.kernels(config).items():
            declared[f"{scope}/vera_d"] = Declared(
                (self.rank,), initial, decays=False
            )
            declared[f"{scope}/vera_b"] = Declared(
                (outputs,), encoder.zeros, decays=False
            )
        return declared

    def merge(self, config, read, values):
        down, up = self.matrices(config)
        merged = {}
        for scope, (inputs, outputs) in self.kernels(config).items():
            inner, outer = (values[f"{scope}/vera_{part}"] for part in "db")
            update = (down[:inputs] * inner) @ up[:, :outputs] * outer
            merged[f"{scope}/kernel"] = read(f"{scope}/kernel") + update
        return merged


@functools.lru_cache(maxsize=8)
def _draw(
    seed: int, rank: int, inputs: int, outputs: int
) -> tuple[np.ndarray, np.ndarray]:
    """A and B, float32 [inputs, rank] and [rank, outputs].

    He et al. 2015's uniform values by the Mersenne twister, of which NumPy and
    PyTorch promise the same numbers for a seed. PyTorch takes the last 24 bits
    of each, rounds once, and has the matrices transposed.
    """
    twister = np.random.RandomState(seed)

    def uniform(rows: int, columns: int) -> np.ndarray:
        bits = twister.randint(0, 2**32, (rows, columns), np.uint32)
        bound = float(np.float32(math.sqrt(6.0 / columns)))
        share = (bits & (2**24 - 1)) / 2.0**24
        return (share * (2.0 * bound) - bound).astype(np.float32)

    down = uniform(rank, inputs)
    return down.T, uniform(outputs, rank).T
