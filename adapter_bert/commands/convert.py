"""Writes a BERT in another form, bit for bit the same.

    .venv/bin/adapter-bert convert --init_checkpoint=MODULE \
        --to=google --output_dir=BERT

The program reads all that --init_checkpoint takes, except training checkpoints
and models with adapters. Google's form is `bert_model.ckpt`, `bert_config.json`
and `vocab.txt`. Hugging Face's form is `model.safetensors`, `config.json`,
`vocab.txt` and `tokenizer_config.json`, which says whether text is lower-cased.
Heads are written too, with what the config says of them: labels and kind.

Tokens that were added to a vocabulary stand in a `tokenizer_config.json` in
either form. Google's own program reads none.

The `gelu` of a BERT from Hugging Face is called `gelu_erf` in Google's form.
Google's own program does not know this name.
"""

import dataclasses
import os
from typing import Any, Dict, Mapping

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import safetensors.numpy

from adapter_bert import command_line, files
from adapter_bert.bert import encoder, functional
from adapter_bert.bert.config import BertConfig, same_activation
from adapter_bert.bert.encoder import Shape
from adapter_bert.checkpoints import (
    google,
    hugging_face,
    sources,
    training_state,
)
from adapter_bert.checkpoints.weights import Weights, identify
from adapter_bert.data.added_tokens import as_decoder
from adapter_bert.data.tokenization import TextTokenizer, vocabulary_bytes
from adapter_bert.errors import UserError

GOOGLE, HUGGING_FACE = "google", "hugging_face"
# Variables of a training that are left out.
OF_TRAINING = ("adam_m", "adam_v", "global_step")


def check_free(folder: str) -> None:
    """Raises UserError if a folder has a file of a BERT in either form."""
    for name in (
        *sources.CONFIG_FILES,
        sources.VOCABULARY_FILE,
        sources.SAFETENSORS_FILE,
        sources.TOKENIZER_CONFIG_FILE,
        f"{sources.GOOGLE_CHECKPOINT}.index",
    ):
        if files.exists(os.path.join(folder, name)):
            raise UserError(
                f"{folder} holds a BERT's {name}; choose another folder"
            )


def read_values(
    weights: Weights, variables: Mapping[str, Shape]
) -> Dict[str, np.ndarray]:
    """Every variable of a BERT and its heads, by Google's name.

    Raises:
        UserError: one cannot be read, or is no part of a plain BERT.
    """
    names = [n for n in weights.shapes if n.split("/")[-1] not in OF_TRAINING]
    for name in names:
        is_known = hugging_face.hugging_face_name(name) is not None
        if not is_known or name.startswith("bert/") and name not in variables:
            raise UserError(
                f"{weights.source} holds {name}, which is no part of a plain "
                "BERT of its config; adapter-bert merge merges adapters"
            )
    return {name: weights.read(name) for name in names}


def check_form(config: BertConfig, form: str) -> None:
    """Raises UserError if a form cannot describe a model."""
    if config.is_roberta:
        raise UserError(
            f"the model is a RoBERTa, which cannot be written in {form}'s form "
            "of a BERT"
        )
    epsilon, fixed = config.layer_norm_eps, functional.LAYER_NORM_EPSILON
    if form == GOOGLE and epsilon != fixed:
        raise UserError(
            f"the model has the layer_norm_eps {epsilon}, but Google's form "
            f"means {fixed}"
        )


def _config(
    config: BertConfig, form: str, head: Mapping[str, Any]
) -> Dict[str, Any]:
    """The content of a form's config, with the fields of a head."""
    values = dataclasses.asdict(config)
    del values["first_position"]
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
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        **values,
        "pad_token_id": 0,
        **head,
    }


def write_vocabulary(
    folder: str, path: str, tokenizer: TextTokenizer, **said: Any
) -> None:
    """Writes `vocab.txt`, and `tokenizer_config.json` if that has content.

    Args:
        folder: for the files.
        path: of the vocabulary.
        tokenizer: of that vocabulary; its added tokens are written, too.
        **said: other fields of `tokenizer_config.json`.

    Raises:
        UserError: a file cannot be written.
    """
    place = os.path.join(folder, sources.VOCABULARY_FILE)
    files.write_bytes(place, vocabulary_bytes(path))
    said.update(as_decoder(tokenizer.added))
    if said:
        place = os.path.join(folder, sources.TOKENIZER_CONFIG_FILE)
        files.write_json(place, said)


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

    Raises:
        UserError: a file cannot be written.
    """
    if form == GOOGLE:
        path = os.path.join(folder, sources.GOOGLE_CHECKPOINT)
        training_state.save_tensors(path, values)
        name = sources.BERT_CONFIG_FILE
    else:
        tensors = {}
        for ours, value in values.items():
            theirs, transposed = hugging_face.hugging_face_name(ours)
            value = value.T if transposed else value
            tensors[theirs] = np.ascontiguousarray(value)
        path = os.path.join(folder, sources.SAFETENSORS_FILE)
        content = safetensors.numpy.save(tensors, {"format": "pt"})
        files.write_bytes(path, content)
        name = sources.CONFIG_FILE
    content = _config(config, form, head)
    files.write_json(os.path.join(folder, name), content)
    return path


def main() -> None:
    """Converts the BERT that the arguments name."""
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--init_checkpoint", required=True, help="the BERT to convert"
    )
    parser.add_argument(
        "--to",
        required=True,
        choices=(GOOGLE, HUGGING_FACE),
        help="form to write",
    )
    parser.add_argument(
        "--output_dir", required=True, help="folder for the result"
    )
    parser.add_argument(
        "--bert_config_file", default="", help="BERT's sizes; default: its own"
    )
    parser.add_argument(
        "--vocab_file",
        default="",
        help="the vocabulary; default: the BERT's own",
    )
    parser.add_argument(
        "--do_lower_case",
        type=str.lower,
        choices=("true", "false"),
        help="whether text is lower-cased; default: what the BERT or its "
        "vocabulary says",
    )
    arguments = parser.parse_args()
    folder = arguments.output_dir
    google.check_name(folder, "--output_dir")
    check_free(folder)
    opened = sources.open_init_checkpoint(arguments.init_checkpoint)
    if opened.trained is not None:
        raise UserError(
            f"{opened.path} is a training's checkpoint, no plain BERT; "
            "adapter-bert merge merges its adapter into its BERT"
        )
    config = sources.read_config(opened, arguments.bert_config_file)
    check_form(config, arguments.to)
    vocabulary = arguments.vocab_file or sources.find_vocabulary(opened)
    lower = {"true": True, "false": False, None: None}[arguments.do_lower_case]
    tokenizer = sources.read_tokenizer(opened, config, vocabulary, lower)
    lower = tokenizer.do_lower_case
    variables = encoder.list_variables(config)
    base = identify(opened.weights, variables)
    values = read_values(opened.weights, variables)
    files.prepare_folder(folder)
    said = {}
    if arguments.to == HUGGING_FACE:
        said = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    write_vocabulary(folder, vocabulary, tokenizer, **said)
    path = write_model(folder, arguments.to, config, values, opened.head)
    print(
        f"wrote {path}: {len(values)} variables, fingerprint "
        f"{base.fingerprint[:12]}, --do_lower_case={str(lower).lower()}"
    )
