"""Answers: which are chosen and in which order; a slow copy agrees."""

from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from adapter_bert.tasks.squad import CERTAINLY_NONE, NBest, Squad
from adapter_bert.tasks.squad_data import (
    ContextWindows,
    SquadQuestion,
    cut_windows,
)

pytestmark = pytest.mark.older_stack

# `[CLS] word [SEP]` before every part of a context.
FIRST = 3


def make_windows(contexts, parts):
    """Windows of contexts whose tokens are their words.

    Args:
        contexts: of the questions, one each.
        parts: (question, first word, words) of each window.
    """
    offsets, starts = [], []
    for context in contexts:
        starts.append(len(offsets))
        end = 0
        for word in context.split():
            begin = context.index(word, end)
            end = begin + len(word)
            offsets.append((begin, end))
    lengths = [FIRST + words + 1 for _, _, words in parts]
    row_starts = np.cumsum([0, *lengths])
    return ContextWindows(
        tokens=np.zeros(row_starts[-1], np.int32),
        segments=np.zeros(row_starts[-1], np.int32),
        starts=row_starts,
        labels={},
        question=np.array([part[0] for part in parts], np.int32),
        first=np.full(len(parts), FIRST, np.int32),
        context_first=np.array([part[1] for part in parts], np.int32),
        context_starts=np.array(starts),
        offsets=np.array(offsets, np.int32).reshape(-1, 2),
    )


def make_outputs(starts, ends, null):
    """The head's outputs from (place in the row, logit) pairs, best first."""
    outputs = {"null_logits": np.array(null, np.float32).reshape(-1, 2)}
    n = max([len(row) for row in starts + ends], default=5)
    for side, rows in (("start", starts), ("end", ends)):
        # As `best_logits` fills rows up: beyond the tokens, never chosen.
        filled = [row + [(99, -1e30)] * (n - len(row)) for row in rows]
        pairs = np.array(filled, np.float64).reshape(-1, n, 2)
        outputs[f"{side}_indexes"] = pairs[:, :, 0].astype(np.int32)
        outputs[f"{side}_logits"] = pairs[:, :, 1].astype(np.float32)
    return outputs


RULES = Squad("squad")
NULL = (-5, -5)


def listed(prediction):
    """(text, start logit, end logit) of the candidates."""
    texts, logits, _ = prediction.candidates
    return [(text, *pair) for text, pair in zip(texts, logits.tolist())]


def test_probabilities_are_a_softmax_over_sums():
    candidates = NBest(
        ("a", "b", "c"),
        np.log([[2.0, 3.0], [1.0, 3.0], [1.0, 1.0]]),
        ((0, 1), (2, 3), (4, 5)),
    )
    np.testing.assert_allclose(
        candidates.probabilities(), [0.6, 0.3, 0.1], rtol=1e-12
    )
    large = candidates._replace(logits=np.array([[9e3, 9e3], [-9e3, 0.0]]))
    assert large.probabilities().tolist() == [1.0, 0.0]


@pytest.mark.parametrize("negative", [False, True])
def test_a_question_to_an_empty_context_has_an_empty_answer(negative):
    rules = replace(RULES, version_2_with_negative=negative)
    questions = [
        SquadQuestion(name, "?", context, None)
        for name, context in (("a", ""), ("b", "cat"), ("c", ""))
    ]
    windows = make_windows(["", "cat", ""], [(1, 0, 1)])
    outputs = make_outputs([[(3, 1.0)]], [[(3, 1.0)]], [NULL])
    predictions = rules.decode(questions, windows, outputs)
    assert [p.text for p in predictions] == ["", "cat", ""]
    for number in (0, 2):
        assert listed(predictions[number]) == [("", 0.0, 0.0)]
        assert predictions[number].null_odds == CERTAINLY_NONE
    # And where there are no windows at all.
    predictions = rules.decode(
        questions[:1], make_windows([""], []), make_outputs([], [], [])
    )
    assert [p.text for p in predictions] == [""]


# Texts


@pytest.mark.parametrize(
    "context, first, last, expected",
    [
        ("the (zebra) sat", 2, 3, "zebra)"),
        ("the  cat \n\t sat\u00a0\u3000on it", 1, 3, "cat sat on"),
        ("cats!cats", 3, 4, "cats"),
        ("a ca\u0308t\u0301s", 1, 1, "ca\u0308t\u0301"),
        ("c\u200bat\u200bs", 0, 0, "c\u200bat"),
        ("\u4eac\u4eac\u4eac\u3000cat", 1, 1, "\u4eac"),
        ("\u4eac\u4eac\u4eac\u3000cat", 2, 3, "\u4eac cat"),
        ("\u5927\u5b66\u57281903\u5e74\uff0c\u5c71\u3002", 3, 3, "1903"),
        ("the \u2764\ufe0f cat", 1, 1, "\u2764\ufe0f"),
        ("a caf\ufffd cat", 1, 1, "caf\ufffd"),
    ],
)
def test_answers_have_the_characters_of_their_tokens(
    tokenizer, context, first, last, expected
):
    question = SquadQuestion("q", "", context, None)
    windows = cut_windows([question], tokenizer, 64, 64, 1)
    outputs = make_outputs([[(2 + first, 1.0)]], [[(2 + last, 1.0)]], [NULL])
    [prediction] = RULES.decode([question], windows, outputs)
    assert prediction.text == expected
    span = prediction.candidates.spans[0]
    assert context[slice(*span)].split() == expected.split()


def test_a_token_without_characters_is_no_answer():
    """As XLM-R has for a space."""
    windows = make_windows(["the cat"], [(0, 0, 2)])
    windows.offsets[0] = (0, 0)
    row = [(3, 2.0), (4, 1.0)]
    [prediction] = RULES.decode(
        [SquadQuestion("q", "?", "the cat", None)],
        windows,
        make_outputs([row], [row], [NULL]),
    )
    assert listed(prediction) == [("the cat", 2.0, 1.0), ("cat", 1.0, 1.0)]


PROPERTY = hypothesis.settings(max_examples=150)


def slow_most_context(spans, token):
    """The window that counts for a token, `_check_is_max_context`."""
    best, best_score = None, None
    for number, (first, length) in enumerate(spans):
        last = first + length - 1
        if first <= token <= last:
            score = min(token - first, last - token) + 0.01 * length
            if best_score is None or score > best_score:
                best, best_score = number, score
    return best


def slow_text(context, offsets):
    text = context[offsets[0][0] : offsets[-1][1]]
    text = "".join(" " if c.isspace() else c for c in text)
    return " ".join(word for word in text.split(" ") if word)


def slow_prediction(context, spans, first, tokens, logits, rules):
    """Text, null odds and candidates of one question.

    Args:
        context: its text.
        spans: (first token, tokens) of each window.
        first: place of the first context token in each row.
        tokens: offsets of each context token.
        logits: for each window, (start, end) of each of its places.
        rules: the task.
    """
    pairs, null = [], None
    for window, (begin, length) in enumerate(spans):
        starts, ends = zip(*logits[window])
        if null is None or starts[0] + ends[0] < sum(null):
            null = (starts[0], ends[0])
        for start in best_places(starts, rules.n_best_size):
            for end in best_places(ends, rules.n_best_size):
                if not first <= start <= end < first + length:
                    continue
                if end - start + 1 > rules.max_answer_length:
                    continue
                token = start - first + begin
                if slow_most_context(spans, token) != window:
                    continue
                shown = tokens[token : end - first + begin + 1]
                text = slow_text(context, shown)
                pairs.append((text, starts[start], ends[end]))
    if rules.version_2_with_negative:
        pairs.append(("", *null))
    pairs = sorted(pairs, key=lambda p: p[1] + p[2], reverse=True)
    kept = {}
    for text, start, end in pairs:
        if len(kept) < rules.n_best_size:
            kept.setdefault(text, (start, end))
    if not rules.version_2_with_negative:
        return next(iter(kept), ""), 0.0 if kept else CERTAINLY_NONE, kept
    kept.setdefault("", null)
    best = next((text for text in kept if text), None)
    if best is None:
        return "", CERTAINLY_NONE, kept
    odds = sum(null) - kept[best][0] - kept[best][1]
    refused = odds > rules.null_score_diff_threshold
    return "" if refused else best, odds, kept


def best_places(logits, n):
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:n]


def best_outputs(logits, n):
    """The head's outputs of each window's (start, end) logits."""
    rows = {"start": [], "end": []}
    for window in logits:
        for side, values in zip(rows, zip(*window)):
            places = best_places(values, n)
            rows[side].append([(place, values[place]) for place in places])
    return make_outputs(
        rows["start"], rows["end"], [window[0] for window in logits]
    )


CONTEXTS = st.lists(
    st.sampled_from(
        [
            *("the", "cat", "cats", "(cat)", "sat!", "zebra,", "\n"),
            *("c\u200bat.", "\u00a0", "cat\u3000sat", "ca\u0308t"),
        ]
    ),
    min_size=1,
    max_size=16,
).map(lambda words: " ".join([*words, "cat"]))


@PROPERTY
@hypothesis.given(
    contexts=st.lists(CONTEXTS, min_size=1, max_size=3),
    room=st.integers(1, 8),
    stride=st.integers(1, 6),
    seed=st.integers(0, 2**31),
    rules=st.builds(
        Squad,
        st.just("squad"),
        n_best_size=st.integers(1, 6),
        max_answer_length=st.integers(1, 5),
        version_2_with_negative=st.booleans(),
        null_score_diff_threshold=st.sampled_from([-1.0, 0.0, 0.5]),
    ),
)
def test_predictions_are_those_of_the_published_rules(
    tokenizer, contexts, room, stride, seed, rules
):
    questions = [
        SquadQuestion(str(i), "is", c, None) for i, c in enumerate(contexts)
    ]
    windows = cut_windows(questions, tokenizer, room + 4, stride, 1)
    rng = np.random.default_rng(seed)
    # Few values, so that many are equal.
    logits = [
        (rng.integers(-3, 4, (length, 2)) / 2).tolist()
        for length in windows.lengths
    ]
    predictions = rules.decode(
        questions, windows, best_outputs(logits, rules.n_best_size)
    )
    assert len(predictions) == len(questions)
    for number, prediction in enumerate(predictions):
        rows = np.flatnonzero(windows.question == number)
        lengths = windows.lengths[rows] - FIRST - 1
        begin = windows.context_starts[number]
        text, odds, kept = slow_prediction(
            contexts[number],
            list(zip(windows.context_first[rows].tolist(), lengths.tolist())),
            FIRST,
            windows.offsets.tolist()[begin:],
            [logits[row] for row in rows],
            rules,
        )
        assert prediction.text == text
        assert prediction.null_odds == odds
        if kept:
            assert listed(prediction) == [(t, *p) for t, p in kept.items()]
        else:
            assert prediction.candidates.texts == ("",)
        assert prediction.candidates.probabilities().sum() == pytest.approx(1)
