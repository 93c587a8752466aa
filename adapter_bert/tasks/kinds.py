"""Kinds of tasks, by which their answers differ.

Each kind is declared once, as `kind` of its task's class. `KINDS` says where,
or `registry.PLACES` for a kind that has the name of its one task.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

CLASSIFICATION, REGRESSION = "classification", "regression"
QUESTIONS, MULTI_LABEL, CHOICE = "questions", "multi-label", "multiple choice"
TAGGING, MASKED_LM, PRETRAINING = "tagging", "masked_lm", "pretraining"
VECTORS = "vectors"
# Kinds that answer no texts.
ANSWERLESS = MASKED_LM, PRETRAINING
# The class of each kind's tasks, imported at its first use.
KINDS = {
    CLASSIFICATION: "adapter_bert.tasks.text_classification:TextClassification",
    MULTI_LABEL: "adapter_bert.tasks.multi_label:MultiLabel",
    REGRESSION: "adapter_bert.tasks.text_regression:TextRegression",
    QUESTIONS: "adapter_bert.tasks.squad:Squad",
    TAGGING: "adapter_bert.tasks.tagging:Tagging",
    CHOICE: "adapter_bert.tasks.multiple_choice:MultipleChoice",
    VECTORS: "adapter_bert.tasks.vectors:Vectors",
    MASKED_LM: "adapter_bert.tasks.masked_lm:MaskedLM",
    PRETRAINING: "adapter_bert.tasks.pretraining:Pretraining",
}
# Kinds whose tasks are described by facts beside their name.
BY_FACT = {
    "multi_label": MULTI_LABEL,
    "choices": CHOICE,
    "regression": REGRESSION,
}


class Field(NamedTuple):
    """Output of a model for each answer.

    `dtype` is TensorFlow's; `axes` are 2 for a list of each row. `empty` stands
    in rows of other kinds, and at the end of lists.
    """

    dtype: str
    axes: int
    empty: Any


TEXT, TEXTS = Field("DT_STRING", 1, ""), Field("DT_STRING", 2, "")
NUMBER, NUMBERS = Field("DT_FLOAT", 1, 0.0), Field("DT_FLOAT", 2, 0.0)
PLACE = Field("DT_INT32", 1, -1)


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a kind's answers hold, and what other programs call it.

    Attributes:
        name: in a description of tasks.
        fields: outputs of a model for an answer.
        runtime: axes of the outputs of `Task.runtime_outputs`; none if other
            runtimes cannot compute the tasks.
        pipeline: the Hugging Face hub's name of the kind.
        usage: Python that answers with a model of other programs.
        program: that trains the tasks.
        main_score: of figures.
    """

    name: str
    fields: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    runtime: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )
    pipeline: str = ""
    usage: str = ""
    program: str = "run_classifier.py"
    main_score: str = "accuracy"

    def outputs(
        self, task: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Makes the outputs for an answer of a task described for clients."""
        return {name: answer[name] for name in self.fields}

    def answer(
        self, task: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Makes the answer of such outputs."""
        return {name: outputs[name] for name in self.fields}


def kind_of(description: Mapping[str, Any]) -> str:
    """Names the kind of a task in `adapter_config.json`.

    A kind that is not built in has its tasks say it: `kind`.
    """
    name = description["name"]
    if "kind" in description:
        return description["kind"]
    if name == "squad":
        return QUESTIONS
    if name in (TAGGING, VECTORS, *ANSWERLESS):
        return name
    facts = (BY_FACT[fact] for fact in BY_FACT if description.get(fact))
    return next(facts, CLASSIFICATION)


def load(place: str) -> Any:
    """Imports what a place, as `adapter_bert.tasks.glue:MRPC`, names."""
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)
