"""The README.md of an exported adapter, as Hugging Face's hub shows it."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from adapter_bert.checkpoints.hugging_face import HEAD_CLASSES
from adapter_bert.data.added_tokens import NewToken
from adapter_bert.exchange.foreign_base import Exported
from adapter_bert.tasks.kinds import (
    CHOICE,
    GLUE,
    QUESTIONS,
    REGRESSION,
    VECTORS,
    find_kind,
    kind_of,
)
from adapter_bert.tasks.multi_label import THRESHOLD

# This project's own format.
OWN = "adapter-bert"
# Ours -> the hub's, where they differ.
METRICS = {"pearson": "pearsonr", "spearman": "spearmanr"}
LIBRARIES = {
    "adapterhub": "adapter-transformers",
    "peft": "peft",
    OWN: "adapter-bert",
}
TAGS = {
    "adapterhub": ["adapter-transformers", "bert"],
    "peft": ["bert"],
    OWN: ["adapter-bert", "bert"],
}

# Code that loads the model.
MODELS = {
    "adapterhub": """\
from adapters import AutoAdapterModel
from transformers import AutoTokenizer

model = AutoAdapterModel.from_pretrained({base})
# Without use_safetensors the library looks for .bin files.
model.load_adapter({folder}, use_safetensors=True, set_active=True)
""",
    "peft": """\
from peft import PeftModel
from transformers import {model_class}, AutoTokenizer

{labels}model = {model_class}.from_pretrained({base}{num_labels})
{words}model = PeftModel.from_pretrained(model, {folder}){unwrap}
""",
}


# Code that makes vectors.
VECTOR_USAGE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({folder})
print(model.encode(["A text."]).shape)
"""


def make_card(
    program: str,
    exported: Exported,
    folder: str,
    description: Mapping[str, Any],
    scores: Mapping[str, float],
    data: Mapping[str, str],
) -> str:
    """Writes a card for `adapterhub` or `peft`.

    `folder` is the adapter's name in the code, `description` its
    `adapter_config.json`; `scores` are the evaluation's by metric, `data` the
    SHA-256 of the data by split.
    """
    head = exported.head
    kind = head.kind if head else kind_of(description["task"])
    names = exported.name, exported.base_name
    code = _usage(program, exported, folder, description)
    code = f"```python\n{code}```"
    return _card(program, names, kind, code, description, scores, data)


def make_adapter_card(
    name: str,
    base: str,
    repository: str,
    description: Mapping[str, Any],
    scores: Mapping[str, float],
    data: Mapping[str, str],
) -> str:
    """Writes a card for an adapter in this project's own format.

    `base` is the name of its BERT, `repository` as for `library import`; else
    as `make_card`.
    """
    kind = kind_of(description["task"])
    bert = description["base"].get("hub") or base
    code = f"""\
```bash
adapter-bert library import shelf {repository} --name={name} \\
    --init_checkpoint={shlex.quote(bert)}
```"""
    return _card(OWN, (name, base), kind, code, description, scores, data)


def _card(
    program: str,
    names: tuple[str, str],
    kind: str,
    code: str,
    description: Mapping[str, Any],
    scores: Mapping[str, float],
    data: Mapping[str, str],
) -> str:
    head = _head(program, names, kind, description, scores)
    lines = "\n".join(["---", *_yaml(head), "---"])
    training = description.get("training") or {}
    name, base = names
    facts = {
        "method": description["method"],
        "BERT": f"{base}, SHA-256 {description['base']['fingerprint']}",
        **{f"training: {key}": value for key, value in training.items()},
        **{f"data: {split}": f"SHA-256 {sha}" for split, sha in data.items()},
    }
    table = "".join(f"| {key} | {value} |\n" for key, value in facts.items())
    results = "No evaluation of this adapter is known.\n"
    if scores:
        rows = "".join(f"| {k} | {v:.4f} |\n" for k, v in scores.items())
        results = f"| metric | dev set |\n|---|---|\n{rows}"
    task = description["task"]["name"]
    return f"""\
{lines}

# {name}

An adapter for the task `{task}` on a frozen BERT, in the format of \
`{"adapters" if program == "adapterhub" else program}`.

## Use

{code}

## Results

{results}
## Training

| | |
|---|---|
{table}"""


def _head(program, names, kind, description, scores) -> dict[str, Any]:
    task = description["task"]["name"]
    pipeline = find_kind(kind).pipeline
    data_set = "glue" if task in GLUE else None
    metrics = {
        METRICS.get(name, name): value
        for name, value in scores.items()
        if name != "loss"
    }
    head = {
        "library_name": "sentence-transformers"
        if kind == VECTORS and program == "peft"
        else LIBRARIES[program],
        "base_model": names[1],
        "pipeline_tag": pipeline,
        "tags": TAGS[program],
    }
    if data_set:
        head["datasets"] = [data_set]
    if metrics:
        head["metrics"] = list(metrics)
        result = {
            "task": {"type": pipeline},
            "dataset": {"name": task, "type": data_set or task},
            "metrics": [{"type": k, "value": v} for k, v in metrics.items()],
        }
        head["model-index"] = [{"name": names[0], "results": [result]}]
    return head


def _yaml(values: Mapping[str, Any]) -> list[str]:
    lines = []
    for key, value in values.items():
        items = value if isinstance(value, list) else [value]
        parts = [json.dumps(item, ensure_ascii=False) for item in items]
        if isinstance(value, list):
            lines += [f"{key}:", *(f"- {part}" for part in parts)]
        else:
            lines.append(f"{key}: {parts[0]}")
    return lines


def _usage(program, exported, folder, description) -> str:
    head = exported.head
    if head is None:
        return MODELS[program].format(
            base=repr(exported.base_name), folder=repr(folder)
        )
    if head.kind == VECTORS:
        return VECTOR_USAGE.format(folder=repr(folder))
    text = '"A text."'
    if description["task"].get("pairs"):
        text += ', "Another one."'
    if head.kind == QUESTIONS:
        text = '"Who sat down?", "He sat down."'
    labels = [] if head.kind == CHOICE else list(head.labels)
    base = repr(exported.base_name)
    counted = head.kind == REGRESSION or labels
    tokenizer = f"tokenizer = AutoTokenizer.from_pretrained({base})\n"
    words = ""
    if exported.new_tokens:
        tokens = ", ".join(map(_token, exported.new_tokens))
        words = (
            f"{tokenizer}tokenizer.add_tokens([{tokens}])\n"
            "model.resize_token_embeddings(len(tokenizer))\n"
        )
        tokenizer = ""
    model = MODELS[program].format(
        base=base,
        folder=repr(folder),
        labels=f"labels = {labels}\n" if labels else "",
        words=words,
        model_class=f"AutoModel{HEAD_CLASSES[head.kind][0]}",
        num_labels=f", num_labels={len(labels) or 1}" if counted else "",
        # peft's own model of this kind drops token_type_ids.
        unwrap=".base_model" if head.kind == QUESTIONS else "",
    )
    threshold = THRESHOLD if head.threshold is None else head.threshold
    answer = find_kind(head.kind).usage.format(
        text=text,
        label_list="labels" if program == "peft" else "model.get_labels()",
        threshold=threshold,
        choices=len(head.labels),
    )
    return (
        f"{'from transformers import AddedToken' * bool(words)}\n"
        f"{model}model.eval()\n{tokenizer}\n{answer}"
    ).lstrip("\n")


def _token(token: NewToken) -> str:
    if isinstance(token, str):
        return f"AddedToken({token!r}, single_word=True)"
    return f"AddedToken(**{token!r})"
