"""Adapters of models like BERT, as `adapters` and `peft` have them.

    .venv-peer/bin/python lab/speed/peers/exchange_architectures.py write \\
        MODEL FOLDER
    .venv-peer/bin/python lab/speed/peers/exchange_architectures.py answer \\
        MODEL EXAMPLES FOLDER...

Runs in the peers' environment (requirements.txt next to this file) and imports
nothing of this project; `lab/speed/exchange_architectures.py` calls it. `MODEL`
is a folder of `record_architectures.py` or `record_roberta.py`, whose rows are
the examples. `write` makes adapters for it, with logits. `answer` loads what
this project has written: an adapter, or a whole model.
"""

import os

import adapters
import exchange
import numpy as np
import peft
import torch
import transformers
from exchange import QUESTIONS, SEQUENCES, classification, double, single, spans

HUB = {
    "houlsby": (double(5), classification()),
    "pfeiffer": (single(7), classification(1)),
    "lora": (
        adapters.LoRAConfig(
            r=3,
            alpha=8,
            attn_matrices=["q", "k", "v"],
            intermediate_lora=True,
            output_lora=True,
        ),
        spans(),
    ),
    "prefix": (
        adapters.PrefixTuningConfig(prefix_length=3, bottleneck_size=5),
        classification(2, 1, "gelu"),
    ),
}
# The names of the matrices of a layer, of those that (IA)^3 scales, of the one
# whose inputs it scales, and of the head.
OF_BERT = (
    ["query", "value", "attention.output.dense", "intermediate.dense"],
    r".*(key|value|layer\.\d+\.output\.dense)",
    r".*layer\.\d+\.output\.dense",
    ["classifier"],
)
NAMES = {
    "roberta": OF_BERT,
    "electra": OF_BERT,
    "mpnet": (
        ["attn.q", "attn.v", "attn.o", "intermediate.dense"],
        r".*(attn\.k|attn\.v|layer\.\d+\.output\.dense)",
        r".*layer\.\d+\.output\.dense",
        ["classifier"],
    ),
    "distilbert": (
        ["q_lin", "v_lin", "out_lin", "lin1", "lin2"],
        ["k_lin", "v_lin", "lin2"],
        ["lin2"],
        ["pre_classifier", "classifier"],
    ),
    "albert": (
        ["query", "value", "attention.dense", "ffn", "ffn_output"],
        ["key", "value", "ffn_output"],
        ["ffn_output"],
        ["classifier"],
    ),
}


def peft_cases(model_type):
    """The adapters of peft's: task, labels, configuration."""
    matrices, scaled, inputs, head = NAMES[model_type]
    return {
        "lora": (
            SEQUENCES,
            3,
            peft.LoraConfig(
                r=5,
                lora_alpha=3,
                target_modules=matrices,
                alpha_pattern={matrices[0]: 7},
                modules_to_save=head,
            ),
        ),
        "dora": (
            QUESTIONS,
            2,
            peft.LoraConfig(r=3, use_dora=True, target_modules=matrices[:2]),
        ),
        "ia3": (
            SEQUENCES,
            2,
            peft.IA3Config(
                target_modules=scaled,
                feedforward_modules=inputs,
                modules_to_save=head,
            ),
        ),
    }


def read_examples(model):
    """The rows that a model was recorded with."""
    with np.load(os.path.join(model, "expected.npz")) as found:
        ids = found["input_ids"]
        mask = found[
            "attention_mask" if "attention_mask" in found else "input_mask"
        ]
        segments = found.get("token_type_ids", np.zeros_like(ids))
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def write(model, folder):
    """Everything, into an empty folder."""
    examples = read_examples(model)
    np.savez(os.path.join(folder, "examples.npz"), **examples)
    kind = transformers.AutoConfig.from_pretrained(model).model_type
    for seed, (name, (config, head)) in enumerate(HUB.items()):
        if kind == "mpnet":
            # The library has no such models.
            break
        if kind == "albert" and name == "houlsby":
            # After the attention the library's adapters are other ones.
            config = double(5, mh_adapter=False)
        path = os.path.join(folder, "adapterhub", name)
        exchange.write_hub(model, path, config, head, seed, examples)
        for file in ("adapter_config.json", "head_config.json"):
            remove_place(os.path.join(path, file), model)
    for seed, (name, case) in enumerate(peft_cases(kind).items()):
        path = os.path.join(folder, "peft", name)
        exchange.write_peft(model, path, *case, seed, examples)


def remove_place(path, model):
    """Takes this machine's paths out of a description."""
    with open(path) as file:
        content = file.read()
    with open(path, "w") as file:
        file.write(content.replace(model, "the_model"))


def answer(model, examples, folders):
    """What the peers make of what this project has written."""
    examples = dict(np.load(examples))
    for folder in folders:
        if os.path.exists(os.path.join(folder, "adapter_config.json")):
            found = exchange.load(model, folder)
        else:
            kind = transformers.AutoModelForSequenceClassification
            found, about = kind.from_pretrained(
                folder, output_loading_info=True
            )
            assert not about["missing_keys"] and not about["unexpected_keys"]
            tokens = transformers.AutoTokenizer.from_pretrained(folder)
            found(**tokens("the cat sat", return_tensors="pt"))
        exchange.save_logits(folder, found, examples)


if __name__ == "__main__":
    torch.manual_seed(0)
    exchange.main(write, answer)
