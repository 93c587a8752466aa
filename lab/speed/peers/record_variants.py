"""Records tiny models of transformers whose configs or files are less usual.

    .venv-peer/bin/python lab/speed/peers/record_variants.py \
        tests/golden/variants

Runs in the peers' environment (requirements.txt next to this file) and imports
nothing of this project. A folder has a model as it is saved, or an adapter of
peft for the model `peft/base`, and in `expected.npz` the inputs and logits.
"""

import pathlib
import sys

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

SIZES = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
SMALL = {"embedding_size": 6}
UNTIED = {"tie_word_embeddings": False}
# Folder -> class, fields of the config.
MODELS = {
    "untied_bert": ("BertForMaskedLM", UNTIED),
    "untied_roberta": ("RobertaForMaskedLM", UNTIED),
    "untied_distilbert": (
        "DistilBertForMaskedLM",
        {**UNTIED, "hidden_dim": 12},
    ),
    "untied_electra": ("ElectraForMaskedLM", {**UNTIED, **SMALL}),
    "untied_albert": ("AlbertForMaskedLM", {**UNTIED, **SMALL}),
    "choice_roberta": ("RobertaForMultipleChoice", {}),
    "choice_electra": (
        "ElectraForMultipleChoice",
        {**SMALL, "summary_activation": "tanh"},
    ),
    "choice_electra_linear": (
        "ElectraForMultipleChoice",
        {**SMALL, "summary_activation": None},
    ),
    "activation_silu": ("BertForMaskedLM", {"hidden_act": "silu"}),
    "activation_tanh": (
        "BertForMaskedLM",
        {"hidden_act": "gelu_pytorch_tanh"},
    ),
    "activation_python": ("BertForMaskedLM", {"hidden_act": "gelu_python"}),
}
LABELS = 3
PEFT = {
    "pooler": peft.LoraConfig(
        task_type="SEQ_CLS",
        r=2,
        target_modules=["query", "value"],
        modules_to_save=["pooler", "classifier"],
    ),
    "layer_norms": peft.LNTuningConfig(
        task_type="SEQ_CLS", target_modules=["LayerNorm"]
    ),
    "some_layer_norms": peft.LNTuningConfig(
        task_type="SEQ_CLS", target_modules=["output.LayerNorm"]
    ),
    "pissa": peft.LoraConfig(
        task_type="SEQ_CLS",
        r=2,
        target_modules=["query", "value"],
        init_lora_weights="pissa",
    ),
}


def shake(model):
    """Random values in the place of zeros and ones."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def save_logits(folder, model):
    """Writes what a model computes."""
    ids = torch.randint(5, SIZES["vocab_size"], (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    ids = ids * mask
    by_choice = "Choice" in type(model).__name__
    inputs = {"input_ids": ids, "attention_mask": mask}
    if by_choice:
        inputs = {name: value[None] for name, value in inputs.items()}
    with torch.no_grad():
        logits = model(**inputs).logits
    np.savez_compressed(
        folder / "expected.npz",
        input_ids=ids.numpy().astype(np.int32),
        attention_mask=mask.numpy().astype(np.int32),
        logits=(logits.T if by_choice else logits).numpy(),
    )


def make(name, fields):
    """A model of a class of transformers, random."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return shake(kind(kind.config_class(**{**SIZES, **fields})))


def record_adapters(folder):
    """Records adapters of peft, and one of transformers in bfloat16."""
    base = folder / "base"
    make(
        "BertForSequenceClassification", {"num_labels": LABELS}
    ).save_pretrained(base)
    kind = transformers.BertForSequenceClassification
    for name, config in PEFT.items():
        torch.manual_seed(1)
        model = kind.from_pretrained(base)
        model = shake(peft.get_peft_model(model, config))
        place = folder / name
        model.save_pretrained(place)
        (place / "README.md").unlink()
        save_logits(place, model)
        if name == "pissa":
            model.merge_and_unload().save_pretrained(place / "merged")
    torch.manual_seed(1)
    model = kind.from_pretrained(base)
    model.add_adapter(
        peft.LoraConfig(
            r=2,
            target_modules=["query", "value"],
            modules_to_save=["classifier"],
        )
    )
    shake(model).save_pretrained(folder / "add_adapter")
    file = folder / "add_adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    narrow = {name: value.bfloat16() for name, value in tensors.items()}
    save_file(narrow, file, {"format": "pt"})
    fresh = kind.from_pretrained(base)
    fresh = peft.PeftModel.from_pretrained(fresh, folder / "add_adapter")
    save_logits(folder / "add_adapter", fresh.eval())


def main():
    """Records all into the folder that the one argument names."""
    folder = pathlib.Path(sys.argv[1])
    for name, (kind, fields) in MODELS.items():
        model = make(kind, fields)
        model.save_pretrained(folder / name)
        save_logits(folder / name, model)
    record_adapters(folder / "peft")


if __name__ == "__main__":
    main()
