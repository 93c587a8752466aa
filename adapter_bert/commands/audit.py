r"""Finds rows of a training file whose labels are probably wrong.

    .venv/bin/adapter-bert audit --train_file=tickets.csv \
        --text_a_column=message --label_column=queue \
        --init_checkpoint=$BERT --output_dir=out/audit

`run_classifier.py` has the same flags for the rows, the BERT and the method.
The texts are divided into folds. Each fold's labels are guessed by a model that
was trained on the other folds, over frozen layers that are computed once.
Confident learning then compares guesses and labels (`reports/label_errors.py`).
"""

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.answering.embeddings import Embedder, VectorForm
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.commands import run_classifier
from adapter_bert.commands.baseline import fit_classes
from adapter_bert.data import divisions
from adapter_bert.data.table_flags import LongTexts
from adapter_bert.data.tables import Rows, shown
from adapter_bert.errors import UserError
from adapter_bert.flags import (
    FLAGS,
    Topic,
    at_least,
    declared,
    is_given,
    read,
)
from adapter_bert.progress import Progress
from adapter_bert.reports import label_errors
from adapter_bert.tasks.task import cell, write_table
from adapter_bert.tasks.text_classification import (
    TextClassification,
    weigh_classes,
)
from adapter_bert.tasks.text_task import TEXT_COLUMNS
from adapter_bert.tasks.vector_form import MEAN
from adapter_bert.training import out_of_fold, run_from_flags
from adapter_bert.training.settings import Classification, Experiment

SUSPECTS_FILE = "suspects.tsv"
AUDIT_FILE = "audit.json"
# Layers whose means the heads read: of more, heads are slower and no better.
LAYERS = 3
# What scikit-learn calls C, from the strongest regularization.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
# Topics of flags that models have, but linear heads lack.
OF_TRAINING = Topic.TRAINING, Topic.METHOD, Topic.EVALUATION, Topic.HARDWARE
# Flags of hardware that heads have, too.
OF_HEADS = "compute_dtype", "base_dtype"
# Flags of a run that an audit refuses; --help leaves them out.
REFUSED = (
    *run_classifier.LABEL_FLAGS,
    *(
        "do_train do_eval do_predict describe eval_file predict_file "
        "id_column dev_share split_seed task_sampling adapter init_adapter "
        "max_train_examples max_eval_examples save_checkpoints_steps "
        "eval_steps keep_best early_stopping cache_frozen_layers "
        "carry_parts predict_batch_size engine"
    ).split(),
    *vars(LongTexts()),
    *sorted(vars(Classification()).keys() - {"class_weights"}),
)


@dataclasses.dataclass(frozen=True)
class Folds:
    """Divides the rows."""

    folds: int = Topic.DATA.setting(
        5,
        "Parts of the texts; the labels of each are guessed from the others.",
        at_least(2),
    )


SETTINGS = (*run_classifier.SETTINGS, Folds)


@dataclasses.dataclass(frozen=True)
class Audit:
    """Holds the findings of an audit.

    Attributes:
        model: description of the one that guessed the labels.
        rows: their number.
        suspects: the rows for which another label is more probable, the worst
            first: `row` (number among the rows that are read, from 1), `line`
            (of the file), `text` and of pairs `text_b`, `label`,
            `suggested`, and `score`, from 0 to 0.5.
        wrong_labels: about so many labels are wrong.
        labels: in the order of `joint`.
        joint: about so many rows have a label (line) and belong to a class
            (column).
    """

    model: str
    rows: int
    suspects: list[dict[str, Any]]
    wrong_labels: int
    labels: list[str]
    joint: list[list[float]]


def layer_means(
    bert: FrozenBert, rows: Rows, max_seq_length: int, batch_size: int = 32
) -> np.ndarray:
    """Means over the tokens of a row, of some layers evenly spaced.

    A pair is read as a pair, and each of its texts alone: after the pair's
    means come the differences of the texts' means, without their signs.
    Source of the differences: Conneau et al. 2017, section 3.1.

    Returns:
        float32 [N, layers D], of pairs [N, 2 layers D].
    """
    last = bert.config.num_hidden_layers - 1
    spaced = np.linspace((last + 1) / LAYERS - 1, last, LAYERS)
    layers = tuple(map(int, np.unique(np.maximum(spaced, 0).round())))
    embedder = Embedder(
        bert, None, VectorForm(MEAN, layers), batch_size, max_seq_length
    )

    def means(texts: Iterable[tuple[str, ...]]) -> np.ndarray:
        progress = Progress("frozen layers", len(rows), "rows")
        vectors = []
        for some in embedder.stream(list(texts)):
            vectors.append(some)
            progress.update(len(some))
        progress.close()
        return np.concatenate(vectors)

    together = means(rows.texts)
    if embedder.cut_rows:
        logging.warning(
            "%d of %d rows are cut (--max_seq_length)",
            embedder.cut_rows,
            len(rows),
        )
    if rows.text_b is None:
        return together
    apart = np.abs(means(zip(rows.text_a)) - means(zip(rows.text_b)))
    return np.concatenate([together, apart], axis=1)


def guess(
    vectors: np.ndarray, labels: np.ndarray, fold: np.ndarray, count: int
) -> tuple[np.ndarray, float]:
    """Returns the probabilities of linear heads that have not seen the rows.

    Regularization becomes weaker until the labels' log loss grows.

    Args:
        vectors: float [N, D].
        labels: int [N], places among the classes.
        fold: int [N].
        count: of classes, C.

    Returns:
        float64 [N, C], and the strength that was chosen.
    """
    best: tuple[float, np.ndarray, float] = (np.inf, np.empty(0), 0.0)
    progress = Progress("heads", len(STRENGTHS) * (fold.max() + 1), "fits")
    for strength in STRENGTHS:
        outputs = np.empty((len(labels), count))
        for number in range(fold.max() + 1):
            rest, inside = fold != number, fold == number
            mean, scale = vectors[rest].mean(axis=0), vectors[rest].std(axis=0)
            # What never differs tells nothing.
            scale[scale == 0] = 1
            scaled = (vectors - mean) / scale
            head = fit_classes(scaled[rest], labels[rest], count, strength)
            outputs[inside] = np.exp(head(scaled[inside]))
            progress.update(1)
        of_labels = outputs[np.arange(len(labels)), labels]
        loss = -np.log(np.maximum(of_labels, 1e-12)).mean()
        logging.info("C = %g: log loss %.4f of labels", strength, loss)
        if loss >= best[0]:
            break
        best = loss, outputs, strength
    progress.close()
    return best[1:]


def guess_all(
    settings: Experiment, task: TextClassification, rows: Rows, folds: int
) -> tuple[np.ndarray, str]:
    """Guesses the labels of all rows, by the model that the flags name.

    Returns:
        float64 [N, C], and a description of the model.
    """
    labels = task.label_features(rows.label)["label_ids"]
    texts = divisions.Texts(rows.texts, labels[:, np.newaxis].tolist())
    if len(texts) < folds:
        raise UserError(
            f"{rows.path} holds {len(texts)} different texts, but --folds is "
            f"{folds}; expected at least as many texts"
        )
    if len(set(rows.label)) < 2:
        raise UserError(
            f"{rows.path} holds only the label {rows.label[0]!r}, expected at "
            "least two labels"
        )
    fold = texts.folds(folds, settings.training.seed)
    names, few = shown(task.labels), []
    for number, label in enumerate(task.labels):
        count = len(np.unique(texts.numbers[labels == number]))
        if 0 < count < folds:
            few.append(f"{names[label]} ({count})")
    if few:
        logging.warning(
            "labels with fewer texts than the %d folds, whose guesses are "
            "poor: %s; the rows of a label that has no text in another fold "
            "are no suspects",
            folds,
            ", ".join(few)[:500],
        )
    if is_given("tuning_method"):
        outputs = out_of_fold.predict(settings, task, rows, fold)
        answers, model = task.results(outputs), str(settings.method)
    else:
        bert = FrozenBert.open(
            settings.init_checkpoint,
            settings.bert_config_file,
            settings.vocab_file,
            settings.compute_dtype,
            settings.do_lower_case,
            settings.base_dtype,
        )
        vectors = layer_means(bert, rows, settings.max_seq_length)
        answers, strength = guess(vectors, labels, fold, len(task.labels))
        model = f"linear heads on means of layers, C = {strength:g}"
    return trusting(answers, labels, fold), model


def trusting(
    probabilities: np.ndarray, labels: np.ndarray, fold: np.ndarray
) -> np.ndarray:
    """Returns the probabilities [N, C], 1 for labels that no other fold has.

    Their model has never seen such a label, so it says nothing about the row.
    """
    counts = np.zeros((probabilities.shape[1], fold.max() + 1), np.int64)
    np.add.at(counts, (labels, fold), 1)
    others = counts[labels].sum(axis=1) - counts[labels, fold]
    certain = np.eye(probabilities.shape[1])[labels]
    return np.where((others == 0)[:, np.newaxis], certain, probabilities)


def compare(
    task: TextClassification, rows: Rows, probabilities: np.ndarray, model: str
) -> Audit:
    """Compares labels and the `probabilities`, [N, C], that a model gives."""
    labels = task.label_features(rows.label)["label_ids"]
    counted = label_errors.joint(probabilities, labels)
    scores = label_errors.margins(probabilities, labels)
    others = label_errors.suggested(probabilities, labels)
    texts = list(rows.texts)
    suspects = [
        {
            "row": int(row) + 1,
            "line": int(rows.lines[row]) + 1,
            **dict(zip(TEXT_COLUMNS, texts[row])),
            "label": rows.label[row],
            "suggested": task.labels[others[row]],
            "score": float(scores[row]),
        }
        for row in np.argsort(scores, kind="stable")
        if scores[row] < 0.5
    ]
    wrong = round(counted.sum() - np.trace(counted))
    labels = list(task.labels)
    return Audit(
        model, len(rows), suspects, wrong, labels, counted.round(1).tolist()
    )


def write(output_dir: str, audit: Audit, is_pair: bool) -> None:
    """Writes `suspects.tsv` and `audit.json`, and says what they hold."""
    texts = TEXT_COLUMNS[: 1 + is_pair]
    table = [("row", "line", *texts, "label", "suggested", "score")]
    for suspect in audit.suspects:
        cells = {
            **suspect,
            **{name: cell(suspect[name]) for name in texts},
            "score": f"{suspect['score']:.6f}",
        }
        table.append(tuple(str(cells[name]) for name in table[0]))
    path = write_table(os.path.join(output_dir, SUSPECTS_FILE), table)
    count = len(audit.suspects)
    files.write_json(
        os.path.join(output_dir, AUDIT_FILE), {**vars(audit), "suspects": count}
    )
    logging.info(
        "%s: %d suspects of %d rows, the worst first; about %d labels are "
        "wrong by confident learning's count",
        path,
        count,
        audit.rows,
        audit.wrong_labels,
    )


def main() -> Audit:
    """Audits what the flags name."""
    for name in REFUSED:
        if is_given(name):
            raise UserError(
                f"--{name} is for a run of run_classifier.py: an audit looks "
                "at every row, which has one label, and trains models of its "
                "own; leave it out"
            )
    for name, about, _ in declared(SETTINGS):
        is_of_training = about.topic in OF_TRAINING and name not in OF_HEADS
        is_other = FLAGS[name].value != FLAGS[name].default
        if is_of_training and is_other and not is_given("tuning_method"):
            raise UserError(
                f"--{name} means nothing without --tuning_method; pass that "
                f"too, or leave --{name} out"
            )
    task = run_classifier.task_from_flags(
        default=run_classifier.CUSTOM if FLAGS.train_file else ""
    )
    if not isinstance(task, TextClassification) or task.has_sets:
        raise UserError(
            f"the task {task.name} with these flags cannot be audited: an "
            "audit is for rows with one label each"
        )
    if not FLAGS.data_dir and not task.train_file:
        raise UserError(
            "--train_file or --data_dir is missing: the rows to audit"
        )
    if not FLAGS.init_checkpoint:
        raise UserError(
            "--init_checkpoint is missing: the pretrained BERT that reads the "
            "rows"
        )
    classification = read(Classification)
    if classification.class_weights is not None:
        task = weigh_classes(task, classification.class_weights)
    settings = run_from_flags.experiment_from_flags(task)
    task, of_splits = task.read(settings.data_dir, ["train"])
    rows = of_splits["train"]
    task = task.learn(rows)
    files.prepare_folder(settings.output_dir)
    with folder_lock.hold(settings.output_dir):
        guessed = guess_all(settings, task, rows, read(Folds).folds)
        audit = compare(task, rows, *guessed)
        write(settings.output_dir, audit, rows.text_b is not None)
    return audit
