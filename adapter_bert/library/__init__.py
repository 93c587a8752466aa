"""A folder of adapters."""
