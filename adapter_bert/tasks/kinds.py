"""Kinds of tasks, by which their answers differ.

Each kind is declared once: in `KINDS`, or as `kind` of its task, which has the
kind's name.
"""

import dataclasses
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from adapter_bert.errors import UserError

CLASSIFICATION, REGRESSION = "classification", "regression"
QUESTIONS, MULTI_LABEL, CHOICE = "questions", "multi-label", "multiple choice"
TAGGING, MASKED_LM, PRETRAINING = "tagging", "masked_lm", "pretraining"
VECTORS, RERANK = "vectors", "rerank"
# What a reranker may learn from.
RANK_LOSSES = BCE, RANKNET, LISTNET, MARGIN_MSE = (
    "bce",
    "ranknet",
    "listnet",
    "margin_mse",
)
# Kinds that answer no texts.
ANSWERLESS = MASKED_LM, PRETRAINING
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
PLACE, PLACES = Field("DT_INT32", 1, -1), Field("DT_INT32", 2, -1)


@dataclasses.dataclass(frozen=True)
class Kind:
    """Says what a kind's answers hold, and what other programs call it.

    Attributes:
        name: in a description of tasks.
        fields: outputs of a model for an answer.
        runtime: axes of the outputs of `Task.runtime_outputs`; none if other
            runtimes cannot compute the tasks.
        pipeline: the Hugging Face hub's name of the kind.
        usage: Python that answers with a model of other programs.
        has_choices: a row's last texts are choices, called by labels.
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
    has_choices: bool = False
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


@dataclasses.dataclass(frozen=True)
class Labelling(Kind):
    """A kind whose answers have a score for each label.

    An answer without label has the label "" in a model's outputs.
    """

    def outputs(self, task, answer):
        labels = task["labels"]
        scores = [answer["scores"][label] for label in labels]
        return {**answer, "labels": labels, "scores": scores}

    def answer(self, task, outputs):
        label = outputs["label"]
        if "abstain_below" in task:
            label = label or None
        return {
            "label": label,
            "probability": outputs["probability"],
            "scores": dict(zip(task["labels"], outputs["scores"])),
        }


class LabelSets(Labelling):
    """A model's `label` joins the labels of a row."""

    def outputs(self, task, answer):
        label = task["label_separator"].join(answer["labels"])
        return {**super().outputs(task, answer), "label": label}

    def answer(self, task, outputs):
        label, scores = outputs["label"], outputs["scores"]
        labels = label.split(task["label_separator"]) if label else []
        return {"labels": labels, "scores": dict(zip(task["labels"], scores))}


class Choosing(Labelling):
    """A model's `label` is the name of the choice."""

    def outputs(self, task, answer):
        choice = answer["choice"]
        label = None if choice is None else task["labels"][choice]
        return {**super().outputs(task, answer), "label": label}

    def answer(self, task, outputs):
        answer = super().answer(task, outputs)
        label = answer.pop("label")
        choice = None if label is None else task["labels"].index(label)
        return {"choice": choice, **answer}


class Spans(Kind):
    """A model's `start` is -1 without an answer, a missing score 0."""

    def answer(self, task, outputs):
        answer = super().answer(task, outputs)
        missing = "null_score"
        if answer["start"] < 0:
            answer["start"] = answer["end"] = None
            missing = "score"
        return {**answer, missing: answer[missing] or None}


# Fields of a tagging model -> members of entities.
OF_ENTITIES = {
    "entity_starts": "start",
    "entity_ends": "end",
    "entity_texts": "text",
    "entity_scores": "score",
}


class PairScores(Kind):
    """A model's `value` is the score of a query's document."""

    def outputs(self, task, answer):
        return {"value": answer["score"]}

    def answer(self, task, outputs):
        return {"score": outputs["value"]}


class WordTags(Kind):
    """A model's outputs have lists of entities' members, and end with ""."""

    def outputs(self, task, answer):
        return {
            **answer,
            **{
                field: [entity[member] for entity in answer["entities"]]
                for field, member in OF_ENTITIES.items()
            },
        }

    def answer(self, task, outputs):
        from adapter_bert.tasks import tagging_files

        words = list(filter(None, outputs["tokens"]))
        tags = map(tagging_files.split_tag, outputs["tags"][: len(words)])
        tags = list(tags)
        spans = list(zip(*map(outputs.get, OF_ENTITIES)))
        return tagging_files.answer_of(words, tags, spans)


FIELDS_OF_LABELS = {
    "label": TEXT,
    "probability": NUMBER,
    "labels": TEXTS,
    "scores": NUMBERS,
}
# Those that are built in, by name. Nothing of these loads a tokenizer, which
# readers of answers may lack.
KINDS = {
    kind.name: kind
    for kind in (
        Labelling(
            CLASSIFICATION,
            FIELDS_OF_LABELS,
            {"scores": ("rows", "labels")},
            pipeline="text-classification",
            usage="""\
inputs = tokenizer({text}, return_tensors="pt")
logits = model(**inputs).logits
print({label_list}[int(logits.argmax())], logits.softmax(-1).max().item())
""",
        ),
        LabelSets(
            MULTI_LABEL,
            FIELDS_OF_LABELS,
            {"scores": ("rows", "labels")},
            pipeline="text-classification",
            usage="""\
inputs = tokenizer({text}, return_tensors="pt")
shares = model(**inputs).logits.sigmoid()[0].tolist()
print([x for x, p in zip({label_list}, shares) if p >= {threshold}])
""",
            main_score="micro_f1",
        ),
        Kind(
            REGRESSION,
            {"value": NUMBER},
            {"value": ("rows",)},
            pipeline="text-classification",
            usage="""\
inputs = tokenizer({text}, return_tensors="pt")
print(model(**inputs).logits.item())
""",
            main_score="pearson",
        ),
        Spans(
            QUESTIONS,
            {
                "answer": TEXT,
                "start": PLACE,
                "end": PLACE,
                "score": NUMBER,
                "null_score": NUMBER,
            },
            dict.fromkeys(("start_logits", "end_logits"), ("rows", "tokens")),
            pipeline="question-answering",
            usage="""\
inputs = tokenizer({text}, return_tensors="pt")
outputs = model(**inputs)
start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))
""",
            program="run_squad.py",
            main_score="f1",
        ),
        WordTags(
            TAGGING,
            {
                "tokens": TEXTS,
                "tags": TEXTS,
                "entity_starts": PLACES,
                "entity_ends": PLACES,
                "entity_texts": TEXTS,
                "entity_scores": NUMBERS,
            },
            {"scores": ("rows", "tokens", "labels")},
            pipeline="token-classification",
            usage="""\
inputs = tokenizer({text}, return_tensors="pt")
for token, logits in zip(inputs.tokens(), model(**inputs).logits[0]):
    print(token, {label_list}[int(logits.argmax())])
""",
            program="run_tagger.py",
            main_score="f1",
        ),
        Choosing(
            CHOICE,
            FIELDS_OF_LABELS,
            {"scores": ("rows", "choices")},
            pipeline="multiple-choice",
            usage="""\
choices = [f"Choice {{n}}." for n in range({choices})]
inputs = tokenizer(["A text."] * len(choices), choices, padding=True,
                   return_tensors="pt")
logits = model(**{{k: v[None] for k, v in inputs.items()}}).logits
print(choices[int(logits.argmax())])
""",
            has_choices=True,
        ),
        Kind(
            VECTORS,
            {"vector": NUMBERS},
            pipeline="sentence-similarity",
            program="run_vectors.py",
        ),
        PairScores(
            RERANK,
            {"value": NUMBER},
            {"value": ("rows",)},
            pipeline="text-ranking",
            main_score="ndcg_at_10",
        ),
        Kind(
            MASKED_LM,
            pipeline="fill-mask",
            usage="""\
inputs = tokenizer(f"A {{tokenizer.mask_token}}.", return_tensors="pt")
place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
print(tokenizer.decode(model(**inputs).logits[0, place].argmax()))
""",
            program="run_mlm.py",
        ),
        Kind(PRETRAINING, pipeline="fill-mask", program="run_pretraining.py"),
    )
}
# Tasks by name, imported at their first use: declared ones, and the classes of
# those with programs of their own.
GLUE = {
    "cola": "adapter_bert.tasks.glue:COLA",
    "sst-2": "adapter_bert.tasks.glue:SST_2",
    "mrpc": "adapter_bert.tasks.glue:MRPC",
    "sts-b": "adapter_bert.tasks.text_regression:STS_B",
    "qqp": "adapter_bert.tasks.glue:QQP",
    "mnli": "adapter_bert.tasks.glue:MNLI",
    "qnli": "adapter_bert.tasks.glue:QNLI",
    "rte": "adapter_bert.tasks.glue:RTE",
    "wnli": "adapter_bert.tasks.glue:WNLI",
    "ax": "adapter_bert.tasks.glue:AX",
}
DECLARED = {
    **GLUE,
    "xnli": "adapter_bert.tasks.xnli:XNLI",
    "swag": "adapter_bert.tasks.multiple_choice:SWAG",
    "copa": "adapter_bert.tasks.multiple_choice:COPA",
}
OF_PROGRAMS = {
    "squad": "adapter_bert.tasks.squad:Squad",
    TAGGING: "adapter_bert.tasks.tagging:Tagging",
    MASKED_LM: "adapter_bert.tasks.masked_lm:MaskedLM",
    PRETRAINING: "adapter_bert.tasks.pretraining:Pretraining",
    VECTORS: "adapter_bert.tasks.vectors:Vectors",
    RERANK: "adapter_bert.tasks.reranking:Reranking",
}


def find_kind(name: str) -> Kind:
    """Finds a kind that is built in, or that has its one task's name."""
    if name in KINDS:
        return KINDS[name]
    place = {**DECLARED, **OF_PROGRAMS}[name]
    return pkgutil.resolve_name(place).kind


def check_built_in(kind: str, source: str) -> None:
    """Refuses a kind whose heads other programs do not have."""
    if kind not in KINDS:
        raise UserError(
            f"{source} is of the kind {kind}, whose head other programs do not "
            f"have; expected one of {', '.join(KINDS)}; use the adapter as it "
            "is"
        )


def kind_of(description: Mapping[str, Any]) -> str:
    """Names the kind of a task in `adapter_config.json`.

    A kind that is not built in has its tasks say it: `kind`.
    """
    name = description["name"]
    if "kind" in description:
        return description["kind"]
    if name == "squad":
        return QUESTIONS
    if name in (TAGGING, VECTORS, RERANK, *ANSWERLESS):
        return name
    facts = (BY_FACT[fact] for fact in BY_FACT if description.get(fact))
    return next(facts, CLASSIFICATION)


class _Declared(Mapping):
    def __getitem__(self, name: str) -> Any:
        return pkgutil.resolve_name(DECLARED[name])

    def __iter__(self):
        return iter(DECLARED)

    def __len__(self):
        return len(DECLARED)


TASKS: Mapping[str, Any] = _Declared()


def get_task(name: str, others: Iterable[str] = ()) -> Any:
    """Finds the declared task called `name`, in any case of letters."""
    task = TASKS.get(name.lower())
    if task is None:
        raise UserError(
            f"unknown task {name!r}; expected one of "
            f"{', '.join((*others, *TASKS))}, or for files of your own custom "
            f"or, alone, {RERANK}"
        )
    return task
