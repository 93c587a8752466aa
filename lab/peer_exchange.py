"""Adapters as `adapters` and `peft` write them, and what they make of ours.

    .venv-peer/bin/python lab/peer_exchange.py FOLDER ONLY theirs answer

Runs in the peers' environment (lab/speed/peers/requirements.txt) and imports
nothing of this project; `lab/exchange.py` calls it. `theirs` writes adapters
for the folder's model, each with the outputs for `examples.npz`, into
`theirs/`. `answer` loads what this project wrote into `ours/` and `merged/`,
computes the same, gives adapters other values, and saves them in
`<folder>_again`. `ONLY` is a pattern of names.
"""

import functools
import glob
import json
import os
import re
import shutil
import sys

# Nothing is asked of the hub. The libraries read this as they are imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import adapters
import numpy as np
import peft
import torch
import transformers
from adapters import AutoAdapterModel

WIDTH, CHOICES = 16, 2
LABELS = ("not at all", "yes, of course", "größer ≥ 7 日本")
TAGS = ("O", "B-per", "I-per", "B-größe", "I-größe")
ADAPTER = "my task"
# Words that a task adds, one of them a whole word only.
NEW_WORDS = "foo", transformers.AddedToken("mat 7", single_word=True)


def factor(size):
    """Returns the reduction factor that gives this size."""
    return WIDTH / (size + 0.5)


def bottlenecks(config, size, **more):
    """A configuration of bottlenecks of this size."""
    return config(reduction_factor=factor(size), **more)


double = functools.partial(bottlenecks, adapters.DoubleSeqBnConfig)
single = functools.partial(bottlenecks, adapters.SeqBnConfig)
parallel = functools.partial(bottlenecks, adapters.ParBnConfig)
lora = functools.partial(adapters.LoRAConfig, r=5, alpha=3)
prefix = functools.partial(
    adapters.PrefixTuningConfig, prefix_length=7, bottleneck_size=8
)


def head(kind, layers=1, activation="tanh", names=LABELS, **more):
    """A head of AdapterHub's own models; with one name it is of a number."""
    return lambda model: kind(
        model,
        ADAPTER,
        num_labels=len(names),
        layers=layers,
        activation_function=activation,
        id2label=dict(enumerate(names)) if names[1:] else None,
        **more,
    )


texts = functools.partial(head, adapters.ClassificationHead)


def spans(layers=1):
    """A head of questions."""
    return lambda model: adapters.QuestionAnsweringHead(
        model, ADAPTER, layers=layers, activation_function="relu"
    )


# Classes of transformers' own, and labels of their heads.
STATIC = {
    "BertForSequenceClassification": LABELS,
    "BertForQuestionAnswering": (),
    "BertForTokenClassification": TAGS,
    "BertForMultipleChoice": (),
    "BertForMaskedLM": (),
}
# Adapters of every model: name -> configuration, head or transformers' class.
OF_ALL = {
    "double": (double(5), texts(2)),
    "single": (single(7, scaling="channel"), texts(3, "relu")),
    "lora": (
        lora(
            attn_matrices=["q", "k", "v"],
            intermediate_lora=True,
            output_lora=True,
            use_gating=True,
        ),
        spans(),
    ),
    "prefix": (prefix(), texts(2, "gelu", LABELS[:2], bias=False)),
}
OF_BERT = {
    "attention": (
        double(
            5, output_adapter=False, non_linearity="leakyrelu", leave_out=[0]
        ),
        texts(),
    ),
    "learned_scale": (
        double(5, scaling="learned", non_linearity="mish"),
        spans(2),
    ),
    "channels": (
        single(3, scaling="channel", non_linearity="quick_gelu"),
        texts(2, names=LABELS[:1]),
    ),
    "parallel": (
        parallel(3, scaling=2.0, non_linearity="sigmoid"),
        texts(names=LABELS[:1], use_pooler=True),
    ),
    "sizes": (
        adapters.ParBnConfig(
            reduction_factor={
                "0": factor(13),
                "2": factor(1),
                "default": factor(5),
            },
            use_gating=True,
        ),
        spans(),
    ),
    "ia3": (adapters.IA3Config(intermediate_lora=False), texts()),
    "vera": (adapters.VeraConfig(r=5, alpha=8, leave_out=[1]), texts()),
    "flat": (prefix(flat=True), texts()),
    "layers": (
        adapters.ConfigUnion(
            single(13, leave_out=[1]), parallel(7, leave_out=[0, 2])
        ),
        texts(),
    ),
    "prompt": (
        adapters.PromptTuningConfig(
            prompt_length=3, combine="prefix_after_bos"
        ),
        texts(use_pooler=True),
    ),
    "loreft": (adapters.LoReftConfig(r=3, suffix_positions=2), texts()),
    "loreft_layers": (adapters.LoReftConfig(layers=[0, 2]), spans()),
    "noreft_tied": (
        adapters.NoReftConfig(
            r=5,
            prefix_positions=2,
            suffix_positions=2,
            tied_weights=True,
            non_linearity="relu",
        ),
        texts(),
    ),
    "multi_label": (
        single(5),
        head(adapters.MultiLabelClassificationHead, 3, "gelu"),
    ),
    **{kind: (single(4), kind) for kind in STATIC},
}
# Kind of model -> its matrices, if they are not called as BERT's are.
MATRICES = {
    "distilbert": ["q_lin", "v_lin", "out_lin", "lin1", "lin2"],
    "albert": ["query", "value", "attention.dense", "ffn", "ffn_output"],
    "mpnet": ["attn.q", "attn.v", "attn.o", "intermediate.dense"],
}
TEXTS, QUESTIONS = "SequenceClassification", "QuestionAnswering"
TASKS = {
    TEXTS: "SEQ_CLS",
    QUESTIONS: "QUESTION_ANS",
    "TokenClassification": "TOKEN_CLS",
}
WIDE = ["query", "key", "value", "attention.output.dense"]
WIDE += ["intermediate.dense", "output.dense"]
rs_lora = functools.partial(peft.LoraConfig, r=5, lora_alpha=3, use_rslora=True)
plain = functools.partial(
    peft.LoraConfig, r=5, lora_alpha=3, target_modules=["query", "value"]
)
# Name -> kind of model, labels, configuration.
PEFT_OF_BERT = {
    "scaled_by_rank": (
        TEXTS,
        LABELS[:2],
        rs_lora(
            target_modules=["query", "key", "value", "dense"],
            exclude_modules=["pooler.dense", "bert.pooler.dense"],
        ),
    ),
    "patterns": (
        TEXTS,
        LABELS,
        rs_lora(
            target_modules=WIDE,
            rank_pattern={r"layer\.[02]\.output.dense": 7, "key": 1},
            alpha_pattern={"layer.1.attention.self.query": 0.7, "value": 10},
        ),
    ),
    "layers": (
        TEXTS,
        LABELS[:1],
        plain(
            rank_pattern={"layer.1.attention.self.query": 2},
            layers_to_transform=[1, 2],
        ),
    ),
    "dora": (
        QUESTIONS,
        LABELS[:2],
        rs_lora(use_dora=True, target_modules=WIDE),
    ),
    "vera": (
        TEXTS,
        LABELS[:1],
        peft.VeraConfig(
            r=5,
            projection_prng_key=13,
            target_modules=["query", "intermediate.dense", "pooler.dense"],
            layers_to_transform=[0, 2],
        ),
    ),
    "vera_drawn_again": (
        QUESTIONS,
        LABELS[:2],
        peft.VeraConfig(r=37, save_projection=False, target_modules=WIDE),
    ),
    "ia3": (
        TEXTS,
        LABELS,
        peft.IA3Config(
            target_modules=r".*(key|value|layer\.\d+\.output\.dense)",
            feedforward_modules=r".*layer\.\d+\.output\.dense",
        ),
    ),
    "pooler": (
        TEXTS,
        LABELS,
        plain(modules_to_save=["classifier", "pooler"]),
    ),
    "all_linear": (
        TEXTS,
        LABELS,
        peft.LoraConfig(
            r=5,
            lora_alpha=3,
            target_modules="all-linear",
            rank_pattern={"pooler.dense": 7},
            alpha_pattern={"bert.pooler.dense": 0.7},
        ),
    ),
    "new_words": (
        TEXTS,
        LABELS,
        plain(trainable_token_indices={"word_embeddings": [41, 40]}),
    ),
    "tagging": ("TokenClassification", TAGS, plain()),
    "masked_lm": ("MaskedLM", (), plain(modules_to_save=["cls"])),
    "masked_lm_of_bert": ("MaskedLM", (), plain()),
}


def peft_cases(model_type):
    """peft's adapters of a kind of model."""
    matrices = MATRICES.get(model_type, WIDE)
    adapter = plain(
        target_modules=matrices,
        alpha_pattern={matrices[0]: 7},
        # A DistilBERT's.
        modules_to_save=["pre_classifier"],
    )
    cases = {"lora": (TEXTS, LABELS, adapter)}
    return {**cases, **(PEFT_OF_BERT if model_type == "bert" else {})}


def hub_cases(model_type):
    """AdapterHub's adapters of a kind of model."""
    cases = {**OF_ALL, **(OF_BERT if model_type == "bert" else {})}
    if model_type == "albert":
        # After the attention the library's adapters are other ones.
        cases["double"] = double(5, mh_adapter=False), texts()
    return {} if model_type == "mpnet" else cases


def shake(model, seed):
    """Gives all that is trained random values, but for BERT's own words."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # Words, also as the matrix of a head.
            is_word = (
                parameter.ndim == 2
                and len(parameter) == model.config.vocab_size
            )
            if parameter.requires_grad and not is_word:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(0.3 * noise)


def outputs_of(model, examples, choices):
    """What a model computes of rows, of which `choices` belong together."""
    rows = {k: torch.tensor(v) for k, v in examples.items()}
    if choices > 1:
        rows = {k: v.view(-1, choices, v.shape[-1]) for k, v in rows.items()}
    more = {}
    if hasattr(model.config, "type_vocab_size"):
        more["token_type_ids"] = rows["segment_ids"]
    with torch.no_grad():
        computed = model(
            input_ids=rows["input_ids"],
            attention_mask=rows["input_mask"],
            return_dict=True,
            **more,
        )
    if "logits" not in computed:
        both = computed["start_logits"], computed["end_logits"]
        return torch.stack(both, -1).numpy()
    logits = computed["logits"]
    if type(computed).__name__ == "MaskedLMOutput":
        logits = logits.log_softmax(-1)
    return logits.numpy()


def is_choice(model):
    """Tells whether a model's head is one of choices."""
    if hasattr(model, "heads"):
        kind = model.heads[model.active_head].config["head_type"]
        return kind == "multiple_choice"
    return type(model).__name__.endswith("MultipleChoice")


def without_prompt(model, outputs, length):
    """Gets the outputs of a text's tokens, without those of virtual tokens."""
    extra = outputs.shape[1] - length
    if extra == 0:
        return outputs
    [name] = model.active_adapters.flatten()
    combine = model.adapters_config.get(name)["combine"]
    first = {"prefix": 0, "prefix_after_bos": 1}[combine]
    return np.delete(outputs, slice(first, first + extra), axis=1)


def save_outputs(folder, model):
    """Writes `logits.npz`; of masked words the logarithms of the shares.

    Rows are computed without padding, since gates have means over padding too;
    the texts of a choice together. The second token is a new word, if there are
    any.
    """
    examples = dict(np.load("examples.npz"))
    words = transformers.AutoConfig.from_pretrained("model").vocab_size
    new = model.config.vocab_size - words
    if new:
        ids = examples["input_ids"]
        ids[:, 1] = words + np.arange(len(ids)) % new
    model.eval()
    if isinstance(model, peft.PeftModelForQuestionAnswering):
        # That drops `token_type_ids`; what it wraps has the adapter in it.
        model = model.base_model
    inner = model.base_model.model if is_peft(model) else model
    size = CHOICES if is_choice(inner) else 1
    whole, several = examples["input_mask"], []
    for first in range(0, len(whole), size):
        length = whole[first : first + size].sum(axis=1).max()
        part = {
            k: v[first : first + size, :length] for k, v in examples.items()
        }
        outputs = outputs_of(model, part, size)
        if outputs.ndim == 3:
            outputs = without_prompt(model, outputs, length)
            missing = whole.shape[1] - length
            outputs = np.pad(outputs, [(0, 0), (0, missing), (0, 0)])
        several.append(outputs)
    np.savez(f"{folder}/logits.npz", logits=np.concatenate(several))


def is_peft(model):
    """Tells whether a model is one of peft's."""
    return isinstance(model, peft.PeftModel)


def save(folder, model):
    """Saves an adapter as its library does, with its outputs."""
    os.makedirs(folder, exist_ok=True)
    if is_peft(model):
        model.save_pretrained(folder)
    else:
        [name] = model.adapters_config
        model.save_adapter(folder, name)
    save_outputs(folder, model)


def hub_model(config, last):
    """A model with an adapter of AdapterHub's."""
    if isinstance(last, str):
        model = load_model(last, STATIC[last])
        adapters.init(model)
    else:
        model = AutoAdapterModel.from_pretrained("model")
    model.add_adapter(ADAPTER, config=config)
    if not isinstance(last, str):
        model.add_prediction_head(last(model))
    model.set_active_adapters(ADAPTER)
    model.train_adapter(ADAPTER)
    return model


def load_model(kind, names=()):
    """A model of transformers', with a head for these labels."""
    more = {}
    if names:
        more = {
            "num_labels": len(names),
            "id2label": dict(enumerate(names)),
            "label2id": {name: n for n, name in enumerate(names)},
        }
    # The folder may have a head of another size.
    return getattr(transformers, kind).from_pretrained(
        "model", ignore_mismatched_sizes=True, **more
    )


def peft_model(folder, kind, names, config):
    """A model with an adapter of peft's; writes what says its labels."""
    config.task_type = TASKS.get(kind)
    base = load_model(f"AutoModelFor{kind}", names)
    if names == TAGS:
        base.config.save_pretrained(folder)
    if getattr(config, "trainable_token_indices", None):
        tokenizer = transformers.AutoTokenizer.from_pretrained("model")
        tokenizer.add_tokens(list(NEW_WORDS))
        tokenizer.save_pretrained(folder)
        base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return peft.get_peft_model(base, config)


def write_theirs(name, only):
    """Writes adapters of both libraries."""
    model_type = transformers.AutoConfig.from_pretrained("model").model_type
    cases = [
        (f"theirs/adapterhub/{case}", functools.partial(hub_model, *row))
        for case, row in hub_cases(model_type).items()
    ]
    for case, row in peft_cases(model_type).items():
        place = f"theirs/peft/{case}"
        cases.append((place, functools.partial(peft_model, place, *row)))
    for seed, (place, make) in enumerate(cases):
        if not re.search(only, f"{name}/{place}"):
            continue
        torch.manual_seed(seed)
        model = make()
        shake(model, seed)
        save(place, model)


def load(folder):
    """A model with an adapter of this project's, as users load it."""
    with open(f"{folder}/adapter_config.json") as file:
        config = json.load(file)
    if "peft_type" not in config:
        model = AutoAdapterModel.from_pretrained("model")
        name = model.load_adapter(folder, use_safetensors=True)
        model.set_active_adapters(name)
        model.train_adapter(name)
        return model
    settings = transformers.AutoConfig.from_pretrained(folder)
    [kind] = settings.architectures
    # peft's users know how many labels they have.
    base = load_model(kind, list(settings.id2label.values()))
    new = config.get("trainable_token_indices") or ()
    base.resize_token_embeddings(
        base.config.vocab_size + len(new), mean_resizing=False
    )
    return peft.PeftModel.from_pretrained(base, folder, is_trainable=True)


def answer():
    """Computes what this project wrote, and saves it with other values."""
    for seed, folder in enumerate(sorted(glob.glob("ours/*/*"))):
        model = load(folder)
        save_outputs(folder, model)
        shake(model, seed)
        again = f"{folder}_again"
        save(again, model)
        for name in ("config.json", "tokenizer_config.json"):
            if is_peft(model) and os.path.exists(f"{folder}/{name}"):
                shutil.copy(f"{folder}/{name}", again)
    if os.path.exists("merged"):
        model, about = (
            transformers.AutoModelForSequenceClassification.from_pretrained(
                "merged", output_loading_info=True
            )
        )
        assert not about["missing_keys"] and not about["unexpected_keys"]
        tokens = transformers.AutoTokenizer.from_pretrained("merged")
        model(**tokens("the cat sat", return_tensors="pt"))
        save_outputs("merged", model)


def main():
    """Does what the command line says, in the folder."""
    transformers.logging.set_verbosity_error()
    folder, only, *commands = sys.argv[1:]
    # So that no name of a folder of this machine gets into the files.
    os.chdir(folder)
    for command in commands:
        if command == "theirs":
            write_theirs(os.path.basename(folder), only)
        else:
            answer()


if __name__ == "__main__":
    main()
