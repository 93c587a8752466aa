"""Losses of the vectors of a batch, which compare all rows with one another.

B rows have C texts each, whose vectors have D entries. Similarity is the
cosine, so that lengths of vectors play no part.
"""

import tensorflow as tf

from adapter_bert.bert import functional

# Squared lengths below count as this one, so that zeros stay zeros.
SMALLEST = 1e-24
# Takes the place of a logit that is left out.
LEAST = -1e9


def info_nce(
    vectors: tf.Tensor, text_ids: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Cross entropies of each row's match among the texts of all rows.

    The candidates of a text are the matches, then the hard negatives, of all
    rows. A candidate with the same text as the row's match, or as the row's own
    first text, is no negative; nor is a text that is the match of an equal
    first text. `vectors` are float32 [B, C, D], of a text, its match, hard
    negatives; `text_ids`, int32 [B, C], are equal for equal texts;
    `temperature` divides the cosines. Returns float32 [B], nats.

    Source: van den Oord et al. 2018, equation 4, with cosines as in Gao et al.
    2021 (SimCSE), equation 5; sentence-transformers,
    `MultipleNegativesRankingLoss` with a scale of 1 / temperature, which also
    takes texts for negatives of their own match.
    """
    unit = _normalize(vectors)
    queries, candidates = unit[:, 0], unit[:, 1:]
    # [B (C - 1), D], all matches first.
    candidates = tf.reshape(
        tf.transpose(candidates, [1, 0, 2]), [-1, unit.shape[-1]]
    )
    ids = tf.reshape(tf.transpose(text_ids[:, 1:]), [-1])
    logits = tf.matmul(queries, candidates, transpose_b=True) / temperature
    rows = tf.range(tf.shape(vectors)[0])
    # `==` would compare objects in TPUEstimator's graphs.
    is_other = tf.not_equal(rows[:, tf.newaxis], tf.range(tf.shape(ids)[0]))
    is_equal = tf.equal(text_ids[:, :1], text_ids[:, 0])
    is_match = tf.equal(text_ids[:, 1:2], ids)
    # Matches of all rows with an equal first text.
    counts = tf.matmul(*(tf.cast(x, tf.float32) for x in (is_equal, is_match)))
    is_same = (counts > 0) | tf.equal(ids, text_ids[:, :1])
    return functional.cross_entropy(
        tf.where(is_same & is_other, LEAST, logits), rows
    )


def cosent(
    vectors: tf.Tensor, scores: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Computes the loss of the order of the pairs' cosines, float32 [], nats.

    log(1 + sum over i, j with score i > score j of exp((cosine j - cosine i) /
    temperature)). `vectors` are float32 [B, 2, D], `scores` float32 [B],
    greater for pairs that are more alike.

    Source: Su 2022, "CoSENT", https://kexue.fm/archives/8847;
    sentence-transformers, `CoSENTLoss` with a scale of 1 / temperature.
    """
    unit = _normalize(vectors)
    cosines = tf.reduce_sum(unit[:, 0] * unit[:, 1], axis=1) / temperature
    differences = cosines[tf.newaxis] - cosines[:, tf.newaxis]
    counts = scores[:, tf.newaxis] > scores[tf.newaxis]
    logits = tf.reshape(tf.where(counts, differences, LEAST), [-1])
    return tf.reduce_logsumexp(tf.concat([[0.0], logits], axis=0))


def by_labels(
    vectors: tf.Tensor, labels: tf.Tensor, temperature: float
) -> tf.Tensor:
    """Computes `cosent` of all pairs of a batch, with the score 1 or 0.

    A pair's score tells whether its labels are equal. `vectors` are float32
    [B, D], `labels` int [B]. Returns float32 [B], all the same, nats.
    """
    unit = _normalize(vectors)
    cosines = tf.matmul(unit, unit, transpose_b=True) / temperature
    rows = tf.range(tf.shape(labels)[0])
    is_pair = rows[:, tf.newaxis] < rows
    is_equal = tf.equal(labels[:, tf.newaxis], labels)
    # The sum over two pairs is a product of two sums.
    alike = tf.where(is_pair & is_equal, -cosines, LEAST)
    unlike = tf.where(is_pair & ~is_equal, cosines, LEAST)
    loss = tf.math.softplus(
        tf.reduce_logsumexp(alike) + tf.reduce_logsumexp(unlike)
    )
    return loss + tf.zeros_like(cosines[0])


def _normalize(vectors: tf.Tensor) -> tf.Tensor:
    """Vectors of length 1, float32 [..., D]."""
    return tf.math.l2_normalize(vectors, axis=-1, epsilon=SMALLEST)
