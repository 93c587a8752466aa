"""Records what AdapterHub's `adapters` computes with each of its methods.

    .venv-peer/bin/python lab/speed/peers/record_golden.py \
        tests/golden/methods.npz

Runs in the peer's environment (requirements.txt next to this file) and imports
nothing of this project. A BERT of two layers with random weights, then each
method with random weights; everything under this project's variable names,
with the output of the last layer.
"""

import sys

import adapters
import numpy as np
import torch
from adapters import (
    CompacterConfig,
    DoubleSeqBnConfig,
    IA3Config,
    LoRAConfig,
    ParBnConfig,
    PrefixTuningConfig,
    SeqBnConfig,
)
from transformers import BertConfig, BertModel

SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "hidden_act": "gelu_new",
}
REDUCTION = 4  # 16 to 4.
# Name in the file -> the peer's configuration.
METHODS = {
    "houlsby": DoubleSeqBnConfig(
        reduction_factor=REDUCTION, non_linearity="gelu_new"
    ),
    "pfeiffer": SeqBnConfig(reduction_factor=REDUCTION),
    "parallel": ParBnConfig(reduction_factor=REDUCTION),
    "compacter": CompacterConfig(
        reduction_factor=2, non_linearity="gelu_new", phm_dim=4
    ),
    "lora": LoRAConfig(
        r=2,
        alpha=6,
        attn_matrices=["q", "k", "v"],
        intermediate_lora=True,
        output_lora=True,
    ),
    "prefix": PrefixTuningConfig(prefix_length=3, bottleneck_size=8),
    # Its scales of inner activations come before gelu, against the paper, so
    # they are left out.
    "ia3": IA3Config(intermediate_lora=False),
}
LORA_SCOPES = {
    "query": "attention/self/query",
    "key": "attention/self/key",
    "value": "attention/self/value",
    "intermediate.dense": "intermediate/dense",
    "output.dense": "output/dense",
}


def bert_name(name):
    """`encoder.layer.0.output.dense.weight` as Google's checkpoints say it."""
    name = name.replace("layer.", "layer_").replace(".", "/")
    for old, new in (
        ("_embeddings/weight", "_embeddings"),
        ("LayerNorm/weight", "LayerNorm/gamma"),
        ("LayerNorm/bias", "LayerNorm/beta"),
        ("/weight", "/kernel"),
    ):
        if name.endswith(old):
            name = name[: -len(old)] + new
            break
    return f"bert/{name}"


def added_variables(method, model, state):
    """Returns the method's weights under this project's names."""
    variables = {}
    if method == "prefix":
        # One network for all layers, in a pool next to the model.
        for old, new in (
            ("wte.weight", "embedding"),
            ("control_trans.0.weight", "inner/kernel"),
            ("control_trans.0.bias", "inner/bias"),
            ("control_trans.2.weight", "outer/kernel"),
            ("control_trans.2.bias", "outer/bias"),
        ):
            (value,) = (
                v
                for k, v in state.items()
                if k.startswith("prefix_tuning.") and k.endswith(old)
            )
            if new.endswith("kernel"):
                value = value.T
            variables[f"prefix/{new}"] = value
        return variables
    for number, layer in enumerate(model.encoder.layer):
        scope = f"bert/encoder/layer_{number}"
        if method in ("lora", "ia3"):
            for path, place in LORA_SCOPES.items():
                parent = layer.attention.self if "/self/" in place else layer
                loras = parent.get_submodule(path).loras
                if "task" not in loras:
                    continue
                if method == "ia3":
                    variables[f"{scope}/{place}/ia3_scale"] = loras[
                        "task"
                    ].lora_B.reshape(-1)
                else:
                    variables[f"{scope}/{place}/lora_a"] = loras[
                        "task"
                    ].lora_A.T
                    variables[f"{scope}/{place}/lora_b"] = loras[
                        "task"
                    ].lora_B.T
            continue
        for part, place in (
            (layer.attention.output, "attention/output"),
            (layer.output, "output"),
        ):
            adapters_here = part.adapters
            if "task" not in adapters_here:
                continue
            adapter = adapters_here["task"]
            if method == "compacter":
                down, up = adapter.adapter_down[0], adapter.adapter_up
                for name, layer_of in (("down", down), ("up", up)):
                    base = f"{scope}/{place}/compacter/{name}"
                    variables[f"{base}/left"] = layer_of.W_left
                    variables[f"{base}/right"] = layer_of.W_right
                    variables[f"{base}/bias"] = layer_of.b
                variables["compacter/shared"] = model.shared_parameters["task"][
                    "phm_rule"
                ]
                continue
            variables.update(
                bottleneck_variables(
                    f"{scope}/{place}/adapters",
                    adapter.adapter_down[0],
                    adapter.adapter_up,
                )
            )
    return variables


def bottleneck_variables(scope, down, up):
    """What is read of a bottleneck's two layers, under this project's names."""
    return {
        f"{scope}/weights1": down.weight.T,
        f"{scope}/biases1": down.bias[None],
        f"{scope}/weights2": up.weight.T,
        f"{scope}/biases2": up.bias[None],
    }


def to_numpy(tensor):
    """float32 copy of a tensor."""
    return np.array(tensor.detach().numpy(), np.float32, order="C")


def make_bert(config):
    """Makes the state of a BERT with random weights, and its record."""
    model = BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    base = {k: v.clone() for k, v in model.state_dict().items()}
    recorded = {
        bert_name(k): to_numpy(
            v.T
            if k.endswith("dense.weight")
            or k.endswith(("query.weight", "key.weight", "value.weight"))
            else v
        )
        for k, v in base.items()
    }
    return base, recorded


def make_inputs():
    """Ids, mask and segments, int64 [3, 7] each, and what is recorded."""
    ids = torch.randint(1, SIZES["vocab_size"], (3, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    mask[2, 3:] = 0
    segments = (torch.arange(7) > 3).long().expand(3, 7)
    recorded = {
        "inputs/input_ids": ids.numpy().astype(np.int32),
        "inputs/input_mask": mask.numpy().astype(np.int32),
        "inputs/segment_ids": segments.numpy().astype(np.int32),
    }
    return (ids, mask, segments), recorded


def main():
    """Records all methods into the file that the one argument names."""
    torch.manual_seed(0)
    base, recorded = make_bert(BertConfig(**SIZES))
    inputs, recorded_inputs = make_inputs()
    recorded.update(recorded_inputs)
    for method, config in METHODS.items():
        model = BertModel(BertConfig(**SIZES), add_pooling_layer=False)
        model.load_state_dict(base)
        adapters.init(model)
        model.add_adapter("task", config=config, set_active=True)
        model.eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.replace(".base_layer", "") not in base:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
            output = model(*inputs).last_hidden_state
        recorded[f"{method}/output"] = to_numpy(output)
        variables = added_variables(method, model, model.state_dict())
        for name, value in variables.items():
            recorded[f"{method}/{name}"] = to_numpy(value)
        print(f"{method}: {len(variables)} variables")
    np.savez_compressed(sys.argv[1], **recorded)


if __name__ == "__main__":
    main()
