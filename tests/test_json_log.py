"""Lines of JSON from every logger of Python's."""

import json
import sys

from conftest import ROOT, run_command

PROGRAM = """
import logging, warnings
import absl.flags, absl.logging
from adapter_bert.server import json_log

absl.flags.FLAGS(["a"])
json_log.use()
absl.logging.set_verbosity(absl.logging.INFO)
absl.logging.info("two\\nlines, %d%%", 5)
logging.getLogger("uvicorn.error").warning("of another")
warnings.warn("take care")
try:
    1 / 0
except ZeroDivisionError:
    absl.logging.exception("a defect")
"""


def test_each_line_is_an_object():
    done = run_command(sys.executable, "-c", PROGRAM, cwd=ROOT, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [one["message"] for one in lines[:2]] == [
        "two\nlines, 5%",
        "of another",
    ]
    assert "take care" in lines[2]["message"]
    assert [one["level"] for one in lines] == [
        "INFO",
        "WARNING",
        "WARNING",
        "ERROR",
    ]
    assert lines[0]["place"] == "<string>:9"
    assert lines[0]["time"].endswith("Z") and lines[0]["time"][10] == "T"
    assert lines[3]["message"] == "a defect"
    assert "ZeroDivisionError" in lines[3]["traceback"]
    assert "traceback" not in lines[0]
