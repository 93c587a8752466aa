"""Folders of sentence-transformers, and what it makes of ours.

    .venv-peer/bin/python lab/speed/peers/record_sentence_vectors.py \\
        write tests/golden/sentence_transformers
    .venv-peer/bin/python lab/speed/peers/record_sentence_vectors.py \\
        forms tests/golden/sentence_transformers
    .venv-peer/bin/python lab/speed/peers/record_sentence_vectors.py \\
        answer TEXTS BASE FOLDER...

Runs in the peers' environment (requirements.txt next to this file). `write`
makes a tiny BERT with random weights in `whole/`, and a LoRA of peft's for this
BERT in `peft/`, as that library saves them, with `vectors.npy` of `texts.json`.
Folders in `forms/`, which have no model, have prompts and dense layers before
that library's vectors by the model in `whole/`.
`answer` writes `vectors.npy` of a file of texts into folders of ours; BASE is
the BERT of those that hold an adapter alone.
"""

import json
import os
import shutil
import sys

# Nothing is asked of the hub. The libraries read this as they are imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import exchange
import numpy as np
import peft
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)

TEXTS = [
    "the cat sat on the mat",
    "A Dog, ran!",
    "",
    "it is not a bad film . " * 5,
    "an unseen word",
]
LENGTH = 12
PROMPTS = {"query": "the cat: ", "passage": "a dog "}
WIDTH = exchange.SIZES["hidden_size"]
OF_VECTORS = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
TANH, PLAIN = torch.nn.Tanh(), torch.nn.Identity()
# Of each folder: pooling, default prompt, dense layers, length of 1.
FORMS = {
    "by_default": ({"pooling_mode": "mean"}, "query", (), True),
    "by_name": ({"pooling_mode": "mean"}, None, (), False),
    "first_token": ({"pooling_mode": "cls"}, "passage", (), True),
    "left_out": (
        {"pooling_mode": "mean", "include_prompt": False},
        "query",
        (),
        False,
    ),
    "first_left_out": (
        {"pooling_mode": "cls", "include_prompt": False},
        "query",
        (),
        False,
    ),
    "tanh": ({"pooling_mode": "mean"}, None, [(7, True, TANH)], False),
    "no_bias": ({"pooling_mode": "cls"}, None, [(9, False, PLAIN)], True),
    "two_layers": (
        {"pooling_mode": "mean", "include_prompt": False},
        "query",
        [(9, True, torch.nn.GELU()), (6, False, torch.nn.Tanh())],
        True,
    ),
}


def write(folder):
    """Makes the folders."""
    torch.manual_seed(0)
    whole, adapter = (os.path.join(folder, n) for n in ("whole", "peft"))
    made = f"{folder}.tmp"
    os.makedirs(made, exist_ok=True)
    bert = transformers.BertModel(transformers.BertConfig(**exchange.SIZES))
    exchange.shake(bert, 1)
    bert.save_pretrained(made)
    vocabulary = os.path.join(made, "vocab.txt")
    with open(vocabulary, "w") as file:
        file.write("".join(f"{word}\n" for word in exchange.WORDS))
    transformers.BertTokenizerFast(vocabulary).save_pretrained(made)
    model = Transformer(made, max_seq_length=LENGTH)
    width = exchange.SIZES["hidden_size"]
    save(
        SentenceTransformer(
            modules=[model, Pooling(width, "mean"), Normalize()], device="cpu"
        ),
        whole,
    )
    config = peft.LoraConfig(
        r=3,
        lora_alpha=5,
        target_modules=["query", "value", "attention.output.dense"],
        task_type="FEATURE_EXTRACTION",
    )
    model = Transformer(whole, max_seq_length=LENGTH)
    model.model.add_adapter(config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.3, generator=generator)
    save(
        SentenceTransformer(
            modules=[model, Pooling(width, "cls")], device="cpu"
        ),
        adapter,
    )
    path = os.path.join(adapter, "adapter_config.json")
    with open(path) as file:
        described = json.load(file)
    described["base_model_name_or_path"] = "bert"
    with open(path, "w") as file:
        json.dump(described, file, indent=2)
    with open(os.path.join(folder, "texts.json"), "w") as file:
        json.dump(TEXTS, file, indent=2)
    shutil.rmtree(made)


def write_forms(folder):
    """Makes the folders in `forms/`, and vectors with each prompt."""
    whole = os.path.join(folder, "whole")
    for number, (name, form) in enumerate(FORMS.items()):
        torch.manual_seed(number)
        pooling, default, layers, is_unit = form
        modules = [
            Transformer(whole, max_seq_length=LENGTH),
            Pooling(WIDTH, **pooling),
        ]
        width = WIDTH
        for size, bias, activation in layers:
            modules.append(
                Dense(width, size, bias=bias, activation_function=activation)
            )
            width = size
        model = SentenceTransformer(
            modules=[*modules, *[Normalize()] * is_unit],
            prompts=PROMPTS,
            default_prompt_name=default,
            similarity_fn_name="dot",
            device="cpu",
        )
        place = os.path.join(folder, "forms", name)
        model.save_pretrained(place, create_model_card=False)
        vectors = {
            chosen: model.encode(TEXTS, prompt_name=chosen)
            for chosen in PROMPTS
        }
        vectors["default"] = model.encode(TEXTS)
        vectors["text"] = model.encode(TEXTS, prompt="it is ")
        np.savez(os.path.join(place, "vectors.npz"), **vectors)
        # All have the model in `whole/`.
        for file in os.listdir(whole):
            path = os.path.join(place, file)
            if os.path.isfile(path) and file not in OF_VECTORS:
                os.remove(path)


def save(model, folder):
    """Saves a model, and its vectors of `TEXTS`."""
    model.save_pretrained(folder, create_model_card=False)
    np.save(os.path.join(folder, "vectors.npy"), model.encode(TEXTS))


def answer(texts, base, folders):
    """Writes vectors of the texts of a file into folders."""
    with open(texts) as file:
        texts = json.load(file)
    for folder in folders:
        path = os.path.join(folder, "adapter_config.json")
        if os.path.exists(path):
            with open(path) as file:
                described = json.load(file)
            described["base_model_name_or_path"] = base
            with open(path, "w") as file:
                json.dump(described, file)
        model = SentenceTransformer(folder, device="cpu")
        np.save(os.path.join(folder, "vectors.npy"), model.encode(texts))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "write":
        write(*arguments)
    elif command == "forms":
        write_forms(*arguments)
    else:
        answer(arguments[0], arguments[1], arguments[2:])
