"""Tagging of words: named entities and the like."""

import collections
import dataclasses
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf
from absl import logging

import metrics
import modeling
from bert.hooks import dropout
from errors import UserError
from input_pipeline import NO_LABEL
from storage import files
from tasks.base import Head, SplitNames, Task, results_path
from tasks.label_sets import list_labels, shown, warn_of_lookalikes
from tasks.split_files import NONE_NAMED, SplitFiles, ending_of
from tasks.tag_schemes import (
    BIO,
    IO,
    OUTSIDE,
    Tag,
    find_entities,
    find_scheme,
    split_tag,
    to_bio,
)
from tasks.tagging_files import (
    FORMATS,
    Columns,
    Sentences,
    map_types,
    read_map,
    read_sentences,
    write_tags,
)
from tasks.tagging_scores import entity_scores, type_scores
from tasks.tagging_windows import SentenceWindows, cut_sentences
from tokenization import TextTokenizer

NAME = "tagging"


class TaggingHead(Head):
    """A logit of each tag for every token.

    Parameters: C D + C. Source: Devlin et al. 2019, section 5.3; the loss is
    that of Hugging Face's `BertForTokenClassification`.
    """

    needs_pooler = False

    def __init__(
        self,
        tags: int,
        config: modeling.BertConfig,
        create: modeling.CreateVariable,
    ):
        """Creates `output_weights` [C, D] and `output_bias` [C]."""
        self.weights = create(
            "output_weights",
            (tags, config.hidden_size),
            modeling.truncated_normal(0.02),
        )
        self.bias = create("output_bias", (tags,), modeling.zeros)

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"logits": float32 [B, T, C]}."""
        read = dropout(sequence_output, 0.1, "head", context)
        return {
            "logits": tf.einsum("btd,cd->btc", read, self.weights) + self.bias
        }

    def loss(self, predictions, features):
        """Cross entropy in nats of each row's labelled tokens, float32 [B].

        Their sum, weighted so that the mean over the rows of a batch is that
        over all of its labelled tokens (`input_pipeline.make_batch`).
        """
        labels = features["token_labels"]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.maximum(labels, 0), logits=predictions["logits"]
        )
        # An Estimator's graph would compare the objects by `==`.
        losses = tf.where(tf.equal(labels, NO_LABEL), 0.0, losses)
        return tf.reduce_sum(losses, axis=1) * features["token_weights"]


class Tagged(NamedTuple):
    """What was decoded of sentences.

    Attributes:
        tags: of all words, in BIO.
        logits: float32 [words, C]; zeros of words in no window.
    """

    tags: List[Tag]
    logits: np.ndarray


@dataclasses.dataclass(frozen=True)
class Tagging(Task[Sentences]):
    """Tags for words.

    Attributes:
        words_and_tags: where files keep them.
        type_map: (old type, new type or `O`) of `--map_tags`; empty for none.
        map_source: the file of that, for messages.
        eval_split: the split that is scored.
        tags: in the order of the logits; None to take those of the training
            file: `O`, then `B-` and `I-` of each type in order.
        split_files: files of splits that were named one by one.
    """

    words_and_tags: Columns = Columns()
    type_map: Tuple[Tuple[str, str], ...] = ()
    map_source: str = ""
    eval_split: str = "dev"
    tags: Optional[Tuple[Tag, ...]] = None
    split_files: SplitFiles = NONE_NAMED

    columns = ("tokens",)
    takes_tokens = True

    @property
    def dev_splits(self) -> SplitNames:
        """The one that is scored."""
        return (("", self.eval_split),)

    def describe(self):
        """The tags in the logits' order, and what types were renamed."""
        found: Dict[str, Any] = {}
        if self.tags is not None:
            found["tags"] = list(map(str, self.tags))
        if self.type_map:
            found["map_tags"] = dict(self.type_map)
        return found

    def restore(self, description, source):
        """This task, with the tags of a trained head."""
        trained = f"{source} was trained on the task {description['name']}"
        if description["name"] != self.name:
            raise UserError(f"{trained}, not on {self.name}")
        found = description.get("tags")
        if not isinstance(found, list) or not all(
            isinstance(text, str) for text in found
        ):
            raise UserError(f"{trained}, without a list of tags")
        tags = tuple(map(split_tag, found))
        if (
            None in tags
            or len(set(tags)) < len(tags)
            or Tag(OUTSIDE, "") not in tags
            or {tag.prefix for tag in tags} - set("BIO")
        ):
            raise UserError(
                f"{trained} with the tags {', '.join(found)[:200]}; expected "
                f"those of {BIO}, O among them, each once"
            )
        return dataclasses.replace(self, tags=tags)

    @property
    def settings(self):
        """The columns that were named."""
        named = dataclasses.asdict(self.words_and_tags).items()
        return {f"{name}_column": value for name, value in named if value}

    @property
    def reading(self):
        """All alike."""
        return "words"

    @property
    def score_names(self):
        """Those of entities, then of words."""
        return "f1", "precision", "recall", "token_accuracy", "loss"

    def first(self, rows, count):
        """The first sentences."""
        return rows.first(count)

    def make_rows(self, texts):
        """Sentences of texts, split at white space, or of lists of words."""
        return Sentences.of_words(
            [
                text.split() if isinstance(text, str) else text
                for (text,) in texts
            ]
        )

    @property
    def named_train_file(self):
        """That of `split_files`."""
        return self.split_files.train

    def check_files(self, data_dir, splits):
        """Looks for the files."""
        for split in splits:
            self.split_files.find(data_dir, split, FORMATS)

    def read(self, data_dir, splits):
        """Reads files that were named, or those of the folder.

        The latter are `<data_dir>/<split>.conll` or `.jsonl`. The training and
        the dev file must have tags, each file of one scheme. Test files need
        none, and none that they have are looked at.
        """
        scored = {"train", self.eval_split}
        names = list(splits)
        if self.tags is None and "train" not in names:
            if not data_dir and not self.split_files.train:
                raise UserError(
                    f"the tags of the task {self.name} come from its data: "
                    "pass --train_file or --data_dir, or the --adapter of a "
                    "trained one"
                )
            names.insert(0, "train")
        rows: Dict[str, Sentences] = {}
        for split in names:
            rows[split] = read_sentences(
                self.split_files.find(data_dir, split, FORMATS),
                self.words_and_tags,
                needs_tags=split in scored,
                keeps_text=split in dict(self.test_splits).values(),
            )
            if split in scored:
                rows[split] = self._to_bio(rows[split])
        task = self
        if self.tags is None:
            task = self._complete(rows["train"])
        for split in scored & set(rows):
            task._check_types(rows[split])
        return task, {split: rows[split] for split in splits}

    def _to_bio(self, rows: Sentences) -> Sentences:
        """A file's tags in BIO, with the types that are wanted.

        Raises:
            UserError: they follow no scheme, or one has an unknown type.
        """
        scheme = find_scheme(rows.tags, rows.starts, rows.where)
        logging.info("%s: tags of the scheme %s", rows.path, scheme or BIO)
        if scheme == IO:
            logging.warning(
                "%s: its types have no prefixes, so words of one type that "
                "touch are one entity",
                rows.path,
            )
        rows = dataclasses.replace(rows, tags=to_bio(rows.tags, rows.starts))
        if self.type_map:
            rows = map_types(rows, dict(self.type_map), self.map_source)
        return rows

    def _complete(self, train: Sentences) -> "Tagging":
        """This task, with the tags of the training file's types."""
        types = sorted({tag.type for tag in train.tags} - {""})
        if not types:
            raise UserError(
                f"{train.path} has no entity: every tag is {OUTSIDE}; is it "
                "the right --tag_column?"
            )
        warn_of_lookalikes(types, train.path)
        tags = [Tag(prefix, name) for name in types for prefix in "BI"]
        return dataclasses.replace(self, tags=(Tag(OUTSIDE, ""), *tags))

    def _check_types(self, rows: Sentences) -> None:
        """Checks that the head knows all types.

        Raises:
            UserError: one is new.
        """
        known = set(self.tags)
        for number, tag in enumerate(rows.tags):
            if tag not in known:
                types = sorted({t.type for t in self.tags} - {""})
                raise UserError(
                    f"{rows.where(number)}: unknown type {tag.type!r}, "
                    f"expected one of {list_labels(types)}"
                    + ("" if self.type_map else " (see --map_tags)")
                )

    def summarize(self, rows):
        """How many words there are, and entities of each type."""
        counts = collections.Counter(
            tag.type for tag in rows.tags or () if tag.prefix == "B"
        )
        names = shown(counts)
        entities = (f"{names[n]} {x:,}" for n, x in counts.most_common())
        return ", ".join([f"{len(rows.lines):,} words", *entities])[:500]

    def featurize(self, rows, tokenizer: TextTokenizer, max_seq_length):
        """Windows of `[CLS] words [SEP]`, and the labels of their words."""
        labels = None
        if rows.tags is not None:
            labels = self._numbers(rows.tags)
        return cut_sentences(rows, labels, tokenizer, max_seq_length)

    def _numbers(self, tags: List[Tag]) -> np.ndarray:
        """int32 [words], places in the task's tags."""
        numbers = {tag: number for number, tag in enumerate(self.tags)}
        return np.array([numbers[tag] for tag in tags], np.int32)

    def count_train_steps(self, features: SentenceWindows, batch_size, epochs):
        """Steps of a training, counted in windows."""
        if not len(features):
            raise UserError(
                "the training file holds nothing to learn from: no word of it "
                "is in a window"
            )
        return super().count_train_steps(features, batch_size, epochs)

    def keep(self, rows):
        """Tags to score, and lines to write predictions into."""
        return dataclasses.replace(rows, words=())

    def build_head(self, config, create):
        """One logit for each tag."""
        return TaggingHead(len(self.tags), config, create)

    def decode(self, rows, features: SentenceWindows, outputs) -> Tagged:
        """The likeliest tags, `O` of words that no window holds.

        An `I-` that continues no entity of its type begins one, `B-`, as
        conlleval reads it.
        """
        logits = np.zeros((len(features.places), len(self.tags)), np.float32)
        if outputs:
            logits = features.at_words(outputs["logits"])
        chosen = logits.argmax(axis=-1)
        chosen[features.places < 0] = self.tags.index(Tag(OUTSIDE, ""))
        tags = [self.tags[number] for number in chosen.tolist()]
        return Tagged(to_bio(tags, rows.starts), logits)

    def evaluate(
        self,
        rows: Sentences,
        features: SentenceWindows,
        predictions: Tagged,
    ) -> Dict[str, float]:
        """Scores of entities, share of right tags, cross entropy in nats.

        The last one is the mean over the words that a window holds.
        """
        scores = entity_scores(
            list(rows.divide(rows.tags)), list(rows.divide(predictions.tags))
        )
        right = [a == b for a, b in zip(rows.tags, predictions.tags)]
        # Of sentences that all are empty there is no share.
        scores["token_accuracy"] = float(np.mean(right)) if right else 0.0
        known = features.places >= 0
        if known.any():
            losses = metrics.cross_entropy(
                predictions.logits[known], self._numbers(rows.tags)[known]
            )
            scores["loss"] = float(losses.mean())
        return scores

    def write_report(self, output_dir, rows, features, predictions, suffix=""):
        """Writes `eval_types.tsv`: precision, recall and F1 of each type."""
        lines = ["type\tentities\tpredicted\tprecision\trecall\tf1"]
        for scores in type_scores(
            list(rows.divide(rows.tags)), list(rows.divide(predictions.tags))
        ):
            name, entities, predicted, *shares = scores
            shown = "\t".join(f"{share:.4f}" for share in shares)
            lines.append(f"{name}\t{entities}\t{predicted}\t{shown}")
        path = results_path(output_dir, "eval_types", suffix)
        files.write_text(path, "\n".join(lines) + "\n")
        return (path,)

    def answer(self, rows, predictions) -> List[Dict[str, Any]]:
        """`tokens`, their `tags`, and `entities`.

        Of each entity `type`, `start` and `end`, its first word's number and
        one past the last one's, and `text`, its words with spaces between.
        """
        return [
            _answer(list(words), tags)
            for words, tags in zip(
                rows.divide(rows.words), rows.divide(predictions.tags)
            )
        ]

    def write_predictions(self, output_dir, rows, predictions, suffix=""):
        """Writes the test file again with the predicted tags in BIO.

        `test_predictions.conll` or `.jsonl`, as the test file is.
        """
        name = "_".join(filter(None, ["test_predictions", suffix]))
        path = os.path.join(output_dir, name + ending_of(rows.path))
        write_tags(path, rows, list(map(str, predictions.tags)))
        return (path,)


def _answer(words: List[str], tags: List[Tag]) -> Dict[str, Any]:
    return {
        "tokens": words,
        "tags": list(map(str, tags)),
        "entities": [
            {
                **entity._asdict(),
                "text": " ".join(words[entity.start : entity.end]),
            }
            for entity in find_entities(tags)
        ],
    }


def tagging_task(
    token_column: Optional[str] = None,
    tag_column: Optional[str] = None,
    map_tags: str = "",
    eval_split: str = "dev",
    split_files: SplitFiles = NONE_NAMED,
) -> Tagging:
    """A task over `train`, `dev` and `test` as .conll or .jsonl.

    Args:
        token_column: as `Columns.token`.
        tag_column: as `Columns.tag`.
        map_tags: file of `read_map`, or "".
        eval_split: the split that is scored, `dev` or `test`.
        split_files: files of splits that were named one by one.

    Raises:
        UserError: as `read_map`; or a file is named, and the split that is
            scored is not `dev`.
    """
    if split_files.named and eval_split != "dev":
        raise UserError(
            f"--eval_split={eval_split} is for --data_dir; --eval_file names "
            "the file to score"
        )
    table: Mapping[str, str] = read_map(map_tags) if map_tags else {}
    return Tagging(
        NAME,
        words_and_tags=Columns(token_column, tag_column),
        type_map=tuple(sorted(table.items())),
        map_source=map_tags,
        eval_split=eval_split,
        split_files=split_files,
    )
