"""The schedule and Adam, as adapter_bert/optimization.py has them."""

from adapter_bert.optimization import (
    AdamWeightDecay,
    Recipe,
    Schedule,
    clip,
    update_variable,
)

__all__ = ["AdamWeightDecay", "Recipe", "Schedule", "clip", "update_variable"]
