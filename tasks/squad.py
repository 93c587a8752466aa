"""Question answering on files in SQuAD's layout, versions 1.1 and 2.0."""

import dataclasses
import json
import os
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import numpy as np
import tensorflow as tf
from absl import logging

import input_pipeline
import modeling
from errors import UserError
from storage import files
from tasks import squad_scores
from tasks.base import Head, Task
from tasks.head_shape import SPANS, HeadShape, HiddenLayers
from tasks.squad_answers import Prediction, Rules, predict_answers
from tasks.squad_data import (
    Question,
    check_answers,
    find_answer,
    read_questions,
)
from tasks.squad_windows import Windows, cut_windows
from tokenization import TextTokenizer

# A logit that no real one comes near to.
NEVER = -1e30
# Most that `n_best_size` can be: pairs of so many starts and ends are compared.
MOST_CANDIDATES = 1000
# What `Squad.settings` holds.
SETTINGS = (
    "doc_stride",
    "max_query_length",
    "n_best_size",
    "max_answer_length",
    "version_2_with_negative",
    "null_score_diff_threshold",
)
# What training steps may be counted in.
COUNTS = ("questions", "windows")


class SpanHead(Head):
    """A start and an end logit for every token.

    Parameters: 2 D + 2, and those of `HiddenLayers`. Source:
    google-research/bert, `run_squad.py`, `create_model`. There padding
    competes with the tokens, so that results depend on the length that windows
    are padded to; here it does not.
    """

    needs_pooler = False

    def __init__(
        self,
        n_best_size: int,
        config: modeling.BertConfig,
        create: modeling.CreateVariable,
        shape: HeadShape = SPANS,
    ):
        """Creates `cls/squad/output_weights` [2, D] and `_bias` [2]."""
        self.n_best_size = n_best_size
        self.hidden = HiddenLayers(
            shape, "cls/squad/", config.hidden_size, create
        )
        self.weights = create(
            "cls/squad/output_weights",
            (2, config.hidden_size),
            modeling.truncated_normal(0.02),
        )
        self.bias = create("cls/squad/output_bias", (2,), modeling.zeros)

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> `start_logits`, `end_logits`, float32 [B, T]."""
        read = self.hidden(sequence_output, context)
        logits = tf.einsum("btd,cd->cbt", read, self.weights)
        logits += self.bias[:, tf.newaxis, tf.newaxis]
        logits = tf.where(context.input_mask > 0, logits, NEVER)
        return {"start_logits": logits[0], "end_logits": logits[1]}

    def select(self, predictions):
        """The best n, as `best_logits` gives them."""
        logits = [predictions[f"{side}_logits"] for side in ("start", "end")]
        return best_logits(tf.stack(logits), self.n_best_size)

    def loss(self, predictions, features):
        """Mean of both cross entropies in nats, float32 [B]."""
        losses = [
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=features[f"{side}_positions"],
                logits=predictions[f"{side}_logits"],
            )
            for side in ("start", "end")
        ]
        return (losses[0] + losses[1]) / 2.0


def best_logits(logits: tf.Tensor, n: int) -> Dict[str, tf.Tensor]:
    """The n greatest start and end logits of each window, and the first ones.

    Args:
        logits: float32 [2, B, T], of starts and ends.
        n: how many to keep; a window of fewer tokens is filled up.

    Returns:
        The greatest, `start_logits` and `end_logits`, float32 [B, n]; their
        places `start_indexes` and `end_indexes`, int32 [B, n]; `null_logits`,
        float32 [B, 2], the start and end logit of the first token.
    """
    filled = tf.pad(logits, [[0, 0], [0, 0], [0, n]], constant_values=NEVER)
    values, indexes = tf.math.top_k(filled, n)
    return {
        "start_logits": values[0],
        "start_indexes": indexes[0],
        "end_logits": values[1],
        "end_indexes": indexes[1],
        "null_logits": tf.transpose(logits[:, :, 0]),
    }


@dataclasses.dataclass(frozen=True)
class Squad(Task[Sequence[Question]]):
    """Question answering; each field but `head` is as its flag says."""

    train_file: str
    predict_file: str
    doc_stride: int
    max_query_length: int
    n_best_size: int
    max_answer_length: int
    version_2_with_negative: bool
    null_score_diff_threshold: float
    count_steps_in: str = COUNTS[0]
    head: HeadShape = SPANS
    verbose_logging: bool = False

    test_is_dev = True
    cut_at = "max_query_length"
    columns = ("question", "context")

    def describe(self):
        """The head, unless it is as usual."""
        return {} if self.head == SPANS else self.head.describe()

    def restore(self, description, source):
        """This task, if the trained head is one of question answering."""
        if description["name"] != self.name:
            raise UserError(
                f"{source} was trained on the task {description['name']}, not "
                f"on {self.name}"
            )
        if "head" not in description:
            return self
        head = HeadShape.restore(description, source)
        return dataclasses.replace(self, head=head)

    @property
    def named_train_file(self):
        """`train_file`."""
        return self.train_file

    def read(self, data_dir, splits):
        """Reads `train_file` and `predict_file`.

        Of the training file, questions are left out, with a warning, whose
        first answer is not at its place in the context, as in
        google-research/bert. Answers a little off their place are counted in
        a warning. The split `dev` must have answers, `test` need
        not.
        """
        return self, {split: self._read(data_dir, split) for split in splits}

    def _read(self, data_dir: str, split: str) -> List[Question]:
        training = split == "train"
        path = self.train_file if training else self.predict_file
        if not path:
            raise UserError(
                f"--{'train' if training else 'predict'}_file is missing: a "
                "file in SQuAD's layout"
            )
        path = os.path.join(data_dir, path)
        negative = self.version_2_with_negative
        questions = read_questions(path, negative)
        if split != "test":
            check_answers(questions, path, negative)
        return self._leave_out(questions, path) if training else questions

    def _leave_out(self, questions: List[Question], path: str):
        found = {q.id: find_answer(q) for q in questions if q.answers}
        lost = {name for name, place in found.items() if not place}
        if lost:
            shown = sorted(lost) if self.verbose_logging else sorted(lost)[:5]
            logging.warning(
                "%s: %d of %d questions left out, whose answer is not at its "
                "place in the context: %s%s",
                path,
                len(lost),
                len(questions),
                ", ".join(shown),
                "" if len(shown) == len(lost) else ", ...",
            )
        moved = sum(
            not q.context.startswith(q.answers[0].text, q.answers[0].start)
            for q in questions
            if found.get(q.id)
        )
        if moved:
            logging.warning(
                "%s: %d of %d answers are not exactly at their place in the "
                "context; the same words nearest to it are learned",
                path,
                moved,
                len(questions),
            )
        if len(lost) == len(questions):
            raise UserError(f"{path} holds nothing to learn from")
        return [q for q in questions if q.id not in lost]

    @property
    def score_names(self):
        """Exact match and F1, as the official rules call them."""
        exact = "exact" if self.version_2_with_negative else "exact_match"
        return exact, "f1"

    @property
    def least_length(self):
        """The longest question, `[CLS]`, two `[SEP]`, a token of a context."""
        return self.max_query_length + 4

    @property
    def settings(self):
        """How windows are cut and answers chosen."""
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def head_kind(self):
        """How many logits it keeps, and its layers."""
        return type(self), self.n_best_size, self.head

    @property
    def reading(self):
        """How windows are cut."""
        return "windows", self.doc_stride, self.max_query_length

    def make_rows(self, texts):
        """Questions without answers."""
        return [
            Question(str(number), question, context, None)
            for number, (question, context) in enumerate(texts)
        ]

    def featurize(self, rows, tokenizer: TextTokenizer, max_seq_length):
        """Windows of `[CLS] question [SEP] part of the context [SEP]`."""
        return cut_windows(
            rows,
            tokenizer,
            max_seq_length,
            self.doc_stride,
            self.max_query_length,
        )

    def count_train_steps(self, features: Windows, batch_size, epochs):
        """Steps of a training, counted in questions or in windows.

        google-research/bert draws windows but counts an epoch as so many
        steps as there are batches of questions, rounded down: less than one
        pass where contexts are long.
        """
        if not len(features):
            raise UserError(f"{self.train_file} holds nothing to learn from")
        windows = super().count_train_steps(features, batch_size, epochs)
        questions = input_pipeline.count_train_steps(
            len(features.context_starts), batch_size, epochs
        )
        steps = dict(zip(COUNTS, (questions, windows)))
        logging.info(
            "%g epochs are %d steps counted in questions, %d counted in "
            "windows; --count_steps_in=%s",
            epochs,
            questions,
            windows,
            self.count_steps_in,
        )
        return steps[self.count_steps_in]

    def build_head(self, config, create):
        """Start and end logits."""
        return SpanHead(self.n_best_size, config, create, self.head)

    def decode(self, rows, features: Windows, outputs):
        """Answers to all questions."""
        rules = Rules(
            self.n_best_size,
            self.max_answer_length,
            self.version_2_with_negative,
            self.null_score_diff_threshold,
        )
        return predict_answers(rows, features, outputs, rules)

    def evaluate(
        self,
        rows: Sequence[Question],
        features: input_pipeline.Features,
        predictions: Sequence[Prediction],
    ) -> Dict[str, float]:
        """Exact match and F1 by the official rules, in percent."""
        answers = [[a.text for a in q.answers] for q in rows]
        texts = [p.text for p in predictions]
        if not self.version_2_with_negative:
            return squad_scores.squad_1_scores(answers, texts)
        odds = np.array([p.null_odds for p in predictions])
        return squad_scores.squad_2_scores(answers, texts, odds)

    def answer(self, rows, predictions):
        """`answer`, its `start` and `end` in the context, `score`s.

        `answer` is "" and its place null where there is none. `score` is the
        sum of the best answer's start and end logit, `null_score` that of "no
        answer"; each is null where there is no such candidate.
        """
        return [_answer(prediction) for prediction in predictions]

    def write_predictions(self, output_dir, rows, predictions, suffix=""):
        """Writes the files of google-research/bert.

        `predictions.json` (id to answer), `nbest_predictions.json` (id to
        candidates with probability and logits) and, for SQuAD 2.0,
        `null_odds.json` (id to null odds).
        """
        ids = [question.id for question in rows]
        contents = {
            "predictions.json": (p.text for p in predictions),
            "nbest_predictions.json": map(_candidates, predictions),
        }
        if self.version_2_with_negative:
            contents["null_odds.json"] = (p.null_odds for p in predictions)
        paths = []
        for name, values in contents.items():
            paths.append(os.path.join(output_dir, name))
            files.write_parts(paths[-1], _json_object(zip(ids, values)))
        return tuple(paths)


def _answer(prediction: Prediction) -> Dict[str, Any]:
    candidates = prediction.candidates
    scores = candidates.logits.sum(axis=1).tolist()
    found = dict(zip(candidates.texts, zip(scores, candidates.spans)))
    null_score, _ = found.pop("", (None, None))
    best = max((score for score, _ in found.values()), default=None)
    place = found[prediction.text][1] if prediction.text else (None, None)
    return {
        "answer": prediction.text,
        "start": place[0],
        "end": place[1],
        "score": best,
        "null_score": null_score,
    }


def _candidates(prediction: Prediction) -> List[Mapping[str, Any]]:
    candidates = prediction.candidates
    return [
        {
            "text": text,
            "probability": float(probability),
            "start_logit": float(start),
            "end_logit": float(end),
        }
        for text, probability, (start, end) in zip(
            candidates.texts, candidates.probabilities(), candidates.logits
        )
    ]


def _json_object(items: Iterator[Tuple[str, Any]]) -> Iterator[bytes]:
    """An object as JSON, part by part: it may be larger than memory."""
    yield b"{"
    separator = "\n"
    for key, value in items:
        text = json.dumps(value, indent=1, allow_nan=False)
        yield f"{separator}{json.dumps(key)}: {text}".encode()
        separator = ",\n"
    yield b"\n}\n"
