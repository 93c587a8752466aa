"""Methods that are made of methods: `stack`, `average`, and their base class.

A part is a trained adapter, which stays as it is and whose variables have its
name before theirs, or a method that is trained. So the trained part of
`stack(language, pfeiffer)` fits any other language too.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import (
    PLACES,
    Context,
    Hooks,
    NamedTensors,
    seed_at,
)
from adapter_bert.errors import UserError
from adapter_bert.methods.base import (
    CHANGES,
    Declared,
    Part,
    Tensors,
    TuningMethod,
    added_later,
    below,
    trained_of_bert,
)
from adapter_bert.methods.fine_tuning import HeadOnly
from adapter_bert.methods.houlsby import AdapterHooks
from adapter_bert.methods.lora import Lora
from adapter_bert.methods.prompt import Prompt
from adapter_bert.methods.reft import LoReft

# A method's text is short, but the work of checking grows with its square.
MOST_PARTS = 100
# What hooks promise; a composition promises what all its parts do.
TRAITS = ("takes_rows", "by_token", "by_values")


@dataclasses.dataclass(eq=False)
class PartHooks(Hooks):
    """Hooks of a part, with values and dropout of its own.

    `hooks` are of the part's method, `mark` tells it from the other parts.
    `changes` are added to BERT's own variables, by their names.
    """

    mark: str
    hooks: Hooks
    changes: Mapping[str, Any]
    is_trained: bool

    def __post_init__(self):
        for trait in TRAITS:
            setattr(self, trait, getattr(self.hooks, trait))
        changed = {"parameter"} if self.changes else set()
        self.places = self.hooks.places | changed

    def act(self, place, *arguments):
        *others, context = arguments
        return getattr(self.hooks, place)(*others, self.context_of(context))

    def change_of(
        self, name: str, variable: Any, context: Context
    ) -> Optional[tf.Tensor]:
        change = self.changes.get(name)
        if "parameter" not in self.hooks.places:
            return change
        pretrained = tf.convert_to_tensor(variable)
        added = (
            self.hooks.parameter(name, pretrained, self.context_of(context))
            - pretrained
        )
        return added if change is None else added + change

    def context_of(self, context: Context) -> Context:
        seed = context.seed
        if seed is not None:
            seed = seed_at(seed, self.mark, context)
        return dataclasses.replace(
            context,
            training=context.training and self.is_trained,
            handed_on=below(self.mark, context.handed_on),
            seed=seed,
        )

    def layer_kind(self, layer, training):
        return self.hooks.layer_kind(layer, training and self.is_trained)

    def parameter(self, name, variable, context):
        value = self.hooks.parameter(name, variable, self.context_of(context))
        change = self.changes.get(name)
        return value if change is None else value + change

    def penalty(self, context):
        if not self.is_trained:
            return None
        return self.hooks.penalty(self.context_of(context))


for _place in {*PLACES, "begin", "prepare"} - {"parameter"}:
    setattr(PartHooks, _place, functools.partialmethod(PartHooks.act, _place))


class ComposedHooks(Hooks):
    """Hooks of several parts."""

    def __init__(
        self,
        parts: Sequence[PartHooks],
        method: "Composition",
        config: encoder.BertConfig,
        values: Tensors,
    ):
        super().__init__(method, config, values)
        self.parts = parts
        for trait in TRAITS:
            setattr(self, trait, all(getattr(part, trait) for part in parts))
        acting = (*PLACES, "begin", "prepare")
        self.places -= {p for p in acting if not self.acting_at(p)}

    def acting_at(self, place: str) -> list[PartHooks]:
        return [part for part in self.parts if place in part.places]

    def layer_kind(self, layer, training):
        kinds = tuple(part.layer_kind(layer, training) for part in self.parts)
        return None if None in kinds else kinds

    def parameter(self, name, variable, context):
        for part in self.parts:
            variable = part.parameter(name, variable, context)
        return tf.convert_to_tensor(variable)

    def penalty(self, context):
        penalties = [part.penalty(context) for part in self.parts]
        penalties = [penalty for penalty in penalties if penalty is not None]
        return tf.add_n(penalties) if penalties else None

    def prepare(self, context):
        return self._made("prepare", context)

    def begin(self, context):
        return self._made("begin", context)

    def _made(self, place: str, context: Context) -> NamedTensors:
        return {
            f"{part.mark}{name}": value
            for part in self.parts
            for name, value in getattr(part, place)(context).items()
        }


@dataclasses.dataclass(frozen=True)
class Composition(TuningMethod):
    """A method that is made of methods.

    Attributes:
        made_of: "methods" or "trained adapters" if it takes these alone.
    """

    made_of = ""
    parts: tuple[Part, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if not self.parts:
            raise UserError(
                f"{self.name} has no parts; expected names of trained adapters "
                f"or methods, as in {self.name}(a, b)"
            )
        if len(self.parts) > MOST_PARTS:
            raise UserError(
                f"{self.name} has {len(self.parts)} parts, expected at most "
                f"{MOST_PARTS}"
            )
        for part in self.parts:
            kind = "trained adapters" if part.name else "methods"
            if self.made_of and kind != self.made_of:
                raise UserError(
                    f"{self.name} is made of {self.made_of} alone, but "
                    f"{part.name or part.method} is none of these"
                )
        for method in self.trained:
            if method.parts:
                raise UserError(
                    f"{self.name}: a part is {method.name}, which is made of "
                    "parts itself; expected it as a trained adapter"
                )
        names = [part.name for part in self.parts if part.name != ""]
        for number, name in enumerate(names):
            if not isinstance(name, str) or name in names[:number]:
                raise UserError(
                    f"{self.name}: {name!r} is no name, or is there twice; "
                    "expected names of trained adapters, each once"
                )

    def check(self, config):
        for part in self.parts:
            if part.method is None:
                raise UserError(
                    f"{self.name}: {part.name!r} is no method, and no trained "
                    "adapter that was found; pass the folder of its library as "
                    "--library"
                )
            part.method.check(config)
            if part.name and part.method.new_words:
                raise UserError(
                    f"{self.name}: {part.name} has new words of its own "
                    "(--new_tokens), which no other adapter takes over; "
                    "expected trained adapters without new words"
                )
        added = collections.Counter(
            name for m in self.trained for name in m.variables(config)
        )
        for name, count in added.items():
            if count > 1:
                raise UserError(
                    f"{self.name}: two parts would train the same variable "
                    f"{name}; expected one of them, or trained adapters"
                )
        # Behind virtual tokens nobody knows where a text ends.
        single = list(_single(self))
        if any(isinstance(one, Prompt) for one in single) and any(
            isinstance(one, LoReft) and one.suffix for one in single
        ):
            raise UserError(
                f"{self.name}: loreft moves the last tokens of a text, after "
                "which prompt puts its own; expected loreft with suffix=0"
            )
        # A method that chooses among BERT's variables has them for itself.
        for few in (m for m in self.trained if m.changes_few):
            for other in (m for m in self.trained if m is not few):
                if other.trains(config):
                    raise UserError(
                        f"{self.name}: {few.name} chooses what it trains among "
                        f"all of BERT's own variables, but {other.name} trains "
                        "some of these too; expected a method that only adds "
                        "to BERT, as pfeiffer, or a trained adapter"
                    )

    @property
    def trained(self) -> list[TuningMethod]:
        return [part.method for part in self.parts if not part.name]

    @property
    def learning_rate(self) -> float:
        rates = [method.learning_rate for method in self.trained]
        return rates[0] if rates else HeadOnly.learning_rate

    @property
    def undecayed(self) -> frozenset[str]:
        groups = [
            m.undecayed for m in self.trained if m.parts or not m.new_words
        ]
        if len(groups) == 1:
            return groups[0]
        return frozenset().union(*groups) - {"head"}

    @property
    def changes_few(self) -> bool:
        return any(method.changes_few for method in self.trained)

    @property
    def factored(self) -> bool:
        return any(method.factored for method in self.trained)

    def changed_count(self, count):
        counts = [method.changed_count(count) for method in self.trained]
        return next((number for number in counts if number is not None), None)

    def trains(self, config):
        return "|".join(filter(None, (m.trains(config) for m in self.trained)))

    def variables(self, config, pooler=True):
        declared: dict[str, Declared] = {}
        for part in self.parts:
            added = part.method.variables(config, pooler)
            if part.name:
                changed = trained_of_bert(part.method, config, pooler)
                for name, shape in changed.items():
                    added[CHANGES + name] = Declared(shape, encoder.zeros)
                added = {
                    part.scope + name: dataclasses.replace(one, trained=False)
                    for name, one in added.items()
                }
            declared.update(added)
        return declared

    def hooks(self, config, values):
        parts = []
        for number, part in enumerate(self.parts):
            if part.name:
                mark, part_values = part.scope, below(part.scope, values)
                changes = below(CHANGES, part_values)
            else:
                # Of two LoRAs each acts where it has values of its own.
                names = part.method.variables(config)
                part_values = {
                    name: values[name] for name in names if name in values
                }
                mark, changes = f"part_{number}/", {}
            hooks = part.method.hooks(config, part_values)
            parts.append(PartHooks(mark, hooks, changes, not part.name))
        return self.hooks_class(parts, self, config, values)

    @property
    def as_part(self):
        parts = (
            dataclasses.replace(part, method=part.method.as_part)
            for part in self.parts
        )
        return dataclasses.replace(self, parts=tuple(parts))

    @property
    def first_phase(self):
        if not any(method.first_phase for method in self.trained):
            return None
        return dataclasses.replace(
            self,
            parts=tuple(
                part
                if part.name
                else Part("", part.method.first_phase or part.method)
                for part in self.parts
            ),
        )

    def second_start(self, names, others, read, first):
        method = next(m for m in self.trained if m.first_phase)
        return method.second_start(names, others, read, first)

    def fits(self, trained):
        alike = [
            a == b or not (a.name or b.name) and a.method.fits(b.method)
            for a, b in zip(self.parts, trained.parts)
        ]
        return (
            len(self.parts) == len(trained.parts) == sum(alike)
            and dataclasses.replace(self, parts=trained.parts) == trained
        )

    def finish(self, config, values):
        parts = []
        for part in self.parts:
            if not part.name:
                method, values = part.method.finish(config, values)
                part = Part("", method)
            parts.append(part)
        return dataclasses.replace(self, parts=tuple(parts)), values

    def merge(self, config, read, values):
        raise UserError(
            f"{self.name} cannot be merged into BERT's weights; merge the "
            "trained adapters that it is made of, if their methods can be"
        )

    def _arguments(self):
        texts: list[str] = []
        for is_known, parts in itertools.groupby(
            self.parts, lambda part: bool(part.name and part.method)
        ):
            if is_known:
                pairs = (f"{part.name!r}: {part.method}" for part in parts)
                texts.append(f"{{{', '.join(pairs)}}}")
            else:
                texts += [
                    repr(part.name) if part.name else str(part.method)
                    for part in parts
                ]
        return texts + super()._arguments()


def _single(method: TuningMethod) -> Iterator[TuningMethod]:
    for part in method.parts:
        yield from _single(part.method)
    if not method.parts:
        yield method


class StackHooks(ComposedHooks):
    """Each part acts on what the parts before it give."""

    def words(self, input_ids, embed, context):
        for part in self.acting_at("words"):

            def embed(ids, words=part.words, before=embed):
                return words(ids, before, context)

        return embed(input_ids)

    def embeddings(self, hidden, context):
        for part in self.parts:
            hidden = part.embeddings(hidden, context)
        return hidden

    def lengthen(self, hidden, context):
        for part in self.acting_at("lengthen"):
            hidden, mask = part.lengthen(hidden, context)
            context = dataclasses.replace(context, input_mask=mask)
        return hidden, context.input_mask

    def project(self, name, inputs, dense, context):
        for part in self.acting_at("project"):
            dense = dataclasses.replace(
                dense,
                apply=lambda x, part=part, dense=dense: part.project(
                    name, x, dense, context
                ),
            )
        return dense(inputs)

    def key_value(self, layer, key, value, attention_bias, context):
        changed = key, value, attention_bias
        for part in self.parts:
            changed = part.key_value(layer, *changed, context)
        return changed

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        return self._add_up(
            outputs,
            lambda part, reads: part.before_norm(
                layer, site, inputs, reads, layer_norm, context
            ),
        )

    def after_norm(self, layer, site, hidden, context):
        return self._add_up(
            hidden,
            lambda part, reads: part.after_norm(layer, site, reads, context),
        )

    def _add_up(self, tensor, added_by):
        whole = None
        for part in self.parts:
            reads = tensor if whole is None else tensor + whole
            added = added_by(part, reads)
            if added is not None:
                whole = added if whole is None else whole + added
        return whole

    def vocabulary(self, hidden, context):
        for part in reversed(self.parts):
            hidden = part.vocabulary(hidden, context)
        return hidden


@dataclasses.dataclass(frozen=True)
class Stack(Composition):
    """Adapters in a row: each acts on the outputs of those before it.

    Trained adapters stay as they are, and their changes of BERT are added up.
    So `stack(language, pfeiffer)` trains a task's adapter on top of a
    language's, and `stack(full, pals)` both at once.

    BERT-base: the sum of the parts that are trained.

    Source: Pfeiffer et al. 2020 (MAD-X), language and task adapters.
    """

    name = "stack"
    hooks_class = StackHooks


class UnionHooks(StackHooks):
    """All parts at once: none reads what another one adds."""

    def _add_up(self, tensor, added_by):
        added = [added_by(part, tensor) for part in self.parts]
        added = [one for one in added if one is not None]
        return tf.add_n(added) if added else None


@dataclasses.dataclass(frozen=True)
class Union(Composition):
    """Methods that act on BERT and are trained together.

    In a sublayer each part reads what BERT gives there, and what the parts add
    is summed up. Prefixes are all seen. Updates of a kernel are summed up too;
    scales of `ia3` scale what the parts before give.

    BERT-base: the sum of the parts. `mam` (He et al. 2022, section 4.6) is
    15,402,272 of a prefix + 7,091,712 of parallel adapters = 22,493,984;
    `unipelt` (Mao et al. 2022, section 3) is 294,912 of LoRA, 9,857,024 of a
    prefix and 894,528 of adapters + 48 (768 + 1) of their gates = 11,083,376.

    Source: AdapterHub's `ConfigUnion`, with at most one part at each place.
    """

    name = "union"
    hooks_class = UnionHooks
    made_of = "methods"


class AverageHooks(ComposedHooks):
    """Average the parts' outputs for the same inputs."""

    def parameter(self, name, variable, context):
        value = tf.convert_to_tensor(variable)
        for part, weight in zip(self.parts, self.method.shares()):
            change = part.change_of(name, variable, context)
            if change is not None:
                value += weight * change
        return value

    def project(self, name, inputs, dense, context):
        if not self.acting_at("project"):
            return dense(inputs)
        plain = dense(inputs)
        projected = [
            part.project(
                name,
                inputs,
                dataclasses.replace(
                    dense, apply=lambda x: plain if x is inputs else dense(x)
                ),
                context,
            )
            for part in self.parts
        ]
        # Of changes, since in bfloat16 the weights add up to 1.002 or 0.998.
        changes = self._mean(
            None if one is plain else one - plain for one in projected
        )
        return plain if changes is None else plain + self.method.scale * changes

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        """Gives the mean of what the parts add.

        With a scale `scale (outputs + mean) - outputs`, or of adapters that
        do not pass on the outputs `scale mean`.
        """
        mean = self._mean(
            part.before_norm(layer, site, inputs, outputs, layer_norm, context)
            for part in self.parts
        )
        scale = self.method.scale
        if mean is None or scale == 1.0:
            return mean
        if not self.parts[0].hooks.passes_on:
            return scale * mean
        return scale * mean + (scale - 1.0) * outputs

    def after_norm(self, *arguments):
        return self._mean(part.after_norm(*arguments) for part in self.parts)

    def _mean(self, tensors):
        """Gives the weighted mean of tensors, where None is zero."""
        weighted = zip(tensors, self.method.shares())
        products = [w * x for x, w in weighted if x is not None]
        return tf.add_n(products) if products else None


@dataclasses.dataclass(frozen=True)
class Average(Composition):
    """Averages trained adapters' outputs for the same inputs, with weights.

    Their changes of BERT are averaged too. The head is trained alone.

    BERT-base: 0.

    Attributes:
        weights: one for each, with commas between them; they are divided by
            their sum. All are alike if there are none.
        scale: a number by which the mean is multiplied, of bottleneck adapters
            with the sublayer's outputs in it. AdapterHub's `Average` divides
            the weighted mean of N adapters by N.

    Source: Chronopoulou et al. 2023 (AdapterSoup) average parameters, which
    `adapter-bert merge` does; Wang et al. 2021 the outputs.
    """

    name = "average"
    hooks_class = AverageHooks
    made_of = "trained adapters"
    positive = ("scale",)
    weights: str = added_later("")
    scale: float = added_later(1.0)

    def __post_init__(self):
        super().__post_init__()
        self.shares()

    def shares(self) -> list[float]:
        count = len(self.parts)
        try:
            shares = list(map(float, self.weights.split(",")))
        except ValueError:
            shares = []
        if not self.weights:
            shares = [1.0] * count
        if len(shares) != count or not all(0 < w < math.inf for w in shares):
            raise UserError(
                f"average: weights are {self.weights!r}, expected {count} "
                "positive numbers, as in '0.7,0.3'"
            )
        return [weight / sum(shares) for weight in shares]

    def check(self, config):
        super().check(config)
        hooks = [part.method.hooks(config, {}) for part in self.parts]
        is_alike = {type(one) for one in hooks} == {type(hooks[0])} and (
            isinstance(hooks[0], AdapterHooks)
            or all(type(part.method) is Lora for part in self.parts)
        )
        changes = any(part.method.trains(config) for part in self.parts)
        if self.scale != 1.0 and (changes or not is_alike):
            raise UserError(
                f"average: with scale={self.scale} the parts are "
                f"{', '.join(str(part.method) for part in self.parts)[:200]}; "
                "expected all of one method: lora, pfeiffer, parallel, or "
                "houlsby(layer_norms=false)"
            )
        for part, one in zip(self.parts, hooks):
            places = one.places
            if places & {
                "words",
                "embeddings",
                "lengthen",
                "key_value",
                "vocabulary",
            }:
                raise UserError(
                    f"average: {part.name} is an adapter of "
                    f"{part.method.name}, which acts on what has no mean; "
                    "expected adapters that act on a layer's outputs"
                )
