r"""Predicts with one trained adapter, or with many on one BERT.

    .venv/bin/adapter-bert predict --init_checkpoint=$BERT \
        --adapter=out/mrpc/adapter --input=rows.tsv --output=answers.jsonl

The output has a line of JSON for each row and task, in the order of the rows.
Without `--input` rows come from stdin, and each is answered at once.

    .venv/bin/adapter-bert predict --init_checkpoint=$BERT --embeddings=mean \
        --input=rows.tsv --output=vectors.npy

writes vectors of the texts instead, with or without `--adapter`.

    .venv/bin/adapter-bert predict --init_checkpoint=$BERT --explain \
        --adapter=out/sst-2/adapter --input=rows.tsv --output=why.html

tells what each word adds to an answer, on a page or in lines of JSON.
"""

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any, Optional

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert import files, json_lines
from adapter_bert.answering import row_stream, vector_files
from adapter_bert.answering.embeddings import Embedder, VectorForm
from adapter_bert.answering.explanations import check_explained
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.predictor import Predictor
from adapter_bert.answering.trained_task import LoadedTask, TextRow, load_task
from adapter_bert.checkpoints.bert_flags import LetterCase
from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, Topic
from adapter_bert.library import flags as adapter_flags
from adapter_bert.progress import Progress
from adapter_bert.tasks.text_task import TEXT_COLUMNS
from adapter_bert.training.settings import FLOAT32


@dataclasses.dataclass(frozen=True)
class RowsAndAnswers(LetterCase):
    """Rows and answers."""

    input: str = Topic.DATA.setting(
        "",
        "File of rows: .tsv, .csv, .jsonl, .json, or text with one row per "
        "line; default: stdin.",
    )
    output: str = Topic.DATA.setting(
        "", "File for the answers; default: stdout."
    )
    columns: list[str] = Topic.DATA.setting(
        [],
        "Columns or JSON keys of a row's texts, as text,text_b; default: "
        "those that the adapter was trained on.",
    )
    explain: bool = Topic.EVALUATION.setting(
        False,
        "Tell what each word adds to an answer, in its lines of JSON; with "
        "--output=FILE.html on a page instead.",
    )


LETTER_CASE = (
    "--do_lower_case is for vectors without --adapter; the adapter says the "
    "letters' case, so leave the flag out"
)
# Ending of a page's name.
PAGE = ".html"
SETTINGS = (RowsAndAnswers, adapter_flags.Answering, adapter_flags.Embedding)


def columns_of(tasks: dict[str, LoadedTask]) -> row_stream.Alternatives:
    """Lists possible names of a row's texts; refuses tasks that differ."""
    named = FLAGS.columns
    [(first, one), *_] = tasks.items()
    columns = one.task.columns
    for name, loaded in tasks.items():
        if named and len(named) not in loaded.numbers_of_texts:
            raise UserError(
                f"--columns names {len(named)} columns, but {name} reads "
                f"{' or '.join(map(str, loaded.numbers_of_texts))}"
            )
        if not named and loaded.task.columns != columns:
            these, others = map(
                json_lines.list_keys, (columns, loaded.task.columns)
            )
            raise UserError(
                f"{first} reads the columns {these}, but {name} {others}; pass "
                "--columns if one row serves both, or ask them one after the "
                "other"
            )
    if named:
        return [named]
    most = min(max(t.numbers_of_texts) for t in tasks.values())
    usual = TEXT_COLUMNS[:most]
    return [columns, usual] if len(usual) == most else [columns]


def answer_rows(
    predictor: Predictor,
    tasks: dict[str, LoadedTask],
    chunks: Iterator[list[row_stream.PlacedRow]],
) -> Iterator[list[tuple[TextRow, dict[str, Any]]]]:
    """Yields each chunk's (row, answer), one for each row and task."""
    for chunk in chunks:
        rows, places = zip(*chunk)
        answers = predictor.answer_all(
            list(tasks.values()), rows, places, FLAGS.explain
        )
        yield [
            (row, {"task": name, **answer})
            for row, of_row in zip(rows, zip(*answers))
            for name, answer in zip(tasks, of_row)
        ]


def answer_lines(
    answered: Iterator[list[tuple[TextRow, dict[str, Any]]]],
) -> Iterator[str]:
    """Yields the lines of each chunk's answers."""
    for chunk in answered:
        yield "".join(
            json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n"
            for _, answer in chunk
        )


def open_predictor(bert: Optional[FrozenBert] = None) -> Predictor:
    """Loads the named adapters, and the BERT unless it is open."""
    flags = adapter_flags.read_flags()
    adapters = adapter_flags.named_adapters(flags)
    predictor = Predictor(
        bert or adapter_flags.open_bert(flags),
        flags.predict_batch_size,
        flags.max_seq_length,
        flags.adapter_dtype,
        flags.library,
    )
    for name, (folder, exchanged) in adapters.items():
        predictor.add(folder, name, exchanged)
    return predictor


def open_embedder(
    form: VectorForm, bert: Optional[FrozenBert] = None
) -> tuple[Embedder, row_stream.Alternatives]:
    """Loads what the flags name, at most one adapter, and unless open the BERT.

    Returns what makes vectors, and possible names of a row's texts.
    """
    bert, task = open_task(bert)
    columns = FLAGS.columns or (task.task.columns if task else TEXT_COLUMNS[:1])
    if len(columns) > len(TEXT_COLUMNS):
        raise UserError(
            f"a vector is of one text or of a pair, but the columns are "
            f"{json_lines.list_keys(columns)}; name one or two by --columns"
        )
    flags = adapter_flags.read_flags()
    embedder = Embedder(
        bert, task, form, flags.predict_batch_size, flags.max_seq_length
    )
    usual = [] if FLAGS.columns else [TEXT_COLUMNS[: len(columns)]]
    if task and not FLAGS.columns:
        usual.append(task.columns)
    return embedder, [columns, *usual]


def open_task(
    bert: Optional[FrozenBert] = None,
) -> tuple[FrozenBert, Optional[LoadedTask]]:
    """Loads at most one adapter, which flags name, and the BERT."""
    flags = adapter_flags.read_flags()
    adapters = {}
    if flags.adapter or flags.library or flags.task or flags.exchange_part:
        adapters = adapter_flags.named_adapters(flags)
    if len(adapters) > 1:
        raise UserError(
            "vectors are of one adapter at a time, found "
            f"{', '.join(adapters)[:200]}; ask them one after the other"
        )
    if adapters and FLAGS.do_lower_case is not None:
        raise UserError(LETTER_CASE)
    bert = bert or adapter_flags.open_bert(flags, FLAGS.do_lower_case)
    for folder, exchanged in adapters.values():
        length = flags.max_seq_length
        return bert, load_task(bert, folder, length, flags.library, exchanged)
    return bert, None


def main() -> None:
    """Answers the flags' rows."""
    if not FLAGS.input and sys.stdin is None:
        raise UserError("stdin is closed; pass --input")
    if FLAGS.input:
        files.check_input(FLAGS.input, "--input")
    if FLAGS.output:
        files.check_output(FLAGS.output, "--output", FLAGS.input, "--input")
    form = adapter_flags.read_form()
    if form:
        cut_rows = write_vectors(form)
    else:
        cut_rows = write_answers()
    if cut_rows:
        logging.warning(
            "%d rows are cut, longer than --max_seq_length (or a question than "
            "its adapter's max_query_length)",
            cut_rows,
        )


def read_chunks(
    columns: row_stream.Alternatives, takes_tokens: bool = False
) -> Iterator[list[row_stream.PlacedRow]]:
    """Yields groups of the rows of `--input`, or of stdin as they arrive."""
    if FLAGS.input:
        progress = Progress("predict", files.size(FLAGS.input), "bytes")
        read: list[int] = []
        rows = row_stream.file_rows(
            FLAGS.input, columns, read.append, takes_tokens
        )
        for chunk in row_stream.chunks(rows):
            yield chunk
            # It is answered by now.
            progress.update(sum(read))
            read.clear()
        progress.close()
        return
    # At its end Python closes `sys.stdin`, and would wait for the thread that
    # reads ahead.
    stdin = open(sys.stdin.fileno(), "rb", closefd=False)
    rows = row_stream.pipe_rows(stdin, columns, takes_tokens)
    if row_stream.is_piped():
        yield from row_stream.chunks_at_once(rows)
    else:
        yield from row_stream.chunks(rows)


def write_vectors(form: VectorForm) -> int:
    """Writes the rows' vectors, and returns how many rows were cut."""
    if FLAGS.explain:
        raise UserError(
            "--explain is for answers, and --embeddings gives vectors; leave "
            "one of both out"
        )
    if adapter_flags.read_flags().adapter_dtype != FLOAT32:
        raise UserError(
            "--adapter_dtype is for answers; leave it out with --embeddings"
        )
    vector_files.check_path(FLAGS.output, form)
    embedder, columns = open_embedder(form)
    count = count_rows(columns)
    vectors = (embedder(*zip(*chunk)) for chunk in read_chunks(columns))
    if FLAGS.output:
        vector_files.write(FLAGS.output, vectors, embedder.width, count)
    else:
        write(map(vector_files.lines, vectors))
    return embedder.cut_rows


def write_answers() -> int:
    """Writes the rows' answers, and returns how many rows were cut."""
    if FLAGS.do_lower_case is not None:
        raise UserError(LETTER_CASE)
    predictor = open_predictor()
    tasks = {name: predictor.task(name) for name in predictor.names}
    if FLAGS.explain:
        for loaded in tasks.values():
            check_explained(loaded)
    takes_tokens = any(t.task.takes_tokens for t in tasks.values())
    columns = columns_of(tasks)
    count_rows(columns, takes_tokens)
    chunks = read_chunks(columns, takes_tokens)
    answered = answer_rows(predictor, tasks, chunks)
    if FLAGS.explain and FLAGS.output.endswith(PAGE):
        # Slow to load.
        from adapter_bert.reports.explanation_page import explanation_page

        pairs = itertools.chain.from_iterable(answered)
        names = {n: t.columns for n, t in tasks.items()}
        files.write_parts(FLAGS.output, [explanation_page(names, pairs)])
    else:
        write(answer_lines(answered))
    return predictor.cut_rows


def count_rows(
    columns: row_stream.Alternatives, takes_tokens: bool = False
) -> Optional[int]:
    """Counts the rows of `--input`, if there is an output that needs all.

    A malformed row is found here, before hours of answers are lost to it.
    """
    if FLAGS.input and FLAGS.output:
        rows = row_stream.file_rows(
            FLAGS.input, columns, lambda _: None, takes_tokens
        )
        return sum(1 for _ in rows)
    if vector_files.needs_count(FLAGS.output):
        raise UserError(
            f"--output {FLAGS.output} begins with the number of rows, which "
            "stdin does not tell; pass --input, or write .jsonl or .tsv"
        )
    return None


def write(texts: Iterator[str]) -> None:
    """Writes the answers, to stdout at once."""
    if FLAGS.output:
        files.write_parts(FLAGS.output, (text.encode() for text in texts))
        return
    for text in texts:
        sys.stdout.write(text)
        sys.stdout.flush()
