"""Prints the folder of a pretrained MPNet of BERT-base's size.

    adapter-bert mpnet [--fetch]

It is all-mpnet-base-v2. --fetch downloads 404 MB; `adapter-bert minilm --help`
says where to.
"""

from adapter_bert.commands import minilm


def main() -> None:
    """Prints the folder."""
    minilm.main("mpnet", __doc__)
