"""Scores of predicted entities, by seqeval, which reads tags as conlleval.

An entity is right if its words and its type are.
"""

from typing import Dict, List, NamedTuple, Sequence

from tasks.tag_schemes import Tag

# Tags of the words of each sentence.
Tagged = Sequence[Sequence[Tag]]


class TypeScores(NamedTuple):
    """Scores of the entities of one type.

    Attributes:
        type: the type.
        entities: how many there are.
        predicted: how many were predicted.
        precision: share of the predicted that are right, 0 to 1.
        recall: share of the right that are predicted, 0 to 1.
        f1: harmonic mean of both; like these 0 where it is undefined.
    """

    type: str
    entities: int
    predicted: int
    precision: float
    recall: float
    f1: float


def entity_scores(right: Tagged, predicted: Tagged) -> Dict[str, float]:
    """`f1`, `precision` and `recall` over all entities, 0 to 1.

    Args:
        right: the tags in BIO.
        predicted: as many.
    """
    precision, recall, f1, _ = _measure(right, predicted, "micro")
    return {"f1": f1, "precision": precision, "recall": recall}


def type_scores(right: Tagged, predicted: Tagged) -> List[TypeScores]:
    """The scores of each type that occurs or was predicted, in order."""
    types = sorted(
        {
            tag.type
            for sentences in (right, predicted)
            for sentence in sentences
            for tag in sentence
            if tag.type
        }
    )
    if not types:
        return []
    found = _measure(right, predicted, None)
    counts = dict.fromkeys(types, 0)
    for sentence in predicted:
        for tag in sentence:
            # Of lawful tags each entity has one.
            if tag.prefix == "B":
                counts[tag.type] += 1
    return [
        TypeScores(name, int(count), counts[name], *map(float, scores))
        for name, *scores, count in zip(types, *found)
    ]


def _measure(right: Tagged, predicted: Tagged, average):
    """Precision, recall, F1 and number of entities, as seqeval has them."""
    # Loads scikit-learn, which takes as long as several steps of training.
    from seqeval.metrics.sequence_labeling import (
        precision_recall_fscore_support,
    )

    return precision_recall_fscore_support(
        [[str(tag) for tag in sentence] for sentence in right],
        [[str(tag) for tag in sentence] for sentence in predicted],
        average=average,
        zero_division=0,
    )
