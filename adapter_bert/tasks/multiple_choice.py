"""Multiple choice: one of several texts goes with a text.

Declares SWAG (Zellers et al. 2018) and COPA (Roemmele et al. 2011) too, COPA
with the files of SuperGLUE.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from adapter_bert.data.input_pipeline import Choices
from adapter_bert.data.tables import Layout, Rows
from adapter_bert.data.tokenization import (
    TextTokenizer,
    cut,
    fit,
    in_chunks,
    make_row,
)
from adapter_bert.errors import UserError
from adapter_bert.tasks import kinds
from adapter_bert.tasks.text_classification import (
    ClassificationHead,
    TextClassification,
)
from adapter_bert.tasks.text_task import TextTask


class ChoiceHead(ClassificationHead):
    """A logit for each choice, from its own pooled output.

    Parameters: D + 1. Source: Devlin et al. 2019, section 4.4 (SWAG); Hugging
    Face's `BertForMultipleChoice`.
    """

    def __init__(self, config, create, shape):
        """Creates `output_weights` [1, D] and `output_bias` [1]."""
        super().__init__(1, config.for_choices, create, shape)

    def loss(self, predictions, features):
        """Cross entropy in nats over the choices of each row, float32 [B].

        The `logits` are float32 [B C, 1], row by row.
        """
        labels = features["label_ids"]
        rows = labels.shape[0] or tf.shape(labels)[0]
        logits = tf.reshape(predictions["logits"], [rows, -1])
        return super().loss({"logits": logits}, features)


@dataclasses.dataclass(frozen=True)
class MultipleChoice(TextTask):
    """A multiple-choice task.

    BERT reads `[CLS] a [SEP] choice [SEP]`, or with a second text, as a
    question, `[CLS] a [SEP] b choice [SEP]`. Without room for the longest
    choice a and b are cut, alike for all choices. A choice is cut only if it
    has no room by itself. `questions` replace entries of the second text's
    column.
    """

    questions: tuple[tuple[str, str], ...] = ()

    kind = kinds.KINDS[kinds.CHOICE]
    chooses_one = True
    can_have_windows = False

    @property
    def choice_count(self):
        return len(self.labelled.choices)

    @property
    def result_columns(self):
        return self.columns[-self.choice_count :]

    def describe(self):
        return {"choices": self.choice_count, **super().describe()}

    @property
    def least_length(self):
        return 5

    @property
    def reading(self):
        return "choices", self.labelled.text_b is not None, self.questions

    def check_texts(self, texts, where):
        names = self.result_columns
        for name, text in zip(names, texts[-len(names) :]):
            if not text.strip():
                raise UserError(f"{where}: the choice {name!r} is empty")
        questions = dict(self.questions)
        if questions and texts[1] not in questions:
            raise UserError(
                f"{where}: {self.columns[1]!r} is {texts[1][:80]!r}, expected "
                f"{' or '.join(questions)}"
            )

    def _check(self, rows):
        for row, texts in enumerate(rows.texts):
            self.check_texts(texts, rows.where(row))
        return super()._check(rows)

    def check_label(self, label, where):
        names = self.result_columns
        if label not in self.numbers():
            raise UserError(
                f"{where}: the label is {label[:80]!r}, expected the right "
                f"choice's number from 0 to {len(names) - 1}, or its column, "
                f"{' or '.join(map(repr, names))[:200]}"
            )
        return label

    def numbers(self):
        """Numbers choices by their columns' names and by numbers."""
        numbers = {name: n for n, name in enumerate(self.result_columns)}
        return {**numbers, **{str(n): n for n in numbers.values()}}

    label_features = TextClassification.label_features
    compare = TextClassification.compare
    results = TextClassification.results

    def strata(self, rows):
        """One for all rows: the right choice's place means nothing."""
        return [(None,)] * len(rows)

    def featurize(self, rows, tokenizer, max_seq_length):
        return Choices.from_rows(
            self._sequences(rows, tokenizer, max_seq_length),
            {} if rows.label is None else self.label_features(rows.label),
            choices=self.choice_count,
        )

    def _sequences(
        self, rows: Rows, tokenizer: TextTokenizer, max_seq_length: int
    ) -> Iterator[tuple[list[int], list[int], bool]]:
        replaced = dict(self.questions)
        room = max_seq_length - 2 - len(tokenizer.between)
        keeps_end = tokenizer.keeps_end
        encode = functools.partial(in_chunks, tokenizer.encode_ids)
        choices: Sequence[Iterable[str]] = rows.choices
        of_questions: Iterator[list[int]] = itertools.repeat([])
        if rows.text_b is not None:
            questions = [replaced.get(b, b) for b in rows.text_b]
            of_questions = encode(questions)
            choices = [
                (f"{b} {choice}" for b, choice in zip(questions, column))
                for column in choices
            ]
        encoded = map(encode, choices)
        for a, b, *of_row in zip(
            encode(rows.text_a), map(len, of_questions), *encoded
        ):
            longest = max(map(len, of_row)) - b
            len_a, len_b = fit(len(a), b, max(0, room - longest))
            is_cut = len(a) + b + longest > room
            for tokens in of_row:
                question = cut(tokens[:b], len_b, keeps_end)
                choice = cut(tokens[b:], room, keeps_end)
                pair = cut(a, len_a, keeps_end), question + choice
                yield *make_row(*pair, tokenizer, max_seq_length), is_cut
                is_cut = False

    def build_head(self, config, create):
        return ChoiceHead(config, create, self.head)

    def decode(self, rows, features, outputs):
        """Gives `logits` of each row's choices, float32 [rows, C]."""
        return {"logits": outputs["logits"].reshape(len(rows), -1)}

    def answer(self, rows, predictions):
        least = self.calibration.abstain_below
        return [
            {
                "choice": row.index(max(row)) if max(row) >= least else None,
                "probability": max(row),
                "scores": dict(zip(self.result_columns, row)),
            }
            for row in self.results(predictions).tolist()
        ]

    @property
    def client_facts(self):
        facts = {"labels": list(self.result_columns)}
        if self.questions:
            facts["questions"] = [entry for entry, _ in self.questions]
        return {**facts, **self.calibration.client_facts}

    def runtime_outputs(self, outputs, rows):
        shape = rows, self.choice_count
        logits = {"logits": tf.reshape(outputs["logits"], shape)}
        return TextClassification.runtime_outputs(self, logits, rows)


# The second sentence is a noun phrase that each ending goes on with.
SWAG = MultipleChoice(
    "swag",
    labelled=Layout(
        "sent1",
        "sent2",
        "label",
        choices=tuple(f"ending{number}" for number in range(4)),
    ),
    dev_splits=(("", "val"),),
)
COPA = MultipleChoice(
    "copa",
    labelled=Layout(
        "premise", "question", "label", choices=("choice1", "choice2")
    ),
    dev_splits=(("", "val"),),
    # As the original files ask them.
    questions=(
        ("cause", "What was the cause of this?"),
        ("effect", "What happened as a result?"),
    ),
)
