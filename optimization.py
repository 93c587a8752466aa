"""BERT's `optimization.py`.

The names are those of adapter_bert/upstream/optimization.py.
"""

from adapter_bert.upstream.optimization import *  # noqa: F403
