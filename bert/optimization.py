"""BERT's `optimization.py`, as adapter_bert/upstream/ has it."""

from adapter_bert.upstream.optimization import *  # noqa: F403
