"""Fault injection, fuzzing and mutation testing."""
