"""Writes BERT's hidden states of texts.

The program is adapter_bert/commands/extract_features.py. Imported, this
module has the names of adapter_bert/upstream/extract_features.py.
"""

if __name__ == "__main__":
    from adapter_bert.commands import run

    run("extract_features")
else:
    from adapter_bert.upstream.extract_features import *  # noqa: F403
    from adapter_bert.upstream.extract_features import (  # noqa: F401
        _truncate_seq_pair,
    )
