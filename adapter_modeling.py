"""The paper's adapters, as adapter_bert/methods/houlsby.py has them."""

from adapter_bert.methods.houlsby import AdapterHooks, Bottleneck, Houlsby

__all__ = ["AdapterHooks", "Bottleneck", "Houlsby"]
