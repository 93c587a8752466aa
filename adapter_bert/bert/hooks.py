"""The places where a tuning method may change what BERT computes.

`Hooks` has seven places, at each the identity, a penalty of the loss, and
values that are made once for a step. Every layer and hook is given a `Context`.
Dropout depends on the context alone. Dimension letters are those of
`encoder.py`.
"""

import dataclasses
import re
import zlib
from typing import (
    Any,
    Callable,
    ClassVar,
    Dict,
    FrozenSet,
    Hashable,
    Optional,
    Tuple,
)

import tensorflow as tf

from adapter_bert.bert import functional

# The kind of layers that differ by the names of what they read alone.
ALIKE = "alike"
# Where methods act on BERT: names of methods of `Hooks`.
PLACES = (
    "embeddings",
    "parameter",
    "project",
    "key_value",
    "before_norm",
    "after_norm",
    "vocabulary",
)
# As variables and sites of dropout name their layer.
LAYER = re.compile(r"(?<![^/])layer_(\d+)(?![^/])")


@dataclasses.dataclass(frozen=True)
class TracedLayer:
    """Which layer is computed by what was traced as another of its kind.

    Attributes:
        number: int32 [], of the layer that is computed.
        count: layers of the model.
    """

    number: tf.Tensor
    count: int


@dataclasses.dataclass(frozen=True)
class Context:
    """What holds for one forward pass, handed to every layer and hook.

    Attributes:
        input_mask: int32 [B, T], 1 for a token and 0 for padding.
        training: Whether dropout acts.
        seed: int32 [2], the seed of this step's dropout; needed in training.
        dtype: of products and of what layers hand on; weights, LayerNorm,
            softmax and the loss stay float32.
        step_seed: int32 [2], a seed that is the same for all rows of this
            step's batch, wherever they are computed; needed in training.
        handed_on: what a method's hooks hand from one place to a later one;
            in training it begins with what `Hooks.prepare` made. A name with
            a `layer_<number>` in it is for that layer alone. Of layers that
            share a function see `Hooks.layer_kind`.
        share_layers: whether layers of one kind are calls of one function.
        layer: within such a function, the layer that is computed.
        task: in a run of several tasks, int32 [], that of all rows.
        observes: whether hooks are to hand on what `Hooks.observe` shows.
        first_token: whether of the last layer only the first token's outputs
            are read, so that it computes no others.
    """

    input_mask: tf.Tensor
    training: bool = False
    seed: Optional[tf.Tensor] = None
    dtype: tf.DType = tf.float32
    step_seed: Optional[tf.Tensor] = None
    handed_on: Dict[str, Any] = dataclasses.field(default_factory=dict)
    share_layers: bool = False
    layer: Optional[TracedLayer] = None
    task: Optional[tf.Tensor] = None
    observes: bool = False
    first_token: bool = False

    def number_of(self, layer: int) -> Any:
        """The number to compute with of the layer that hooks call `layer`."""
        return layer if self.layer is None else self.layer.number


def dropout(
    x: tf.Tensor, rate: float, site: str, context: Context
) -> tf.Tensor:
    """Zeroes a share `rate` of `x` in training and scales up the rest.

    The bits depend on the context's seed, the name of the site and the shape
    only, so a step that is done again after a restart computes the same.
    """
    keep = keep_mask(tf.shape(x), rate, site, context)
    return x if keep is None else functional.drop(x, keep, rate)


def keep_mask(
    shape: tf.Tensor, rate: float, site: str, context: Context
) -> Optional[tf.Tensor]:
    """What dropout keeps at a site: bool of `shape`, or None for all."""
    if not context.training or rate == 0.0:
        return None
    return functional.keep_mask(
        shape, rate, seed_at(context.seed, site, context)
    )


def seed_at(seed: tf.Tensor, site: str, context: Context) -> tf.Tensor:
    """The seed of one site, int32 [2], from one of a whole forward pass."""
    layer, sites = context.layer, [site]
    if layer is not None and layer_of(site) is not None:
        sites = [rename_layer(site, other) for other in range(layer.count)]
    numbers = [zlib.crc32(site.encode()) & 0x7FFFFFFF for site in sites]
    number = tf.constant(numbers)[layer.number] if sites[1:] else numbers[0]
    return tf.stack([tf.bitwise.bitwise_xor(seed[0], number), seed[1]])


def layer_of(name: str) -> Optional[int]:
    """The number of the layer that a variable or a site names, if any."""
    match = LAYER.search(name)
    return int(match[1]) if match else None


def rename_layer(name: str, number: int) -> str:
    """The same variable or site, of another layer."""
    return LAYER.sub(f"layer_{number}", name)


class Hooks:
    """The seven places where a tuning method may act, its penalty, its start.

    Here each is the identity. A method's hooks define the places they need.
    `context` is the forward pass's `Context`.

    Attributes:
        places: names of the hooks that a class defines; filled in by itself.
            Hooks that pass on to others narrow it.
        alike: whether layers differ by the names of what they read alone.
        takes_rows: whether they compute in prediction as well with values of
            which each row has its own, [B, ...]. What does not is vectorized
            over rows, which takes longer.
        by_token: whether what they do to a token needs no other one, keys and
            values apart. Then a last layer of which only the first token is
            read computes that one alone.
        by_values: whether they do nothing where they read no variable: of the
            layer, or for `project` of that kernel's name. Then layers without
            any are computed as BERT's own.
    """

    places: FrozenSet[str] = frozenset()
    alike: ClassVar[bool] = False
    takes_rows = False
    by_token = False
    by_values = False

    def __init_subclass__(cls) -> None:
        cls.places = cls.places | {*PLACES, "penalty", "prepare"} & {*vars(cls)}

    def layer_kind(self, layer: int, training: bool) -> Optional[Hashable]:
        """What tells a layer's computation from that of other layers.

        Layers of one kind that read variables of the same names, but for the
        layer's number, share one function, which is traced for the first of
        them, with hooks of its own. There a layer gets what `handed_on` holds
        for it before the first layer, and what it hands on itself is gone
        after it. If it trains anything below the first layer, that is named
        `bert/embeddings/...`.

        To say nothing, None, is right too: each layer is traced by itself.
        """
        return ALIKE if self.alike else None

    def embeddings(self, hidden: tf.Tensor, context: Context) -> tf.Tensor:
        """Acts on float32 [B, T, D] after embedding LayerNorm and dropout."""
        return hidden

    def parameter(
        self, name: str, variable: tf.Variable, context: Context
    ) -> tf.Tensor:
        """The value to use wherever the pretrained variable `name` is read."""
        return tf.convert_to_tensor(variable)

    def project(
        self,
        name: str,
        inputs: tf.Tensor,
        dense: Callable[[tf.Tensor], tf.Tensor],
        context: Context,
    ) -> tf.Tensor:
        """Applies one of a layer's six kernels.

        Args:
            name: the kernel's scope, as
                `bert/encoder/layer_0/attention/self/query`; the variables that
                are read here are called `<name>/...`.
            inputs: float32 [B, T, D or I].
            dense: applies kernel and bias to such inputs.
            context: of this forward pass.

        Returns:
            float32 [B, T, D or I].
        """
        return dense(inputs)

    def key_value(
        self,
        layer: int,
        key: tf.Tensor,
        value: tf.Tensor,
        attention_bias: tf.Tensor,
        context: Context,
    ) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Acts before attention.

        Args:
            layer: index of the layer, from 0.
            key: float32 [B, N, T, H].
            value: float32 [B, N, T, H].
            attention_bias: float32 [B, 1, 1, T], added to the scores.
            context: of this forward pass.

        Returns:
            The three, possibly longer in T.
        """
        return key, value, attention_bias

    def before_norm(
        self,
        layer: int,
        site: str,
        inputs: tf.Tensor,
        outputs: tf.Tensor,
        layer_norm: Callable[[tf.Tensor], tf.Tensor],
        context: Context,
    ) -> Optional[tf.Tensor]:
        """What is added to a sublayer's outputs before they join its inputs.

        Args:
            layer: index of the layer, from 0.
            site: `attention` or `ffn`.
            inputs: float32 [B, T, D], what the sublayer read.
            outputs: float32 [B, T, D], after projection and dropout.
            layer_norm: the sublayer's LayerNorm, which comes after the sum.
            context: of this forward pass.

        Returns:
            float32 [B, T, D], or None for nothing.
        """
        return None

    def after_norm(
        self, layer: int, site: str, hidden: tf.Tensor, context: Context
    ) -> Optional[tf.Tensor]:
        """What is added to what a sublayer's LayerNorm makes of the sum.

        Args:
            layer: index of the layer, from 0.
            site: `attention` or `ffn`.
            hidden: float32 [B, T, D], what the LayerNorm gave.
            context: of this forward pass.

        Returns:
            float32 [B, T, D], or None for nothing.
        """
        return None

    def observe(self, context: Context) -> Dict[str, tf.Tensor]:
        """What there is to see of a batch, after a forward pass `observes`.

        Returns:
            float32 [B, ...], by name.
        """
        return {}

    def vocabulary(self, hidden: tf.Tensor, context: Context) -> tf.Tensor:
        """Acts on what meets the vocabulary's matrix in a masked-LM head.

        Args:
            hidden: float32 [B, K, D] of K masked tokens, after the head's
                dense layer, activation and LayerNorm.
            context: of this forward pass.

        Returns:
            float32 [B, K, D], of which the product with the word embeddings
            makes logits.
        """
        return hidden

    def penalty(self, context: Context) -> Optional[tf.Tensor]:
        """What the method adds to a training's loss, float32 [], or None."""
        return None

    def prepare(self, context: Context) -> Dict[str, tf.Tensor]:
        """What is the same for all rows of a training step, made once for it.

        A step's rows are computed in groups; what depends on variables and
        `context.step_seed` alone, and is expensive, need not be made in each.
        Gradients of the groups are added up and then go through here. So a
        trained variable that is read here must not be read elsewhere in
        training.

        Returns:
            Tensors that every group's `context.handed_on` begins with.
        """
        return {}


class NoHooks(Hooks):
    """BERT as it is."""

    alike = True
    by_token = True
    by_values = True


def join_sublayer(
    hooks: Hooks,
    layer: int,
    site: str,
    inputs: tf.Tensor,
    outputs: tf.Tensor,
    layer_norm: Callable[[tf.Tensor], tf.Tensor],
    context: Context,
) -> tf.Tensor:
    """What the next sublayer reads, float32 [B, T, D].

    Arguments as of `Hooks.before_norm`.
    """
    added = hooks.before_norm(layer, site, inputs, outputs, layer_norm, context)
    if added is not None:
        outputs += added
    hidden = layer_norm(inputs + outputs)
    added = hooks.after_norm(layer, site, hidden, context)
    return hidden if added is None else hidden + added
