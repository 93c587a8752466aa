"""Runs all cells of a notebook, and keeps the outputs.

    .venv/bin/python -m lab.run_notebook NOTEBOOK [--output=OTHER]
        [--set NAME=VALUE ...]

`make notebooks` installs nbclient, which runs it. The notebook starts in its
own folder, as in Jupyter. Without --output its outputs are kept in the notebook
itself. --set gives a name of the cell with the tag `parameters` another value,
a literal of Python.
"""

import ast
import dataclasses
import importlib.util
import os
import pathlib
import re
import sys
import tempfile
from typing import Any

from adapter_bert import command_line
from adapter_bert.errors import UserError, first_line
from adapter_bert.flag_page import read_command_line
from adapter_bert.flags import Topic

# Where `make notebooks` puts Jupyter's parts.
CLIENT = os.path.join(sys.prefix, "notebooks")
# Ends of lines of a terminal, and a bar below another one, after which the
# terminal goes a line up, to draw both anew.
OVERWRITTEN = re.compile(r"\r(?=\n)|.*\x1b\[A\r?\n?")


@dataclasses.dataclass(frozen=True)
class Notebook:
    """What is changed, and where the outputs go."""

    output: str = Topic.TO_DO.setting(
        "", "File for the outputs; default: the notebook itself."
    )
    set: list[str] = Topic.TO_DO.setting(
        [],
        "Another value of a name in the cell `parameters`.",
        repeated=True,
    )


def find_client() -> None:
    """Makes Jupyter's parts importable, here and in the notebook."""
    if importlib.util.find_spec("nbclient"):
        return
    if not os.path.isdir(CLIENT):
        raise UserError(
            f"there is no nbclient, and no {CLIENT}; run `make notebooks`, "
            "with the VENV of this Python"
        )
    sys.path.append(CLIENT)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [CLIENT, before]))


def read_settings(texts: list[str]) -> dict[str, Any]:
    """Values by name, of texts NAME=VALUE."""
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            if not (equals and name.isidentifier()):
                raise ValueError
            settings[name] = ast.literal_eval(value)
        except (TypeError, ValueError, SyntaxError) as error:
            raise UserError(
                f"--set {text}, expected NAME=VALUE with a literal of Python, "
                "as EPOCHS=1 or TASK='mrpc'"
            ) from error
    return settings


def add_settings(notebook: Any, settings: dict[str, Any]) -> None:
    """Adds a cell with other values after the cell of the parameters."""
    import nbformat

    tagged = [
        place
        for place, cell in enumerate(notebook.cells)
        if "parameters" in cell.metadata.get("tags", ())
    ]
    if settings and len(tagged) != 1:
        raise UserError(
            f"{len(tagged)} cells have the tag parameters, expected one"
        )
    for name in settings:
        source = notebook.cells[tagged[0]].source
        names = re.findall(r"^(\w+) *=", source, re.MULTILINE)
        if name not in names:
            raise UserError(
                f"--set {name}: the notebook has {', '.join(sorted(names))}"
            )
    if settings:
        source = "\n".join(f"{name} = {v!r}" for name, v in settings.items())
        cell = nbformat.v4.new_code_cell(source)
        notebook.cells.insert(tagged[0] + 1, cell)


def execute(notebook: Any, folder: str) -> None:
    """Runs all cells in a folder; their outputs are added to the notebook."""
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    with tempfile.TemporaryDirectory() as scratch:
        # Nothing of it is left in the user's folders, nor taken from there.
        for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
            os.environ[name] = scratch
        os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
            # What a bar has overwritten is left out.
            coalesce_streams=True,
        )
        kernel = client.create_kernel_manager()
        # This Python, whatever else is called so on this machine.
        kernel.kernel_spec_manager = KernelSpecManager(kernel_dirs=[])
        # Its sockets are files of this user.
        kernel.transport = "ipc"
        kernel.ip = os.path.join(scratch, "kernel")
        try:
            client.execute()
        except CellExecutionError as error:
            raise UserError(
                f"a cell failed, {error.ename}: {error.evalue}"
            ) from error
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                output.text = OVERWRITTEN.sub("", output.text)


def main() -> None:
    """Runs the notebook that the arguments name, and writes its outputs."""
    options, [path] = read_command_line(Notebook, __doc__, ["NOTEBOOK"])
    settings = read_settings(options.set)
    output = os.path.abspath(options.output or path)
    find_client()
    import nbformat

    if not os.path.isdir(os.path.dirname(output)):
        parent = os.path.dirname(output)
        raise UserError(f"the folder {parent} of --output does not exist")
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as a notebook: {first_line(error)}"
        ) from error
    add_settings(notebook, settings)
    execute(notebook, str(pathlib.Path(path).resolve().parent))
    try:
        nbformat.write(notebook, output)
    except OSError as error:
        raise UserError(
            f"{output} cannot be written: {first_line(error)}"
        ) from error


if __name__ == "__main__":
    with command_line.run():
        main()
