"""Scores of entities."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from task_files import PROPERTY

from adapter_bert.tasks.tagging import TypeScores, entity_scores, type_scores
from adapter_bert.tasks.tagging_files import find_entities, split_tag, to_bio

pytestmark = pytest.mark.older_stack


def tagged(*sentences):
    return [[split_tag(tag) for tag in text.split()] for text in sentences]


def test_an_entity_is_right_if_its_words_and_type_are():
    right = tagged("B-a-b I-a-b O B-X", "B-X I-X O")
    predicted = tagged("B-a-b I-a-b O B-a-b", "B-X O O")
    assert entity_scores(right, predicted) == pytest.approx(
        {"f1": 1 / 3, "precision": 1 / 3, "recall": 1 / 3}
    )
    assert type_scores(right, predicted) == [
        TypeScores("X", 2, 1, 0.0, 0.0, 0.0),
        TypeScores("a-b", 1, 2, 0.5, 1.0, pytest.approx(2 / 3)),
    ]


def test_nothing_right_and_nothing_predicted():
    right, none = tagged("B-X O"), tagged("O O")
    zero = {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    assert entity_scores(right, none) == zero
    assert entity_scores(none, right) == zero
    assert entity_scores(none, none) == zero
    assert type_scores(none, none) == []
    assert type_scores(right, none) == [TypeScores("X", 1, 0, 0.0, 0.0, 0.0)]


TAGS = st.lists(
    st.tuples(*[st.sampled_from("O B-X I-X B-Y I-Y".split())] * 2), max_size=8
)


@PROPERTY
@hypothesis.given(st.lists(TAGS, min_size=1, max_size=5))
def test_scores_are_those_of_counted_entities(sentences):
    """Sentences do not run into each other."""
    sides = []
    for side in (0, 1):
        tags = [[split_tag(pair[side]) for pair in s] for s in sentences]
        sides.append([to_bio(own, np.array([0, len(own)])) for own in tags])
    found = [
        {(n, e) for n, own in enumerate(side) for e in find_entities(own)}
        for side in sides
    ]
    right, predicted, both = *map(len, found), len(found[0] & found[1])
    scores = entity_scores(*sides)
    assert scores["precision"] == pytest.approx(both / max(1, predicted))
    assert scores["recall"] == pytest.approx(both / max(1, right))
    assert scores["f1"] == pytest.approx(2 * both / max(1, right + predicted))
    of_types = type_scores(*sides)
    assert sum(s.entities for s in of_types) == right
    assert sum(s.predicted for s in of_types) == predicted
