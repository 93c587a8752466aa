"""Published models that are BERTs but for names, sizes and parts left out."""

import dataclasses
from collections.abc import Mapping
from typing import Any

# Ends of a Hugging Face name -> ends of Google's; of two of theirs with one
# meaning the first is written.
DENSE = {"weight": "kernel", "bias": "bias"}
LAYER_NORM = {
    "weight": "gamma",
    "gamma": "gamma",
    "bias": "beta",
    "beta": "beta",
}
OUTPUT = {"weight": "weights", "bias": "bias"}
# The beginning of a Hugging Face name, Google's name, the ends of both. The
# numbers of layers are `{layer}`, the end is `{end}`.
Scope = tuple[str, str, Mapping[str, str]]

TRANSFORM = "cls/predictions/transform"
# From the embeddings' size to the layers'.
PROJECTION = "bert/embeddings/projection"
# Of an MPNet: scores of attention by the distance of two tokens.
RELATIVE_BIAS = "bert/embeddings/relative_attention_bias"
OUTPUT_BIAS = "cls/predictions/output_bias"
# The masked-LM head's matrix where it is not the word embeddings.
OUTPUT_WEIGHTS = "cls/predictions/output_weights"
# BERT's scopes in a layer, in the order of the names that `_scopes` takes.
_PLACES = (
    "attention/self/query",
    "attention/self/key",
    "attention/self/value",
    "attention/output/dense",
    "attention/output/LayerNorm",
    "intermediate/dense",
    "output/dense",
    "output/LayerNorm",
)
# A layer of a head in place of a pooler.
FIRST_OF_HEAD = "hidden_{end}_0"


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Holds the differences between a kind of model and BERT.

    Attributes:
        prefix: before names of Hugging Face models that have more than the
            encoder.
        classes: how names of transformers' classes begin; the first is written.
        keys: a field of `BertConfig` -> its key in `config.json`, if another.
        more_keys: fields of `BertConfig` that `config.json` has besides BERT's.
        fixed: fields of `BertConfig` with one value in all such models.
        expected: keys of `config.json` with the one value that is computed
            here, which is the default.
        scopes: of variables that BERT's names do not cover.
        biases: names of the masked-LM head's bias. The first one is written,
            the last one stands next to the head's matrix.
        texts: modules of the dense layers of a head of texts, first to last.
        modules: a module of BERT -> this model's, where AdapterHub's library
            puts adapters, if it is of no variable.
        prefixes: the library's name of the place of prefixes.
        in_adapterhub: whether the library has such models.
    """

    prefix: str
    classes: tuple[str, ...]
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    more_keys: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    expected: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scopes: tuple[Scope, ...] = ()
    biases: tuple[str, ...] = ()
    texts: tuple[str, ...] = ("classifier",)
    choices: tuple[str, ...] = ("classifier",)
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prefixes: str = "self_prefix"
    in_adapterhub: bool = True

    @property
    def decoder(self) -> str:
        """Names the matrix of the masked-LM head."""
        return f"{self.biases[-1].removesuffix('bias')}weight"


# Source of each: transformers 4.57, `modeling_<model_type>.py`; of `modules`
# the like in `adapters` 1.3.
BERT = Architecture(
    "bert.",
    ("Bert",),
    biases=("cls.predictions.bias", "cls.predictions.decoder.bias"),
)
ROBERTA = Architecture(
    "roberta.",
    ("Roberta", "XLMRoberta", "Camembert"),
    scopes=(
        ("lm_head.dense", f"{TRANSFORM}/dense/{{end}}", DENSE),
        ("lm_head.layer_norm", f"{TRANSFORM}/LayerNorm/{{end}}", LAYER_NORM),
    ),
    biases=("lm_head.bias", "lm_head.decoder.bias"),
    # A head of texts has two layers, a head of choices has the pooler.
    texts=("classifier.dense", "classifier.out_proj"),
    choices=("roberta.pooler.dense", "classifier"),
)
_OURS = "bert/encoder/layer_{layer}"


def _scopes(theirs: str, names: str, ours: str = _OURS) -> list[Scope]:
    """Pairs a layer's scopes with BERT's; names are in `_PLACES`' order."""
    return [
        (
            f"{theirs}.{name}",
            f"{ours}/{place}/{{end}}",
            LAYER_NORM if "Norm" in place else DENSE,
        )
        for name, place in zip(names.split(), _PLACES)
    ]


MPNET = dataclasses.replace(
    ROBERTA,
    prefix="mpnet.",
    classes=("MPNet",),
    more_keys=("relative_attention_num_buckets",),
    # transformers' program counts so, whatever a config says.
    fixed={
        "type_vocab_size": 0,
        "first_position": 2,
        "relative_attention_num_buckets": 32,
    },
    expected={"relative_attention_num_buckets": 32},
    scopes=(
        *_scopes(
            "encoder.layer.{layer}.attention",
            "attn.q attn.k attn.v attn.o LayerNorm",
        ),
        (
            "encoder.relative_attention_bias",
            f"{RELATIVE_BIAS}/{{end}}",
            {"weight": "weights"},
        ),
        *ROBERTA.scopes,
    ),
    choices=("mpnet.pooler.dense", "classifier"),
    in_adapterhub=False,
)
_LAYER = "transformer.layer.{layer}"
DISTILBERT = Architecture(
    "distilbert.",
    ("DistilBert",),
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    fixed={
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-12,
        "head_activation": "relu",
    },
    scopes=(
        *_scopes(
            _LAYER,
            "attention.q_lin attention.k_lin attention.v_lin attention.out_lin "
            "sa_layer_norm ffn.lin1 ffn.lin2 output_layer_norm",
        ),
        ("vocab_transform", f"{TRANSFORM}/dense/{{end}}", DENSE),
        ("vocab_layer_norm", f"{TRANSFORM}/LayerNorm/{{end}}", LAYER_NORM),
    ),
    biases=("vocab_projector.bias",),
    texts=("pre_classifier", "classifier"),
    choices=("pre_classifier", "classifier"),
    modules={
        "encoder.layer.{layer}.attention.self": f"{_LAYER}.attention",
        "encoder.layer.{layer}.attention.output": (
            f"{_LAYER}.attention_adapters"
        ),
        "encoder.layer.{layer}.output": f"{_LAYER}.output_adapters",
        "encoder.layer.{layer}": _LAYER,
    },
    prefixes="self",
)
ELECTRA = Architecture(
    "electra.",
    ("Electra",),
    more_keys=("embedding_size",),
    fixed={"head_activation": "gelu_erf"},
    scopes=(
        ("embeddings_project", f"{PROJECTION}/{{end}}", DENSE),
        ("generator_predictions.dense", f"{TRANSFORM}/dense/{{end}}", DENSE),
        (
            "generator_predictions.LayerNorm",
            f"{TRANSFORM}/LayerNorm/{{end}}",
            LAYER_NORM,
        ),
    ),
    biases=("generator_lm_head.bias",),
    texts=("classifier.dense", "classifier.out_proj"),
    choices=("sequence_summary.summary", "classifier"),
)
_GROUP = "encoder.albert_layer_groups.0.albert_layers.0"
ALBERT = Architecture(
    "albert.",
    ("Albert",),
    more_keys=("embedding_size", "num_hidden_groups"),
    fixed={"num_hidden_groups": 1},
    expected={"num_hidden_groups": 1, "inner_group_num": 1},
    scopes=(
        (
            "encoder.embedding_hidden_mapping_in",
            f"{PROJECTION}/{{end}}",
            DENSE,
        ),
        *_scopes(
            _GROUP,
            "attention.query attention.key attention.value attention.dense "
            "attention.LayerNorm ffn ffn_output full_layer_layer_norm",
            "bert/encoder/group_0",
        ),
        ("pooler", "bert/pooler/dense/{end}", DENSE),
        ("predictions.dense", f"{TRANSFORM}/dense/{{end}}", DENSE),
        ("predictions.LayerNorm", f"{TRANSFORM}/LayerNorm/{{end}}", LAYER_NORM),
    ),
    biases=("predictions.bias", "predictions.decoder.bias"),
    modules={
        "encoder.layer.0.attention.self": f"{_GROUP}.attention",
        "encoder.layer.0.attention.output": (
            f"{_GROUP}.attention.attention_adapters"
        ),
        "encoder.layer.0.output": f"{_GROUP}.output_adapters",
        "encoder.layer.0": _GROUP,
    },
)
# `model_type` of a config -> what it is.
ARCHITECTURES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "albert": ALBERT,
    "mpnet": MPNET,
}
