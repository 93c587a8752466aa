"""The paper's adapters: the bottleneck, where it acts, and `houlsby`.

Houlsby et al. 2019, section 2.1, with the variable names and shapes of
google-research/adapter-bert. Adapters that came after are in
`adapter_variants.py`. `registry.py` reads `--tuning_method`.
"""

import dataclasses
from typing import ClassVar, Dict, Tuple

import tensorflow as tf

from adapter_bert.bert import encoder, functional
from adapter_bert.bert.hooks import Hooks
from adapter_bert.methods import base
from adapter_bert.methods.base import (
    ALL_LAYERS,
    FROZEN_BERT,
    TuningMethod,
    added_later,
)

# Where adapters may be -> sites, and the scope of each.
SCOPES = {"attention": "attention/output", "ffn": "output"}
SITES = {"both": tuple(SCOPES), "attention": ("attention",), "ffn": ("ffn",)}
ADAPTERS = (r".*/adapters/.*", True)


class Bottleneck(tf.Module):
    """The inner part of an adapter, `up(act(down(h)))`, without the sum.

    Source: Houlsby et al. 2019, section 2.1; variable names and shapes of
    google-research/adapter-bert. Parameters: 2 M D + D + M; M^2 + M for each
    layer of `depth` beyond the first, 2 D with `layer_norm`.
    """

    def __init__(
        self,
        scope: str,
        hidden: int,
        size: int,
        create: encoder.CreateVariable,
        *,
        down: encoder.Initializer,
        up: encoder.Initializer,
        nonlinearity: str,
        depth: int = 1,
        layer_norm: bool = False,
    ):
        """Creates the variables.

        Args:
            scope: of the variables `<scope>/weights1`, ...
            hidden: D, of inputs and outputs.
            size: M, of the bottleneck.
            create: makes a variable.
            down: initializer of every matrix but the last.
            up: initializer of the last matrix.
            nonlinearity: a name of `functional.ACTIVATIONS`.
            depth: number of layers with that nonlinearity.
            layer_norm: whether an own LayerNorm comes first.
        """
        self.norm = None
        if layer_norm:
            self.norm = tuple(
                create(f"{scope}/LayerNorm/{name}", (hidden,), initializer)
                for name, initializer in (
                    ("gamma", encoder.ones),
                    ("beta", encoder.zeros),
                )
            )
        self.activation = functional.activation(nonlinearity)
        sizes = [hidden] + [size] * depth + [hidden]
        numbers = ["1", *(f"1_{i}" for i in range(1, depth)), "2"]
        self.matrices = [
            (
                create(f"{scope}/weights{number}", shape, initializer),
                create(f"{scope}/biases{number}", (1, shape[1]), encoder.zeros),
            )
            for number, shape, initializer in zip(
                numbers, zip(sizes, sizes[1:]), [down] * depth + [up]
            )
        ]

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        """float32 [B, T, D] -> float32 [B, T, D]."""
        inner = hidden
        # Unless each row has its own matrices, all tokens share a product.
        if len(self.matrices[0][0].shape) == 2:
            inner = tf.reshape(hidden, [-1, hidden.shape[-1]])  # [B T, D]
        if self.norm:
            inner = functional.layer_norm(
                inner, *map(tf.convert_to_tensor, self.norm)
            )
        for number, (kernel, bias) in enumerate(self.matrices):
            if number:
                inner = self.activation(inner)
            inner = tf.matmul(inner, tf.cast(kernel, hidden.dtype))
            bias = tf.cast(bias, hidden.dtype)
            if len(kernel.shape) == 2:
                inner = tf.nn.bias_add(inner, bias[0])
            else:
                inner += bias
        outputs = tf.reshape(inner, tf.shape(hidden))
        outputs.set_shape(hidden.shape)
        return outputs


class AdapterHooks(Hooks):
    """Acts on the sublayers that have an adapter."""

    alike = True
    takes_rows = True
    by_token = True
    by_values = True

    def __init__(self, adapters: Dict[Tuple[int, str], tf.Module]):
        """Takes the adapters by layer and site."""
        self.adapters = adapters

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        """What the adapter makes of what it reads; shapes as in `Hooks`."""
        adapter = self.adapters.get((layer, site))
        if adapter is None:
            return None
        return adapter(self.reads(inputs, outputs, layer_norm))

    def reads(self, inputs, outputs, layer_norm):
        """What an adapter reads: the outputs, as Houlsby et al.

        Shapes as in `Hooks.before_norm`.
        """
        return outputs


def make_adapters(
    config, create, size, layers=ALL_LAYERS, sites="ffn", **arguments
) -> Dict[Tuple[int, str], Bottleneck]:
    """One `Bottleneck` for each of the sites of each of the layers."""
    return {
        (layer, site): Bottleneck(
            f"bert/encoder/layer_{layer}/{SCOPES[site]}/adapters",
            config.hidden_size,
            size,
            create,
            **arguments,
        )
        for layer in base.choose_layers(layers, config)
        for site in SITES[sites]
    }


@dataclasses.dataclass(frozen=True)
class BottleneckMethod(TuningMethod):
    """What the methods of `Bottleneck`s in layers share.

    Raises:
        UserError: an argument that is not positive, an unknown nonlinearity,
            layers that cannot be read or that the model does not have.
    """

    width: ClassVar[str] = "size"
    positive: ClassVar[Tuple[str, ...]] = ("size", "init_scale")
    # Of methods without such arguments. Fields would come before all others.
    nonlinearity = "relu"
    layers = ALL_LAYERS

    def __post_init__(self):
        base.check_positive(self, *self.positive)
        base.check_choice(self, "nonlinearity", tuple(functional.ACTIVATIONS))
        if self.layers != ALL_LAYERS:
            base.layer_numbers(self.layers)

    def check(self, config):
        """Compares `layers` with the number of layers."""
        base.choose_layers(self.layers, config)

    def rules(self, config):
        """Adapters alone."""
        return (ADAPTERS, FROZEN_BERT)

    def adapters(self, config, create, **arguments):
        """`make_adapters` with the method's own arguments, and these."""
        if "up" not in arguments:
            initializer = encoder.truncated_normal(self.init_scale)
            arguments.update(down=initializer, up=initializer)
        return make_adapters(
            config,
            create,
            self.size,
            self.layers,
            nonlinearity=self.nonlinearity,
            **arguments,
        )


@dataclasses.dataclass(frozen=True)
class Houlsby(BottleneckMethod):
    """Two adapters in every layer; they, every LayerNorm and the head train.

    BERT-base: 24 (2 M 768 + 768 + M) adapter parameters, 2,379,264 at M = 64,
    and 25 x 2 x 768 = 38,400 of LayerNorm. If `layers` names k of them, only
    these have adapters, 2k (2 M 768 + 768 + M), and only their LayerNorms
    train, 2k x 2 x 768: nothing below the lowest adapter is differentiated.

    `nonlinearity` to `sites` are the variants that the paper reports to have
    tried without gain (section 3.6).

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
        layer_norms: whether BERT's LayerNorms train. AdapterHub's adapters
            have them frozen, and its files cannot hold trained ones.

    Raises:
        UserError: a size or depth below 1, a scale that is not positive, an
            unknown nonlinearity or site, layers that cannot be read or that
            the model does not have.

    Source: Houlsby et al. 2019, section 2.1. The pooler stays frozen, as in
    google-research/adapter-bert. Rueckle et al. 2021 (AdapterDrop), section 3,
    leave out the adapters of the lowest layers. AdapterHub's method of this
    name is another recipe: swish, frozen LayerNorms, a normal of 0.02.
    """

    name: ClassVar[str] = "houlsby"
    # google-research/adapter-bert, README; one of the paper's three.
    learning_rate: ClassVar[float] = 3e-4
    positive: ClassVar[Tuple[str, ...]] = ("size", "init_scale", "depth")
    size: int = 64
    init_scale: float = 1e-2
    layers: str = added_later(ALL_LAYERS)
    nonlinearity: str = added_later("gelu")
    depth: int = added_later(1)
    layer_norm: bool = added_later(False)
    sites: str = added_later("both")
    layer_norms: bool = added_later(True)

    def __post_init__(self):
        super().__post_init__()
        base.check_choice(self, "sites", tuple(SITES))

    def rules(self, config):
        """Adapters, and all LayerNorms or those of the layers named."""
        if not self.layer_norms:
            return super().rules(config)
        norms = base.layer_norms_of(self.layers, config)
        return (ADAPTERS, norms, FROZEN_BERT)

    def build(self, config, create, pooler):
        """Creates the adapters of each of the layers."""
        return AdapterHooks(
            self.adapters(
                config,
                create,
                sites=self.sites,
                depth=self.depth,
                layer_norm=self.layer_norm,
            )
        )
