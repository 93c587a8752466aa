"""Answers from trained adapters."""
