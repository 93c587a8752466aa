"""Records what peft makes of several adapters (`add_weighted_adapter`).

    .venv-peer/bin/python lab/speed/peers/record_weighted_sums.py \
        tests/golden/weighted_sums.npz

Runs in the peer's environment (requirements.txt next to this file) and imports
nothing of this project. Three adapters of a BERT of two layers, with random
weights, for each combination type of peft. Everything is under this project's
variable names.
"""

import sys

import numpy as np
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from peft.utils import merge_utils
from record_golden import SIZES, to_numpy
from transformers import BertConfig, BertModel

DENSITY = 0.5
# Those of (IA)^3 add up to one.
WEIGHTS = {"lora": [0.7, -1.3, 0.4], "ia3": [0.5, 0.2, 0.3]}
# Of adapters of one rank.
OF_FACTORS = ("linear", "ties", "dare_linear", "dare_ties", "magnitude_prune")
# Of adapters of several ranks.
OF_UPDATES = (
    "cat",
    "svd",
    "ties_svd",
    "dare_linear_svd",
    "dare_ties_svd",
    "magnitude_prune_svd",
)
QUERY, VALUE, OUTPUT = "query", "value", "output.dense"


def lora(rank, alpha, targets):
    """A configuration; `output.dense` also ends the attention's module."""
    targets = "|".join(targets)
    return LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=rf"encoder\.layer\.\d+\.(attention\.self\.)?({targets})",
    )


def ia3():
    """(IA)^3 at the places that this project scales."""
    return IA3Config(
        target_modules=r".*(key|value|layer\.\d+\.output\.dense)",
        feedforward_modules=r".*layer\.\d+\.output\.dense",
    )


# Adapter -> its configuration.
SETS = {
    "same_rank": {
        "a": lora(2, 6, (QUERY, VALUE)),
        "b": lora(2, 2, (QUERY, OUTPUT)),
        "c": lora(2, 4, (QUERY, VALUE)),
    },
    "ranks": {
        "a": lora(2, 6, (QUERY, VALUE)),
        "b": lora(3, 2, (QUERY, OUTPUT)),
        "c": lora(1, 4, (QUERY, VALUE)),
    },
    "ia3": {name: ia3() for name in "abc"},
}


def make_model(configs):
    """A BERT with adapters of random weights."""
    model = BertModel(BertConfig(**SIZES))
    first, *others = configs
    model = get_peft_model(model, configs[first], first)
    for name in others:
        model.add_adapter(name, configs[name])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "ia3_" in name:
                center = 1.0 if "ia3_" in name else 0.0
                noise = torch.randn_like(parameter) * 0.3
                parameter.copy_(center + noise)
    return model


def variables(model, adapter):
    """An adapter's values under this project's names."""
    found = {}
    for name, parameter in model.named_parameters():
        scope, separator, rest = name.partition(".lora_")
        if not separator:
            scope, separator, rest = name.partition(".ia3_")
        if not separator or f".{adapter}." not in f".{rest}.":
            continue
        scope = scope.removeprefix("base_model.model.")
        scope = scope.replace("layer.", "layer_").replace(".", "/")
        scope = f"bert/{scope}"
        if "ia3" in separator:
            found[f"{scope}/ia3_scale"] = parameter.flatten()
        else:
            found[f"{scope}/lora_{rest[0].lower()}"] = parameter.T
    return {name: to_numpy(value) for name, value in found.items()}


class Chosen:
    """Stands for `torch.bernoulli`, and keeps what it chose."""

    def __init__(self):
        self.masks, self.draw = [], torch.bernoulli

    def __call__(self, probabilities):
        """What is drawn, float32 of 0 and 1."""
        self.masks.append(self.draw(probabilities))
        return self.masks[-1]


def record(kind, model, adapters, weights):
    """What peft makes of the adapters, with the masks of DARE in turn."""
    chosen = Chosen()
    merge_utils.torch.bernoulli = chosen
    arguments = (
        {}
        if model.peft_config["a"].peft_type == "IA3"
        else {
            "combination_type": kind,
            "density": DENSITY,
        }
    )
    model.add_weighted_adapter(adapters, weights, kind, **arguments)
    merge_utils.torch.bernoulli = chosen.draw
    found = {f"merged/{k}": v for k, v in variables(model, kind).items()}
    for number, mask in enumerate(chosen.masks):
        found[f"masks/{number:03d}"] = to_numpy(mask).astype(bool).T
    return found


def main():
    """Records all types into the file that the one argument names."""
    torch.manual_seed(0)
    recorded = {f"weights/{k}": np.array(v) for k, v in WEIGHTS.items()}
    recorded["density"] = np.array(DENSITY)
    for name, kinds in (
        ("same_rank", OF_FACTORS),
        ("ranks", OF_UPDATES),
        ("ia3", ["linear"]),
    ):
        configs = SETS[name]
        model = make_model(configs)
        for adapter in configs:
            for variable, value in variables(model, adapter).items():
                recorded[f"{name}/{adapter}/{variable}"] = value
        weights = WEIGHTS["ia3" if name == "ia3" else "lora"]
        for kind in kinds:
            found = record(kind, model, list(configs), weights)
            recorded.update({f"{name}/{kind}/{k}": v for k, v in found.items()})
            print(f"{name}, {kind}: {len(found)} arrays")
    np.savez_compressed(sys.argv[1], **recorded)


if __name__ == "__main__":
    main()
