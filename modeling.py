"""BERT's `modeling.py` and adapter-bert's.

The names are those of adapter_bert/upstream/modeling.py.
"""

from adapter_bert.upstream.modeling import *  # noqa: F403
