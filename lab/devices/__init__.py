"""Runs a training step where a TPU or a GPU is."""
