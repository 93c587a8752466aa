"""AdaLoRA: low-rank updates that share out their ranks while they are trained.

What has been trained is LoRA, whose ranks differ.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.base import Declared
from adapter_bert.methods.lora import (
    Lora,
    LoraHooks,
    TargetsMethod,
    check_rank,
    place_of,
    write_pattern,
)
from adapter_bert.methods.rank_allocation import Allocation

# Below the square of any distance that float32 tells from zero.
TINY = 1e-30


class AdaLoraHooks(LoraHooks):
    """Adds `scale dropout(x) A diag(E) B` to the products of some kernels.

    Reads A, B and E, `<kernel's scope>/lora_a`, `lora_b` and `lora_e`.
    """

    def __init__(
        self,
        method: "AdaLora",
        config: encoder.BertConfig,
        values: Mapping[str, Any],
    ):
        super().__init__(method.lora, config, values)
        self.weight = method.orth_reg_weight

    def factors(self, name):
        down, up = super().factors(name)
        # Of rows too, which may have values of their own.
        singular = tf.convert_to_tensor(self.values[f"{name}/lora_e"])
        return [down * singular[..., tf.newaxis, :], up]

    def penalty(self, context):
        """Gives how far columns of A and rows of B are from orthonormal ones.

        The mean of `|A^T A - I|` and `|B B^T - I|` over all matrices.
        """
        distances = []
        for name in self.values:
            if name.endswith(("/lora_a", "/lora_b")):
                x = tf.convert_to_tensor(self.values[name])
                is_down = name.endswith("a")
                product = tf.matmul(
                    x, x, transpose_a=is_down, transpose_b=not is_down
                )
                squares = tf.square(product - tf.eye(product.shape[0]))
                # A root has no gradient at zero, as of exact orthonormal ones.
                total = tf.maximum(tf.reduce_sum(squares), TINY)
                distances.append(tf.sqrt(total))
        return self.weight * tf.add_n(distances) / len(distances)


@dataclasses.dataclass(frozen=True)
class AdaLora(TargetsMethod):
    """Updates `W + (alpha / init_rank) A diag(E) B`, whose ranks shrink.

    A training begins with `init_rank` singular values E for each matrix. It
    ends with as many as `rank` for each, shared out by importance over all
    matrices (`rank_allocation.py`). BERT-base, for each target in each layer:
    init_rank (inputs + outputs + 1); 12 x 2 x 12 (768 + 768 + 1) = 442,656 for
    queries and values. The adapter is `lora` with a pattern of ranks: 12 x 2 x
    8 (768 + 768) = 294,912 at rank 8. The output at the start is plain BERT's,
    since E is zero.

    Attributes:
        rank: in the mean, at the end.
        tinit: share of the training before ranks shrink, from 0 on.
        tfinal: share of the training with the final ranks; below 1 with
            `tinit`.
        delta_t: steps between two choices of singular values.
        beta1: decay of the importance's average, between 0 and 1.
        beta2: decay of the uncertainty's average, between 0 and 1.
        orth_reg_weight: of the penalty that keeps A and B nearly orthonormal.

    Source: Zhang et al. 2023, section 3; first values and penalty of peft
    0.21, `AdaLoraModel`. Steps of the schedule are shares here, near those of
    the paper's Table 8 on GLUE. peft divides by init_rank + 1e-5.
    """

    name = "adalora"
    # Zhang et al. 2023, Table 8: 5e-4 to 2.2e-3 on GLUE.
    learning_rate = 1e-3
    factored = True
    hooks_class = AdaLoraHooks
    positive = (
        "init_rank",
        "rank",
        "alpha",
        "delta_t",
        "beta1",
        "beta2",
    )
    limits = {
        **base.DROPOUT,
        **dict.fromkeys(("tinit", "tfinal", "beta1", "beta2"), (0.0, 0.999)),
        "orth_reg_weight": (0.0, math.inf),
    }
    init_rank: int = 12
    rank: int = 8
    alpha: float = 8.0
    targets: str = "query,value"
    dropout: float = 0.0
    tinit: float = 0.15
    tfinal: float = 0.5
    delta_t: int = 1
    beta1: float = 0.85
    beta2: float = 0.85
    orth_reg_weight: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if self.rank >= self.init_rank or self.tfinal >= 1 - self.tinit:
            raise UserError(
                f"{self}: expected rank below init_rank, and tinit + tfinal "
                "below 1"
            )

    def check(self, config):
        super().check(config)
        for scope in self.lora.matrices(config):
            check_rank("adalora: init_rank", self.init_rank, scope, config)

    @property
    def lora(self) -> Lora:
        return Lora(self.init_rank, self.alpha, self.targets, self.dropout)

    def variables(self, config, pooler=True):
        allocation = Allocation(
            self.rank,
            self.tinit,
            self.tfinal,
            self.delta_t,
            self.beta1,
            self.beta2,
        )
        declared = {
            name: Declared(one.shape, base.normal(0.02), allocation=allocation)
            for name, one in self.lora.variables(config).items()
        }
        for scope in self.lora.matrices(config):
            declared[f"{scope}/lora_e"] = Declared(
                (self.init_rank,), encoder.zeros, allocation=allocation
            )
        return declared

    def finish(self, config, values):
        kept = {
            scope: np.flatnonzero(values[f"{scope}/lora_e"])
            for scope in self.lora.matrices(config)
        }
        if not any(map(len, kept.values())):
            # Nothing has been trained yet.
            kept = dict.fromkeys(kept, np.arange(self.init_rank))
        finished = dict(values)
        ranks = {}
        most = max(map(len, kept.values()))
        for scope, places in kept.items():
            down, up, singular = (
                finished.pop(f"{scope}/lora_{part}") for part in "abe"
            )
            rank = ranks[place_of(scope)] = len(places)
            if rank:
                scale = singular[places] * np.float32(rank / self.init_rank)
                finished[f"{scope}/lora_a"] = down[:, places]
                finished[f"{scope}/lora_b"] = scale[:, np.newaxis] * up[places]
        layers, targets = config.num_hidden_layers, self.targets.split(",")
        pattern = write_pattern(ranks, most, layers, targets)
        method = dataclasses.replace(self.lora, rank=most, rank_pattern=pattern)
        return method, finished
