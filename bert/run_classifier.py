"""BERT's `run_classifier.py`, as adapter_bert/upstream/ has it."""

from adapter_bert.upstream.run_classifier import *  # noqa: F403
from adapter_bert.upstream.run_classifier import (  # noqa: F401
    _truncate_seq_pair,
)
