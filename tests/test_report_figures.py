"""Drawings within a page."""

import re
from xml.etree import ElementTree

import pytest
from html_reader import Page

from adapter_bert.reports.html_page import figure, lines, page, section

pytestmark = pytest.mark.newer_stack

POINTS = {"a": [(1, 2.0), (2, 3.0)], "b": [(1, 1.0), (2, 0.5)]}


def test_two_drawings_share_a_page():
    made = [
        figure(lines(name, POINTS, "step", "loss"), name, f"T {name}", "Text.")
        for name in ("one", "two")
    ]
    shown = Page(page("Two", [section(2, "Figures", *made)]).decode())
    shown.check()
    assert shown.texts("title") == ["Two", "T one", "T two"]
    # A drawing's references are to itself.
    ids = {e[1]["id"] for e in shown.elements if "id" in e[1]}
    used = [a["href"][1:] for a, _ in shown.all("use")]
    clips = [
        re.findall(r"url\(#(.+?)\)", a.get("clip-path", ""))
        for _, a, *_ in shown.elements
    ]
    clips = [name for names in clips for name in names]
    assert used and clips and {*used, *clips} <= ids
    assert {name.partition("-")[0] for name in used + clips} == {"one", "two"}


def test_the_page_decides_on_the_colour():
    text = ElementTree.tostring(lines("x", POINTS, "a", "b"), "unicode")
    colours = set(re.findall(r"#[0-9a-fA-F]{6}\b", text))
    # The grid's grey shows on white and on black.
    assert colours == {"#888888"} and "currentColor" in text


def test_lines_differ_without_a_colour():
    svg = lines("x", POINTS, "a", "b")
    dashes = {
        part.get("style")
        for part in svg.iter("path")
        if "stroke-dasharray" in (part.get("style") or "")
    }
    texts = ["".join(part.itertext()) for part in svg.iter("text")]
    assert dashes and {"a", "b"} <= set(texts)


def test_a_name_is_no_formula():
    names = {r"$\nothing$": [(1, 1.0)], "<b>": [(1, 2.0)]}
    svg = lines("x", names, "$x", r"$\y$")
    texts = {"".join(part.itertext()) for part in svg.iter("text")}
    assert {*names, "$x", r"$\y$"} <= texts


def test_an_axis_can_begin_at_zero():
    texts = []
    for from_zero in (False, True):
        svg = lines(
            "x", {"a": [(1, 40.0), (2, 41.0)]}, "", "", False, from_zero
        )
        texts.append({"".join(t.itertext()) for t in svg.iter("text")})
    assert "0" not in texts[0] and "0" in texts[1]


def test_it_is_drawn_the_same_each_time():
    first, second = (
        ElementTree.tostring(lines("x", POINTS, "a", "b", log_x=True))
        for _ in range(2)
    )
    assert first == second
