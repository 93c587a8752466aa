r"""Prints docs/licences.md: the licences of the locked packages.

    .venv/bin/python -m lab.list_licences .venv .venv-tf221 \
        > docs/licences.md
"""

import importlib.metadata
import pathlib
import re
import sys
import textwrap
from typing import Any

from adapter_bert import command_line
from adapter_bert.errors import UserError

LOCKS = pathlib.Path(__file__).parents[1] / "requirements"
# Locks of environments of their own.
APART = (
    "atheris",
    "beam",
    "compilers",
    "docs",
    "notebooks",
    "onnx",
    "release",
    "tpu-client",
)
HEAD = """\
# Licences of what is installed

Made by `.venv/bin/python -m lab.list_licences .venv .venv-tf221`,
from what each package says of itself. The versions are in `requirements/`. This
project itself is under Apache-2.0, and holds no copy of any of these. What
`make beam`, `compilers`, `onnx`, `notebooks`, `docs`, `release`, `fuzz`,
`tpu-client` and `benchmark` add is not listed, nor are pretrained models.

| package | licence |
| --- | --- |
"""
REST = """
## Not looked at

These are locked too, but for other machines or other versions of Python.
Packages called `nvidia-*` are the CUDA build's. Look at the terms of each.
"""


def normalized(name: str) -> str:
    """A package's name as locks write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> set[str]:
    """Returns the names in the locks of both TensorFlows."""
    locks = [p.read_text() for p in LOCKS.glob("*.txt") if p.stem not in APART]
    names = re.findall(r"^([\w.-]+)==", "\n".join(locks), re.MULTILINE)
    return set(map(normalized, names))


def licence(metadata: Any) -> str:
    """A package's own words on its licence; of a whole text the first line."""
    kinds = [
        text.split(" :: ")[-1]
        for text in metadata.get_all("Classifier", [])
        if text.startswith("License ::")
    ]
    stated = metadata.get("License", "").strip().partition("\n")[0]
    expression = metadata.get("License-Expression")
    return expression or ", ".join(kinds) or stated or "not stated"


def licences(environment: str) -> dict[str, str]:
    """Returns the licence of each locked package in a virtual environment."""
    folders = list(map(str, pathlib.Path(environment).glob("lib/*/*-packages")))
    if not folders:
        raise UserError(f"{environment} is no virtual environment")
    packages = importlib.metadata.distributions(path=folders)
    by_name = {
        normalized(p.metadata["Name"]): licence(p.metadata) for p in packages
    }
    return {name: by_name[name] for name in locked() & set(by_name)}


def page(environments: list[str]) -> str:
    """Returns the page; raises as `licences`."""
    all_found = list(map(licences, environments))
    names = sorted(set().union(*all_found))
    rows = ""
    for name in names:
        # Two versions may word it differently.
        texts = dict.fromkeys(of[name] for of in all_found if name in of)
        rows += f"| `{name}` | {'; '.join(texts)} |\n"
    rest = ", ".join(f"`{name}`" for name in sorted(locked() - set(names)))
    filled = textwrap.fill(rest, 80, break_on_hyphens=False)
    return f"{HEAD}{rows}{REST}\n{filled}\n"


def main() -> None:
    """Prints the page of the environments that are named."""
    if not sys.argv[1:]:
        raise UserError("no virtual environment is named, as .venv")
    print(page(sys.argv[1:]), end="")


if __name__ == "__main__":
    with command_line.run():
        main()
