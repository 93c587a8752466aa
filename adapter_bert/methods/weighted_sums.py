"""Weighted sums of trained adapters: linear, TIES, DARE, by magnitude, SVD.

A value counts by its change: from BERT's own value, or from the value at which
every training starts, as the ones of (IA)^3. Values that start at random count
from zero.

Source: Hugging Face's peft, `add_weighted_adapter` and `utils/merge_utils.py`.
Differs from it: DARE's random numbers follow from a seed; and (IA)^3 counts
from one, so both agree where weights add up to one.
"""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np

from adapter_bert.bert import encoder
from adapter_bert.errors import UserError
from adapter_bert.methods.base import PARTS, TuningMethod, Values
from adapter_bert.methods.lora import Lora

AVERAGE, LINEAR, CAT, SVD = "average", "linear", "cat", "svd"


class Way(NamedTuple):
    """Says what is done to changes before they are added up.

    Attributes:
        keeps: which share of each change stays: "largest", "random" or "all".
        elects: whether the majority chooses a sign for each value.
    """

    keeps: str = "all"
    elects: bool = False


WAYS = {
    LINEAR: Way(),
    "ties": Way("largest", elects=True),
    "dare_linear": Way("random"),
    "dare_ties": Way("random", elects=True),
    "magnitude_prune": Way("largest"),
}
# The same of LoRA's whole updates, of which an SVD makes factors again.
OF_UPDATES = {
    (SVD if name == LINEAR else f"{name}_svd"): way
    for name, way in WAYS.items()
}
SUMS = AVERAGE, *WAYS, CAT, *OF_UPDATES
TOTAL, FREQUENCY = "total", "frequency"

# Arguments that change nothing of what a trained adapter computes.
OF_TRAINING = ("dropout", "init_scale", "inner_size", "d_initial")


@dataclasses.dataclass(frozen=True)
class WeightedSum:
    """Says how adapters are added up.

    Attributes:
        by: a name of `SUMS`. `average` divides the weights by their sum.
        density: share of each variable's change that is kept, above 0 and at
            most 1; for all but `average`, `linear`, `cat` and `svd`.
        majority_sign: whether the majority is of the changes' sum (`total`) or
            of their signs (`frequency`); for `ties`. None is for `total`.
        seed: of the values that DARE keeps; None is for 0.
        rank: of what an SVD makes; None is for the greatest of the adapters'.

    Source: Ilharco et al. 2023 (linear); Yadav et al. 2023, section 3 (TIES);
    Yu et al. 2024, section 3.2 (DARE); all as peft has them.
    """

    by: str = LINEAR
    density: Optional[float] = None
    majority_sign: Optional[str] = None
    seed: Optional[int] = None
    rank: Optional[int] = None

    def __post_init__(self):
        used = {
            "density": self.way.keeps != "all",
            "majority_sign": self.way.elects,
            "seed": self.way.keeps == "random",
            "rank": self.by.endswith(SVD),
        }
        for name, is_used in used.items():
            if not is_used and getattr(self, name) is not None:
                raise UserError(
                    f"--{name} means nothing with --by={self.by}; leave it out"
                )
        if self.way.keeps != "all" and not 0 < (self.density or 0) <= 1:
            raise UserError(
                f"--density is {self.density}, but --by={self.by} keeps a "
                "share of the values; expected a number above 0 and at most 1"
            )

    @property
    def way(self) -> Way:
        return {**WAYS, **OF_UPDATES}.get(self.by, Way())

    def __call__(
        self, name: str, changes: Sequence[np.ndarray], weights: Sequence[float]
    ) -> np.ndarray:
        """Gives the weighted sum of a variable's changes, float32 [...].

        Each is pruned at its own size; shorter ones are then padded with
        zeros. The random numbers of DARE follow the variable's name.
        """
        if self.by == AVERAGE:
            weights = np.divide(weights, sum(weights))
        kept = _alike(
            [self._keep(name, *numbered) for numbered in enumerate(changes)]
        )
        factors = np.asarray(weights, np.float32)
        weighted = kept * factors.reshape([-1] + [1] * (kept.ndim - 1))
        if not self.way.elects:
            return weighted.sum(0)
        votes = np.sign(kept) if self.majority_sign == FREQUENCY else kept
        agrees = np.sign(kept) == np.where(votes.sum(0) >= 0, 1, -1)
        counts = np.maximum(agrees.sum(0), 1).astype(np.float32)
        return (weighted * agrees).sum(0) / counts

    def _keep(self, name: str, number: int, change: np.ndarray) -> np.ndarray:
        if self.way.keeps == "all" or self.density == 1:
            return change
        if self.way.keeps == "random":
            # As much as before is expected of what is left.
            kept = self.chosen(name, number, change.shape)
            return change * kept / np.float32(self.density)
        order = np.argsort(-np.abs(change), axis=None, kind="stable")
        kept = np.zeros(change.size, bool)
        kept[order[: int(self.density * change.size)]] = True
        return change * kept.reshape(change.shape)

    def chosen(
        self, name: str, number: int, shape: encoder.Shape
    ) -> np.ndarray:
        """Chooses the values that DARE keeps of an adapter, bool [...]."""
        key = [self.seed or 0, zlib.crc32(name.encode()), number]
        return np.random.default_rng(key).random(shape) < self.density

    def merge(
        self,
        config: encoder.BertConfig,
        read: encoder.Read,
        methods: Sequence[TuningMethod],
        values: Sequence[Values],
        weights: Sequence[float],
    ) -> tuple[TuningMethod, Values]:
        """Makes one adapter of several: the method of the sum, and its values.

        `read` gives one of BERT's own variables as it was pretrained. `values`
        have no heads; parts of a composition, the same in all, stay.
        """
        first = methods[0]
        if self.by != AVERAGE and all(
            type(m) is Lora and not m.gating for m in methods
        ):
            return self._merge_lora(config, methods, values, weights)
        alike = {x: getattr(first, x) for x in OF_TRAINING if hasattr(first, x)}
        if any(
            type(method) is not type(first)
            or dataclasses.replace(method, **alike) != first
            for method in methods
        ):
            raise UserError(
                f"the adapters' methods are {', '.join(map(str, methods))}; "
                "expected one method with the same arguments, or of LoRAs "
                "--by=svd"
            )
        sums = (AVERAGE, *WAYS)
        if first.factored or first.new_words:
            # Factors' sum is no sum of what adapters compute, and the
            # embeddings of new words do not tell from what they changed.
            sums = (AVERAGE,)
        if self.by not in sums:
            raise UserError(
                f"adapters of {first.name} are not added up by {self.by}; "
                f"expected --by={' or '.join(sums)}"
            )
        return first, self._merge_values(config, read, first, values, weights)

    def _merge_values(self, config, read, method, values, weights) -> Values:
        shapes = encoder.list_variables(config)
        declared = method.variables(config)
        summed: Values = {}
        if any(one.keys() != values[0].keys() for one in values):
            raise UserError(
                "the adapters hold values of other variables each; expected "
                "adapters of one version of this program, of tasks that all "
                "read BERT's pooler or all do not"
            )
        for name, value in values[0].items():
            all_values = [one[name] for one in values]
            frozen = name in declared and not declared[name].trained
            if name.startswith(PARTS) or frozen:
                if any(np.any(other != value) for other in all_values):
                    raise UserError(
                        f"{name}, which no training changes, is another one in "
                        "each adapter; expected adapters of the same parts and "
                        "masks"
                    )
                summed[name] = value
                continue
            start = (
                read(name) if name in shapes else _start(name, declared, read)
            )
            changes = [other - start for other in all_values]
            summed[name] = start + self(name, changes, weights)
        return summed

    def _merge_lora(self, config, methods, values, weights):
        by_updates = self.by in OF_UPDATES
        every = [method.matrices(config) for method in methods]
        ranks = [max(one.rank for one in of.values()) for of in every]
        if self.by != CAT and not by_updates and len(set(ranks)) > 1:
            raise UserError(
                f"the ranks are {', '.join(map(str, ranks))}, but --by="
                f"{self.by} adds up factors of one rank; expected --by=svd, "
                "another sum with _svd in its name, or --by=cat"
            )
        rank = sum(ranks) if self.by == CAT else self.rank or max(ranks)
        targets = dict.fromkeys(
            target for m in methods for target in m.targets.split(",")
        )
        merged = Lora(rank, float(rank), ",".join(targets), methods[0].dropout)
        merged.check(config)
        summed: Values = {}
        for name, declared in merged.variables(config).items():
            summed[name] = np.zeros(declared.shape, np.float32)
        for scope in merged.matrices(config):
            down, up = f"{scope}/lora_a", f"{scope}/lora_b"
            # A matrix may have updates of some adapters only, or of none.
            some = [n for n, one in enumerate(every) if scope in one]
            if not some:
                continue
            downs, ups = (
                [values[n][name] for n in some] for name in (down, up)
            )
            scales = [every[n][scope].scale for n in some]
            shares = [weights[n] for n in some]
            sizes = [w * scale for w, scale in zip(shares, scales)]
            if by_updates:
                updates = [s * (a @ b) for s, a, b in zip(scales, downs, ups)]
                update = self(f"{scope}/kernel", updates, shares)
                a, b = _divide(update, rank)
            elif self.by == CAT:
                a = np.concatenate([s * a for s, a in zip(sizes, downs)], 1)
                b = np.concatenate(ups)
            else:
                roots = [abs(size) ** 0.5 for size in sizes]
                a = self(down, downs, np.multiply(roots, np.sign(shares)))
                b = self(up, ups, roots)
            # Of a lower rank than the sum's the rest stays zero.
            summed[down][:, : len(b)], summed[up][: len(b)] = a, b
        return merged, summed


def _divide(update: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    # In float64, since values far below the greatest matter, too.
    left, sizes, right = np.linalg.svd(
        update.astype(np.float64), full_matrices=False
    )
    up = sizes[:rank, np.newaxis] * right[:rank]
    return left[:, :rank].astype(np.float32), up.astype(np.float32)


def _alike(arrays: Sequence[np.ndarray]) -> np.ndarray:
    shape = np.max([x.shape for x in arrays], axis=0)
    return np.stack(
        [np.pad(x, [(0, n) for n in shape - x.shape]) for x in arrays]
    )


def _start(
    name: str,
    declared: Mapping[str, encoder.Declared],
    read: encoder.Read,
) -> np.ndarray:
    one = declared[name]
    first, other = (
        encoder.initial_values(name, one.shape, one.initializer, seed, read)
        for seed in (0, 1)
    )
    return first if np.array_equal(first, other) else np.zeros_like(first)
