"""A terminal that is drawn."""

from xml.etree import ElementTree

import pytest
import refusals
from conftest import ROOT

from lab import record_terminal

pytestmark = pytest.mark.newer_stack

COMMANDS = [
    "printf 'a < b\\n' > x",
    "bash -c 'echo at http; exec sleep 60' &",
    "cat x",
]


def texts(svg):
    return [text.text for text in ElementTree.fromstring(svg)[2:]]


def test_the_last_lines_of_each_command_are_drawn():
    svg = record_terminal.draw(record_terminal.run(COMMANDS))
    typed = [f"$ {command}" for command in COMMANDS]
    assert texts(svg) == [*typed[:2], "at http", typed[2], "a < b"]


def test_a_command_that_fails():
    refusals.check(
        lambda: list(record_terminal.run(["bash -c 'echo no; false'"])),
        "failed",
        "no",
    )


def test_the_page_shows_these_commands():
    shown = " ".join(texts((ROOT / "docs" / "first_minutes.svg").read_text()))
    for line in (ROOT / "lab" / "first_minutes.txt").read_text().splitlines():
        assert line in " ".join(shown.split())
