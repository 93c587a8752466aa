"""Flags: what --help prints, and from a command line to their values."""

import itertools
import subprocess
import sys

import pytest
from absl import flags
from conftest import ROOT, entry_point
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
from adapter_bert.training.help_page import END, TOPICS, page

FLAGS = flags.FLAGS
PROGRAMS = (
    run_classifier,
    run_squad,
    run_tagger,
    run_mlm,
    predict,
    export,
    serve,
    baseline,
)


def shown(values):
    """The page of some flags."""
    own = [values[name] for name in values]
    return page("program.py", "Does 100% of it.\n", own)


@pytest.fixture
def values():
    found = flags.FlagValues()
    string = flags.DEFINE_string
    string("vocab_file", None, "The vocabulary.", flag_values=found)
    string("name", "bert", "By 90% of clients known.", flag_values=found)
    string("id_column", "3", "Column; default: the 3rd.", flag_values=found)
    string("unheard_of", None, "In no topic.", flag_values=found)
    flags.DEFINE_integer("port", 8501, "Port to listen at.", flag_values=found)
    flags.DEFINE_bool("do_train", False, "Train.", flag_values=found)
    flags.DEFINE_list("task", [], "Names, or all.", flag_values=found)
    return found


def test_the_page(values):
    assert shown(values) == (
        "usage: program.py [flags]\n"
        "\n"
        "Does 100% of it.\n"
        "\n"
        "What to do:\n"
        "  --[no]do_train     Train; default: false.\n"
        "\n"
        "Your own tables, with --task_name=custom:\n"
        "  --id_column TEXT   Column; default: the 3rd.\n"
        "\n"
        "Pretrained model:\n"
        "  --vocab_file TEXT  The vocabulary.\n"
        "\n"
        "Tuning method and trained adapters:\n"
        "  --task A,B         Names, or all.\n"
        "\n"
        "Served model:\n"
        "  --name TEXT        By 90% of clients known; default: bert.\n"
        "  --port N           Port to listen at; default: 8501.\n"
        "\n"
        f"{END}\n"
    )


def test_a_value_that_was_given_is_not_the_default(values):
    values(["program.py", "--port=1"])
    assert "default: 8501." in shown(values)


def test_every_flag_has_one_topic():
    topics = list(itertools.chain(*TOPICS.values()))
    assert len(topics) == len(set(topics))
    found = set()
    for module in PROGRAMS:
        before = set(FLAGS)
        with entry_point(module):
            found |= set(FLAGS) - before
    assert found == set(topics)


@pytest.mark.newer_stack
@pytest.mark.parametrize("argument", ["--help", "-?"])
def test_a_program_prints_its_own_flags_and_succeeds(argument):
    done = subprocess.run(
        [sys.executable, "-m", "adapter_bert", "serve", argument, "--port=x"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "usage: adapter-bert serve [flags]\n\nAnswers texts"
    )
    assert done.stdout.endswith(END + "\n")
    assert "  --port N  " in done.stdout
    assert "--alsologtostderr" not in done.stdout


# Values


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


@pytest.mark.newer_stack
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


@pytest.mark.newer_stack
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


@pytest.mark.newer_stack
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


@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "program", PROGRAMS, ids=lambda program: program.__name__
)
def test_each_boolean_flag_of_each_program_is_named(program):
    with entry_point(program):
        own = FLAGS.flags_by_module_dict()
        found = [f.name for m in own for f in own[m] if f.boolean]
        assert "alsologtostderr" in found
        for name in found:
            if name.startswith("help"):
                continue  # They show a page, and end the program.
            message = f"False after --{name}; write --{name}=true or --{name}=f"
            with pytest.raises(UserError, match=message):
                help_page.parse(FLAGS, ["x", f"--{name}", "False"])
            with pytest.raises(UserError, match="expected true or false$"):
                help_page.parse(FLAGS, ["x", f"--{name}=yes"])


@pytest.mark.newer_stack
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
