"""Records what peft computes with its methods of the LoRA family.

    .venv-peer/bin/python lab/speed/peers/record_lora.py tests/golden/lora.npz

Runs in the peer's environment (requirements.txt next to this file) and imports
nothing of this project. A BERT of two layers with random weights, then each
method with random weights; everything under this project's variable names,
with the output of the last layer, and the gradients of the mean of its products
with `inputs/direction`. peft adds AdaLoRA's penalty to that mean.

A training with AdaLoRA follows, with random gradients and plain SGD: after each
step what peft's allocator holds.
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
    "adalora": peft.AdaLoraConfig(
        init_r=4,
        target_r=2,
        lora_alpha=7,
        tinit=3,
        tfinal=4,
        deltaT=2,
        beta1=0.8,
        beta2=0.7,
        orth_reg_weight=0.3,
        total_step=15,
        target_modules=["query", "intermediate.dense"],
    ),
}
# Of AdaLoRA's training.
LEARNING_RATE = 0.5
PARTS = {
    "lora_A.default.weight": "lora_a",
    "lora_B.default.weight": "lora_b",
    "lora_A.default": "lora_a",
    "lora_B.default": "lora_b",
    "lora_E.default": "lora_e",
    "lora_magnitude_vector.default.weight": "dora_m",
    "vera_lambda_d.default": "vera_d",
    "vera_lambda_b.default": "vera_b",
}
NAME = re.compile(rf"base_model\.model\.(.*)\.({'|'.join(PARTS)})")


def variable(name):
    """This project's name of a parameter."""
    module, part = NAME.fullmatch(name).groups()
    return f"{bert_name(module)}/{PARTS[part]}"


class WithLoss(BertModel):
    """BERT whose loss is the mean of its products with a direction."""

    direction = None

    def forward(self, *arguments, **more):
        """As of `BertModel`, with the loss."""
        outputs = super().forward(*arguments, **more)
        outputs.loss = (outputs.last_hidden_state * self.direction).mean()
        return outputs


def as_ours(parameter):
    """The values, as this project's variable has them."""
    value = to_numpy(parameter)
    return value[:, 0] if value.shape[-1] == 1 else value.T


def allocation_of(model, trained):
    """A training with AdaLoRA, by names, over steps; averages at its end."""
    optimizer = torch.optim.SGD(trained.values(), lr=LEARNING_RATE)
    allocator = model.base_model.rankallocator
    gradients, values, averages = {}, {}, {}
    for step in range(1, 16):
        for name, parameter in trained.items():
            parameter.grad = torch.randn_like(parameter)
            key = f"gradients/{variable(name)}"
            gradients.setdefault(key, []).append(as_ours(parameter.grad))
        optimizer.step()
        model.base_model.update_and_allocate(step)
        for name, parameter in trained.items():
            key, own = variable(name), name.removeprefix("base_model.model.")
            if key.endswith("/lora_e"):
                values.setdefault(f"values/{key}", []).append(
                    as_ours(parameter)
                )
            # Later the allocator has none.
            if own in allocator.ipt:
                for slot, found in (
                    ("importance", allocator.exp_avg_ipt),
                    ("uncertainty", allocator.exp_avg_unc),
                ):
                    averages[f"averages/{key}/{slot}"] = as_ours(found[own])
    stacked = {k: np.stack(v) for k, v in {**gradients, **values}.items()}
    return {**stacked, **averages}


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
        model = WithLoss(BertConfig(**options), add_pooling_layer=False)
        model.load_state_dict(base)
        model.direction = direction
        model = peft.get_peft_model(model, config)
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for parameter in trained.values():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        outputs = model.base_model(*inputs)
        outputs.loss.backward()
        recorded[f"{method}/output"] = to_numpy(outputs.last_hidden_state)
        for name, parameter in trained.items():
            key = variable(name)
            recorded[f"{method}/values/{key}"] = as_ours(parameter)
            recorded[f"{method}/gradients/{key}"] = as_ours(parameter.grad)
        if method == "adalora":
            for key, value in allocation_of(model, trained).items():
                recorded[f"training/{key}"] = value
        print(f"{method}: {len(trained)} variables")
    np.savez_compressed(sys.argv[1], **recorded)


if __name__ == "__main__":
    main()
