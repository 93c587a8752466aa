"""Commands of the pages: each program is there, and takes each flag."""

import dataclasses
import functools
import importlib
import re

import pytest
from conftest import ROOT

from adapter_bert import flags
from adapter_bert.commands import PROGRAMS, STEPS

pytestmark = pytest.mark.older_stack

PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("tests/golden/*.md"),
]
COMMAND = re.compile(
    r"(?:bin/python |\$python\"? )(?:-m )?(?P<module>lab\.[\w.]+|\w+\.py)"
    r"(?P<flags>[^|;#)]*)"
    r"|(?:bin/adapter-bert|-m adapter_bert) (?P<program>\w+)(?P<rest>[^|;#)]*)"
)
SWEEP = re.compile(r"scripts/(?:sweep|ablate)\w*\.(?:sh|sbatch) .*? -- (.*)")
# Of absl, for every program.
ALWAYS = {"flagfile", "help", "helpfull"}
# Programs that have flags of another one too.
ALSO = {
    "adapter_bert.commands.baseline": "run_classifier",
    "adapter_bert.commands.mpnet": "minilm",
    "lab.speed.compare": "lab.speed.measuring",
    "lab.speed.start": "lab.speed.measuring",
}
# It hands on what it does not know.
WITHOUT_END = "beam"


def commands(text):
    """Lines of code, those that end with a backslash joined."""
    code = "\n".join(re.findall(r"^(?: {4,}|\$ )(.*)$", text, re.MULTILINE))
    # Arguments of a method hold what would end a command.
    code = re.sub(r"'[^'\n]*'", "''", code)
    return re.sub(r"\\\n\s*", " ", code).splitlines()


def flags_in(text):
    return set(re.findall(r"(?:^|\s)--(\w+)", text))


def listed_flags():
    """The flags of each program of docs/flags.md."""
    by_name = {}
    page = (ROOT / "docs" / "flags.md").read_text()
    for section in page.split("\n## ")[1:]:
        heading, body = section.split("\n", 1)
        for program in re.findall(
            r"`(?:adapter-bert )?(\w+)(?:\.py)?`", heading
        ):
            flags = re.findall(r"\| `--(\w+)` \|", body)
            by_name.setdefault(program, set()).update(flags)
    return by_name


LISTED = listed_flags()


@functools.lru_cache(None)
def flags_of(program):
    """The flags of a subcommand, or of a module of the laboratory."""
    if program in LISTED:
        return LISTED[program] | ALWAYS
    is_command = program in {**PROGRAMS, **STEPS}
    if is_command:
        program = f"adapter_bert.commands.{program}"
    path = ROOT / program.replace(".", "/")
    path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    source = path.read_text()
    declared = ()
    if is_command or "read_command_line" in source:
        module = importlib.import_module(program)
        classes = filter(dataclasses.is_dataclass, vars(module).values())
        declared = [name for name, *_ in flags.declared([*classes])]
    names = re.findall(r'"--(\w+)"', source)
    names += re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source)
    names += re.findall(r"(?m)^    (\w+): .* = Topic\.\w+\.setting\(", source)
    also = flags_of(ALSO[program]) if program in ALSO else ()
    return {*names, *declared, *also, *ALWAYS}


def program_of(command):
    """The program of a command, and the rest of its line."""
    if command["program"]:
        return command["program"], command["rest"]
    module = command["module"]
    if module.endswith(".py"):
        module = module[: -len(".py")]
        assert module in PROGRAMS, command.group()
    return module, command["flags"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_take_every_flag_that_a_page_gives_them(page):
    for line in commands(page.read_text()):
        for match in COMMAND.finditer(line):
            program, rest = program_of(match)
            if program == WITHOUT_END:
                continue
            # `compile` has a program of its own after it.
            rest, _, run = rest.partition(" -- ")
            unknown = flags_in(rest) - flags_of(program)
            if run:
                program, _, rest = run.partition(" ")
                program = program[: -len(".py")]
                unknown |= flags_in(rest) - flags_of(program)
            assert not unknown, (program, unknown)
        for more in SWEEP.findall(line):
            tuned = LISTED["run_classifier"] | LISTED["run_squad"]
            assert not flags_in(more) - tuned - ALWAYS, more


def test_an_unknown_flag_would_be_found():
    line = (
        "    .venv/bin/python run_squad.py --train_file=a --no_such=1 # --b\n"
    )
    [command] = commands(line)
    [match] = COMMAND.finditer(command)
    program, rest = program_of(match)
    assert flags_in(rest) - flags_of(program) == {"no_such"}
    assert "output_dir" in flags_of("baseline")
    assert "weights" in flags_of("merge")
    assert "peer_python" in flags_of("lab.speed.start")
