"""What --help prints."""

import itertools
import subprocess
import sys

import pytest
from absl import flags
from conftest import ROOT, entry_point

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
