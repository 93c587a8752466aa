"""Heads of all kinds and old files, as `adapters` and `peft` have them.

    .venv-peer/bin/python lab/speed/peers/exchange_matrix.py write FOLDER
    .venv-peer/bin/python lab/speed/peers/exchange_matrix.py again BERT \\
        EXAMPLES FOLDER...

`lab/speed/exchange_matrix.py` calls it. `write` makes a tiny BERT with its
pretrained heads, `bert/`, and adapters for it in `theirs/`. `again` loads
adapters of this project's, writes what they compute, gives them other values,
and saves them in `<folder>_again` as these programs do.
"""

import json
import os
import shutil
import sys

# Nothing is asked of the hub. The libraries read this as they are imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import adapters
import exchange
import numpy as np
import peft
import torch
import transformers
from adapters import AutoAdapterModel

TAGS = ("O", "B-per", "I-per", "B-größe", "I-größe")
NAMED_TAGS = {
    "num_labels": len(TAGS),
    "id2label": dict(enumerate(TAGS)),
    "label2id": {tag: number for number, tag in enumerate(TAGS)},
}
CHOICES = 2
# Of AdapterHub's `.bin` files, by the name of what is in them.
TORCH_FILES = ("pytorch_adapter.bin", "pytorch_model_head.bin")


def flexible(kind, **more):
    """A head of AdapterHub's own models."""
    return lambda model: kind(model, exchange.ADAPTER, **more)


HUB = {
    "multi_label": (
        exchange.single(5),
        flexible(
            adapters.MultiLabelClassificationHead,
            num_labels=3,
            layers=3,
            activation_function="gelu",
            id2label=exchange.LABELS,
        ),
    ),
    "tagging": (
        adapters.LoRAConfig(r=5, alpha=3),
        flexible(
            adapters.TaggingHead,
            num_labels=len(TAGS),
            layers=2,
            activation_function="relu",
            id2label=dict(enumerate(TAGS)),
        ),
    ),
    "choice": (
        exchange.double(13),
        flexible(adapters.MultipleChoiceHead, num_choices=CHOICES),
    ),
    "masked_lm": (
        exchange.bottlenecks(adapters.SeqBnInvConfig, 7),
        flexible(adapters.BertStyleMaskedLMHead),
    ),
}
STATIC = {
    "static_tagging": "BertForTokenClassification",
    "static_choice": "BertForMultipleChoice",
    "static_masked_lm": "BertForMaskedLM",
}


def peft_lora(**more):
    """LoRA of rank 5."""
    return peft.LoraConfig(r=5, target_modules=["query", "value"], **more)


# Class of the model, configuration.
PEFT = {
    "tagging": (
        "BertForTokenClassification",
        lambda: peft_lora(task_type="TOKEN_CLS"),
    ),
    "choice": (
        "BertForMultipleChoice",
        lambda: peft_lora(modules_to_save=["classifier"]),
    ),
    "masked_lm": (
        "BertForMaskedLM",
        lambda: peft_lora(modules_to_save=["cls"]),
    ),
    "masked_lm_of_bert": ("BertForMaskedLM", peft_lora),
}


def is_shaken(name, parameter):
    """Whether a trained value is an adapter's or a head's own."""
    words = "word_embeddings", "decoder.weight"
    return parameter.requires_grad and not any(w in name for w in words)


def shake(model, seed):
    """Gives all that is trained random values."""
    names = {n for n, p in model.named_parameters() if is_shaken(n, p)}
    exchange.shake(model, seed, names.__contains__)


def save_outputs(folder, model, examples):
    """Writes `logits.npz`; of masked words the logarithms of the shares.

    Rows are computed without padding, as of `exchange.row_by_row`; the texts of
    a choice together.
    """
    model.eval()
    if isinstance(model, peft.PeftModelForQuestionAnswering):
        model = model.base_model
    is_peft = isinstance(model, peft.PeftModel)
    size = (
        CHOICES
        if is_choice(model.base_model.model if is_peft else model)
        else 1
    )
    whole, found = examples["input_mask"], []
    for first in range(0, len(whole), size):
        length = whole[first : first + size].sum(axis=1).max()
        part = {
            k: v[first : first + size, :length] for k, v in examples.items()
        }
        outputs = outputs_of(model, part, size)
        if outputs.ndim == 3:
            outputs = exchange.without_prompt(model, outputs, length)
            missing = whole.shape[1] - length
            outputs = np.pad(outputs, [(0, 0), (0, missing), (0, 0)])
        found.append(outputs)
    np.savez(os.path.join(folder, "logits.npz"), logits=np.concatenate(found))


def outputs_of(model, examples, choices):
    """What a model computes of rows, of which `choices` belong together."""
    given = {k: torch.tensor(v) for k, v in examples.items()}
    if choices > 1:
        given = {k: v.view(-1, choices, v.shape[-1]) for k, v in given.items()}
    found = exchange.compute(model, given)
    outputs = exchange.logits_in(found)
    if type(found).__name__ == "MaskedLMOutput":
        outputs = outputs.log_softmax(-1)
    return outputs.numpy()


def is_choice(model):
    """Whether a model's head is one of choices."""
    if hasattr(model, "heads"):
        head = model.heads[model.active_head]
        return head.config["head_type"] == "multiple_choice"
    return isinstance(model, transformers.BertForMultipleChoice)


def save_hub(model, folder, examples, name=exchange.ADAPTER, with_head=True):
    """Saves in `.bin` files, as the library does unless it is asked."""
    os.makedirs(folder)
    model.save_adapter(folder, name, with_head=with_head)
    save_outputs(folder, model, examples)


def write_hub(bert, folder, config, head, seed, examples):
    """An adapter of AdapterHub's with a flexible head."""
    model = AutoAdapterModel.from_pretrained(bert)
    model.add_adapter(exchange.ADAPTER, config=config)
    model.add_prediction_head(head(model))
    model.set_active_adapters(exchange.ADAPTER)
    model.train_adapter(exchange.ADAPTER)
    shake(model, seed)
    save_hub(model, folder, examples)


def write_static(bert, folder, kind, seed, examples):
    """An adapter of AdapterHub's in a model of transformers' own."""
    named = {}
    if "Token" in kind:
        named = NAMED_TAGS
    model = getattr(transformers, kind).from_pretrained(bert, **named)
    adapters.init(model)
    model.add_adapter(exchange.ADAPTER, config=exchange.single(4))
    model.set_active_adapters(exchange.ADAPTER)
    model.train_adapter(exchange.ADAPTER)
    shake(model, seed)
    save_hub(model, folder, examples)


def write_peft(bert, folder, kind, config, seed, examples):
    """An adapter of peft's, with the config of its model."""
    named = {}
    if "Token" in kind:
        named = NAMED_TAGS
    torch.manual_seed(seed)
    base = getattr(transformers, kind).from_pretrained(bert, **named)
    model = peft.get_peft_model(base, config())
    shake(model, seed)
    model.save_pretrained(folder, safe_serialization=False)
    exchange.remove_place(folder)
    if named:
        base.config.save_pretrained(folder)
    save_outputs(folder, model, examples)


def change(path, function):
    """Writes a JSON file anew."""
    with open(path) as file:
        content = json.load(file)
    function(content)
    with open(path, "w") as file:
        json.dump(content, file, indent=1, sort_keys=True)


def write_old(bert, folder, seed, examples):
    """What adapter-transformers 1 wrote in 2020, by what is known of it.

    Names of modules by `legacy_weights_mapping` of the library, fields by
    `BnConfig` and `ACTIVATION_RENAME`; the library itself loads the result.
    """
    config = exchange.bottlenecks(
        adapters.SeqBnInvConfig,
        7,
        non_linearity="gelu_new",
        inv_adapter_reduction_factor=exchange.bottleneck(3) / 2,
    )
    model = AutoAdapterModel.from_pretrained(bert)
    model.add_adapter(exchange.ADAPTER, config=config)
    model.add_classification_head(
        exchange.ADAPTER, num_labels=3, id2label=exchange.LABELS
    )
    model.train_adapter(exchange.ADAPTER)
    shake(model, seed)
    model.save_adapter(make(folder), exchange.ADAPTER)

    def to_first_version(content):
        del content["version"]
        content["type"] = "text_lang"
        own = content["config"]
        own["invertible_adapter"] = {
            "block_type": own.pop("inv_adapter"),
            "non_linearity": "relu",
            "reduction_factor": own.pop("inv_adapter_reduction_factor"),
        }
        own["non_linearity"] = "gelu"
        for name in list(own):
            if name not in FIRST_FIELDS:
                del own[name]

    change(os.path.join(folder, "adapter_config.json"), to_first_version)

    def of_head(content):
        content.pop("version")
        content["model_class"] = "BertModelWithHeads"
        for name in ("use_pooler", "bias", "dropout_prob"):
            content["config"].pop(name)

    change(os.path.join(folder, "head_config.json"), of_head)
    for name in TORCH_FILES:
        path = os.path.join(folder, name)
        state = {
            first_name(key): value
            for key, value in torch.load(path, weights_only=True).items()
        }
        # PyTorch's form of before 1.6.
        torch.save(state, path, _use_new_zipfile_serialization=False)
    loaded = AutoAdapterModel.from_pretrained(bert)
    loaded.set_active_adapters(loaded.load_adapter(folder))
    save_outputs(folder, loaded, examples)


# Fields of a configuration of version 1.
FIRST_FIELDS = (
    "original_ln_before original_ln_after residual_before_ln "
    "adapter_residual_before_ln ln_before ln_after mh_adapter output_adapter "
    "non_linearity reduction_factor invertible_adapter leave_out"
).split()


def first_name(name):
    """The name of a tensor in version 1."""
    for new, old in (
        ("output.adapters.", "output.layer_text_lang_adapters."),
        ("invertible_adapters.", "invertible_lang_adapters."),
    ):
        name = name.replace(new, old)
    return name


def make(folder):
    """Makes a folder."""
    os.makedirs(folder)
    return folder


def write(folder):
    """Everything, into an empty folder."""
    bert = exchange.make_bert("BertForPreTraining")
    exchange.save_bert(bert, os.path.join(folder, "bert"))
    examples = exchange.make_examples()
    np.savez(os.path.join(folder, "examples.npz"), **examples)
    # So that no name of a folder of this machine gets into the files.
    os.chdir(folder)
    seed = 100
    for name, (config, head) in HUB.items():
        seed += 1
        path = f"theirs/adapterhub/{name}"
        write_hub("bert", path, config, head, seed, examples)
    for name, kind in STATIC.items():
        seed += 1
        write_static("bert", f"theirs/adapterhub/{name}", kind, seed, examples)
    for name, (kind, config) in PEFT.items():
        seed += 1
        path = f"theirs/peft/{name}"
        write_peft("bert", path, kind, config, seed, examples)
    write_old("bert", "theirs/adapterhub/first_version", 99, examples)


def load(bert, folder):
    """A model with an adapter of this project's, and the adapter's name."""
    with open(os.path.join(folder, "adapter_config.json")) as file:
        config = json.load(file)
    if "peft_type" not in config:
        model = AutoAdapterModel.from_pretrained(bert)
        name = model.load_adapter(folder, use_safetensors=True)
        model.set_active_adapters(name)
        model.train_adapter(name)
        return model, name
    told = transformers.AutoConfig.from_pretrained(folder)
    base = getattr(transformers, told.architectures[0]).from_pretrained(
        bert, num_labels=told.num_labels
    )
    return peft.PeftModel.from_pretrained(base, folder, is_trainable=True), None


def again(bert, examples, folders):
    """What they make of ours, and how they save it with other values."""
    examples = dict(np.load(examples))
    for number, folder in enumerate(folders):
        model, name = load(bert, folder)
        save_outputs(folder, model, examples)
        shake(model, number)
        target = f"{folder}_again"
        if name:
            save_hub(model, target, examples, name)
            continue
        model.save_pretrained(target)
        exchange.remove_place(target)
        shutil.copy(os.path.join(folder, "config.json"), target)
        save_outputs(target, model, examples)


def main():
    """Does what the command line says."""
    transformers.logging.set_verbosity_error()
    command, *arguments = sys.argv[1:]
    if command == "write":
        write(*arguments)
    else:
        again(arguments[0], arguments[1], arguments[2:])


if __name__ == "__main__":
    main()
