"""Attributions of words: complete, equal to gradients, true to the texts."""

from types import SimpleNamespace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    as_tensors,
    entry_point,
    load_predictor,
    module_fixture,
    open_bert,
    read_json_lines,
    write_bert,
)
from html_reader import Page
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.answering import explanations
from adapter_bert.answering.explanations import STRONGEST, lobatto
from adapter_bert.answering.predictor import Predictor
from adapter_bert.bert.hooks import Context, NoHooks
from adapter_bert.bert.shared_layers import make_bert
from adapter_bert.commands import predict
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.data.tokenizer_config import Rules
from adapter_bert.reports.explanation_page import explanation_page

pytestmark = pytest.mark.newer_stack

TEXT = "the cat, not slow; sat on the bad mat"
PAIR = {"name": "custom", "labels": ["x", "y", "z"], "pairs": True}
SETS = {**CLASSIFICATION, "labels": ["a", "b", "c"], "multi_label": True}
UNIT = {"mean": 30.0, "deviation": 7.0, "low": 1.0, "high": 60.0}
SCORE = {
    "name": "custom",
    "regression": True,
    "pairs": False,
    "label_unit": UNIT,
}
# Of all logits, and a row below the least probability is not answered.
CALIBRATED = {"calibration": {"temperature": 2.5, "abstain_below": 0.99}}
TASKS = {
    "houlsby": ("houlsby(size=4)", CLASSIFICATION, TEXT),
    "lora": ("lora(rank=2)", SETS, TEXT),
    "prefix": ("prefix(length=3, inner_size=8)", SCORE, TEXT),
    "mad_x": ("mad_x(size=4, inverse_size=3)", PAIR, (TEXT, "a dog ran fast")),
    "full": ("full", CLASSIFICATION, TEXT),
    # Other places of hooks: virtual tokens, words, what layers share.
    "prompt": (
        "union(prompt(length=3), vera(rank=5, targets='value,pooler'))",
        CLASSIFICATION,
        TEXT,
    ),
    "words": (
        "stack({'a': pals(6, 2)}, new_words(count=3))",
        CLASSIFICATION,
        "new0 " + TEXT,
    ),
    "sparse": ("diff_pruning(sparsity=0.05)", CLASSIFICATION, TEXT),
    "fusion": (
        "fusion({'a': pfeiffer(size=4), 'b': pfeiffer(size=8)})",
        CLASSIFICATION,
        TEXT,
    ),
}
TASKS["calibrated"] = TASKS["mad_x"]


@module_fixture
def predictor(bert, tiny_bert, tmp_path_factory):
    """Answers all of `TASKS`, and a tagging."""
    made = Predictor(bert)
    folder = tmp_path_factory.mktemp("explained")
    tags = {"name": "tagging", "tags": ["O", "B-X", "I-X"]}
    tasks = {**TASKS, "tags": ("ia3", tags, "")}
    for name, (text, description, _) in tasks.items():
        more = {"task_settings": CALIBRATED} if name == "calibrated" else {}
        place = folder / name
        make_artifact(place, tiny_bert, text, description=description, **more)
        made.add(str(place), name)
    return made


@pytest.mark.parametrize("name", TASKS)
def test_attributions_add_up_to_the_difference(predictor, name):
    answer = predictor(name, TASKS[name][2], explains=True)
    explanation = answer.explanation
    completeness = explanation["completeness"]
    total = sum(word["attribution"] for word in explanation["words"])
    assert total == pytest.approx(completeness["sum"])
    difference = completeness["text"] - completeness["baseline"]
    assert abs(difference) > 1e-3
    assert completeness["error"] == pytest.approx(abs(total - difference))
    assert completeness["error"] < 1e-3 * max(1.0, abs(difference))
    assert completeness["relative"] == completeness["error"] / abs(difference)
    # What is explained is the answer.
    if "value" in answer:
        assert completeness["text"] == pytest.approx(answer.value, rel=1e-4)
        assert "label" not in explanation
    else:
        share = max(answer.scores.values())
        assert answer.scores[explanation["label"]] == share
        odds = np.log(share / (1 - share))
        assert completeness["text"] == pytest.approx(odds, abs=1e-4)
    # Nothing but the explanation is new, and it comes again.
    plain = predictor(name, TASKS[name][2])
    assert {**plain, "explanation": explanation} == answer
    assert predictor(name, TASKS[name][2], explains=True) == answer


def test_the_strongest_words_are_left_out(predictor):
    answer = predictor("houlsby", TEXT, explains=True)
    words = answer.explanation["words"]
    sizes = [abs(word["attribution"]) for word in words]
    least = sorted(sizes)[-STRONGEST]
    assert [size >= least for size in sizes] == [
        "left_out" in word for word in words
    ]
    label = answer.explanation["label"]
    word = next(word for word in words if "left_out" in word)
    loaded = predictor.task("houlsby")
    tokens, _, read = explanations._read(loaded, (TEXT,))
    place = words.index(word)
    masked = explanations._without(tokens, [read[place]], loaded)
    batch = {
        "input_ids": np.int32([tokens, masked]),
        "input_mask": np.ones((2, len(tokens)), np.int32),
        "segment_ids": np.zeros((2, len(tokens)), np.int32),
        "row": np.arange(2, dtype=np.int32),
    }
    logits = loaded.kind.compute(loaded.values.get(), batch)["logits"]
    shares = tf.nn.softmax(logits).numpy()
    number = loaded.task.labels.index(label)
    change = shares[1, number] - shares[0, number]
    assert word["left_out"] == pytest.approx(change, abs=1e-6)
    assert sum(a != b for a, b in zip(tokens, masked)) == len(
        read[place].places
    )


def test_a_calibrated_answer_is_explained(predictor):
    """By logits over its own temperature, next to tasks of its kind."""
    row = TASKS["calibrated"][2]
    answer, other = predictor.ask([("calibrated", row), ("mad_x", row)], True)
    assert answer.label is None
    assert answer.explanation["label"] == other.explanation["label"]
    text = answer.explanation["completeness"]["text"]
    assert text != pytest.approx(other.explanation["completeness"]["text"])
    # As alone, though its values are in tables of mixed tasks now.
    alone = predictor("calibrated", row, explains=True)
    assert alone.explanation == answer.explanation


class Linear:
    """A model whose score is linear in the word embeddings."""

    def __init__(self, config, weights, values):
        self.bert = make_bert(config, values, {}, lambda _: NoHooks())
        self.weights = weights

    def __call__(self, features, context):
        words = features[explanations.WORD_VECTORS]
        products = tf.reduce_sum(words * self.weights, axis=[1, 2])
        return {"scores": products}


def test_a_linear_model_is_explained_exactly(tiny_config, tiny_weights):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(5, tiny_config.hidden_size)).astype(np.float32)
    values = as_tensors(tiny_weights)
    model = object.__new__(explanations.PathModel)
    model._kind = "regression"
    model._model = Linear(tiny_config, weights, values)
    text, baseline = [2, 7, 9, 11, 3], [2, 4, 4, 4, 3]
    shares, integral = lobatto(3)
    batch = {
        "input_ids": tf.constant([text] * 3),
        "baseline_ids": tf.constant([baseline] * 3),
        "share": tf.constant(shares, tf.float32),
        "label": tf.zeros([3], tf.int32),
        "temperature": tf.ones([3]),
    }
    outputs = model(batch, Context(tf.ones([3, 5], tf.int32)))
    words = tiny_weights["bert/embeddings/word_embeddings"]
    difference = words[text] - words[baseline]
    expected = (difference * weights).sum(axis=1)
    np.testing.assert_allclose(
        integral @ outputs["products"].numpy(), expected, atol=1e-6
    )
    ends = outputs["values"].numpy()
    assert ends[-1] - ends[0] == pytest.approx(expected.sum(), abs=1e-5)


@pytest.mark.parametrize("count", [2, 3, 8, explanations.POINTS])
def test_quadrature_is_exact_for_polynomials(count):
    shares, weights = lobatto(count)
    assert shares[0] == 0 and shares[-1] == 1
    assert shares.dtype == weights.dtype == np.float64
    for degree in range(2 * count - 2):
        integral = weights @ shares**degree
        assert integral == pytest.approx(1 / (degree + 1), abs=1e-12)


LETTERS = st.sampled_from("acdt s,.?é\u0301ßΣ中\U0001f600\u200d\x00\t")


@hypothesis.given(st.text(LETTERS, max_size=12), st.text(LETTERS, max_size=30))
def test_words_cover_the_texts(predictor, first, second):
    """In order, without overlap; what is outside makes no token."""
    loaded = predictor.task("mad_x")
    tokens, segments, words = explanations._read(loaded, (first, second))
    task = loaded.task
    features = task.featurize(
        task.make_rows([(first, second)]),
        loaded.tokenizer,
        loaded.max_seq_length,
    )
    assert features.tokens.tolist() == tokens
    assert features.segments.tolist() == segments
    places = [place for word in words for place in word.places]
    special = {loaded.tokenizer.classify_id, loaded.tokenizer.separate_id}
    assert places == [n for n, x in enumerate(tokens) if x not in special]
    for column, text in zip(task.columns, (first, second)):
        words_of_text = [word for word in words if word.column == column]
        end = 0
        outside = ""
        for word in words_of_text:
            assert end <= word.start < word.end
            assert text[word.start : word.end] == word.text
            outside += text[end : word.start]
            end = word.end
        if not features.cut_rows:
            outside += text[end:]
            assert loaded.tokenizer.encode_ids([outside]) == [[]]


@pytest.mark.parametrize("length", [6, 7, 30])
def test_places_of_words_where_ends_are_kept(tiny_bert, length):
    rules = Rules(truncation_side="left")
    tokenizer = FullTokenizer(str(tiny_bert / "vocab.txt"), rules=rules)
    loaded = SimpleNamespace(
        tokenizer=tokenizer,
        max_seq_length=length,
        columns=("a", "b"),
    )
    row = "the cat sat on", "is a dog out ! ?"
    tokens, _, words = explanations._read(loaded, row)
    assert len(words) == min(10, length - 3)
    assert words[-1].text == "?"
    for word in words:
        assert [tokens[n] for n in word.places] == tokenizer.encode_ids(
            [word.text]
        )[0]


def test_an_albert_of_int8_in_bfloat16(golden_dir, tmp_path):
    """Words without the space that SentencePiece puts before them."""
    folder = golden_dir / "architectures" / "albert"
    make_artifact(tmp_path / "one", folder, "houlsby(size=4)")
    forms = {"compute_dtype": "bfloat16", "base_dtype": "int8"}
    predictor = Predictor(open_bert(folder, **forms))
    predictor.add(str(tmp_path / "one"), "one")
    text = "the cat, not slow; sat on"
    explanation = predictor("one", text, explains=True).explanation
    assert [word["text"] for word in explanation["words"]] == text.split()
    completeness = explanation["completeness"]
    assert abs(completeness["text"] - completeness["baseline"]) > 0.05
    # Both ends are rounded.
    assert completeness["error"] < 0.03


def test_texts_without_words_and_long_ones(predictor):
    nothing = predictor("houlsby", "", explains=True).explanation
    assert nothing["words"] == []
    assert nothing["completeness"]["relative"] is None
    assert nothing["completeness"]["error"] < 1e-6
    long = predictor("houlsby", "the cat sat " * 30, explains=True)
    # As many tokens as predictions read, two of them special.
    words = long.explanation["words"]
    assert len(words) == predictor.task("houlsby").max_seq_length - 2
    assert words[-1]["end"] < 100


def test_points_are_computed_in_small_batches(predictor, monkeypatch):
    whole = predictor("mad_x", TASKS["mad_x"][2], explains=True)
    monkeypatch.setattr(explanations, "BATCH_TOKENS", 1)
    alone = predictor("mad_x", TASKS["mad_x"][2], explains=True)
    for one, other in zip(
        whole.explanation["words"], alone.explanation["words"]
    ):
        assert one["attribution"] == pytest.approx(
            other["attribution"], abs=1e-5
        )


def test_other_kinds_are_refused(predictor):
    message = "tagging is of the kind tagging, whose answers are not explained"
    refusals.check(lambda: predictor("tags", "the cat", explains=True), message)
    assert predictor("tags", "the cat").tags


def test_a_vocabulary_without_masks(tmp_path, tiny_config, tiny_weights):
    (tmp_path / "bert").mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(26))]
    folder = write_bert(tmp_path / "bert", words, tiny_config, tiny_weights)
    make_artifact(tmp_path / "a", folder, "ia3")
    predictor = load_predictor(folder, {"a": tmp_path / "a"})
    refusals.check(
        lambda: predictor("a", "1 2", explains=True), "has no mask token"
    )


@pytest.mark.parametrize("text", ["", "cat", "\U0001f600 \U0001f600 q"])
def test_a_page_of_rows_without_an_answer(predictor, text):
    """Below the least probability; of no words, one, and unknown ones."""
    row = text, text
    answer = predictor("calibrated", row, explains=True)
    words = answer.explanation["words"]
    assert [word["text"] for word in words] == [*text.split()] * 2
    columns = {"calibrated": predictor.task("calibrated").task.columns}
    answered = [(row, {"task": "calibrated", **answer})]
    page = Page(explanation_page(columns, answered).decode())
    page.check()
    label, share = answer.explanation["label"], answer.probability
    title = f"no label, {label} ({share:.1%}) is the likeliest"
    assert title in page.text


def test_the_command_writes_json_and_a_page(tiny_bert, tmp_path):
    make_artifact(tmp_path / "mood", tiny_bert, "houlsby(size=4)")
    (tmp_path / "rows.txt").write_text("the <b>cat</b> & dog\nnot bad\n")
    with entry_point(predict) as run:
        for name in ("why.jsonl", "why.html"):
            run(
                init_checkpoint=tiny_bert,
                adapter=f"mood={tmp_path}/mood",
                input=tmp_path / "rows.txt",
                output=tmp_path / name,
                explain=True,
            )
    lines = read_json_lines(tmp_path / "why.jsonl")
    assert [line["task"] for line in lines] == ["mood", "mood"]
    words = [word["text"] for word in lines[1]["explanation"]["words"]]
    assert words == ["not", "bad"]
    text = (tmp_path / "why.html").read_text()
    page = Page(text)
    page.check()
    assert "<b>" not in text and "the <b>cat</b> & dog" in page.text
    marks = page.all("mark")
    assert [mark for _, mark in marks][-2:] == ["not", "bad"]
    for (attributes, _), word in zip(
        marks[-2:], lines[1]["explanation"]["words"]
    ):
        against = word["attribution"] < 0
        assert attributes["class"] == ("against" if against else "for")
