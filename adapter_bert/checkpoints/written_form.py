"""A BERT's folder as `adapter-bert convert` and `adapter-bert merge` write it.

In Google's form or in Hugging Face's, with the vocabulary.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import safetensors.numpy

from adapter_bert import files
from adapter_bert.bert import encoder, functional
from adapter_bert.bert.architectures import ARCHITECTURES, OUTPUT_WEIGHTS
from adapter_bert.bert.config import BertConfig, same_activation
from adapter_bert.checkpoints import (
    hugging_face,
    sentence_transformers,
    sources,
    training_state,
)
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.data.added_tokens import TOKENIZER_CONFIG_FILE, as_decoder
from adapter_bert.data.huggingface_tokenizer import SubwordTokenizer
from adapter_bert.data.tokenization import (
    OF_MPNET,
    TextTokenizer,
    vocabulary_bytes,
)
from adapter_bert.errors import UserError

GOOGLE, HUGGING_FACE = "google", "hugging_face"
# Names of google-research/bert's `modeling.py`, `get_activation`.
ACTIVATIONS = ("gelu", "relu", "tanh", "linear")
# Variables of a training that are left out.
OF_TRAINING = ("adam_m", "adam_v", "global_step")
# Fields of a `BertConfig` that no BERT's config has.
OF_OTHERS = (
    "first_position",
    "head_activation",
    "embedding_size",
    "num_hidden_groups",
    "relative_attention_num_buckets",
    "pooler",
    "choice_activation",
)


def check_free(folder: str) -> None:
    """Refuses a folder that has a file of a BERT in either form."""
    for name in (
        *sources.CONFIG_FILES,
        sources.VOCABULARY_FILE,
        sources.SAFETENSORS_FILE,
        sources.TOKENIZER_FILE,
        TOKENIZER_CONFIG_FILE,
        sentence_transformers.MODULES_FILE,
        f"{sources.GOOGLE_CHECKPOINT}.index",
    ):
        if files.exists(os.path.join(folder, name)):
            raise UserError(
                f"{folder} holds a BERT's {name}; choose another folder"
            )


def read_values(weights: Weights, config: BertConfig) -> dict[str, np.ndarray]:
    """Reads every variable of a BERT and its heads, by Google's name."""
    variables, kind = encoder.list_variables(config), config.model_type
    left_out = *OF_TRAINING, *[OUTPUT_WEIGHTS] * config.tie_word_embeddings
    names = [
        name
        for name in weights.shapes
        if not {name, name.split("/")[-1]}.intersection(left_out)
    ]
    for name in names:
        has_name = hugging_face.hugging_face_name(name, kind) is not None
        # A RoBERTa may have a pooler, which is not computed.
        is_of_encoder = name in variables or name.startswith(encoder.POOLER)
        if not has_name or name.startswith("bert/") and not is_of_encoder:
            raise UserError(
                f"{weights.source} holds {name}, which is no part of a plain "
                "BERT of its config; adapter-bert merge merges adapters"
            )
    return {name: weights.read(name) for name in names}


def check_form(config: BertConfig, form: str) -> None:
    """Refuses a form that cannot describe a model."""
    if form == HUGGING_FACE:
        return
    epsilon, fixed = config.layer_norm_eps, functional.LAYER_NORM_EPSILON
    for is_other, fault in (
        (config.model_type != "bert", f"type is {config.model_type}"),
        (
            not config.tie_word_embeddings,
            "head of masked words has a matrix of its own "
            "(tie_word_embeddings is false)",
        ),
        (epsilon != fixed, f"layer_norm_eps is {epsilon}"),
    ):
        if is_other:
            raise UserError(
                f"the model's {fault}, but {form}'s form is of a plain BERT; "
                "write it by adapter-bert convert --to=hugging_face"
            )


def _config(
    config: BertConfig, form: str, head: Mapping[str, Any]
) -> dict[str, Any]:
    model_type = config.model_type
    model = ARCHITECTURES[model_type]
    values = dataclasses.asdict(config)
    for name in {*OF_OTHERS, *model.fixed} - {*model.more_keys}:
        del values[name]
    if config.tie_word_embeddings:
        del values["tie_word_embeddings"]
    if "embedding_size" in values:
        values["embedding_size"] = config.embedding_width
    gelu = same_activation(config.hidden_act, "gelu")
    if form == GOOGLE:
        del values["layer_norm_eps"]
        values["hidden_act"] = "gelu" if gelu else config.hidden_act
        return {**values, **head}
    # Here `gelu` is the error function.
    if gelu:
        values["hidden_act"] = "gelu_new"
    elif same_activation(config.hidden_act, "gelu_erf"):
        values["hidden_act"] = "gelu"
    if config.choice_activation:
        head = {"summary_activation": config.choice_activation, **head}
    return {
        "architectures": [f"{model.classes[0]}Model"],
        "model_type": model_type,
        **{model.keys.get(name, name): value for name, value in values.items()},
        "pad_token_id": max(0, config.first_position - 1),
        **head,
    }


def tokenizer_fields(
    config: BertConfig, tokenizer: TextTokenizer, length: Optional[int] = None
) -> dict[str, Any]:
    """Gives the content of `tokenizer_config.json`; length in tokens."""
    most = {
        "model_max_length": min(length or config.max_tokens, config.max_tokens)
    }
    if isinstance(tokenizer, SubwordTokenizer):
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **tokenizer.special,
            **most,
        }
    # The one of a model without segments, or with one, gives none.
    is_plain = config.type_vocab_size > 1
    kind = "BertTokenizer" if is_plain else "DistilBertTokenizer"
    if tokenizer.special is OF_MPNET:
        kind = "MPNetTokenizer"
    is_lower = tokenizer.do_lower_case
    return {"tokenizer_class": kind, "do_lower_case": is_lower, **most}


def write_files(folder: str, contents: Mapping[str, Any]) -> None:
    """Writes files by name: tensors (`.safetensors`), bytes, values as JSON."""
    for name, content in contents.items():
        path = os.path.join(folder, name)
        files.make_folder(os.path.dirname(path))
        if name.endswith(".safetensors"):
            tensors = {k: v.copy(order="C") for k, v in content.items()}
            # transformers and its kin look for the framework.
            content = safetensors.numpy.save(tensors, {"format": "pt"})
        if isinstance(content, bytes):
            files.write_bytes(path, content)
        else:
            files.write_json(path, content)


def tokenizer_files(
    path: str, tokenizer: TextTokenizer, **fields: Any
) -> dict[str, Any]:
    """Gives the contents of a vocabulary's files, by name.

    These are `vocab.txt`, of subwords `tokenizer.json`, and
    `tokenizer_config.json` if that has content.

    Args:
        path: of the vocabulary.
        tokenizer: of that vocabulary; its added tokens are written, too.
        **fields: other fields of `tokenizer_config.json`.
    """
    contents: dict[str, Any]
    if isinstance(tokenizer, SubwordTokenizer):
        content = files.read_bytes(path, "the tokenizer")
        contents = {sources.TOKENIZER_FILE: content}
        if tokenizer.adds_space:
            fields = {"add_prefix_space": True, **fields}
    else:
        contents = {sources.VOCABULARY_FILE: vocabulary_bytes(path)}
        if not (tokenizer.do_lower_case or tokenizer.is_cased):
            # No capital letter of the vocabulary tells.
            fields = {"do_lower_case": False, **fields}
    fields = {**fields, **tokenizer.fields, **as_decoder(tokenizer.added)}
    return {
        **contents,
        **({TOKENIZER_CONFIG_FILE: fields} if fields else {}),
    }


def write_model(
    folder: str,
    form: str,
    config: BertConfig,
    values: Mapping[str, np.ndarray],
    head: Mapping[str, Any],
) -> str:
    """Writes weights and config; returns the path of the weights.

    Args:
        folder: for the files.
        form: `GOOGLE` or `HUGGING_FACE`.
        config: of the model.
        values: variables by Google's names.
        head: fields of the config about the head.
    """
    described = _config(config, form, head)
    if form == GOOGLE:
        path = os.path.join(folder, sources.GOOGLE_CHECKPOINT)
        training_state.save_tensors(path, values)
        write_files(folder, {sources.BERT_CONFIG_FILE: described})
        return path
    kind, tensors = hugging_face.kind_of_head(head), {}
    for ours, value in values.items():
        theirs, is_transposed = hugging_face.hugging_face_name(
            ours, config.model_type, kind
        )
        tensors[theirs] = value.T if is_transposed else value
    name = sources.SAFETENSORS_FILE
    write_files(folder, {name: tensors, sources.CONFIG_FILE: described})
    return os.path.join(folder, name)


def google_activation(config: BertConfig, activation: str) -> BertConfig:
    """Gives a config whose `hidden_act` Google's programs know.

    Args:
        config: of the model.
        activation: "gelu" to put Google's gelu, of tanh, in the place of
            another one; "" to put none.
    """
    for name in ACTIVATIONS:
        if same_activation(config.hidden_act, name):
            if activation and activation != name:
                raise UserError(
                    f"the model's hidden_act is {name}, which Google's "
                    f"programs know; leave --activation={activation} "
                    "out, which is for another gelu"
                )
            return dataclasses.replace(config, hidden_act=name)
    is_gelu = same_activation(config.hidden_act, "gelu_erf")
    if is_gelu and activation:
        return dataclasses.replace(config, hidden_act=activation)
    advice = (
        "--activation=gelu writes it with their gelu, of tanh, which differs "
        "a little"
        if is_gelu
        else "it can be written in hugging_face's form"
    )
    raise UserError(
        f"the model's hidden_act is {config.hidden_act}"
        f"{', the gelu of the error function' * is_gelu}, which Google's "
        f"programs do not know; {advice}"
    )
