"""Tagging of words: named entities and the like.

The first token of each word stands for it. A sentence that is too long makes
windows, `[CLS] words [SEP]`, that overlap by half; each word is tagged in the
window where it has most context. Entities are scored by seqeval, which reads
tags as conlleval: an entity is right if its words and its type are.
"""

import array
import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert.bert import functional
from adapter_bert.bert.hooks import dropout
from adapter_bert.data.input_pipeline import NO_LABEL, Features
from adapter_bert.data.tables import (
    NONE_NAMED,
    SplitFiles,
    ending_of,
    list_labels,
    shown,
    warn_of_lookalikes,
)
from adapter_bert.data.tokenization import TextTokenizer, in_chunks
from adapter_bert.errors import UserError
from adapter_bert.flags import declared
from adapter_bert.tasks import kinds, metrics
from adapter_bert.tasks.tagging_files import (
    APART,
    BIO,
    FORMATS,
    IO,
    NO_ENTITY,
    OUTSIDE,
    Sentences,
    Tag,
    WordColumns,
    answer_of,
    are_apart,
    find_entities,
    find_scheme,
    map_types,
    read_map,
    read_sentences,
    split_tag,
    to_bio,
    write_tags,
)
from adapter_bert.tasks.task import (
    Head,
    SplitNames,
    Task,
    results_path,
    with_suffix,
    write_table,
)
from adapter_bert.tasks.text_task import SPANS, HeadShape, HiddenLayers


@dataclasses.dataclass(frozen=True)
class SentenceWindows(Features):
    """Features whose rows are windows, in the order of their sentences.

    Attributes:
        places: int64 [words], where in `tokens` the first token of each word
            is, in the window that tags it; -1 of a word in no window.
        token_labels: at these places the numbers of the words' tags.
        cut_rows: how many sentences hold a word that no window holds.
    """

    places: np.ndarray
    token_labels: Optional[np.ndarray] = None
    cut_rows: int = 0

    def at_words(self, outputs: np.ndarray) -> np.ndarray:
        """Takes words' outputs: [rows, T, ...] -> [words, ...]; else zeros."""
        values = np.zeros((len(self.places), *outputs.shape[2:]), outputs.dtype)
        is_shown = self.places >= 0
        places = self.places[is_shown]
        rows = np.searchsorted(self.starts, places, side="right") - 1
        values[is_shown] = outputs[rows, places - self.starts[rows]]
        return values


class Window(NamedTuple):
    """Words of a sentence from `first` up to `last`.

    Those from `first_tagged` up to `last_tagged` are tagged in it.
    """

    first: int
    last: int
    first_tagged: int
    last_tagged: int


def cut_sentences(
    rows: Sentences,
    labels: Optional[np.ndarray],
    tokenizer: TextTokenizer,
    max_seq_length: int,
) -> SentenceWindows:
    """Makes the windows, of `max_seq_length` tokens, of all sentences.

    Words without tokens, as control characters, or of more than a window holds
    are in no window. A warning counts them. `labels` are int32 [words], the
    numbers of tags, or None.
    """
    room = max_seq_length - 2
    unique = dict.fromkeys(rows.words)
    pieces = dict(zip(unique, in_chunks(tokenizer.encode_words, unique)))
    tokens, starts = array.array("i"), array.array("q", [0])
    places = np.full(len(rows.words), -1, np.int64)
    too_long = cut_rows = 0
    for first, last in zip(rows.starts.tolist(), rows.starts[1:].tolist()):
        words, of_words, longer = [], [], 0
        for word in range(first, last):
            word_pieces = pieces[rows.words[word]]
            longer += len(word_pieces) > room
            if 0 < len(word_pieces) <= room:
                words.append(word)
                of_words.append(word_pieces)
        too_long += longer
        cut_rows += longer > 0
        for window in cut(list(map(len, of_words)), room):
            tokens.append(tokenizer.classify_id)
            for number in range(window.first, window.last):
                if window.first_tagged <= number < window.last_tagged:
                    places[words[number]] = len(tokens)
                tokens.extend(of_words[number])
            tokens.append(tokenizer.separate_id)
            starts.append(len(tokens))
    lost = places < 0
    if lost.any():
        logging.warning(
            "%s%d of %d words are tagged O unseen: %d have no token, %d have "
            "more than the %d that a window holds (--max_seq_length)",
            rows.path and f"{rows.path}: ",
            lost.sum(),
            len(places),
            lost.sum() - too_long,
            too_long,
            room,
        )
    token_labels = None
    if labels is not None:
        token_labels = np.full(len(tokens), NO_LABEL, np.int32)
        token_labels[places[~lost]] = labels[~lost]
    return SentenceWindows(
        tokens=np.array(tokens, np.int32),
        segments=np.zeros(len(tokens), np.uint8),
        starts=np.array(starts, np.int64),
        labels={},
        places=places,
        token_labels=token_labels,
        cut_rows=cut_rows,
    )


def cut(lengths: Sequence[int], room: int) -> Iterator[Window]:
    """Cuts a sentence into windows, by its words' tokens, 1 to `room` each.

    A window takes as many whole words as fit in `room`. The next one begins
    half a room later. The last one is as full as the others. A word is tagged
    in the window in which the lesser of the tokens before it and behind it is
    greatest, in the first of equal ones.

    Source: google-research/bert, `run_squad.py`, `_check_is_max_context`.
    """
    if lengths and sum(lengths) <= room:
        yield Window(0, len(lengths), 0, len(lengths))
        return
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    windows = list(_spans(ends, room))
    first_tagged = 0
    for number, (first, last) in enumerate(windows):
        last_tagged = last
        if number + 1 < len(windows):
            # Word by word, the context behind shrinks in this window and the
            # context before grows in the next: better from some word on.
            start, _ = windows[number + 1]
            behind = ends[last] - ends[start + 1 : last + 1]
            before = ends[start:last] - ends[start]
            last_tagged = start + int(np.sum(behind >= before))
        if first_tagged < last_tagged:
            yield Window(first, last, first_tagged, last_tagged)
            first_tagged = last_tagged


def _spans(ends: np.ndarray, room: int) -> Iterator[tuple[int, int]]:
    count, first = len(ends) - 1, 0
    while first < count:
        last = int(np.searchsorted(ends, ends[first] + room, "right")) - 1
        yield first, last
        if last == count:
            return
        # The next window has more at its end than this one, and begins half a
        # room later. The last one begins where all that is left fits.
        longer, later, rest = np.searchsorted(
            ends,
            [ends[last + 1] - room, ends[first] + room // 2, ends[-1] - room],
        ).tolist()
        first = min(max(longer, later), last, rest)


# Tags in BIO of the words of each sentence.
TaggedSentences = Sequence[Sequence[Tag]]


def entity_scores(
    right: TaggedSentences, predicted: TaggedSentences
) -> dict[str, float]:
    """`f1`, `precision` and `recall` over all entities, 0 to 1."""
    precision, recall, f1, _ = _measure(right, predicted, "micro")
    return {"f1": f1, "precision": precision, "recall": recall}


def type_scores(
    right: TaggedSentences, predicted: TaggedSentences
) -> list[tuple[str, int, int, float, float, float]]:
    """Lists (type, entities, predicted ones, precision, recall, F1).

    Scores are 0 to 1, and 0 where undefined.
    """
    # Each entity has one `B`.
    counts, predicted_counts = (
        collections.Counter(
            tag.type for tags in sentences for tag in tags if tag.prefix == "B"
        )
        for sentences in (right, predicted)
    )
    types = sorted({*counts, *predicted_counts})
    *scores, _ = _measure(right, predicted, None) if types else [()]
    return [
        (name, counts[name], predicted_counts[name], *map(float, of_type))
        for name, *of_type in zip(types, *scores)
    ]


def _measure(right: TaggedSentences, predicted: TaggedSentences, average):
    # Loads scikit-learn, which takes as long as several steps of training.
    from seqeval.metrics.sequence_labeling import (
        precision_recall_fscore_support,
    )

    return precision_recall_fscore_support(
        [list(map(str, tags)) for tags in right],
        [list(map(str, tags)) for tags in predicted],
        average=average,
        zero_division=0,
    )


NAME = kinds.TAGGING
# Letters of a word that is perhaps a sentence.
LONG = 60


class TaggingHead(Head):
    """A logit of each tag for every token.

    Parameters: C D + C, and those of `HiddenLayers`. Source: Devlin et al.
    2019, section 5.3; Hugging Face's `BertForTokenClassification`.
    """

    needs_pooler = False

    def __init__(self, tags, config, create, shape=SPANS):
        """Creates `output_weights` [C, D] and `output_bias` [C]."""
        self.hidden = HiddenLayers(shape, "", config.hidden_size, create)
        self.create_last(tags, config, create)

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"logits": float32 [B, T, C]}."""
        read = dropout(sequence_output, 0.1, "head", context)
        read = self.hidden(read, context)
        return {
            "logits": tf.einsum("btd,cd->btc", read, self.weights) + self.bias
        }

    def loss(self, predictions, features):
        """Cross entropy in nats of each row's labelled tokens, float32 [B].

        Weighted sums, whose mean over a batch's rows is the mean over its
        labelled tokens (`input_pipeline.token_weights`).
        """
        labels = features["token_labels"]
        losses = functional.cross_entropy(
            predictions["logits"], tf.maximum(labels, 0)
        )
        # An Estimator's graph would compare the objects by `==`.
        losses = tf.where(tf.equal(labels, NO_LABEL), 0.0, losses)
        return tf.reduce_sum(losses, axis=1) * features["token_weights"]


class Tagged(NamedTuple):
    """Tags of all words, in BIO, and logits, 0 of words in no window."""

    tags: list[Tag]
    # float32 [words, C]
    logits: np.ndarray


@dataclasses.dataclass(frozen=True)
class Tagging(Task[Sentences]):
    """Tags for words.

    `type_map` has (old type, new type or `O`) of `--map_tags`, from map_source.
    `tags` are in the order of the logits, None for those of the training file:
    `O`, then `B-` and `I-` of each type in order. `apart` is of `cut_words`,
    None for what the training file does.
    """

    name: str = NAME
    words_and_tags: WordColumns = WordColumns()
    type_map: tuple[tuple[str, str], ...] = ()
    map_source: str = ""
    eval_split: str = "dev"
    tags: Optional[tuple[Tag, ...]] = None
    split_files: SplitFiles = NONE_NAMED
    head: HeadShape = SPANS
    apart: Optional[bool] = None

    kind = kinds.KINDS[kinds.TAGGING]
    endings = FORMATS
    columns = ("tokens",)
    takes_tokens = True

    @classmethod
    def from_settings(cls, recorded, settings, source):
        return cls(words_and_tags=WordColumns(**recorded(WordColumns)))

    @property
    def reading(self):
        return "words", bool(self.apart)

    @property
    def dev_splits(self) -> SplitNames:
        return (("", self.eval_split),)

    def describe(self):
        facts = {
            "tags": list(map(str, self.tags or ())),
            "map_tags": dict(self.type_map),
            APART: bool(self.apart),
            **self.head.describe(SPANS),
        }
        return {name: fact for name, fact in facts.items() if fact}

    def restore(self, description, source):
        self.check_name(description, source)
        trained = f"{source} was trained on the task {self.name}"
        names = description.get("tags")
        names = list(map(str, names)) if isinstance(names, list) else []
        tags = tuple(map(split_tag, names))
        has_each_once = len(set(tags)) == len(tags) and NO_ENTITY in tags
        if None in tags or not has_each_once or {t[0] for t in tags} - {*"BIO"}:
            raise UserError(
                f"{trained} with the tags {', '.join(names)[:200]}; expected "
                f"those of {BIO}, O among them, each once"
            )
        head = HeadShape.restore(description, source, SPANS)
        apart = description.get(APART) is True
        return dataclasses.replace(self, tags=tags, head=head, apart=apart)

    def go_on(self, description, source):
        """Keeps the run's rule of words; older ones cut at blanks alone."""
        if "tags" not in description:
            return self
        return dataclasses.replace(self, apart=description.get(APART) is True)

    @property
    def head_kind(self):
        return type(self), self.head

    @property
    def settings(self):
        columns = {
            flag: getattr(self.words_and_tags, field.name)
            for flag, _, field in declared([WordColumns])
        }
        return {flag: value for flag, value in columns.items() if value}

    @property
    def score_names(self):
        return "f1", "precision", "recall", "token_accuracy", "loss"

    def make_rows(self, texts):
        return Sentences.of_words([x for (x,) in texts], self.apart)

    def read(self, data_dir, splits):
        """Reads named files, or `<data_dir>/<split>.conll` or `.jsonl`.

        Files for training and scoring must have tags of one scheme each.
        """
        scored = {"train", self.eval_split}
        names = list(splits)
        if self.tags is None and "train" not in names:
            self.check_has_training_file(data_dir, "tags")
            names.insert(0, "train")
        rows: dict[str, Sentences] = {}
        task = self
        # The training file says how others' texts are cut into words.
        for split in sorted(names, key=lambda name: name != "train"):
            path = self.find(data_dir, split)
            is_test = split in dict(self.test_splits).values()
            options = self.words_and_tags, split in scored, is_test
            apart = task.apart is not False
            rows[split] = read_sentences(path, *options, apart)
            _warn_of_long_words(rows[split])
            if split in scored:
                rows[split] = self._to_bio(rows[split])
            if task.tags is None:
                task = self._complete(rows[split])
        for split in scored & set(rows):
            task._check_types(rows[split])
        return task, {split: rows[split] for split in splits}

    def _to_bio(self, rows: Sentences) -> Sentences:
        scheme = find_scheme(rows)
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
        types = _types_of(train.tags)
        if not types:
            raise UserError(
                f"{train.path} has no entity: every tag is {OUTSIDE}; is it "
                "the right --tag_column?"
            )
        warn_of_lookalikes(types, train.path)
        prefixes = "B" if train.columns.tags_words(train.path) else "BI"
        tags = [Tag(prefix, name) for name in types for prefix in prefixes]
        apart = self.apart
        if apart is None:
            apart = bool(train.texts) or are_apart(train.words)
        return dataclasses.replace(self, tags=(NO_ENTITY, *tags), apart=apart)

    def _check_types(self, rows: Sentences) -> None:
        tags = set(self.tags)
        for number, tag in enumerate(rows.tags):
            if tag not in tags:
                what, value, names = "type", tag.type, _types_of(tags)
                if value in names:
                    what, value, names = "tag", str(tag), map(str, self.tags)
                raise UserError(
                    f"{rows.where(number)}: unknown {what} {value!r}, "
                    f"expected one of {list_labels(names)}"
                    + ("" if self.type_map else " (see --map_tags)")
                )

    def summarize(self, rows):
        counts = collections.Counter(
            tag.type for tag in rows.tags or () if tag.prefix == "B"
        )
        names = shown(counts)
        entities = (f"{names[n]} {x:,}" for n, x in counts.most_common())
        return ", ".join([f"{len(rows.lines):,} words", *entities])[:500]

    def featurize(self, rows, tokenizer: TextTokenizer, max_seq_length):
        labels = None if rows.tags is None else self._numbers(rows.tags)
        return cut_sentences(rows, labels, tokenizer, max_seq_length)

    def _numbers(self, tags: list[Tag]) -> np.ndarray:
        """int32 [words], places in the task's tags."""
        numbers = {tag: number for number, tag in enumerate(self.tags)}
        return np.array([numbers[tag] for tag in tags], np.int32)

    def keep(self, rows):
        return dataclasses.replace(rows, words=())

    def build_head(self, config, create):
        return TaggingHead(len(self.tags), config, create, self.head)

    def decode(self, rows, features: SentenceWindows, outputs) -> Tagged:
        logits = np.zeros((len(features.places), len(self.tags)), np.float32)
        if outputs:
            logits = features.at_words(outputs["logits"])
        chosen = logits.argmax(axis=-1)
        chosen[features.places < 0] = self.tags.index(NO_ENTITY)
        tags = [self.tags[number] for number in chosen.tolist()]
        return Tagged(to_bio(tags, rows.starts), logits)

    def evaluate(self, rows, features, predictions):
        scores = entity_scores(*_by_sentence(rows, predictions))
        right = [a == b for a, b in zip(rows.tags, predictions.tags)]
        # Of sentences that all are empty there is no share.
        scores["token_accuracy"] = float(np.mean(right)) if right else 0.0
        is_shown = features.places >= 0
        if is_shown.any():
            losses = metrics.cross_entropy(
                predictions.logits[is_shown], self._numbers(rows.tags)[is_shown]
            )
            scores["loss"] = float(losses.mean())
        return scores

    def write_report(self, output_dir, rows, features, predictions, suffix=""):
        lines = ["type entities predicted precision recall f1".split()]
        scores_of_types = type_scores(*_by_sentence(rows, predictions))
        for name, count, predicted, *scores in scores_of_types:
            shares = (f"{share:.4f}" for share in scores)
            lines.append([name, str(count), str(predicted), *shares])
        path = results_path(output_dir, "eval_types", suffix)
        return (write_table(path, lines),)

    def answer(self, rows, predictions) -> list[dict[str, Any]]:
        scores = np.exp(metrics.log_softmax(predictions.logits)).max(axis=-1)
        columns = rows.words, predictions.tags, rows.places, scores
        answers = []
        for text, words, tags, places, of_words in zip(
            rows.texts, *map(rows.divide, columns)
        ):
            spans = []
            for entity in find_entities(tags):
                start, end = places[[entity.start, entity.end - 1], [0, 1]]
                score = of_words[entity.start : entity.end].mean()
                span = int(start), int(end), text[start:end], float(score)
                spans.append(span)
            answers.append(answer_of(words, tags, spans))
        return answers

    @property
    def client_facts(self):
        facts = {"types": _types_of(self.tags)}
        return {**facts, APART: True} if self.apart else facts

    def runtime_outputs(self, outputs, rows):
        return {"scores": tf.nn.softmax(outputs["logits"])}

    def write_predictions(self, output_dir, rows, predictions, suffix=""):
        ending = ending_of(rows.path)
        # Of an array a line is written for each row.
        ending = ".jsonl" if ending == ".json" else ending
        name = with_suffix("test_predictions", suffix) + ending
        path = os.path.join(output_dir, name)
        write_tags(path, rows, list(map(str, predictions.tags)))
        return (path,)


def _types_of(tags: Iterable[Tag]) -> list[str]:
    return sorted({tag.type for tag in tags} - {""})


def _warn_of_long_words(rows: Sentences) -> None:
    """Warns of sentences that are not divided into words, as Chinese ones."""
    alone = int(np.sum(np.diff(rows.starts) == 1))
    long = [w for w in rows.words if sum(map(str.isalpha, w)) >= LONG]
    if alone > len(rows) / 2 or long:
        logging.warning(
            "%s: %d of %d sentences are one word, %d words have %d letters or "
            "more%s; if these are sentences without blanks, divide them into "
            "words, since each word gets one tag",
            rows.path,
            alone,
            len(rows),
            len(long),
            LONG,
            f", as {long[0][:40]!r}" if long else "",
        )


def _by_sentence(
    rows: Sentences, predictions: Tagged
) -> tuple[TaggedSentences, TaggedSentences]:
    return tuple(
        list(rows.divide(tags)) for tags in (rows.tags, predictions.tags)
    )


def tagging_task(
    columns: WordColumns = Tagging.words_and_tags,
    map_tags: str = "",
    eval_split: str = "dev",
    split_files: SplitFiles = NONE_NAMED,
) -> Tagging:
    """Makes a task over `train`, `dev` and `test` as .conll or .jsonl."""
    if split_files.named and eval_split != "dev":
        raise UserError(
            f"--eval_split={eval_split} is for --data_dir; --eval_file names "
            "the file to score"
        )
    table: Mapping[str, str] = read_map(map_tags) if map_tags else {}
    return Tagging(
        words_and_tags=columns,
        type_map=tuple(sorted(table.items())),
        map_source=map_tags,
        eval_split=eval_split,
        split_files=split_files,
    )
