"""One exception class for what a user can cause and mend.

Entry points print it as one line and exit with code 1; any other exception is
a defect of the program and keeps its traceback.
"""

import re

# What TensorFlow says of where it was, around the reason.
PLACE = re.compile(r"\{\{function_node \S+\}\} ?| ?\[Op:\w+\](?: name: \S*)?")


class UserError(Exception):
    """Input, flags or files that cannot be used as they are.

    The message is one line: what was found, what was expected, what to do.
    """

    def __init__(self, message: str):
        """Joins the lines of `message` to one, without control characters."""
        printable = (c if c.isprintable() else " " for c in message)
        super().__init__(" ".join("".join(printable).split()))


def first_line(error: BaseException) -> str:
    """Finds why an exception was raised in its text; its class without one.

    For the end of a message: what TensorFlow says may have many lines, or be
    empty.
    """
    text = PLACE.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line, after in zip(lines, lines[1:]):
        # In an error of a graph the reason stands before the node's name.
        if after.startswith("[["):
            return line
    return lines[0] if lines else type(error).__name__
