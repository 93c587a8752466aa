"""Spans and words as people's own tools write them."""

import collections

import pytest
import refusals

from adapter_bert.data.tables import SplitFiles
from adapter_bert.tasks.tagging import tagging_task
from adapter_bert.tasks.tagging_files import FORMATS, WordColumns, find_entities

pytestmark = pytest.mark.real_data


NONE = WordColumns()


@pytest.fixture
def folder(shared_dir):
    return shared_dir / "cases" / "own_files"


def read(path, columns=NONE):
    """As run_tagger.py reads `--train_file`."""
    named = SplitFiles(train=str(path))
    named.check(FORMATS, False)
    task = tagging_task(columns, split_files=named)
    task, rows = task.read("", ["train"])
    return task, rows["train"]


def entities(rows):
    """Counts (type, words)."""
    return collections.Counter(
        f"{entity.type} {' '.join(words[entity.start : entity.end])}"
        for words, tags in zip(rows.divide(rows.words), rows.divide(rows.tags))
        for entity in find_entities(tags)
    )


ORG, ORVIA, BELPORT = "ORG Lumen works", "LOC Orvia", "LOC Belport"
# File -> sentences, entities, what the log says.
READ = {
    "label_studio.json": (
        4,
        [ORG, ORVIA, BELPORT, ORVIA, BELPORT],
        "1 spans are trimmed",
        "1 spans are widened",
        "1 rows are left out: their annotations were cancelled",
        "1 results of the type relation are passed over",
    ),
    "label_studio_min.json": (3, [ORG, ORVIA, BELPORT]),
    "label_studio_completions.json": (2, [ORG, BELPORT]),
    "label_studio_emoji.json": (1, [BELPORT], "1 rows count UTF-16 units"),
    "label_studio_zh.conll": (
        3,
        ["LOC 奥维亚的灯厂昨天关门了。"],
        "3 of 3 sentences are one word",
    ),
    "doccano_label.jsonl": (3, [ORG, ORVIA, BELPORT]),
    "doccano_entities.jsonl": (3, [ORG, ORVIA, BELPORT]),
    "spacy_spans.jsonl": (3, [ORG, ORVIA, BELPORT]),
    "prodigy_ner.jsonl": (
        3,
        [ORG, ORVIA, BELPORT],
        "1 with answer 'ignore', 1 with answer 'reject'",
    ),
    "ner_annotator.json": (2, [ORG, ORVIA, BELPORT]),
    "light_tag.json": (2, [ORG, ORVIA, BELPORT]),
    "inclusive_ends.jsonl": (2, ["LINE 7", ORVIA, "LINE 12"]),
}


@pytest.mark.parametrize("name", READ)
def test_spans_are_read(folder, caplog, name):
    sentences, expected, *said = READ[name]
    _, rows = read(folder / name)
    assert len(rows) == sentences
    assert entities(rows) == collections.Counter(expected)
    for part in said:
        assert f"{name}: {part}" in caplog.text or part in caplog.text
    if name.endswith(("json", "jsonl")):
        assert rows.words[-1] == "."


@pytest.mark.parametrize("name", ["upos.conll", "upos.conllu"])
def test_parts_of_speech_are_tags_of_words(folder, name):
    task, rows = read(folder / name, WordColumns(None, "upos"))
    assert [len(words) for words in rows.divide(rows.words)] == [4, 8]
    assert [tag.type for tag in rows.tags] == (
        "AUX PART VERB PUNCT NOUN NOUN VERB PUNCT CCONJ NOUN ADV PUNCT".split()
    )
    assert {tag.prefix for tag in rows.tags} == {"B"}
    assert len(task.tags) == 8


@refusals.table(
    {
        "outside": ("label_studio_outside.json", "task 2", "10 to 40", "of 25"),
        "overlap": ("label_studio_overlap.json", "4-15 and 10-24 overlap"),
        "numbers": ("doccano_numbers.jsonl", ":1:", "a number", "by name"),
        "brat": ("brat/a.ann", "brat", "anntoconll.py", "several parts"),
        "WebAnno": ("webanno.tsv", "WebAnno TSV", "export as CoNLL 2002"),
        "conll": ("webanno.conll", "WebAnno TSV", "export as CoNLL 2002"),
        "OntoNotes": ("ontonotes.conll", "OntoNotes", "differ in their colum"),
        "Kaggle": ("kaggle_ner.csv", "a word on each row", "write CoNLL"),
        "words": ("word_rows.csv", "a word on each row", "write CoNLL"),
    }
)
def test_other_files_are_named(folder, call, parts):
    columns = WordColumns("3", "10") if "onto" in call else NONE
    refusals.check(lambda: read(folder / call, columns), call, *parts)
