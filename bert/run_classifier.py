"""BERT's `run_classifier.py`, as adapter_bert/upstream/ has it."""

if __name__ == "__main__":
    from adapter_bert.commands import run

    run("run_classifier")
else:
    from adapter_bert.upstream.run_classifier import *  # noqa: F403
    from adapter_bert.upstream.run_classifier import (  # noqa: F401
        _truncate_seq_pair,
    )
