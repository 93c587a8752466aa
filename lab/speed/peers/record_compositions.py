"""Records what AdapterHub's `adapters` computes with several adapters at once.

    .venv-peer/bin/python lab/speed/peers/record_compositions.py \
        tests/golden/compositions.npz

Runs in the peer's environment (requirements.txt next to this file) and imports
nothing of this project. A BERT of two layers with random weights, then each
composition with random weights. Where a composition is trained there is a loss
too, with its gradients, and what one step of plain SGD makes of the trained
variables. Everything is under this project's variable names.
"""

import dataclasses
import sys
from typing import Any, Dict, Optional

import numpy as np
import torch
from adapters import (
    BertAdapterModel,
    DoubleSeqBnConfig,
    SeqBnConfig,
    SeqBnInvConfig,
)
from adapters.composition import Average, Fuse, Stack
from record_golden import (
    SIZES,
    bottleneck_variables,
    make_bert,
    make_inputs,
    to_numpy,
)
from transformers import BertConfig

# Without dropout a training step is a function of its inputs.
OPTIONS = {
    **SIZES,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LEARNING_RATE = 0.1
LABELS = (2, 0, 1)
# Places of the tokens that are to be guessed, none of them padding.
MASKED = ((0, 1), (0, 5), (1, 2), (2, 0))
# Of the random weights; the fusion's is smaller, lest one part take all.
SPREAD = 0.3
FUSION_SPREAD = 0.15
# The peer's name of a place for adapters -> this project's.
SITES = {"mh_adapter": "attention/output", "output_adapter": "output"}
# Bottlenecks of three sizes: 4, 8 and 2 of 16.
REDUCTIONS = {"a": 4, "b": 2, "c": 8}


def pfeiffer(*parts):
    """Configurations by part."""
    return {x: SeqBnConfig(reduction_factor=REDUCTIONS[x]) for x in parts}


def houlsby(*parts):
    """Configurations by part, with this project's activation."""
    return {
        x: DoubleSeqBnConfig(
            reduction_factor=REDUCTIONS[x], non_linearity="gelu_new"
        )
        for x in parts
    }


def language():
    """The language adapter of MAD-X, as the part `a`."""
    return {"a": SeqBnInvConfig(reduction_factor=REDUCTIONS["a"])}


@dataclasses.dataclass(frozen=True)
class Case:
    """A composition.

    Attributes:
        parts: the peer's configuration of each adapter.
        setup: how they are composed.
        fusion: "dynamic", with a value matrix, or "static"; None if the parts
            are not fused.
        head: "classes" or "words" if the composition is trained, else None.
        also: other setups of the same adapters, whose sequence outputs are
            recorded under these names.
    """

    parts: Dict[str, Any]
    setup: Any
    fusion: Optional[str] = None
    head: Optional[str] = None
    also: Dict[str, Any] = dataclasses.field(default_factory=dict)


FUSED = Fuse("a", "b", "c")
CASES = {
    "fusion_pfeiffer": Case(
        pfeiffer("a", "b", "c"), FUSED, fusion="dynamic", head="classes"
    ),
    "fusion_houlsby": Case(
        houlsby("a", "b", "c"), FUSED, fusion="dynamic", head="classes"
    ),
    "fusion_static": Case(pfeiffer("a", "b", "c"), FUSED, fusion="static"),
    "stack_pfeiffer": Case(pfeiffer("a", "b"), Stack("a", "b")),
    "stack_houlsby": Case(houlsby("a", "b"), Stack("a", "b")),
    "stack_mad_x": Case({**language(), **pfeiffer("b")}, Stack("a", "b")),
    "average_pfeiffer": Case(
        pfeiffer("a", "b"),
        # The peer takes the mean of the weighted outputs. So weights that add
        # up to their number give the weighted sum, and others a part of it.
        Average("a", "b", weights=[1.4, 0.6], normalize_weights=False),
        also={"halved_sequence_output": Average("a", "b", weights=[0.7, 0.3])},
    ),
    "mad_x": Case(language(), Stack("a"), head="words"),
}


def make_model(case, base):
    """The peer's model of that BERT, with random weights for all the rest."""
    # The peer writes heads and adapters down in it, so each case has its own.
    model = BertAdapterModel(BertConfig(**OPTIONS))
    for name, config in case.parts.items():
        model.add_adapter(name, config=config)
    if case.fusion is not None:
        model.add_adapter_fusion(case.setup, case.fusion)
    if case.head == "classes":
        model.add_classification_head(
            "head", num_labels=len(LABELS), layers=1, use_pooler=True
        )
    elif case.head == "words":
        model.add_masked_lm_head("head", activation_function="gelu_new")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = base.get(name.removeprefix("bert."))
            if value is None:
                spread = FUSION_SPREAD if "fusion_layer" in name else SPREAD
                value = parameter + torch.randn_like(parameter) * spread
            parameter.copy_(value)
    model.set_active_adapters(case.setup)
    return model.eval()


def added_variables(case, model, read=lambda parameter: parameter):
    """What `read` says of all that is not BERT's, under this project's names.

    Args:
        case: the composition.
        model: with its weights.
        read: gives a tensor of a parameter's shape.
    """
    found = {}
    for part in case.parts:
        # An adapter that is alone is no part.
        prefix = f"parts.{part}/" if len(case.parts) > 1 else ""
        for scope, site in adapter_sites(model):
            if part in site.adapters:
                adapter = site.adapters[part]
                found.update(
                    bottleneck_variables(
                        f"{prefix}{scope}/adapters",
                        adapter.adapter_down[0],
                        adapter.adapter_up,
                        read,
                    )
                )
        if part in model.bert.invertible_adapters:
            coupling = model.bert.invertible_adapters[part]
            for name in ("F", "G"):
                network = getattr(coupling, name)
                found.update(
                    bottleneck_variables(
                        f"{prefix}bert/embeddings/invertible/{name}",
                        network[0],
                        network[2],
                        read,
                    )
                )
    for scope, site in adapter_sites(model):
        for fusion in site.adapter_fusion_layer.values():
            for name, layer in fusion.named_children():
                if name == "dropout":
                    continue
                found[f"{scope}/fusion/{name}/kernel"] = read(layer.weight).T
                if layer.bias is not None:
                    found[f"{scope}/fusion/{name}/bias"] = read(layer.bias)
    if case.head is not None:
        found.update(HEADS[case.head](model.heads["head"], read))
    return found


def adapter_sites(model):
    """Scope and module of each place where adapters may be."""
    for number, layer in enumerate(model.bert.encoder.layer):
        for module in (layer.attention.output, layer.output):
            place = SITES[module.location_key]
            yield f"bert/encoder/layer_{number}/{place}", module


def class_variables(head, read):
    """Of a head of one layer on BERT's pooled output."""
    *_, last = head
    return {
        "output_weights": read(last.weight),
        "output_bias": read(last.bias),
    }


def word_variables(head, read):
    """Of BERT's own masked-LM head; its matrix is the word embeddings."""
    dense, _, norm, last = head
    scope = "cls/predictions"
    return {
        f"{scope}/transform/dense/kernel": read(dense.weight).T,
        f"{scope}/transform/dense/bias": read(dense.bias),
        f"{scope}/transform/LayerNorm/gamma": read(norm.weight),
        f"{scope}/transform/LayerNorm/beta": read(norm.bias),
        f"{scope}/output_bias": read(last.bias),
    }


HEADS = {"classes": class_variables, "words": word_variables}


def compute(case, model, inputs, labels=None):
    """The peer's outputs, with the loss where there are labels."""
    ids, mask, segments = inputs
    arguments = {} if labels is None else {"labels": labels}
    return model(
        ids,
        attention_mask=mask,
        token_type_ids=segments,
        output_hidden_states=True,
        output_adapter_fusion_attentions=case.fusion is not None,
        return_dict=True,
        **arguments,
    )


def attentions(case, outputs):
    """float32 [B, T, parts] of each place where parts are fused."""
    if case.fusion is None:
        return {}
    by_layer = outputs.adapter_fusion_attentions[case.setup.name]
    return {
        f"attention/bert/encoder/layer_{number}/{SITES[site]}": weights
        for number, by_site in by_layer.items()
        for site, weights in by_site.items()
    }


def train(case, model, inputs, labels):
    """What a training step computes, and what it makes of the variables."""
    if case.fusion is None:
        model.train_adapter(case.setup)
    else:
        model.train_adapter_fusion(case.setup)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE)
    outputs = compute(case, model, inputs, labels)
    penalty = model.bert.get_fusion_regularization_loss()
    loss = outputs.loss if penalty is None else outputs.loss + penalty
    loss.backward()
    found = {"outputs/logits": outputs.logits, "outputs/loss": loss}
    if penalty is not None:
        found["outputs/penalty"] = penalty
    is_trained = added_variables(
        case, model, lambda p: torch.full_like(p, p.requires_grad)
    )
    names = [name for name, value in is_trained.items() if value.all()]
    if len(names) != len(trained):
        raise ValueError(f"{len(trained)} are trained, named are {names}")
    gradients = added_variables(
        case, model, lambda p: torch.zeros_like(p) if p.grad is None else p.grad
    )
    found.update({f"gradients/{name}": gradients[name] for name in names})
    # They are read before the step, which changes the variables in place.
    found = {name: to_numpy(value) for name, value in found.items()}
    optimizer.step()
    after = added_variables(case, model)
    found.update({f"after/{name}": to_numpy(after[name]) for name in names})
    return found


def record(case, base, inputs, labels):
    """Everything of a composition, by name."""
    model = make_model(case, base)
    found = added_variables(case, model)
    found = {name: to_numpy(value) for name, value in found.items()}
    with torch.no_grad():
        outputs = compute(case, model, inputs)
        found["outputs/sequence_output"] = to_numpy(outputs.hidden_states[-1])
        if model.bert.invertible_adapters:
            embedded = outputs.hidden_states[0]
            found["outputs/embedding_output"] = to_numpy(embedded)
        for name, value in attentions(case, outputs).items():
            found[f"outputs/{name}"] = value
        for name, setup in case.also.items():
            model.set_active_adapters(setup)
            states = compute(case, model, inputs).hidden_states
            found[f"outputs/{name}"] = to_numpy(states[-1])
    if case.head is not None:
        found.update(train(case, model, inputs, labels[case.head]))
    return found


def main():
    """Records all compositions into the file that the one argument names."""
    torch.manual_seed(0)
    base, recorded = make_bert(BertConfig(**OPTIONS), pooler=True)
    inputs, recorded_inputs = make_inputs()
    recorded.update(recorded_inputs)
    # -100 is the peer's label of what is not to be guessed, -1 this project's.
    words = torch.full_like(inputs[0], -100)
    for place in MASKED:
        words[place] = torch.randint(1, SIZES["vocab_size"], ())
    labels = {"classes": torch.tensor(LABELS), "words": words}
    recorded["inputs/label_ids"] = np.array(LABELS, np.int32)
    recorded["inputs/masked_ids"] = (
        torch.where(words < 0, -1, words).numpy().astype(np.int32)
    )
    recorded["inputs/learning_rate"] = np.float32(LEARNING_RATE)
    for name, case in CASES.items():
        found = record(case, base, inputs, labels)
        recorded.update({f"{name}/{key}": v for key, v in found.items()})
        print(f"{name}: {len(found)} arrays")
    np.savez_compressed(sys.argv[1], **recorded)


if __name__ == "__main__":
    main()
