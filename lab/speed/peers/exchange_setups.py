"""Compositions as `adapters` writes them, and what it makes of ours.

    .venv-peer/bin/python lab/speed/peers/exchange_setups.py write FOLDER
    .venv-peer/bin/python lab/speed/peers/exchange_setups.py answer BERT \\
        EXAMPLES FOLDER...

Runs in the peers' environment (requirements.txt next to this file) and imports
nothing of this project; `lab/speed/exchange_setups.py` calls it. `write` makes
a tiny BERT with random weights, `bert/`, which has its masked-LM head, and
compositions of adapters in `adapterhub/`, each with what the library answers
after it has loaded the folder. `answer` loads folders of this project's by one
call, and writes `logits.npz` into each.
"""

import os
import shutil
import sys

import adapters
import exchange
import numpy as np
import transformers
from adapters import AutoAdapterModel
from adapters.composition import (
    Average,
    BatchSplit,
    Fuse,
    MultiTask,
    Parallel,
    Split,
    Stack,
)
from exchange import (
    bottleneck,
    bottlenecks,
    classification,
    double,
    parallel,
    single,
    spans,
)

# Each folder has several adapters.
LAYERS = 2


def language(size, **more):
    """A configuration of MAD-X's language adapters."""
    half = bottleneck(3) / 2
    config = adapters.SeqBnInvConfig
    return bottlenecks(config, size, inv_adapter_reduction_factor=half, **more)


LORA = adapters.LoRAConfig(r=5, alpha=16)
OTHER_LORA = adapters.LoRAConfig(r=3, alpha=2)
PREFIX = adapters.PrefixTuningConfig(prefix_length=7, bottleneck_size=5)
FUSED = Fuse("a", "b", "c")
# Adapters, their setup, heads by name, and the kind of a fusion.
CASES = {
    "stack_language": (
        {"en": language(13), "task": single(7)},
        Stack("en", "task"),
        {"task": classification()},
    ),
    "stack_houlsby": (
        {"a": double(13, leave_out=[0]), "b": double(5, non_linearity="gelu")},
        Stack("a", "b"),
        {"other": classification(1, use_pooler=True)},
    ),
    "stack_methods": (
        {"p": PREFIX, "l": LORA, "b": double(13)},
        Stack("p", "l", "b"),
        {"b": classification(1, 1)},
    ),
    "stack_alone": (
        {"a": single(13)},
        Stack("a"),
        {"a": classification()},
    ),
    "average": (
        {"a": single(13), "b": single(7), "c": single(5, scaling=2.0)},
        Average("a", "b", "c", weights=[1.0, 2.0, 3.0]),
        {"mean": classification()},
    ),
    "average_alike": (
        {"a": double(13), "b": double(5)},
        Average("a", "b"),
        {"b": spans()},
    ),
    "average_parallel": (
        {"a": parallel(13), "b": parallel(5, scaling=2.0)},
        Average("a", "b", weights=[0.25, 0.75]),
        {"b": classification(1, 1)},
    ),
    "average_lora": (
        {"a": LORA, "b": OTHER_LORA},
        Average("a", "b", weights=[3.0, 1.0]),
        {"b": classification()},
    ),
    "fusion": (
        {"a": single(13), "b": single(7), "c": single(5)},
        FUSED,
        {"fused": classification()},
        "dynamic",
    ),
    "fusion_static": (
        {"a": double(13, leave_out=[1]), "b": double(5, leave_out=[0])}
        | {"c": double(7)},
        FUSED,
        {"c": spans(1)},
        "static",
    ),
    "stack_fusion": (
        {"en": language(5), "a": single(13), "b": single(7)},
        Stack("en", Fuse("a", "b")),
        {"task": classification(1, 1)},
        "dynamic",
    ),
    "stack_average": (
        {"a": single(5), "b": single(13), "c": single(7)},
        Stack("a", Average("b", "c", weights=[0.6, 0.4])),
        {"task": classification()},
    ),
    "parallel": (
        {"a": single(13), "b": single(7)},
        Parallel("a", "b"),
        {"a": classification(), "b": classification(1, 1, use_pooler=True)},
    ),
    "parallel_houlsby": (
        {"a": double(13), "b": double(7)},
        Parallel("a", "b"),
        {"a": spans(), "b": classification()},
    ),
    "parallel_lora": (
        {"a": LORA, "b": OTHER_LORA},
        Parallel("a", "b"),
        {"a": classification(), "b": classification(1, 2)},
    ),
}
# What this project does not compute; only the files are written.
REFUSED = {
    "split": (
        {"a": single(13), "b": single(7)},
        Split("a", "b", splits=[5, 7]),
        {"a": classification()},
    ),
    "batch_split": (
        {"a": single(13), "b": single(7)},
        BatchSplit("a", "b", batch_sizes=[2, 2]),
        {"a": classification()},
    ),
    "multi_task": (
        {"a": LORA, "b": OTHER_LORA},
        MultiTask("a", "b"),
        {"a": classification()},
    ),
    "stack_parallel": (
        {"a": single(13), "b": single(7), "c": single(5)},
        Stack("a", Parallel("b", "c")),
        {"b": classification()},
    ),
    "fusion_of_stacks": (
        {"a": single(13), "b": single(7), "c": single(5)},
        Fuse(Stack("a", "b"), "c"),
        {"c": classification()},
        "dynamic",
    ),
    "stack_lora": (
        {"a": LORA, "b": OTHER_LORA},
        Stack("a", "b"),
        {"b": classification()},
    ),
    "stack_parallel_adapters": (
        {"a": single(13), "b": parallel(7)},
        Stack("a", "b"),
        {"b": classification()},
    ),
    "second_language": (
        {"en": single(13), "de": language(7)},
        Stack("en", "de"),
        {"de": classification()},
    ),
    "glow": (
        {"en": language(13, inv_adapter="glow"), "b": single(7)},
        Stack("en", "b"),
        {"b": classification()},
    ),
    "average_methods": (
        {"a": single(13), "b": double(7)},
        Average("a", "b"),
        {"b": classification()},
    ),
    "average_languages": (
        {"a": language(13), "b": language(7)},
        Average("a", "b"),
        {"b": classification()},
    ),
    "fusion_parallel": (
        {"a": parallel(13), "b": parallel(7)},
        Fuse("a", "b"),
        {"b": classification()},
        "dynamic",
    ),
    "parallel_languages": (
        {"a": language(13), "b": language(7)},
        Parallel("a", "b"),
        {"a": classification(), "b": classification()},
    ),
    "parallel_prefix": (
        {
            "a": PREFIX,
            "b": adapters.PrefixTuningConfig(
                prefix_length=3, bottleneck_size=5
            ),
        },
        Parallel("a", "b"),
        {"a": classification(), "b": classification(1, 2)},
    ),
    "no_head": ({"a": single(13), "b": single(7)}, Stack("a", "b"), {}),
}


def make_model(bert, parts, setup, heads, fusion=None, seed=0):
    """A model with random values in all that is not BERT's."""
    model = AutoAdapterModel.from_pretrained(bert)
    frozen = {name for name, _ in model.named_parameters()}
    for name, config in parts.items():
        model.add_adapter(name, config=config)
    if fusion:
        blocks = (setup, *setup.children)
        [fused] = [block for block in blocks if isinstance(block, Fuse)]
        model.add_adapter_fusion(fused.name, fusion)
    for name, (kind, arguments) in heads.items():
        model.add_prediction_head(kind(model, name, **arguments))
    exchange.shake(model, seed, lambda name: name not in frozen)
    return model


def save_setup(model, folder, setup, heads):
    """Saves a setup with its heads, as safetensors."""
    names = list(heads)
    head_setup = names[0] if len(names) == 1 else names or None
    try:
        model.save_adapter_setup(
            folder, setup, head_setup=head_setup, use_safetensors=True
        )
    except RuntimeError:
        shutil.rmtree(folder)
        model.save_adapter_setup(folder, setup, head_setup=head_setup)
        exchange.as_safetensors(folder)


def load(bert, folder):
    """A model with what a folder holds, by one call of the library."""
    if os.path.exists(os.path.join(folder, exchange.SETUP)):
        return exchange.load(bert, folder)
    # A language's adapter, under BERT's own head. The library's heads undo the
    # invertible adapter, transformers' do not.
    own = transformers.BertForMaskedLM.from_pretrained(bert).cls.predictions
    model = AutoAdapterModel.from_pretrained(bert)
    model.load_adapter(folder, use_safetensors=True, set_active=True)
    model.add_masked_lm_head("words", activation_function="gelu")
    dense, _, norm, last = model.heads["words"]
    dense.load_state_dict(own.transform.dense.state_dict())
    norm.load_state_dict(own.transform.LayerNorm.state_dict())
    last.load_state_dict(own.decoder.state_dict())
    return model


def save_logits(bert, folder, examples):
    """Writes `logits.npz`: `logits`, or `logits_0`, ... of several heads."""
    found = exchange.compute(load(bert, folder).eval(), examples)
    path = os.path.join(folder, "logits.npz")
    if "head_outputs" not in found:
        np.savez(path, logits=exchange.logits_in(found).numpy())
        return
    several, count = {}, len(examples["input_ids"])
    for number, head in enumerate(found["head_outputs"]):
        rows = exchange.logits_in(head).numpy()
        if len(rows) > count:
            # A head that reads the pooled output gives all adapters' rows.
            rows = rows[number * count : (number + 1) * count]
        several[f"logits_{number}"] = rows
    np.savez(path, **several)


def write_bert(folder):
    """A BERT with random weights, its masked-LM head and its vocabulary."""
    model = exchange.make_bert("BertForMaskedLM", num_hidden_layers=LAYERS)
    # Only the pooler is not in it.
    whole = transformers.BertForPreTraining(model.config)
    exchange.shake(whole, 2)
    whole.load_state_dict(model.state_dict(), strict=False)
    exchange.save_bert(whole, folder)


def write(folder):
    """Everything, into an empty folder."""
    os.makedirs(os.path.join(folder, "bert"))
    write_bert(os.path.join(folder, "bert"))
    examples = exchange.make_examples()
    np.savez(os.path.join(folder, "examples.npz"), **examples)
    # So that no name of a folder of this machine gets into the files.
    os.chdir(folder)
    seed = 10
    for place, cases in (("adapterhub", CASES), ("refused", REFUSED)):
        for name, case in cases.items():
            seed += 1
            path = os.path.join(place, name)
            model = make_model("bert", *case, seed=seed)
            save_setup(model, path, case[1], case[2])
            if cases is CASES:
                save_logits("bert", path, examples)
    write_fusion_folders("fusion_folders", seed + 1, examples)
    model = make_model("bert", {"en": language(13)}, None, {}, seed=seed + 2)
    path = os.path.join("adapterhub", "language")
    model.save_adapter(path, "en", use_safetensors=True)
    save_logits("bert", path, examples)


def write_fusion_folders(folder, seed, examples):
    """Adapters and their fusion, each in a folder, without a setup."""
    parts, setup = {"a": single(13), "b": single(7)}, Fuse("a", "b")
    heads = dict.fromkeys(["a", "a,b"], classification())
    heads["b"] = classification(1, 1)
    model = make_model("bert", parts, setup, heads, "dynamic", seed)
    model.save_all_adapters(folder, use_safetensors=True)
    place = os.path.join(folder, "a,b")
    model.save_adapter_fusion(
        place, setup, with_head=True, use_safetensors=True
    )
    for name in ("a", "b", "a,b"):
        model.set_active_adapters(setup if name == "a,b" else Stack(name))
        model.active_head = name
        exchange.save_logits(os.path.join(folder, name), model, examples)


def main():
    """Writes or answers, as the command line says."""
    transformers.logging.set_verbosity_error()
    command, *arguments = sys.argv[1:]
    if command == "write":
        write(*arguments)
        return
    bert, path, *folders = arguments
    examples = dict(np.load(path))
    for folder in folders:
        save_logits(bert, folder, examples)


if __name__ == "__main__":
    main()
