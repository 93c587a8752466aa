"""BERT's `tokenization.py`, as adapter_bert/upstream/ has it."""

from adapter_bert.upstream.tokenization import *  # noqa: F403
from adapter_bert.upstream.tokenization import (  # noqa: F401
    _is_control,
    _is_punctuation,
    _is_whitespace,
)
