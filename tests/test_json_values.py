"""Values of JSON files that can be written again, and others."""

import pytest

from adapter_bert import files
from adapter_bert.errors import UserError


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"a": NaN}', "it holds what JSON does not have"),
        ('{"a": [1e400]}', "it holds what JSON does not have"),
        ('{"\\ud800": 1}', "it holds what JSON does not have"),
        ('{"a": "\\ud800"}', "it holds what JSON does not have"),
        (
            '{"a": ' + "[" * 100 + "1" + "]" * 100 + "}",
            "it has more than 100 levels",
        ),
        ('{"b": 1' + "0" * 400 + "}", "its b is too large a number"),
    ],
)
def test_what_could_not_be_written_is_not_read(tmp_path, text, message):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(UserError, match=f"is not a file: {message}"):
        files.read_object(str(path), "a file", {"b?": float})


def test_a_hundred_levels_are_read(tmp_path):
    path = tmp_path / "file"
    path.write_text('{"a": ' + "[" * 99 + "1" + "]" * 99 + "}")
    assert files.read_object(str(path), "a file", {"a": list})
