"""docs/troubleshooting.md names what the program prints."""

import ast
import re

import pytest
from conftest import ROOT
from test_architecture import sources

pytestmark = pytest.mark.older_stack

# What is not a literal part of a message. No file holds the character.
HOLE = "\0"


def literals(path):
    """A module's strings, with `HOLE` for what is put into them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else HOLE
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


PRINTED = "\n".join(
    text for path in sources().values() for text in literals(path)
)


def is_printed(heading):
    """Whether some message has a heading's words, and a hole for `{...}`."""
    words = map(re.escape, re.split(r"\{\w+\}", heading))
    return re.search(f"{HOLE}+".join(words), PRINTED) is not None


def headings():
    """Those of the program's own messages."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = text.partition("\n## Messages of others\n")[0]
    return re.findall("^### (.*)$", messages, re.MULTILINE)


@pytest.mark.parametrize("heading", headings())
def test_every_message_is_one_of_the_programs(heading):
    assert heading.startswith("`") and heading.endswith("`")
    fixed = re.sub(r"\{\w+\}", "", heading)
    assert len(fixed.split()) >= 2, "too little to be searched for"
    assert is_printed(heading.strip("`"))
