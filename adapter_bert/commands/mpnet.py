"""Prints the folder of a pretrained MPNet of BERT-base's size.

    adapter-bert mpnet [--fetch]

It is all-mpnet-base-v2. --fetch is that of `adapter-bert minilm`, of 404 MB.
"""

from adapter_bert.commands import minilm


def main() -> None:
    """Prints the folder."""
    minilm.main("mpnet", __doc__)
