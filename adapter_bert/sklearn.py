"""Adapters as scikit-learn's estimators.

from adapter_bert.sklearn import AdapterClassifier

classifier = AdapterClassifier("minilm", max_seq_length=64)
cross_val_score(classifier, texts, labels)
"""

import functools
import inspect
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from adapter_bert import api, files
from adapter_bert.commands import run_classifier
from adapter_bert.errors import UserError
from adapter_bert.flags import at_home, declared

# Settings of `train` that `fit` makes of its arguments, that are of tables in
# files or of other kinds of tasks, or that `predict` could not obey.
OF_FIT = (
    "rows eval_rows predict_rows task_name output_dir text_a_column "
    "text_b_column label_column label_columns train_file eval_file "
    "predict_file data_dir adapter choice_columns multi_label "
    "regression do_eval do_predict id_column header eval_split "
    "task_sampling label_separator label_threshold fit_thresholds "
    "extend_labels replay_file rank_loss abstain_at carry_parts"
).split()
# Members of a row: one text or a pair, and the label.
TEXTS, LABEL = ("text", "text_b"), "label"
TASK = "task"


@functools.cache
def _defaults() -> dict[str, Any]:
    names = {name for name, _, _ in declared(run_classifier.SETTINGS)}
    return {
        name: parameter.default
        for name, parameter in inspect.signature(api.train).parameters.items()
        if name in names.difference(OF_FIT)
    }


@functools.lru_cache(maxsize=4)
def _open(bert: Any, compute_dtype: str, base_dtype: str) -> api.Bert:
    return api.load_bert(
        bert, compute_dtype=compute_dtype, base_dtype=base_dtype
    )


def _texts(x: Any) -> list[tuple[str, ...]]:
    """Makes rows of lists, an array [N] or [N, 1 or 2], or a DataFrame."""
    values = x.to_numpy() if hasattr(x, "to_numpy") else x
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"X is {x!r:.80}, expected a list of texts or of pairs")
    rows = [
        tuple(row) if isinstance(row, (list, tuple, np.ndarray)) else (row,)
        for row in values
    ]
    if not rows:
        raise UserError("X is empty, expected at least one text")
    for number, row in enumerate(rows):
        if not 1 <= len(row) <= 2 or len(row) != len(rows[0]):
            raise UserError(
                f"X[{number}] has {len(row)} texts, expected one or two, and "
                f"as many in each row ({len(rows[0])} in the first)"
            )
        for text in row:
            if not isinstance(text, str):
                raise UserError(f"X[{number}] is {text!r:.80}, expected a text")
    return rows


class _AdapterEstimator(BaseEstimator):
    """Trains an adapter, which the estimator then holds.

    Parameters are `bert`, as `load_bert` takes it, and the keywords of
    `adapter_bert.train`.

    Attributes:
        adapter_: content of each file of the trained adapter's folder.
    """

    def __init__(self, bert: Any = "minilm", **settings: Any):
        unknown = set(settings).difference(_defaults())
        if unknown:
            raise TypeError(f"unknown parameters: {sorted(unknown)}")
        self.bert = bert
        for name, default in _defaults().items():
            setattr(self, name, settings.get(name, default))

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted(["bert", *_defaults()])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.no_validation = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {k: v for k, v in state.items() if k != "_predictor"}

    def save_adapter(self, folder: Any) -> str:
        """Writes the trained adapter's folder, which the programs read."""
        check_is_fitted(self)
        folder = at_home(os.fspath(folder))
        files.prepare_folder(folder)
        for name, content in self.adapter_.items():
            files.write_bytes(os.path.join(folder, name), content)
        return folder

    def _fit(self, x: Any, labels: list[Any], **of_task: Any) -> None:
        rows = _texts(x)
        if len(rows) != len(labels):
            raise UserError(
                f"X has {len(rows)} rows and y {len(labels)}, expected a label "
                "for each row"
            )
        columns = *TEXTS[: len(rows[0])], LABEL
        settings = {
            name: getattr(self, name)
            for name, default in _defaults().items()
            if getattr(self, name) != default
        }
        if len(rows[0]) == len(TEXTS):
            settings["text_b_column"] = TEXTS[1]
        if isinstance(self.bert, api.Bert):
            for name in api.DTYPES:
                dtype = self.bert.settings[name]
                if settings.get(name, dtype) != dtype:
                    raise UserError(
                        f"{name} is {settings[name]}, but the BERT that was "
                        f"passed was loaded with {dtype}; pass it to load_bert"
                    )
        with files.temporary_folder() as place:
            run = api.train(
                self._bert(),
                [dict(zip(columns, (*row, y))) for row, y in zip(rows, labels)],
                output_dir=os.path.join(place, "run"),
                **{**settings, **of_task},
            )
            self.adapter_ = {
                name: files.read_bytes(os.path.join(run.adapter, name), name)
                for name in files.names(run.adapter)
            }
        vars(self).pop("_predictor", None)

    def _bert(self) -> api.Bert:
        if isinstance(self.bert, api.Bert):
            return self.bert
        return _open(self.bert, self.compute_dtype, self.base_dtype)

    def _answers(self, x: Any) -> api.Answers:
        check_is_fitted(self)
        if "_predictor" not in vars(self):
            with files.temporary_folder() as place:
                folder = self.save_adapter(os.path.join(place, "adapter"))
                self._predictor = api.Predictor(
                    self._bert(),
                    {TASK: folder},
                    predict_batch_size=self.predict_batch_size,
                )
        return self._predictor.predict(_texts(x), task=TASK)


class AdapterClassifier(ClassifierMixin, _AdapterEstimator):
    """Classifies texts, or pairs of texts, with an adapter.

    Attributes:
        classes_: the labels [C], sorted.
    """

    def fit(self, X: Any, y: Any) -> "AdapterClassifier":  # noqa: N803
        """Trains on texts [N] or pairs [N, 2] and their labels [N]."""
        labels = column_or_1d(y, dtype=object)
        for number, label in enumerate(labels):
            # numpy would make a text of them.
            is_missing = type(label).__name__ == "NAType" or label != label
            if label is None or is_missing:
                raise UserError(f"y[{number}] is {label}, expected a label")
        y = column_or_1d(y, warn=True)
        if y.dtype.kind == "f" and not any(
            isinstance(x, float) for x in labels
        ):
            # Of pandas' whole numbers, which may be too large for floats.
            y = np.array(labels.tolist())
        check_classification_targets(y)
        classes = np.unique(y)
        if len({*map(str, classes)}) < len(classes):
            raise UserError(
                "two labels of y are the same text; name them apart"
            )
        self._fit(X, list(map(str, y)))
        self.classes_ = classes
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Computes probabilities float64 [N, C], in the order of `classes_`."""
        answers = self._answers(X)
        names = list(map(str, self.classes_))
        return np.array([[a.scores[name] for name in names] for a in answers])

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Chooses the likeliest label of each row, [N]."""
        places = self.predict_proba(X).argmax(axis=1)
        return self.classes_[places]


class AdapterRegressor(RegressorMixin, _AdapterEstimator):
    """Predicts a number for each text, or pair of texts, with an adapter."""

    def fit(self, X: Any, y: Any) -> "AdapterRegressor":  # noqa: N803
        """Trains on texts [N] or pairs [N, 2] and their numbers [N]."""
        self._fit(
            X, column_or_1d(y, dtype=float, warn=True).tolist(), regression=True
        )
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Predicts float64 [N], in the unit of `y`."""
        return np.array([answer.value for answer in self._answers(X)])
