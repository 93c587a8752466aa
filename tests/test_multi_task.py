"""Several tasks together: rows, names, heads, gradients, scores."""

import functools
import json

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import as_tensors
from engine_jobs import (
    CLASSIFICATION,
    LENGTH,
    MULTI,
    check_equal,
    make_job,
    make_rows,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from test_input_pipeline import PROPERTY, SEEDS, make_features

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.data.input_pipeline import (
    Features,
    batch_signature,
    make_batch,
    train_batches,
)
from adapter_bert.optimization import Recipe
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.kinds import get_task
from adapter_bert.tasks.multi_task import (
    SAMPLINGS,
    JoinedFeatures,
    MultiTaskPlan,
    as_predicted,
    choose_tasks,
    find_folder,
    multi_task,
    of_one_task,
    scoped,
    unscoped,
)

pytestmark = pytest.mark.older_stack

HEADS = {
    "tasks.labels/output_weights": (2, 16),
    "tasks.labels/output_bias": (2,),
    "tasks.scores/output_weights": (1, 16),
    "tasks.scores/output_bias": (1,),
    "tasks.sets/output_weights": (3, 16),
    "tasks.sets/output_bias": (3,),
}


def together(*names, sampling="annealed"):
    """Declared tasks; `custom:NAME` is one of the user's own."""
    return multi_task(
        [
            (name[7:], custom_task())
            if name.startswith("custom:")
            else (name, get_task(name))
            for name in names
        ],
        sampling,
    )


def test_each_task_has_a_head_of_its_own(tiny_config):
    """Everything else is as of one task."""
    heads, alone, others = {}, {}, {}
    for task, shared in ((MULTI, others), (CLASSIFICATION, alone)):
        for p in make_job(tiny_config, "", task=task).table.parameters:
            if p.group != "head":
                shared[p.name] = p.shape, p.trained
            elif task is MULTI:
                heads[p.name] = p.shape
                assert p.trained
    assert heads == HEADS
    assert others == alone


# What BERT puts out for each row.
OUTPUTS = np.random.default_rng(3).normal(size=(40, LENGTH, 16))


class Pooling:
    """What these heads ask of BERT."""

    @staticmethod
    def pooled_output(sequence_output, context):
        return sequence_output[:, 0]


class Step:
    """The loss of rows, its gradients by BERT's output and the variables."""

    def __init__(self, config, task, values=None):
        self.variables = {}

        def create(name, shape, initializer):
            value = (values or {}).get(name)
            if value is None:
                value = encoder.initial_values(name, shape, initializer, 1)
            self.variables[name] = tf.Variable(value)
            return self.variables[name]

        self.head = task.build_head(config, create)

    def __call__(self, features, rows, training):
        batch = as_tensors(make_batch(features, np.array(rows), LENGTH))
        output = tf.Variable(OUTPUTS[rows], dtype=tf.float32)
        context = Context(batch["input_mask"], training, tf.constant([1, 2]))
        with tf.GradientTape() as tape:
            predictions = self.head(Pooling, output, context)
            loss = tf.reduce_mean(self.head.loss(predictions, batch))
        by = {"output": output, **self.variables}
        gradients = tape.gradient(loss, by)
        return loss.numpy(), {
            name: tf.convert_to_tensor(gradient).numpy()
            for name, gradient in gradients.items()
        }


def test_a_batch_of_a_task_trains_what_it_would_train_alone(tiny_config):
    """Bit for bit, dropout on; the other heads' gradients are exactly zero."""
    features, rows = make_rows(MULTI), [3, 14, 0, 7]
    step = Step(tiny_config, MULTI)
    loss, gradients = step(features, rows, True)
    values = unscoped("labels", step.variables)
    labels = unscoped("labels", features.labels)
    arrays = features.tokens, features.segments, features.starts
    expected_loss, expected = Step(tiny_config, CLASSIFICATION, values)(
        Features(*arrays, labels), rows, True
    )
    assert loss == expected_loss
    check_equal(
        {
            "output": gradients.pop("output"),
            **unscoped("labels", gradients),
        },
        expected,
    )
    assert all(gradient.any() for gradient in expected.values())
    others = [n for n in gradients if n.startswith(("tasks.sc", "tasks.se"))]
    assert len(others) == 4
    assert not any(gradients[name].any() for name in others)


def test_rows_of_several_tasks_add_up(tiny_config):
    """The gradient of a mixed batch is the mean of its tasks' own ones."""
    features, step = make_rows(MULTI), Step(tiny_config, MULTI)
    parts = [[1, 2], [16, 17], [31, 39]]
    loss, gradients = step(features, sum(parts, []), False)
    losses, apart = zip(*(step(features, part, False) for part in parts))
    assert_allclose(loss, np.mean(losses), rtol=1e-6)
    by_output = [of_part.pop("output") for of_part in apart]
    assert_allclose(
        gradients.pop("output"), np.concatenate(by_output) / 3, atol=1e-7
    )
    for name, gradient in gradients.items():
        expected = np.mean([of_part[name] for of_part in apart], axis=0)
        assert_allclose(gradient, expected, atol=1e-6, err_msg=name)


def test_the_name_of_a_task_decides_no_decay():
    recipe = Recipe()
    for name in ("bias", "layer_norm", "LayerNorm"):
        assert recipe.decay_of(f"tasks.{name}/output_weights") == 0.01
        assert recipe.decay_of(f"tasks.{name}/hidden_bias_0") == 0
        assert recipe.decay_of(f"bert/{name}/kernel") == 0


def test_splits_carry_the_tasks_names():
    task = together("rte", "mnli", "sts-b")
    assert task == together("sts-b", "mnli", "rte")
    assert task.name == "mnli,rte,sts-b" == ",".join(task.tasks)
    suffixes, splits = zip(*task.dev_splits)
    assert suffixes == ("mnli", "mnli_mismatched", "rte", "sts-b")
    names = "mnli/dev_matched mnli/dev_mismatched rte/dev sts-b/dev"
    assert " ".join(splits) == names
    assert [split for _, split in task.test_splits] == (
        names.replace("dev", "test").split()
    )


def test_scores_are_those_of_all_and_of_each_task():
    task = together("mnli", "mrpc")
    scores = {
        "mnli": {"accuracy": 0.5, "loss": 1.0},
        "mnli_mismatched": {"accuracy": 0.25, "loss": 2.0},
        "mrpc": {"accuracy": 0.75, "f1": 0.875, "loss": 0.5},
    }
    data = {"mnli/dev_matched": "a", "mnli/dev_mismatched": "b"}
    data["mrpc/dev"] = "c"
    tables = task.score_tables(scores, data)
    named, of_run = tables.pop("")
    assert of_run == data and tuple(named) == task.dev_score_names
    # Of MNLI's first dev set and MRPC's first score.
    assert list(named.items())[0] == ("mean", 0.625)
    assert named == {
        "mean": 0.625,
        **{
            f"{score}_{suffix}": value
            for suffix, of in scores.items()
            for score, value in of.items()
        },
    }
    mnli = dict(scores["mnli"], accuracy_mismatched=0.25, loss_mismatched=2.0)
    assert tables == {
        "tasks/mnli": (mnli, {"dev_matched": "a", "dev_mismatched": "b"}),
        "tasks/mrpc": (scores["mrpc"], {"dev": "c"}),
    }


def test_it_says_what_is_trained_together():
    task = together("cola", "custom:spam", sampling="uniform")
    described = json.loads(json.dumps(task.describe()))
    assert described["tasks"]["cola"]["labels"] == ["0", "1"]
    assert described["tasks"]["spam"] == {"name": "custom", "pairs": False}
    assert task.training_settings == {
        "trained_together": ["cola", "spam"],
        "task_sampling": "uniform",
    }
    # Trained ones bring their labels.
    described["tasks"]["spam"]["labels"] = ["ham", "spam"]
    restored = task.restore({"name": task.name, **described}, "x")
    assert restored.tasks["spam"].labels == ("ham", "spam")


COLA = {"name": "cola", **get_task("cola").describe()}
ABOUT_BOTH = {"name": "cola,rte", "tasks": {"cola": COLA, "rte": COLA}}


@refusals.table(
    {
        "others": (
            {"name": "a,b", "tasks": {"a": COLA, "b": COLA}},
            "trained on a,b, not on cola,rte",
        ),
        "damaged": (
            {**ABOUT_BOTH, "tasks": {"cola": COLA, "rte": 1}},
            "not on",
        ),
        "a list": ({**ABOUT_BOTH, "tasks": ["cola"]}, "pass the --task_name"),
        "labels": (
            ABOUT_BOTH,
            "x was trained on the task cola",
            "for the labels 0, 1, but",
        ),
    }
)
def test_heads_of_other_tasks_are_refused(call, parts):
    refusals.check(lambda: together("cola", "rte").restore(call, "x"), *parts)


@refusals.table(
    {
        "untrained": (("mrpc", "ax"), "ax has no training set; train mnli"),
        "twice": (("mrpc", "rte", "mrpc"), "names mrpc twice"),
        "custom twice": (("mrpc", "custom:MRPC"), "names mrpc twice"),
        "dev set": (
            ("custom:MNLI_Mismatched", "mnli"),
            "mnli_mismatched twice",
        ),
        "slash": (("mrpc", "custom:a/b"), "has the folder 'a/b'"),
        "dots": (("mrpc", "custom:.."), "has the folder '..'"),
    }
)
def test_tasks_that_cannot_be_trained_together_are_refused(call, parts):
    refusals.check(lambda: together(*call), *parts)


def test_folders_are_found_in_any_case_of_letters(tmp_path):
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "rte").touch()
    assert find_folder(str(tmp_path), "mrpc") == str(tmp_path / "MRPC")
    (tmp_path / "CoLA").mkdir()
    (tmp_path / "cola").mkdir()
    for folder, name, *parts in (
        (tmp_path, "rte", tmp_path, "holds no folder for the task rte"),
        (tmp_path, "cola", "holds the folders CoLA and cola for"),
        (tmp_path / "no", "mrpc", "there is no folder"),
    ):
        refusals.check(
            functools.partial(find_folder, str(folder), name), *parts
        )


NAMES = ("a", "b-1", "bias")
LENGTHS = st.lists(
    st.lists(st.integers(1, 20), min_size=1, max_size=30),
    min_size=2,
    max_size=3,
)


def make_parts(lengths):
    """Features of some tasks; the second has other labels than the others."""
    parts = {name: make_features(of) for name, of in zip(NAMES, lengths)}
    sets = np.ones((len(parts["b-1"]), 3), np.int32)
    parts["b-1"].labels.clear()
    parts["b-1"].labels["label_sets"] = sets
    return parts


def make_plan(lengths, sampling="annealed", steps=40, seed=3, pool=4, size=4):
    features = JoinedFeatures.join(make_parts(lengths))
    return features, MultiTaskPlan(features, sampling, size, steps, seed, pool)


def test_rows_of_a_training_are_predicted_as_those_of_one_task():
    lengths = [[3, 4], [5], [2]]
    joined = JoinedFeatures.join(make_parts(lengths))
    predicted = as_predicted(joined)
    batch = make_batch(predicted, np.arange(4), LENGTH)
    assert batch["task_ids"].tolist() == [0] * 4
    assert batch["input_mask"].sum(1).tolist() == [3, 4, 5, 2]
    assert as_predicted(predicted) is predicted


@PROPERTY
@given(LENGTHS, st.data())
def test_a_batch_has_each_rows_tokens_task_and_labels(lengths, data):
    parts = make_parts(lengths)
    joined = JoinedFeatures.join(parts)
    assert len(joined) == sum(map(len, lengths))
    places = [
        (name, i) for name, part in parts.items() for i in range(len(part))
    ]
    chosen = data.draw(
        st.lists(st.integers(0, len(places) - 1), min_size=1, max_size=9)
    )
    batch = make_batch(joined, np.array(chosen), None)
    for number, row in enumerate(chosen):
        name, place = places[row]
        alone = make_batch(parts[name], np.array([place]), None)
        length = alone["input_ids"].shape[1]
        for key in ("input_ids", "input_mask", "segment_ids"):
            assert (
                batch[key][number, :length].tolist() == alone[key][0].tolist()
            )
            assert not batch[key][number, length:].any()
        assert list(parts)[batch["task_ids"][number]] == name
        for task, part in parts.items():
            for key in part.labels:
                labels = batch[scoped(task, key)][number]
                expected = alone[key][0] if task == name else 0
                assert (labels == expected).all()
                assert labels.dtype == part.labels[key].dtype


def test_fingerprints_tell_joined_features_apart():
    def fingerprint(lengths, change=lambda parts: None):
        parts = make_parts(lengths)
        change(parts)
        return JoinedFeatures.join(parts).fingerprint()

    def other_label(parts):
        parts["a"].labels["label_ids"][1] = 7

    def other_name(parts):
        parts["c"] = parts.pop("a")

    prints = [
        fingerprint([[3, 4], [5, 2]]),
        # The same rows; another number of them is the first task's.
        fingerprint([[3, 4, 5], [2]]),
        fingerprint([[3, 4], [5, 2]], other_label),
        fingerprint([[3, 4], [5, 2]], other_name),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint([[3, 4], [5, 2]]) == prints[0]


@PROPERTY
@given(LENGTHS, SEEDS, st.sampled_from(sorted(SAMPLINGS)))
def test_each_batch_is_of_one_task_and_each_task_has_all_of_its_rows(
    lengths, seed, sampling
):
    """Epoch after epoch of its own rows, whatever batches are between them."""
    features, plan = make_plan(lengths, sampling, seed=seed, pool=1)
    used = np.zeros(len(features), int)
    for step in range(40):
        rows = plan.rows(step)
        first = features.firsts[plan.tasks[step]]
        of_task = slice(first, first + len(lengths[plan.tasks[step]]))
        assert (rows >= of_task.start).all() and (rows < of_task.stop).all()
        np.add.at(used, rows, 1)
        # No row comes again before all others of its task have come.
        assert used[of_task].max() - used[of_task].min() <= 1


def test_another_seed_draws_other_tasks_and_rows():
    lengths = [[5] * 30, [5] * 30]
    plans = [make_plan(lengths, seed=seed)[1] for seed in (1, 2)]
    assert plans[0].tasks.tolist() != plans[1].tasks.tolist()
    # Tasks of equal size are not shuffled alike either.
    of_task = [
        plans[0].rows(np.flatnonzero(plans[0].tasks == task)[0]) - 30 * task
        for task in (0, 1)
    ]
    assert of_task[0].tolist() != of_task[1].tolist()
    # All workers of a run draw these.
    assert plans[0].rows(0).tolist() == [9, 27, 20, 0]


def test_rows_of_like_length_are_grouped_within_a_task():
    rng = np.random.default_rng(0)
    lengths = [rng.integers(2, 40, 200).tolist() for _ in range(2)]

    def padding(pool):
        features, plan = make_plan(lengths, steps=50, pool=pool, size=8)
        batches = train_batches(features, plan, range(50), None)
        masks = [batch["input_mask"] for batch in batches]
        return sum((1 - m).sum() for m in masks) / sum(m.sum() for m in masks)

    assert padding(8) < 0.5 * padding(1)


COUNTS = {"small": 100, "middle": 1000, "large": 8900}


def shares(sampling, batch_size=1, epochs=1):
    """The share of each task in the draws of each epoch."""
    steps = 10_000 * epochs // batch_size
    chosen = choose_tasks(COUNTS, sampling, batch_size, steps, seed=7)
    return [
        np.bincount(part, minlength=3) / len(part)
        for part in np.split(chosen, epochs)
    ]


@pytest.mark.parametrize(
    "sampling, exponent",
    [("proportional", 1.0), ("square_root", 0.5), ("uniform", 0.0)],
)
def test_tasks_are_drawn_by_a_power_of_their_rows(sampling, exponent):
    expected = np.array(list(COUNTS.values())) ** exponent
    for of_epoch in shares(sampling, epochs=2):
        assert_allclose(of_epoch, expected / expected.sum(), atol=0.015)


def test_a_task_that_is_never_drawn_gets_a_batch(caplog):
    counts = {"large": 10**6, "small": 1, "middle": 2}
    for steps, drawn in ((20, [18, 1, 1]), (2, [1, 1, 0])):
        chosen = choose_tasks(counts, "proportional", 8, steps, seed=7)
        assert np.bincount(chosen, minlength=3).tolist() == drawn
    [record] = caplog.records
    assert "no batch, so their heads stay untrained: middle" in (
        record.getMessage()
    )


def test_annealed_sampling_goes_from_proportional_to_nearly_uniform():
    """Stickland and Murray: a = 1 - 0.8 (e - 1) / (E - 1)."""
    rows = np.array(list(COUNTS.values()))
    for of_epoch, exponent in zip(
        shares("annealed", batch_size=2, epochs=5), (1, 0.8, 0.6, 0.4, 0.2)
    ):
        expected = rows**exponent
        assert_allclose(of_epoch, expected / expected.sum(), atol=0.025)
    # An only epoch is proportional.
    assert_array_equal(shares("annealed"), shares("proportional"))


def test_plans_say_what_they_depend_on():
    lengths = [[5] * 30, [5] * 30]
    texts = {
        repr(make_plan(lengths, **change)[1])
        for change in (
            {},
            {"sampling": "uniform"},
            {"steps": 41},
            {"seed": 4},
            {"pool": 5},
            {"size": 5},
        )
    }
    assert len(texts) == 6
    assert repr(make_plan(lengths)[1]) in texts


@pytest.mark.parametrize("labelled", [True, False])
def test_rows_of_one_task_say_which(labelled):
    plain = make_features([3, 5, 2])
    features = of_one_task(plain, 2)
    assert features.fingerprint() == plain.fingerprint()
    if not labelled:
        features, plain = features.unlabelled(), plain.unlabelled()
    batch = make_batch(features, np.array([2, 0]), None)
    assert set(batch) == set(batch_signature(features, None, 2))
    ids = batch.pop("task_ids")
    assert ids.dtype == np.int32 and ids.tolist() == [2, 2]
    expected = make_batch(plain, np.array([2, 0]), None)
    assert set(batch) == set(expected)
    for name, value in expected.items():
        assert_array_equal(batch[name], value)
