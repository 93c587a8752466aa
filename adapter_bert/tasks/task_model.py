"""BERT, a tuning method and a task's head as one model.

`ParameterTable` lists every variable and whether it is trained. The table is
the only source for gradients, weight decay, optimizer slots, the log,
checkpoints and the adapter artifact.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Hashable
from typing import Any, Callable, Optional

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.encoder import Declared, make_variables
from adapter_bert.bert.hooks import Context, Hooks, NoHooks
from adapter_bert.bert.shared_layers import POOLER, make_bert
from adapter_bert.errors import UserError
from adapter_bert.methods.base import PARTS, TuningMethod, trained_of_bert
from adapter_bert.optimization import Recipe
from adapter_bert.tasks.task import scoped

# (config, create) -> head
BuildHead = Callable[[encoder.BertConfig, encoder.CreateVariable], Any]
# Of a dense layer.
KERNEL = re.compile(r"bert/.*/(kernel|bias)")
# Among features, what is read in the place of the tokens' word embeddings.
WORD_VECTORS = "word_vectors"


class TaskModel:
    """BERT with a method's hooks, then a task's head.

    `berts` are one, or one for each of `Head.sides`, which share whatever is
    not trained, and the traces of layers; `bert` is the first.
    """

    def __init__(
        self,
        config: encoder.BertConfig,
        method: TuningMethod,
        build_head: BuildHead,
        create: encoder.CreateVariable,
    ):
        """Creates every variable: the head's, the method's, BERT's."""
        self.head = build_head(config, create)
        pooler = self.head.needs_pooler
        declared = method.variables(config, pooler)
        creators = [create]
        if self.head.sides:
            from adapter_bert.tasks import sides

            trained = {name for name, one in declared.items() if one.trained}
            trained.update(trained_of_bert(method, config, pooler))
            creators = sides.creators(self.head.sides, trained, create)
        make_hooks = functools.partial(method.hooks, config)
        functions: dict[Hashable, Callable] = {}
        self.berts: list[encoder.Bert] = []
        for create_of_side in creators:
            added = make_variables(declared, create_of_side)
            variables = make_variables(
                encoder.declare(config, pooler), create_of_side
            )
            self.berts.append(
                make_bert(config, variables, added, make_hooks, functions)
            )
        self.bert = self.berts[0]

    def __call__(
        self, features: dict[str, tf.Tensor], context: Context
    ) -> dict[str, tf.Tensor]:
        """Computes the head's predictions for a batch.

        `features` are `input_ids`, `input_mask`, `segment_ids`, int32 [B, T],
        other inputs of the head, and in a run of several tasks `task_ids`,
        int32 [B], all alike unless the head has `sides`. Rows of C choices are
        [B, C, T], each choice a row for BERT and for the head.
        `word_vectors`, float32 [B, T, E], replace the tokens' word embeddings
        if there are any. Texts of two sides have theirs in `task_ids`, or are
        [B, C, T] in training, a row's first text and its others.

        Returns the head's outputs by name, [B, ...], or [B C, ...] of choices,
        or [B, C, ...] of the texts of two sides.
        """
        if not self.head.sides:
            return self.compute(self.bert, features, context)
        from adapter_bert.tasks import sides

        return sides.compute(self, features, context)

    def compute(
        self,
        bert: encoder.Bert,
        features: dict[str, tf.Tensor],
        context: Context,
    ) -> dict[str, tf.Tensor]:
        """Computes a batch by one of `berts`."""
        ids, segments = features["input_ids"], features["segment_ids"]
        if "task_ids" in features:
            # A batch is of one task; a lane without rows takes any.
            task = tf.maximum(tf.reduce_max(features["task_ids"]), 0)
            context = dataclasses.replace(context, task=task)
        if len(ids.shape) == 3:
            length = ids.shape[2] or tf.shape(ids)[2]
            ids, segments, mask = (
                tf.reshape(x, [-1, length])
                for x in (ids, segments, context.input_mask)
            )
            context = dataclasses.replace(context, input_mask=mask)
        shown: dict[str, tf.Tensor] = {}
        context = dataclasses.replace(
            context,
            first_token=self.head.reads_first_token
            and bert.hooks.by_token
            and not context.observes,
            show=shown.__setitem__ if context.observes else None,
        )
        predictions = self.head(
            bert,
            self.encode(bert, ids, segments, features, context),
            context,
            **{name: features[name] for name in self.head.reads},
        )
        if context.training:
            return predictions
        predictions = self.head.select(predictions)
        if context.observes:
            predictions.update(bert.hooks.observe(shown, context))
        return predictions

    def encode(
        self,
        bert: encoder.Bert,
        ids: tf.Tensor,
        segments: tf.Tensor,
        features: dict[str, tf.Tensor],
        context: Context,
    ) -> tf.Tensor:
        """Computes BERT's last layer, float32 [B, T, D], of tokens [B, T]."""
        words = features.get(WORD_VECTORS)
        return bert(ids, segments, context, words).sequence_output


# Groups of variables, in the order of tables.
GROUPS = (
    "embeddings",
    "encoder",
    "LayerNorm",
    "pooler",
    "adapters",
    "parts",
    "masks",
    "head",
)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One variable of a model.

    `group` is one of `GROUPS`, for people to read. `begins_as` is the name of
    its first value: its own, or that without a side.
    """

    name: str
    shape: tuple[int, ...]
    initializer: encoder.Initializer
    group: str
    trained: bool
    begins_as: str

    @property
    def is_added(self) -> bool:
        return self.group in ("adapters", "parts", "masks", "head")

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class ParameterTable:
    """Every variable of a model, in order of creation.

    `method` is the method's text, `recipe` how trained ones are updated,
    `hooks` the method's, without values. `changed_count` tells how many of
    BERT's parameters change, if not all trained ones.
    """

    method: str
    parameters: tuple[Parameter, ...]
    recipe: Recipe = Recipe()
    changed_count: Optional[int] = None
    hooks: Hooks = dataclasses.field(default_factory=NoHooks, compare=False)
    sides: tuple[str, ...] = ()

    @property
    def trained(self) -> list[Parameter]:
        return [p for p in self.parameters if p.trained]

    @property
    def slots(self) -> dict[str, encoder.Shape]:
        return {
            f"{p.name}/{slot}": p.shape
            for p in self.trained
            for slot in self.recipe.slots_of(p.name)
        }

    @property
    def saved(self) -> dict[str, encoder.Shape]:
        """Shapes of what a training's checkpoints hold next to the step."""
        return {**{p.name: p.shape for p in self.trained}, **self.slots}

    @property
    def saved_count(self) -> int:
        return sum(map(math.prod, self.saved.values()))

    @property
    def total_count(self) -> int:
        """Number of scalars of the whole model, which masks are no part of."""
        return sum(p.count for p in self.parameters if p.group != "masks")

    @property
    def trained_count(self) -> int:
        return sum(p.count for p in self.trained)

    @property
    def counts(self) -> dict[str, int]:
        """Gives `parameters` of `run.json`."""
        return {"total": self.total_count, "trained": self.trained_count}

    def to_text(self) -> str:
        groups: dict[str, list[int]] = {}
        for p in self.parameters:
            if p.group == "masks":
                continue
            row = groups.setdefault(p.group, [0, 0])
            row[0] += p.count
            row[1] += p.count * p.trained
        groups["total"] = [self.total_count, self.trained_count]
        width = max(map(len, groups)) + 2
        lines = [
            f"Tuning method: {self.method}",
            f"{'group':<{width}}{'parameters':>14}{'trained':>14}"
            f"{'frozen':>14}",
        ]
        for name, (count, trained) in groups.items():
            numbers = (
                f"{n:,}" if n else "-"
                for n in (count, trained, count - trained)
            )
            lines.append(
                f"{name:<{width}}" + "".join(f"{n:>14}" for n in numbers)
            )
        share = self.trained_count / self.total_count
        lines.append(f"trained: {share:.2%} of all parameters")
        if self.changed_count is not None:
            lines.append(
                f"through masks, by which {self.changed_count:,} of BERT's "
                "change"
            )
        lines.append(f"**** Total Parameters = {self.total_count} *****")
        lines.append(
            f"**** Total Trainable Parameters = {self.trained_count} *****"
        )
        return "\n".join(lines)


def list_parameters(
    config: encoder.BertConfig, method: TuningMethod, build_head: BuildHead
) -> ParameterTable:
    """Lists the variables of a model without making any.

    Raises:
        ValueError: a defect of the method: it trains no variable of BERT that
            its expression names.
    """
    method.check(config)
    of_head: dict[str, tuple] = {}
    head = build_head(config, lambda name, *more: of_head.update({name: more}))
    pooler, decays = head.needs_pooler, "head" not in method.undecayed
    declared = {
        name: Declared(
            tuple(shape),
            initializer,
            decays=decays and name not in head.undecayed,
        )
        for name, (shape, initializer) in of_head.items()
    }
    groups = dict.fromkeys(declared, "head")
    added = method.variables(config, pooler)
    of_pooler = filter(POOLER.fullmatch, added)
    if not pooler and any(added[name].trained for name in of_pooler):
        raise UserError(
            f"{str(method)[:200]} has an update of BERT's pooler, which the "
            "head of this task does not read; leave pooler out of targets"
        )
    for name, one in added.items():
        groups[name] = "adapters" if one.trained else "masks"
        if name.startswith(PARTS):
            groups[name] = "parts"
    pattern = method.trains(config)
    for name, one in encoder.declare(config, pooler).items():
        groups[name] = name.split("/")[1]
        if "/LayerNorm/" in name:
            groups[name] = "LayerNorm"
        declared[name] = dataclasses.replace(
            one,
            trained=bool(re.fullmatch(pattern, name)),
            decays="bert" not in method.undecayed,
        )
    for name, one in added.items():
        if name in declared:
            raise ValueError(f"the variable name {name} is taken twice")
        declared[name] = one
    # A part of BERT that this head does not need may be named.
    names = encoder.list_variables(config)
    if pattern and not any(re.fullmatch(pattern, name) for name in names):
        raise ValueError(f"{pattern!r} of {method} matches nothing")
    hooks = method.hooks(config, added)
    plain = {name: name for name in declared}
    if head.sides:
        from adapter_bert.tasks import sides

        of_bert = declared.keys() - added.keys() - of_head.keys()
        sides.check(method, hooks, of_bert, declared)
        plain = {
            scoped(side, name)
            if one.trained and name not in of_head
            else name: name
            for name, one in declared.items()
            for side in head.sides
        }
        declared = {x: declared[name] for x, name in plain.items()}
    parameters = [
        Parameter(
            full_name,
            one.shape,
            one.initializer,
            groups[plain[full_name]],
            one.trained,
            plain[full_name],
        )
        for full_name, one in declared.items()
    ]
    parameters.sort(key=lambda p: GROUPS.index(p.group))
    berts = sum(p.count for p in parameters if not p.is_added)
    return ParameterTable(
        str(method),
        tuple(parameters),
        Recipe.of(declared),
        method.changed_count(berts),
        hooks,
        head.sides,
    )


def narrow_variables(table: ParameterTable) -> frozenset[str]:
    """Names frozen kernels and biases, which only products read.

    So they may be kept in the type of products. There are none where the method
    changes variables as they are read.
    """
    if "parameter" in table.hooks.places:
        return frozenset()
    return frozenset(
        p.name
        for p in table.parameters
        if not (p.trained or p.is_added) and KERNEL.fullmatch(p.name)
    )


def int8_variables(table: ParameterTable) -> frozenset[str]:
    """Names BERT's matrices that are kept with `--base_dtype=int8`."""
    from adapter_bert.bert import int8

    of_bert = {p.name: p for p in table.parameters if not p.is_added}
    kernels = int8.names(of_bert)
    if "parameter" in table.hooks.places or any(
        of_bert[name].trained for name in kernels
    ):
        raise UserError(
            f"--base_dtype=int8 is for methods that leave BERT's matrices as "
            f"they are, but {table.method} trains some, or changes BERT's own "
            "variables as they are read; pass --base_dtype=float32"
        )
    return kernels


class NotTrained(UserError):
    """A model without trained values, which only a training makes."""


def check_is_trained(
    table: ParameterTable, trained_names: Any, source: str
) -> None:
    """Refuses to evaluate adapters and heads that were never trained.

    Raises:
        NotTrained: `trained_names`, those of `source`, lacks a variable.
    """
    for p in table.parameters:
        if p.is_added and p.trained and p.name not in trained_names:
            raise NotTrained(
                f"{source} holds no trained {p.group} ({p.name} is missing), "
                f"which {table.method} needs; train first (--do_train=true), "
                "or pass --adapter, a trained --init_checkpoint or another "
                "--tuning_method"
            )
