"""From a command line to the values of flags."""

import pytest
from absl import flags
from limits import limited

from errors import UserError
from runs import arguments

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def known():
    """A program's flags, of which one is of a number."""
    known = flags.FlagValues()
    flags.DEFINE_integer("size", 1, "A size.", flag_values=known)
    flags.DEFINE_string("flagfile", "", "A file.", flag_values=known)
    flags.DEFINE_string("undefok", "", "None.", flag_values=known)
    return known


def test_what_is_no_flag_is_left(known):
    given = ["program", "--size=3", "more"]
    assert arguments.parse(known, given) == ["program", "more"]
    assert known.size == 3


@pytest.mark.parametrize(
    "given,message",
    [
        ("--size=many", "size"),
        ("--sizes=1", "Did you mean: size"),
        ("--size=\ud800", "unreadable argument"),
        ("--a\nb", "unreadable argument"),
        ("--flagfile=/nowhere", "/nowhere"),
        ("-" + "a" * 10**6, "no flag has so long a name as -aaa"),
        (f"--{'a' * 10**6}=b", r"no flag has so long a name as --a+[.]{3}$"),
    ],
)
def test_what_is_none_is_one_short_line(known, given, message):
    """In little time and memory: absl looks for names that are alike."""
    with limited(more=2**27), pytest.raises(UserError, match=message) as caught:
        arguments.parse(known, ["program", given])
    assert len(str(caught.value)) < 500


def test_a_file_of_flags_is_read_as_they_are(known, tmp_path):
    path = tmp_path / "flags"
    path.write_text("--size=3")
    arguments.parse(known, ["program", f"--flagfile={path}"])
    assert known.size == 3
    path.write_text("--" + "a" * 10**6)
    with pytest.raises(UserError, match="no flag has so long a name"):
        arguments.parse(known, ["program", f"--flagfile={path}"])
    path.write_bytes(b"--size=\xff")
    with pytest.raises(UserError, match="flagfile is not UTF-8 text"):
        arguments.parse(known, ["program", f"--flagfile={path}"])
