"""The README.md of an exported adapter."""

import ast

import pytest
import yaml

from adapter_bert.bert.encoder import BertConfig
from adapter_bert.exchange.foreign_base import Exported, Head
from adapter_bert.exchange.model_card import make_adapter_card, make_card
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.kinds import (
    CHOICE,
    CLASSIFICATION,
    MASKED_LM,
    MULTI_LABEL,
    QUESTIONS,
    REGRESSION,
    TAGGING,
)
from adapter_bert.tasks.text_task import POOLED, SPANS

HEADS = {
    "rte": Head(CLASSIFICATION, POOLED, (), ("a, b", "größer: 'x'")),
    "sts-b": Head(REGRESSION, POOLED, ()),
    "squad": Head(QUESTIONS, SPANS, ()),
    "custom": Head(CLASSIFICATION, POOLED, (), ("a", "b")),
}

pytestmark = pytest.mark.newer_stack

OTHER_HEADS = {
    MULTI_LABEL: Head(MULTI_LABEL, POOLED, (), ("a", "b"), 0.3),
    TAGGING: Head(TAGGING, SPANS, (), ("O", "B-x")),
    CHOICE: Head(CHOICE, POOLED, (), ("choice0", "choice1")),
    MASKED_LM: Head(MASKED_LM, POOLED),
}
# Pipeline of the hub, class of the model, what the lines have.
EXPECTED = {
    MULTI_LABEL: ("text-classification", "SequenceClass", "if p >= 0.3"),
    TAGGING: ("token-classification", "TokenClass", "num_labels=2"),
    CHOICE: ("multiple-choice", "MultipleChoice", "range(2)"),
    MASKED_LM: ("fill-mask", "MaskedLM", "mask_token_id"),
}

SCORES = {"accuracy": 0.75, "spearman": 0.5, "loss": 0.6}


def make(program, task, scores=SCORES, pairs=True):
    exported = Exported(
        name="my-task",
        method=parse("lora"),
        config=BertConfig(vocab_size=30),
        base_name="some/bert",
        head={**HEADS, **OTHER_HEADS}.get(task),
        read=None,
        source="a file",
    )
    description = {
        "method": "lora(rank=8)",
        "task": {"name": task, "pairs": pairs},
        "base": {"fingerprint": "ab" * 32},
        "training": {"learning_rate": 5e-4, "steps": 100},
    }
    card = make_card(
        program, exported, "folder", description, scores, {"dev": "cd" * 32}
    )
    _, head, body = card.split("---\n", 2)
    return yaml.safe_load(head), body


@pytest.mark.parametrize("program", ["adapterhub", "peft"])
@pytest.mark.parametrize("task", HEADS)
def test_the_hub_and_people_can_read_it(program, task):
    head, body = make(program, task)
    assert head["base_model"] == "some/bert"
    data_set = None if task in ("custom", "squad") else "glue"
    assert head.get("datasets") == (data_set and [data_set])
    assert head["metrics"] == ["accuracy", "spearmanr"]
    [result] = head["model-index"][0]["results"]
    assert result["metrics"][0] == {"type": "accuracy", "value": 0.75}
    assert ("adapter-transformers" in head["tags"]) == (program != "peft")
    assert "| accuracy | 0.7500 |" in body
    assert "| training: steps | 100 |" in body
    assert "cd" * 32 in body and "ab" * 32 in body
    code = body.partition("```python\n")[2].partition("```")[0]
    ast.parse(code)
    assert "'some/bert'" in code and "'folder'" in code
    assert (".base_model" in code) == (program == "peft" and task == "squad")


@pytest.mark.parametrize("kind", OTHER_HEADS)
def test_each_kind_of_head_has_its_lines(kind):
    pipeline, model, part = EXPECTED[kind]
    for program in ("adapterhub", "peft"):
        head, body = make(program, kind)
        assert head["pipeline_tag"] == pipeline
        code = body.partition("```python\n")[2].partition("```")[0]
        ast.parse(code)
        assert (f"AutoModelFor{model}" in code) == (program == "peft")
        assert part in code or (kind, program) == (TAGGING, "adapterhub")


def test_without_a_head_it_is_of_the_task():
    head, _ = make("adapterhub", "mrpc")
    assert head["pipeline_tag"] == "text-classification"


def test_without_scores_it_says_so():
    head, body = make("peft", "rte", scores={})
    assert "metrics" not in head and "model-index" not in head
    assert "No evaluation of this adapter is known." in body


def test_lines_for_peft_have_the_labels_and_ask_single_texts_alone():
    _, body = make("peft", "rte", pairs=False)
    assert f"labels = {list(HEADS['rte'].labels)}" in body
    assert 'tokenizer("A text.", return' in body


def test_the_card_of_our_own_form():
    description = {
        "method": "lora(rank=8)",
        "task": {"name": "mnli", "labels": ["a", "b"]},
        "base": {"fingerprint": "ab" * 32, "hub": "hf:some/bert@v1"},
        "training": {"steps": 100},
    }
    card = make_adapter_card(
        "mine", "some/bert", "hf:org/mine", description, SCORES, {}
    )
    _, head, body = card.split("---\n", 2)
    head = yaml.safe_load(head)
    assert head["library_name"] == "adapter-bert"
    assert head["base_model"] == "some/bert"
    assert head["pipeline_tag"] == "text-classification"
    assert head["model-index"][0]["name"] == "mine"
    assert (
        "adapter-bert library import shelf hf:org/mine --name=mine \\\n"
        "    --init_checkpoint=hf:some/bert@v1\n```" in body
    )
    assert "in the format of `adapter-bert`" in body
    assert "| accuracy | 0.7500 |" in body
    # Names of folders are no commands.
    del description["base"]["hub"]
    card = make_adapter_card("mine", "a; b", "hf:org/mine", description, {}, {})
    assert "    --init_checkpoint='a; b'\n```" in card
