"""LoRA: low-rank updates of BERT's own matrices."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Hooks, dropout, layer_of
from adapter_bert.errors import UserError
from adapter_bert.methods import base, gate
from adapter_bert.methods.base import Declared, TuningMethod, added_later

# What `targets` may name in each layer -> scope within the layer.
TARGETS = {
    "query": "attention/self/query",
    "key": "attention/self/key",
    "value": "attention/self/value",
    "attention_output": "attention/output/dense",
    "intermediate": "intermediate/dense",
    "output": "output/dense",
}
# And once, above all layers.
POOLER = "pooler"
NAMES = (*TARGETS, POOLER)


# A matrix: its layer, and its name in `NAMES`. The pooler's layer is -1.
Place = tuple[int, str]
OF_POOLER: Place = (-1, POOLER)

# Of an entry of a pattern: layers, a target, or both; then its number.
_LAYERS, _TARGET = base.LAYER_RANGE.pattern, "|".join(NAMES)
ENTRY = re.compile(
    rf"(?:(?:{_LAYERS}\.)?({_TARGET})|{_LAYERS}):"
    r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,3})?)"
)


def places(targets: Sequence[str], layers: Iterable[int]) -> Iterator[Place]:
    """Gives the targets of each layer in turn, then the pooler if it is one."""
    in_layers = [target for target in targets if target != POOLER]
    yield from itertools.product(layers, in_layers)
    if POOLER in targets:
        yield OF_POOLER


def check_rank(
    argument: str, rank: int, scope: str, config: encoder.BertConfig
) -> None:
    """Refuses a rank above the size of its matrix."""
    kernel = config.variable(f"{scope}/kernel")
    most = min(encoder.list_variables(config)[kernel])
    if rank > most:
        raise UserError(
            f"{argument} is {rank} at {scope}, expected at most {most}, the "
            "smaller side of that matrix"
        )


class Entry(NamedTuple):
    """An entry of a pattern, a number for some matrices.

    Attributes:
        layers: first and last, or None for all.
        target: a name of `NAMES`, or "" for all of layers.
    """

    text: str
    layers: Optional[tuple[int, int]]
    target: str
    number: float

    def names(self, place: Place) -> bool:
        layer, target = place
        first, last = self.layers or (layer, layer)
        return first <= layer <= last and self.target in ("", target)


def read_pattern(text: str) -> list[Entry]:
    """Reads the entries of a pattern as `6-11.query:4, value:16, 0:2`.

    Of several entries that name a matrix the first holds. Raises ValueError
    for a part that is no entry, with that part.
    """
    entries = []
    for part in text.split(",") if text else ():
        match = ENTRY.fullmatch(part.strip())
        if not match:
            raise ValueError(part.strip())
        first = match[1] or match[4]
        last = match[2] or match[5] or first
        if first and int(first) > int(last):
            raise ValueError(part.strip())
        layers = (int(first), int(last)) if first else None
        number = float(match[6])
        entries.append(Entry(match[0], layers, match[3] or "", number))
    return entries


def write_pattern(
    numbers: Mapping[Place, Any],
    default: float,
    layers: int,
    targets: Sequence[str],
) -> str:
    """Gives the pattern of these numbers, in a model of so many layers."""
    of_pooler = numbers.get(OF_POOLER, default)
    targets = [target for target in targets if target != POOLER]
    rows = [
        [numbers.get((layer, target), default) for target in targets]
        for layer in range(layers)
    ]
    # Of layers that are alike throughout, then of the targets in others.
    whole = [row[0] if len(set(row)) == 1 else default for row in rows]
    columns = {"": whole}
    for number, target in enumerate(targets):
        columns[target] = [
            default if same != default else row[number]
            for same, row in zip(whole, rows)
        ]
    parts = []
    for target, column in columns.items():
        layer = 0
        for number, run in itertools.groupby(column):
            first, layer = layer, layer + len(list(run))
            last = layer - 1
            place = f"{first}-{last}" if last > first else f"{first}"
            if target:
                is_all = (first, layer) == (0, layers)
                place = target if is_all else f"{place}.{target}"
            if number != default:
                parts.append(f"{place}:{number}")
    if of_pooler != default:
        parts.append(f"{POOLER}:{of_pooler}")
    return ", ".join(parts)


class Matrix(NamedTuple):
    """Holds a matrix's update: its rank, alpha, and the factor of both."""

    rank: int
    alpha: float
    scale: float


class LoraHooks(Hooks):
    """Adds `scale dropout(x) A B` to the products of some kernels.

    Reads A and B, `<kernel's scope>/lora_a` and `lora_b`.
    """

    takes_rows = True
    by_values = True

    @property
    def by_token(self):
        return not self.method.gating

    def layer_kind(self, layer, training):
        return tuple(self.method.matrix((layer, t)) for t in TARGETS)

    def factors(self, name: str) -> list[Any]:
        """Gives A and B of a kernel, float32 [inputs, R] and [R, outputs]."""
        return [self.values[f"{name}/lora_{factor}"] for factor in "ab"]

    def project(self, name, inputs, dense, context):
        outputs = dense(inputs)
        if f"{name}/lora_a" not in self.values:
            return outputs
        down, up = (tf.cast(x, context.dtype) for x in self.factors(name))
        x = tf.cast(inputs, context.dtype)
        x = dropout(x, self.method.dropout, f"{name}/lora", context)
        if len(down.shape) == 2:
            x = tf.reshape(x, [-1, down.shape[0]])
        scale = self.method.matrix(place_of(name)).scale
        update = tf.matmul(tf.matmul(x, down), up) * scale
        update = tf.reshape(update, tf.shape(outputs))
        if self.method.gating:
            inputs = tf.cast(inputs, context.dtype)
            update *= gate.opened(self.values, name, inputs, context)
        return outputs + update


def scope_of(place: Place) -> str:
    """Gives the scope of a matrix's variables."""
    layer, target = place
    if target == POOLER:
        return encoder.POOLER
    return f"bert/encoder/layer_{layer}/{TARGETS[target]}"


def place_of(scope: str) -> Place:
    """Gives the matrix whose variables have a scope."""
    if scope == encoder.POOLER:
        return OF_POOLER
    layer = layer_of(scope)
    _, _, within = scope.partition(f"/layer_{layer}/")
    return layer, next(t for t, place in TARGETS.items() if place == within)


@dataclasses.dataclass(frozen=True)
class TargetsMethod(TuningMethod):
    """A method whose argument `targets` names the kernels that it changes."""

    def __post_init__(self):
        super().__post_init__()
        names = self.targets.split(",")
        for name in names:
            if name not in NAMES or names.count(name) > 1:
                raise UserError(
                    f"{self.name}: targets is {self.targets!r}, where {name!r} "
                    "is unknown or named twice; expected some of "
                    f"{','.join(NAMES)}"
                )

    def check(self, config):
        if POOLER in self.targets.split(",") and not config.has_pooler:
            raise UserError(
                f"{self.name}: targets is {self.targets!r}, but this model has "
                "no pooler; leave pooler out"
            )


@dataclasses.dataclass(frozen=True)
class Lora(TargetsMethod):
    """Low-rank updates `W + (alpha / rank) A B`; BERT is frozen.

    BERT-base, for each target in each layer: rank (inputs + outputs);
    12 x 2 x 8 (768 + 768) = 294,912 at rank 8 for queries and values. The
    pooler is one matrix more. The output at the start is plain BERT's, since B
    is zero.

    Attributes:
        targets: the matrices, names of `NAMES` with commas between them. Heads
            that read no pooler are refused with `pooler`.
        dropout: of what A reads, in training; from 0 to 0.99.
        gating: whether each update has a gate (`gate.py`), inputs + 1
            parameters, in place of the factor alpha / rank.
        rs: whether alpha is divided by the rank's root instead (rsLoRA).
        rank_pattern: other ranks of some matrices, as
            `6-11.query:4, value:16, 0:2` for layers, a target, or both. The
            first entry that names a matrix holds; 0 leaves the matrix out. An
            entry with layers never names the pooler.
        alpha_pattern: other alphas of some matrices, in the same form.

    Source: Hu et al. 2022, section 4.1; A starts as in their code.
    Kalajdzievski 2023 for `rs`.
    """

    name = "lora"
    # Hu et al. 2022, Table 9.
    learning_rate = 5e-4
    width = "rank"
    factored = True
    hooks_class = LoraHooks
    positive = ("rank", "alpha")
    limits = base.DROPOUT
    rank: int = 8
    alpha: float = 8.0
    targets: str = "query,value"
    dropout: float = 0.0
    gating: bool = added_later(False)
    rs: bool = added_later(False)
    rank_pattern: str = added_later("")
    alpha_pattern: str = added_later("")

    def __post_init__(self):
        super().__post_init__()
        if self.gating and POOLER in self.targets.split(","):
            raise UserError(
                f"{self.name}: gating is True, but a gate is a mean over a "
                "text's tokens, of which the pooler reads one; leave out "
                "pooler or gating"
            )
        for argument, is_right, expected in (
            ("rank_pattern", float.is_integer, "whole numbers from 0 on"),
            ("alpha_pattern", lambda n: 0 < n < math.inf, "positive numbers"),
        ):
            text = getattr(self, argument)
            try:
                wrong = [
                    entry.text
                    for entry in read_pattern(text)
                    if not is_right(entry.number)
                ]
            except ValueError as error:
                wrong = [str(error) or "nothing"]
            if wrong:
                raise UserError(
                    f"{self.name}: {argument} has {wrong[0][:80]!r}, expected "
                    f"{expected} for layers, targets or both, as "
                    "'6-11.query:4, value:16, 0:2'"
                )

    def check(self, config):
        super().check(config)
        places = list(self._places(config))
        for argument in ("rank_pattern", "alpha_pattern"):
            left = places
            for entry in read_pattern(getattr(self, argument)):
                rest = [place for place in left if not entry.names(place)]
                beyond = entry.layers and entry.layers[1] >= (
                    config.num_hidden_layers
                )
                if beyond or len(rest) == len(left):
                    raise UserError(
                        f"{self.name}: {argument} has {entry.text!r}, which "
                        "names no matrix that is left to it; expected targets "
                        f"of {self.targets!r} in the layers 0 to "
                        f"{config.num_hidden_layers - 1}, each once"
                    )
                left = rest
        matrices = self.matrices(config)
        if not matrices:
            raise UserError(
                f"{self.name}: rank_pattern is {self.rank_pattern!r}, which "
                "leaves no matrix with an update"
            )
        for scope, matrix in matrices.items():
            check_rank(f"{self.name}: rank", matrix.rank, scope, config)

    def matrix(self, place: Place) -> Matrix:
        rank = int(_number(self.rank_pattern, place, self.rank))
        alpha = _number(self.alpha_pattern, place, self.alpha)
        divisor = math.sqrt(rank) if self.rs else rank
        scale = alpha / divisor if rank else 0.0
        return Matrix(rank, alpha, 1.0 if self.gating else scale)

    def matrices(self, config: encoder.BertConfig) -> dict[str, Matrix]:
        updates = {scope_of(p): self.matrix(p) for p in self._places(config)}
        return {scope: one for scope, one in updates.items() if one.rank}

    def _places(self, config: encoder.BertConfig) -> Iterator[Place]:
        return places(self.targets.split(","), range(config.num_hidden_layers))

    def variables(self, config, pooler=True):
        shapes, declared = encoder.list_variables(config), {}
        for scope, matrix in self.matrices(config).items():
            inputs, outputs = shapes[config.variable(f"{scope}/kernel")]
            down, up = (inputs, matrix.rank), (matrix.rank, outputs)
            declared[f"{scope}/lora_a"] = Declared(down, base.uniform_by_inputs)
            declared[f"{scope}/lora_b"] = Declared(up, encoder.zeros)
            if self.gating:
                declared.update(gate.variables(scope, inputs))
        return declared

    def widened(self):
        """Rounds up, unless patterns say ranks or alphas of their own."""
        if self.rank_pattern or self.alpha_pattern:
            return self
        wide = super().widened()
        ratio = wide.rank / self.rank
        alpha = self.alpha * (math.sqrt(ratio) if self.rs else ratio)
        return dataclasses.replace(wide, alpha=alpha)

    def merge(self, config, read, values):
        if self.gating:
            return super().merge(config, read, values)
        return {
            f"{scope}/kernel": read(f"{scope}/kernel")
            + matrix.scale
            * (values[f"{scope}/lora_a"] @ values[f"{scope}/lora_b"])
            for scope, matrix in self.matrices(config).items()
        }


def _number(pattern: str, place: Place, default: float) -> float:
    for entry in read_pattern(pattern):
        if entry.names(place):
            return entry.number
    return default
