"""Differences of two descriptions of runs, but for what may differ."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from adapter_bert.bert.config import BertConfig, same_activation
from adapter_bert.tasks.kinds import ANSWERLESS

# What older descriptions of vectors lack. Without a prompt it changes nothing,
# and a prompt is `default_prompt_name`.
OF_VECTORS = re.compile(
    r"task\.(.+\.)?(prompts|include_prompt|similarity_fn_name)"
)


def differences_of(
    key: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    partial: bool = False,
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (dotted name, old, new) where a part of two descriptions differs.

    What a partial description lacks, and what may differ, is left out.
    """
    for name, before, now in _compare(key, old.get(key), new.get(key), partial):
        if not _may_differ(name, before, now, new["task"]):
            yield name, before, now


def _may_differ(
    name: str, before: Any, now: Any, task: Mapping[str, Any]
) -> bool:
    # A missing setting was off; without this one a share of steps warmed up.
    if before is None and name.startswith("training."):
        return not now and name != "training.num_warmup_steps"
    # The same weights may lie in another folder, or be of another commit.
    if name in ("base.name", "base.hub"):
        return True
    if name == "bert_config.hidden_act":
        return same_activation(before, now)
    key, _, field = name.partition(".")
    if key == "bert_config":
        if field == "tie_word_embeddings" and task["name"] not in ANSWERLESS:
            return True
        if field == "choice_activation" and "choices" not in task:
            return True
        # The base's fingerprint tells of a pooler. Older descriptions lack
        # some fields.
        is_default = before is None and now == getattr(BertConfig, field, None)
        return field == "pooler" or is_default
    if before is None and OF_VECTORS.fullmatch(name):
        return True
    # A run with a dev or test file of its own holds nothing out.
    return name.endswith(".held_out") and now is None


def _compare(
    name: str, old: Any, new: Any, partial: bool = False
) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(new) if partial else set(old) | set(new)):
            yield from _compare(
                f"{name}.{key}", old.get(key), new.get(key), partial
            )
    elif old != new:
        yield name, old, new
