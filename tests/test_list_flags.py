"""docs/flags.md says what the programs take."""

import re

import pytest
from conftest import ROOT, read_lines

from lab import list_flags

pytestmark = pytest.mark.newer_stack

PAGE = ROOT / "docs" / "flags.md"


def test_no_flag_has_two_defaults():
    lines = read_lines(PAGE)
    rows = [line.split("|") for line in lines if "| `--" in line]
    assert any("Default:" in row[4] for row in rows)
    for row in rows:
        assert "default:" not in row[4].lower() or not row[3].strip(), row


def test_rows_have_as_many_cells_as_their_header():
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.M):
        rows = [re.split(r"(?<!\\)\|", row) for row in table.splitlines()]
        assert {*map(len, rows)} == {len(rows[0])}, rows[0]


def test_the_page_of_flags_is_up_to_date(capsys):
    list_flags.main()
    assert capsys.readouterr().out == PAGE.read_text(), (
        "run: .venv/bin/python -m lab.list_flags > docs/flags.md"
    )
