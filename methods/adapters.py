"""Bottleneck adapters: Houlsby's and its variants, and those after it."""

import dataclasses
from typing import ClassVar, Dict, Tuple

import tensorflow as tf

import modeling
import operations
from errors import UserError
from hooks import Hooks
from methods import base
from methods.base import ALL_LAYERS, FROZEN_BERT, TuningMethod, later

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
        create: modeling.CreateVariable,
        *,
        down: modeling.Initializer,
        up: modeling.Initializer,
        nonlinearity: str,
        depth: int = 1,
        layer_norm: bool = False,
    ):
        """Creates the variables.

        Args:
            scope: of the variables `<scope>/adapters/...`.
            hidden: D, of inputs and outputs.
            size: M, of the bottleneck.
            create: makes a variable.
            down: initializer of every matrix but the last.
            up: initializer of the last matrix.
            nonlinearity: a name of `operations.ACTIVATIONS`.
            depth: number of layers with that nonlinearity.
            layer_norm: whether an own LayerNorm comes first.
        """
        scope = f"{scope}/adapters"
        self.norm = None
        if layer_norm:
            self.norm = tuple(
                create(f"{scope}/LayerNorm/{name}", (hidden,), initializer)
                for name, initializer in (
                    ("gamma", modeling.ones),
                    ("beta", modeling.zeros),
                )
            )
        self.activation = operations.activation(nonlinearity)
        sizes = [hidden] + [size] * depth + [hidden]
        numbers = ["1", *(f"1_{i}" for i in range(1, depth)), "2"]
        self.matrices = [
            (
                create(f"{scope}/weights{number}", shape, initializer),
                create(
                    f"{scope}/biases{number}", (1, shape[1]), modeling.zeros
                ),
            )
            for number, shape, initializer in zip(
                numbers, zip(sizes, sizes[1:]), [down] * depth + [up]
            )
        ]

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        """float32 [B, T, D] -> float32 [B, T, D]."""
        inner = tf.reshape(hidden, [-1, hidden.shape[-1]])  # [B T, D]
        if self.norm:
            inner = operations.layer_norm(
                inner, *map(tf.convert_to_tensor, self.norm)
            )
        for number, (kernel, bias) in enumerate(self.matrices):
            if number:
                inner = self.activation(inner)
            inner = tf.nn.bias_add(
                tf.matmul(inner, tf.cast(kernel, hidden.dtype)),
                tf.cast(bias[0], hidden.dtype),
            )
        outputs = tf.reshape(inner, tf.shape(hidden))
        outputs.set_shape(hidden.shape)
        return outputs


class AdapterHooks(Hooks):
    """Acts on the sublayers that have an adapter."""

    def __init__(self, adapters: Dict[Tuple[int, str], tf.Module]):
        """Takes the adapters by layer and site."""
        self.adapters = adapters

    def sublayer(self, layer, site, inputs, outputs, layer_norm, context):
        """`join` with the adapter, if there is one; shapes as in `Hooks`."""
        if (layer, site) in self.adapters:
            adapter = self.adapters[layer, site]
            return self.join(adapter, inputs, outputs, layer_norm)
        return layer_norm(inputs + outputs)

    def join(self, adapter, inputs, outputs, layer_norm):
        """`LN(x + f + adapter(f))`: before the sum, as Houlsby et al."""
        return layer_norm(inputs + (outputs + adapter(outputs)))


class PfeifferHooks(AdapterHooks):
    """Adapters that read what the LayerNorm makes of the sum."""

    def join(self, adapter, inputs, outputs, layer_norm):
        """`LN(x + f + adapter(LN(x + f)))`."""
        total = inputs + outputs
        return layer_norm(total + adapter(layer_norm(total)))


class BapnaHooks(AdapterHooks):
    """Adapters upon a finished layer."""

    def join(self, adapter, inputs, outputs, layer_norm):
        """`h + adapter(h)` with `h = LN(x + f)`."""
        hidden = layer_norm(inputs + outputs)
        return hidden + adapter(hidden)


class ParallelHooks(AdapterHooks):
    """Adapters beside a sublayer."""

    def __init__(self, adapters, scale: float):
        super().__init__(adapters)
        self.scale = scale

    def join(self, adapter, inputs, outputs, layer_norm):
        """`LN(x + f + scale adapter(x))`."""
        return layer_norm(inputs + (outputs + self.scale * adapter(inputs)))


def make_adapters(
    config, create, size, layers=ALL_LAYERS, sites="ffn", **arguments
) -> Dict[Tuple[int, str], Bottleneck]:
    """One `Bottleneck` for each of the sites of each of the layers."""
    return {
        (layer, site): Bottleneck(
            f"bert/encoder/layer_{layer}/{SCOPES[site]}",
            config.hidden_size,
            size,
            create,
            **arguments,
        )
        for layer in base.choose_layers(layers, config)
        for site in SITES[sites]
    }


@dataclasses.dataclass(frozen=True)
class Houlsby(TuningMethod):
    """Two adapters in every layer; they, every LayerNorm and the head train.

    BERT-base: 24 (2 M 768 + 768 + M) adapter parameters, 2,379,264 at M = 64,
    and 25 x 2 x 768 = 38,400 of LayerNorm. If `layers` names k of them, only
    these have adapters, 2k (2 M 768 + 768 + M), and only their LayerNorms
    train, 2k x 2 x 768: nothing below the lowest adapter is differentiated.

    The last four arguments are the variants that the paper reports to have
    tried without gain (section 3.6).

    Attributes:
        size: bottleneck size M.
        init_scale: standard deviation of the matrices' initial values, a
            normal truncated at two of them. The paper's section 3.6 has 1e-2;
            google-research/adapter-bert's code has 1e-3.
        layers: which layers have adapters: `all`, or numbers and inclusive
            ranges, counted from 0, as `0,2,6-11`. All 12 of BERT-base named
            differ from `all` in the embeddings' LayerNorm, which is frozen.
        nonlinearity: a name of `operations.ACTIVATIONS`.
        depth: layers of size M in each adapter.
        layer_norm: whether each adapter begins with a LayerNorm of its own.
        sites: after which sublayers: `attention`, `ffn` or `both`.

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
    size: int = 64
    init_scale: float = 1e-2
    layers: str = later(ALL_LAYERS)
    nonlinearity: str = later("gelu")
    depth: int = later(1)
    layer_norm: bool = later(False)
    sites: str = later("both")

    def __post_init__(self):
        base.check_positive(self, "size", "init_scale", "depth")
        base.check_choice(self, "nonlinearity", tuple(operations.ACTIVATIONS))
        base.check_choice(self, "sites", tuple(SITES))
        if self.layers != ALL_LAYERS:
            base.layer_numbers(self.layers)

    def check(self, config):
        """Compares `layers` with the number of layers."""
        base.choose_layers(self.layers, config)

    def rules(self, config):
        """Adapters, and all LayerNorms or those of the layers named."""
        return (
            ADAPTERS,
            base.layer_norms_of(self.layers, config),
            FROZEN_BERT,
        )

    def build(self, config, create, pooler):
        """Creates the adapters of each of the layers."""
        initializer = modeling.truncated_normal(self.init_scale)
        return AdapterHooks(
            make_adapters(
                config,
                create,
                self.size,
                self.layers,
                self.sites,
                down=initializer,
                up=initializer,
                nonlinearity=self.nonlinearity,
                depth=self.depth,
                layer_norm=self.layer_norm,
            )
        )


@dataclasses.dataclass(frozen=True)
class Pfeiffer(TuningMethod):
    """One adapter after each feed-forward sublayer; the LayerNorms are frozen.

    BERT-base: 12 (2 M 768 + 768 + M), 894,528 at M = 48.

    Attributes:
        size: bottleneck size M.
        nonlinearity: a name of `operations.ACTIVATIONS`.
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
    size: int = 64
    nonlinearity: str = "relu"
    init_scale: float = 1e-2
    layers: str = ALL_LAYERS

    def __post_init__(self):
        base.check_positive(self, "size", "init_scale")
        base.check_choice(self, "nonlinearity", tuple(operations.ACTIVATIONS))
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

    Raises:
        UserError: a size below 1, or a scale that is not positive.

    Source: He et al. 2022 ("Towards a unified view"), scaled parallel adapter:
    scale 4 with M = 512 for summaries, 2 with M = 16 for MNLI.
    """

    name: ClassVar[str] = "parallel"
    # He et al. 2022, the published script for GLUE.
    learning_rate: ClassVar[float] = 1e-4
    size: int = 64
    scale: float = 4.0

    def __post_init__(self):
        base.check_positive(self, "size", "scale")

    def rules(self, config):
        """Adapters alone."""
        return (ADAPTERS, FROZEN_BERT)

    def build(self, config, create, pooler):
        """Creates an adapter in every layer."""
        return ParallelHooks(
            make_adapters(
                config,
                create,
                self.size,
                down=base.uniform_by_inputs,
                up=modeling.zeros,
                nonlinearity="relu",
            ),
            self.scale,
        )


class RobustDropHooks(Hooks):
    """In training, each batch goes without the adapters of its lowest layers.

    How many is drawn uniformly from 0 to L - 1 for each batch; at prediction
    they are always the same.
    """

    def __init__(self, hooks: AdapterHooks, layers: int, first: int):
        """Takes the hooks of all adapters, L, and the layers to leave out."""
        self.hooks, self.layers, self.first = hooks, layers, first

    def sublayer(self, layer, site, inputs, outputs, layer_norm, context):
        """With an adapter or without; shapes as in `Hooks`."""

        def adapted():
            return self.hooks.sublayer(
                layer, site, inputs, outputs, layer_norm, context
            )

        def plain():
            return layer_norm(inputs + outputs)

        if not context.training:
            return adapted() if layer >= self.first else plain()
        dropped = tf.random.stateless_uniform(
            [], context.step_seed, 0, self.layers, tf.int32, alg="philox"
        )
        result = tf.cond(dropped <= layer, adapted, plain)
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

    Raises:
        UserError: a size below 1, an unknown method, a layer that the model
            does not have.

    Source: Rueckle et al. 2021, section 3.2.
    """

    name: ClassVar[str] = "adapterdrop"
    # That of the adapters that are left.
    learning_rate: ClassVar[float] = 3e-4
    first: int = 5
    over: str = "houlsby"
    size: int = 64
    robust: bool = False

    def __post_init__(self):
        base.check_positive(self, "size")
        base.check_choice(self, "over", ("houlsby", "pfeiffer"))
        if self.first < 0:
            raise UserError(
                f"adapterdrop: first is {self.first}, the lowest layer that "
                "keeps its adapters; expected at least 0"
            )

    def check(self, config):
        """Compares `first` with the number of layers."""
        if self.first >= config.num_hidden_layers:
            raise UserError(
                f"adapterdrop: first is {self.first}, but the model has only "
                f"the layers 0 to {config.num_hidden_layers - 1}"
            )

    def _adapters(self, config: modeling.BertConfig) -> TuningMethod:
        layers = ALL_LAYERS
        if self.first and not self.robust:
            layers = f"{self.first}-{config.num_hidden_layers - 1}"
        kind = {"houlsby": Houlsby, "pfeiffer": Pfeiffer}[self.over]
        return kind(size=self.size, layers=layers)

    def rules(self, config):
        """Those of the method whose adapters they are."""
        return self._adapters(config).rules(config)

    def build(self, config, create, pooler):
        """Creates the adapters that are left, or all if robust."""
        hooks = self._adapters(config).build(config, create, pooler)
        if not self.robust:
            return hooks
        return RobustDropHooks(hooks, config.num_hidden_layers, self.first)

    def fits(self, trained):
        """Equal; a robust one was trained for any `first`."""
        if isinstance(trained, AdapterDrop) and self.robust:
            return dataclasses.replace(trained, first=self.first) == self
        return self == trained
