"""Records what `adapters` computes of gates, unions, prompts and ReFT.

    .venv-peer/bin/python lab/speed/peers/record_unions.py \
        tests/golden/unions.npz

Runs in the peer's environment as `record_golden.py`, of whose BERT this is.
Rows are computed one by one, without padding, over which gates would have
their means. Gradients are those of the sum of the outputs' products with
`weights`.
"""

import sys

import adapters
import numpy as np
import torch
from adapters import (
    DiReftConfig,
    DoubleSeqBnConfig,
    LoRAConfig,
    LoReftConfig,
    MAMConfig,
    ParBnConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    SeqBnConfig,
    UniPELTConfig,
)
from record_golden import LORA_SCOPES, SIZES, make_bert, make_inputs, to_numpy
from transformers import BertConfig, BertModel

PREFIX = PrefixTuningConfig(prefix_length=3, bottleneck_size=8)
# Name in the file -> the peer's configuration.
METHODS = {
    "houlsby": DoubleSeqBnConfig(
        reduction_factor=4, non_linearity="gelu_new", use_gating=True
    ),
    "parallel": ParBnConfig(
        reduction_factor={"0": 8, "default": 4}, use_gating=True
    ),
    "prefix": PrefixTuningConfig(
        prefix_length=3, flat=True, use_gating=True, shared_gating=False
    ),
    "mam": MAMConfig(PREFIX, ParBnConfig(reduction_factor=4)),
    "unipelt": UniPELTConfig(
        PREFIX,
        SeqBnConfig(reduction_factor=4),
        LoRAConfig(r=2, alpha=6, intermediate_lora=True),
    ),
    "prompt": PromptTuningConfig(prompt_length=3),
    "loreft": LoReftConfig(r=2, prefix_positions=2, suffix_positions=2),
    "direft": DiReftConfig(r=2, non_linearity="tanh"),
}


def variables(model):
    """(this project's name, the peer's parameter) of all that is added.

    Parameters of two axes are transposed there, and biases of adapters have
    a first axis here.
    """
    for name, parameter in model.named_parameters():
        if "prefix_tunings.task.self_prefix." in name:
            part = name.rpartition("self_prefix.")[2]
            yield (
                {
                    "wte.weight": "prefix/embedding",
                    "control_trans.0.weight": "prefix/inner/kernel",
                    "control_trans.0.bias": "prefix/inner/bias",
                    "control_trans.2.weight": "prefix/outer/kernel",
                    "control_trans.2.bias": "prefix/outer/bias",
                    "control_trans": "prefix/flat",
                }[part],
                parameter,
            )
    for prompt in model.prompt_tuning.prompt_tunings.values():
        yield "bert/embeddings/prompt", prompt.prompt_embedding.weight
    for number, layer in enumerate(model.encoder.layer):
        scope = f"bert/encoder/layer_{number}"
        found = {}
        for path, place in LORA_SCOPES.items():
            parent = layer.attention.self if "/self/" in place else layer
            for lora in parent.get_submodule(path).loras.values():
                found[f"{place}/lora_a"] = lora.lora_A
                found[f"{place}/lora_b"] = lora.lora_B
                found.update(gate(place, lora.gate))
        gates = layer.attention.self.prefix_tuning.prefix_gates
        for own in gates.values():
            found.update(gate("attention/self/prefix", own))
        for part, place in (
            (layer.attention.output, "attention/output/adapters"),
            (layer.output, "output/adapters"),
        ):
            for adapter in part.adapters.values():
                down, up = adapter.adapter_down[0], adapter.adapter_up
                found[f"{place}/weights1"] = down.weight
                found[f"{place}/biases1"] = down.bias
                found[f"{place}/weights2"] = up.weight
                found[f"{place}/biases2"] = up.bias
                if adapter.use_gating:
                    found.update(gate(place, adapter.gate))
        for reft in layer.reft_layer.refts.values():
            for side, unit in zip(("first", "last"), reft.units):
                place = f"output/reft/{side}"
                found[f"{place}/source/kernel"] = unit.learned_source.weight
                found[f"{place}/source/bias"] = unit.learned_source.bias
                if unit.orthogonal:
                    original = unit.projection.parametrizations.weight.original
                    found[f"{place}/reflectors"] = original
                else:
                    found[f"{place}/projection"] = unit.projection.weight
                if not reft.suffix_positions:
                    break
        for name, parameter in found.items():
            yield f"{scope}/{name}", parameter


def gate(place, module):
    """The variables of a gate."""
    return {
        f"{place}/gate/kernel": module.weight,
        f"{place}/gate/bias": module.bias,
    }


def as_here(name, tensor):
    """A parameter, or its gradient, as this project has it."""
    if name.endswith(("/biases1", "/biases2")):
        return to_numpy(tensor)[np.newaxis]
    if tensor.ndim == 2 and not name.endswith(("/embedding", "/prompt")):
        tensor = tensor.T
    return to_numpy(tensor)


def shake(model):
    """Random values for all that is added; reflections without a base."""
    for name, parameter in variables(model):
        noise = torch.randn_like(parameter) * 0.3
        if name.endswith("/reflectors"):
            # Its diagonal has the signs of the basis.
            noise.fill_diagonal_(1.0)
        parameter.copy_(noise)
    for layer in model.encoder.layer:
        for reft in layer.reft_layer.refts.values():
            for unit in reft.units:
                if unit.orthogonal:
                    own = unit.projection.parametrizations.weight[0]
                    own.base = torch.eye(len(own.base))


def main():
    """Records all methods into the file that the one argument names."""
    torch.manual_seed(1)
    base, recorded = make_bert(BertConfig(**SIZES), pooler=False)
    (ids, mask, segments), recorded_inputs = make_inputs()
    recorded.update(recorded_inputs)
    weights = torch.randn(*ids.shape, SIZES["hidden_size"])
    recorded["weights"] = to_numpy(weights)
    for method, config in METHODS.items():
        model = BertModel(BertConfig(**SIZES), add_pooling_layer=False)
        model.load_state_dict(base)
        adapters.init(model)
        model.add_adapter("task", config=config)
        model.train_adapter("task")
        model.eval()
        with torch.no_grad():
            shake(model)
        outputs = torch.zeros_like(weights)
        for row, length in enumerate(mask.sum(1).tolist()):
            place = slice(row, row + 1), slice(0, length)
            given = ids[place], mask[place], segments[place]
            output = model(*given).last_hidden_state
            # Of a prompt the first token is read in the place of [CLS].
            extra = output.shape[1] - length
            output = torch.cat([output[:, :1], output[:, 1 + extra :]], dim=1)
            (output * weights[place]).sum().backward()
            outputs[place] = output.detach()
        recorded[f"{method}/output"] = to_numpy(outputs)
        for name, parameter in variables(model):
            recorded[f"{method}/{name}"] = as_here(name, parameter)
            gradient = as_here(name, parameter.grad)
            recorded[f"{method}/gradient/{name}"] = gradient
        print(f"{method}: {len(list(variables(model)))} variables")
    np.savez_compressed(sys.argv[1], **recorded)


if __name__ == "__main__":
    main()
