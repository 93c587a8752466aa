"""Commands of the pages: each program is there, and takes each flag."""

import re

import pytest
from conftest import ROOT
from test_documents import PAGES

pytestmark = pytest.mark.older_stack

PYTHON = r"(?:python3? |bin/python )(?:-m )?"
COMMAND = re.compile(
    rf"{PYTHON}(?P<program>(?:scripts|benchmarks)\.[\w.]+|\w+\.py"
    r"|soak(?:\.\w+)?\b)"
    r"(?P<rest>[^|;#)]*)"
)
SWEEP = re.compile(r"scripts/(?:sweep|ablate)\w*\.(?:sh|sbatch) .*? -- (.*)")
# Of absl, for every program.
ALWAYS = {"flagfile", "help", "helpfull"}
# Programs that have flags of another one too.
ALSO = {
    "adapter_bert.commands.baseline": "run_classifier.py",
    "lab.speed.start": "lab.speed.compare",
}
# It hands on what it does not know.
WITHOUT_END = "adapter_bert.commands.beam"


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
    found = {}
    page = (ROOT / "docs" / "flags.md").read_text()
    for section in page.split("\n## ")[1:]:
        heading, body = section.split("\n", 1)
        for program in re.findall(r"`(\w+\.py)`", heading):
            flags = re.findall(r"\| `--(\w+)` \|", body)
            found.setdefault(program, set()).update(flags)
    return found


LISTED = listed_flags()


def flags_of(program):
    if program in LISTED:
        return LISTED[program] | ALWAYS
    path = program if program.endswith(".py") else f"{program}.py"
    module = path[:-3].replace(".", "/")
    if (ROOT / module).is_dir():
        module += "/__main__"
    source = (ROOT / f"{module}.py").read_text()
    found = re.findall(r'"--(\w+)"', source)
    found += re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source)
    also = flags_of(ALSO[program]) if program in ALSO else ()
    return {*found, *also, *ALWAYS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_take_every_flag_that_a_page_gives_them(page):
    for line in commands(page.read_text()):
        for found in COMMAND.finditer(line):
            program = found["program"]
            if program == WITHOUT_END:
                continue
            unknown = flags_in(found["rest"]) - flags_of(program)
            assert not unknown, (program, unknown)
        for more in SWEEP.findall(line):
            tuned = LISTED["run_classifier.py"] | LISTED["run_squad.py"]
            assert not flags_in(more) - tuned - ALWAYS, more


def test_an_unknown_flag_would_be_found():
    line = (
        "    .venv/bin/python run_squad.py --train_file=a --no_such=1 # --b\n"
    )
    [command] = commands(line)
    [found] = COMMAND.finditer(command)
    assert flags_in(found["rest"]) - flags_of("run_squad.py") == {"no_such"}
    assert "output_dir" in flags_of("adapter_bert.commands.baseline")
    assert "weights" in flags_of("adapter_bert.commands.merge")


# What other programs' Python runs, and what a notebook's own does.
OTHER_PYTHON = ("load_exported.py", "adapters_start.py")


def test_every_command_names_the_interpreter_of_make_setup():
    sources = [
        path
        for pattern in ("*.py", "*.sh", "*.sbatch", "*.md")
        for path in ROOT.rglob(pattern)
        if not path.relative_to(ROOT).parts[0].startswith(".")
    ]
    bare = re.compile(
        r"(?<![\w/])python3? (?:-m (?:scripts|soak|benchmarks)|[\w/]+\.py)"
    )
    found = {
        f"{path.relative_to(ROOT)}: {command}"
        for path in sources
        for command in bare.findall(path.read_text())
        if path.name not in OTHER_PYTHON
    }
    assert not found
