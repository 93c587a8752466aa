"""The one exception class for what a user can cause and mend.

Entry points print it as one line and exit with code 1; any other exception is
a defect of the program and keeps its traceback.
"""


class UserError(Exception):
    """Input, flags or files that cannot be used as they are.

    The message is one line: what was found, what was expected, what to do.
    """

    def __init__(self, message: str):
        """Joins the lines of `message` to one, without control characters."""
        printable = (c if c.isprintable() else " " for c in message)
        super().__init__(" ".join("".join(printable).split()))


def first_line(error: BaseException) -> str:
    """What to quote of another library's error."""
    return (str(error) or repr(error)).splitlines()[0]
