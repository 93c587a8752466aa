"""What a user sees of an error."""

import pytest
import tensorflow as tf

from adapter_bert.errors import UserError, first_line


def test_a_message_is_one_line():
    assert str(UserError("a\nb\x1b c\u2028d")) == "a b c d"


@pytest.mark.parametrize(
    "error, expected",
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n  one\ntwo"), "one"),
        (ValueError(), "ValueError"),
        (OSError(" \n"), "OSError"),
        (tf.errors.AbortedError(None, None, ""), "AbortedError"),
        (KeyError("task"), "'task'"),
        (
            ValueError(
                "Graph execution error:\n\nin x\nNode: y\nreset\n\t [[z]]"
            ),
            "reset",
        ),
        (
            ValueError(
                "{{function_node __wrapped__SaveV2_dtypes_29_device_/job:x/"
                "CPU:0}} /a/b; No space left on device [Op:SaveV2] name: "
            ),
            "/a/b; No space left on device",
        ),
        (ValueError("{{function_node x}}"), "ValueError"),
    ],
)
def test_what_an_error_says_has_a_first_line(error, expected):
    assert first_line(error) == expected
