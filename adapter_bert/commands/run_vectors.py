r"""Tunes BERT for vectors of texts, and scores them.

    .venv/bin/python run_vectors.py --task_name=STS-B --do_train=true \
        --do_eval=true --data_dir=$GLUE_DIR/STS-B \
        --init_checkpoint=$BERT --learning_rate=3e-4 \
        --num_train_epochs=2 --output_dir=out/sts-b
"""

import dataclasses
import os
from typing import Any, Optional

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert import files
from adapter_bert.data.table_flags import OwnFiles
from adapter_bert.data.tables import (
    READERS,
    Layout,
    SplitFiles,
    check_distinct,
    check_file,
    ending_of,
)
from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, Topic, is_given, read
from adapter_bert.tasks.corpus import DOCUMENTS, JUDGEMENTS, MISSING, REFUSE
from adapter_bert.tasks.vectors import (
    INFONCE,
    MATCHING,
    QUESTIONS,
    Vectors,
    endings_of,
    layout_of_columns,
    named_pairs,
)
from adapter_bert.training import run_from_flags
from adapter_bert.training.settings import OWN_FILE, WITH_ROWS, SplitFlags

CUSTOM = "custom"
JSON = (".jsonl", ".json")


@dataclasses.dataclass(frozen=True)
class Texts(SplitFlags):
    """Texts that belong together."""

    task_name: str = Topic.DATA.setting(
        CUSTOM,
        f"The pairs: of {', '.join(MATCHING)}, or custom for your own files. "
        "Of BEIR's folders qrels/dev.tsv is scored, else qrels/test.tsv; "
        "--eval_file names another one.",
    )
    text_a_column: str = Topic.TABLES.setting("text", "Column of the text.")
    text_b_column: Optional[str] = Topic.TABLES.setting(
        None,
        "Column of the text's match, or of the second text of a pair "
        "with a score; default: single texts, which are their own matches.",
    )
    negative_column: list[str] = Topic.TABLES.setting(
        [],
        "Columns, as a,b, of texts that are like a match and are none; "
        "in .jsonl a column may hold a list, as long in each row.",
    )
    score_column: Optional[str] = Topic.TABLES.setting(
        None,
        "Column of a pair's score, greater for texts more alike; with "
        "--corpus_file, of a document's gain, above 0 if it belongs to the "
        "text.",
    )
    files: OwnFiles = dataclasses.field(default_factory=OwnFiles)
    corpus_file: str = Topic.TABLES.setting(
        "",
        f"{OWN_FILE.capitalize()} of documents to search in. --text_b_column "
        "and --negative_column then hold ids of documents. Default: the second "
        "texts of the dev set are searched.",
    )
    corpus_id_column: str = Topic.TABLES.setting(
        "_id",
        "--corpus_file: column of the document's id.",
        needs=("corpus_file",),
    )
    corpus_text_column: str = Topic.TABLES.setting(
        "text",
        "--corpus_file: column of the document's text.",
        needs=("corpus_file",),
    )
    corpus_title_column: Optional[str] = Topic.TABLES.setting(
        None,
        "--corpus_file: column of the document's title, which is put before "
        "the text.",
        needs=("corpus_file",),
    )
    query_id_column: Optional[str] = Topic.TABLES.setting(
        None,
        "--corpus_file: column of the text's own id; a text never finds the "
        "document with its id. Default: nor documents that equal the text.",
        needs=("corpus_file",),
    )
    missing_documents: str = Topic.TABLES.setting(
        REFUSE,
        "--corpus_file: what becomes of ids that no document has: an error; "
        "skip, their rows are left out; or count, as documents that are not "
        "found (BEIR's scores; in training their rows are left out).",
        choices=MISSING,
    )


SETTINGS = (Texts, Vectors, *WITH_ROWS)
OF_FILES = ("train_file", "eval_file")
COLUMNS = ("text_a_column", "text_b_column", "score_column", "query_id_column")
OF_CORPUS = ("corpus_id_column", "corpus_text_column", "corpus_title_column")


def rows_from_flags() -> dict[str, Any]:
    """Gives the fields of `Vectors` that say what is read."""
    texts = read(Texts)
    if texts.task_name.lower() == CUSTOM:
        place = texts.files.place
        text_a, text_b, score, row_id = (
            place(getattr(texts, name)) for name in COLUMNS
        )
        negatives = list(map(place, texts.negative_column))
        matching, header = None, texts.files.header
        layout = layout_of_columns(
            text_a,
            text_b,
            negatives,
            score,
            header,
            row_id,
            are_gains=bool(texts.corpus_file),
        )
    else:
        layout, matching = named_pairs(texts.task_name)
        # Files of SQuAD are called as their version, those of BEIR several.
        of_files = () if layout in (QUESTIONS, JUDGEMENTS) else OF_FILES
        columns = *COLUMNS, "negative_column"
        custom = *columns, *of_files, *vars(texts.files), "corpus_file"
        unused = [name for name in custom if is_given(name)]
        if unused:
            raise UserError(
                f"--{unused[0]} is for --task_name=custom; the files and "
                f"columns of {texts.task_name} are known"
            )
    if layout is JUDGEMENTS:
        searched = _folder_of_beir(FLAGS.data_dir or "")
    else:
        searched = {
            "split_files": run_from_flags.named_files(endings_of(layout)),
            "corpus_file": texts.corpus_file,
            "corpus_layout": _corpus_layout(texts, layout),
        }
    if texts.missing_documents != REFUSE and not searched["corpus_file"]:
        raise UserError(
            f"--missing_documents={texts.missing_documents} means nothing "
            "without --corpus_file; pass --corpus_file too, or leave "
            "--missing_documents out"
        )
    return {
        "layout": layout,
        "matching": matching,
        "held_out": texts.files.held_out,
        "missing_documents": texts.missing_documents,
        **searched,
    }


def task_from_flags() -> Vectors:
    """Returns the task that the flags describe."""
    task = read(Vectors, **rows_from_flags())
    if (
        FLAGS.do_train
        and FLAGS.train_batch_size < 2
        and (task.loss_name != INFONCE or not task.layout.choices)
    ):
        raise UserError(
            f"--train_batch_size is {FLAGS.train_batch_size}, but the loss "
            "compares the rows of a batch; expected at least 2"
        )
    return task


def _corpus_layout(texts: Texts, layout: Layout) -> Layout:
    if not texts.corpus_file:
        return DOCUMENTS
    check_file("--corpus_file", texts.corpus_file, READERS)
    if layout.text_b is None:
        raise UserError(
            "--corpus_file is for texts and ids of documents that belong to "
            "them; pass --text_b_column, the column of the ids"
        )
    # Only tables may lack a header.
    header = texts.files.header or ending_of(texts.corpus_file) in JSON
    named = [getattr(texts, flag) for flag in OF_CORPUS]
    columns = named if header else list(map(texts.files.place, named))
    check_distinct({f"--{flag}": x for flag, x in zip(OF_CORPUS, columns)})
    name, text, title = columns
    return Layout(text, title, header=header, row_id=name)


def _folder_of_beir(folder: str) -> dict[str, Any]:
    """Gives fields of `Vectors`; the dev set is the test set if alone."""
    paths = {"train": FLAGS.train_file, "dev": FLAGS.eval_file}
    for split, name in ("train", "train"), ("dev", "dev"), ("dev", "test"):
        path = os.path.join(folder, "qrels", f"{name}.tsv")
        if not paths[split] and files.exists(path):
            paths[split] = path
            logging.info("%s are the %s judgements", path, split)
    named = SplitFiles(**{split: path or "" for split, path in paths.items()})
    named.check(READERS, can_hold_out=False)
    corpus, questions = (
        os.path.join(folder, name) for name in ("corpus.jsonl", "queries.jsonl")
    )
    if folder:
        files.check_input(corpus, f"--data_dir={folder}: the corpus")
        files.check_input(questions, f"--data_dir={folder}: the questions")
    return {
        "split_files": named,
        "corpus_file": corpus,
        "corpus_layout": dataclasses.replace(
            DOCUMENTS, text_b="title", lacks_texts=True
        ),
        "questions_file": questions,
    }


def main() -> dict[str, float]:
    """Does what the flags say; results as `run_or_describe` gives them."""
    return run_from_flags.run_or_describe(task_from_flags())
