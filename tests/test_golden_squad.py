"""Recorded windows, answers and scores of the published SQuAD code."""

import gzip
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from conftest import module_fixture, read_json

from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.tasks import squad, squad_data

pytestmark = pytest.mark.older_stack

# Where the published code widens to whole words, in text without spaces:
# version, question, place in its list, recorded and exact answer.
SIGN = "\u300c\u672c\u65e5\u4f11\u696d\u300d"
TODAY = ', which means "closed today"'
BELOW = f"{TODAY}. Below it, in smaller letters, someone had added: back at 9"
CHANGED = [
    (1, "q020", 10, f'{SIGN}, which means "closed', f'{SIGN}, which means "'),
    (1, "q022", 9, f"{SIGN},", SIGN[4:]),
    (2, "q025", 6, f"{SIGN},", f"{SIGN[4:]},"),
    (2, "q027", 5, f"{SIGN}{BELOW}", f"{SIGN[3:]}{BELOW}"),
    (2, "q028", 4, f"{SIGN}{BELOW}", f"{SIGN[4:]}{BELOW}"),
    (2, "q028", 6, f"window read {SIGN}{TODAY}.", f"window read {SIGN}{TODAY}"),
]
# Of the other recording such answers are told by their letters.
KANA = re.compile("[\u3040-\u30ff]")
VERSIONS = pytest.mark.parametrize("version", [1, 2])


@module_fixture
def tokenizer(pretrained_dir):
    return FullTokenizer(str(pretrained_dir / "vocab.txt"))


@pytest.fixture(
    params=["golden", pytest.param("real", marks=pytest.mark.real_data)]
)
def folder(request, version):
    """A recording: of the project's own texts, or of published ones."""
    if request.param == "golden":
        recordings = request.getfixturevalue("golden_dir")
    else:
        recordings = request.getfixturevalue("shared_dir") / "golden_real_text"
    return recordings / f"squad_v{version}"


def read(path):
    if path.suffix == ".gz":
        return json.loads(gzip.decompress(path.read_bytes()))
    return read_json(path)


def make_windows(folder, tokenizer, version):
    recorded = read(folder / "features.json.gz")
    questions = squad_data.read_questions(
        str(folder / "input.json"), version == 2
    )
    windows = squad_data.cut_windows(
        questions,
        tokenizer,
        recorded["max_seq_length"],
        recorded["doc_stride"],
        recorded["max_query_length"],
    )
    return recorded, questions, windows


def words_before(text, offset):
    """How many words of `text` begin before `offset`, which one does at."""
    return len(re.findall("[^ \t\r\n\u202f]+", text[:offset] + "x")) - 1


@pytest.mark.pretrained
@VERSIONS
def test_golden_windows(folder, tokenizer, version):
    recorded, questions, windows = make_windows(folder, tokenizer, version)
    assert len(windows) == len(recorded["train"]) == len(recorded["eval"])
    most_context = np.zeros(len(windows.tokens), bool)
    for number in range(len(questions)):
        rows = np.flatnonzero(windows.question == number)
        first = windows.context_first[rows]
        lengths = windows.lengths[rows] - windows.first[rows] - 1
        window = squad._most_context(first, lengths)
        for number, (row, begin, length) in enumerate(
            zip(rows, first, lengths)
        ):
            start = windows.starts[row] + windows.first[row]
            counts = window[begin : begin + length] == number
            most_context[start : start + length] = counts
    for row, (train, eval_) in enumerate(
        zip(recorded["train"], recorded["eval"])
    ):
        part = slice(windows.starts[row], windows.starts[row + 1])
        number = int(windows.question[row])
        assert number == train["example_index"] == eval_["example_index"]
        real = eval_["input_mask"]
        assert windows.tokens[part].tolist() == eval_["input_ids"][:real]
        assert windows.segments[part].tolist() == eval_["segment_ids"][:real]
        assert (
            int(windows.labels["start_positions"][row]),
            int(windows.labels["end_positions"][row]),
        ) == (train["start_position"], train["end_position"]), row
        context = questions[number].context
        first = int(windows.context_starts[number]) + int(
            windows.context_first[row]
        )
        for place, word in eval_["token_to_orig_map"].items():
            shift = int(place) - int(windows.first[row])
            offset = int(windows.offsets[first + shift, 0])
            assert words_before(context, offset) == word, (row, place)
            assert (
                bool(most_context[part][int(place)])
                == eval_["token_is_max_context"][place]
            ), (row, place)


@pytest.mark.pretrained
@VERSIONS
def test_golden_answers(folder, tokenizer, version, tmp_path):
    _, questions, windows = make_windows(folder, tokenizer, version)
    task = squad.Squad(
        "squad",
        doc_stride=32,
        max_query_length=24,
        version_2_with_negative=version == 2,
    )
    with np.load(folder / "logits.npz") as recorded:
        logits = tf.constant(np.stack([recorded["start"], recorded["end"]]))
    outputs = {
        name: value.numpy()
        for name, value in squad.best_logits(logits, 20).items()
    }
    predictions = task.decode(questions, windows, outputs)
    task.write_predictions(str(tmp_path), questions, predictions)
    answers = read(tmp_path / "predictions.json")
    recorded = read(folder / "predictions.json")
    for question, text in recorded.items():
        assert answers[question] == text or KANA.search(text)
    candidates = read(tmp_path / "nbest_predictions.json")
    expected = read(folder / "nbest.json.gz")
    assert list(candidates) == list(expected) == list(answers)
    for of, question, place, text, exact in CHANGED:
        if of == version and question in expected:
            assert expected[question][place]["text"] == text
            expected[question][place]["text"] = exact
    for question, rows in expected.items():
        written = candidates[question]
        texts, recorded = ([row["text"] for row in x] for x in (written, rows))
        if any(map(KANA.search, recorded)):
            # The last may be "no answer", after all others.
            plain = [t for t in recorded[:-1] if not KANA.search(t)]
            shown = [text for text in texts[:-1] if text in plain]
            assert shown == plain[: len(shown)]
            continue
        assert texts == recorded
        for name in ("start_logit", "end_logit"):
            assert [r[name] for r in written] == [r[name] for r in rows]
        np.testing.assert_allclose(
            [row["probability"] for row in written],
            [row["probability"] for row in rows],
            atol=1e-6,
        )
    if version == 2:
        assert read(tmp_path / "null_odds.json") == read(
            folder / "null_odds.json"
        )


@VERSIONS
def test_golden_scores(folder, version):
    questions = squad_data.read_questions(
        str(folder / "input.json"), version == 2
    )
    predictions = read(folder / "scored_predictions.json")
    answers = [[a.text for a in q.answers] for q in questions]
    texts = [predictions[q.id] for q in questions]
    expected = read(folder / "scores.json")
    if version == 1:
        assert squad.squad_1_scores(answers, texts) == expected
        return
    scores = squad.squad_2_scores(answers, texts, np.zeros(len(texts)))
    assert {name: scores[name] for name in expected} == expected
