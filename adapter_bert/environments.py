"""A program's going on in another environment of Python."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from adapter_bert.errors import UserError

# Has the folder of the environment that a program was started in.
FIRST = "ADAPTER_BERT_ENVIRONMENT"
ROOT = pathlib.Path(__file__).parents[1]
# Names of packages follow; prints those that an interpreter lacks.
LACKS = """
import importlib.metadata, sys
found = importlib.metadata.distributions()
known = {(d.metadata["Name"] or "").lower() for d in found}
print(*(name for name in sys.argv[1:] if name not in known))
"""


def go_on_with(
    packages: Sequence[str], program: str, target: str, variable: str
) -> None:
    """Goes on in an environment that has some packages, if this one has not.

    Args:
        packages: names of what is needed.
        program: the subcommand that `sys.argv` is of.
        target: of the Makefile, which makes the environment `.venv-<target>`.
        variable: names the interpreter of another environment.
    """
    distributions = importlib.metadata.distributions()
    installed = {(d.metadata["Name"] or "").lower() for d in distributions}
    if installed.issuperset(packages):
        return
    make = f"run `make {target}` in a checkout of adapter-bert"
    named = os.environ.get(variable)
    python = named or str(ROOT / f".venv-{target}/bin/python")
    if not os.access(python, os.X_OK):
        raise UserError(
            f"{', '.join(packages)} are missing: there is no {python}; {make}, "
            f"or set {variable} to the interpreter of an environment with them"
        )
    # A checkout's package goes before the environment's own.
    path = [str(ROOT)] if (ROOT / "pyproject.toml").exists() else []
    needed = [*packages, *([] if path else ["adapter-bert-tf"])]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    environment = {
        FIRST: sys.prefix,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
    }
    answer = subprocess.run(
        [python, "-c", LACKS, *needed],
        env=environment,
        capture_output=True,
        text=True,
    )
    lacking = answer.stdout.split() if not answer.returncode else needed
    if lacking:
        raise UserError(
            f"{python} lacks {', '.join(lacking)}; {make}, which installs them"
        )
    command = [python, "-m", "adapter_bert", program, *sys.argv[1:]]
    sys.stdout.flush()
    os.execve(python, command, environment)
