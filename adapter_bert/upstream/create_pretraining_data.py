"""Names of google-research/bert's `create_pretraining_data.py`.

Random numbers are drawn in the order of the published program, so equal seeds
make equal instances. `do_whole_word_mask`, a flag there, is an argument here.
"""

import collections
import contextlib
import dataclasses

import tensorflow as tf

from adapter_bert.data.tokenization import CLASSIFY, SEPARATE
from adapter_bert.upstream import records, tokenization
from adapter_bert.upstream.records import create_int_feature

MASK = "[MASK]"
# Shares of masked tokens. Source: Devlin et al. 2019, section 3.1.
MASKED_SHARE, KEPT_SHARE_OF_OTHERS = 0.8, 0.5
# Share of pairs whose second text is random.
RANDOM_NEXT_SHARE = 0.5
# How often another document is drawn, until it is another one.
DRAWS = 10
# An instance is told of in the log, of so many first ones.
SHOWN = 20

MaskedLmInstance = collections.namedtuple(
    "MaskedLmInstance", ["index", "label"]
)


@dataclasses.dataclass(eq=False, repr=False)
class TrainingInstance:
    """Holds `[CLS] a [SEP] b [SEP]`, masked, and the tokens that were there.

    `is_random_next` says that b is from another place.
    """

    tokens: list[str]
    segment_ids: list[int]
    masked_lm_positions: list[int]
    masked_lm_labels: list[str]
    is_random_next: bool

    def __str__(self):
        text = ""
        for name in (
            "tokens",
            "segment_ids",
            "is_random_next",
            "masked_lm_positions",
            "masked_lm_labels",
        ):
            value = getattr(self, name)
            if isinstance(value, list):
                value = " ".join(map(str, value))
            text += f"{name}: {value}\n"
        return text + "\n"

    __repr__ = __str__


def create_training_instances(
    input_files,
    tokenizer,
    max_seq_length,
    dupe_factor,
    short_seq_prob,
    masked_lm_prob,
    max_predictions_per_seq,
    rng,
    do_whole_word_mask=False,
):
    """Makes shuffled instances of files of raw text.

    A line holds a sentence; an empty line ends a document.
    """
    return make_instances(
        read_documents(_lines(input_files), tokenizer),
        tokenizer.vocab,
        dupe_factor,
        rng,
        max_seq_length=max_seq_length,
        short_seq_prob=short_seq_prob,
        masked_lm_prob=masked_lm_prob,
        max_predictions_per_seq=max_predictions_per_seq,
        do_whole_word_mask=do_whole_word_mask,
    )


def make_instances(
    documents,
    vocab,
    dupe_factor,
    rng,
    **of_document,
):
    """Shuffles documents, and makes shuffled instances of them.

    `of_document` are arguments of `create_instances_from_document`.
    """
    rng.shuffle(documents)
    words = sorted(vocab, key=vocab.get)
    instances = []
    for _ in range(dupe_factor):
        for number in range(len(documents)):
            instances += create_instances_from_document(
                documents, number, vocab_words=words, rng=rng, **of_document
            )
    rng.shuffle(instances)
    return instances


def _lines(input_files):
    for path in input_files:
        with tf.io.gfile.GFile(path, "r") as file:
            yield from file


def read_documents(lines, tokenizer):
    """Divides lines into documents, without empty sentences and documents."""
    documents = [[]]
    for line in lines:
        text = tokenization.convert_to_unicode(line).strip()
        if not text:
            documents.append([])
        tokens = tokenizer.tokenize(text)
        if tokens:
            documents[-1].append(tokens)
    return [document for document in documents if document]


def create_instances_from_document(
    all_documents,
    document_index,
    max_seq_length,
    short_seq_prob,
    masked_lm_prob,
    max_predictions_per_seq,
    vocab_words,
    rng,
    do_whole_word_mask=False,
):
    """Makes the instances of one document.

    Sentences are gathered until they fill a row, or at `short_seq_prob` a
    shorter one. The first of them are a; b are the others, or as often
    sentences of another document. Then the others begin the next row.
    """
    document = all_documents[document_index]
    # [CLS], [SEP], [SEP]
    room = wanted = max_seq_length - 3
    if rng.random() < short_seq_prob:
        wanted = rng.randint(2, room)
    instances = []
    first = last = 0
    while last < len(document):
        last += 1
        chunk = document[first:last]
        if last < len(document) and sum(map(len, chunk)) < wanted:
            continue
        cut = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
        tokens_a = sum(chunk[:cut], [])
        is_random = len(chunk) == 1 or rng.random() < RANDOM_NEXT_SHARE
        if is_random:
            tokens_b = _random_text(
                all_documents, document_index, wanted - len(tokens_a), rng
            )
            last = first + cut
        else:
            tokens_b = sum(chunk[cut:], [])
        first = last
        truncate_seq_pair(tokens_a, tokens_b, room, rng)
        tokens = [CLASSIFY, *tokens_a, SEPARATE, *tokens_b, SEPARATE]
        segments = [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1)
        masked = create_masked_lm_predictions(
            tokens,
            masked_lm_prob,
            max_predictions_per_seq,
            vocab_words,
            rng,
            do_whole_word_mask,
        )
        tokens, positions, labels = masked
        instances.append(
            TrainingInstance(tokens, segments, positions, labels, is_random)
        )
    return instances


def _random_text(
    documents,
    excluded,
    wanted,
    rng,
):
    for _ in range(DRAWS):
        drawn = rng.randint(0, len(documents) - 1)
        if drawn != excluded:
            break
    document = documents[drawn]
    tokens = []
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        tokens += sentence
        if len(tokens) >= wanted:
            break
    return tokens


def create_masked_lm_predictions(
    tokens,
    masked_lm_prob,
    max_predictions_per_seq,
    vocab_words,
    rng,
    do_whole_word_mask=False,
):
    """Masks tokens: 80% become `[MASK]`, 10% any word, 10% stay.

    Whole words that exceed the number of predictions are passed over.

    Returns:
        The masked tokens; the places of the tokens to predict; these tokens.
    """
    words = []
    for place, token in enumerate(tokens):
        if token in (CLASSIFY, SEPARATE):
            continue
        if do_whole_word_mask and words and token.startswith("##"):
            words[-1].append(place)
        else:
            words.append([place])
    rng.shuffle(words)
    count = max(1, int(round(len(tokens) * masked_lm_prob)))
    count = min(max_predictions_per_seq, count)
    output, places = list(tokens), []
    for word in words:
        if len(places) >= count:
            break
        if len(places) + len(word) > count:
            continue
        for place in word:
            if rng.random() < MASKED_SHARE:
                output[place] = MASK
            elif rng.random() >= KEPT_SHARE_OF_OTHERS:
                number = rng.randint(0, len(vocab_words) - 1)
                output[place] = vocab_words[number]
        places += word
    places.sort()
    return output, places, [tokens[place] for place in places]


def truncate_seq_pair(
    tokens_a,
    tokens_b,
    max_num_tokens,
    rng,
):
    """Cuts two texts in place: the longer one, at its start or its end."""
    ends = [[0, len(tokens_a)], [0, len(tokens_b)]]
    counts = [end for _, end in ends]
    while sum(counts) > max_num_tokens:
        longer = int(counts[0] <= counts[1])
        at_end = rng.random() >= 0.5
        ends[longer][at_end] += -1 if at_end else 1
        counts[longer] -= 1
    for tokens, end in zip((tokens_a, tokens_b), ends):
        tokens[:] = tokens[slice(*end)]


def create_float_feature(values):
    """Numbers of an example, float32."""
    return tf.train.Feature(float_list=tf.train.FloatList(value=list(values)))


def make_example(
    instance,
    tokenizer,
    max_seq_length,
    max_predictions_per_seq,
):
    """Gives an instance as numbers, padded with zeros.

    `input_ids`, `input_mask`, `segment_ids` int64 [max_seq_length];
    `masked_lm_positions`, `masked_lm_ids` int64 [max_predictions_per_seq],
    `masked_lm_weights` float32 [max_predictions_per_seq], 1 for a token to
    predict; `next_sentence_labels` int64 [1], 1 for a random second text.
    """

    ids = tokenizer.convert_tokens_to_ids(instance.tokens)
    masked = tokenizer.convert_tokens_to_ids(instance.masked_lm_labels)
    by_token = records.pad(
        max_seq_length, ids, [1] * len(ids), instance.segment_ids
    )
    places, masked_ids, weights = records.pad(
        max_predictions_per_seq,
        instance.masked_lm_positions,
        masked,
        [1.0] * len(masked),
    )
    numbers = {
        **dict(zip(("input_ids", "input_mask", "segment_ids"), by_token)),
        "masked_lm_positions": places,
        "masked_lm_ids": masked_ids,
        "next_sentence_labels": [int(instance.is_random_next)],
    }
    return records.make_example(
        {
            **{k: create_int_feature(row) for k, row in numbers.items()},
            "masked_lm_weights": create_float_feature(weights),
        }
    )


def write_instance_to_example_files(
    instances,
    tokenizer,
    max_seq_length,
    max_predictions_per_seq,
    output_files,
):
    """Writes instances to TFRecord files, one to each file in turn."""
    log = tf.compat.v1.logging
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(tf.io.TFRecordWriter(path))
            for path in output_files
        ]
        for number, instance in enumerate(instances):
            example = make_example(
                instance, tokenizer, max_seq_length, max_predictions_per_seq
            )
            writers[number % len(writers)].write(example.SerializeToString())
            if number < SHOWN:
                log.info("*** Example ***\n%s", instance)
    log.info("Wrote %d total instances", len(instances))
