r"""Makes rows for pretraining, as google-research/bert does.

    .venv/bin/python create_pretraining_data.py --input_file=raw.txt \
        --output_file=rows.tfrecord --vocab_file=$BERT/vocab.txt

The input has a sentence on each line, and an empty line between documents. A
row is a pair of texts: the second text follows the first one, or is from
another document. Some tokens are masked. `run_pretraining.py` trains on rows.
Equal seeds make the rows of the published program.
"""

import dataclasses
import random

import adapter_bert.start_tensorflow  # noqa: F401

import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.checkpoints import sources
from adapter_bert.checkpoints.bert_flags import LetterCase
from adapter_bert.data.tokenization import CLASSIFY, SPECIAL
from adapter_bert.errors import UserError
from adapter_bert.flags import POSITIVE, Range, Topic, at_least, read
from adapter_bert.upstream import create_pretraining_data as upstream

SHARE = Range(lambda value: 0 <= value <= 1, "expected 0 to 1")
# `[CLS]`, two `[SEP]`, and a token of each text.
LEAST_LENGTH = 5


@dataclasses.dataclass(frozen=True)
class Rows(LetterCase):
    """Says what is read, made and written."""

    REQUIRED = ("output_file", "vocab_file")
    input_file: str = Topic.DATA.setting(
        "",
        "Raw text: files or patterns with commas between them, as "
        "`a.txt,wiki/*.txt`.",
    )
    output_file: str = Topic.TO_DO.setting(
        "",
        "TFRecord files with commas between them; rows go to each file in "
        "turn.",
    )
    vocab_file: str = Topic.MODEL.setting("", "The vocabulary of the BERT.")
    do_whole_word_mask: bool = Topic.DATA.setting(
        False, "Mask all tokens of a word or none of them."
    )
    max_seq_length: int = Topic.DATA.setting(
        128,
        "Longest row in tokens.",
        at_least(LEAST_LENGTH),
    )
    max_predictions_per_seq: int = Topic.DATA.setting(
        20, "Most masked tokens of a row.", POSITIVE
    )
    random_seed: int = Topic.DATA.setting(12345, "Seed of all random choices.")
    dupe_factor: int = Topic.DATA.setting(
        10, "How often each document is read, with other masks.", POSITIVE
    )
    masked_lm_prob: float = Topic.DATA.setting(
        0.15, "Share of the tokens that are masked.", SHARE
    )
    short_seq_prob: float = Topic.DATA.setting(
        0.1, "Share of passes over a document that make shorter rows.", SHARE
    )


SETTINGS = (Rows,)


def main() -> None:
    """Writes the files that the flags describe."""
    settings = read(Rows)
    inputs = files.matching(settings.input_file, "--input_file")
    outputs = settings.output_file.split(",")
    if not all(outputs) or len(set(outputs)) < len(outputs):
        raise UserError(
            f"--output_file is {settings.output_file}, expected different "
            "names with commas between them"
        )
    for path in outputs:
        files.check_plain(path, "the output", is_replaced=True)
    files.check_input(settings.vocab_file, "--vocab_file")
    tokenizer = sources.read_tokenizer(
        None, None, settings.vocab_file, settings.do_lower_case
    )
    if tokenizer.special is not SPECIAL:
        raise UserError(
            f"{settings.vocab_file} is no vocabulary of a BERT: its texts "
            f"begin with {tokenizer.special['cls_token']}, expected {CLASSIFY}"
        )
    if tokenizer.mask_id is None:
        raise UserError(f"{settings.vocab_file} lacks {upstream.MASK}")
    lines = (
        line
        for path in inputs
        for line in files.read_lines(path, "the text", "\n")
    )
    documents = upstream.read_documents(lines, tokenizer)
    if not documents:
        raise UserError(
            f"{settings.input_file} holds no token that the vocabulary knows"
        )
    sentences = [one for document in documents for one in document]
    room = settings.max_seq_length - 3
    if cut := sum(len(sentence) > room for sentence in sentences):
        logging.warning(
            "%d of %d lines have more than the %d tokens that a row of "
            "--max_seq_length=%d has room for; rows hold a part of them",
            cut,
            len(sentences),
            room,
            settings.max_seq_length,
        )
    if len(documents) == 1:
        logging.warning(
            "the text is one document, so random second texts are from the "
            "same one; write an empty line between documents"
        )
    instances = upstream.make_instances(
        documents,
        tokenizer.vocabulary,
        settings.dupe_factor,
        random.Random(settings.random_seed),
        max_seq_length=settings.max_seq_length,
        short_seq_prob=settings.short_seq_prob,
        masked_lm_prob=settings.masked_lm_prob,
        max_predictions_per_seq=settings.max_predictions_per_seq,
        do_whole_word_mask=settings.do_whole_word_mask,
    )
    # Each file is whole when it gets its name.
    hidden = [files.temporary_name(path) for path in outputs]
    with files.writing(settings.output_file):
        try:
            upstream.write_instance_to_example_files(
                instances,
                tokenizer,
                settings.max_seq_length,
                settings.max_predictions_per_seq,
                hidden,
            )
            for written, path in zip(hidden, outputs):
                files.replace(written, path)
        finally:
            for path in hidden:
                if tf.io.gfile.exists(path):
                    tf.io.gfile.remove(path)
    logging.info(
        "%d documents, %d rows: %s",
        len(documents),
        len(instances),
        ", ".join(outputs),
    )
