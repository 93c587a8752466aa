"""Bottleneck adapters that came after Houlsby's, at other places in a layer."""

import dataclasses
import math
from typing import Callable

import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Hooks
from adapter_bert.methods import base
from adapter_bert.methods.base import ALL_LAYERS, TuningMethod, added_later
from adapter_bert.methods.houlsby import (
    AdapterHooks,
    BottleneckMethod,
    Houlsby,
    PlacedHooks,
)


class PfeifferHooks(AdapterHooks):
    """Adapters that read the LayerNorm of the sum."""

    def reads(self, inputs, outputs, layer_norm):
        """`LN(x + f)`; the same LayerNorm follows the sum with it."""
        return layer_norm(inputs + outputs)


class BapnaHooks(PlacedHooks):
    """Adapters after a finished layer: `h + adapter(h)`."""

    def after_norm(self, layer, site, hidden, context):
        place = layer, site
        return self.adapt(place, hidden) if place in self.scopes else None


class ParallelHooks(AdapterHooks):
    """Adapters next to a sublayer: they read its inputs."""

    passes_on = False

    def reads(self, inputs, outputs, layer_norm):
        return inputs

    def before_norm(self, *arguments):
        added = super().before_norm(*arguments)
        return None if added is None else self.method.scale * added


@dataclasses.dataclass(frozen=True)
class Pfeiffer(BottleneckMethod):
    """One adapter after each feed-forward sublayer; the LayerNorms are frozen.

    BERT-base: 12 (2 M 768 + 768 + M), 894,528 at M = 48.

    Attributes:
        size: bottleneck size M.

    Source: Pfeiffer et al. 2021 (AdapterFusion), section 4.1; AdapterHub's
    `seq_bn`, which draws from a normal of 0.02. The sublayer's LayerNorm is
    used twice: of the sum, for the adapter to read, and at the end.
    """

    name = "pfeiffer"
    hooks_class = PfeifferHooks
    # Hu et al. 2022 (LoRA), Table 9, for Pfeiffer adapters.
    learning_rate = 3e-4
    size: int = 64
    nonlinearity: str = "relu"
    init_scale: float = 1e-2
    layers: str = ALL_LAYERS
    sizes: str = added_later("")
    gating: bool = added_later(False)


@dataclasses.dataclass(frozen=True)
class Bapna(BottleneckMethod):
    """An adapter with its own LayerNorm after each layer; BERT is frozen.

    BERT-base: 12 (2 M 768 + 768 + M + 2 x 768), 1,208,064 at M = 64.

    Attributes:
        size: bottleneck size M.

    Source: Bapna and Firat 2019, section 3.1: `h + up(relu(down(LN(h))))`.
    """

    name = "bapna"
    # As of houlsby; the paper tunes no BERT.
    learning_rate = 3e-4
    hooks_class = BapnaHooks
    layer_norm = True
    size: int = 64
    init_scale: float = 1e-2


@dataclasses.dataclass(frozen=True)
class Parallel(BottleneckMethod):
    """An adapter next to each feed-forward sublayer; BERT is frozen.

    BERT-base: 12 (2 M 768 + 768 + M), 304,320 at M = 16. The output at the
    start is plain BERT's, since the second matrix is zero.

    Attributes:
        size: bottleneck size M.
        scale: factor of the adapter's output.

    Source: He et al. 2022 ("Towards a unified view"), scaled parallel adapter:
    scale 4 with M = 512 for summaries, 2 with M = 16 for MNLI.
    """

    name = "parallel"
    # He et al. 2022, the published script for GLUE.
    learning_rate = 1e-4
    hooks_class = ParallelHooks
    positive = ("size", "scale")
    size: int = 64
    scale: float = 4.0
    nonlinearity: str = added_later("relu")
    layers: str = added_later(ALL_LAYERS)
    sizes: str = added_later("")
    gating: bool = added_later(False)

    def initializers(self):
        return base.uniform_by_inputs, encoder.zeros


# The methods whose adapters may be left out.
ADAPTERS = {"houlsby": Houlsby, "pfeiffer": Pfeiffer}


class RobustDropHooks(Hooks):
    """In training, each batch goes without the adapters of its lowest layers.

    How many is drawn uniformly from 0 to L - 1 for each batch; at prediction
    they are always the same.
    """

    by_token = True
    by_values = True

    def __init__(self, hooks: AdapterHooks, layers: int, first: int):
        self.hooks, self.layers, self.first = hooks, layers, first

    def layer_kind(self, layer, training):
        return training or layer >= self.first

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):

        def adapted():
            return self.hooks.before_norm(
                layer, site, inputs, outputs, layer_norm, context
            )

        if (layer, site) not in self.hooks.scopes:
            return None
        if not context.training:
            return adapted() if layer >= self.first else None
        return drop_at_random(layer, self.layers, adapted, outputs, context)


def drop_at_random(
    layer: int,
    layers: int,
    added: Callable[[], tf.Tensor],
    outputs: tf.Tensor,
    context: Context,
) -> tf.Tensor:
    """Gives what is added to `outputs`, or zeros if this batch goes without.

    A batch goes without in a number of the lowest `layers` from 0 to L - 1.
    Both tensors are float32 [B, T, D].
    """
    dropped = tf.random.stateless_uniform(
        [], context.step_seed, 0, layers, tf.int32, alg="philox"
    )
    # Within a shared layer hooks are told the number of the first one.
    number = context.layer.number if context.layer else layer
    result = tf.cond(
        dropped <= number,
        added,
        lambda: tf.zeros_like(outputs),
    )
    result.set_shape(outputs.shape)
    return result


@dataclasses.dataclass(frozen=True)
class AdapterDrop(TuningMethod):
    """Adapters without those of the lowest layers.

    The specialized form has adapters in the layers from `first` on only, and
    nothing below is differentiated. The robust one has and trains all, leaves
    out those of a random number of the lowest layers from each batch, and
    can then be used with any `first`. BERT-base: the parameters of
    `over`; in the specialized form with `layers` from `first` on.

    Attributes:
        first: the lowest layer that keeps its adapters; 0 leaves out none.
        over: the method whose adapters they are, `houlsby` or `pfeiffer`.
        size: bottleneck size M.
        robust: which form. A robust adapter can be evaluated with another
            `first` than it was trained with.

    Source: Rueckle et al. 2021, section 3.2.
    """

    name = "adapterdrop"
    # That of the adapters that are left.
    learning_rate = 3e-4
    width = "size"
    positive = ("size",)
    limits = {"first": (0, math.inf)}
    choices = {"over": ADAPTERS}
    first: int = 5
    over: str = "houlsby"
    size: int = 64
    robust: bool = False

    def check(self, config):
        base.choose_layers(str(self.first), config)

    def _adapters(self, config: encoder.BertConfig) -> TuningMethod:
        layers = ALL_LAYERS
        if self.first and not self.robust:
            layers = f"{self.first}-{config.num_hidden_layers - 1}"
        return ADAPTERS[self.over](size=self.size, layers=layers)

    def kept(self, config: encoder.BertConfig) -> TuningMethod:
        """Gives the method that predicts the same, with fewer adapters."""
        specialized = dataclasses.replace(self, robust=False)
        return specialized._adapters(config)

    @property
    def as_part(self):
        # LayerNorms of lower layers were trained too, and stay.
        keeps_all = self.over == "houlsby"
        return self if keeps_all else dataclasses.replace(self, robust=False)

    def trains(self, config):
        return self._adapters(config).trains(config)

    def variables(self, config, pooler=True):
        return self._adapters(config).variables(config, pooler)

    def hooks(self, config, values):
        hooks = self._adapters(config).hooks(config, values)
        if not self.robust:
            return hooks
        return RobustDropHooks(hooks, config.num_hidden_layers, self.first)

    def fits(self, trained):
        if isinstance(trained, AdapterDrop) and self.robust:
            return dataclasses.replace(trained, first=self.first) == self
        return self == trained
