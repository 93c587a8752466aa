"""Files as people's tools write them: read, named, or warned of."""

import csv
import io
import json
import sys

import pytest
import refusals
from conftest import SHARED, write_json_lines
from task_files import listed, put

from adapter_bert.answering import row_stream
from adapter_bert.data import tables
from adapter_bert.data.memory_rows import MemoryRows
from adapter_bert.data.tables import Layout, SplitFiles
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.squad_data import read_questions
from adapter_bert.tasks.tagging_files import WordColumns, read_sentences

pytestmark = [pytest.mark.real_data, pytest.mark.older_stack]

TEAM = {"label_column": "team"}
SHORT = {
    "text_a_column": "What happened?",
    "label_column": "What was wrong?",
    "multi_label": True,
    "label_separator": ",",
}
OF_TURK = {"text_a_column": "Input.text", "label_column": "Answer.team"}
PAIRS = {
    "text_a_column": "Subject",
    "text_b_column": "Description",
    "label_column": "Group",
}
PARCEL, TWICE = "the parcel came open", "paid twice for one order"
RANG, CARD = "the courier never rang", "my card was charged again"
TICKETS = {PARCEL: "delivery", TWICE: "billing", RANG: "delivery"}
TICKETS[CARD] = "billing"
# With a comma in the second text.
SHEET = {t.replace("twice for", "twice, for"): x for t, x in TICKETS.items()}
SURVEY = {
    PARCEL: ["Delivery", "Product"],
    TWICE: ["Billing"],
    RANG: ["Delivery"],
    "late, and charged twice": ["Delivery", "Billing"],
    "all was fine": [],
}
LIT = "the lamp is bright"
BROKE = "it broke at once"
# File -> flags, and its rows: text -> label, or labels.
READ = {
    "jira.csv": (
        {
            "text_a_column": "Summary",
            "label_column": "Labels",
            "multi_label": True,
        },
        {
            "Lamp stays dark after an update": ["firmware", "light"],
            "Invoice shows the wrong month": ["billing"],
            "App cannot find the lamp": ["app", "firmware", "network"],
            "Refund has not arrived": ["billing"],
            "Colours look too blue": ["light"],
            "Where is the manual": [],
        },
    ),
    "qualtrics.csv": ({"text_a_column": "Q3", "label_column": "Q4"}, TICKETS),
    "survey_monkey.csv": (
        {
            "text_a_column": "What happened?",
            "label_columns": ["Delivery", "Billing", "Product"],
        },
        SURVEY,
    ),
    "lime_survey.csv": (
        {
            "text_a_column": "What happened?",
            "label_columns": [
                "What was wrong? [Delivery]",
                "What was wrong? [Billing]",
            ],
        },
        {
            PARCEL: ["What was wrong? [Delivery]"],
            TWICE: ["What was wrong? [Billing]"],
            "late, and charged twice": [
                "What was wrong? [Delivery]",
                "What was wrong? [Billing]",
            ],
            "all was fine": [],
        },
    ),
    "google_forms.csv": (SHORT, SURVEY),
    "label_studio_choices.csv": (
        {"label_column": "mood", "multi_label": True},
        {
            LIT: ["Good"],
            "bright, and too dear": ["Good", "Bad"],
            BROKE: ["Bad"],
            "it is a lamp": ["Neutral"],
            "broke, but a nice box": ["Good", "Bad"],
        },
    ),
    "doccano_class.jsonl": (
        {},
        {
            LIT: "good",
            BROKE: "bad",
            "what a lovely colour": "good",
            "the switch fell off": "bad",
        },
    ),
    "doccano_classes.csv": (
        {
            "text_a_column": "data",
            "multi_label": True,
            "label_separator": "#",
        },
        {
            LIT: ["good"],
            "bright, and too dear": ["dear", "good"],
            BROKE: ["bad"],
            "broke, and it was dear": ["bad", "dear"],
        },
    ),
    "prodigy_textcat.jsonl": (
        {},
        {TWICE: "BILLING", RANG: "DELIVERY", CARD: "BILLING"}
        | {PARCEL: "DELIVERY"},
    ),
    "prodigy_choice.jsonl": (
        {"label_column": "accept", "multi_label": True},
        {
            TWICE: ["billing"],
            "late, and charged twice": ["billing", "delivery"],
            "all was fine": [],
            PARCEL: ["delivery", "product"],
        },
    ),
    "argilla.jsonl": (
        {"label_column": "mood.responses"},
        {LIT: "good", BROKE: "bad", "the switch fell off": "bad"},
    ),
    "argilla_records.json": (
        {"label_column": "mood.responses"},
        {LIT: "good", BROKE: "bad"},
    ),
    "records.json": ({}, TICKETS),
    "records_array.jsonl": ({}, TICKETS),
    **{f"excel_{x}.csv": (TEAM, SHEET) for x in ("utf16", "sep", "semicolon")},
    "excel_decimal_comma.csv": (
        {"label_column": "stars", "regression": True},
        {
            "a fine lamp": "4.5",
            BROKE: "1.0",
            "it is a lamp": "3.0",
            "dear but bright": "3.5",
        },
    ),
}


def case(name):
    """A file of people's tools; a test that asks for it is skipped without."""
    if not SHARED.is_dir():
        pytest.skip(f"no published data sets at {SHARED}")
    return SHARED / "cases" / "own_files" / name


def task_of(name, **flags):
    """A task over a file."""
    path = name if "/" in str(name) else case(name)
    return custom_task(split_files=SplitFiles(train=str(path)), **flags)


def trained_rows(*named, **flags):
    task, rows = task_of(*named, **flags).read("", ["train"])
    described = {k: x for k, x in task.describe().items() if k != "held_out"}
    rows = rows["train"]
    return described, list(zip(rows.texts, rows.label))


@pytest.mark.parametrize("name", READ)
def test_a_file_is_its_rows_in_a_plain_file(tmp_path, name):
    flags, rows = READ[name]
    task, read = trained_rows(name, **flags)
    listed = [{"text": text, "label": label} for text, label in rows.items()]
    plain = tmp_path / "plain.jsonl"
    write_json_lines(plain, listed)
    kinds = {k: flags[k] for k in ("multi_label", "regression") if k in flags}
    if names := flags.get("label_columns"):
        # In the order of the columns, not sorted.
        kinds["multi_label"] = True
        assert task["labels"] == sorted(names)
    if separator := flags.get("label_separator"):
        kinds["label_separator"] = separator
    assert (task, read) == trained_rows(str(plain), **kinds)


WAY_OUT = 'save it as "CSV UTF-8" in Excel'


@refusals.table(
    {
        "repeated": (
            ("jira.csv", {**READ["jira.csv"][0], "multi_label": False}),
            "3 columns are named 'Labels'",
            "--multi_label",
        ),
        "choices": (
            ("label_studio_choices.csv", {"label_column": "mood"}),
            ":3: found 2 labels, ['Good', 'Bad']",
            "--multi_label",
        ),
        "empty mark": (
            (
                "kobo.csv",
                {
                    "text_a_column": "what",
                    "label_columns": ["wrong/delivery", "wrong/billing"],
                },
            ),
            "kobo.csv:5: the label column 'wrong/delivery' holds ''",
        ),
        "latin": (("excel_latin1.csv", TEAM), ":2: not", "Windows-1252", "CSV"),
        "xlsx": (("workbook_xlsx.csv", TEAM), "a spreadsheet (PK)", WAY_OUT),
        "ods": (("workbook_ods.csv", TEAM), "a spreadsheet (PK)", WAY_OUT),
        "xml": (("workbook_xml.csv", TEAM), "is XML", WAY_OUT),
        "html": (("workbook_html.csv", TEAM), "is HTML", WAY_OUT),
    }
)
def test_what_is_not_read_is_named(call, parts):
    name, flags = call
    refusals.check(lambda: trained_rows(name, **flags), *parts)


def test_answers_of_prodigy_may_be_the_labels(tmp_path):
    row = '{{"text": "a", "_task_hash": 1, "answer": "{}"}}\n'
    lines = map(row.format, ("accept", "reject", "ignore"))
    path = str(put(tmp_path / "a.jsonl", "".join(lines)))
    rows = tables.read_rows(path, Layout("text", label="answer"))
    assert rows.label == ["accept", "reject"]


def test_a_row_of_two_labels_is_refused_in_lines_of_json_too(tmp_path):
    path = put(tmp_path / "a.jsonl", '{"text": "a", "label": ["b", "c"]}\n')
    refusals.check(
        lambda: trained_rows(str(path)), "a.jsonl:1: ", "--multi_label"
    )


@pytest.mark.parametrize(
    "name, ending", [("fast_text.txt", ".txt"), ("workbook_xlsx.csv", ".xlsx")]
)
def test_another_ending_does_not_hide_what_a_file_is(tmp_path, name, ending):
    path = put(tmp_path / f"a{ending}", case(name).read_bytes())
    parts = {"fast_text.txt": "fastText (__label__)"}.get(name, "a spreadsheet")
    refusals.check(
        lambda: SplitFiles(train=str(path)).check(tables.READERS, True), parts
    )


@pytest.mark.parametrize(
    "name, flags, parts",
    [
        ("twice_encoded.csv", TEAM, ("3 rows", ":2 MÃ¶bel, which may mean Mö")),
        ("excel_errors.csv", TEAM, ("3 cells hold", "_errors.csv:3 #NAME?")),
        (
            "crowd.csv",
            {"label_column": "about"},
            ("Y and Yes", "1 of 7 rows are there before"),
        ),
        ("zendesk.csv", PAIRS, ("of 4 rows 2 have an empty text, 0 of them",)),
        (
            "google_forms_comma.csv",
            SHORT,
            ("always stand together", "'Damaged' and 'bent or open'"),
        ),
        (
            "doccano_classes.csv",
            {"text_a_column": "data"},
            ("bad#dear, dear#good", "--label_separator='#'"),
        ),
        (
            "doccano_seq2seq.jsonl",
            {"multi_label": True},
            ("each of 4 labels occurs once",),
        ),
        (
            "prodigy_textcat.jsonl",
            {},
            ("4 rows are left out: 1 with answer 'ignore', 3 with",),
        ),
        ("prodigy_choice.jsonl", READ["prodigy_choice.jsonl"][0], ("1 rows",)),
        ("argilla.jsonl", READ["argilla.jsonl"][0], ("2 rows are left out",)),
        ("workers.csv", OF_TURK, ("1 rows are left out", "Rejected")),
        ("qualtrics.csv", READ["qualtrics.csv"][0], ("2 more header lines",)),
    ],
)
def test_what_rows_may_not_mean_is_told(caplog, name, flags, parts):
    with caplog.at_level("INFO", logger="absl"):
        trained_rows(name, **flags)
    for part in parts:
        assert part in caplog.text


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.tsv", "text\tlabel\n<3; [x]\tPK\n"),
        ("a.csv", "text,label\n<3; [x],PK\n"),
        ("a.jsonl", '{"text": "<3; [x]", "label": "PK"}\n'),
    ],
)
def test_plain_tables_do_not_load_the_odd_forms(
    tmp_path, monkeypatch, name, content
):
    monkeypatch.delattr("adapter_bert.data.formats", raising=False)
    monkeypatch.setitem(sys.modules, "adapter_bert.data.formats", None)
    rows = tables.read_rows(
        str(put(tmp_path / name, content)), Layout("text", label="label")
    )
    assert (rows.text_a, rows.label) == (["<3; [x]"], ["PK"])


PAIR = Layout(0, label=1, header=False)
ALONE = Layout(0, header=False)
NAMED = Layout("text", label="label")


@pytest.mark.parametrize(
    "name, content, layout, first, rows",
    [
        *(
            (
                f"a{ending}",
                f"{text}{mark}x\nb{mark}y\n",
                PAIR,
                0,
                [[text, "x"], ["b", "y"]],
            )
            for ending, mark in ((".csv", ","), (".tsv", "\t"))
            for text in (
                "<html> is a tag",
                "<body> ...",
                "<head> of state",
                "<Table 5>",
                "<p xmlns is",
                "<!doctype is",
                "<?xml is",
                "[{BOS}] hi",
                "__label__x is",
                "sep=",
            )
        ),
        (
            "a.csv",
            "one; two\nfour; five\nthis is; six\n",
            ALONE,
            0,
            [["one; two"], ["four; five"], ["this is; six"]],
        ),
        (
            "a.csv",
            "one;two\nfour; five\n",
            ALONE,
            0,
            [["one;two"], ["four; five"]],
        ),
        ("a.csv", "a;x\nb;y\n", PAIR, 0, [["a", "x"], ["b", "y"]]),
        ("a.csv", 'a;x\n"b; c";y\n', ALONE, 0, [["a"], ["b; c"]]),
        ("a.tsv", "sep=x\nfoo\nbar\n", ALONE, 0, [["sep=x"], ["foo"], ["bar"]]),
        ("a.csv", "sep=;\na;x\nb;y\n", PAIR, 1, [["a", "x"], ["b", "y"]]),
        ("a.csv", "sep=;\ntext\na\n\n", Layout("text"), 2, [["a"], [""]]),
        ("a.csv", 'a;"b\nc";text\n1;2;x\n', Layout("text"), 2, [["x"]]),
        *(
            ("a.csv", f'n{x}"b, c"{x}text\n1{x}2{x}x\n', layout, 1, [[cell]])
            for x in ";\t"
            for layout, cell in [(Layout("text"), "x"), (Layout("b, c"), "2")]
        ),
        ("a.csv", 'text,"b;c"\nx;y,2\n', Layout("text"), 1, [["x;y"]]),
        ("a.csv", "a;b,c\nd;e,f\n", PAIR, 0, [["a;b", "c"], ["d;e", "f"]]),
        (
            "a.json",
            """[{"annotation_id": 1, "text": "a", "label": "x"},
                {"annotation_id": 2, "text": "b",
                 "label": {"choices": ["x", "y"]}}]""",
            Layout("text", label="label", label_separator="|"),
            0,
            [["a", "x"], ["b", "x|y"]],
        ),
        *(
            (
                "a.csv",
                f'text,label\na,{cell}\nb,"[""c""]"\n',
                NAMED,
                1,
                [["a", label], ["b", "c"]],
            )
            for label, cell in [
                *((x, x) for x in ("[1]", "[NaN]", "1", "{}")),
                ("[1, 2]", '"[1, 2]"'),
            ]
        ),
        *(
            (
                "a.jsonl",
                json.dumps({"text": "a", "label": label}),
                NAMED,
                0,
                [["a", label]],
            )
            for label in ("[1]", '["c"]', "[]")
        ),
    ],
)
def test_lines_are_divided_as_their_table_is_or_stay_plain(
    tmp_path, name, content, layout, first, rows
):
    path = put(tmp_path / name, content)
    expected = list(enumerate(rows, first))
    assert listed(tables.read_rows(str(path), layout)) == expected


def test_columns_of_rows_in_memory_may_be_numbers():
    rows = tables.read_rows(MemoryRows([("a", "x")], "rows"), PAIR)
    assert (rows.text_a, rows.label) == (["a"], ["x"])


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize(
    "column, kept, rejected",
    [
        (
            "label",
            {"_task_hash": 1, "answer": "accept"},
            {"_task_hash": 2, "answer": "reject"},
        ),
        (
            "label",
            {"AssignmentStatus": "Approved"},
            {"AssignmentStatus": "Rejected"},
        ),
        (
            "a.responses",
            {"a.responses.status": ["submitted"]},
            {"a.responses.status": ["discarded"]},
        ),
    ],
)
def test_rejected_rows_are_left_out(
    tmp_path, column, kept, rejected, in_memory
):
    """Wherever rows are, and however long the first one is."""
    texts = "a" * 2**16, "b", "c"
    rows = [
        {"text": text, "tokens": [text], column: ["O"], **judgement}
        for text, judgement in zip(texts, (kept, rejected, kept))
    ]
    source = MemoryRows(rows, "rows")
    if not in_memory:
        write_json_lines(tmp_path / "a.jsonl", rows)
        source = str(tmp_path / "a.jsonl")
    table = tables.read_rows(source, Layout("text", label=column))
    assert table.text_a == [texts[0], "c"] and table.lines.tolist() == [0, 2]
    sentences = read_sentences(source, WordColumns(tag=column))
    assert sentences.words == table.text_a
    if column == "label":
        # That the texts of a pair match is what people judged.
        pairs = Layout("text", "text", lists_choices=True)
        assert tables.read_rows(source, pairs).text_a == table.text_a


def test_an_empty_answer_counts_and_a_missing_one_does_not():
    span = {"start": 0, "end": 1, "label": "PER"}
    responses = (
        {},
        {"ner": [{"value": [], "status": "submitted"}]},
        {"ner": [{"value": [span], "status": "submitted"}]},
    )
    rows = [
        {"fields": {"text": text}, "responses": of}
        for text, of in zip("abc", responses)
    ]
    columns = WordColumns("text", "ner.responses")
    sentences = read_sentences(MemoryRows(rows, "rows"), columns)
    assert sentences.words == ["b", "c"]


@pytest.mark.parametrize(
    "responses, label",
    [({"label": 3}, "3"), ({"label": [{"value": 1}]}, "1"), ({"label": {}}, 0)],
)
def test_responses_of_any_form(tmp_path, responses, label):
    path = tmp_path / "a.jsonl"
    row = {"fields": {"text": "a"}, "responses": responses}
    write_json_lines(path, [row])
    layout = Layout("text", label="label.responses")
    if label:
        assert tables.read_rows(str(path), layout).label == [label]
    else:
        refusals.check(
            lambda: tables.read_rows(str(path), layout), "a.jsonl:1: ", "{}"
        )


@pytest.mark.parametrize(
    "content, words",
    [
        ("# text O\nfoo NN B-X\n", ["#", "foo"]),
        ("#\tB-X extra\nfoo\tO x\n", ["#", "foo"]),
        ("N\tB-X extra\nfoo\tO x\n", ["N", "foo"]),
    ],
)
def test_words_of_plain_conll_are_no_marks(tmp_path, content, words):
    path = put(tmp_path / "a.conll", content)
    assert read_sentences(str(path), needs_tags=False).words == words


def test_plain_rows_are_told_nothing(tmp_path, caplog):
    rows = io.StringIO(newline="")
    table = csv.writer(rows)
    cells = ("Ça va, für Möbel â", "# of days", "Ã 1", "x;y", "a|b / c", "N/A")
    table.writerows([("text", "label"), *((x, "yes#1") for x in cells)])
    table.writerows((x * 2, "no") for x in cells)
    path = put(tmp_path / "a.csv", rows.getvalue())
    trained_rows(str(path))
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_texts_of_several_workers_are_not_parted():
    task = task_of("workers.csv", **OF_TURK, dev_share=0.3)
    rows = task.read("", ["train", "dev"])[1]
    assert len(rows["train"]) + len(rows["dev"]) == 17
    assert not {*rows["train"].texts} & {*rows["dev"].texts}


def test_lines_keep_their_numbers():
    rows = tables.read_rows(
        str(case("qualtrics.csv")), Layout("Q3", label="Q4")
    )
    assert (rows.lines + 1).tolist() == [5, 6, 7, 8]
    rows = tables.read_rows(
        str(case("excel_sep.csv")), Layout("text", label="team")
    )
    assert (rows.lines + 1).tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(
    "name, column, texts",
    [
        ("qualtrics.csv", "Q3", TICKETS),
        ("records.json", "text", TICKETS),
        ("records_array.jsonl", "text", TICKETS),
        ("excel_utf16.csv", "text", SHEET),
        ("excel_semicolon.csv", "text", SHEET),
        ("argilla_records.json", "text", (LIT, BROKE)),
        # A text is answered whatever people said of its label.
        ("argilla.jsonl", "text", None),
    ],
)
def test_rows_to_answer(name, column, texts, caplog):
    path = str(case(name))
    sources = [path]
    if name.startswith("argilla_"):
        sources.append(MemoryRows(json.loads(case(name).read_text()), "rows"))
    for source in sources:
        rows = row_stream.file_rows(source, [[column]], lambda _: None)
        answered = [text for (text,), _ in rows]
        assert answered == list(texts) if texts else len(answered) == 5
    assert not caplog.text


def test_a_header_of_another_name_is_a_row_with_a_warning(tmp_path, caplog):
    path = put(tmp_path / "a.csv", "body\na cat\n")
    rows = row_stream.file_rows(str(path), [["text"]], lambda _: None)
    assert [text for (text,), _ in rows] == ["body", "a cat"]
    assert f"{path}: the first line has no column 'text', so it" in caplog.text


@pytest.mark.parametrize(
    "content, part",
    [
        ("a;b\nc;d\n", "found 2 columns"),
        ("a\tb\nc\td\n", "found 2 columns"),
        (lambda: case("workbook_xml.csv").read_bytes(), "is XML"),
        (lambda: case("workbook_html.csv").read_bytes(), "is HTML"),
        (lambda: case("workbook_xlsx.csv").read_bytes(), "is a spreadsheet"),
        ('{\n "text": "a"\n}\n', "is one JSON object of several lines"),
    ],
)
def test_lines_of_another_form_are_no_texts(tmp_path, content, part):
    path = put(tmp_path / "a.csv", content() if callable(content) else content)
    rows = row_stream.file_rows(str(path), [["text"]], lambda _: None)
    refusals.check(lambda: list(rows), part)


@pytest.mark.parametrize("first", [b"[\n{}", b"PK\x03\x04", b"<html>", b"{\n"])
def test_nor_are_those_of_a_pipe(first):
    rows = row_stream.pipe_rows(io.BytesIO(first), [["text"]])
    refusals.check(lambda: list(rows), "stdin is ")


@pytest.mark.parametrize(
    "texts, ending",
    [
        *(
            ([first, "hello"], ".txt")
            for first in (
                "[",
                "{",
                "[{x}] hi",
                '[ {"a":1} ]',
                "__label__x is",
                "<html> is a tag",
                "<p xmlns is",
                "<Table 5>",
                "sep=;",
            )
        ),
        (["[deleted]", "<3 this", "{ is open", "PKW", "a; b", "sep=1"], ".txt"),
        (["one; two", "four; five", "this is; six"], ".csv"),
    ],
)
def test_texts_that_only_begin_like_another_form_are_texts(
    tmp_path, texts, ending
):
    content = "".join(f"{text}\n" for text in texts).encode()
    path = put(tmp_path / f"a{ending}", content)
    rows = row_stream.file_rows(str(path), [["text"]], lambda _: None)
    assert [text for (text,), _ in rows] == texts
    # A pipe's first line alone has to tell.
    if texts[0] not in ("[", "{", '[ {"a":1} ]'):
        rows = row_stream.pipe_rows(io.BytesIO(content), [["text"]])
        assert [text for (text,), _ in rows] == texts


ANSWERS = {"q1": "1903", "q2": "1987"}


@pytest.mark.parametrize(
    "name, answers",
    [
        ("squad_rows.jsonl", ANSWERS),
        ("haystack.json", dict(zip("12", ANSWERS.values()))),
        ("mrqa.jsonl", {"m1": "1903", "m2": "1987", "m3": "Bus 7"}),
    ],
)
def test_questions_are_read(name, answers):
    questions = read_questions(str(case(name)), False)
    assert {q.id: q.answers[0].text for q in questions} == answers
    for question in questions:
        [(text, start)] = question.answers
        assert question.context.startswith(text, start)


def test_a_text_in_json_may_look_like_a_list(tmp_path):
    path = tmp_path / "a.jsonl"
    write_json_lines(path, [{"text": "a", "negative": '["x"]'}])
    layout = Layout("text", choices=("negative",), lists_choices=True)
    assert tables.read_rows(str(path), layout).choices == (['["x"]'],)


@refusals.table(
    {
        "an empty list of labels": ("b,,[]", "a.csv:3: found 0 labels"),
        "negatives": ('b,"[""p""]",c', "a.csv:3: a cell holds a list of texts"),
    }
)
def test_lists_in_cells_that_are_refused(tmp_path, call, parts):
    path = put(tmp_path / "a.csv", f"text,negative,label\na,q,c\n{call}\n")
    negatives = {"choices": ("negative",), "lists_choices": True}
    is_label = call.endswith("[]")
    more = {"label": "label"} if is_label else negatives
    layout = Layout("text", **more)
    refusals.check(lambda: tables.read_rows(str(path), layout), *parts)


@refusals.table(
    {
        "table": ("haystack.csv", "answer_start", ".jsonl"),
        "no ids": ("squad_without_ids.json", 'expected an object with "id"'),
    }
)
def test_questions_that_are_not_read_are_named(call, parts):
    refusals.check(lambda: read_questions(str(case(call)), False), *parts)


def test_mrqa_has_two_names_of_a_question(tmp_path):
    question = {
        "id": "56be",
        "qid": "b88d",
        "question": "Which bus?",
        "answers": ["Bus 7"],
        "detected_answers": [{"text": "Bus 7", "char_spans": [[0, 4]]}],
    }
    path = tmp_path / "a.jsonl"
    rows = [{"id": "", "context": "Bus 7 stops there.", "qas": [question]}]
    write_json_lines(path, rows)
    [read] = read_questions(str(path), False)
    assert read.id == "b88d"
    assert [(a.text, a.start) for a in read.answers] == [("Bus 7", 0)]


@pytest.mark.parametrize(
    "change, part",
    [
        ({"qas": 1}, '"qas" is'),
        ({"qas": [{"detected_answers": [{"char_spans": [1]}]}]}, "found 1 in"),
        ({"qas": [{"detected_answers": [1]}]}, '"char_spans"'),
        ({"answers": 5, "question": "x"}, '"answers" is'),
        ({"answers": {"text": 5}, "question": "x"}, '"text" is'),
    ],
)
def test_malformed_rows_of_questions(tmp_path, change, part):
    path = tmp_path / "a.jsonl"
    write_json_lines(path, [{"context": "a", **change}])
    refusals.check(
        lambda: read_questions(str(path), False), "a.jsonl:1: ", part
    )
