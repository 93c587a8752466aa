"""BERT's `modeling.py`, as adapter_bert/upstream/ has it."""

from adapter_bert.upstream.modeling import *  # noqa: F403
