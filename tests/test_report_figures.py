"""Figures within a page."""

import re
from xml.etree import ElementTree

import pytest
from html_reader import Page

from adapter_bert.reports.html_page import line_figure, page, section

pytestmark = pytest.mark.newer_stack

POINTS = {"a": [(1, 2.0), (2, 3.0)], "b": [(1, 1.0), (2, 0.5)]}


def draw(points=POINTS, x="step", y="loss", name="x", **options):
    return line_figure(name, f"T {name}", "Text.", points, x, y, **options)


def texts(figure):
    return {"".join(part.itertext()) for part in figure.iter("text")}


def test_two_figures_share_a_page():
    made = [draw(name=name) for name in ("one", "two")]
    shown = Page(page("Two", [section(2, "Figures", *made)]).decode())
    shown.check()
    assert shown.texts("title") == ["Two", "T one", "T two"]
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
    assert {"a", "b"} <= texts(figure)


def test_a_name_is_no_formula():
    names = {r"$\nothing$": [(1, 1.0)], "<b>": [(1, 2.0)]}
    assert {*names, "$x", r"$\y$"} <= texts(draw(names, "$x", r"$\y$"))


def test_an_axis_can_begin_at_zero():
    points = {"a": [(1, 40.0), (2, 41.0)]}
    assert "0" not in texts(draw(points))
    assert "0" in texts(draw(points, from_zero=True))


def test_equal_points_give_equal_bytes():
    first, second = (ElementTree.tostring(draw(log_x=True)) for _ in range(2))
    assert first == second
