"""From a command line to the values of flags."""

import pytest
from absl import flags
from conftest import entry_point
from limits import limited

from adapter_bert.commands import (
    baseline,
    export,
    predict,
    run_classifier,
    run_mlm,
    run_squad,
    run_tagger,
    serve,
)
from adapter_bert.errors import UserError
from adapter_bert.training import help_page

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def known():
    """A program's flags, of which one is of a number."""
    known = flags.FlagValues()
    flags.DEFINE_integer("size", 1, "A size.", flag_values=known)
    flags.DEFINE_bool("train", False, "Train.", flag_values=known)
    flags.DEFINE_float("rate", 1.0, "A rate.", flag_values=known)
    flags.DEFINE_list("names", [], "Names.", flag_values=known)
    flags.DEFINE_enum("type", "a", ["a", "b"], "A type.", flag_values=known)
    flags.DEFINE_string("flagfile", "", "A file.", flag_values=known)
    flags.DEFINE_string("undefok", "", "None.", flag_values=known)
    return known


TO_DO = "unexpected: {} after {}; write --train=true or --train=false$"


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
        help_page.parse(known, ["program", given])
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "given, message",
    [
        ("--train False", TO_DO.format("False", "--train")),
        ("-train false --size=3", TO_DO.format("false", "-train")),
        ("--size 3 --train true --size=3", TO_DO.format("true", "--train")),
        ("--notrain 1", TO_DO.format("1", "--notrain")),
        ("--train=yes", "flag --train=yes: expected true or false$"),
        ("--train=", "flag --train=: expected true or false$"),
        ("--train=a: b", "flag --train=a: b: expected true or false$"),
        ("--notrain=yes", "--notrain=yes does not take an argument$"),
        ("--size=many", "flag --size=many: expected a whole number$"),
        ("--size 1.5", "flag --size=1.5: expected a whole number$"),
        ("--rate=1,5", "flag --rate=1,5: expected a number$"),
        ("--type=c", "flag --type=c: value should be one of <a|b>$"),
        ("more", "unexpected: more; expected --name=value"),
        ("--names a b", "unexpected: b; expected .* commas between several"),
        ("--train -- more", "unexpected: more; expected --name=value"),
        ("--size", "Missing value for flag --size$"),
    ],
)
def test_a_value_in_another_form_is_told_the_right_one(known, given, message):
    # Of one word where it holds a blank after its sign.
    words = [given] if ": " in given else given.split()
    with pytest.raises(UserError, match=message):
        help_page.parse(known, ["program", *words])


def test_every_boolean_flag_has_the_form_that_is_told(known):
    for word in ("true", "false", "True", "FALSE", "1", "0", "t", "f"):
        given = ["program", f"--train={word}", "--size", "3"]
        assert help_page.parse(known, given) == ["program"]
        assert (known.train, known.size) == (
            word.lower() in ("true", "t", "1"),
            3,
        )
    help_page.parse(known, ["program", "--train"])
    assert known.train
    help_page.parse(known, ["program", "--notrain"])
    assert not known.train


@pytest.mark.parametrize(
    "program",
    [
        run_classifier,
        run_squad,
        run_tagger,
        run_mlm,
        predict,
        export,
        serve,
        baseline,
    ],
    ids=lambda program: program.__name__,
)
def test_each_boolean_flag_of_each_program_is_named(program):
    with entry_point(program):
        own = flags.FLAGS.flags_by_module_dict()
        found = [f.name for m in own for f in own[m] if f.boolean]
        assert "alsologtostderr" in found
        for name in found:
            if name.startswith("help"):
                continue  # They show a page, and end the program.
            message = f"False after --{name}; write --{name}=true or --{name}=f"
            with pytest.raises(UserError, match=message):
                help_page.parse(flags.FLAGS, ["x", f"--{name}", "False"])
            with pytest.raises(UserError, match="expected true or false$"):
                help_page.parse(flags.FLAGS, ["x", f"--{name}=yes"])


def test_a_file_of_flags_is_read_as_they_are(known, tmp_path):
    path = tmp_path / "flags"
    path.write_text("--size=3")
    help_page.parse(known, ["program", f"--flagfile={path}"])
    assert known.size == 3
    path.write_text("--" + "a" * 10**6)
    with pytest.raises(UserError, match="no flag has so long a name"):
        help_page.parse(known, ["program", f"--flagfile={path}"])
    path.write_bytes(b"--size=\xff")
    with pytest.raises(UserError, match="flagfile is not UTF-8 text"):
        help_page.parse(known, ["program", f"--flagfile={path}"])
