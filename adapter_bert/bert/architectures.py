"""Published models that are BERTs but for names, sizes and parts left out.

An architecture is declared here alone: what its `config.json` calls the fields
of `BertConfig`, what it lacks, and the names of its variables. A method, a task
and the encoder see a `BertConfig` and variables under Google's names.
"""

import dataclasses
from typing import Any, Mapping, Tuple

# Ends of a Hugging Face name, as a regular expression -> ends of Google's.
DENSE = {"weight": "kernel", "bias": "bias"}
LAYER_NORM = {"(?:weight|gamma)": "gamma", "(?:bias|beta)": "beta"}
OUTPUT = {"weight": "weights", "bias": "bias"}
# The beginning of a Hugging Face name as a regular expression, Google's name
# with a place for the end, the ends of both.
Scope = Tuple[str, str, Mapping[str, str]]

TRANSFORM = "cls/predictions/transform"
# From the embeddings' size to the layers'.
PROJECTION = "bert/embeddings/projection"
OUTPUT_BIAS = "cls/predictions/output_bias"
# A layer of a head in place of a pooler.
FIRST_OF_HEAD = "hidden_{}_0"


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The differences between a kind of model and BERT.

    Attributes:
        prefix: before names of Hugging Face models that have more than the
            encoder.
        keys: a field of `BertConfig` -> its key in `config.json`, if another.
        own_keys: fields of `BertConfig` that `config.json` has besides BERT's.
        fixed: fields of `BertConfig` with one value in all such models.
        expected: keys of `config.json` with the one value that is computed
            here, which is the default.
        scopes: of variables that BERT's names do not cover.
        biases: other names of the bias of the masked-LM head.
    """

    prefix: str
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    own_keys: Tuple[str, ...] = ()
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    expected: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scopes: Tuple[Scope, ...] = ()
    biases: Tuple[str, ...] = ()


# Source of each: transformers 4.57, `modeling_<model_type>.py`.
BERT = Architecture("bert.")
ROBERTA = Architecture(
    "roberta.",
    scopes=(
        # The head of texts has two layers.
        (r"classifier\.dense", FIRST_OF_HEAD, OUTPUT),
        (r"classifier\.out_proj", "output_{}", OUTPUT),
        (r"lm_head\.dense", f"{TRANSFORM}/dense/{{}}", DENSE),
        (r"lm_head\.layer_norm", f"{TRANSFORM}/LayerNorm/{{}}", LAYER_NORM),
    ),
    biases=(r"lm_head\.(?:decoder\.)?bias",),
)
_LAYER = r"transformer\.layer\.(\d+)\."
DISTILBERT = Architecture(
    "distilbert.",
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
        *(
            (rf"{_LAYER}{theirs}", rf"bert/encoder/layer_\1/{ours}/{{}}", ends)
            for theirs, ours, ends in (
                (r"attention\.q_lin", "attention/self/query", DENSE),
                (r"attention\.k_lin", "attention/self/key", DENSE),
                (r"attention\.v_lin", "attention/self/value", DENSE),
                (r"attention\.out_lin", "attention/output/dense", DENSE),
                ("sa_layer_norm", "attention/output/LayerNorm", LAYER_NORM),
                (r"ffn\.lin1", "intermediate/dense", DENSE),
                (r"ffn\.lin2", "output/dense", DENSE),
                ("output_layer_norm", "output/LayerNorm", LAYER_NORM),
            )
        ),
        ("pre_classifier", FIRST_OF_HEAD, OUTPUT),
        ("vocab_transform", f"{TRANSFORM}/dense/{{}}", DENSE),
        ("vocab_layer_norm", f"{TRANSFORM}/LayerNorm/{{}}", LAYER_NORM),
    ),
    biases=(r"vocab_projector\.bias",),
)
ELECTRA = Architecture(
    "electra.",
    own_keys=("embedding_size",),
    fixed={"head_activation": "gelu_erf"},
    scopes=(
        ("embeddings_project", f"{PROJECTION}/{{}}", DENSE),
        (r"sequence_summary\.summary", FIRST_OF_HEAD, OUTPUT),
        (r"generator_predictions\.dense", f"{TRANSFORM}/dense/{{}}", DENSE),
        (
            r"generator_predictions\.LayerNorm",
            f"{TRANSFORM}/LayerNorm/{{}}",
            LAYER_NORM,
        ),
    ),
    biases=(r"generator_lm_head\.bias",),
)
_GROUP = r"encoder\.albert_layer_groups\.0\.albert_layers\.0\."
ALBERT = Architecture(
    "albert.",
    own_keys=("embedding_size", "num_hidden_groups"),
    expected={"num_hidden_groups": 1, "inner_group_num": 1},
    scopes=(
        (
            r"encoder\.embedding_hidden_mapping_in",
            f"{PROJECTION}/{{}}",
            DENSE,
        ),
        *(
            (f"{_GROUP}{theirs}", f"bert/encoder/group_0/{ours}/{{}}", ends)
            for theirs, ours, ends in (
                (r"attention\.query", "attention/self/query", DENSE),
                (r"attention\.key", "attention/self/key", DENSE),
                (r"attention\.value", "attention/self/value", DENSE),
                (r"attention\.dense", "attention/output/dense", DENSE),
                (
                    r"attention\.LayerNorm",
                    "attention/output/LayerNorm",
                    LAYER_NORM,
                ),
                ("ffn", "intermediate/dense", DENSE),
                ("ffn_output", "output/dense", DENSE),
                ("full_layer_layer_norm", "output/LayerNorm", LAYER_NORM),
            )
        ),
        ("pooler", "bert/pooler/dense/{}", DENSE),
        (r"predictions\.dense", f"{TRANSFORM}/dense/{{}}", DENSE),
        (r"predictions\.LayerNorm", f"{TRANSFORM}/LayerNorm/{{}}", LAYER_NORM),
    ),
    biases=(r"predictions\.(?:decoder\.)?bias",),
)
# `model_type` of a config -> what it is.
ARCHITECTURES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "albert": ALBERT,
}
