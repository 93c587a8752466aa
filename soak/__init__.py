"""Kills and damages runs for some minutes; run by hand, not by tests."""
