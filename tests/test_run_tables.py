"""Tables of an evaluation on a page."""

import pytest
from conftest import write_table
from html_reader import Page
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapter_bert.errors import UserError
from adapter_bert.reports import report_run
from adapter_bert.reports.html_page import page
from adapter_bert.reports.report_run import evaluation_sections, read_table

pytestmark = pytest.mark.older_stack


def shown(folder):
    made = Page(page("Run", evaluation_sections(folder, 2)).decode())
    made.check()
    return made


def test_what_a_run_lacks_is_said(tmp_path):
    made = shown(tmp_path)
    assert made.texts("h2") == ["Labels", "Confusions", "Hardest examples"]
    assert len(made.texts("p")) == 3
    assert all(text.startswith("The run has no") for text in made.texts("p"))


def test_a_confusion_matrix_has_labels_on_both_sides(tmp_path):
    rows = [("<bad>", "3", "1"), ("good", "0", "0")]
    write_table(
        tmp_path / "eval_confusion.tsv", rows, ("label", "<bad>", "good")
    )
    made = shown(tmp_path)
    heads = [(a["scope"], text) for a, text in made.all("th")]
    assert heads[1:] == [
        ("col", "<bad>"),
        ("col", "good"),
        ("row", "<bad>"),
        ("row", "good"),
    ]
    assert made.texts("td") == ["3", "1", "0", "0"]
    # What is right is not known by its shade alone.
    assert made.texts("strong") == ["3", "0"]
    styles = [attributes["style"] for attributes, _ in made.all("td")]
    assert "0.30" in styles[0] and "0.10" in styles[1] and "0.00" in styles[2]


def test_of_many_labels_the_greatest_confusions_are_shown(tmp_path):
    count = report_run.MOST_LABELS + 1
    labels = [f"l{i}" for i in range(count)]
    rows = [
        (label, *(str(i * (column == 0)) for column in range(count)))
        for i, label in enumerate(labels)
    ]
    write_table(tmp_path / "eval_confusion.tsv", rows, ("label", *labels))
    made = shown(tmp_path)
    assert made.texts("td")[:4] == ["l0", "25", "l0", "24"]
    # Right answers are no confusions, nor what never happened.
    assert len(made.texts("td")) == 2 * (count - 1)
    assert f"of {count} labels" in made.texts("caption")[0]


def test_the_hardest_rows_say_which_they_are_first(tmp_path):
    header = (
        "line",
        "label",
        "predicted",
        "probability_of_label",
        "loss",
        "text",
    )
    rows = [
        (str(i), "a", "b", "0.1", "2.3", "<script>" + "x" * 500)
        for i in range(40)
    ]
    write_table(tmp_path / "eval_hardest.tsv", rows, header)
    made = shown(tmp_path)
    assert made.texts("th")[:6] == [
        "line",
        "label",
        "predicted",
        "text",
        "probability of label",
        "loss",
    ]
    texts = made.texts("td")[2::5]
    assert len(texts) == report_run.MOST_ROWS
    assert {text[:10] for text in texts} == {"<script>xx"}
    assert all(len(text) < 310 and text.endswith("…") for text in texts)
    assert "The 25 dev rows" in made.text and "of 40 in" in made.text


def test_both_dev_sets_are_told_apart(tmp_path):
    for name in ("eval_labels", "eval_labels_mismatched", "eval_types"):
        write_table(tmp_path / f"{name}.tsv", [("a", "1")], ("label", "f1"))
    assert shown(tmp_path).texts("caption") == [
        "Scores of each label",
        "Scores of each label, mismatched",
        "Scores of each type of entities",
    ]


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("eval_labels", "a\tb\n1\n", "eval_labels.tsv:2: 1 cells, expected 2"),
        ("eval_labels", b"a\tb\n\xff\t1\n", "not UTF-8"),
        ("eval_confusion", "label\ta\nb\t1\n", "no confusion matrix"),
        ("eval_confusion", "label\ta\na\tx\n", "no confusion matrix: invalid"),
    ],
)
def test_a_damaged_table_is_one_line(tmp_path, name, content, words):
    path = tmp_path / f"{name}.tsv"
    path.write_bytes(content if type(content) is bytes else content.encode())
    with pytest.raises(UserError, match=words) as caught:
        evaluation_sections(tmp_path, 2)
    assert "\n" not in str(caught.value)


CELLS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\t\n"),
    max_size=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.lists(st.tuples(st.just("x"), CELLS), min_size=1, max_size=4))
def test_a_table_is_read_as_it_was_written(tmp_path, table):
    path = tmp_path / "table.tsv"
    path.write_bytes("".join("\t".join(r) + "\n" for r in table).encode())
    assert read_table(path) == list(map(list, table))
