"""Novelty: shares of training rows that are nearer than a text."""

import base64
import json
import shutil

import numpy as np
import pytest
import refusals
from conftest import (
    entry_point,
    load_predictor,
    make_flags,
    module_fixture,
    read_adapter_config,
    write_table,
)
from numpy.random import default_rng
from task_files import refusal
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.answering.answers import (
    from_outputs,
    output_fields,
    to_outputs,
)
from adapter_bert.answering.embeddings import embed
from adapter_bert.answering.joint_answers import Group, compute_frozen
from adapter_bert.answering.predictor import Predictor
from adapter_bert.answering.trained_task import describe, load_task
from adapter_bert.checkpoints import adapter_artifact, run_record
from adapter_bert.checkpoints.merged_adapters import merge_adapters
from adapter_bert.commands import run_classifier
from adapter_bert.exchange import foreign_base
from adapter_bert.graph import runtimes, saved_model
from adapter_bert.graph.exported import ExportedModel, Row
from adapter_bert.graph.text_model import TextModel
from adapter_bert.methods.weighted_sums import AVERAGE, WeightedSum
from adapter_bert.tasks import novelty
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.novelty import Sketch

NEWER = pytest.mark.newer_stack

# The sketch


def draw(seed, count, size=12, spread=3):
    """Rows that differ most in `spread` of the directions."""
    rng = default_rng(seed)
    scale = np.where(np.arange(size) < spread, 3.0, 0.1)
    return (rng.normal(size=(count, size)) * scale + 5).astype(np.float32)


def test_distances_are_mahalanobis_distances():
    """Where what the directions leave out has one variance."""
    rows = draw(0, 400)
    values, axes = np.linalg.eigh(np.cov(rows.T, bias=True))
    sketch = novelty.fit(rows)
    assert len(sketch.directions) == 6
    values[:6] = values[:6].mean()
    apart = (rows - rows.mean(axis=0)) @ axes
    expected = (apart**2 / values).sum(axis=1) * values[0]
    distances = novelty.distances(rows, sketch.mean, sketch.directions)
    assert distances == pytest.approx(expected, rel=1e-3)


def test_shares_of_rows_that_were_not_described_are_even():
    """Though the rows that were described are nearer to their sketch."""
    described = draw(1, 400, 40, 20)
    sketch = novelty.fit(described)
    shares = sketch.shares(draw(2, 4000, 40, 20))
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)
    assert np.mean(np.array(shares) < 0.9) == pytest.approx(0.9, abs=0.05)
    assert np.mean(sketch.shares(described)) < 0.42


def test_far_rows_are_novel():
    sketch = novelty.fit(draw(3, 100))
    assert sketch.shares(draw(4, 5) + 3) == [1.0] * 5
    # Along a direction in which rows differ much, they are near.
    along = draw(4, 5) + np.float32([3] * 3 + [0] * 9)
    assert max(sketch.shares(along)) < 1
    assert sketch.shares(sketch.mean[np.newaxis]) == [0.0]


@pytest.mark.parametrize("count", [2, 3])
def test_few_texts_are_near_and_others_far(count):
    rows = default_rng(count).normal(size=(count, 8))
    rows = rows.astype(np.float32)
    sketch = novelty.fit(rows)
    novelty.Sketch.restore(sketch.settings, "a test")
    assert max(sketch.shares(rows)) < 0.5
    assert sketch.shares(rows + 9) == [1.0] * count


def test_shares_are_interpolated_between_quantiles():
    steps = np.linspace(0, 1, novelty.QUANTILES).astype(np.float32)
    sketch = Sketch(np.zeros(2, "f4"), np.zeros((0, 2), "f4"), steps)
    places = np.sqrt(np.float32([[0, 0], [0.255, 0], [0, 0.5], [1, 1]]))
    expected = np.interp([0, 0.255, 0.5, 2], steps, np.linspace(0, 1, 101))
    assert sketch.shares(places) == pytest.approx(expected.tolist(), abs=1e-5)
    # Equal rows have equal distances.
    still = novelty.fit(np.ones((20, 3), np.float32))
    assert still.shares(np.float32([[1, 1, 1], [2, 1, 1]])) == [0.0, 1.0]


@pytest.mark.parametrize("rows", [1, 7, 10_000, 25_001])
def test_rows_are_evenly_spaced(rows):
    numbers = novelty.evenly_spaced(rows)
    assert len(numbers) == min(rows, novelty.MOST_ROWS)
    assert numbers[0] == 0 and numbers[-1] < rows
    steps = np.diff(numbers)
    assert steps.size == 0 or 1 <= steps.min() <= steps.max() <= 3


def as_text(*values):
    return base64.b64encode(np.float32(values).tobytes()).decode()


WHOLE = {
    "mean": as_text(0, 1),
    "directions": as_text(0.5, 0.5),
    "quantiles": as_text(*range(novelty.QUANTILES)),
}


def test_an_adapter_keeps_its_sketch():
    settings = {"novelty": WHOLE}
    task = restore_task(CLASSIFICATION, settings, "head")
    assert task.settings["novelty"] == WHOLE
    assert task.novelty.directions.tolist() == [[0.5, 0.5]]
    assert "novelty" not in restore_task(CLASSIFICATION, {}, "head").settings
    # Tasks of other kinds have none.
    assert restore_task({"name": "masked_lm"}, settings, "x").novelty is None


@pytest.mark.parametrize(
    "change",
    [
        {"mean": as_text(0, float("nan"))},
        {"mean": as_text(0, 1, 2, 3)},
        {"mean": 3},
        {"mean": WHOLE["mean"][:-3]},
        {"quantiles": as_text(0, 1)},
        {"quantiles": as_text(*range(novelty.QUANTILES, 0, -1))},
        {"more": ""},
    ],
)
def test_a_damaged_sketch_is_refused(change):
    kept = {"novelty": {**WHOLE, **change}}
    message = refusal(restore_task, CLASSIFICATION, kept, "head")
    assert message.startswith("head: task_settings.novelty is damaged")


# A run, and what answers by its adapter

OWN = "the cat dog sat ran on mat .".split()
OTHER = "film bad good slow fast not was ? !".split()


def draw_texts(words, seed, count):
    """Sentences of 4 to 8 words."""
    rng = default_rng(seed)
    return [
        " ".join(rng.choice(words, rng.integers(4, 9))) for _ in range(count)
    ]


def labelled(texts):
    return [(text, ("good", "bad")[n % 2]) for n, text in enumerate(texts)]


TEXTS = draw_texts(OWN, 1, 30) + draw_texts(OTHER, 2, 30)


@module_fixture
def trained(tiny_bert, tmp_path_factory):
    """A library: `plain` and `novel` are one training, `pair` another.

    The second has its sketch from the same command again.
    """
    place = tmp_path_factory.mktemp("novelty")
    data = place / "data"
    data.mkdir()
    write_table(data / "train.tsv", labelled(draw_texts(OWN, 0, 60)))
    shelf = place / "shelf"
    shelf.mkdir()
    flags = make_flags(tiny_bert, data, place / "out")
    flags["num_train_epochs"] = 1
    made = place / "out" / "adapter"
    with entry_point(run_classifier) as classify:
        classify(**flags)
        shutil.copytree(made, shelf / "plain")
        classify(**flags, score_novelty=True)
    made.rename(shelf / "novel")
    make_artifact(shelf / "score", tiny_bert, "houlsby(size=4)", None, SCORE, 1)
    settings = adapter_artifact.settings_of(str(shelf / "novel"))
    settings = {"columns": ["text", "text_b"], "novelty": settings["novelty"]}
    adapter_artifact.change_settings(str(shelf / "score"), settings)
    return shelf


SCORE = {"name": "custom", "pairs": True, "regression": True}
PAIRS = [(text, "a cat .") for text in TEXTS[::6]]
NAMES = ("plain", "novel", "score")


@module_fixture
def folders(trained):
    return {name: str(trained / name) for name in NAMES}


def predictor_of(bert, folders, **options):
    predictor = Predictor(bert, **options)
    for name, folder in folders.items():
        predictor.add(folder, name)
    return predictor


@module_fixture
def answers(bert, folders):
    predictor = predictor_of(bert, folders)
    rows = {"plain": TEXTS, "novel": TEXTS, "score": PAIRS}
    return {name: predictor(name, rows[name]) for name in NAMES}


@NEWER
def test_a_run_keeps_a_sketch_and_its_weights(trained):
    plain, novel = (read_adapter_config(trained / x) for x in NAMES[:2])
    sketch = novel["task_settings"].pop("novelty")
    assert sorted(sketch) == ["directions", "mean", "quantiles"]
    assert plain == novel
    weights = [trained / name / "adapter.safetensors" for name in NAMES[:2]]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@NEWER
def test_texts_with_many_rows_are_counted_once(
    classify, tiny_flags, tiny_bert, tmp_path
):
    """No text is further away than all 30, itself among them."""
    texts = list(dict.fromkeys(draw_texts(OWN, 5, 40)))[:30]
    rows = labelled(texts)
    order = default_rng(0).permutation(120)
    write_table(tmp_path / "train.tsv", [(rows * 4)[n] for n in order])
    tiny_flags.update(data_dir=tmp_path, num_train_epochs=1)
    classify(**tiny_flags, score_novelty=True)
    adapter = tiny_flags["output_dir"] / "adapter"
    predictor = load_predictor(tiny_bert, {"it": adapter})
    shares = [answer["novelty"] for answer in predictor("it", texts)]
    assert max(shares) <= 29 / 30 and len(set(shares)) > 10
    for text, expected in list(zip(texts, shares))[:5]:
        [one] = predictor("it", [text])
        assert one["novelty"] == pytest.approx(expected, abs=1e-4)


@NEWER
def test_own_texts_are_near_and_others_far(answers):
    shares = [answer["novelty"] for answer in answers["novel"]]
    like, others = np.array(shares[:30]), np.array(shares[30:])
    assert 0.25 < like.mean() < 0.75
    assert np.mean(others > 0.95) > 0.9
    assert np.mean(like > 0.95) < 0.2
    for plain, novel in zip(answers["plain"], answers["novel"]):
        assert "novelty" not in plain
        assert novel["scores"] == plain["scores"]


@NEWER
def test_rows_of_all_tasks_have_the_same_novelty(bert, folders, answers):
    predictor = predictor_of(bert, folders, batch_size=7)
    questions = [(name, TEXTS[n]) for n in (0, 40) for name in NAMES[:2]]
    questions.insert(1, ("score", PAIRS[0]))
    expected = [answers[name][n] for n in (0, 40) for name in NAMES[:2]]
    expected.insert(1, answers["score"][0])
    for one, answer in zip(predictor.ask(questions), expected):
        assert_alike(one, answer)
    both = predictor(["plain", "novel"], TEXTS[:3])
    for one, answer in zip(both, answers["novel"]):
        assert "novelty" not in one["plain"]
        assert_alike(one["novel"], answer)
    assert predictor("novel", []) == []


def assert_alike(answer, expected):
    assert set(expected) <= set(answer)
    for name in ("novelty", "probability", "value"):
        assert (name in answer) == (name in expected)
        value = pytest.approx(expected.get(name, 0), abs=2e-4)
        assert answer.get(name, 0) == value


@module_fixture
def loaded(bert, folders):
    return bert, {n: load_task(bert, f, None) for n, f in folders.items()}


@NEWER
def test_features_are_of_the_middle_layer_without_the_adapter(loaded):
    bert, tasks = loaded
    groups = [
        Group([tasks["plain"]], [("the cat",)]),
        Group([tasks["plain"], tasks["novel"]], [(x,) for x in TEXTS[:5]]),
    ]
    none, features = compute_frozen(bert, groups, 2)
    assert len(none) == 0
    expected = embed(
        bert, TEXTS[:5], pooling="mean", layers=[0], normalize=True
    )
    assert features == pytest.approx(expected, abs=1e-5)


def row_of(name, texts):
    texts = (texts,) if isinstance(texts, str) else texts
    return Row(*(x.encode() for x in (*texts, "")[:2]), name.encode())


@NEWER
@pytest.mark.gate
def test_an_export_answers_as_predict(loaded, answers, tmp_path):
    bert, tasks = loaded
    saved_model.export(TextModel(bert, tasks, 8), bert, tasks, str(tmp_path))
    model = ExportedModel(str(tmp_path))
    questions = [
        (name, texts, answer)
        for name in NAMES
        for texts, answer in zip(
            PAIRS if name == "score" else TEXTS, answers[name]
        )
    ]
    # Rows of tasks with and without a sketch in turn.
    order = default_rng(0).permutation(len(questions))
    questions = [questions[n] for n in order]
    results = model.answers(
        [row_of(name, texts) for name, texts, _ in questions]
    )
    for (name, _, answer), outputs in zip(questions, results):
        assert_alike(from_outputs(model.tasks[name], outputs), answer)
        description = describe(name, tasks[name])
        assert (
            from_outputs(description, to_outputs([description], [answer], 2)[0])
            == answer
        )
    assert set(results[0]) == {"adapter", *output_fields(())}
    plain = [row_of("plain", text) for text in TEXTS[:2]]
    assert [one["novelty"] for one in model.answers(plain)] == [0.0, 0.0]
    described = model.tasks["novel"]
    assert (
        described["novelty"] is True and "novelty" not in model.tasks["plain"]
    )


@NEWER
def test_files_of_other_runtimes_say_nothing_of_it(
    loaded, tmp_path, monkeypatch
):
    bert, tasks = loaded
    copying = runtimes.RUNTIMES["tflite"]._replace(
        convert=lambda model, weights, path: open(path, "w").close(),
        load=lambda path: None,
    )
    monkeypatch.setitem(runtimes.RUNTIMES, "tflite", copying)
    monkeypatch.setattr(runtimes, "compare", lambda *_: 0.0)
    place = tmp_path / "file"
    runtimes.export(bert, "novel", tasks["novel"], str(place), "tflite")
    assert "novelty" not in (place / "task.json").read_text()


@NEWER
def test_other_programs_and_sums_lose_it(folders, loaded, caplog):
    artifact = adapter_artifact.read(folders["novel"])
    config = run_record.bert_config(artifact.config, "")
    foreign_base.head_of(artifact, config)
    assert "scores the novelty of texts, for which other" in caplog.text
    some = [folders["novel"], folders["plain"]]
    base, how = loaded[0].weights, WeightedSum(AVERAGE)
    merged, _ = merge_adapters(base, some, [0.5, 0.5], how)
    assert "novelty" not in merged["task_settings"]
    assert f"has no novelty: {some[0]}" in caplog.text


@NEWER
def test_a_library_shows_no_sketch(trained, call, shelf):
    for name in ("plain", "novel"):
        shelf.add(str(trained / name), name)
        shown = json.loads(call("show", shelf.path, name))["adapter_config"]
        expected = read_adapter_config(trained / name)
        if name == "novel":
            expected["task_settings"]["novelty"] = True
        assert shown == expected


@NEWER
@pytest.mark.parametrize(
    "change, message",
    [
        ({"do_train": False, "do_eval": True}, "without --do_train"),
        ({"max_train_examples": 9}, "found 9 training rows, expected at least"),
        ({"new_tokens": "words"}, "leave out --score_novelty or --new_tokens"),
        ({"choice_columns": "a,b"}, "custom with these flags is not"),
        ({"task_name": "mrpc,rte"}, "with these flags is not; leave"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_the_training(
    classify, tiny_flags, change, message, tmp_path
):
    if "new_tokens" in change:
        change = {"new_tokens": tmp_path / "words"}
        change["new_tokens"].write_text("kitten\n")
    flags = {**tiny_flags, "score_novelty": True, **change}
    refusals.check(lambda: classify(**flags), message)
    assert not tiny_flags["output_dir"].exists()
