"""Elements, tables, figures and pages of HTML."""

import html
import re
from xml.etree import ElementTree

import pytest
from html_reader import Page
from hypothesis import given
from hypothesis import strategies as st

from adapter_bert.reports.html_page import (
    element,
    line_figure,
    page,
    section,
    table,
)

pytestmark = pytest.mark.newer_stack


def read(*content):
    return Page(page("A page", [section(2, "Part", *content)]).decode())


def test_a_table_names_its_rows_and_columns():
    rows = [("x", "1.5 ± 0.1", "a"), ("y", "-2", "b")]
    shown = read(table("What", ("name", "n", "text"), rows, ["text"]))
    shown.check()
    assert shown.texts("caption") == ["What"]
    assert [(a["scope"], a.get("class"), t) for a, t in shown.all("th")] == [
        ("col", None, "name"),
        ("col", "number", "n"),
        ("col", None, "text"),
        ("row", None, "x"),
        ("row", None, "y"),
    ]
    classes = [attributes.get("class") for attributes, _ in shown.all("td")]
    assert classes == ["number", "long"] * 2
    read(table("None", ("a", "b"), [])).check()


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
    tags = """html head meta title style body main h1 nav ul li a section h2 p
        div table caption span thead tbody tr th td"""
    assert {tag for tag, *_ in shown.elements} == set(tags.split())
    words = " ".join(text.split())
    assert shown.texts("p") == shown.texts("h1") == [words]
    titles = [a["title"] for a, _ in shown.all("a") if "title" in a]
    assert titles == [html.unescape(html.escape(text))]


POINTS = {"a": [(1, 2.0), (2, 3.0)], "b": [(1, 1.0), (2, 0.5)]}


def draw(points=POINTS, x="step", y="loss", name="x", **options):
    return line_figure(name, f"T {name}", "Text.", points, x, y, **options)


def drawn_texts(figure):
    return {"".join(part.itertext()) for part in figure.iter("text")}


def test_two_figures_share_a_page():
    shown = read(*(draw(name=name) for name in ("one", "two")))
    shown.check()
    assert shown.texts("title") == ["A page", "T one", "T two"]
    # A drawing refers to its own ids.
    ids = {e[1]["id"] for e in shown.elements if "id" in e[1]}
    used = [a["href"][1:] for a, _ in shown.all("use")]
    clips = [
        name
        for _, a, *_ in shown.elements
        for name in re.findall(r"url\(#(.+?)\)", a.get("clip-path", ""))
    ]
    assert used and clips and {*used, *clips} <= ids
    assert {name.partition("-")[0] for name in used + clips} == {"one", "two"}


def test_lines_differ_in_dashes_not_in_colour():
    figure = draw()
    text = ElementTree.tostring(figure, "unicode")
    colours = set(re.findall(r"#[0-9a-fA-F]{6}\b", text))
    # The grid's grey shows on white and on black.
    assert colours == {"#888888"} and "currentColor" in text
    styles = [part.get("style") or "" for part in figure.iter("path")]
    assert any("stroke-dasharray" in style for style in styles)
    assert {"a", "b"} <= drawn_texts(figure)


def test_a_name_is_no_formula():
    names = {r"$\nothing$": [(1, 1.0)], "<b>": [(1, 2.0)]}
    assert {*names, "$x", r"$\y$"} <= drawn_texts(draw(names, "$x", r"$\y$"))


def test_an_axis_can_begin_at_zero():
    points = {"a": [(1, 40.0), (2, 41.0)]}
    assert "0" not in drawn_texts(draw(points))
    assert "0" in drawn_texts(draw(points, from_zero=True))


def test_equal_points_give_equal_bytes():
    first, second = (ElementTree.tostring(draw(log_x=True)) for _ in range(2))
    assert first == second
