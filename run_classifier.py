"""Tunes BERT for a text classification task, evaluates it, predicts with it.

The program is adapter_bert/commands/run_classifier.py. Imported, this
module has the names of adapter_bert/upstream/run_classifier.py.
"""

if __name__ == "__main__":
    from adapter_bert.commands import run

    run("run_classifier")
else:
    from adapter_bert.upstream.run_classifier import *  # noqa: F403
    from adapter_bert.upstream.run_classifier import (  # noqa: F401
        _truncate_seq_pair,
    )
