"""CoNLL files and JSON Lines of words with tags, and schemes of tags."""

import functools
import itertools
import json
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
from conftest import spoil
from hypothesis import given
from seqeval.metrics.sequence_labeling import get_entities

from adapter_bert.data.memory_rows import MemoryRows
from adapter_bert.tasks import tagging_files
from adapter_bert.tasks.tagging_files import (
    BILOU,
    BIO,
    BIOES,
    BMES,
    IO,
    IOB1,
    Sentences,
    Tag,
    WordColumns,
    find_entities,
    find_scheme,
    map_types,
    read_map,
    read_sentences,
    split_tag,
    to_bio,
    write_tags,
)

pytestmark = pytest.mark.older_stack


def read(path, *arguments, **options):
    return read_sentences(str(path), *arguments, **options)


def listed(rows):
    """[[(word, tag)]] of each sentence."""
    tags = map(str, rows.tags) if rows.tags else [None] * len(rows.words)
    return list(map(list, rows.divide(list(zip(rows.words, tags)))))


def put(folder, text, name="train.conll"):
    return spoil(folder, name, text.encode())


PAIRS = [[("EU", "B-ORG"), ("rejects", "O")], [("Peter", "B-PER")]]


@pytest.mark.parametrize(
    "text",
    [
        "EU B-ORG\nrejects O\n\nPeter B-PER\n",
        "EU\tB-ORG\nrejects\tO\n\t\nPeter\tB-PER",
        "\ufeffEU X Y  B-ORG\nrejects X Y   O\n  \n\n \t\nPeter X Y B-PER\n\n",
        "EU\t\tB-ORG\nrejects \tX Y\t O\n\nPeter\t\tB-PER \n",
        "-DOCSTART- -X- O O\n\nEU X Y B-ORG\r\nrejects X Y O\r\n\r\n"
        "Peter X Y B-PER\r\n",
        # No blank line before the next document.
        "-DOCSTART-\nEU B-ORG\nrejects O\n-DOCSTART- (2) O\nPeter B-PER\n",
        # Two files that were joined.
        "\ufeffEU B-ORG\nrejects O\n\ufeff-DOCSTART- O\n\ufeffPeter B-PER\n",
    ],
    ids="spaces tabs columns cells documents no-blank joined".split(),
)
def test_layouts_of_conll_files(tmp_path, text):
    assert listed(read(put(tmp_path, text))) == PAIRS


def test_columns_are_named_by_number(tmp_path):
    path = put(tmp_path, "1 EU B-ORG _\n2 rejects O _\n\n1 Peter B-PER _\n")
    assert listed(read(path, WordColumns("1", "2"))) == PAIRS
    assert listed(read(path, WordColumns("-3", "-2"))) == PAIRS


def test_json_lines(tmp_path):
    text = (
        '{"id": 1, "tokens": ["New York", "\\u00a0", ""],'
        ' "tags": ["B-X", "B-X", "B-X"]}\n\n{"tokens": [], "tags": []}\n'
    )
    rows = read(put(tmp_path, text, "train.jsonl"))
    assert listed(rows) == [
        [("New York", "B-X"), ("\u00a0", "B-X"), ("", "B-X")],
        [],
    ]
    assert rows.where(1) == f"{tmp_path / 'train.jsonl'}:1"


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "rows"])
@pytest.mark.parametrize("columns", [("form", None), (None, "misc")])
def test_keys_may_be_named_as_columns_of_conllu(tmp_path, name, columns):
    columns = WordColumns(*columns)
    words, tags = zip(*PAIRS[0])
    row = dict(zip(columns.keys, (words, tags)))
    path = MemoryRows([row], name)
    if name != "rows":
        path = str(put(tmp_path, json.dumps(row), name))
    assert listed(read_sentences(path, columns)) == PAIRS[:1]


def test_what_no_task_could_restore_is_no_tag(tmp_path):
    line = "1\tIn\tin spite\tADP\t_\t_\t0\t_\t_\t_\n"
    path = put(tmp_path, line, "train.conllu")
    refusals.check(
        lambda: read(path, WordColumns(None, "lemma")), "'in spite' is no tag"
    )


@pytest.mark.parametrize("last", ["\tX", "\t"])
def test_a_word_may_hold_blanks_between_tabs(tmp_path, last):
    """Also in files without tags, or with empty cells for them."""
    word = "10\u2028 000"
    path = put(tmp_path, f"{word}{last}\nhomes{last}\n", "test.conll")
    columns = WordColumns("0", "2" if last == "\tX" else None)
    rows = read(path, columns, needs_tags=False, keeps_text=True)
    out = tmp_path / "out.conll"
    write_tags(str(out), rows, ["B-NUM", "O"])
    assert listed(read(out)) == [[(word, "B-NUM"), ("homes", "O")]]


@refusals.table(
    {
        "spaces": (
            "EU\tO\n10 000 O\n",
            "found 3 columns with spaces",
            "put tabs between",
        ),
        "tabs": ("EU\tO\n10\t000\tO\n", "found 3 columns with tabs between"),
        "mixed": ("EU O\n10 000\tO\n", "with tabs between, expected 2 with"),
        "few": ("EU O\nPeter\n", "found 1 columns with spaces", "expected 2"),
        "no word": ("EU\tO\n \tO\n", "column 0 is empty, expected a word"),
    }
)
def test_all_lines_have_the_same_columns(tmp_path, call, parts):
    """Also where the tags are not looked at."""
    path = put(tmp_path, call)
    for needs_tags in (True, False):
        refusals.check(
            functools.partial(read, path, WordColumns(), needs_tags),
            f"{path}:2: ",
            *parts,
        )


GOOD = '{"tokens": ["a"], "tags": ["O"]}\n'


@refusals.table(
    {
        "no tags": ("EU\nPeter\n", ":1: found 1 columns, expected a tag in"),
        "case": ("EU B-X\nPeter b-X\n", ":2: 'b-X' is no tag", "O, or B-"),
        "order": ("EU B-X\n\nPeter PER-B\n", ":3: 'PER-B' is no tag"),
        "empty": ("-DOCSTART- O\n\n \t\n", " is empty: it holds no word"),
        "no key": (GOOD + '{"tokens": []}', ":2: no key 'tags', found 'tok"),
        "text": (GOOD + '{"tokens": "a", "tags": []}', 'is "a", expected a l'),
        "number": (GOOD + '{"tokens": ["a"], "tags": [0]}', "'tags' is [0], e"),
        "one": (GOOD + '{"tokens": ["a"], "tags": []}', "0 tags ('tags') of 1"),
        "no tag": (GOOD + '{"tokens": ["a"], "tags": ["Q"]}', "'Q' is no tag"),
        "no JSON": (GOOD + "EU B-ORG", ":2: ", "not JSON"),
    }
)
def test_a_bad_line_is_named(tmp_path, call, parts):
    name = f"train.{'jsonl' if call[0] == '{' else 'conll'}"
    path = put(tmp_path, call, name)
    refusals.check(lambda: read(path), path, *parts)


def test_a_column_of_words_that_is_not_there(tmp_path):
    path = put(tmp_path, "EU B-ORG\n")
    refusals.check(
        lambda: read(path, WordColumns("5", "1")),
        ":1: found 2 columns, expected a word in col",
    )


@pytest.mark.parametrize("value", ['"\\ud800"', "1e999"])
def test_what_cannot_be_written_again_is_refused_when_read(tmp_path, value):
    text = f'{{"id": {value}, "tokens": ["the"]}}\n'
    path = put(tmp_path, text, "test.jsonl")
    refusals.check(
        lambda: read(path, WordColumns(), False, True), f"{path}:1: "
    )


@refusals.table(
    {
        "spaces": ("a\tb\na b\n", ":2: 'a b'", "an old type, a tab, and a new"),
        "one": ("a\t\n", ":1: 'a\\t', expected"),
        "three": ("a\tb\tc\n", ":1: 'a\\tb\\tc', expected"),
        "twice": ("a\tb\n\na\tc\n", ":3: the type a occurs twice"),
    }
)
def test_a_bad_table_of_types_is_refused(tmp_path, call, parts):
    path = put(tmp_path, call, "map.tsv")
    refusals.check(lambda: read_map(str(path)), path, *parts)


WORDS = st.text(
    st.characters(
        blacklist_categories=("Cs",), blacklist_characters="\t\r\n\ufeff"
    )
    | st.sampled_from(" \xa0"),
    min_size=1,
    max_size=5,
).filter(
    lambda word: word.strip(" ") == word and not word.startswith("-DOCSTART-")
)
TAGS = st.sampled_from(["O", "B-X", "I-a-b", "E-X"])


@given(
    st.lists(
        st.lists(st.tuples(WORDS, TAGS), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([" ", "\t", "  ", " x ", "\t\tx y\t ", " \t"]),
    st.sampled_from(["\n", "\r\n", "\t\n", "\n \n\n"]),
    st.sampled_from(["", "-DOCSTART- -X- O\n\n"]),
)
def test_what_is_written_is_read_and_written_again(
    tmp_path_factory, sentences, between, blank, document
):
    """Whatever the layout, and with other tags."""
    if "\t" not in between:
        sentences = [
            [(word.replace(" ", "\xa0"), tag) for word, tag in sentence]
            for sentence in sentences
        ]
    folder = tmp_path_factory.mktemp("files")
    text = document + blank.join(
        "".join(f"{word}{between}{tag}\n" for word, tag in sentence)
        for sentence in sentences
    )
    rows = read(put(folder, text), keeps_text=True)
    assert listed(rows) == sentences
    again = folder / "again.conll"
    write_tags(str(again), rows, list(map(str, rows.tags)))
    assert again.read_bytes().decode() == text
    words = [word for sentence in sentences for word, _ in sentence]
    other = [f"B-{number}" for number in range(len(words))]
    write_tags(str(again), rows, other)
    written = read(again)
    assert (
        list(map(str, written.tags)) == other and list(written.words) == words
    )


def test_a_test_file_may_lack_tags(tmp_path):
    text = "-DOCSTART-\n\nEU\nrejects \r\n\nPeter"
    path = put(tmp_path, text, "test.conll")
    rows = read(path, needs_tags=False, keeps_text=True)
    assert rows.tags is None
    assert [list(s) for s in rows.divide(rows.words)] == [
        ["EU", "rejects"],
        ["Peter"],
    ]
    out = tmp_path / "out.conll"
    write_tags(str(out), rows, ["B-X", "O", "O"])
    assert out.read_bytes() == (
        b"-DOCSTART-\n\nEU B-X\nrejects O \r\n\nPeter O"
    )


def test_tags_are_written_into_json_lines(tmp_path):
    text = '{"id": 7, "tokens": ["ß", "b"]}\n\n{"tags": ["?"], "tokens": ["c"]}'
    path = put(tmp_path, text, "test.jsonl")
    rows = read(path, needs_tags=False, keeps_text=True)
    write_tags(str(tmp_path / "out.jsonl"), rows, ["B-X", "I-X", "O"])
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines[0] == '{"id": 7, "tokens": ["ß", "b"], "tags": ["B-X", "I-X"]}'
    assert json.loads(lines[1]) == {"tokens": ["c"], "tags": ["O"]}


def test_types_are_renamed(tmp_path):
    path = put(tmp_path, "person\tPER\r\ngroup\tORG\n\ncorp\tORG\nx-y\tO", "m")
    table = read_map(str(path))
    assert table == {"person": "PER", "group": "ORG", "corp": "ORG", "x-y": "O"}
    rows = pack(["B-person I-person B-corp B-group O B-x-y I-x-y".split()])
    changed = map_types(rows, table, "m")
    assert list(map(str, changed.tags)) == (
        "B-PER I-PER B-ORG B-ORG O O O".split()
    )
    del table["x-y"], table["person"]
    refusals.check(
        lambda: map_types(rows, table, "m"),
        "file:0: m does not have the types person, x-y; give each a line",
    )


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    "name, text",
    [
        (
            "test.conll",
            "-DOCSTART-\n\nEU B-ORG\nrejects O\n\n\nPeter B-PER\n\n",
        ),
        (
            "test.jsonl",
            '{"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}\n\n'
            '{"tokens": ["Peter"], "tags": ["B-PER"]}\n\n',
        ),
    ],
    ids=["conll", "json"],
)
def test_the_first_sentences_alone(tmp_path, name, text, count):
    rows = read(put(tmp_path, text, name), keeps_text=True).first(count)
    assert listed(rows) == PAIRS[:count]
    # What is written is read again.
    path = tmp_path / f"new_{name}"
    write_tags(str(path), rows, ["B-PER"] * len(rows.words))
    assert listed(read(path)) == [
        [(word, "B-PER") for word, _ in pairs] for pairs in PAIRS[:count]
    ]


TYPES = ("X", "a-b", "B-I", "E")
# A sentence: words outside, or (type, words) of an entity.
SENTENCES = st.lists(
    st.lists(
        st.none() | st.tuples(st.sampled_from(TYPES), st.integers(1, 4)),
        max_size=6,
    ),
    min_size=1,
    max_size=5,
)


def write(sentence, scheme):
    """The tags of a sentence in a scheme."""
    tags, before = [], None
    for part in sentence:
        if part is None:
            tags.append("O")
        else:
            name, words = part
            prefixes = ["B"] + ["I"] * (words - 1)
            if scheme in tagging_files.SCHEMES:
                _, within, end, single = tagging_files.SCHEMES[scheme]
                prefixes[1:] = [within] * (words - 1)
                prefixes[-1] = end if words > 1 else single
            elif scheme == IOB1 and not (before and before[0] == name):
                prefixes[0] = "I"
            tags += [f"{prefix}-{name}" for prefix in prefixes]
        before = part
    return tags


def pack(sentences):
    """Sentences with these tags, of words on lines from 0."""
    rows = Sentences.of_words(sentences)
    return replace(
        rows,
        path="file",
        lines=np.arange(len(rows.words)) - 1,
        tags=list(map(split_tag, rows.words)),
    )


@given(SENTENCES, st.sampled_from([BIO, IOB1, BIOES, BILOU, BMES]))
def test_every_scheme_is_found_and_becomes_bio(sentences, scheme):
    rows = pack([write(s, scheme) for s in sentences])
    name = find_scheme(rows)
    if scheme == BMES and not any(tag.prefix == "M" for tag in rows.tags):
        scheme = BIOES
    if any(any(sentence) for sentence in sentences):
        assert name == scheme
    else:
        assert name is None
    expected = pack([write(s, BIO) for s in sentences]).tags
    assert to_bio(rows.tags, rows.starts) == expected


@given(
    st.lists(
        st.lists(
            st.sampled_from(["O", "PER", "art-film", "GPE.NAM", "人"]),
            max_size=8,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_words_of_one_plain_type_that_touch_are_one_entity(sentences):
    sentences[-1].append("O")
    rows = pack(sentences)
    expected = IO if any(tag.type for tag in rows.tags) else None
    assert find_scheme(rows) == expected
    bio = to_bio(rows.tags, rows.starts)
    for tags, types in zip(rows.divide(bio), sentences):
        runs = [list(run) for _, run in itertools.groupby(types)]
        ends = itertools.accumulate(map(len, runs))
        assert find_entities(tags) == [
            (run[0], end - len(run), end)
            for run, end in zip(runs, ends)
            if run[0] != "O"
        ]


@given(
    st.lists(
        st.lists(
            st.sampled_from(["O", "B-X", "I-X", "B-a-b", "I-a-b"]), max_size=8
        ),
        max_size=4,
    )
)
def test_any_predicted_tags_become_lawful_as_conlleval_reads_them(sentences):
    rows = pack(sentences)
    lawful = to_bio(rows.tags, rows.starts)
    for tags, of_sentence in zip(rows.divide(lawful), sentences):
        assert find_entities(tags) == [
            (name, start, end + 1)
            for name, start, end in get_entities(of_sentence)
        ]
    assert to_bio(lawful, rows.starts) == lawful
    again = find_scheme(replace(rows, tags=lawful))
    assert again == (BIO if any(t.type for t in lawful) else None)


@pytest.mark.parametrize(
    "text",
    ["", "o", "0", "_", "-", "B", "M", "B-", "X-PER", "W-PER", "b-PER", "PER-B"]
    + ["B-P Q", "B-P\xa0Q", "P Q", "B_PER", "I.PER", "B\u2010PER", "PER_I"]
    + ["PER-", "-PER", "PRP$", "(PER*", "9PER", "tag", "Labels", "ner_tags"],
)
def test_what_is_no_tag(text):
    assert split_tag(text) is None


def test_parts_of_tags():
    for text, *parts in (
        ("B-creative-work", "B", "creative-work"),
        ("M-PER", "M", "PER"),
        ("person-actor", "", "person-actor"),
        ("O", "O", ""),
    ):
        assert split_tag(text) == Tag(*parts) and str(Tag(*parts)) == text


@refusals.table(
    {
        "BIO": ("B-X I-X O I-X|B-X", "file:3: I-X begins an", "B-X", "BIO)"),
        "type": ("B-X I-Y", "file:1: I-Y begins an entity; expected B-Y"),
        "IOB1": (
            "I-X I-X O B-X|I-Y B-Y",
            "file:3: B-X begins an entity; expected I-X",
            "IOB1)",
        ),
        "BIOES": ("S-X O U-X", "file:2: U-X", "than I-, E- and S-", "BIOES"),
        "BMES": ("B-X M-X I-X E-X", "file:2: I-X", "M-, E- and S-", "BMES"),
        "M at the end": ("B-X M-X|O", "file:1:", "M-X ends the", "E- or S-"),
        "M": ("S-X M-X E-X", "file:1: M-X continues no entity"),
        "plain": ("O PER|I-LOC", "file:1: 'PER' has no prefix", "(file:2)"),
        "plain after": ("B-cell protein O", "file:1: 'protein'", "'B-cell'"),
        "no O": ("NNP VBZ|NN", "file:0: 'NNP'", "no word of the file has the"),
        "L": ("L-X", "file:0: L-X continues no entity; elsewhere the file has"),
        "I": ("S-X I-X", "file:1: I-X continues no entity"),
        "E": ("B-X E-X E-X", "file:2: E-X continues no entity"),
        "E of a type": ("B-X E-Y", "file:1: E-Y continues no entity"),
        "open": ("B-X O|S-X", "file:1: O follows an entity that no E-X ends"),
        "B": ("U-X B-X B-X L-X", "file:2: B-X follows an entity that no L-X"),
        "end": ("S-X|O B-X|O", "file:2: B-X ends the sentence", "S-"),
    }
)
def test_a_file_that_follows_no_scheme_is_refused(call, parts):
    rows = pack([sentence.split() for sentence in call.split("|")])
    refusals.check(lambda: find_scheme(rows), *parts)
