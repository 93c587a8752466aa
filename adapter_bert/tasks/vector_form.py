"""Form of a text's vector: prompt, pooling, dense layers, length.

Trainings, exports, folders of sentence-transformers and the server share it.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from adapter_bert.bert import functional
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError

CLS, MEAN, TOKENS = "cls", "mean", "tokens"
# Squared lengths below count as this one.
SMALLEST = 1e-24
# The name of a prompt that had none.
DEFAULT = "default"
# Names of two prompts, as sentence-transformers has them.
QUERY, DOCUMENT = "query", "document"


def pool(
    states: tf.Tensor, mask: tf.Tensor, pooling: str, left_out: int = 0
) -> tf.Tensor:
    """Pools states of texts' tokens: float32 [B, T, D] -> [B, D].

    `mask` is int32 [B, T], 1 for a token. `pooling` is `cls` for the first
    token, or `mean` over all, special ones included, but the first `left_out`.
    """
    states, mask = states[:, left_out:], mask[:, left_out:]
    if pooling == CLS:
        return states[:, 0]
    weights = tf.cast(mask, tf.float32)[..., tf.newaxis]
    count = tf.reduce_sum(weights, axis=1)
    return tf.reduce_sum(states * weights, axis=1) / count


def unit_mean(states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Pools as `pool` with `mean`, to vectors of length 1."""
    means = pool(tf.cast(states, tf.float32), mask, MEAN)
    return tf.math.l2_normalize(means, 1, SMALLEST)


@dataclasses.dataclass(frozen=True)
class Dense:
    """A dense layer after the pooling, from `in_features` to `out_features`.

    `values` are float32 [in, out] and [out], or none where an adapter has them.
    """

    in_features: int
    out_features: int
    bias: bool
    activation: str
    values: tuple[np.ndarray, ...] = dataclasses.field(
        default=(), compare=False, repr=False
    )

    def variables(self, number: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            f"dense_{number}/kernel": (self.in_features, self.out_features)
        }
        if self.bias:
            shapes[f"dense_{number}/bias"] = (self.out_features,)
        return shapes

    def describe(self) -> dict[str, Any]:
        fields = (x.name for x in dataclasses.fields(self) if x.compare)
        return {name: getattr(self, name) for name in fields}


def create_layers(dense: Sequence[Dense], create: Callable) -> list[list[Any]]:
    """Creates the variables of dense layers, which begin with their values."""
    made = []
    for number, layer in enumerate(dense):
        names = enumerate(layer.variables(number).items())
        made.append(
            [
                create(name, shape, lambda *_, x=layer, i=i: x.values[i])
                for i, (name, shape) in names
            ]
        )
    return made


def constants(name: str, shape: Any, initializer: Callable) -> tf.Tensor:
    """Creates a variable of `create_layers` as a constant, float32."""
    return tf.constant(initializer(), tf.float32)


def apply_layers(
    dense: Sequence[Dense], values: Sequence[Sequence[Any]], vectors: tf.Tensor
) -> tf.Tensor:
    """Applies dense layers to vectors, float32 [B, D] -> [B, width]."""
    for layer, (kernel, *bias) in zip(dense, values):
        vectors = tf.matmul(vectors, kernel)
        if bias:
            vectors = vectors + bias[0]
        vectors = functional.ACTIVATIONS[layer.activation](vectors)
    return vectors


@dataclasses.dataclass(frozen=True)
class Pooled:
    """Says how texts and the last layer's outputs become vectors.

    Attributes:
        pooling: `cls` for the first token's, `mean` for the mean over tokens.
        max_seq_length: longest input in tokens; None for all positions.
        prompts: texts that may stand before each text, by name.
        include_prompt: whether the prompt's tokens are pooled; if not, neither
            is the first special token.
        similarity_fn_name: how vectors are compared, for other programs.
        dense: layers between pooling and normalization.
        document_prompt: name of the prompt before documents, if not default.
        sizes: entries to which vectors may be cut; none for whole ones alone.
    """

    pooling: str
    normalize: bool
    max_seq_length: Optional[int] = None
    prompts: Mapping[str, str] = dataclasses.field(
        default_factory=dict, hash=False
    )
    default_prompt_name: Optional[str] = None
    include_prompt: bool = True
    similarity_fn_name: Optional[str] = None
    dense: tuple[Dense, ...] = ()
    document_prompt: Optional[str] = None
    sizes: tuple[int, ...] = ()

    def prompt(self, chosen: Optional[str] = None) -> str:
        """Returns the text before a text; None chooses the default one."""
        if chosen is None:
            return self.prompts.get(self.default_prompt_name or "", "")
        if chosen in self.prompts:
            return self.prompts[chosen]
        if re.fullmatch(r"[\w-]+", chosen):
            names = ", ".join(self.prompts)[:200] or "none"
            raise UserError(
                f"no prompt is called {chosen[:80]!r}, there are: {names}; a "
                "prompt's text ends with a blank or a colon, as 'query: '"
            )
        return chosen

    def with_default(self, prompt: str) -> "Pooled":
        if prompt == self.prompt():
            return self
        if not prompt:
            return dataclasses.replace(self, default_prompt_name=None)
        names = (n for n, text in self.prompts.items() if text == prompt)
        name = next(names, DEFAULT)
        prompts = {**self.prompts, name: prompt}
        return dataclasses.replace(
            self, prompts=prompts, default_prompt_name=name
        )

    def with_prompts(self, query: str, document: str) -> "Pooled":
        """Changes the texts before queries and before documents."""
        if query == document:
            form = self.with_default(query)
            return dataclasses.replace(form, document_prompt=None)
        prompts = {**self.prompts, QUERY: query, DOCUMENT: document}
        return dataclasses.replace(
            self,
            prompts=prompts,
            default_prompt_name=QUERY,
            document_prompt=DOCUMENT,
        )

    def left_out(
        self, prompt: str, tokenizer: TextTokenizer, max_seq_length: int
    ) -> int:
        """Counts the first tokens that are not pooled."""
        if not prompt:
            return 0
        [ids] = tokenizer.encode_ids([prompt])
        if len(ids) + 3 > max_seq_length:
            raise UserError(
                f"the prompt {prompt[:80]!r} has {len(ids)} tokens, which "
                f"leaves no room for a text in {max_seq_length}; pass a larger "
                "--max_seq_length, or a shorter prompt"
            )
        return 0 if self.include_prompt else 1 + len(ids)

    def width(self, hidden_size: int) -> int:
        return self.dense[-1].out_features if self.dense else hidden_size

    def describe(self) -> dict[str, Any]:
        """Describes all that is unusual, but the length of inputs."""
        described = {"pooling": self.pooling, "normalize": self.normalize}
        usual = Pooled(self.pooling, self.normalize, self.max_seq_length)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != getattr(usual, field.name):
                described[field.name] = value
        if self.dense:
            described["dense"] = [layer.describe() for layer in self.dense]
        if self.sizes:
            described["sizes"] = list(self.sizes)
        return described

    @classmethod
    def restore(cls, described: Mapping[str, Any], source: str) -> "Pooled":
        values = {
            field.name: described[field.name]
            for field in dataclasses.fields(cls)
            if field.name in described and field.name != "max_seq_length"
        }
        form = cls(**{"pooling": None, "normalize": None, **values})
        try:
            form = dataclasses.replace(
                form,
                dense=tuple(Dense(**layer) for layer in form.dense),
                sizes=tuple(form.sizes),
            )
            form._check()
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{source}: the form of vectors is {str(described)[:200]}; "
                "expected cls or mean, true or false for normalize, prompts by "
                "name, dense layers that fit each other, and sizes above 0"
            ) from error
        return form

    def _check(self) -> None:
        widths = [
            x for d in self.dense for x in (d.in_features, d.out_features)
        ]
        names = self.default_prompt_name, self.document_prompt
        is_right = (
            self.pooling in (CLS, MEAN)
            and type(self.normalize) is bool
            and type(self.include_prompt) is bool
            and isinstance(self.prompts, dict)
            and all(isinstance(text, str) for text in self.prompts.values())
            and {*names} <= {None, *self.prompts}
            and isinstance(self.similarity_fn_name, (str, type(None)))
            and all(type(x) is int and x > 0 for x in (*widths, *self.sizes))
            and widths[1:-1:2] == widths[2::2]
            and all(
                type(layer.bias) is bool
                and layer.activation in functional.ACTIVATIONS
                for layer in self.dense
            )
        )
        if not is_right:
            raise ValueError
