"""From features to batches: which rows, in what order, padded how far.

The order of training is a pure function of (number of rows, their lengths,
batch size, number of steps, batches of a pool, seed, step), so a run that
starts again at step n reads the batches of an uninterrupted one.
"""

import array
import dataclasses
import fractions
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Protocol

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert.data.table_flags import POOL_BATCHES
from adapter_bert.errors import UserError

# Tokens whose segments are hashed at once.
PIECE = 2**20
# Marks a token without a label.
NO_LABEL = -1


@dataclasses.dataclass(frozen=True)
class Features:
    """Tokenized rows, without padding.

    Attributes:
        tokens: int32 [sum of lengths], vocabulary indices of all rows.
        segments: uint8 [sum of lengths], 0 or 1.
        starts: int64 [rows + 1], where each row begins.
        labels: arrays [rows, ...] by feature name; empty for a test set.
        token_labels: int32 [sum of lengths], labels or `NO_LABEL`; or None.
        columns: arrays [rows, ...] by feature name, in predictions too.
        cut_rows: how many examples are not read whole.
    """

    tokens: np.ndarray
    segments: np.ndarray
    starts: np.ndarray
    labels: Mapping[str, np.ndarray]
    # Fields of the subclasses that have them.
    token_labels = None
    columns = {}
    cut_rows = 0

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Sequence[Any]],
        labels: Mapping[str, np.ndarray],
        **more: Any,
    ) -> "Features":
        """Packs rows, without keeping them.

        A row is (tokens, segments), of a class with `cut_rows` also whether it
        was cut. `more` are fields of the class.
        """
        tokens, segments = array.array("i"), array.array("B")
        starts, cut_rows = array.array("q", [0]), 0
        for row_tokens, row_segments, *is_cut in rows:
            tokens.extend(row_tokens)
            segments.extend(row_segments)
            starts.append(len(tokens))
            cut_rows += sum(is_cut)
        if cut_rows:
            more["cut_rows"] = cut_rows
        # Nothing is copied.
        packed = map(np.asarray, (tokens, segments, starts))
        return cls(*packed, labels, **more)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def answer_labels(self) -> Mapping[str, np.ndarray]:
        """The labels of each answer, where rows make an answer together."""
        return self.labels

    def fingerprint(self) -> str:
        """SHA-256 of all rows and labels, segments as int32."""
        digest = hashlib.sha256()
        labels = sorted(self.labels.items())
        if self.token_labels is not None:
            labels.append(("token_labels", self.token_labels))
        for name, values in labels:
            digest.update(name.encode() + b"\0")
            digest.update(np.ascontiguousarray(values).data)
        digest.update(np.ascontiguousarray(self.tokens).data)
        for first in range(0, len(self.segments), PIECE):
            piece = self.segments[first : first + PIECE]
            digest.update(piece.astype(np.int32).data)
        digest.update(np.ascontiguousarray(self.starts).data)
        return digest.hexdigest()

    def unlabelled(self) -> "Features":
        """Returns the rows without labels."""
        rows = self.tokens, self.segments, self.starts
        return Texts(*rows, {}, columns=self.columns)

    def take(self, rows: np.ndarray) -> "Features":
        """Some rows, int64 [B], in that order, without labels."""
        firsts, lengths = self.starts[rows], self.lengths[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(starts[-1]) + np.repeat(
            firsts - starts[:-1], lengths
        )
        return Features(self.tokens[places], self.segments[places], starts, {})

    def finish(
        self, batch: "Batch", rows: np.ndarray, step: Optional[int]
    ) -> None:
        """Changes a whole batch of `make_batch`; here nothing.

        A row's changes follow from the row and the step, not from its padding.
        """

    def added(self, length: Optional[int]) -> dict[str, tuple[tuple, type]]:
        """(Shape of a row, type) of the arrays that `finish` adds, by name.

        Sizes that differ from batch to batch are None.
        """
        return {}

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows], tokens of each row."""
        return np.diff(self.starts)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Dimensions of a row's sequences of tokens: none, of a single one."""
        return ()

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """int64 [B, *row_shape], the sequences of some rows, int64 [B]."""
        return rows


@dataclasses.dataclass(frozen=True)
class Texts(Features):
    """Rows of texts; `cut_rows` of them were too long."""

    cut_rows: int = 0
    columns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Choices(Texts):
    """Rows of several sequences, one after the other; one is right.

    In batches of training they stay together. `unlabelled` gives the sequences
    as rows of their own, since predictions compare nothing; where a row
    `has_sides`, `task_ids` are 0 of a first sequence and 1 of the others.
    `starts` are int64 [rows * choices + 1].
    """

    choices: int = 2
    has_sides: bool = False

    def __len__(self) -> int:
        return (len(self.starts) - 1) // self.choices

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows], tokens of each row's longest sequence."""
        return np.diff(self.starts).reshape(-1, self.choices).max(axis=1)

    def unlabelled(self) -> Features:
        alone = super().unlabelled()
        if not self.has_sides:
            return alone
        sides = np.tile(np.arange(self.choices) > 0, len(self))
        columns = {"task_ids": sides.astype(np.int32)}
        return dataclasses.replace(alone, columns=columns)

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (self.choices,)

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """int64 [B, choices], the sequences of some rows, int64 [B]."""
        return rows[:, np.newaxis] * self.choices + np.arange(self.choices)


def exact(number: float) -> fractions.Fraction:
    """Reads a float's shortest decimals: 0.1 is a tenth."""
    return fractions.Fraction(repr(float(number)))


def count_train_steps(rows: int, batch_size: int, epochs: float) -> int:
    """Whole batches in `epochs` passes over the rows, at least one.

    Source: google-research/bert, `run_classifier.py`, which rounds down too.
    """
    if rows * epochs / batch_size >= 2**31:
        raise UserError(f"{epochs} epochs of {rows} rows are too many steps")
    return max(1, int(exact(epochs) * rows / batch_size))


class Plan(Protocol):
    """Rows of every training batch, by the plan's `repr` and rows' lengths."""

    def rows(self, step: int) -> np.ndarray:
        """int64 [batch size], the rows of the batch of `step` (from 0)."""


class TrainPlan:
    """Plans a training on rows of one task.

    Seeded permutations, one for each epoch, make a stream of rows. Each pool of
    `pool_batches` of the stream is sorted by length and cut into batches, which
    are shuffled. Pools of one batch do not group by length.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        num_steps: int,
        seed: int,
        pool_batches: int = POOL_BATCHES,
    ):
        """Plans `num_steps` batches of rows of these lengths, int64 [rows]."""
        self._lengths = lengths
        self._batch_size, self._num_steps = batch_size, num_steps
        self._seed, self._pool_batches = seed, pool_batches
        self._epoch = functools.lru_cache(maxsize=2)(self._permute)
        self._pool = functools.lru_cache(maxsize=1)(self._make_pool)
        if num_steps and batch_size > len(lengths):
            # Sorted by length, copies of a row stand together.
            different = [len(np.unique(rows)) for rows in self._pool(0)]
            logging.warning(
                "a batch of %d rows is larger than all %d rows: it holds "
                "copies, and %.3g different rows on average; lower "
                "--train_batch_size",
                batch_size,
                len(lengths),
                np.mean(different),
            )

    def __repr__(self) -> str:
        arguments = self._batch_size, self._num_steps, self._seed
        return f"TrainPlan{(*arguments, self._pool_batches)}"

    def rows(self, step: int) -> np.ndarray:
        """int64 [batch size], the rows of the batch of `step` (from 0)."""
        pool, place = divmod(step, self._pool_batches)
        return self._pool(pool)[place]

    def _permute(self, epoch: int) -> np.ndarray:
        rng = np.random.default_rng([self._seed, 0, epoch])
        return rng.permutation(len(self._lengths))

    def _make_pool(self, pool: int) -> np.ndarray:
        first = pool * self._pool_batches * self._batch_size
        last = min((pool + 1) * self._pool_batches, self._num_steps)
        stream = np.arange(first, last * self._batch_size)
        epochs, places = np.divmod(stream, len(self._lengths))
        rows = np.empty(len(stream), np.int64)
        for epoch in np.unique(epochs):
            rows[epochs == epoch] = self._epoch(epoch)[places[epochs == epoch]]
        rows = rows[np.argsort(self._lengths[rows], kind="stable")]
        batches = rows.reshape(-1, self._batch_size)
        rng = np.random.default_rng([self._seed, 1, pool])
        return batches[rng.permutation(len(batches))]


Batch = dict[str, np.ndarray]


def make_batch(
    features: Features,
    rows: np.ndarray,
    length: Optional[int],
    step: Optional[int] = None,
) -> Batch:
    """Pads rows to one length.

    Args:
        features: all rows.
        rows: int64 [B], those of the batch.
        length: tokens to pad to, or None for the longest row's.
        step: of the training, from 0; None in prediction.

    Returns:
        `input_ids`, `input_mask`, `segment_ids` int32 [B, T], or of C
        `Choices` [B, C, T]; `row` int32 [B], places within the batch; the
        labels' rows. Where tokens have labels, `token_labels` int32 [B, T] and
        their `token_weights`. Arrays that `Features.finish` adds.
    """
    sequences = features.sequences(rows)
    starts = features.starts[sequences]
    lengths = features.starts[sequences + 1] - starts
    if length is None:
        length = int(lengths.max())
    places = np.arange(length)
    mask = places < lengths[..., np.newaxis]
    sources = (starts[..., np.newaxis] + places)[mask]

    def pad(values: np.ndarray, filling: int = 0) -> np.ndarray:
        padded = np.full(mask.shape, filling, np.int32)
        padded[mask] = values[sources]
        return padded

    batch = {
        "input_mask": mask.astype(np.int32),
        "input_ids": pad(features.tokens),
        "segment_ids": pad(features.segments),
    }
    batch["row"] = np.arange(len(rows), dtype=np.int32)
    for name, values in {**features.labels, **features.columns}.items():
        batch[name] = values[rows]
    if features.token_labels is not None:
        labels = pad(features.token_labels, NO_LABEL)
        batch["token_labels"] = labels
        batch["token_weights"] = token_weights(labels != NO_LABEL)
    features.finish(batch, rows, step)
    return batch


def token_weights(is_labelled: np.ndarray) -> np.ndarray:
    """Weights of labelled tokens in their row's loss, in each row alike.

    A weight is rows of the batch / its labelled tokens. So the mean over the
    rows, which engines differentiate, is the mean over labelled tokens.

    bool [B, T], whether tokens are labelled -> float32 [B].
    """
    count = max(1, np.count_nonzero(is_labelled))
    rows = len(is_labelled)
    return np.full(rows, rows / count, np.float32)


def train_batches(
    features: Features,
    plan: Plan,
    steps: range,
    length: Optional[int],
    shards: int = 1,
    share: Optional[range] = None,
) -> Iterator[Batch]:
    """Batches of the given steps, from 0, each in equal parts, in order.

    `shards`, the number of parts, divides the batch size; `share` are the parts
    to make, or None for all. A whole batch has one `length`; see `make_batch`.
    """
    for step in steps:
        batch = make_batch(features, plan.rows(step), length, step)
        size = len(batch["row"]) // shards
        for shard in range(shards) if share is None else share:
            rows = slice(shard * size, (shard + 1) * size)
            yield {name: value[rows] for name, value in batch.items()}


def sorted_batches(
    features: Features, batch_size: int, tokens: int = 0
) -> list[np.ndarray]:
    """Batches that hold every row once, sorted by length, int64 [B] each.

    The last one may have fewer than `batch_size` rows. Others may have more, up
    to `tokens` in all, padding included.
    """
    order = np.argsort(features.lengths, kind="stable")
    lengths = features.lengths[order]
    batches: list[np.ndarray] = []
    first = 0
    while first < len(order):
        # The last row is the longest: tokens of a batch by its number of rows.
        most = lengths[first : first + max(tokens, 1)]
        sizes = np.arange(1, len(most) + 1) * most
        size = max(1, batch_size, np.count_nonzero(sizes <= tokens))
        batches.append(order[first : first + size])
        first += size
    return batches


def fill(batches: list[np.ndarray], size: int) -> list[np.ndarray]:
    """Fills the last batch up to `size` with its last row."""
    last = batches[-1]
    missing = np.repeat(last[-1:], size - len(last))
    return [*batches[:-1], np.concatenate([last, missing])]


def restore_order(
    batches: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> np.ndarray:
    """Joins outputs of batches in the order of rows, without filled up ones."""
    rows = np.concatenate(batches)
    values = join_outputs(outputs)[: len(rows)]
    restored = np.empty_like(values)
    restored[rows] = values
    return restored


def join_outputs(outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Joins outputs of batches, [B, ...] or [B, T, ...].

    T is the length that a batch was padded to; zeros fill up to the greatest.
    """
    widths = {value.shape[1:2] for value in outputs}
    if len(widths) == 1:
        return np.concatenate(outputs)
    [widest] = max(widths)
    shape = (sum(map(len, outputs)), widest, *outputs[0].shape[2:])
    joined = np.zeros(shape, outputs[0].dtype)
    first = 0
    for value in outputs:
        joined[first : first + len(value), : value.shape[1]] = value
        first += len(value)
    return joined


def batch_signature(
    features: Features, length: Optional[int], batch_size: Optional[int]
) -> dict[str, tf.TensorSpec]:
    """Shapes and types of batches, with static numbers of tokens and rows.

    A number that differs from batch to batch is None.
    """
    signature = {
        name: tf.TensorSpec([batch_size, *features.row_shape, length], tf.int32)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    signature["row"] = tf.TensorSpec([batch_size], tf.int32)
    for name, values in {**features.labels, **features.columns}.items():
        signature[name] = tf.TensorSpec(
            (batch_size,) + values.shape[1:], values.dtype
        )
    if features.token_labels is not None:
        signature["token_labels"] = tf.TensorSpec(
            [batch_size, length], tf.int32
        )
        signature["token_weights"] = tf.TensorSpec([batch_size], tf.float32)
    for name, (shape, dtype) in features.added(length).items():
        signature[name] = tf.TensorSpec((batch_size, *shape), dtype)
    return signature


def to_dataset(
    make_batches: object,
    features: Features,
    length: Optional[int],
    batch_size: Optional[int],
) -> tf.data.Dataset:
    """A `tf.data.Dataset` of the `Batch`es that `make_batches()` yields.

    Nothing is prefetched: TensorFlow's deterministic mode would not allow it.
    """
    signature = batch_signature(features, length, batch_size)
    dataset = tf.data.Dataset.from_generator(
        make_batches, output_signature=signature
    )
    options = tf.data.Options()
    # There is nothing to tune, and an estimator's session that closes may wait
    # half a minute for the tuner's next turn.
    options.autotune.enabled = False
    return dataset.with_options(options)
