"""Adapters as `adapters` and `peft` write them, and what they make of ours.

    .venv-peer/bin/python lab/speed/peers/exchange.py write FOLDER
    .venv-peer/bin/python lab/speed/peers/exchange.py answer BERT EXAMPLES \\
        FOLDER...

Runs in the peers' environment (requirements.txt next to this file) and imports
nothing of this project; `lab/speed/exchange.py` calls it. `write` makes a tiny
BERT with random weights, `bert/`, and adapters for it, in `adapterhub/` and
`peft/`, each with the logits of `examples.npz`. `answer` loads adapters of this
project's by the line that the peers' users know, and writes `logits.npz` into
each folder.
"""

import functools
import json
import os
import sys

import adapters
import numpy as np
import peft
import torch
import transformers
from adapters import AutoAdapterModel
from safetensors.torch import load_file, save_file

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
}
WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat ran on mat fast slow not "
    "is was good bad film , . ! ? ##s ##ed ##ing in out he she it we they very "
    "so too new old"
).split()
LABELS = {0: "not at all", 1: "yes, of course", 2: "größer ≥ 7 日本"}
ADAPTER = "my task"
SETUP = "adapter_setup.json"
# Pickles of AdapterHub's -> what the same values are called as safetensors.
PICKLES = {
    "pytorch_adapter.bin": "adapter.safetensors",
    "pytorch_model_head.bin": "model_head.safetensors",
    "pytorch_model_adapter_fusion.bin": "model_adapter_fusion.safetensors",
}


def bottleneck(size):
    """The reduction factor that gives this size."""
    return SIZES["hidden_size"] / (size + 0.5)


def classification(layers=2, labels=3, activation="tanh", **more):
    """Arguments of a flexible head."""
    names = {i: LABELS[i] for i in range(labels)} if labels > 1 else None
    return (
        adapters.ClassificationHead,
        {
            "num_labels": labels,
            "layers": layers,
            "activation_function": activation,
            "id2label": names,
            **more,
        },
    )


def spans(layers=1):
    """Arguments of a head for questions."""
    return adapters.QuestionAnsweringHead, {
        "layers": layers,
        "activation_function": "relu",
    }


def bottlenecks(config, size, **more):
    """A configuration of bottlenecks of this size."""
    return config(reduction_factor=bottleneck(size), **more)


double = functools.partial(bottlenecks, adapters.DoubleSeqBnConfig)
single = functools.partial(bottlenecks, adapters.SeqBnConfig)
parallel = functools.partial(bottlenecks, adapters.ParBnConfig)

HUB = {
    "houlsby_7": (double(7), classification()),
    "houlsby_48_gelu": (
        double(48, non_linearity="gelu"),
        classification(1, use_pooler=True),
    ),
    "houlsby_attention": (
        double(
            5, output_adapter=False, non_linearity="leakyrelu", leave_out=[0]
        ),
        classification(2, 2, "gelu", bias=False),
    ),
    "houlsby_learned_scale": (
        double(5, scaling="learned", non_linearity="mish"),
        spans(),
    ),
    "pfeiffer_100": (single(100), classification(1)),
    "pfeiffer_scaled": (
        single(3, scaling=2.5, non_linearity="gelu_new", leave_out=[1]),
        classification(3, 3, "relu"),
    ),
    "pfeiffer_channels": (
        single(3, scaling="channel", non_linearity="quick_gelu"),
        classification(2, 1),
    ),
    "parallel_7": (parallel(7), classification(1, 1, use_pooler=True)),
    "parallel_scale_2": (
        parallel(3, scaling=2.0, non_linearity="sigmoid"),
        spans(2),
    ),
    "lora_7": (adapters.LoRAConfig(r=7, alpha=16), classification()),
    "lora_everywhere": (
        adapters.LoRAConfig(
            r=3,
            alpha=8,
            attn_matrices=["q", "k", "v"],
            intermediate_lora=True,
            output_lora=True,
            leave_out=[2],
        ),
        classification(1, 2),
    ),
    "ia3_keys_values": (
        adapters.IA3Config(intermediate_lora=False),
        classification(),
    ),
    "prefix_5": (
        adapters.PrefixTuningConfig(prefix_length=5, bottleneck_size=8),
        classification(),
    ),
    "prefix_flat": (
        adapters.PrefixTuningConfig(prefix_length=3, flat=True),
        classification(),
    ),
    "mad_x_7": (
        bottlenecks(
            adapters.SeqBnInvConfig,
            7,
            # Of half of the hidden size.
            inv_adapter_reduction_factor=bottleneck(3) / 2,
        ),
        classification(),
    ),
    "houlsby_13_gated": (double(13, use_gating=True), classification()),
    "parallel_sizes": (
        adapters.ParBnConfig(
            reduction_factor={
                "0": bottleneck(13),
                "2": bottleneck(1),
                "default": bottleneck(5),
            },
            scaling=2.0,
            use_gating=True,
        ),
        spans(),
    ),
    "lora_5_gated": (
        adapters.LoRAConfig(
            r=5,
            alpha=3,
            attn_matrices=["q", "k"],
            intermediate_lora=True,
            output_lora=True,
            use_gating=True,
        ),
        classification(1, 2),
    ),
    "prefix_7_gated": (
        adapters.PrefixTuningConfig(
            prefix_length=7,
            bottleneck_size=8,
            use_gating=True,
            shared_gating=False,
        ),
        classification(2, 1),
    ),
    "mam": (
        adapters.MAMConfig(
            adapters.PrefixTuningConfig(prefix_length=7, bottleneck_size=8),
            parallel(13),
        ),
        classification(),
    ),
    "unipelt": (
        adapters.UniPELTConfig(
            adapters.PrefixTuningConfig(prefix_length=7, bottleneck_size=8),
            single(13),
            adapters.LoRAConfig(r=5, alpha=3),
        ),
        spans(),
    ),
    "prompt_7": (
        adapters.PromptTuningConfig(prompt_length=7),
        classification(),
    ),
    "prompt_pooled": (
        adapters.PromptTuningConfig(
            prompt_length=3, combine="prefix_after_bos"
        ),
        classification(1, 2, use_pooler=True),
    ),
    "prompt_questions": (
        adapters.PromptTuningConfig(
            prompt_length=7, combine="prefix_after_bos"
        ),
        spans(),
    ),
    "prompt_first": (adapters.PromptTuningConfig(prompt_length=2), spans()),
    "union_prompt": (
        adapters.ConfigUnion(
            adapters.PromptTuningConfig(prompt_length=2),
            single(5, use_gating=True),
        ),
        classification(2, 1),
    ),
    "loreft_3": (
        adapters.LoReftConfig(r=3, suffix_positions=2),
        classification(),
    ),
    "loreft_1": (adapters.LoReftConfig(layers=[0, 2]), spans()),
    "noreft_tied": (
        adapters.NoReftConfig(
            r=5,
            prefix_positions=2,
            suffix_positions=2,
            tied_weights=True,
            non_linearity="relu",
        ),
        classification(2, 1),
    ),
    "union_by_layer": (
        adapters.ConfigUnion(
            single(13, leave_out=[1]), parallel(7, leave_out=[0, 2])
        ),
        classification(),
    ),
}
# What this project does not compute; only the files are written.
HUB_REFUSED = {
    "ia3": (adapters.IA3Config(), classification()),
    "compacter": (
        adapters.CompacterConfig(reduction_factor=2, phm_dim=4),
        classification(),
    ),
    "own_layer_norm": (adapters.SeqBnConfig(ln_after=True), classification()),
    "other_residual": (
        adapters.SeqBnConfig(residual_before_ln=False),
        classification(),
    ),
    "dora": (adapters.DoRAConfig(r=2), classification()),
    "no_head": (adapters.SeqBnConfig(), None),
}
# Models of transformers' own, with its own heads.
STATIC = {
    "static_classifier": (
        "BertForSequenceClassification",
        single(4),
    ),
    "static_questions": (
        "BertForQuestionAnswering",
        double(4),
    ),
}

SEQUENCES, QUESTIONS = "SEQ_CLS", "QUESTION_ANS"
MODELS = {
    SEQUENCES: "AutoModelForSequenceClassification",
    QUESTIONS: "AutoModelForQuestionAnswering",
}
HEAD_BIASES = (".classifier.bias", ".out_proj.bias", ".qa_outputs.bias")
PEFT = {
    "lora_7": (
        SEQUENCES,
        3,
        lambda: peft.LoraConfig(
            r=7, lora_alpha=16, target_modules=["query", "value"]
        ),
    ),
    "lora_everywhere": (
        SEQUENCES,
        2,
        lambda: peft.LoraConfig(
            r=4,
            lora_alpha=3,
            use_rslora=True,
            target_modules=["query", "key", "value", "dense"],
            exclude_modules=["pooler.dense", "bert.pooler.dense"],
        ),
    ),
    "lora_patterns": (
        SEQUENCES,
        1,
        lambda: peft.LoraConfig(
            r=4,
            lora_alpha=3,
            target_modules=["query", "key"],
            rank_pattern={"layer.1.attention.self.query": 2},
            alpha_pattern={"key": 10},
            layers_to_transform=[1, 2],
        ),
    ),
    "lora_questions": (QUESTIONS, 2, lambda: peft.LoraConfig(r=2)),
    "ia3_same": (
        SEQUENCES,
        3,
        lambda: peft.IA3Config(
            target_modules=r".*(key|value|layer\.\d+\.output\.dense)",
            feedforward_modules=r".*layer\.\d+\.output\.dense",
        ),
    ),
}
PEFT_REFUSED = {
    "ia3": (SEQUENCES, 3, lambda: peft.IA3Config()),
    "lora_bias": (SEQUENCES, 3, lambda: peft.LoraConfig(r=2, bias="all")),
    "prefix": (
        SEQUENCES,
        3,
        lambda: peft.PrefixTuningConfig(num_virtual_tokens=3),
    ),
    "prompt": (
        SEQUENCES,
        3,
        lambda: peft.PromptTuningConfig(num_virtual_tokens=3),
    ),
}


# The LoRA family: program -> cases as above.
ALL_KERNELS = ["query", "key", "value", "attention.output.dense"]
ALL_KERNELS += ["intermediate.dense", "output.dense"]
HUB_LORA = {
    "vera_5": (
        adapters.VeraConfig(r=5, alpha=8, leave_out=[1]),
        classification(),
    ),
}
PEFT_LORA = {
    "rslora_5": (
        SEQUENCES,
        3,
        lambda: peft.LoraConfig(
            r=5,
            lora_alpha=3,
            use_rslora=True,
            target_modules=ALL_KERNELS,
            rank_pattern={r"layer\.[02]\.output.dense": 7, "key": 1},
            alpha_pattern={"layer.1.attention.self.query": 0.7, "value": 10},
        ),
    ),
    "dora_5": (
        SEQUENCES,
        2,
        lambda: peft.LoraConfig(
            r=5,
            lora_alpha=3,
            use_dora=True,
            target_modules=["query", "layer.1.intermediate.dense"],
            rank_pattern={"layer.2.attention.self.query": 13},
        ),
    ),
    "dora_questions": (
        QUESTIONS,
        2,
        lambda: peft.LoraConfig(
            r=3, use_dora=True, use_rslora=True, target_modules=ALL_KERNELS
        ),
    ),
    "vera_5": (
        SEQUENCES,
        1,
        lambda: peft.VeraConfig(
            r=5,
            projection_prng_key=13,
            target_modules=["query", "intermediate.dense"],
            layers_to_transform=[0, 2],
        ),
    ),
    "vera_37_drawn_again": (
        QUESTIONS,
        2,
        lambda: peft.VeraConfig(
            r=37, save_projection=False, target_modules=ALL_KERNELS
        ),
    ),
    "adalora_5": (
        SEQUENCES,
        3,
        lambda: peft.AdaLoraConfig(
            init_r=5,
            target_r=2,
            lora_alpha=7,
            total_step=STEPS,
            target_modules=["key", "value", "intermediate.dense"],
        ),
    ),
}
PEFT_POOLER = {
    "pooler": (
        SEQUENCES,
        3,
        lambda: peft.LoraConfig(r=2, modules_to_save=["classifier", "pooler"]),
    ),
    "all_linear_5": (
        SEQUENCES,
        3,
        lambda: peft.LoraConfig(
            r=5,
            lora_alpha=3,
            target_modules="all-linear",
            rank_pattern={"pooler.dense": 7},
            alpha_pattern={"bert.pooler.dense": 0.7},
        ),
    ),
    "vera_pooler": (
        SEQUENCES,
        2,
        lambda: peft.VeraConfig(
            r=5, target_modules=["key", "intermediate.dense", "pooler.dense"]
        ),
    ),
}
# Words that a task adds, one of them a whole word only.
NEW_WORDS = "foo", transformers.AddedToken("mat 7", single_word=True)
PEFT_WORDS = {
    "new_words": (
        SEQUENCES,
        3,
        lambda: peft.LoraConfig(
            r=5,
            lora_alpha=3,
            target_modules=["query", "pooler.dense"],
            trainable_token_indices={"word_embeddings": [41, 40]},
        ),
    ),
}
# Of a training with AdaLoRA.
STEPS = 6


def shake(model, seed, only=None):
    """Gives parameters random values, so that none is at its start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only is None or only(name):
                noise = torch.randn(parameter.shape, generator=generator)
                scale = torch.ones_like if parameter.ndim == 1 else None
                mean = scale(parameter) if scale and "ia3" in name else 0.0
                parameter.copy_(mean + 0.3 * noise)


def make_bert(kind, **sizes):
    """A class of transformers with random weights, LayerNorms near one."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**{**SIZES, **sizes})
    model = getattr(transformers, kind)(config)
    shake(model, 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("LayerNorm.weight"):
                parameter.add_(1.0)
    return model


def save_bert(model, folder):
    """Writes a BERT with its config and vocabulary."""
    model.save_pretrained(folder, safe_serialization=True)
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
        file.write("".join(f"{word}\n" for word in WORDS))


def make_examples():
    """Rows of several lengths, some of them pairs."""
    rng = np.random.default_rng(5)
    ids = rng.integers(5, SIZES["vocab_size"], (4, 12))
    mask = np.ones_like(ids)
    segments = np.zeros_like(ids)
    for row, length in enumerate((12, 9, 5, 3)):
        ids[row, length:], mask[row, length:] = 0, 0
        ids[row, 0], ids[row, length - 1] = 2, 3
        segments[row, length // 2 : length] = row % 2
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def with_new_words(examples):
    """Rows whose second token is a new word."""
    ids = examples["input_ids"].copy()
    ids[:, 1] = SIZES["vocab_size"] + np.arange(len(ids)) % len(NEW_WORDS)
    return {**examples, "input_ids": ids}


def compute(model, examples):
    """What a model gives for rows."""
    more = {}
    if hasattr(model.config, "type_vocab_size"):
        more["token_type_ids"] = torch.as_tensor(examples["segment_ids"])
    with torch.no_grad():
        return model(
            input_ids=torch.as_tensor(examples["input_ids"]),
            attention_mask=torch.as_tensor(examples["input_mask"]),
            return_dict=True,
            **more,
        )


def logits_in(outputs):
    """[rows, classes], [rows, tokens, words], or of questions [..., 2]."""
    if "logits" in outputs:
        return outputs["logits"]
    return torch.stack([outputs["start_logits"], outputs["end_logits"]], -1)


def logits_of(model, examples):
    """[rows, classes], or [rows, tokens, 2] of questions."""
    model.eval()
    if isinstance(model, peft.PeftModelForQuestionAnswering):
        # That drops `token_type_ids`; what it wraps has the adapter in it.
        model = model.base_model
    return logits_in(compute(model, examples)).numpy()


def row_by_row(model, examples):
    """As `logits_of`, each row without its padding, and zeros there.

    Gates of adapters have means over padding too.
    """
    found = []
    for row, length in enumerate(examples["input_mask"].sum(axis=1)):
        alone = {k: v[row : row + 1, :length] for k, v in examples.items()}
        logits = logits_of(model, alone)
        missing = examples["input_mask"].shape[1] - length
        if logits.ndim == 3:
            logits = without_prompt(model, logits, length)
            logits = np.pad(logits, [(0, 0), (0, missing), (0, 0)])
        found.append(logits)
    return np.concatenate(found)


def without_prompt(model, logits, length):
    """The logits of a text's tokens, without those of virtual tokens."""
    extra = logits.shape[1] - length
    if extra == 0:
        return logits
    (name,) = model.active_adapters.flatten()
    combine = model.adapters_config.get(name)["combine"]
    first = {"prefix": 0, "prefix_after_bos": 1}[combine]
    return np.delete(logits, slice(first, first + extra), axis=1)


def save_logits(folder, model, examples):
    """Writes `logits.npz` next to an adapter."""
    np.savez(
        os.path.join(folder, "logits.npz"), logits=row_by_row(model, examples)
    )


def write_hub(bert, folder, config, head, seed, examples):
    """An adapter of AdapterHub's with a flexible head."""
    model = AutoAdapterModel.from_pretrained(bert)
    model.add_adapter(ADAPTER, config=config)
    if head:
        model.add_prediction_head(head[0](model, ADAPTER, **head[1]))
    model.set_active_adapters(ADAPTER)
    shake_task(model, seed)
    save_hub(model, folder)
    if head:
        save_logits(folder, model, examples)


def shake_task(model, seed):
    """Random values for all that an adapter's training would train."""
    model.train_adapter(ADAPTER)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    shake(model, seed, trained.__contains__)


def save_hub(model, folder):
    """Saves as safetensors; a prefix, which that cannot save, by its state."""
    os.makedirs(folder, exist_ok=True)
    try:
        model.save_adapter(folder, ADAPTER, use_safetensors=True)
    except RuntimeError:
        model.save_adapter(folder, ADAPTER)
        as_safetensors(folder)


def as_safetensors(folder):
    """Converts all pickles, as of prefixes, which the library saves so only."""
    for place, _, names in os.walk(folder):
        for old in set(names) & set(PICKLES):
            path = os.path.join(place, old)
            state = torch.load(path, weights_only=True)
            kept = {k: v.contiguous().clone() for k, v in state.items()}
            save_file(kept, os.path.join(place, PICKLES[old]))
            os.remove(path)


def write_static(bert, folder, kind, config, seed, examples):
    """An adapter of AdapterHub's in a model of transformers' own."""
    model = getattr(transformers, kind).from_pretrained(
        bert, **({"num_labels": 3, "id2label": LABELS} if "Seq" in kind else {})
    )
    adapters.init(model)
    model.add_adapter(ADAPTER, config=config)
    model.set_active_adapters(ADAPTER)
    shake_task(model, seed)
    os.makedirs(folder)
    model.save_adapter(folder, ADAPTER, with_head=True, use_safetensors=True)
    save_logits(folder, model, examples)


def write_peft(bert, folder, kind, labels, config, seed, examples):
    """An adapter of peft's, with its tokenizer if that has new words."""
    config.task_type = kind
    torch.manual_seed(seed)
    # The model may have a head of another size.
    base = getattr(transformers, MODELS[kind]).from_pretrained(
        bert, num_labels=labels, ignore_mismatched_sizes=True
    )
    if getattr(config, "trainable_token_indices", None):
        examples = with_new_words(examples)
        tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
        tokenizer.add_tokens(list(NEW_WORDS))
        tokenizer.save_pretrained(folder)
        base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model = peft.get_peft_model(base, config)
    shake(
        model, seed, lambda n: dict(model.named_parameters())[n].requires_grad
    )
    if isinstance(config, peft.AdaLoraConfig):
        allocate(model, examples)
    model.save_pretrained(folder)
    remove_place(folder)
    save_logits(folder, model, examples)


def allocate(model, examples):
    """Lets AdaLoRA choose ranks, by the gradients of a loss."""
    for step in range(1, STEPS + 1):
        outputs = model(
            input_ids=torch.tensor(examples["input_ids"]),
            attention_mask=torch.tensor(examples["input_mask"]),
        )
        outputs.logits.square().sum().backward()
        model.base_model.update_and_allocate(step)
        model.zero_grad()


def remove_place(folder):
    """Takes this machine's paths, and the model card, out of a recording."""
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as file:
        config = json.load(file)
    config["base_model_name_or_path"] = "bert"
    with open(path, "w") as file:
        json.dump(config, file, indent=1, sort_keys=True)
    os.remove(os.path.join(folder, "README.md"))


def write(folder):
    """Everything, into an empty folder."""
    bert = os.path.join(folder, "bert")
    os.makedirs(bert)
    save_bert(make_bert("BertModel"), bert)
    examples = make_examples()
    np.savez(os.path.join(folder, "examples.npz"), **examples)
    # So that no name of a folder of this machine gets into the files.
    os.chdir(folder)
    seed = 10
    for place, cases in (
        ("adapterhub", HUB),
        ("adapterhub_refused", HUB_REFUSED),
    ):
        for name, (config, head) in cases.items():
            seed += 1
            path = os.path.join(place, name)
            write_hub("bert", path, config, head, seed, examples)
    for name, (kind, config) in STATIC.items():
        seed += 1
        path = os.path.join("adapterhub", name)
        write_static("bert", path, kind, config, seed, examples)
    for place, cases in (("peft", PEFT), ("peft_refused", PEFT_REFUSED)):
        for name, (kind, labels, config) in cases.items():
            seed += 1
            path = os.path.join(place, name)
            write_peft("bert", path, kind, labels, config(), seed, examples)
    for name, (config, head) in HUB_LORA.items():
        seed += 1
        path = os.path.join("adapterhub", name)
        write_hub("bert", path, config, head, seed, examples)
    added = {**PEFT_LORA, **PEFT_POOLER, **PEFT_WORDS}
    for name, (kind, labels, config) in added.items():
        seed += 1
        path = os.path.join("peft", name)
        write_peft("bert", path, kind, labels, config(), seed, examples)


def load(bert, folder):
    """A model with an adapter or a composition of this project's."""
    if os.path.exists(os.path.join(folder, SETUP)):
        model = AutoAdapterModel.from_pretrained(bert)
        model.load_adapter_setup(folder, use_safetensors=True, set_active=True)
        return model
    with open(os.path.join(folder, "adapter_config.json")) as file:
        config = json.load(file)
    if "peft_type" not in config:
        model = AutoAdapterModel.from_pretrained(bert)
        name = model.load_adapter(folder, use_safetensors=True)
        model.set_active_adapters(name)
        return model
    kind = MODELS[config["task_type"]]
    # peft's users know how many labels they have.
    state = load_file(os.path.join(folder, "adapter_model.safetensors"))
    [labels] = [len(v) for k, v in state.items() if k.endswith(HEAD_BIASES)]
    base = getattr(transformers, kind).from_pretrained(
        bert, num_labels=labels, ignore_mismatched_sizes=True
    )
    new = config.get("trainable_token_indices") or ()
    base.resize_token_embeddings(
        base.config.vocab_size + len(new), mean_resizing=False
    )
    return peft.PeftModel.from_pretrained(base, folder)


def answer(bert, examples, folders):
    """What the peers make of adapters of this project's."""
    examples = dict(np.load(examples))
    for folder in folders:
        model = load(bert, folder)
        has_words = getattr(model, "config", None) and (
            model.config.vocab_size > SIZES["vocab_size"]
        )
        rows = with_new_words(examples) if has_words else examples
        save_logits(folder, model, rows)


def main(write, answer):
    """Writes or answers, as the command line says."""
    transformers.logging.set_verbosity_error()
    command, *arguments = sys.argv[1:]
    if command == "write":
        write(*arguments)
    else:
        answer(arguments[0], arguments[1], arguments[2:])


if __name__ == "__main__":
    main(write, answer)
