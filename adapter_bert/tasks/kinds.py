"""Kinds of tasks, by which their answers differ."""

from collections.abc import Mapping
from typing import Any

CLASSIFICATION, REGRESSION = "classification", "regression"
QUESTIONS, MULTI_LABEL, CHOICE = "questions", "multi-label", "multiple choice"
TAGGING, MASKED_LM, PRETRAINING = "tagging", "masked_lm", "pretraining"
VECTORS = "vectors"
# Kinds that answer no texts.
ANSWERLESS = MASKED_LM, PRETRAINING


def kind_of(description: Mapping[str, Any]) -> str:
    """Names the kind of a task's answers in `adapter_config.json`."""
    if description["name"] == "squad":
        return QUESTIONS
    if description["name"] in (TAGGING, VECTORS, *ANSWERLESS):
        return description["name"]
    if description.get("multi_label"):
        return MULTI_LABEL
    if "choices" in description:
        return CHOICE
    return REGRESSION if description.get("regression") else CLASSIFICATION
