"""Few rows: vectors are trained on pairs, and a head is fitted to them."""

from functools import partial

import numpy as np
import pytest
import refusals
from conftest import SENTENCES, open_checkpoint, read_json
from numpy.testing import assert_allclose
from run_folders import artifact_bytes
from sklearn.linear_model import LogisticRegression

import adapter_bert as ab
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.exchange import foreign_base
from adapter_bert.training import prediction

THREE = [
    (f"{text} {word}", label)
    for label, text in (
        ("cat", "the cat sat"),
        ("dog", "a dog ran"),
        ("slow", "it is slow"),
    )
    for word in ("a", "b", "on", "the")
]


@pytest.fixture
def flags(tiny_flags, one_layer):
    return {
        **tiny_flags,
        "bert_config_file": one_layer,
        "few_shot": True,
        "num_train_epochs": 1,
    }


@pytest.mark.gate
@pytest.mark.parametrize(
    "engine, rows, changes",
    [
        ("estimator", SENTENCES, {"class_weights": "balanced"}),
        ("strategy", THREE, {"class_weights": {np.str_("dog"): np.float32(5)}}),
        ("strategy", THREE, {"tuning_method": "head"}),
    ],
    indirect=["engine"],
    ids=["two labels", "three labels", "head alone"],
)
def test_a_head_is_fitted_to_the_vectors_of_the_adapter(
    tiny_bert, tmp_path, engine, rows, changes
):
    """The answers are logistic regression's on normalized means."""
    bert = ab.load_bert(tiny_bert)
    texts, labels = map(list, zip(*rows))
    settings = {
        "few_shot": True,
        "engine": engine,
        "max_seq_length": 24,
        "tuning_method": "houlsby(size=4)",
        "learning_rate": 3e-3,
        "train_batch_size": 8,
        "num_train_epochs": 4,
        **changes,
    }
    run = ab.train(bert, rows, output_dir=tmp_path / "out", **settings)
    weights = changes.get("class_weights")
    if weights == {"dog": 5}:
        weights = {"cat": 1, "slow": 1, **weights}
    embed = partial(ab.embed, bert, texts, pooling="mean", normalize=True)
    before = embed()
    vectors = embed(adapter=run) if weights else before
    model = LogisticRegression(class_weight=weights, max_iter=1000)
    expected = model.fit(vectors, labels).predict_proba(vectors)
    answers = ab.Predictor(bert, run).predict(texts)
    scores = [list(answer.scores.values()) for answer in answers]
    assert_allclose(scores, expected, atol=1e-4)
    # Vectors of equal labels are more alike than before.
    if weights:
        is_equal = np.equal.outer(labels, labels)
        gap, gap_before = (
            cosines[is_equal].mean() - cosines[~is_equal].mean()
            for cosines in (vectors @ vectors.T, before @ before.T)
        )
        assert gap > gap_before


@pytest.mark.gate
def test_a_run_is_scored_without_the_flag(classify, flags, monkeypatch):
    """And is not trained further as another one; again it is the same."""
    out = flags["output_dir"]
    again = out.with_name("again")
    predict, of_fit = prediction.RowPredictor.predict, []

    def note(self, features, batch_size, what):
        if what == "vectors":
            of_fit.append((batch_size, self._job.predict_tokens))
        return predict(self, features, batch_size, what)

    monkeypatch.setattr(prediction.RowPredictor, "predict", note)
    # Flags that may change while a run goes on.
    others = {"predict_batch_size": 3, "predict_batch_tokens": 0}
    classify(**{**flags, **others, "output_dir": again})
    classify(**flags, do_eval=True)
    assert artifact_bytes(out) == artifact_bytes(again)
    assert len(of_fit) == 2 and of_fit[0] == of_fit[1]
    scores = read_json(out / "eval_results.json")
    (out / "eval_results.json").unlink()
    del flags["few_shot"]
    classify(**{**flags, "do_train": False, "do_eval": True})
    assert read_json(out / "eval_results.json") == scores
    refusals.check(lambda: classify(**flags), "another configuration", "head")
    more = {"few_shot": True, "init_checkpoint": out, "output_dir": out / "b"}
    more["vocab_file"] = ""
    refusals.check(
        lambda: classify(**flags | more), "--init_checkpoint", "head"
    )
    weights = adapter_artifact.read(str(out / "adapter"), None)
    config = open_checkpoint(flags["init_checkpoint"]).config
    refusals.check(
        lambda: foreign_base.head_of(weights, config),
        *("mean", "--to=adapterhub --without_head"),
    )


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"regression": True}, ["--few_shot", "one label"]),
        ({"multi_label": True}, ["--few_shot", "one label"]),
        ({"do_train": False, "do_eval": True}, ["--few_shot", "--do_train"]),
        ({"tuning_method": "lt_sft", "adapter_size": None}, ["lt_sft"]),
        ({"do_eval": True, "keep_best": "loss"}, ["--eval_steps"]),
        ({"cache_frozen_layers": True}, ["--cache_frozen_layers"]),
        ({"max_train_examples": 1}, ["every label", "bad"]),
    ],
)
def test_what_few_rows_cannot_train_is_refused(classify, flags, changes, parts):
    flags = {k: v for k, v in {**flags, **changes}.items() if v is not None}
    refusals.check(lambda: classify(**flags), "--few_shot", *parts)
    assert not flags["output_dir"].exists()
