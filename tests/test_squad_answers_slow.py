"""Answers chosen by a slow copy of the published rules are the same."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from test_squad_answers import FIRST, listed, make_outputs

from adapter_bert.tasks.squad import Squad, _has_most_context, predict_answers
from adapter_bert.tasks.squad_data import Question, cut_windows

pytestmark = pytest.mark.older_stack

PROPERTY = hypothesis.settings(
    derandomize=True, deadline=None, max_examples=150
)


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


@PROPERTY
@hypothesis.given(
    st.integers(1, 60), st.integers(1, 20), st.integers(1, 20), st.booleans()
)
def test_most_context_is_that_of_a_slow_search(tokens, room, stride, shuffled):
    spans, first = [], 0
    while not spans or sum(spans[-1]) < tokens:
        spans.append((first, min(room, tokens - first)))
        first += min(room, stride)
    if shuffled:
        # The rule does not take windows to be of one length or in order.
        spans = [
            (begin, 1 + (7 * length + begin) % length)
            for begin, length in reversed(spans)
        ]
    firsts, lengths = np.array(spans).T[:, :, np.newaxis]
    places = np.tile(np.arange(room), (len(spans), 1))
    flags = _has_most_context(places, firsts, lengths)
    assert flags.shape == places.shape
    for number, (first, length) in enumerate(spans):
        for place in range(length):
            expected = slow_most_context(spans, first + place) == number
            assert flags[number, place] == expected, (spans, number, place)


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
        rules: as of `predict_answers`.
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
        return next(iter(kept), ""), 0.0, kept
    kept.setdefault("", null)
    best = next((text for text in kept if text), None)
    if best is None:
        return "", 1000000.0, kept
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
        Question(str(i), "is", c, None) for i, c in enumerate(contexts)
    ]
    windows = cut_windows(questions, tokenizer, room + 4, stride, 1)
    rng = np.random.default_rng(seed)
    # Few values, so that many are equal.
    logits = [
        (rng.integers(-3, 4, (length, 2)) / 2).tolist()
        for length in windows.lengths
    ]
    predictions = predict_answers(
        questions, windows, best_outputs(logits, rules.n_best_size), rules
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
