"""Elements, tables and pages of HTML."""

import html

import pytest
from html_reader import Page
from hypothesis import given
from hypothesis import strategies as st

from adapter_bert.reports import html_page
from adapter_bert.reports.html_page import (
    element,
    page,
    section,
    table,
)

pytestmark = pytest.mark.older_stack


def read(*content):
    return Page(page("A page", [section(2, "Part", *content)]).decode())


def test_text_and_elements_keep_their_order():
    made = element("p", "a", element("b", "c"), "d", "e", element("i"), "f")
    assert read(made).texts("p") == ["acdef"]


def test_a_table_names_its_rows_and_columns():
    rows = [("x", "1.5 ± 0.1", "a"), ("y", "-2", "b")]
    shown = read(table("What", ("name", "n", "text"), rows, ["text"]))
    shown.check()
    assert shown.texts("caption") == ["What"]
    assert [(a["scope"], text) for a, text in shown.all("th")] == [
        ("col", "name"),
        ("col", "n"),
        ("col", "text"),
        ("row", "x"),
        ("row", "y"),
    ]
    classes = [attributes.get("class") for attributes, _ in shown.all("td")]
    assert classes == ["number", "long"] * 2
    # Above numbers there is their name.
    assert [a.get("class") for a, _ in shown.all("th")][:3] == [
        None,
        "number",
        None,
    ]


def test_a_table_without_rows_is_one():
    read(table("None", ("a", "b"), [])).check()


def test_a_list_leads_to_all_parts():
    shown = Page(page("Two", [section(2, "One"), section(2, "Other")]).decode())
    shown.check()
    assert shown.texts("a") == ["One", "Other"]
    assert shown.texts("h1") == shown.texts("title") == ["Two"]


def test_half_a_surrogate_pair_is_no_error():
    assert "?" in read(element("p", "\ud800")).text


@given(text=st.text(alphabet="<>&\"'/=ab\u2028é scriptonx!-[]\\", max_size=40))
def test_no_text_becomes_an_element(text):
    made = [
        element("p", text),
        table(f"Of {text}", (text, "b"), [(text, text)]),
        element("a", text, href="#section-0", title=text),
    ]
    content = page(text, [section(2, text, *made)]).decode()
    shown = Page(content)
    shown.check()
    assert {tag for tag, *_ in shown.elements} == {
        *("html", "head", "meta", "title", "style", "body", "main", "h1"),
        *("nav", "ul", "li", "a", "section", "h2", "p", "div", "table"),
        *("caption", "span", "thead", "tbody", "tr", "th", "td"),
    }
    words = " ".join(text.split())
    assert shown.texts("p") == shown.texts("h1") == [words]
    titles = [a["title"] for a, _ in shown.all("a") if "title" in a]
    assert titles == [html.unescape(html.escape(text))]


def test_the_style_names_no_place():
    assert "url(" not in html_page.STYLE and "@import" not in html_page.STYLE
