"""Declarations of a tuning method, and helpers that methods share."""

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.encoder import Declared
from adapter_bert.bert.hooks import Hooks, NoHooks
from adapter_bert.errors import UserError

# Name of a variable -> its values.
Values = dict[str, np.ndarray]
# Of a method's variables as the encoder reads them: tensors or variables.
Tensors = Mapping[str, Any]

# A trained adapter that is part of another method has its variables at
# `parts.<adapter>/<variable>`, its changes of BERT's own at
# `parts.<adapter>/changes/<variable>`.
PARTS, CHANGES = "parts.", "changes/"


def changed_by(name: str) -> str:
    """Gives the variable of BERT that a part's variable changes, or ""."""
    _, separator, variable = name.rpartition(f"/{CHANGES}")
    return variable if separator else ""


LAYER_NORMS = r"bert/.*/LayerNorm/.*"

# `limits` of a method that drops out.
DROPOUT = {"dropout": (0.0, 0.99)}
# The value of `layers` for all layers.
ALL_LAYERS = "all"
# A layer, or the first and the last of some; a BERT has at most 1000.
LAYER_RANGE = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")
# Of layers, the size of their adapters.
LAYER_SIZE = re.compile(r"([0-9-]+):([1-9][0-9]{0,5})")


def added_later(default: Any) -> Any:
    """Makes a field for an argument that older recorded runs lack.

    A method's text, by which runs are compared, leaves it out at its default.
    """
    return dataclasses.field(default=default, metadata={"left_out_at": default})


@dataclasses.dataclass(frozen=True)
class Part:
    """One of the methods in a composition.

    `name` is that of a trained adapter, "" of a method that is trained.
    `method` is None while only the name is known.
    """

    name: str
    method: Optional["TuningMethod"]

    @property
    def scope(self) -> str:
        return f"{PARTS}{self.name}/" if self.name else ""


@dataclasses.dataclass(frozen=True)
class TuningMethod:
    """Says what a method adds and trains; its fields are arguments.

    Attributes:
        trained_names: a pattern of BERT's own variables that are trained.
        undecayed: the groups, "bert" and "head", whose variables do not decay.
        changes_few: whether training changes few entries of BERT's own
            variables, so that the artifact holds those alone.
        width: the argument that may grow while zeros at the ends of all values
            change no output; "" for none.
        factored: whether its matrices are products of its values, so that
            sums of values are no sums of what adapters compute.
        positive: arguments that are sizes from 1 on, or positive numbers.
        limits: least and greatest value of arguments.
        choices: arguments that are words, and their choices.
    """

    name: ClassVar[str] = ""
    learning_rate: ClassVar[float]
    trained_names: ClassVar[str] = ""
    undecayed: ClassVar[frozenset[str]] = frozenset()
    changes_few: ClassVar[bool] = False
    width: ClassVar[str] = ""
    factored: ClassVar[bool] = False
    parts: ClassVar[tuple[Part, ...]] = ()
    hooks_class: ClassVar[type[Hooks]] = NoHooks
    observes: ClassVar[tuple[str, ...]] = ()
    positive: ClassVar[tuple[str, ...]] = ()
    limits: ClassVar[Mapping[str, tuple[float, float]]] = {}
    choices: ClassVar[Mapping[str, Collection[str]]] = {}

    def __post_init__(self):
        for argument in self.positive:
            value = getattr(self, argument)
            is_size = type(value) is int
            if not 0 < value < math.inf:
                expected = "at least 1" if is_size else "a positive number"
                raise UserError(
                    f"{self.name}: {argument} is {value}, expected {expected}"
                )
        for argument, (least, most) in self.limits.items():
            value = getattr(self, argument)
            if not least <= value <= most:
                raise UserError(
                    f"{self.name}: {argument} is {value}, expected {least} to "
                    f"{most}"
                )
        for argument, words in self.choices.items():
            value = getattr(self, argument)
            if value not in words:
                raise UserError(
                    f"{self.name}: {argument} is {value!r}, expected one of "
                    f"{', '.join(words)}"
                )

    def check(self, config: encoder.BertConfig) -> None:
        """Compares the arguments with the model."""

    def trains(self, config: encoder.BertConfig) -> str:
        """Gives a pattern of whole names of BERT's trained variables."""
        return self.trained_names

    def variables(
        self, config: encoder.BertConfig, pooler: bool = True
    ) -> dict[str, Declared]:
        """Declares by name what the method adds, also if BERT has no pooler."""
        return {}

    def hooks(self, config: encoder.BertConfig, values: Tensors) -> Hooks:
        """Acts on BERT by the values of declared variables."""
        return self.hooks_class(self, config, values)

    def changed_count(self, count: int) -> Optional[int]:
        """Counts BERT's parameters that change, if not the trained."""
        return None

    @property
    def new_words(self) -> int:
        """Counts the new words that the method trains."""
        return sum(one.method.new_words for one in self.parts if not one.name)

    @property
    def first_phase(self) -> Optional["TuningMethod"]:
        """Gives a method that is trained first, for as many steps."""
        return None

    def second_start(
        self,
        names: Sequence[str],
        others: Sequence[str],
        read: encoder.Read,
        first: encoder.Read,
    ) -> Values:
        """Gives first values that follow from the first phase, by name.

        `names` are of BERT's own variables, `others` of what else both phases
        train. `read` gives a pretrained value, `first` one that the first
        phase has trained.
        """
        raise TypeError(f"{type(self).__name__} has no first phase")

    def finish(
        self, config: encoder.BertConfig, values: Values
    ) -> tuple["TuningMethod", Values]:
        """Gives the method and values that an adapter keeps of a training.

        Takes every trained variable. The method computes the same.
        """
        return self, values

    def merge(
        self,
        config: encoder.BertConfig,
        read: encoder.Read,
        values: Values,
    ) -> Values:
        """Gives the changed variables with which BERT alone computes the same.

        `read` gives a pretrained one; `values` are all trained ones.
        """
        raise UserError(
            f"{self.name} adds computation to BERT, so it cannot be merged "
            "into BERT's weights"
        )

    @property
    def as_part(self) -> "TuningMethod":
        return self

    def for_tasks(self, names: Sequence[str]) -> "TuningMethod":
        return self

    def of_task(
        self, config: encoder.BertConfig, task: str, values: Values
    ) -> tuple["TuningMethod", Values]:
        """Gives the method and values of one task of several."""
        return self, values

    def widened(self) -> "TuningMethod":
        """Rounds `width` up to a power of two."""
        if not self.width:
            return self
        wide = 1 << (getattr(self, self.width) - 1).bit_length()
        return dataclasses.replace(self, **{self.width: wide})

    def fits(self, trained: "TuningMethod") -> bool:
        """Tells whether this method can use the values of a `trained` one."""
        return self == trained

    def __str__(self) -> str:
        arguments = ", ".join(self._arguments())
        return f"{self.name}({arguments})" if arguments else self.name

    def _arguments(self) -> list[str]:
        return [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name != "parts"
            and getattr(self, field.name) != field.metadata.get("left_out_at")
        ]


def uniform_by_inputs(
    rng: np.random.Generator, shape: encoder.Shape
) -> np.ndarray:
    """An initializer: uniform within 1 / sqrt(inputs) of 0, [inputs, outputs].

    PyTorch's for dense layers, and for its LoRA and parallel adapters
    (He et al. 2015 with a = sqrt(5)).
    """
    limit = 1.0 / math.sqrt(shape[0])
    return rng.uniform(-limit, limit, shape).astype(np.float32)


def glorot_uniform(
    rng: np.random.Generator, shape: encoder.Shape
) -> np.ndarray:
    """An initializer: Glorot and Bengio 2010, over the last two axes."""
    limit = math.sqrt(6.0 / (shape[-2] + shape[-1]))
    return rng.uniform(-limit, limit, shape).astype(np.float32)


def normal(stddev: float) -> encoder.Initializer:
    """An initializer: normal values of mean 0."""

    def initialize(rng, shape):
        return (rng.standard_normal(shape) * stddev).astype(np.float32)

    return initialize


def over_tokens(values: Any) -> tf.Tensor:
    """Shapes values of all rows [n] as [1, 1, n], of each [B, n] as [B, 1, n].

    So they join what tokens have, [B, T, n].
    """
    return tf.reshape(values, [-1, 1, values.shape[-1]])


def layer_numbers(text: str) -> list[int]:
    """Layers in rising order, of numbers and inclusive ranges as `0,2,6-11`."""
    numbers: list[int] = []
    for part in text.split(","):
        match = LAYER_RANGE.fullmatch(part)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
        if not match or first > last:
            raise UserError(
                f"adapter layers are {text!r}, where {part!r} is neither a "
                f"layer nor a range of layers; expected {ALL_LAYERS!r}, or "
                "numbers and ranges from 0 on, as '0,2,6-11'"
            )
        for number in range(first, last + 1):
            if number in numbers:
                raise UserError(
                    f"adapter layers are {text!r}, where layer {number} is "
                    "named twice; expected each layer once"
                )
            numbers.append(number)
    return sorted(numbers)


def choose_layers(text: str, config: encoder.BertConfig) -> Sequence[int]:
    """Gives the layers that `text` names of this model, in rising order."""
    count = config.num_hidden_layers
    if text == ALL_LAYERS:
        return range(count)
    layers = layer_numbers(text)
    if layers[-1] >= count:
        raise UserError(
            f"adapter layers are {text!r}, but the model has only the layers "
            f"0 to {count - 1}"
        )
    return layers


def layer_sizes(text: str) -> dict[int, int]:
    """Sizes by layer, of layers and sizes as `0-5:16,11:8`; "" is for none."""
    sizes: dict[int, int] = {}
    for part in text.split(",") if text else ():
        match = LAYER_SIZE.fullmatch(part)
        layers = layer_numbers(match[1]) if match else []
        if not match or not sizes.keys().isdisjoint(layers):
            raise UserError(
                f"sizes of adapters are {text!r}, where {part!r} is no layers "
                "with a size from 1 on, or names a layer twice; expected as in "
                "'0-5:16,11:8'"
            )
        sizes.update(dict.fromkeys(layers, int(match[2])))
    return sizes


def sizes_text(sizes: Mapping[int, int]) -> str:
    """Gives the text that `layer_sizes` reads."""
    return ",".join(f"{layer}:{size}" for layer, size in sizes.items())


def below(scope: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Gives values whose names begin with `scope`, by the rest of the names."""
    return {
        name[len(scope) :]: value
        for name, value in values.items()
        if name.startswith(scope)
    }


def trained_of_bert(
    method: TuningMethod, config: encoder.BertConfig, pooler: bool = True
) -> dict[str, encoder.Shape]:
    """Lists BERT's own variables that a method trains: name and shape."""
    pattern = method.trains(config)
    shapes = encoder.list_variables(config, pooler)
    return {n: s for n, s in shapes.items() if re.fullmatch(pattern, n)}
