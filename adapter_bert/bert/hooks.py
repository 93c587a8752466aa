"""Places where a tuning method may change what BERT computes.

Every layer and hook is given a `Context`, on which alone dropout depends.
Dimension letters are those of `encoder.py`.
"""

import dataclasses
import zlib
from collections.abc import Hashable, Mapping
from typing import Any, Callable, ClassVar, Optional

import tensorflow as tf

from adapter_bert.bert import functional
from adapter_bert.bert.config import LAYER, BertConfig

NamedTensors = dict[str, tf.Tensor]
# The kind of layers that differ by the names of their variables alone.
ALIKE = "alike"
# In a mask, a virtual token whose output heads read as the first token's.
READ = 2
# Where methods act on BERT: names of methods of `Hooks`.
PLACES = (
    "words",
    "embeddings",
    "lengthen",
    "parameter",
    "project",
    "key_value",
    "before_norm",
    "after_norm",
    "vocabulary",
)


@dataclasses.dataclass(frozen=True)
class TracedLayer:
    """Has number, int32 [], and `count` of layers for a shared function."""

    number: tf.Tensor
    count: int


@dataclasses.dataclass(frozen=True)
class Context:
    """Holds what every layer and hook is given in one forward pass.

    Attributes:
        input_mask: int32 [B, T], 1 for a token and 0 for padding.
        training: Whether dropout acts.
        seed: int32 [2], the seed of this step's dropout; needed in training.
        dtype: of products and activations; weights, LayerNorm, softmax and
            the loss stay float32.
        step_seed: int32 [2], a seed that is the same for all rows of this
            step's batch, wherever they are computed; needed in training.
        handed_on: values that `Hooks.prepare` and `Hooks.begin` have made. A
            name with a `layer_<number>` in it is for that layer alone.
        layer_input: float32 [B, T, D], in a layer the hidden states it reads.
        share_layers: whether layers of one kind are calls of one function.
        recompute_layers: whether layers that have a kind are computed again in
            the backward pass, under XLA.
        layer: within such a function, the layer that is computed.
        task: in a run of several tasks, int32 [], the task of all rows.
        show: takes name and value of what `Hooks.observe` is to be given.
        first_token: whether the last layer computes the first token alone.
        differentiates_inputs: whether the outputs have a gradient by what the
            layers read, in predictions too.
    """

    input_mask: tf.Tensor
    training: bool = False
    seed: Optional[tf.Tensor] = None
    dtype: tf.DType = tf.float32
    step_seed: Optional[tf.Tensor] = None
    handed_on: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layer_input: Optional[tf.Tensor] = None
    share_layers: bool = False
    recompute_layers: bool = False
    layer: Optional[TracedLayer] = None
    task: Optional[tf.Tensor] = None
    observes: bool = False
    show: Optional[Callable[[str, tf.Tensor], None]] = None
    first_token: bool = False
    differentiates_inputs: bool = False


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One of a layer's six kernels, or the pooler's, with its bias.

    A call applies both, float32 [B, T, inputs] -> [B, T, outputs], in a stack
    with the changes of the methods before. `read` gives BERT's own `kernel`
    [inputs, outputs] or `bias` [outputs].
    """

    apply: functional.OfTensor
    read: Callable[[str], tf.Tensor]

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.apply(inputs)


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
) -> Optional[functional.Keep]:
    """Draws the elements that dropout keeps: bool of `shape`, or None for all.

    On an accelerator a function that draws them, for each pass anew.
    """
    if not context.training or rate == 0.0:
        return None
    return functional.draw_mask(
        shape, rate, seed_at(context.seed, site, context)
    )


def seed_at(seed: tf.Tensor, site: str, context: Context) -> tf.Tensor:
    """Gives the seed of one site, int32 [2], from that of a whole pass."""
    layer, sites = context.layer, [site]
    if layer is not None and layer_of(site) is not None:
        sites = [rename_layer(site, other) for other in range(layer.count)]
    numbers = [zlib.crc32(site.encode()) & 0x7FFFFFFF for site in sites]
    number = tf.constant(numbers)[layer.number] if sites[1:] else numbers[0]
    return tf.stack([tf.bitwise.bitwise_xor(seed[0], number), seed[1]])


def layer_of(name: str) -> Optional[int]:
    """Gives the number of the layer that a variable or a site names, if any."""
    match = LAYER.search(name)
    return int(match[1]) if match else None


def rename_layer(name: str, number: int) -> str:
    """Gives the same variable or site, of another layer."""
    return LAYER.sub(f"layer_{number}", name)


class Hooks:
    """Nine places where a tuning method may act, its penalty, its start.

    Here each is the identity. A method's hooks define the places they need.
    `context` is the forward pass's `Context`, `layer` a number from 0.

    Attributes:
        places: names of the hooks that a class defines; filled in by itself.
            Hooks that pass on to others narrow it.
        alike: whether layers differ by the names of their variables alone.
        takes_rows: whether they predict as well if each row has its own
            values, [B, ...]. Others are vectorized over rows, which is slower.
        by_token: whether they treat each token by itself, keys and values
            apart. Then the last layer may compute the first token alone.
        by_values: whether they do nothing where they have no variable: of the
            layer, or for `project` of the kernel's name. Then layers without
            any are computed as BERT's own.
    """

    places: frozenset[str] = frozenset()
    alike: ClassVar[bool] = False
    takes_rows = False
    by_token = False
    by_values = False

    def __init__(
        self,
        method: Any = None,
        config: Optional[BertConfig] = None,
        values: Optional[Mapping[str, Any]] = None,
    ):
        """Takes the method, the BERT's sizes, and the method's values by name.

        For a layer alone, values of other layers are missing.
        """
        self.method, self.config, self.values = method, config, values

    def __init_subclass__(cls) -> None:
        others = ("begin", "penalty", "prepare")
        cls.places = cls.places | {*PLACES, *others} & {*vars(cls)}

    def layer_kind(self, layer: int, training: bool) -> Optional[Hashable]:
        """Gives a value that differs between layers that compute differently.

        Layers of one kind that read variables of the same names, but for the
        layer's number, share one function, which is traced for the first of
        them, with hooks of its own. None: each is traced by itself.
        """
        return ALIKE if self.alike else None

    def words(
        self,
        input_ids: tf.Tensor,
        embed: functional.OfTensor,
        context: Context,
    ) -> tf.Tensor:
        """Gives the word embeddings of int32 [B, T], float32 [B, T, E].

        `embed` does so with BERT's own, of ids below V.
        """
        return embed(input_ids)

    def embeddings(self, hidden: tf.Tensor, context: Context) -> tf.Tensor:
        """Acts on float32 [B, T, E] after embedding LayerNorm and dropout."""
        return hidden

    def lengthen(
        self, hidden: tf.Tensor, context: Context
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Adds virtual tokens to what the first layer reads.

        Takes float32 [B, T, D]. Gives float32 [B, T + P, D] and its mask,
        int32 [B, T + P]. The other hooks have this mask in their context.
        Heads see what becomes of the first T alone, in the first's place what
        becomes of a token with `READ` in the mask. Hooks that act here are not
        `by_values`, and with `READ` not `by_token`.
        """
        return hidden, context.input_mask

    def parameter(
        self, name: str, variable: tf.Variable, context: Context
    ) -> tf.Tensor:
        """Gives the value to use wherever the pretrained `name` is read."""
        return tf.convert_to_tensor(variable)

    def project(
        self, name: str, inputs: tf.Tensor, dense: Kernel, context: Context
    ) -> tf.Tensor:
        """Applies one of a layer's six kernels, by default `dense(inputs)`.

        The pooler's comes after the layers, without what `begin` makes. `name`
        is the kernel's scope, as `bert/encoder/layer_0/attention/self/query`,
        or `bert/pooler/dense`; variables that are read here are called
        `<name>/...`. `inputs` and outputs are float32 [B, T, D or I], of the
        pooler [B, 1, D]. Mixed batches share what `dense` gives for `inputs`.
        """
        return dense(inputs)

    def key_value(
        self,
        layer: int,
        key: tf.Tensor,
        value: tf.Tensor,
        attention_bias: tf.Tensor,
        context: Context,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Acts before attention: gives the three, possibly longer in T.

        Keys and values are float32 [B, N, T, H]; the bias, which is added to
        scores, is float32 [B, 1, 1, T], or [B, N, T, T] in an MPNet.
        """
        return key, value, attention_bias

    def before_norm(
        self,
        layer: int,
        site: str,
        inputs: tf.Tensor,
        outputs: tf.Tensor,
        layer_norm: functional.OfTensor,
        context: Context,
    ) -> Optional[tf.Tensor]:
        """Adds to a sublayer's outputs before they join its inputs.

        `site` is `attention` or `ffn`, `inputs` the sublayer's, `outputs` are
        after projection and dropout, and `layer_norm` comes after the sum.
        Takes and gives float32 [B, T, D], or gives None for nothing.
        """
        return None

    def after_norm(
        self, layer: int, site: str, hidden: tf.Tensor, context: Context
    ) -> Optional[tf.Tensor]:
        """Adds to the output `hidden` of a sublayer's LayerNorm.

        Takes and gives float32 [B, T, D], or gives None for nothing.
        """
        return None

    def vocabulary(self, hidden: tf.Tensor, context: Context) -> tf.Tensor:
        """Acts on the tensor that a masked-LM head multiplies by words.

        That is float32 [B, K, E] of K masked tokens, after the head's dense
        layer, activation and LayerNorm.
        """
        return hidden

    def observe(
        self, shown: Mapping[str, tf.Tensor], context: Context
    ) -> NamedTensors:
        """Gives values of a batch for people to see, float32 [B, ...] by name.

        `shown` has what hooks gave `context.show`.
        """
        return {}

    def penalty(self, context: Context) -> Optional[tf.Tensor]:
        """Gives an addend of a training's loss, float32 [], or None."""
        return None

    def begin(self, context: Context) -> NamedTensors:
        """Makes tensors for each layer's `context.handed_on`, once a pass."""
        return {}

    def prepare(self, context: Context) -> NamedTensors:
        """Makes tensors for `context.handed_on` that all rows of a step share.

        They depend on variables and `context.step_seed` alone. Gradients of the
        groups of rows are added up and then go through here, so a trained
        variable that is read here must not be read elsewhere in training.
        """
        return {}


class NoHooks(Hooks):
    """Changes nothing: BERT as it is."""

    alike = True
    by_token = True
    by_values = True


class TokenHooks(Hooks):
    """Changes each token by itself, by a layer's own values alone."""

    alike = True
    takes_rows = True
    by_token = True
    by_values = True
