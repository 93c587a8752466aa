"""Reranking: a score of each document of a query, by a cross-encoder.

BERT reads `[CLS] query [SEP] document [SEP]`, as a `CrossEncoder` of
sentence-transformers. Losses of a query's documents are computed where a row
holds all of them, so that no division of a batch parts them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from scipy.special import expit

from adapter_bert.data.input_pipeline import Texts
from adapter_bert.data.table_flags import OwnTables
from adapter_bert.data.tables import Layout, Rows, SplitFiles, check_distinct
from adapter_bert.errors import UserError
from adapter_bert.flags import is_given, read
from adapter_bert.tasks import kinds
from adapter_bert.tasks.custom import USUAL_LABEL
from adapter_bert.tasks.from_description import custom_arguments
from adapter_bert.tasks.retrieval import rerank_scores
from adapter_bert.tasks.text_regression import (
    AS_IS,
    LabelUnit,
    RegressionHead,
    TextRegression,
)
from adapter_bert.tasks.text_task import TextTask

# Columns unless flags name others.
COLUMNS = {
    "text_a_column": "query",
    "text_b_column": "document",
    "label_column": "label",
}
# Flags of the user's own tables that a reranker has too.
TABLE_FLAGS = {*COLUMNS, "id_column", "header", "dev_share", "split_seed"}
# Activations of scores, and PyTorch's names of them in a model's config.
SIGMOID, LINEAR = "sigmoid", "linear"
TORCH = {
    SIGMOID: "torch.nn.modules.activation.Sigmoid",
    LINEAR: "torch.nn.modules.linear.Identity",
}
# Below all scores.
LEAST = -1e9
# Lists whose loss is computed at once, of dev rows.
LISTS_AT_ONCE = 16


def _mean(losses: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Means of those [B, C, C] that count; 0 where none does, float32 [B]."""
    weights = tf.cast(counts, losses.dtype)
    return tf.math.divide_no_nan(
        tf.reduce_sum(losses * weights, axis=[1, 2]),
        tf.reduce_sum(weights, axis=[1, 2]),
    )


def _differences(values: tf.Tensor) -> tf.Tensor:
    return values[:, :, tf.newaxis] - values[:, tf.newaxis]


def _pairs(is_there: tf.Tensor) -> tf.Tensor:
    return is_there[:, :, tf.newaxis] & is_there[:, tf.newaxis]


def ranknet(
    scores: tf.Tensor, labels: tf.Tensor, is_there: tf.Tensor
) -> tf.Tensor:
    """Cross entropy of a pair's order, over pairs of other labels, in nats.

    float32 and bool [B, C] -> float32 [B]. Source: Burges et al. 2005,
    equation 3; sentence-transformers' `RankNetLoss`, which counts in bits.
    """
    losses = tf.nn.softplus(-_differences(scores))
    return _mean(losses, _pairs(is_there) & (_differences(labels) > 0))


def listnet(
    scores: tf.Tensor, labels: tf.Tensor, is_there: tf.Tensor
) -> tf.Tensor:
    """Cross entropy of the softmax of labels and that of scores, in nats.

    Shapes as `ranknet`. Source: Cao et al. 2007, equation 6;
    sentence-transformers' `ListNetLoss`.
    """
    logits, targets = (
        tf.where(is_there, values, LEAST) for values in (scores, labels)
    )
    return tf.nn.softmax_cross_entropy_with_logits(
        labels=tf.nn.softmax(targets), logits=logits
    )


def margin_mse(
    scores: tf.Tensor, labels: tf.Tensor, is_there: tf.Tensor
) -> tf.Tensor:
    """Squared error of the difference of two scores, over all pairs.

    Labels are a teacher's scores; shapes as `ranknet`. Source: Hofstätter et
    al. 2020, equation 6, whose lists are of two documents.
    """
    losses = _differences(scores - labels) ** 2
    others = ~tf.eye(tf.shape(scores)[1], dtype=tf.bool)
    return _mean(losses, _pairs(is_there) & others)


LOSSES: dict[str, Callable[..., tf.Tensor]] = {
    kinds.RANKNET: ranknet,
    kinds.LISTNET: listnet,
    kinds.MARGIN_MSE: margin_mse,
}


@dataclasses.dataclass(frozen=True)
class Lists(Texts):
    """Rows of a query each, which has all its documents in training.

    `firsts`, int64 [rows + 1], are the places of queries among all pairs. A
    batch repeats a query's first pair up to the most documents, `is_there` of
    the labels, bool [rows, C], leaves that out. `unlabelled` gives pairs.
    """

    firsts: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1))

    def __len__(self) -> int:
        return len(self.firsts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows], tokens of each query's longest pair."""
        return np.maximum.reduceat(np.diff(self.starts), self.firsts[:-1])

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.labels["is_there"].shape[1:]

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """int64 [B, C], the pairs of some queries, int64 [B]."""
        is_there = self.labels["is_there"][rows]
        places = np.arange(is_there.shape[1])
        return self.firsts[rows][:, np.newaxis] + np.where(is_there, places, 0)


def first_pairs(rows: Rows) -> np.ndarray:
    """Places of the first pair of each query, and the end, int64 [Q + 1]."""
    pairs = zip(rows.text_a, [None, *rows.text_a])
    firsts = [n for n, (query, before) in enumerate(pairs) if query != before]
    return np.array([*firsts, len(rows)], np.int64)


class RerankHead(RegressionHead):
    """A score of each pair, and a loss of pairs or of a query's documents."""

    def __init__(self, rank_loss, config, create, shape):
        super().__init__(config, create, shape)
        self.rank_loss = rank_loss

    def loss(self, predictions, features):
        """float32 [B], of pairs, or of queries with C documents."""
        labels = features["label_scores"]
        scores = tf.reshape(predictions["scores"], tf.shape(labels))
        return _loss(self.rank_loss, scores, features)


def _loss(
    name: str, scores: tf.Tensor, features: Mapping[str, tf.Tensor]
) -> tf.Tensor:
    labels = features["label_scores"]
    if name != kinds.BCE:
        return LOSSES[name](scores, labels, features["is_there"])
    return tf.nn.sigmoid_cross_entropy_with_logits(
        # Of grades, which are only scored, all above 0 are right.
        labels=tf.clip_by_value(labels, 0, 1),
        logits=scores,
    )


@dataclasses.dataclass(frozen=True)
class Reranking(TextRegression):
    """Scores a query's documents.

    `rank_loss` is one of `kinds.RANK_LOSSES`; `activation` makes scores of
    logits, None until it is known.
    """

    metrics: tuple[str, ...] = ("ndcg_at_10", "mrr_at_10", "map")
    unit: Optional[LabelUnit] = AS_IS
    rank_loss: str = kinds.BCE
    activation: Optional[str] = None

    kind = kinds.KINDS[kinds.RERANK]
    scores_novelty = False
    can_have_windows = False

    def first(self, rows, count):
        return rows.first_queries(count)

    @classmethod
    def from_flags(
        cls, trained: Optional[Mapping[str, Any]], split_files: SplitFiles
    ) -> "Reranking":
        """Makes the task of flags, whose defaults are a trained adapter's."""
        table = read(OwnTables)
        flags = {name: x for name, x in vars(table).items() if is_given(name)}
        for name in flags.keys() - TABLE_FLAGS:
            raise UserError(
                f"--{name} is for --task_name=custom; a row of "
                f"{kinds.RERANK} has a query, a document and a label"
            )
        settings = {}
        if trained and trained["task"]["name"] == kinds.RERANK:
            settings = trained.get("task_settings", {})
        return cls._of_table(
            table, settings, "the adapter", flags, split_files=split_files
        )

    @classmethod
    def from_settings(cls, recorded, settings, source):
        return cls._of_table(OwnTables(), settings, source)

    @classmethod
    def _of_table(
        cls,
        table: OwnTables,
        settings: Mapping[str, Any],
        source: str,
        flags: Mapping[str, Any] = {},
        **more: Any,
    ) -> "Reranking":
        """Completes a table by `settings`, where no flag is given."""
        rank_loss = settings.get("rank_loss", kinds.BCE)
        if rank_loss not in kinds.RANK_LOSSES:
            raise UserError(
                f"{source}: task_settings.rank_loss is {str(rank_loss)[:80]!r},"
                f" expected one of {', '.join(kinds.RANK_LOSSES)}"
            )
        *texts, _ = COLUMNS.values()
        settings = {"columns": texts, **settings}
        before = custom_arguments({"pairs": True}, settings, source)
        table = dataclasses.replace(table, **{**before, **flags})
        names = *COLUMNS, "id_column"
        places = [table.place(getattr(table, name)) for name in names]
        text_a, text_b, label, row_id = places
        flags = (f"--{name}" for name in COLUMNS)
        check_distinct(dict(zip(flags, places)), USUAL_LABEL)
        texts = Layout(text_a, text_b, header=table.header, has_lists=True)
        return cls(
            kinds.RERANK,
            labelled=dataclasses.replace(texts, label=label),
            unlabelled=dataclasses.replace(texts, row_id=row_id),
            held_out=table.held_out,
            names_rows=True,
            rank_loss=rank_loss,
            **more,
        )

    def describe(self):
        return {"activation": self.scored_by, **TextTask.describe(self)}

    def with_loss(self, rank_loss: str) -> "Reranking":
        """Takes a loss, and the activation that its scores have."""
        task = dataclasses.replace(self, rank_loss=rank_loss, activation=None)
        return dataclasses.replace(task, activation=task.scored_by)

    @property
    def scored_by(self) -> str:
        usual = SIGMOID if self.rank_loss == kinds.BCE else LINEAR
        return self.activation or usual

    @property
    def is_sigmoid(self) -> bool:
        return self.scored_by == SIGMOID

    @property
    def torch_activation(self) -> str:
        """PyTorch's name of the activation of scores."""
        return TORCH[self.scored_by]

    @property
    def settings(self):
        return {"rank_loss": self.rank_loss, **super().settings}

    @property
    def training_settings(self):
        return {"rank_loss": self.rank_loss}

    def restore(self, description, source):
        self.check_name(description, source)
        task = TextTask.restore(self, description, source)
        return task.go_on(description, source)

    def go_on(self, description, source):
        """Keeps the activation of `--rank_loss`, else takes the old one."""
        activation = description.get("activation")
        if activation not in (None, *TORCH):
            raise UserError(
                f"{source}: task.activation is {str(activation)[:80]!r}, "
                f"expected {' or '.join(TORCH)}"
            )
        activation = self.activation or activation
        return dataclasses.replace(self, activation=activation)

    def fit_base(self, opened):
        """Takes a cross-encoder's own activation, unless --rank_loss chose."""
        about = opened.head.get("sentence_transformers")
        if about is None or self.activation:
            return self
        name = about["activation_fn"]
        for activation, theirs in TORCH.items():
            if name == theirs:
                return dataclasses.replace(self, activation=activation)
        raise UserError(
            f"{opened.path}: its scores have the activation {name[:80]!r}, "
            f"expected {' or '.join(TORCH.values())}"
        )

    def read(self, data_dir, splits):
        """Reads splits; refuses queries whose documents are not together."""
        task, rows = super().read(data_dir, splits)
        for split, of_split in rows.items():
            is_compared = split != "train" or self.rank_loss != kinds.BCE
            if of_split.label is not None and is_compared:
                _check_together(of_split)
        return task, rows

    def units(self, rows):
        return rows.text_a

    def learn(self, rows):
        """Refuses labels that the loss cannot learn from."""
        labels = np.array(rows.label, float)
        LabelUnit.of(labels, rows.path)
        others = ", ".join(LOSSES)
        if self.rank_loss == kinds.BCE:
            outside = np.flatnonzero((labels < 0) | (labels > 1))
            if len(outside):
                raise UserError(
                    f"{rows.where(outside[0])}: the label is "
                    f"{labels[outside[0]]:g}, but --rank_loss={kinds.BCE} "
                    f"learns labels from 0 to 1; pass one of {others}"
                )
        elif len(rows) == len(first_pairs(rows)) - 1:
            raise UserError(
                f"{rows.path}: each query has one document, but "
                f"--rank_loss={self.rank_loss} compares a query's documents; "
                f"add others to each, or pass --rank_loss={kinds.BCE}"
            )
        return self

    def featurize(self, rows, tokenizer, max_seq_length):
        pairs = super().featurize(rows, tokenizer, max_seq_length)
        if rows.label is None or self.rank_loss == kinds.BCE:
            return pairs
        firsts = first_pairs(rows)
        counts = np.diff(firsts)[:, np.newaxis]
        is_there = np.arange(counts.max()) < counts
        labels = np.zeros(is_there.shape, np.float32)
        labels[is_there] = pairs.labels["label_scores"]
        return Lists(
            pairs.tokens,
            pairs.segments,
            pairs.starts,
            {"label_scores": labels, "is_there": is_there},
            cut_rows=pairs.cut_rows,
            firsts=firsts,
        )

    def build_head(self, config, create):
        return RerankHead(self.rank_loss, config, create, self.head)

    @property
    def result_columns(self):
        return ("score",)

    def evaluate(self, rows, features, predictions):
        """Scores lists, and gives the loss of pairs or lists, in nats."""
        ends, scores = first_pairs(rows)[1:-1], predictions["scores"]
        labels = np.split(np.array(rows.label, float), ends)
        placed, some = scores, len(scores)
        if isinstance(features, Lists):
            placed = np.zeros(features.labels["is_there"].shape, np.float32)
            placed[features.labels["is_there"]] = scores
            # Some losses compare all pairs of a query's documents.
            some = LISTS_AT_ONCE
        losses = [
            _loss(
                self.rank_loss,
                tf.constant(placed[first : first + some]),
                {
                    name: x[first : first + some]
                    for name, x in features.labels.items()
                },
            )
            for first in range(0, len(placed), some)
        ]
        return {
            **rerank_scores(labels, np.split(scores, ends)),
            "loss": float(tf.reduce_mean(tf.concat(losses, 0))),
        }

    def results(self, predictions):
        scores = super().results(predictions)
        return expit(scores) if self.is_sigmoid else scores

    def answer(self, rows, predictions):
        scores = self.results(predictions)[:, 0].tolist()
        return [{"score": score} for score in scores]

    def runtime_outputs(self, outputs, rows):
        scores = outputs["scores"]
        return {"value": tf.sigmoid(scores) if self.is_sigmoid else scores}

    def cells(self, answer):
        return {"score": format(answer["score"], ".7g")}


def _check_together(rows: Rows) -> None:
    places: dict[str, int] = {}
    for row in first_pairs(rows)[:-1].tolist():
        query = rows.text_a[row]
        before = places.setdefault(query, row)
        if before != row:
            raise UserError(
                f"{rows.where(row)}: the query {query[:80]!r} was that of line "
                f"{rows.lines[before] + 1} already, and others stand between "
                "them; put all documents of a query together"
            )
