"""Paper's adapters: the bottleneck, where it acts, and `houlsby`.

Variable names and shapes are those of google-research/adapter-bert.
"""

import dataclasses

import tensorflow as tf

from adapter_bert.bert import encoder, functional
from adapter_bert.bert.hooks import TokenHooks, layer_of
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.base import (
    ALL_LAYERS,
    Declared,
    Tensors,
    TuningMethod,
    added_later,
)

# Where adapters may be -> sites, and the scope of each.
SCOPES = {"attention": "attention/output", "ffn": "output"}
SITES = {"both": tuple(SCOPES), "attention": ("attention",), "ffn": ("ffn",)}
# (layer, site)
Place = tuple[int, str]


@dataclasses.dataclass(frozen=True)
class Bottleneck:
    """An adapter's inner part, `up(act(down(h)))`, without the sum.

    Takes and gives float32 [B, T, D]. Parameters: 2 M D + D + M; M^2 + M for
    each layer of `depth` beyond the first, 2 D with `layer_norm`.

    Attributes:
        hidden: D, of inputs and outputs.
        size: M, of the bottleneck.
        depth: number of layers with that nonlinearity.
        layer_norm: whether an own LayerNorm comes first.

    Source: Houlsby et al. 2019, section 2.1.
    """

    hidden: int
    size: int
    down: encoder.Initializer
    up: encoder.Initializer
    nonlinearity: str
    depth: int = 1
    layer_norm: bool = False

    @property
    def numbers(self) -> list[str]:
        return ["1", *(f"1_{i}" for i in range(1, self.depth)), "2"]

    def variables(self, scope: str) -> dict[str, Declared]:
        declared = {}
        if self.layer_norm:
            norm = f"{scope}/LayerNorm"
            declared[f"{norm}/gamma"] = Declared((self.hidden,), encoder.ones)
            declared[f"{norm}/beta"] = Declared((self.hidden,), encoder.zeros)
        sizes = [self.hidden] + [self.size] * self.depth + [self.hidden]
        initializers = [self.down] * self.depth + [self.up]
        for number, *shape, initializer in zip(
            self.numbers, sizes, sizes[1:], initializers
        ):
            declared[f"{scope}/weights{number}"] = Declared(
                tuple(shape), initializer
            )
            bias = Declared((1, shape[1]), encoder.zeros)
            declared[f"{scope}/biases{number}"] = bias
        return declared

    def __call__(
        self, values: Tensors, scope: str, hidden: tf.Tensor
    ) -> tf.Tensor:
        inner = hidden
        # Unless each row has its own matrices, all tokens share a product.
        if len(values[f"{scope}/weights1"].shape) == 2:
            inner = tf.reshape(hidden, [-1, hidden.shape[-1]])  # [B T, D]
        if self.layer_norm:
            gamma, beta = (
                tf.convert_to_tensor(values[f"{scope}/LayerNorm/{name}"])
                for name in ("gamma", "beta")
            )
            inner = functional.layer_norm(inner, gamma, beta)
        for number in self.numbers:
            kernel, bias = (
                tf.cast(values[f"{scope}/{part}{number}"], hidden.dtype)
                for part in ("weights", "biases")
            )
            if len(kernel.shape) == 2:
                bias = bias[0]
            is_last = number == self.numbers[-1]
            activated = "linear" if is_last else self.nonlinearity
            inner = functional.dense(inner, kernel, bias, activated)
        return functional.shaped_as(inner, hidden)


class PlacedHooks(TokenHooks):
    """Adapters at some of the sublayers."""

    def __init__(self, method: "PlacedMethod", config, values):
        super().__init__(method, config, values)
        self.scopes = method.scopes(config)
        # A gate's mean is over all tokens.
        self.by_token = not method.gating

    def adapt(self, place: Place, hidden: tf.Tensor) -> tf.Tensor:
        adapter = self.method.adapter(self.config)
        return adapter(self.values, self.scopes[place], hidden)


class AdapterHooks(PlacedHooks):
    """Adds before the LayerNorm of a sublayer."""

    # Whether the sublayer's outputs go through the adapter, as in a series.
    passes_on = True

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        if (layer, site) not in self.scopes:
            return None
        reads = self.reads(inputs, outputs, layer_norm)
        added = self.adapt((layer, site), reads)
        if self.method.gating:
            scope = self.scopes[layer, site]
            from adapter_bert.methods import gate

            added *= gate.opened(self.values, scope, reads, context)
        return added

    def reads(self, inputs, outputs, layer_norm):
        """Gives what an adapter reads: the outputs, as Houlsby et al."""
        return outputs


@dataclasses.dataclass(frozen=True)
class PlacedMethod(TuningMethod):
    """A method of adapters at some of the sublayers."""

    hooks_class = AdapterHooks
    # Of methods without such arguments. Fields would come before all others.
    layers = ALL_LAYERS
    sites = "ffn"
    scope = "adapters"
    gating = False

    def declare(
        self, config: encoder.BertConfig, scope: str
    ) -> dict[str, Declared]:
        raise NotImplementedError

    def scopes(self, config: encoder.BertConfig) -> dict[Place, str]:
        return {
            (layer, site): f"bert/encoder/layer_{layer}/{SCOPES[site]}"
            f"/{self.scope}"
            for layer in base.choose_layers(self.layers, config)
            for site in SITES[self.sites]
        }

    def variables(self, config, pooler=True):
        declared: dict[str, Declared] = {}
        for scope in self.scopes(config).values():
            declared.update(self.declare(config, scope))
        return declared


@dataclasses.dataclass(frozen=True)
class BottleneckMethod(PlacedMethod):
    """A method of `Bottleneck`s."""

    width = "size"
    positive = ("size", "init_scale")
    choices = {"nonlinearity": functional.ACTIVATIONS}
    nonlinearity = "relu"
    depth = 1
    layer_norm = False
    sizes = ""

    def __post_init__(self):
        super().__post_init__()
        if self.layers != ALL_LAYERS:
            base.layer_numbers(self.layers)
        base.layer_sizes(self.sizes)

    def check(self, config):
        layers = base.choose_layers(self.layers, config)
        for layer in sorted(set(base.layer_sizes(self.sizes)) - set(layers)):
            raise UserError(
                f"{self.name}: sizes is {self.sizes!r}, but layer {layer} has "
                "no adapter; expected layers of the model that `layers` names"
            )

    def initializers(self) -> tuple[encoder.Initializer, encoder.Initializer]:
        return (encoder.truncated_normal(self.init_scale),) * 2

    def declare(self, config, scope):
        adapter = self.adapter(config)
        size = base.layer_sizes(self.sizes).get(layer_of(scope), self.size)
        declared = dataclasses.replace(adapter, size=size).variables(scope)
        if self.gating:
            from adapter_bert.methods import gate

            declared.update(gate.variables(scope, config.hidden_size))
        return declared

    def widened(self):
        return self if self.sizes else super().widened()

    def adapter(self, config: encoder.BertConfig) -> Bottleneck:
        return Bottleneck(
            config.hidden_size,
            self.size,
            *self.initializers(),
            self.nonlinearity,
            self.depth,
            self.layer_norm,
        )


@dataclasses.dataclass(frozen=True)
class Houlsby(BottleneckMethod):
    """Two adapters in every layer; they, every LayerNorm and the head train.

    BERT-base: 24 (2 M 768 + 768 + M) adapter parameters, 2,379,264 at M = 64,
    and 25 x 2 x 768 = 38,400 of LayerNorm. If `layers` names k of them, only
    these have adapters, 2k (2 M 768 + 768 + M), and only their LayerNorms
    train, 2k x 2 x 768: nothing below the lowest adapter is differentiated.
    The paper tried `nonlinearity` to `sites` without gain (section 3.6).

    Attributes:
        size: bottleneck size M.
        init_scale: standard deviation of the matrices' initial values, a
            normal truncated at two of them. The paper's section 3.6 has 1e-2;
            google-research/adapter-bert's code has 1e-3.
        layers: which layers have adapters: `all`, or numbers and inclusive
            ranges, counted from 0, as `0,2,6-11`. All 12 of BERT-base named
            differ from `all` in the embeddings' LayerNorm, which is frozen.
        nonlinearity: a name of `functional.ACTIVATIONS`.
        depth: layers of size M in each adapter.
        layer_norm: whether each adapter begins with a LayerNorm of its own.
        sites: after which sublayers: `attention`, `ffn` or `both`.
        layer_norms: whether BERT's LayerNorms train.
        sizes: sizes of single layers, as `0-5:16,11:8`; M in all others.
        gating: whether each adapter has a gate (`gate.py`), 768 + 1
            parameters.

    Source: Houlsby et al. 2019, section 2.1. The pooler stays frozen, as in
    google-research/adapter-bert. AdapterHub's method of this name has swish,
    frozen LayerNorms, a normal of 0.02.
    """

    name = "houlsby"
    # google-research/adapter-bert, README; one of the paper's three.
    learning_rate = 3e-4
    positive = ("size", "init_scale", "depth")
    choices = {
        **BottleneckMethod.choices,
        "sites": SITES,
    }
    size: int = 64
    init_scale: float = 1e-2
    layers: str = added_later(ALL_LAYERS)
    nonlinearity: str = added_later("gelu")
    depth: int = added_later(1)
    layer_norm: bool = added_later(False)
    sites: str = added_later("both")
    layer_norms: bool = added_later(True)
    sizes: str = added_later("")
    gating: bool = added_later(False)

    def trains(self, config):
        if not self.layer_norms:
            return ""
        if self.layers == ALL_LAYERS:
            return base.LAYER_NORMS
        if config.num_hidden_groups:
            raise UserError(
                f"adapter layers are {self.layers!r}, but the layers of this "
                "model share their LayerNorms, which some layers cannot train "
                f"alone; pass layers={ALL_LAYERS!r} or layer_norms=False to "
                "houlsby, or over='pfeiffer' to adapterdrop"
            )
        layers = "|".join(map(str, base.choose_layers(self.layers, config)))
        return rf"bert/encoder/layer_({layers})/.*/LayerNorm/.*"
