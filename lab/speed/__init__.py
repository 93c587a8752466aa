"""Counts and measurements of speed and memory; run by hand, not by tests."""
