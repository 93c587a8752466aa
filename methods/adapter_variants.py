"""Bottleneck adapters that came after Houlsby's, at other places in a layer."""

import dataclasses
from typing import ClassVar

import modeling
from adapter_modeling import ADAPTERS, AdapterHooks, make_adapters
from bert import functional
from bert.hooks import ALIKE, Hooks
from methods import base
from methods.base import ALL_LAYERS, FROZEN_BERT, TuningMethod, added_later


class PfeifferHooks(AdapterHooks):
    """Adapters that read what the LayerNorm makes of the sum."""

    def reads(self, inputs, outputs, layer_norm):
        """`LN(x + f)`; the same LayerNorm follows upon the sum with it."""
        return layer_norm(inputs + outputs)


class BapnaHooks(Hooks):
    """Adapters upon a finished layer: `h + adapter(h)`."""

    takes_rows = True
    by_token = True
    by_values = True

    def __init__(self, adapters):
        """Takes the adapters by layer and site."""
        self.adapters = adapters

    def layer_kind(self, layer, training):
        """All are alike."""
        return ALIKE

    def after_norm(self, layer, site, hidden, context):
        """What the adapter makes of it; shapes as in `Hooks`."""
        adapter = self.adapters.get((layer, site))
        return None if adapter is None else adapter(hidden)


class ParallelHooks(AdapterHooks):
    """Adapters beside a sublayer: they read what it reads."""

    def __init__(self, adapters, scale: float):
        super().__init__(adapters)
        self.scale = scale

    def reads(self, inputs, outputs, layer_norm):
        """The inputs."""
        return inputs

    def before_norm(self, *arguments):
        """What the adapter makes of them, scaled; as in `Hooks`."""
        added = super().before_norm(*arguments)
        return None if added is None else self.scale * added


@dataclasses.dataclass(frozen=True)
class Pfeiffer(TuningMethod):
    """One adapter after each feed-forward sublayer; the LayerNorms are frozen.

    BERT-base: 12 (2 M 768 + 768 + M), 894,528 at M = 48.

    Attributes:
        size: bottleneck size M.
        nonlinearity: a name of `functional.ACTIVATIONS`.
        init_scale: standard deviation of both matrices' initial values, a
            normal truncated at two of them.
        layers: which layers have adapters, as of `houlsby`.

    Raises:
        UserError: as of `houlsby`.

    Source: Pfeiffer et al. 2021 (AdapterFusion), section 4.1; AdapterHub's
    `seq_bn`, which draws from a normal of 0.02. The sublayer's LayerNorm is
    used twice: upon the sum, for the adapter to read, and at the end.
    """

    name: ClassVar[str] = "pfeiffer"
    # Hu et al. 2022 (LoRA), Table 9, for Pfeiffer adapters.
    learning_rate: ClassVar[float] = 3e-4
    width: ClassVar[str] = "size"
    size: int = 64
    nonlinearity: str = "relu"
    init_scale: float = 1e-2
    layers: str = ALL_LAYERS

    def __post_init__(self):
        base.check_positive(self, "size", "init_scale")
        base.check_choice(self, "nonlinearity", tuple(functional.ACTIVATIONS))
        if self.layers != ALL_LAYERS:
            base.layer_numbers(self.layers)

    def check(self, config):
        """Compares `layers` with the number of layers."""
        base.choose_layers(self.layers, config)

    def rules(self, config):
        """Adapters alone."""
        return (ADAPTERS, FROZEN_BERT)

    def build(self, config, create, pooler):
        """Creates an adapter in each of the layers."""
        initializer = modeling.truncated_normal(self.init_scale)
        return PfeifferHooks(
            make_adapters(
                config,
                create,
                self.size,
                self.layers,
                down=initializer,
                up=initializer,
                nonlinearity=self.nonlinearity,
            )
        )


@dataclasses.dataclass(frozen=True)
class Bapna(TuningMethod):
    """An adapter with its own LayerNorm upon each layer; BERT is frozen.

    BERT-base: 12 (2 M 768 + 768 + M + 2 x 768), 1,208,064 at M = 64.

    Attributes:
        size: bottleneck size M.
        init_scale: standard deviation of both matrices' initial values, a
            normal truncated at two of them.

    Raises:
        UserError: a size below 1, or a scale that is not positive.

    Source: Bapna and Firat 2019, section 3.1: `h + up(relu(down(LN(h))))`.
    """

    name: ClassVar[str] = "bapna"
    # As of houlsby; the paper tunes no BERT.
    learning_rate: ClassVar[float] = 3e-4
    width: ClassVar[str] = "size"
    size: int = 64
    init_scale: float = 1e-2

    def __post_init__(self):
        base.check_positive(self, "size", "init_scale")

    def rules(self, config):
        """Adapters with their LayerNorms."""
        return (ADAPTERS, FROZEN_BERT)

    def build(self, config, create, pooler):
        """Creates an adapter upon every layer."""
        initializer = modeling.truncated_normal(self.init_scale)
        return BapnaHooks(
            make_adapters(
                config,
                create,
                self.size,
                down=initializer,
                up=initializer,
                nonlinearity="relu",
                layer_norm=True,
            )
        )


@dataclasses.dataclass(frozen=True)
class Parallel(TuningMethod):
    """An adapter beside each feed-forward sublayer; BERT is frozen.

    BERT-base: 12 (2 M 768 + 768 + M), 304,320 at M = 16. The output at the
    start is plain BERT's, since the second matrix is zero.

    Attributes:
        size: bottleneck size M.
        scale: what the adapter's output is multiplied by.
        nonlinearity: a name of `functional.ACTIVATIONS`.
        layers: which layers have adapters, as of `houlsby`.

    Raises:
        UserError: as of `houlsby`.

    Source: He et al. 2022 ("Towards a unified view"), scaled parallel adapter:
    scale 4 with M = 512 for summaries, 2 with M = 16 for MNLI.
    """

    name: ClassVar[str] = "parallel"
    # He et al. 2022, the published script for GLUE.
    learning_rate: ClassVar[float] = 1e-4
    width: ClassVar[str] = "size"
    size: int = 64
    scale: float = 4.0
    nonlinearity: str = added_later("relu")
    layers: str = added_later(ALL_LAYERS)

    def __post_init__(self):
        base.check_positive(self, "size", "scale")
        base.check_choice(self, "nonlinearity", tuple(functional.ACTIVATIONS))
        if self.layers != ALL_LAYERS:
            base.layer_numbers(self.layers)

    def check(self, config):
        """Compares `layers` with the number of layers."""
        base.choose_layers(self.layers, config)

    def rules(self, config):
        """Adapters alone."""
        return (ADAPTERS, FROZEN_BERT)

    def build(self, config, create, pooler):
        """Creates an adapter in each of the layers."""
        return ParallelHooks(
            make_adapters(
                config,
                create,
                self.size,
                self.layers,
                down=base.uniform_by_inputs,
                up=modeling.zeros,
                nonlinearity=self.nonlinearity,
            ),
            self.scale,
        )
