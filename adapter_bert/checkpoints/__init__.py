"""Weights in every format that is read or written."""
