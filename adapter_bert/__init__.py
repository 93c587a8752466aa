"""Adapter-tuned BERT: one frozen model, a small adapter for each task."""
