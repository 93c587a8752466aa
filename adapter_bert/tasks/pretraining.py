"""BERT's pretraining: masked tokens, and whether a text follows another one.

Rows are those of `create_pretraining_data.py`, in TFRecord files.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from adapter_bert import files
from adapter_bert.bert import functional
from adapter_bert.data.input_pipeline import Features, token_weights
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError, first_line
from adapter_bert.flags import POSITIVE, Topic
from adapter_bert.progress import Progress
from adapter_bert.tasks.kinds import KINDS, PRETRAINING
from adapter_bert.tasks.masked_lm import NO_TOKEN, Counted, MaskedLMHead
from adapter_bert.tasks.task import Head, Task

# Of a record: 1 if the second text is random.
LABELS = "next_sentence_labels"
# Records that are parsed at once.
PARSED = 1024


@dataclasses.dataclass(frozen=True)
class MaskedPairs(Features):
    """Rows whose masks were drawn when the file was written."""

    def unlabelled(self):
        return self

    def added(self, length):
        return {"masked_weights": ((), np.float32)}

    def finish(self, batch, rows, step):
        """Adds `masked_weights`, the `token_weights` of masked tokens."""
        is_masked = batch["masked_ids"] != NO_TOKEN
        batch["masked_weights"] = token_weights(is_masked)


class PretrainingHead(Head):
    """Logits of masked tokens, and of whether the second text is random.

    Parameters: those of `MaskedLMHead`, and 2 D + 2. Source:
    google-research/bert, `run_pretraining.py`, `get_next_sentence_output`.
    """

    reads = (*MaskedLMHead.reads, LABELS)

    def __init__(self, config, create):
        self.masked = MaskedLMHead(config, create)
        self.create_last(2, config, create, "cls/seq_relationship/")

    def __call__(self, bert, sequence_output, context, **read):
        """float32 [B, T, D] -> the masked tokens', "next_logits" [B, 2]."""
        labels = read.pop(LABELS)
        predictions = self.masked(bert, sequence_output, context, **read)
        pooled = bert.pooled_output(sequence_output, context)
        logits = tf.matmul(pooled, self.weights, transpose_b=True)
        return {
            **predictions,
            "next_logits": logits + self.bias,
            LABELS: labels,
        }

    def select(self, predictions):
        """Reduces the logits to scores.

        Those of `MaskedLMHead`, [B, K]; `next_log_probabilities`, float32 [B],
        of the right labels, in nats; `next_is_right`, int32 [B], 1 where the
        likelier label is right.
        """
        logits, labels = predictions["next_logits"], predictions[LABELS]
        likelier = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return {
            **self.masked.select(predictions),
            "next_log_probabilities": -functional.cross_entropy(logits, labels),
            "next_is_right": tf.cast(tf.equal(likelier, labels), tf.int32),
        }

    def loss(self, predictions, features):
        masked = self.masked.loss(predictions, features)
        return masked + functional.cross_entropy(
            predictions["next_logits"], features[LABELS]
        )


def _records(paths: Sequence[str]) -> Iterator[bytes]:
    for path in paths:
        files.check_plain(path, "the rows")
        try:
            yield from tf.data.TFRecordDataset(path).as_numpy_iterator()
        except tf.errors.OpError as error:
            raise UserError(
                f"{path} cannot be read as a TFRecord file of "
                f"create_pretraining_data.py: {first_line(error)}"
            ) from error


@dataclasses.dataclass(frozen=True)
class Pretraining(Task[Counted]):
    """Pretraining on rows of TFRecord files, with upstream's flags."""

    name: str = PRETRAINING
    input_file: str = Topic.DATA.setting(
        "",
        "Rows of create_pretraining_data.py: files or patterns with commas "
        "between them.",
    )
    eval_file: str = Topic.DATA.setting(
        "", "Rows to score, as --input_file, which is the default."
    )
    max_predictions_per_seq: int = Topic.DATA.setting(
        20, "Most masked tokens of a row, as the rows were made.", POSITIVE
    )
    most_scored: Optional[int] = None

    kind = KINDS[PRETRAINING]
    test_splits = ()
    answers_texts = False
    rows_are_fixed = True

    def describe(self):
        return {}

    @property
    def train_file(self):
        if not self.input_file:
            return ""
        return files.matching(self.input_file, "--input_file")[0]

    @property
    def score_names(self):
        return (
            "masked_lm_accuracy",
            "masked_lm_loss",
            "next_sentence_accuracy",
            "next_sentence_loss",
            "loss",
        )

    def read(self, data_dir, splits):
        rows = {}
        for split in splits:
            flag = "input_file"
            if split == "dev" and self.eval_file:
                flag = "eval_file"
            paths = files.matching(getattr(self, flag), f"--{flag}")
            refusal = f"{', '.join(paths)}: no record is in there"
            rows[split] = Counted.of(_records, paths, refusal)
            if split == "dev" and self.most_scored:
                rows[split] = self.first(rows[split], self.most_scored)
        return self, rows

    def featurize(self, rows, tokenizer: TextTokenizer, max_seq_length):
        length, most = max_seq_length, self.max_predictions_per_seq
        sizes = {
            **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), length),
            **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), most),
            LABELS: 1,
        }
        form = {
            name: tf.io.FixedLenFeature([size], tf.int64)
            for name, size in sizes.items()
        }
        form["masked_lm_weights"] = tf.io.FixedLenFeature([most], tf.float32)
        progress = Progress("read", len(rows), "rows")
        chunks: list[dict[str, np.ndarray]] = []
        records = iter(rows)
        while chunk := list(itertools.islice(records, PARSED)):
            chunks.append(self._parse(chunk, form, rows, tokenizer))
            progress.update(len(chunk))
        progress.close()
        joined = {
            name: np.concatenate([chunk[name] for chunk in chunks])
            for name in chunks[0]
        }
        lengths = joined.pop("lengths")
        return MaskedPairs(
            joined.pop("tokens"),
            joined.pop("segments"),
            np.concatenate([[0], np.cumsum(lengths)]),
            joined,
        )

    def _parse(
        self,
        records: list[bytes],
        form: Mapping[str, Any],
        rows: Counted,
        tokenizer: TextTokenizer,
    ) -> dict[str, np.ndarray]:
        source = ", ".join(rows.source)
        try:
            columns = tf.io.parse_example(records, form)
        except tf.errors.InvalidArgumentError as error:
            raise UserError(
                f"{source}: a record is no row of create_pretraining_data.py "
                "with this --max_seq_length and --max_predictions_per_seq: "
                f"{first_line(error)}"
            ) from error
        values = {name: value.numpy() for name, value in columns.items()}
        is_token = values["input_mask"] > 0
        lengths = is_token.sum(axis=1)
        ids, places = values["masked_lm_ids"], values["masked_lm_positions"]
        is_masked = values["masked_lm_weights"] > 0
        is_whole = np.arange(is_token.shape[1]) < lengths[:, np.newaxis]
        if (
            not np.array_equal(is_token, is_whole)
            or np.any(is_masked & (places >= lengths[:, np.newaxis]))
            or min(map(np.min, (values["input_ids"], ids, places))) < 0
            or not lengths.all()
            or not {*np.unique(values["segment_ids"])} <= {0, 1}
            or not {*np.unique(values[LABELS])} <= {0, 1}
        ):
            raise UserError(
                f"{source}: expected rows as create_pretraining_data.py writes "
                "them"
            )
        greatest = max(values["input_ids"].max(), ids.max())
        if greatest >= tokenizer.vocab_size:
            raise UserError(
                f"{source}: expected ids below {tokenizer.vocab_size}, the "
                f"size of the vocabulary, found {greatest}; take rows that "
                "were made with this --vocab_file"
            )
        return {
            "tokens": values["input_ids"][is_token].astype(np.int32),
            # The rows' maker may not know that the model has one segment.
            "segments": values["segment_ids"][is_token].astype(np.uint8)
            * np.uint8(tokenizer.second_segment),
            "lengths": lengths,
            "masked_positions": places.astype(np.int32),
            "masked_ids": np.where(is_masked, ids, NO_TOKEN).astype(np.int32),
            LABELS: values[LABELS][:, 0].astype(np.int32),
        }

    def build_head(self, config, create):
        return PretrainingHead(config, create)

    def evaluate(self, rows, features, predictions):
        """Accuracies and mean cross entropies in nats; `loss` is their sum.

        Those of masked tokens are 0 without any, as BERT has them.
        """
        is_masked = predictions["is_masked"] > 0
        count = max(1, np.count_nonzero(is_masked))
        masked = predictions["log_probabilities"][is_masked]
        following = predictions["next_log_probabilities"]
        losses = [
            -float(np.sum(masked, dtype=np.float64) / count),
            -float(np.mean(following, dtype=np.float64)),
        ]
        is_right = predictions["is_right"][is_masked]
        return {
            "masked_lm_accuracy": float(np.sum(is_right) / count),
            "masked_lm_loss": losses[0],
            "next_sentence_accuracy": float(
                np.mean(predictions["next_is_right"])
            ),
            "next_sentence_loss": losses[1],
            "loss": sum(losses),
        }
