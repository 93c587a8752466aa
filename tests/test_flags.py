"""Flags: declared as fields, shown by --help, parsed, read."""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Optional

import numpy as np
import pytest
import refusals
from absl import flags
from absl.testing import flagsaver
from conftest import entry_point, run_process

from adapter_bert.commands import (
    baseline,
    library,
    mine,
    predict,
    run_classifier,
)
from adapter_bert.flag_page import END, page, page_of, read_command_line
from adapter_bert.flags import (
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_NUMBER,
    Topic,
    command_line,
    define,
    is_given,
    parse,
    read,
    recorded,
)
from adapter_bert.keywords import of_keywords, of_words

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Rates:
    """Settings within others."""

    rate: float = Topic.TRAINING.setting(
        1.0, "A rate.", POSITIVE_NUMBER, recorded=True
    )
    passes: float = Topic.TRAINING.setting(
        3.0, "Passes.", flag="epoch_count", alias="rounds"
    )


@dataclasses.dataclass(frozen=True)
class Sample:
    """Settings of each kind, and a field that is none."""

    plain: str
    size: Optional[int] = Topic.SERVED.setting(None, "A size.", POSITIVE)
    port: int = Topic.SERVED.setting(
        8501, "Port to listen at.", NOT_NEGATIVE, recorded=True
    )
    name: str = Topic.SERVED.setting("bert", "By 90% of clients known.")
    rates: Rates = dataclasses.field(default_factory=Rates)
    train: bool = Topic.TO_DO.setting(False, "Train.")
    id_column: str = Topic.TABLES.setting("3", "Column; default: the 3rd.")
    names: list[str] = Topic.METHOD.setting([], "Names, or all.")
    pairs: Mapping[str, str] = Topic.METHOD.setting({}, "Pairs.")
    folders: list[str] = Topic.METHOD.setting([], "Folder", repeated=True)
    type: str = Topic.HARDWARE.setting("a", "A type.", choices=("a", "b"))


@pytest.fixture
def flag_values():
    """The flags of `Sample`, and those of absl that name files."""
    flag_values = define([Sample], flags.FlagValues())
    flags.DEFINE_string("flagfile", "", "A file.", flag_values=flag_values)
    flags.DEFINE_string("undefok", "", "None.", flag_values=flag_values)
    return flag_values


PAGE = f"""\
usage: program.py [flags]

Does 100% of it.

What to do:
  --[no]train       Train; default: false.

Your own tables:
  --id_column TEXT  Column; default: the 3rd.

Tuning method and trained adapters:
  --names A,B       Names, or all.
  --pairs A,B       Pairs.
  --folders TEXT    Folder; repeat this option to specify a list of values

Training:
  --rate X          A rate; default: 1.0.
  --epoch_count X   Passes; default: 3.0.
  --rounds X        Alias for --epoch_count; default: 3.0.

Served model:
  --size N          A size.
  --port N          Port to listen at; default: 8501.
  --name TEXT       By 90% of clients known; default: bert.

Hardware:
  --type TEXT       <a|b>: A type; default: a.

{END}
"""


def test_the_page(flag_values):
    # A value that was given is not the default.
    flag_values(["program.py", "--port=1"])
    assert (
        page("program.py", "Does 100% of it.\n", [Sample], flag_values) == PAGE
    )


@pytest.fixture
def defined():
    """Those of `Sample` among the program's."""
    before = set(FLAGS)
    define([Sample])
    with flagsaver.flagsaver():
        FLAGS(["program"])
        yield
    FLAGS.remove_flag_values(set(FLAGS) - before)
    FLAGS.unparse_flags()


def test_values_are_read_into_the_dataclass(defined):
    assert read(Sample, plain="x") == Sample("x", pairs=[])
    words = "--port=0 --rounds=2 --train --names=a,b --folders=c --folders=d"
    FLAGS(["program", *words.split()])
    sample = read(Sample, plain="x", pairs={"a": "b"})
    assert sample == Sample(
        "x",
        port=0,
        rates=Rates(passes=2.0),
        train=True,
        names=["a", "b"],
        pairs={"a": "b"},
        folders=["c", "d"],
    )
    words = words.replace("--rounds=2", "--epoch_count=2.0")
    assert sorted(command_line()) == sorted(words.split())
    assert is_given("port") and not is_given("size")
    assert recorded(sample) == {"port": 0}
    assert recorded(sample.rates) == {"rate": 1.0}


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--size=0", "--size is 0, expected >= 1"),
        ("--port=-1", "--port is -1, expected >= 0"),
        ("--rate=0", "--rate is 0.0, expected a positive number"),
        ("--rate=inf", "--rate is inf, expected a positive number"),
        ("--rate=nan", "--rate is nan, expected a positive number"),
    ],
)
def test_a_value_out_of_its_range_is_refused(defined, argument, message):
    FLAGS(["program", argument])
    refusals.check(lambda: read(Sample, plain="x"), message)


@dataclasses.dataclass(frozen=True)
class Needing:
    """Flags that need others."""

    hot: bool = Topic.TRAINING.setting(False, "Hot.", needs=("rate|size",))
    rate: float = Topic.TRAINING.setting(0.0, "A rate.")
    size: int = Topic.TRAINING.setting(0, "A size.", needs=("hot",))


def test_a_flag_means_nothing_without_those_that_it_needs():
    for values, *parts in (
        ({"hot": True}, "--hot means nothing without --rate or --size"),
        ({"size": 2}, "--size means nothing without --hot", "leave --size"),
    ):
        with of_keywords((Needing,), values, "call()"):
            refusals.check(lambda: read(Needing), *parts)
    for values in ({"hot": True, "size": 2}, {"hot": False}, {"rate": 2.0}):
        with of_keywords((Needing,), values, "call()"):
            assert read(Needing) == Needing(**values)


@pytest.mark.newer_stack
def test_a_program_prints_its_own_flags_and_succeeds():
    done = run_process("-?", "--port=x", program="serve")
    assert done.stdout.startswith(
        "usage: adapter-bert serve [flags]\n\nAnswers texts"
    )
    assert done.stdout.endswith(END + "\n")
    assert "  --port N  " in done.stdout
    assert "--alsologtostderr" not in done.stdout


@pytest.mark.newer_stack
@pytest.mark.parametrize("name", library.COMMANDS)
def test_a_page_of_a_library_s_command_is_whole(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["adapter-bert library", name, "--help"])
    with pytest.raises(SystemExit) as ended:
        library.main()
    page = capsys.readouterr().out
    assert not ended.value.code
    assert page.startswith(f"usage: adapter-bert library {name}")
    assert ".;" not in page and "..\n" not in page
    assert name != "suggest" or "\n  --id_column " not in page
    assert name != "move" or "\n  --keep_best " not in page


@dataclasses.dataclass(frozen=True)
class Wide(Rates):
    """Many choices, dots within a sentence, a flag that is refused."""

    REFUSED = ("rate",)
    way: Optional[str] = Topic.DATA.setting(
        None, "A way.", choices=[f"way_{n:02}" for n in range(12)]
    )
    folder: str = Topic.DATA.setting("", "Versions: 1, 2, ...; else a file.")


@pytest.mark.newer_stack
def test_a_page_breaks_no_choice_and_keeps_dots(capsys):
    with pytest.raises(SystemExit):
        read_command_line(Wide, "", (), ["program", "--help"])
    shown = capsys.readouterr().out
    assert all(f"way_{n:02}" in shown for n in range(12))
    assert "1, 2, ...; else" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.newer_stack
def test_a_page_names_no_flag_that_is_refused(capsys, tmp_path):
    with pytest.raises(SystemExit):
        read_command_line(Wide, "", (), ["program", "--help"])
    shown = capsys.readouterr().out
    assert "--helpfull" not in shown
    assert "--rate " not in shown and "--epoch_count " in shown
    hidden = "predict_file choice_columns task_sampling id_column"
    for module, names in (baseline, hidden), (mine, "eval_file"):
        with entry_point(module):
            shown = page_of(module, "program")
        assert not [x for x in names.split() if f"\n  --{x} " in shown]
    (tmp_path / "flags").write_text("--rate=3")
    words = ["program", f"--flagfile={tmp_path}/flags"]
    assert read_command_line(Rates, "", (), words)[0].rate == 3


@pytest.mark.newer_stack
def test_flags_that_tensorflow_defines_are_taken():
    flags = ["--hbm_oom_exit=false", "--test_srcdir=x", "--tt_check_filter"]
    done = run_process(*flags, check=False)
    assert done.stderr.startswith("error: --task_name is missing")


TO_DO = "unexpected: {} after {}; write --train=true or --train=false"
REFUSED = [
    ("--train False", TO_DO.format("False", "--train")),
    ("-train false --size=3", TO_DO.format("false", "-train")),
    ("--size 3 --train true --size=3", TO_DO.format("true", "--train")),
    ("--notrain 1", TO_DO.format("1", "--notrain")),
    ("--train=yes", "flag --train=yes: expected true or false"),
    ("--train=", "flag --train=: expected true or false"),
    ("--train=a: b", "flag --train=a: b: expected true or false"),
    ("--notrain=yes", "--notrain=yes does not take an argument"),
    ("--size=many", "flag --size=many: expected a whole number"),
    ("--size 1.5", "flag --size=1.5: expected a whole number"),
    ("--rate=1,5", "flag --rate=1,5: expected a number"),
    ("--type=c", "flag --type=c: value should be one of <a|b>"),
    ("more", "unexpected: more; expected --name=value"),
    ("--names a b", "unexpected: b; expected ", " commas between several"),
    ("--train -- more", "unexpected: more; expected --name=value"),
    ("--size", "Missing value for flag --size"),
    ("--sizes=1", "Did you mean: size"),
    ("--flagfile=/nowhere", "/nowhere"),
]


@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "argument, parts", [(argument, parts) for argument, *parts in REFUSED]
)
def test_what_is_none_is_one_short_line(flag_values, argument, parts):
    # Of one word where it holds a blank after its sign.
    words = [argument] if ": " in argument else argument.split()
    refusals.check(lambda: parse(flag_values, ["program", *words]), *parts)


@pytest.mark.newer_stack
def test_every_boolean_flag_has_the_form_that_is_told(flag_values):
    for word in "true false True FALSE 1 0 t f".split():
        words = ["program", f"--train={word}", "--size", "3"]
        assert parse(flag_values, words) == ["program"]
        assert (flag_values.train, flag_values.size) == (
            word.lower() in ("true", "t", "1"),
            3,
        )
    parse(flag_values, ["program", "--train"])
    assert flag_values.train
    parse(flag_values, ["program", "--notrain"])
    assert not flag_values.train


@pytest.mark.newer_stack
@pytest.mark.parametrize("program", [run_classifier, predict])
def test_each_boolean_flag_of_a_program_is_named(program):
    """Also one that begins with `no`, as --normalize."""
    with entry_point(program):
        by_module = FLAGS.flags_by_module_dict()
        names = [f.name for m in by_module for f in by_module[m] if f.boolean]
        assert "alsologtostderr" in names
        for name in names:
            if name.startswith("help"):
                continue  # They show a page, and end the program.
            for words, message in (
                (
                    [f"--{name}", "False"],
                    f"False after --{name}; write --{name}=true or --{name}=f",
                ),
                ([f"--{name}=yes"], "expected true or false"),
            ):
                words = ["x", *words]
                refusals.check(lambda words=words: parse(FLAGS, words), message)


@pytest.mark.newer_stack
def test_a_file_of_flags_is_utf_8_text(flag_values, tmp_path):
    path = tmp_path / "flags"
    path.write_bytes("--size=3".encode("utf-16"))
    words = ["program", f"--flagfile={path}"]
    refusals.check(
        lambda: parse(flag_values, words), "flagfile is not UTF-8 text"
    )


@dataclasses.dataclass(frozen=True)
class Paths:
    """Settings that are paths, and a text."""

    place: str = Topic.DATA.setting("", "A folder.")
    parts: list[str] = Topic.DATA.setting([], "Folders by name.")
    mark: str = Topic.DATA.setting("", "A separator.")


def test_a_text_of_two_lines_is_one_word():
    values = {"mark": "one:\ntwo", "parts": ["a", "b"]}
    with of_keywords((Paths,), values, "call()"):
        assert sorted(command_line()) == ["--mark=one:\ntwo", "--parts=a,b"]


def test_values_of_keywords_may_be_numbers_or_none():
    """None is the default, also of what a function says."""
    values = {"mark": 2, "place": None, "parts": list(np.arange(-2, 0))}
    with of_keywords((Paths,), values, "call()", {"place": "/a"}):
        assert read(Paths) == Paths("/a", ["-2", "-1"], "2")


def test_a_long_value_may_begin_with_a_sign():
    text = "- represent this sentence for the retrieval of passages"
    with of_words((Paths,), "program", ["--mark", text]):
        assert read(Paths).mark == text
    words = ["--" + "a" * 3000]
    refusals.check(
        lambda: of_words((Paths,), "program", words).__enter__(),
        "no flag has so long a name",
    )


def test_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    values = {
        "place": "~/a",
        "parts": ["~/b", "name=~/c", "/d~/e"],
        "mark": "~",
    }
    expected = Paths(
        "/home/me/a", ["/home/me/b", "name=/home/me/c", "/d~/e"], "~"
    )
    with of_keywords((Paths,), values, "call()"):
        assert read(Paths) == expected
    words = ["--place=~/a", "--parts=~/b,name=~/c,/d~/e", "--mark=~"]
    with of_words((Paths,), "program", words):
        assert read(Paths) == expected
