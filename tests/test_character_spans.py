"""Texts with spans of characters: read, refused, answered, written again."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
from hypothesis import given
from task_files import PROPERTY

from adapter_bert.answering import row_stream
from adapter_bert.data.memory_rows import MemoryRows
from adapter_bert.data.tables import SplitFiles
from adapter_bert.graph.exported import join_words
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.tagging import Tagged, tagging_task
from adapter_bert.tasks.tagging_files import (
    FORMATS,
    NO_ENTITY,
    Sentences,
    Tag,
    WordColumns,
    are_apart,
    cut_words,
    read_sentences,
    write_tags,
)

TEXT = "The Lumen works of Orvia closed."
ORG, LOC = [4, 15, "ORG"], [19, 24, "LOC"]
WORDS = "The|O Lumen|B-ORG works|I-ORG of|O Orvia|B-LOC closed|O .|O"


def put(folder, *rows, name="train.jsonl"):
    """A file of rows: lines of JSON, or one array in a `.json` file."""
    path = folder / name
    lines = "\n".join(map(json.dumps, rows))
    path.write_text(json.dumps(rows) if name.endswith(".json") else lines)
    return str(path)


def read_task(folder, *splits):
    """The task of a folder's training file, and the rows of its splits."""
    return tagging_task().read(str(folder), splits)


def tagged(rows):
    return [
        " ".join(f"{word}|{tag}" for word, tag in zip(words, tags))
        for words, tags in zip(rows.divide(rows.words), rows.divide(rows.tags))
    ]


def as_objects(*spans, **names):
    keys = [names.get(key, key) for key in ("start", "end", "label")]
    return [dict(zip(keys, span)) for span in spans]


def task(*annotations, text=TEXT, key="annotations"):
    """A task of Label Studio, with results of each annotation."""
    return {
        "data": {"id": 7, "text": text},
        key: [
            {
                "result": [
                    {
                        "type": "labels",
                        "value": {"start": a, "end": b, "labels": [label]},
                    }
                    for a, b, label in spans
                ],
                **facts,
            }
            for spans, facts in annotations
        ],
    }


@pytest.mark.parametrize(
    "row",
    [
        {"text": TEXT, "label": [ORG, LOC]},
        {"text": TEXT, "labels": [LOC, ORG], "entities": [ORG, LOC]},
        {"text": TEXT, "entities": as_objects(ORG, LOC), "label": "any"},
        {
            "text": TEXT,
            "entities": as_objects(
                ORG, LOC, start="start_offset", end="end_offset"
            ),
        },
        {"text": TEXT, "spans": as_objects([4.0, 15.0, ["ORG"]], LOC)},
        {"content": TEXT, "annotations": as_objects(ORG, LOC, label="tag")},
        {
            "content": TEXT,
            "annotation": [
                {"label": ["ORG"], "points": [{"start": 4, "end": 14}]},
                {"label": ["LOC"], "points": [{"start": 19, "end": 23}]},
            ],
        },
        task(([ORG, LOC], {})),
        task(([ORG, LOC], {}), key="completions"),
        task(([LOC], {}), ([ORG, LOC], {"ground_truth": True})),
        task(([LOC], {"was_cancelled": True}), ([ORG, LOC], {})),
        {"text": TEXT, "spans": None, "label": [ORG, LOC]},
    ],
)
@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "rows"])
def test_rows_of_many_tools(tmp_path, row, name):
    path = MemoryRows([row], name)
    if name != "rows":
        path = put(tmp_path, row, name=name)
    assert tagged(read_sentences(path)) == [WORDS]


@pytest.mark.parametrize(
    "whole",
    [
        {
            "classes": [],
            "annotations": [None, [f"{TEXT}\r", {"entities": [ORG, LOC]}]],
        },
        {"examples": [{"content": TEXT, "annotations": [ORG, LOC]}]},
    ],
)
def test_one_object_may_hold_all_rows(tmp_path, whole):
    path = tmp_path / "train.json"
    path.write_text(f"\n{json.dumps(whole)}")
    assert tagged(read_sentences(str(path))) == [WORDS]


@refusals.table(
    {
        "WebAnno": ("#FORMAT=WebAnno TSV 3.3\n", "WebAnno TSV", "CoNLL 2002"),
        "CoNLL-U": ("# sent_id = 1\n", "CoNLL-U", "--tag_column=upos"),
        "OntoNotes": ("#begin document (a);\n", "OntoNotes", "B-ORG"),
        "brat": ("T1\tORG 4 15\tLumen works\n", "brat", "anntoconll.py"),
        "Kaggle": (
            "Sentence #,Word,POS,Tag\n1,M\xfcnde,NNP,B-geo\n",
            "a word on each row",
            "CoNLL",
        ),
        "words": ("sentence_id,words,labels\n", "a word on each row"),
    }
)
def test_other_forms_are_named(tmp_path, call, parts):
    path = tmp_path / "train.conll"
    path.write_text(call, encoding="latin-1")
    if call[0] == "#":
        refusals.check(lambda: read_sentences(str(path)), path, *parts)
    path = path.rename(tmp_path / "train.ann")
    named = SplitFiles(str(path))
    refusals.check(lambda: named.check(FORMATS, False), path, *parts)


def test_features_are_those_of_a_plain_file(tmp_path, tokenizer):
    put(tmp_path, {"text": "The cat,the dog.", "label": [[8, 15, "X"]]})
    task, rows = read_task(tmp_path, "train")
    (tmp_path / "plain").mkdir()
    words = "The O|cat O|, O|the B-X|dog I-X|. O|".replace("|", "\n")
    (tmp_path / "plain" / "train.conll").write_text(words)
    same, plain = read_task(tmp_path / "plain", "train")
    assert same == task
    first, second = (
        task.featurize(some["train"], tokenizer, 16).fingerprint()
        for some in (rows, plain)
    )
    assert first == second


def test_columns_may_be_named(tmp_path):
    path = put(tmp_path, {"body": TEXT, "text": "no", "marks": [ORG, LOC]})
    rows = read_sentences(path, WordColumns("body", "marks"))
    assert tagged(rows) == [WORDS]


def test_words_may_be_those_of_the_file(tmp_path):
    places = [(0, 3), (4, 9), (9, 10), (10, 15), (16, 32)]
    tokens = [{"start": a, "end": b, "text": TEXT[a:b]} for a, b in places]
    path = put(tmp_path, {"text": TEXT, "tokens": tokens, "spans": [ORG]})
    [sentence] = tagged(read_sentences(path))
    assert sentence == "The|O Lumen|B-ORG works|I-ORG of Orvia closed.|O"


def told(*span, text):
    return {**as_objects(span)[0], "text": text}


@pytest.mark.parametrize(
    "rows, sentences, notes",
    [
        (
            [{"text": TEXT, "label": [[3, 16, "A"], [20, 22, "B"]]}],
            ["The|O Lumen|B-A works|I-A of|O Orvia|B-B closed|O .|O"],
            ["1 spans are trimmed", "1 spans are widened"],
        ),
        (
            [{"text": "a b", "label": [[0, 1, "Job title"]]}, {"text": "c"}],
            ["a|B-Job_title b|O", "c|O"],
            [
                "1 rows name no spans, so they hold no entity",
                "1 spans have a blank in their label",
            ],
        ),
        (
            [{"text": "a", "spans": [], "entities": [[0, 1, "X"]]}],
            ["a|B-X"],
            [],
        ),
        (
            [
                {
                    "text": "a",
                    "spans": [[0, 1, "X"]],
                    "answer": answer,
                    "_task_hash": 1,
                }
                for answer in ("accept", "reject", "ignore", "ignore")
            ],
            ["a|B-X"],
            ["3 rows are left out: 2 with answer 'ignore', 1 with answer"],
        ),
        (
            [
                {"text": "a", "spans": [], "answer": "reject", "_task_hash": 1},
                {"text": "a", "spans": [[0, 1, "X"]]},
            ],
            ["a|B-X"],
            ["1 rows are left out: 1 with answer 'reject'"],
        ),
        (
            [{"text": r"C:\n", "spans": [told(0, 4, "X", text=r"C:\n")]}],
            [r"C|B-X :|I-X \|I-X n|I-X"],
            [],
        ),
        (
            [
                task(([[0, 1, "X"]], {"was_cancelled": True}), text="a"),
                task(text="a"),
                task(([[0, 1, "X"]], {}), ([], {}), text="b"),
                task(([], {"result": None}), text="c"),
                task(([], {"result": [{"type": "relation"}]}), text="d"),
            ],
            ["b|B-X", "c|O", "d|O"],
            [
                "1 results of the type relation are passed over",
                "1 rows are left out: their annotations were cancelled",
                "1 rows are left out: nobody has annotated them",
                "1 rows have several annotations",
            ],
        ),
        (
            [
                {
                    "text": "\U0001f600 to Orvia\nand",
                    "spans": [{**as_objects([6, 15, "X"])[0], "text": text}],
                }
                for text in ("Orvia\nand", "Orvia\\nand")
            ],
            ["\U0001f600|O to|O Orvia|B-X and|I-X"] * 2,
            ["2 rows count UTF-16 units"],
        ),
    ],
)
def test_what_is_changed_or_left_out_is_counted(
    tmp_path, caplog, rows, sentences, notes
):
    assert tagged(read_sentences(put(tmp_path, *rows))) == sentences
    for note in notes:
        assert f"train.jsonl: {note}" in caplog.text
    assert len(caplog.records) == len(notes)


def of_spans(*spans, **more):
    return {"text": "an old cat", "spans": list(spans), **more}


@refusals.table(
    {
        "outside": (of_spans([3, 11, "X"]), "span 3 to 11 of a text of 10"),
        "before": (of_spans([-1, 2, "X"]), "span -1 to 2", "outside"),
        "turned": (of_spans([6, 3, "X"]), "span 6 to 3", "outside"),
        "overlap": (of_spans([3, 10, "X"], [0, 4, "X"]), "0-4 and 3-10 ov"),
        "twice": (
            of_spans([0, 2, "X"], told(0, 2, "X", text="an")),
            "0-2 and 0-2 overlap",
        ),
        "one word": (of_spans([3, 4, "X"], [5, 6, "Y"]), "3-4 and 5-6 over"),
        "blanks": (of_spans([2, 3, "X"]), "2-3 covers no word"),
        "text": (of_spans(told(0, 2, "X", text="old")), "'old'", "is 'an'"),
        "units": (
            of_spans(told(0, 2, "X", text="an"), [4, 7, "X"])
            | {"text": "an\U0001f600old"},
            "span 4 to 7 of a text of 6",
        ),
        "number": (of_spans([0, 2, 7]), "label 7", "export labels by name"),
        "two": (of_spans(as_objects([0, 2, ["X", "Y"]])[0]), "['X', 'Y']"),
        "no label": (of_spans({"start": 0, "end": 2}), "the label None, exp"),
        "no end": (of_spans({"start": 0, "label": "X"}), "expected a span"),
        "an object": (
            of_spans(spans="X"),
            "expected a list of spans, found",
            "tag_column",
        ),
        "by label": (of_spans(spans={"PER": [[0, 2]]}), "expected a list of"),
        "point": (of_spans({"label": "X", "points": [3]}), "found 3, expec"),
        "order": (
            of_spans([0, 2, "X"], tokens=as_objects([3, 6], [0, 2])),
            "the token 0 to 2 is behind 3 to 6",
        ),
        "a token": (of_spans(tokens=[{"start": 8, "end": 11}]), "token 8 to"),
        "no text": (task(([], {}), text=3) | {"data": {}}, "no key 'text'"),
        "results": (task() | {"annotations": {"a": 1}}, "no list of objects"),
        "result": (
            task() | {"annotations": [{"result": 5}]},
            "'result' is 5, expected a list",
        ),
    }
)
def test_rows_that_are_refused(tmp_path, call, parts):
    good = {"text": "a", "label": []}
    row = "task" if "data" in call else "row"
    for name, place in (("a.jsonl", ":2: "), ("a.json", f": {row} 2: ")):
        path = put(tmp_path, good, call, name=name)
        refusals.check(lambda p=path: read_sentences(p), path + place, *parts)


@refusals.table(
    {
        "JSON": ("{", ":1: not JSON"),
        "an object": ('{"a": 1}', ":1: no key 'tokens', found 'a'"),
        "nothing": ("[]", "is empty: it holds no word"),
        "numbers": ("[1]", ":1: expected a JSON object"),
        "one": ('{"classes": [], "annotations": [1]}', ": found 1, expected"),
        "none": ('{"examples": {}}', "is empty: it holds no word"),
        "no spans": ('[{"text": "a"}]', "no row has spans", "--tag_column"),
        "no word": ('[{"text": " ", "label": []}]', "holds no word"),
    }
)
def test_files_that_are_refused(tmp_path, call, parts):
    path = tmp_path / "a.json"
    path.write_text(call)
    refusals.check(lambda: read_sentences(str(path)), path, *parts)


LETTERS = st.sampled_from("ab\u00e9\U0001f600\u4eac.,-'_ \t\n\u00a0\u2028\x1c")


@PROPERTY
@given(st.text(LETTERS, max_size=30), st.booleans(), st.data())
def test_spans_come_back_as_they_were_written(
    tmp_path_factory, text, apart, data
):
    """Words, their tags, spans in a file, words and tags again."""
    places = cut_words(text, apart)
    assert "".join(text[a:b] for a, b in places) == "".join(text.split())
    rows = Sentences.of_words([text, "x"], apart)
    tags = [
        data.draw(st.sampled_from(["O", "B-X", "I-X", "B-Y"])) for _ in places
    ]
    tags = [
        "B-X" if b == "I-X" and a[2:] != "X" else b
        for a, b in zip(["O", *tags], tags)
    ]
    rows = Sentences.of_texts(
        "",
        rows.texts,
        [places, [(0, 1)]],
        [0, 1],
        text=[{"text": text, "n": 1}, {"text": "x"}],
    )
    path = str(tmp_path_factory.getbasetemp() / "round.jsonl")
    write_tags(path, rows, [*tags, "O"])
    # Numbers are of columns in other files.
    columns = data.draw(st.sampled_from([(), ("0", "3")]))
    again = read_sentences(path, WordColumns(*columns), apart=apart)
    assert list(again.texts) == [text, "x"]
    assert list(map(str, again.tags)) == [*tags, "O"]
    assert again.places.tolist() == rows.places.tolist()
    assert again.text[0] == {"text": text, "n": 1}


@pytest.mark.parametrize(
    "text, blanks, apart",
    [
        ("It closed.", "It closed.", "It closed ."),
        ("a_b\u00a0c", "a_b c", "a _ b c"),
        (
            "\u4eac\u90fd x\u2026",
            "\u4eac\u90fd x\u2026",
            "\u4eac \u90fd x \u2026",
        ),
        ("\u00bfQu\u00e9?", "\u00bfQu\u00e9?", "\u00bf Qu\u00e9 ?"),
        (
            "e\u0301t\u00e9 1\u20ac",
            "e\u0301t\u00e9 1\u20ac",
            "e\u0301t\u00e9 1\u20ac",
        ),
    ],
)
def test_the_two_rules_of_words(text, blanks, apart):
    for words, is_apart in ((blanks, False), (apart, True)):
        places = cut_words(text, is_apart)
        assert " ".join(text[a:b] for a, b in places) == words


def test_the_training_file_says_the_rule(tmp_path):
    assert are_apart("It closed , then opened .".split())
    assert not are_apart("It closed, then opened. - -".split() + ["U.S."])
    assert not are_apart(["\u00e9"])
    put(tmp_path, {"text": TEXT, "label": [ORG, LOC]})
    trained, _ = read_task(tmp_path, "train")
    assert trained.apart and trained.describe()["punctuation_apart"]
    assert trained.client_facts["punctuation_apart"]
    # Other files' texts are cut alike.
    put(tmp_path, {"tokens": ["a", "b."], "tags": ["B-X", "O"]})
    put(tmp_path, {"text": "a b.", "label": [[2, 3, "X"]]}, name="dev.jsonl")
    put(tmp_path, {"text": "a b."}, name="test.jsonl")
    blanks, rows = read_task(tmp_path, "dev", "test", "train")
    assert "punctuation_apart" not in blanks.describe()
    assert tagged(rows["dev"]) == ["a|O b.|B-X"]
    assert rows["test"].words == ["a", "b."]


def test_answers_slice_the_text_as_it_came():
    description = {"name": "tagging", "tags": ["O", "B-X", "I-X"]}
    apart = {**description, "punctuation_apart": True}
    text = "\U0001f600 a  b\u00a0c."
    for described, count in ((description, 4), (apart, 5)):
        trained = restore_task(described, {}, "test")
        rows = trained.make_rows([(text,), (("a", "b c."),)])
        tags = [Tag("O", ""), Tag("B", "X"), Tag("I", "X"), Tag("I", "X")]
        tags += [NO_ENTITY] * (count - 4) + [Tag("B", "X"), Tag("I", "X")]
        logits = np.zeros((count + 2, 3), np.float32)
        logits[1, 1] = logits[2, 2] = logits[3, 2] = np.log(6)
        first, second = trained.answer(rows, Tagged(tags, logits))
        end = len(text) - (count == 5)
        assert first["entities"] == [
            {
                "start": 2,
                "end": end,
                "text": text[2:end],
                "label": "X",
                "score": pytest.approx(0.75),
                "first_word": 1,
                "last_word": 3,
            }
        ]
        assert second["tokens"] == ["a", "b c."]
        [entity] = second["entities"]
        assert (entity["start"], entity["text"]) == (0, "a b c.")
        # A model's outputs make the same answer.
        outputs = trained.kind.outputs({}, first)
        assert trained.kind.answer({}, outputs) == first


UNIVERSAL = """\
# text = Don't go 2.
1-2\tDon't\t_\t_\t_
1\tDo\tdo\tAUX\tVB
2\tn't\tnot\tPART\tRB
2.1\tplease\tplease\tINTJ\tUH
3\tgo\tgo\tVERB\tVB
4\t2\t2\t_\tCD

1\tNight\tnight\tNOUN\tNN
2\ttrains\ttrain\tNOUN\tNNS
"""


@pytest.mark.parametrize(
    "name, columns",
    [
        ("train.conllu", WordColumns()),
        ("train.conll", WordColumns(None, "upos")),
        ("train.conllu", WordColumns("1", "3")),
    ],
)
def test_parts_of_speech(tmp_path, name, columns):
    """Each word has a tag, read and written again without prefixes."""
    path = tmp_path / name
    path.write_text(UNIVERSAL)
    tagger = tagging_task(columns)
    if columns.tag == "3":
        # Numbers mean tags of entities, of which `_` is none.
        refusals.check(lambda: read_sentences(str(path), columns), "'_' is no")
        return
    rows = read_sentences(str(path), columns, True, True)
    assert tagged(rows) == [
        "Do|B-AUX n't|B-PART go|B-VERB 2|O",
        "Night|B-NOUN trains|B-NOUN",
    ]
    trained, _ = tagger.read(str(tmp_path), ["train"])
    assert trained.describe()["tags"] == [
        "O",
        "B-AUX",
        "B-NOUN",
        "B-PART",
        "B-VERB",
    ]
    out = tmp_path / f"out{path.suffix}"
    write_tags(str(out), rows, [*map(str, rows.tags[:-1]), "O"])
    ends = UNIVERSAL.rpartition("NOUN")
    assert out.read_text() == f"{ends[0]}_{ends[2]}"


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.json", [task(text="a b"), task(([ORG], {}), text="c")]),
        ("a.json", [{"content": "a b"}, {"content": "c"}]),
        (
            "a.json",
            {"classes": [], "annotations": [["a b", {}], None, ["c", 0]]},
        ),
        ("a.jsonl", [{"text": "a b", "tokens": [{"start": 0}]}, {"text": "c"}]),
        ("rows", [{"text": "a b", "spans": [ORG]}, {"text": "c", "id": 1}]),
        ("rows", [task(text="a b"), task(text="c")]),
    ],
)
def test_rows_with_spans_are_predicted_by_their_texts(tmp_path, name, content):
    path = MemoryRows(content, name)
    if name != "rows":
        path = str(tmp_path / name)
        lines = map(json.dumps, content if name == "a.jsonl" else [content])
        (tmp_path / name).write_text("\n".join(lines))
    columns = [("tokens",), ("text",)]
    rows = row_stream.file_rows(path, columns, lambda size: None, True)
    assert [texts for texts, _ in rows] == [("a b",), ("c",)]
    if name == "a.jsonl":
        with open(path, "rb") as stream:
            rows = row_stream.pipe_rows(stream, columns, True)
            assert [texts for texts, _ in rows] == [("a b",), ("c",)]


def test_a_row_without_a_text_is_refused_at_its_place(tmp_path):
    path = put(tmp_path, task(text="a"), {"data": {"text": 1.5, "a": []}}, {})
    rows = row_stream.file_rows(path, [("text",)], lambda size: None, True)
    assert next(rows)[0] == ("a",) and next(rows)[0] == ("1.5",)
    refusals.check(lambda: next(rows), f"{path}:3: no key 'text'")


def test_sentences_that_are_not_divided_are_told(tmp_path, caplog):
    path = tmp_path / "train.conll"
    path.write_text("\u4eac\u90fd B-X\n\nx O\n\na O\nb O\n")
    read_task(tmp_path, "train")
    assert "2 of 3 sentences are one word, 0 words have 60" in caplog.text
    caplog.clear()
    path.write_text(f"{'x' * 60} B-X\nb O\n")
    read_task(tmp_path, "train")
    assert "0 of 1 sentences are one word, 1 words have 60" in caplog.text
    caplog.clear()
    path.write_text(f"{'x' * 59} B-X\nb O\n\na O\n")
    read_task(tmp_path, "train")
    assert "one word" not in caplog.text


def test_an_exported_model_takes_no_word_that_it_would_cut():
    assert join_words({}, ["closed.", "a"]) == "closed. a"
    with pytest.raises(ValueError, match="punctuation"):
        join_words({"punctuation_apart": True}, ["closed."])
