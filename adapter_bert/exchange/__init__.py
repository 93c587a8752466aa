"""Adapters of other programs, read and written."""
