"""BERT's `extract_features.py`, as adapter_bert/upstream/ has it."""

if __name__ == "__main__":
    from adapter_bert.commands import run

    run("extract_features")
else:
    from adapter_bert.upstream.extract_features import *  # noqa: F403
    from adapter_bert.upstream.extract_features import (  # noqa: F401
        _truncate_seq_pair,
    )
