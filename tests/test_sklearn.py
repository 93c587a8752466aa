"""Adapters as scikit-learn's estimators."""

import pickle
import sys

import numpy as np
import pandas
import pytest
import refusals
from conftest import SENTENCES, module_fixture, run_command
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

import adapter_bert as ab
from adapter_bert.sklearn import AdapterClassifier, AdapterRegressor

pytestmark = pytest.mark.newer_stack
TEXTS = [text for text, _ in SENTENCES * 3]
LABELS = [label for _, label in SENTENCES * 3]
SETTINGS = {
    "tuning_method": "houlsby(size=4)",
    "num_train_epochs": 2,
    "train_batch_size": 8,
    "learning_rate": 3e-3,
    "max_seq_length": 24,
    "cpu_lanes": 1,
}


@module_fixture
def classifier(tiny_bert):
    return AdapterClassifier(tiny_bert, **SETTINGS).fit(TEXTS, LABELS)


@pytest.mark.gate
def test_answers_are_those_of_a_training_and_a_predictor(
    classifier, tiny_bert, tmp_path, monkeypatch
):
    bert = ab.load_bert(tiny_bert)
    rows = list(zip(TEXTS, LABELS))
    run = ab.train(bert, rows, output_dir=tmp_path / "run", **SETTINGS)
    answers = ab.Predictor(bert, run).predict(TEXTS)
    assert_array_equal(classifier.classes_, sorted(set(LABELS)))
    assert_array_equal(
        classifier.predict_proba(TEXTS),
        [[a.scores[name] for name in classifier.classes_] for a in answers],
    )
    assert list(classifier.predict(TEXTS)) == [a.label for a in answers]
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = classifier.save_adapter("~/saved")
    assert folder == str(tmp_path / "saved")
    again = ab.Predictor(bert, folder).predict(TEXTS)
    assert again == answers
    assert clone(AdapterClassifier(bert)).bert is bert


@pytest.mark.gate
def test_an_estimator_is_cloned_and_pickled_with_its_adapter(
    classifier, tmp_path
):
    assert clone(classifier).get_params() == classifier.get_params()
    assert not hasattr(clone(classifier), "adapter_")
    (tmp_path / "it").write_bytes(pickle.dumps(classifier))
    program = (
        "import pickle, sys\n"
        "it = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(*it.predict(sys.argv[2:]), sep='\\n')\n"
    )
    words = [sys.executable, "-c", program, tmp_path / "it", *TEXTS[:3]]
    done = run_command(*words, check=True)
    assert done.stdout.split("\n")[:3] == list(classifier.predict(TEXTS[:3]))


@pytest.mark.gate
def test_it_stands_in_pipelines_searches_and_calibrations(classifier, tmp_path):
    classifier = clone(classifier).set_params(
        num_train_steps=2,
        tuning_method="top_layers(k=1)",
        cache_frozen_layers=True,
        frozen_layers_dir=str(tmp_path),
    )
    strip = FunctionTransformer(lambda texts: [text.strip() for text in texts])
    pipeline = make_pipeline(strip, classifier)
    rate, rates = "adapterclassifier__learning_rate", [1e-3, 3e-3]
    search = GridSearchCV(pipeline, {rate: rates}, cv=2).fit(TEXTS, LABELS)
    assert search.best_params_[rate] in rates
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    # Of each part and of all rows, whatever the rate.
    assert len(list(tmp_path.glob("*.npy"))) == 3
    calibrated = CalibratedClassifierCV(classifier, cv=2).fit(TEXTS, LABELS)
    assert_array_equal(calibrated.classes_, sorted(set(LABELS)))


@pytest.mark.gate
def test_labels_may_be_numbers_and_texts_pairs(tiny_bert):
    pairs = np.array([[text, text[::-1]] for text in TEXTS])
    numbers = np.array([sorted(set(LABELS)).index(x) for x in LABELS])
    settings = {**SETTINGS, "num_train_steps": 2, "num_train_epochs": 3}
    classifier = AdapterClassifier(tiny_bert, **settings)
    # Labels in one column, as a DataFrame has them.
    with pytest.warns(DataConversionWarning):
        classifier.fit(pairs, numbers[:, np.newaxis])
    assert set(classifier.predict(pairs)) <= set(numbers)
    regressor = AdapterRegressor(tiny_bert, **settings).fit(pairs, numbers)
    assert regressor.predict(pairs).shape == (len(pairs),)
    assert regressor.predict(pairs).dtype == np.float64
    assert np.isfinite(regressor.score(pairs, numbers))


@pytest.mark.parametrize(
    "values, dtype",
    [
        ([2**60, 2**60 + 1], "Int64"),
        ([False, True], "boolean"),
        ([1.0, 2.0], "Float64"),
        ([1, 2], "float32"),
    ],
)
def test_labels_are_what_a_column_holds(tiny_bert, monkeypatch, values, dtype):
    trained = []
    monkeypatch.setattr(
        AdapterClassifier, "_fit", lambda self, x, y: trained.extend(y)
    )
    y = pandas.Series(values, dtype=dtype)
    classifier = AdapterClassifier(tiny_bert).fit(["a", "b"], y)
    assert classifier.classes_.tolist() == values
    assert trained == list(map(str, y))


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_estimator_repr,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
    ],
)
@pytest.mark.parametrize("kind", [AdapterClassifier, AdapterRegressor])
def test_scikit_learns_checks_hold(tiny_bert, kind, check):
    """Those that fit nothing; the others fit on numbers."""
    check(kind.__name__, kind(tiny_bert))


def test_unknown_parameters_are_refused(tiny_bert):
    # `predict` gives a label of each row.
    for name in ("num_epochs", "abstain_at", "carry_parts"):
        with pytest.raises(TypeError, match=name):
            AdapterClassifier(tiny_bert, **{name: 0.5})
    with pytest.raises(ValueError, match="num_epochs"):
        AdapterClassifier(tiny_bert).set_params(num_epochs=3)


def test_a_loaded_bert_has_a_dtype(tiny_bert):
    classifier = AdapterClassifier(ab.load_bert(tiny_bert), base_dtype="int8")
    refusals.check(
        lambda: classifier.fit(["a", "b"], ["x", "y"]), "base_dtype", "float32"
    )


@pytest.mark.parametrize(
    "x, y, parts",
    [
        ([1.5], "a", "X[0] 1.5 text"),
        ([], "", "X empty"),
        ("one", "a", "X 'one' list"),
        ([("a", "b"), "c"], "ab", "X[1] 1 2"),
        ([("a", "b", "c")], "a", "X[0] 3 one or two"),
        (["a", "b"], "a", "X 2 y 1"),
        ([("a", float("nan"))], "a", "X[0] nan text"),
        (["a", "b"], ["a", None], "y[1] None label"),
        (["a", "b"], ["a", float("nan")], "y[1] nan label"),
        (["a", "b"], ["a", pandas.NA], "y[1] <NA> label"),
    ],
)
def test_rows_are_refused(tiny_bert, x, y, parts):
    classifier = AdapterClassifier(tiny_bert)
    refusals.check(lambda: classifier.fit(x, list(y)), *parts.split())
    with pytest.raises(NotFittedError):
        classifier.predict(["a"])


def test_what_needs_a_dev_set_says_how_it_gets_one(tiny_bert):
    classifier = AdapterClassifier(tiny_bert, calibrate=True)
    parts = "--eval_file is missing", "of a table, --dev_share"
    refusals.check(lambda: classifier.fit(["a", "b"], ["x", "y"]), *parts)


def test_several_labels_of_a_text_are_refused(tiny_bert):
    with pytest.raises(ValueError, match="1d array.*3, 2"):
        AdapterClassifier(tiny_bert).fit(TEXTS[:3], [[0, 1]] * 3)
