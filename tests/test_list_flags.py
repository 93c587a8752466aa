"""docs/flags.md says what the programs take."""

import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.newer_stack


def test_no_flag_has_two_defaults():
    page = (ROOT / "docs" / "flags.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if "| `--" in line]
    assert any("Default:" in row[4] for row in rows)
    for row in rows:
        assert "default:" not in row[4].lower() or not row[3].strip(), row


def test_the_page_of_flags_is_up_to_date():
    printed = subprocess.run(
        [sys.executable, "-m", "lab.list_flags"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == (ROOT / "docs" / "flags.md").read_text(), (
        "run: .venv/bin/python -m lab.list_flags > docs/flags.md"
    )
