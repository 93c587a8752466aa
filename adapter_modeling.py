"""Tuning methods: what each adds to BERT and which parameters it trains.

In here: one small frozen dataclass per method, `METHODS`, and `parse`, which
reads `houlsby(size=64)`. A method names its arguments (the dataclass fields),
its `rules` (which variables are trained) and, where it adds something, the
`Hooks` that compute it. Not in here: BERT itself (`modeling.py`), and how
rules become a table of parameters (`task_model.py`).
"""

import ast
import dataclasses
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type

import tensorflow as tf

import modeling
import operations
from errors import UserError
from hooks import Hooks

# (regular expression over whole variable names, whether those are trained)
Rules = Tuple[Tuple[str, bool], ...]

# Longest description of a method, in characters.
MAX_TEXT = 1000

FROZEN_BERT = (r"bert/.*", False)
LAYER_NORMS = (r"bert/.*/LayerNorm/.*", True)

# What `layers` says of all of them.
ALL_LAYERS = "all"
# A layer, or the first and the last of some; a BERT has at most 1000.
LAYER_RANGE = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")


@dataclasses.dataclass(frozen=True)
class TuningMethod:
    """What a method adds and what it trains; the fields are its arguments."""

    def check(self, config: modeling.BertConfig) -> None:
        """Compares the arguments with the model.

        Raises:
            UserError: an argument that this BERT cannot take.
        """

    def rules(self, config: modeling.BertConfig) -> Rules:
        """Ordered rules over the variables outside the head; first wins."""
        raise TypeError(f"{type(self).__name__} declares no rules")

    def build(
        self, config: modeling.BertConfig, create: modeling.CreateVariable
    ) -> Hooks:
        """Creates what the method adds; by default nothing."""
        return Hooks()

    def __str__(self) -> str:
        """The text that `parse` turns into an equal method.

        Runs are compared by it. So it leaves out a value that a field's
        metadata calls `unsaid`: that of an argument which came later.
        """
        arguments = ", ".join(
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.metadata.get("unsaid")
        )
        name = next(k for k, v in METHODS.items() if v is type(self))
        return f"{name}({arguments})" if arguments else name


class Adapter(tf.Module):
    """A bottleneck adapter, `h + up(gelu(down(h)))`.

    Source: Houlsby et al. 2019, section 2.1; variable names and shapes of
    google-research/adapter-bert. Parameters: 2 M D + D + M.
    """

    def __init__(self, scope, config, size, init_scale, create):
        """Creates `<scope>/adapters/{weights1,biases1,weights2,biases2}`."""
        normal = modeling.truncated_normal(init_scale)
        hidden = config.hidden_size
        self.down, self.down_bias, self.up, self.up_bias = (
            create(f"{scope}/adapters/{name}", shape, initializer)
            for name, shape, initializer in (
                ("weights1", (hidden, size), normal),
                ("biases1", (1, size), modeling.zeros),
                ("weights2", (size, hidden), normal),
                ("biases2", (1, hidden), modeling.zeros),
            )
        )

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        """float32 [B, T, D] -> float32 [B, T, D]."""
        down, down_bias, up, up_bias = (
            tf.cast(variable, hidden.dtype)
            for variable in (self.down, self.down_bias, self.up, self.up_bias)
        )
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])  # [B T, D]
        inner = operations.gelu(tf.matmul(flat, down) + down_bias)
        outputs = flat + tf.matmul(inner, up) + up_bias
        outputs = tf.reshape(outputs, tf.shape(hidden))
        outputs.set_shape(hidden.shape)
        return outputs


class HoulsbyHooks(Hooks):
    """An adapter after both sublayers of some layers, before the residual."""

    def __init__(self, adapters: Dict[Tuple[int, str], Adapter]):
        self.adapters = adapters

    def sublayer(self, layer, site, inputs, outputs, layer_norm, context):
        """`LN(x + A(dropout(dense(...))))`; shapes as in `Hooks`.

        In a layer without adapters `A` is the identity.
        """
        if (layer, site) in self.adapters:
            outputs = self.adapters[layer, site](outputs)
        return layer_norm(inputs + outputs)


def layer_numbers(text: str) -> List[int]:
    """Reads numbers and inclusive ranges of layers, as `0,2,6-11`.

    Args:
        text: numbers and ranges, in any order, with commas between them.

    Returns:
        The layers, counted from 0, in rising order.

    Raises:
        UserError: a part is neither, or a layer is named twice.
    """
    numbers: List[int] = []
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


@dataclasses.dataclass(frozen=True)
class Houlsby(TuningMethod):
    """Two adapters in every layer; they, every LayerNorm and the head train.

    BERT-base: 24 (2 M 768 + 768 + M) adapter parameters, 2,379,264 at M = 64,
    and 25 x 2 x 768 = 38,400 of LayerNorm. If `layers` names k of them, only
    these have adapters, 2k (2 M 768 + 768 + M), and only their LayerNorms
    train, 2k x 2 x 768: nothing below the lowest adapter is differentiated.

    Attributes:
        size: bottleneck size M.
        init_scale: standard deviation of both matrices' initial values, a
            normal truncated at two of them. The paper's section 3.6 has 1e-2;
            google-research/adapter-bert's code has 1e-3.
        layers: which layers have adapters: `all`, or numbers and inclusive
            ranges, counted from 0, as `0,2,6-11`. All 12 of BERT-base named
            differ from `all` in the embeddings' LayerNorm, which is frozen.

    Raises:
        UserError: a size below 1, a scale that is not positive, layers that
            cannot be read or that the model does not have.

    Source: Houlsby et al. 2019, section 2.1. The pooler stays frozen, as in
    google-research/adapter-bert. Rueckle et al. 2021 (AdapterDrop), section 3,
    leave out the adapters of the lowest layers.
    """

    size: int = 64
    init_scale: float = 1e-2
    layers: str = dataclasses.field(
        default=ALL_LAYERS, metadata={"unsaid": ALL_LAYERS}
    )

    def __post_init__(self):
        if self.size < 1:
            raise UserError(f"adapter size is {self.size}, expected at least 1")
        if not 0 < self.init_scale < float("inf"):
            raise UserError(
                f"adapter init_scale is {self.init_scale}, expected a "
                "positive number"
            )
        if self.layers != ALL_LAYERS:
            layer_numbers(self.layers)

    def check(self, config):
        """Compares `layers` with the number of layers."""
        top = config.num_hidden_layers - 1
        if self._layers(config)[-1] > top:
            raise UserError(
                f"adapter layers are {self.layers!r}, but the model has only "
                f"the layers 0 to {top}"
            )

    def _layers(self, config: modeling.BertConfig) -> Sequence[int]:
        """The layers that have adapters, in rising order."""
        if self.layers == ALL_LAYERS:
            return range(config.num_hidden_layers)
        return layer_numbers(self.layers)

    def rules(self, config):
        """Adapters, and all LayerNorms or those of the layers named."""
        norms = LAYER_NORMS
        if self.layers != ALL_LAYERS:
            layers = "|".join(str(layer) for layer in self._layers(config))
            norms = (rf"bert/encoder/layer_({layers})/.*/LayerNorm/.*", True)
        return ((r".*/adapters/.*", True), norms, FROZEN_BERT)

    def build(self, config, create):
        """Creates two adapters in each of the layers."""
        sites = {"attention": "attention/output", "ffn": "output"}
        return HoulsbyHooks(
            {
                (layer, site): Adapter(
                    f"bert/encoder/layer_{layer}/{scope}",
                    config,
                    self.size,
                    self.init_scale,
                    create,
                )
                for layer in self._layers(config)
                for site, scope in sites.items()
            }
        )


@dataclasses.dataclass(frozen=True)
class Full(TuningMethod):
    """Every parameter is trained, as Devlin et al. 2019 do."""

    def rules(self, config):
        """Everything."""
        return ((r"bert/.*", True),)


@dataclasses.dataclass(frozen=True)
class TopLayers(TuningMethod):
    """The `k` uppermost layers and the pooler are trained.

    BERT-base: 7,087,872 k + 590,592.

    Attributes:
        k: number of layers, counted from the top.

    Raises:
        UserError: k below 1, or above the model's number of layers.

    Source: Houlsby et al. 2019, section 3.1 ("variable fine-tuning").
    """

    k: int = 1

    def __post_init__(self):
        if self.k < 1:
            raise UserError(f"top_layers: k is {self.k}, expected at least 1")

    def check(self, config):
        """Compares `k` with the number of layers."""
        if self.k > config.num_hidden_layers:
            raise UserError(
                f"top_layers: k is {self.k}, but the model has only "
                f"{config.num_hidden_layers} layers"
            )

    def rules(self, config):
        """The layers from L - k on, and the pooler."""
        top = range(config.num_hidden_layers - self.k, config.num_hidden_layers)
        layers = "|".join(str(layer) for layer in top)
        return (
            (rf"bert/encoder/layer_({layers})/.*", True),
            (r"bert/pooler/.*", True),
            FROZEN_BERT,
        )


@dataclasses.dataclass(frozen=True)
class LayerNormOnly(TuningMethod):
    """Every LayerNorm is trained: 38,400 parameters of BERT-base.

    Source: Houlsby et al. 2019, section 3.4.
    """

    def rules(self, config):
        """LayerNorms."""
        return (LAYER_NORMS, FROZEN_BERT)


@dataclasses.dataclass(frozen=True)
class HeadOnly(TuningMethod):
    """Only the head is trained: BERT as a fixed feature extractor."""

    def rules(self, config):
        """Nothing outside the head."""
        return (FROZEN_BERT,)


METHODS: Dict[str, Type[TuningMethod]] = {
    "houlsby": Houlsby,
    "full": Full,
    "top_layers": TopLayers,
    "layernorm": LayerNormOnly,
    "head": HeadOnly,
}


def parse(text: str, defaults: Optional[Dict[str, Any]] = None) -> TuningMethod:
    """Reads a method with its arguments, as `houlsby(size=64)` or `head`.

    Args:
        text: a name of `METHODS`, with Python literals for its arguments, by
            position or by keyword.
        defaults: values for arguments that the text leaves out; those that
            the method does not have are ignored.

    Returns:
        The method.

    Raises:
        UserError: no such method, no such argument, or a value of the wrong
            type or range; the message names the choices.
    """
    choices = ", ".join(METHODS)
    if len(text) > MAX_TEXT:
        raise UserError(
            f"the tuning method is {len(text)} characters long, expected at "
            f"most {MAX_TEXT}"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        call = tree if isinstance(tree, ast.Call) else None
        name = (call.func if call else tree).id
        values = [ast.literal_eval(node) for node in call.args] if call else []
        named = (
            {node.arg: ast.literal_eval(node.value) for node in call.keywords}
            if call
            else {}
        )
    except (
        SyntaxError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise UserError(
            f"tuning method {text!r} cannot be read; expected one of "
            f"{choices}, with arguments as in houlsby(size=64)"
        ) from error
    if name not in METHODS:
        raise UserError(
            f"unknown tuning method {name!r}; expected one of {choices}"
        )
    fields = {field.name: field for field in dataclasses.fields(METHODS[name])}
    takes = ", ".join(fields) or "none"
    if len(values) > len(fields):
        raise UserError(
            f"{name} was given {len(values)} arguments; it takes: {takes}"
        )
    arguments = {
        key: value for key, value in (defaults or {}).items() if key in fields
    }
    arguments.update(zip(fields, values))
    for key in list(fields)[: len(values)]:
        if key in named:
            raise UserError(f"{name} was given {key} twice")
    arguments.update(named)
    for key, value in arguments.items():
        if key not in fields:
            raise UserError(
                f"{name} has no argument {key!r}; it takes: {takes}"
            )
        kind = fields[key].type
        if kind is float and type(value) is int:
            arguments[key] = float(value)
        elif type(value) is not kind:
            raise UserError(
                f"{name}: {key} is {value!r}, expected a value of type "
                f"{kind.__name__}"
            )
    return METHODS[name](**arguments)
