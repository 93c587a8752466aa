r"""Scores a task over tables without BERT, from words and pairs of words.

    .venv/bin/adapter-bert baseline --task_name=MRPC \
        --data_dir=$GLUE_DIR/MRPC --output_dir=out/no_bert/mrpc

The flags that name the task are those of `run_classifier.py`. A text's inputs
are the TF-IDF of its words and of its pairs of neighbouring words; a pair of
texts has both side by side. The model is logistic regression for labels, one
for each label of a multi-label task, and ridge regression for numbers.
Cross-validation on the training rows chooses the regularization.

Source: the baseline of Houlsby et al. 2019, Table 2, in its simplest form.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from typing import Any, Callable

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import scipy.sparse
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.checkpoints.run_record import (
    BASELINE_FILE,
    RUN_FILE,
    name_of_data,
)
from adapter_bert.commands import run_classifier
from adapter_bert.data import divisions
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.tables import Rows
from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, Topic, read
from adapter_bert.progress import Progress
from adapter_bert.tasks.multi_label import MultiLabel
from adapter_bert.tasks.multiple_choice import MultipleChoice
from adapter_bert.tasks.reranking import Reranking
from adapter_bert.tasks.text_regression import TextRegression
from adapter_bert.tasks.text_task import TextTask
from adapter_bert.training import run_files

BASELINE = "TF-IDF of words and pairs of words, a linear model"
SEED = 1
FOLDS = 5
# What scikit-learn calls C: small is strongly regularized.
STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# A word may be a single letter.
WORD = r"\w+"
# [rows, words].
Inputs = scipy.sparse.csr_matrix
# As a head's outputs are called.
Outputs = dict[str, np.ndarray]


def learn_words(rows: Rows) -> Callable[[Rows], Inputs]:
    """Fits the TF-IDF of words and pairs of words in training rows.

    Returns:
        A function from rows to float64 [rows, words and pairs of each text].
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD
    )
    table = _table(rows)
    columns = ColumnTransformer(
        [(f"text {n}", words, n) for n in range(table.shape[1])],
        sparse_threshold=1,
    )
    try:
        columns.fit(table)
    except ValueError as error:
        raise UserError(
            f"{rows.path}: a column of texts, or the part of it that the "
            "others are guessed from, holds no word"
        ) from error
    return lambda rows: columns.transform(_table(rows))


def _table(rows: Rows) -> np.ndarray:
    return np.array(list(rows.texts), dtype=object)


def fit(
    task: TextTask,
    inputs: Inputs,
    labels: Mapping[str, np.ndarray],
    strength: float,
) -> Callable[[Inputs], Outputs]:
    """Fits a linear model that predicts in the form of the task's head.

    Args:
        task: with its labels.
        inputs: [rows, words].
        labels: the task's `label_features`.
        strength: C; in ridge regression 1 / alpha.

    Returns:
        A function from inputs to `scores` [rows] of a regression, else to
        `logits` [rows, C].
    """
    from sklearn.linear_model import Ridge

    if isinstance(task, TextRegression):
        ridge = Ridge(alpha=1 / strength, solver="lsqr", tol=1e-6)
        ridge.fit(inputs, labels["label_scores"])
        return lambda inputs: {"scores": ridge.predict(inputs)}
    if not isinstance(task, MultiLabel):
        ids, count = labels["label_ids"], len(task.labels)
        model = fit_classes(inputs, ids, count, strength)
        return lambda inputs: {"logits": model(inputs)}
    models = [
        fit_classes(inputs, column, 2, strength)
        for column in labels["label_sets"].T
    ]

    # The log odds of each label.
    return lambda inputs: {
        "logits": np.hstack([np.diff(model(inputs)) for model in models])
    }


def fit_classes(
    inputs: Inputs, labels: np.ndarray, count: int, strength: float
) -> Callable[[Inputs], np.ndarray]:
    """Fits logistic regression over classes; some may lack rows.

    Returns:
        A function from inputs to log probabilities, float64 [rows, count].
    """
    from sklearn.linear_model import LogisticRegression

    seen = np.unique(labels)
    # A class without rows counts as half a row.
    unseen = np.log(0.5 / (len(labels) + 1))
    # Far quicker than the default.
    solver = {"solver": "newton-cg", "tol": 1e-6, "max_iter": 1000}
    model = LogisticRegression(C=strength, **solver)
    if len(seen) > 1:
        model.fit(inputs, labels)

    def predict(inputs: Inputs) -> np.ndarray:
        logits = np.full((inputs.shape[0], count), unseen)
        logits[:, seen] = (
            model.predict_log_proba(inputs) if len(seen) > 1 else 0
        )
        return logits

    return predict


def score(
    task: TextTask, rows: Rows, outputs: Outputs
) -> tuple[Features, dict[str, float]]:
    """Labels of rows, without tokens, and the task's own scores and loss."""
    labels = Features.from_rows([], task.label_features(rows.label))
    return labels, task.evaluate(rows, labels, outputs)


def cross_validate(
    task: TextTask, train: Rows, texts: np.ndarray, count: int
) -> dict[float, float]:
    """Returns the mean of the main score over the folds, by strength.

    `texts` are numbers of the rows' texts, int64 [N], at least as many as the
    folds, whose number is `count`.
    """
    from sklearn.model_selection import KFold

    scores: list[list[float]] = []
    folds = KFold(count, shuffle=True, random_state=SEED)
    progress = Progress("folds", count * len(STRENGTHS), "fits")
    for fold in folds.split(np.unique(texts)):
        rest, part = (train.take(np.isin(texts, numbers)) for numbers in fold)
        words = learn_words(rest)
        inputs, labels = words(rest), task.label_features(rest.label)
        held_out = words(part)
        scores.append([])
        for strength in STRENGTHS:
            model = fit(task, inputs, labels, strength)
            _, scored = score(task, part, model(held_out))
            scores[-1].append(scored[task.metrics[0]])
            progress.update(1)
    progress.close()
    return dict(zip(STRENGTHS, np.mean(scores, axis=0).tolist()))


def run(task: TextTask, data_dir: str, output_dir: str) -> dict[str, float]:
    """Chooses, fits and scores a baseline, and writes its files.

    Returns:
        The scores under BERT's key names.
    """
    splits = [split for _, split in task.dev_splits]
    task, rows = task.read(data_dir, ["train", *splits])
    train = rows["train"]
    task = task.learn(train)
    texts = divisions.number_texts(train.texts)
    folds = min(FOLDS, texts.max() + 1)
    if len(train) < FOLDS or folds < 2:
        raise UserError(
            f"{train.path} holds {len(train)} rows of {texts.max() + 1} texts, "
            f"but cross-validation needs at least {FOLDS} rows of 2 texts"
        )
    described = task.describe_named()
    _check_folder(output_dir, described)
    files.prepare_folder(output_dir)
    with folder_lock.hold(output_dir):
        tried = cross_validate(task, train, texts, folds)
        # The first of equal ones, which is the simplest.
        chosen = max(tried, key=lambda strength: tried[strength])
        for strength, strength_scores in tried.items():
            logging.info(
                "C = %g: %s %.4f in cross-validation%s",
                strength,
                task.metrics[0],
                strength_scores,
                " (chosen)" if strength == chosen else "",
            )
        words = learn_words(train)
        inputs = words(train)
        model = fit(task, inputs, task.label_features(train.label), chosen)
        measured = {}
        for suffix, split in task.dev_splits:
            dev, outputs = rows[split], model(words(rows[split]))
            labels, measured[suffix] = score(task, dev, outputs)
            task.write_report(output_dir, dev, labels, outputs, suffix)
        seen = {split: _fingerprint(rows[split]) for split in splits}
        scores, _ = task.score_tables(measured, seen)[""]
        written = run_files.write_results(output_dir, scores, 0, seen)
        run_files.log_results(written)
        files.write_json(
            os.path.join(output_dir, BASELINE_FILE),
            {
                "baseline": BASELINE,
                "task": described,
                "data_name": name_of_data(task.train_file or data_dir),
                "examples": len(train),
                "data": _fingerprint(train),
                "features": inputs.shape[1],
                "C": chosen,
                "cross_validation": {f"{x:g}": s for x, s in tried.items()},
                "folds": int(folds),
                "seed": SEED,
                "versions": {
                    "python": platform.python_version(),
                    "numpy": np.__version__,
                    "scikit-learn": importlib.metadata.version("scikit-learn"),
                },
            },
        )
    return written


def _check_folder(output_dir: str, described: Mapping[str, Any]) -> None:
    if files.exists(os.path.join(output_dir, RUN_FILE)):
        raise UserError(
            f"{output_dir} holds a run of BERT; choose another --output_dir"
        )
    path = os.path.join(output_dir, BASELINE_FILE)
    before = files.read_optional(path, "the baseline", {"task": dict})
    now = json.loads(json.dumps(described))
    # Baselines of older versions lack it.
    unit = {name: x for name, x in now.items() if name == "label_unit"}
    if before and {**unit, **before["task"]} != now:
        raise UserError(
            f"{output_dir} holds the baseline of another task; choose "
            "another --output_dir"
        )


def _fingerprint(rows: Rows) -> str:
    columns = [rows.text_a, rows.text_b, rows.label]
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Results:
    """Names the folder of the results."""

    REQUIRED = ("output_dir",)
    output_dir: str = Topic.TO_DO.setting("", "Folder for the results.")


SETTINGS = (run_classifier.Source, Results)
# Flags of files and tasks that have no baseline.
REFUSED = ("predict_file", "choice_columns", "task_sampling", "id_column")


def main() -> None:
    """Scores what the flags name."""
    task = run_classifier.task_from_flags()
    if isinstance(task, (MultipleChoice, Reranking)) or not isinstance(
        task, TextTask
    ):
        raise UserError(
            f"the task {task.name} has no baseline: it is for labels, sets of "
            "labels and numbers"
        )
    if FLAGS.predict_file:
        raise UserError("baseline predicts no --predict_file; leave it out")
    if not FLAGS.data_dir and not task.split_files.named:
        raise UserError("--data_dir is missing")
    run(task, FLAGS.data_dir, read(Results).output_dir)
