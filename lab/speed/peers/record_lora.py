"""Records what peft computes with its methods of the LoRA family.

    .venv-peer/bin/python lab/speed/peers/record_lora.py tests/golden/lora.npz

Runs in the peer's environment (requirements.txt next to this file) and imports
nothing of this project. A BERT of two layers with random weights, then each
method with random weights; everything under this project's variable names,
with the output of the last layer, and the gradients of the mean of its products
with `inputs/direction`.
"""

import re
import sys

import numpy as np
import peft
import torch
from record_golden import SIZES, bert_name, make_bert, make_inputs, to_numpy
from transformers import BertConfig, BertModel

METHODS = {
    "rslora": peft.LoraConfig(
        r=5,
        lora_alpha=7,
        use_rslora=True,
        target_modules=[
            "query",
            "attention.output.dense",
            "intermediate.dense",
        ],
        rank_pattern={"layer.1.attention.self.query": 2},
        alpha_pattern={"intermediate.dense": 3},
    ),
    "dora": peft.LoraConfig(
        r=3,
        lora_alpha=7,
        use_dora=True,
        target_modules=["value", "intermediate.dense"],
    ),
    "vera": peft.VeraConfig(
        r=5,
        projection_prng_key=11,
        target_modules=["query", "intermediate.dense"],
    ),
}
PARTS = {
    "lora_A.default.weight": "lora_a",
    "lora_B.default.weight": "lora_b",
    "lora_magnitude_vector.default.weight": "dora_m",
    "vera_lambda_d.default": "vera_d",
    "vera_lambda_b.default": "vera_b",
}
NAME = re.compile(rf"base_model\.model\.(.*)\.({'|'.join(PARTS)})")


def variable(name):
    """This project's name of a parameter."""
    module, part = NAME.fullmatch(name).groups()
    return f"{bert_name(module)}/{PARTS[part]}"


def main():
    """Records all methods into the file that the one argument names."""
    torch.manual_seed(0)
    options = {
        **SIZES,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    base, recorded = make_bert(BertConfig(**options), pooler=False)
    inputs, recorded_inputs = make_inputs()
    recorded.update(recorded_inputs)
    direction = torch.randn(*inputs[0].shape, SIZES["hidden_size"])
    direction *= inputs[1].unsqueeze(-1)
    recorded["inputs/direction"] = to_numpy(direction)
    for method, config in METHODS.items():
        model = BertModel(BertConfig(**options), add_pooling_layer=False)
        model.load_state_dict(base)
        model = peft.get_peft_model(model, config)
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for parameter in trained.values():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        output = model(*inputs).last_hidden_state
        (output * direction).mean().backward()
        recorded[f"{method}/output"] = to_numpy(output)
        for name, parameter in trained.items():
            key = variable(name)
            recorded[f"{method}/values/{key}"] = to_numpy(parameter).T
            recorded[f"{method}/gradients/{key}"] = to_numpy(parameter.grad).T
        print(f"{method}: {len(trained)} variables")
    np.savez_compressed(sys.argv[1], **recorded)


if __name__ == "__main__":
    main()
