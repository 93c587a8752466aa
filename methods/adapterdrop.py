"""AdapterDrop: adapters without those of the lowest layers."""

import dataclasses
from typing import Callable, ClassVar

import tensorflow as tf

import modeling
from adapter_modeling import AdapterHooks, Houlsby
from bert.hooks import Context, Hooks
from errors import UserError
from methods import base
from methods.adapter_variants import Pfeiffer
from methods.base import ALL_LAYERS, TuningMethod

# The methods whose adapters may be left out.
KINDS = {"houlsby": Houlsby, "pfeiffer": Pfeiffer}


class RobustDropHooks(Hooks):
    """In training, each batch goes without the adapters of its lowest layers.

    How many is drawn uniformly from 0 to L - 1 for each batch; at prediction
    they are always the same.
    """

    by_token = True
    by_values = True

    def __init__(self, hooks: AdapterHooks, layers: int, first: int):
        """Takes the hooks of all adapters, L, and the layers to leave out."""
        self.hooks, self.layers, self.first = hooks, layers, first

    def layer_kind(self, layer, training):
        """With adapters or without; in training each batch decides."""
        return training or layer >= self.first

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        """What an adapter adds, or nothing; shapes as in `Hooks`."""

        def adapted():
            return self.hooks.before_norm(
                layer, site, inputs, outputs, layer_norm, context
            )

        if (layer, site) not in self.hooks.adapters:
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
    """What is added to `outputs`, or zeros if this batch goes without.

    Args:
        layer: where it is added.
        layers: L; without is a number of the lowest from 0 to L - 1.
        added: makes what is added, float32 [B, T, D].
        outputs: float32 [B, T, D].
        context: of a training's forward pass.
    """
    dropped = tf.random.stateless_uniform(
        [], context.step_seed, 0, layers, tf.int32, alg="philox"
    )
    result = tf.cond(
        dropped <= context.number_of(layer),
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

    Raises:
        UserError: a size below 1, an unknown method, a layer that the model
            does not have.

    Source: Rueckle et al. 2021, section 3.2.
    """

    name: ClassVar[str] = "adapterdrop"
    # That of the adapters that are left.
    learning_rate: ClassVar[float] = 3e-4
    width: ClassVar[str] = "size"
    first: int = 5
    over: str = "houlsby"
    size: int = 64
    robust: bool = False

    def __post_init__(self):
        base.check_positive(self, "size")
        base.check_choice(self, "over", tuple(KINDS))
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
        return KINDS[self.over](size=self.size, layers=layers)

    def kept(self, config: modeling.BertConfig) -> TuningMethod:
        """The method that predicts the same, with fewer adapters if robust."""
        specialized = dataclasses.replace(self, robust=False)
        return specialized._adapters(config)

    @property
    def as_part(self):
        """All adapters that were trained."""
        if not self.robust:
            return self
        return KINDS[self.over](size=self.size)

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
