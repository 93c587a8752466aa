"""The paper's adapters, as methods have them and as adapter-bert named them."""

from adapter_bert.methods.houlsby import AdapterHooks, Bottleneck, Houlsby
from adapter_bert.upstream.modeling import feedforward_adapter, get_adapter

__all__ = [
    "AdapterHooks",
    "Bottleneck",
    "Houlsby",
    "feedforward_adapter",
    "get_adapter",
]
