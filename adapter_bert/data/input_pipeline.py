"""From features to batches: which rows, in what order, padded how far.

The order of training is a pure function of (number of rows, their lengths,
batch size, seed, step), so a run that starts again at step n reads the very
batches that an uninterrupted one would have read.
"""

import array
import dataclasses
import fractions
import functools
import hashlib
from typing import (
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

import numpy as np
import tensorflow as tf

from adapter_bert.errors import UserError

# Rows of like length are grouped within this many batches: enough that little
# of a batch is padding (9 to 17% on MRPC, CoLA and RTE; 50 to 105% without),
# few enough that an epoch's batches hold other rows than the last one's.
POOL_BATCHES = 8
# Tokens whose segments are digested at once.
PIECE = 2**20
# The label of a token that has none.
NO_LABEL = -1


@dataclasses.dataclass(frozen=True)
class Features:
    """Tokenized rows, without padding.

    Attributes:
        tokens: int32 [sum of lengths], vocabulary indices of all rows.
        segments: uint8 [sum of lengths], 0 or 1.
        starts: int64 [rows + 1], where each row begins.
        labels: arrays [rows, ...] by feature name; empty for a test set.
        token_labels: int32 [sum of lengths], a label of each token, or
            `NO_LABEL`; None where tokens have no labels.
        cut_rows: how many of the examples are not read whole.
    """

    tokens: np.ndarray
    segments: np.ndarray
    starts: np.ndarray
    labels: Mapping[str, np.ndarray]
    # Optional[np.ndarray], a field of features that may have it.
    token_labels = None
    # int, the same.
    cut_rows = 0

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Tuple[Sequence[int], Sequence[int]]],
        labels: Mapping[str, np.ndarray],
    ) -> "Features":
        """Packs (tokens, segments) pairs, each of which is needed but once."""
        tokens, segments = array.array("i"), array.array("B")
        starts = array.array("q", [0])
        for row_tokens, row_segments in rows:
            tokens.extend(row_tokens)
            segments.extend(row_segments)
            starts.append(len(tokens))
        # The arrays' own memory, which is not copied.
        return cls(
            np.asarray(tokens), np.asarray(segments), np.asarray(starts), labels
        )

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.starts) - 1

    def fingerprint(self) -> str:
        """SHA-256 of all rows and labels, segments as int32."""
        digest = hashlib.sha256()
        for name in sorted(self.labels):
            digest.update(name.encode() + b"\0")
            digest.update(np.ascontiguousarray(self.labels[name]).data)
        if self.token_labels is not None:
            digest.update(b"token_labels\0")
            digest.update(np.ascontiguousarray(self.token_labels).data)
        digest.update(np.ascontiguousarray(self.tokens).data)
        for first in range(0, len(self.segments), PIECE):
            piece = self.segments[first : first + PIECE]
            digest.update(piece.astype(np.int32).data)
        digest.update(np.ascontiguousarray(self.starts).data)
        return digest.hexdigest()

    def unlabelled(self) -> "Features":
        """The rows alone."""
        return Features(self.tokens, self.segments, self.starts, {})

    def take(self, rows: np.ndarray) -> "Features":
        """Some rows alone, int64 [B], in that order."""
        firsts, lengths = self.starts[rows], self.lengths[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(starts[-1]) + np.repeat(
            firsts - starts[:-1], lengths
        )
        return Features(self.tokens[places], self.segments[places], starts, {})

    def finish(
        self, batch: "Batch", rows: np.ndarray, step: Optional[int]
    ) -> None:
        """Changes a padded batch, and adds to it; here nothing.

        What it does to a row is a function of the row and the step, and the
        same whatever the row is padded to.

        Args:
            batch: of `make_batch`, the whole one that devices will share.
            rows: int64 [B], the numbers of its rows.
            step: of the training, from 0; None in prediction.
        """

    def added(self, length: Optional[int]) -> Dict[str, Tuple[Tuple, type]]:
        """What `finish` adds to batches of rows that are padded to `length`.

        Returns:
            Name -> (shape of one row's, type); None in a shape for what
            differs from batch to batch.
        """
        return {}

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows], tokens of each row."""
        return np.diff(self.starts)

    @property
    def row_shape(self) -> Tuple[int, ...]:
        """Of how many sequences of tokens a row of a batch is: of one."""
        return ()

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """int64 [B, *row_shape], which sequences some rows, int64 [B], are."""
        return rows


@dataclasses.dataclass(frozen=True)
class Texts(Features):
    """Rows of texts, of which long ones were cut: `cut_rows`."""

    cut_rows: int = 0

    @classmethod
    def from_texts(
        cls,
        rows: Iterable[Tuple[Sequence[int], Sequence[int], bool]],
        labels: Mapping[str, np.ndarray],
        **more: int,
    ) -> "Texts":
        """Packs (tokens, segments, whether a row was cut)."""
        cut = array.array("B")

        def pack() -> Iterator[Tuple[Sequence[int], Sequence[int]]]:
            for tokens, segments, is_cut in rows:
                cut.append(is_cut)
                yield tokens, segments

        packed = Features.from_rows(pack(), labels)
        return cls(**vars(packed), cut_rows=sum(cut), **more)


@dataclasses.dataclass(frozen=True)
class Choices(Texts):
    """Rows each of which is several sequences, of which one is to be chosen.

    In batches of training they stay together. `unlabelled` gives the sequences
    as rows of their own, for predictions compare nothing.

    Attributes:
        tokens, segments: of all sequences, a row's one after the other.
        starts: int64 [rows * choices + 1], where each sequence begins.
        choices: sequences of a row.
    """

    choices: int = 2

    def __len__(self) -> int:
        """Number of rows."""
        return (len(self.starts) - 1) // self.choices

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows], tokens of each row's longest sequence."""
        return np.diff(self.starts).reshape(-1, self.choices).max(axis=1)

    @property
    def row_shape(self) -> Tuple[int, ...]:
        """As many as there are choices."""
        return (self.choices,)

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """int64 [B, choices], the sequences of some rows, int64 [B]."""
        return rows[:, np.newaxis] * self.choices + np.arange(self.choices)


def exact(number: float) -> fractions.Fraction:
    """The number that a float's shortest decimals say: 0.1 is a tenth."""
    return fractions.Fraction(repr(float(number)))


def count_train_steps(rows: int, batch_size: int, epochs: float) -> int:
    """Whole batches in `epochs` passes over the rows, at least one.

    Source: google-research/bert, `run_classifier.py`, which rounds down too:
    less than a batch of the last pass is left out.

    Raises:
        UserError: more steps than can be counted.
    """
    if rows * epochs / batch_size >= 2**31:
        raise UserError(f"{epochs} epochs of {rows} rows are too many steps")
    return max(1, int(exact(epochs) * rows / batch_size))


class Plan(Protocol):
    """The rows of every training batch.

    Its `repr` says all that decides them beside the rows' lengths.
    """

    def rows(self, step: int) -> np.ndarray:
        """int64 [batch size], the rows of the batch of `step` (from 0)."""


class TrainPlan:
    """The `Plan` of a training on rows that are all alike.

    Epochs are seeded permutations, read one after the other as one stream.
    Each pool of some batches of that stream is sorted by length, cut into
    batches, and the batches are shuffled.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        num_steps: int,
        seed: int,
        pool_batches: int = POOL_BATCHES,
    ):
        """Plans `num_steps` batches.

        Args:
            lengths: int64 [rows], at least one row.
            batch_size: rows of a batch.
            num_steps: batches of the whole training.
            seed: of permutations and shuffles.
            pool_batches: batches of a pool; 1 for no grouping by length.
        """
        self._lengths = lengths
        self._batch_size, self._num_steps = batch_size, num_steps
        self._seed, self._pool_batches = seed, pool_batches
        self._epoch = functools.lru_cache(maxsize=2)(self._permute)
        self._pool = functools.lru_cache(maxsize=1)(self._make_pool)

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


Batch = Dict[str, np.ndarray]


def make_batch(
    features: Features,
    rows: np.ndarray,
    length: Optional[int],
    step: Optional[int] = None,
) -> Batch:
    """Pads rows to one length.

    Args:
        features: of the split.
        rows: int64 [B].
        length: tokens to pad to, or None for the longest row's.
        step: of the training, from 0; None in prediction.

    Returns:
        `input_ids`, `input_mask`, `segment_ids` int32 [B, T], or of C
        `Choices` [B, C, T]; `row` int32 [B], places within the batch; the
        labels' rows. Where tokens have labels, `token_labels` int32 [B, T] and
        their `token_weights`. Whatever `Features.finish` adds.
    """
    sequences = features.sequences(rows)
    starts = features.starts[sequences]
    lengths = features.starts[sequences + 1] - starts
    if length is None:
        length = int(lengths.max())
    places = np.arange(length)
    mask = places < lengths[..., np.newaxis]
    sources = (starts[..., np.newaxis] + places)[mask]
    batch = {"input_mask": mask.astype(np.int32)}
    for name, values in (
        ("input_ids", features.tokens),
        ("segment_ids", features.segments),
    ):
        batch[name] = np.zeros(mask.shape, np.int32)
        batch[name][mask] = values[sources]
    batch["row"] = np.arange(len(rows), dtype=np.int32)
    for name, values in features.labels.items():
        batch[name] = values[rows]
    if features.token_labels is not None:
        labels = np.full(mask.shape, NO_LABEL, np.int32)
        labels[mask] = features.token_labels[sources]
        batch["token_labels"] = labels
        batch["token_weights"] = token_weights(labels != NO_LABEL)
    features.finish(batch, rows, step)
    return batch


def token_weights(is_labelled: np.ndarray) -> np.ndarray:
    """What a labelled token weighs in its row's loss, in each row alike.

    It is rows of the batch / its labelled tokens. So the mean over the rows, of
    which engines make the gradient, is that over the batch's labelled tokens.

    Args:
        is_labelled: bool [B, T].

    Returns:
        float32 [B].
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
    own: Optional[range] = None,
) -> Iterator[Batch]:
    """Batches of the given steps, each in equal parts, in order.

    Args:
        features: of the training split.
        plan: order of the rows.
        steps: which steps.
        length: as in `make_batch`, of the whole batch.
        shards: parts of a batch; divides the batch size.
        own: the parts to make, or None for all.
    """
    for step in steps:
        batch = make_batch(features, plan.rows(step), length, step)
        size = len(batch["row"]) // shards
        for shard in range(shards) if own is None else own:
            part = slice(shard * size, (shard + 1) * size)
            yield {name: value[part] for name, value in batch.items()}


def sorted_batches(
    features: Features, batch_size: int, tokens: int = 0
) -> List[np.ndarray]:
    """Every row once, sorted by length.

    Args:
        features: the rows.
        batch_size: rows of a batch; the last one may have fewer.
        tokens: a batch has more rows if it has not more tokens than these,
            padding included.

    Returns:
        int64 [B], the rows of each batch.
    """
    order = np.argsort(features.lengths, kind="stable")
    lengths = features.lengths[order]
    batches: List[np.ndarray] = []
    first = 0
    while first < len(order):
        # The longest row is the last one: so many tokens have so many rows.
        most = lengths[first : first + max(tokens, 1)]
        sizes = np.arange(1, len(most) + 1) * most
        size = max(batch_size, np.count_nonzero(sizes <= tokens))
        batches.append(order[first : first + size])
        first += size
    return batches


def fill(batches: List[np.ndarray], size: int) -> List[np.ndarray]:
    """The same batches, the last one filled up to `size` with its last row."""
    last = batches[-1]
    missing = np.repeat(last[-1:], size - len(last))
    return [*batches[:-1], np.concatenate([last, missing])]


def restore_order(
    batches: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> np.ndarray:
    """Puts outputs of `sorted_batches`, joined, back into row order."""
    rows = np.concatenate(batches)
    values = join_outputs(outputs)
    restored = np.empty_like(values)
    restored[rows] = values
    return restored


def join_outputs(outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Joins outputs of batches.

    Args:
        outputs: [B, ...] of each batch, of equal further dimensions; or
            [B, T, ...] where T is the length that its rows were padded to.

    Returns:
        [rows, ...]; or [rows, greatest T, ...], filled up with zeros.
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
) -> Dict[str, tf.TensorSpec]:
    """Shape and type of all that batches hold.

    Args:
        features: that they are made of.
        length: static number of tokens, or None.
        batch_size: static number of rows, or None.
    """
    signature = {
        name: tf.TensorSpec([batch_size, *features.row_shape, length], tf.int32)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    signature["row"] = tf.TensorSpec([batch_size], tf.int32)
    for name, values in features.labels.items():
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

    Nothing is read ahead: TensorFlow's deterministic mode would switch that
    off. Other arguments are those of `batch_signature`.
    """
    signature = batch_signature(features, length, batch_size)
    dataset = tf.data.Dataset.from_generator(
        make_batches, output_signature=signature
    )
    options = tf.data.Options()
    # There is nothing to tune, and the closing of an estimator's session may
    # wait for the tuner's next turn: half a minute, after minutes of training.
    options.autotune.enabled = False
    return dataset.with_options(options)
