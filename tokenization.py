"""BERT's `tokenization.py`.

The names are those of adapter_bert/upstream/tokenization.py.
"""

from adapter_bert.upstream.tokenization import *  # noqa: F403
from adapter_bert.upstream.tokenization import (  # noqa: F401
    _is_control,
    _is_punctuation,
    _is_whitespace,
)
