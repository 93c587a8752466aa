"""Sizes of a BERT or a model like it, and what else decides its outputs."""

import dataclasses
import re
from typing import Any, Callable, Union

from adapter_bert import files
from adapter_bert.bert import functional
from adapter_bert.bert.architectures import (
    ARCHITECTURES,
    BERT,
    ELECTRA,
    ROBERTA,
)
from adapter_bert.errors import UserError

# As variables and sites of dropout name their layer.
LAYER = re.compile(r"(?<![^/])layer_(\d+)(?![^/])")
# What transformers take where a RoBERTa's config does not say it.
ROBERTA_PADDING = 1

DROPOUT = lambda x: 0 <= x <= 0.99, "a number from 0 to 0.99"
# What holds of fields that are no whole numbers, and the words for it.
NUMBERS = {
    "hidden_dropout_prob": DROPOUT,
    "attention_probs_dropout_prob": DROPOUT,
    "initializer_range": (lambda x: x > 0, "a positive number"),
    "layer_norm_eps": (
        lambda x: 0 < x <= 0.01,
        "a number above 0, at most 0.01",
    ),
}
# Least and greatest of sizes that do not go from 1 to 10^7.
SIZES = {
    "num_hidden_layers": (1, 1000),
    "type_vocab_size": (0, 10**7),
    "embedding_size": (0, 10**7),
    "num_hidden_groups": (0, 1),
    "relative_attention_num_buckets": (0, 10**7),
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Holds a BERT's sizes under the key names of Google's JSON files.

    `first_position` is the number of the first token's position embedding: 0 in
    BERT, one more than the padding token's id in RoBERTa and MPNet. A head of
    texts reads a pooler, or has a layer of its own: with `head_activation` if
    there is one, with tanh in RoBERTa; a head of choices has
    `choice_activation`, if any. `embedding_size` is 0 without a projection.
    `num_hidden_groups` is 1 if all layers share their variables, else 0.
    `relative_attention_num_buckets` counts an MPNet's ranges of distances, each
    with scores of its own. `pooler` is false of a BERT that was saved without
    one. `hidden_act` is a name, or an elementwise function.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Union[str, Callable] = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = functional.LAYER_NORM_EPSILON
    tie_word_embeddings: bool = True
    first_position: int = 0
    head_activation: str = ""
    embedding_size: int = 0
    num_hidden_groups: int = 0
    relative_attention_num_buckets: int = 0
    pooler: bool = True
    choice_activation: str = ""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least, limit = SIZES.get(field.name, (1, 10**7))
            if field.name == "first_position":
                # At least one position is left.
                least, limit = 0, self.max_position_embeddings - 1
            if field.type is int and not (
                type(value) is int and least <= value <= limit
            ):
                raise UserError(
                    f"BERT config: {field.name} is {value!r}, expected a "
                    f"whole number from {least} to {limit}"
                )
            if field.type is bool and type(value) is not bool:
                raise UserError(
                    f"BERT config: {field.name} is {value!r}, expected true or "
                    "false"
                )
        for name, (holds, expected) in NUMBERS.items():
            value = getattr(self, name)
            if type(value) not in (int, float) or not holds(value):
                raise UserError(
                    f"BERT config: {name} is {value!r}, expected {expected}"
                )
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"BERT config: hidden_size {self.hidden_size} is not a "
                f"multiple of num_attention_heads {self.num_attention_heads}"
            )
        functional.activation(self.hidden_act)
        for name in (self.head_activation, self.choice_activation):
            if name:
                functional.activation(name)

    @property
    def embedding_width(self) -> int:
        return self.embedding_size or self.hidden_size

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def is_roberta(self) -> bool:
        """Tells a RoBERTa or MPNet, which have positions of padding."""
        return self.first_position > 0

    def variable(self, name: str) -> str:
        """Names BERT's own variable, or scope, that a layer reads under a name.

        Groups of layers may share theirs.
        """
        return LAYER.sub("group_0", name) if self.num_hidden_groups else name

    @property
    def model_type(self) -> str:
        """Names it as `ARCHITECTURES` does; XLM-R, CamemBERT: `roberta`."""
        for name, architecture in ARCHITECTURES.items():
            fixed = architecture.fixed.items()
            if fixed and all(getattr(self, k) == value for k, value in fixed):
                return name
        return "roberta" if self.is_roberta else "bert"

    @property
    def has_pooler(self) -> bool:
        return self.pooler and not (self.is_roberta or self.head_activation)

    @property
    def for_choices(self) -> "BertConfig":
        """Gives the same model, as a head of choices reads it."""
        activation = self.choice_activation or self.head_activation
        return dataclasses.replace(self, head_activation=activation)

    @property
    def max_tokens(self) -> int:
        return self.max_position_embeddings - self.first_position

    @classmethod
    def from_json_file(cls, path: str) -> "BertConfig":
        """Reads Google's `bert_config.json` or Hugging Face's `config.json`.

        Keys that do not describe the encoder are ignored, but not those that
        would change what it computes.
        """
        values = files.read_json(path, "the BERT config")
        if not isinstance(values, dict):
            raise UserError(f"{path} holds no JSON object of BERT sizes")
        # Google's ALBERTs do not say it.
        unsaid = "albert" if values.get("num_hidden_groups") else "bert"
        model_type = values.get("model_type") or unsaid
        architecture = ARCHITECTURES.get(str(model_type), BERT)
        for key, choices in (
            ("model_type", tuple(ARCHITECTURES)),
            ("position_embedding_type", ("absolute",)),
            # A decoder's tokens do not see those behind them.
            ("is_decoder", (False,)),
            *((key, (value,)) for key, value in architecture.expected.items()),
        ):
            # Hugging Face writes null for what is not set.
            if values.get(key) not in (None, *choices):
                raise UserError(
                    f"{path}: {key} is {values[key]!r}, but only "
                    f"{' or '.join(map(repr, choices))} can be computed here"
                )
        names = [field.name for field in dataclasses.fields(cls)]
        names = [
            *names[: names.index("first_position")],
            *architecture.more_keys,
        ]
        keys = {name: architecture.keys.get(name, name) for name in names}
        needed = [*names[: names.index("hidden_act")], *architecture.more_keys]
        missing = [keys[name] for name in needed if keys[name] not in values]
        if missing:
            raise UserError(
                f"{path} lacks {', '.join(missing)}: it is not a BERT config"
            )
        sizes = {
            name: values[key] for name, key in keys.items() if key in values
        }
        if sizes.get("tie_word_embeddings", True) is None:
            del sizes["tie_word_embeddings"]
        for name in ("type_vocab_size", "embedding_size"):
            # A model that lacks them says nothing of them.
            if sizes.get(name) == 0 and name not in architecture.fixed:
                raise UserError(
                    f"{path}: {name} is 0, expected a whole number from 1 on"
                )
        if "model_type" in values and sizes.get("hidden_act") == "gelu":
            sizes["hidden_act"] = "gelu_erf"
        # A model without a projection says the same size twice.
        if (
            architecture is ELECTRA
            and sizes["embedding_size"] == sizes["hidden_size"]
        ):
            sizes["embedding_size"] = 0
        first = _first_position(values, path) if architecture is ROBERTA else 0
        if architecture is ELECTRA:
            sizes["choice_activation"] = _choice_activation(values, path)
        return cls(**{**sizes, "first_position": first, **architecture.fixed})


def _first_position(values: dict[str, Any], path: str) -> int:
    """Counts as transformers' `create_position_ids_from_input_ids`."""
    padding = values.get("pad_token_id", ROBERTA_PADDING)
    if type(padding) is not int or padding < 0:
        raise UserError(
            f"{path}: pad_token_id is {padding!r}, expected the id of the "
            "padding token, after which positions are counted"
        )
    return padding + 1


def _choice_activation(values: dict[str, Any], path: str) -> str:
    """Reads an ELECTRA's as transformers' `ElectraSequenceSummary`."""
    classes = str(values.get("architectures"))
    for key, expected in (
        ("summary_type", "first"),
        ("summary_use_proj", True),
    ):
        # Other heads have no summary.
        if (
            "MultipleChoice" in classes
            and values.get(key, expected) != expected
        ):
            raise UserError(
                f"{path}: {key} is {values[key]!r}, but the head of choices "
                f"can be computed with {expected!r} alone"
            )
    name = values.get("summary_activation", "gelu") or "linear"
    usual = ELECTRA.fixed["head_activation"]
    name = usual if name == "gelu" else name
    return "" if same_activation(name, usual) else name


def same_activation(one: Any, other: Any) -> bool:
    """Tells whether two values of `hidden_act` mean one function."""
    names = functional.ACTIVATIONS
    are_known = all(isinstance(x, str) and x in names for x in (one, other))
    return are_known and names[one] is names[other]
