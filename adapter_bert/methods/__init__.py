"""Tuning methods: what is added to BERT, and what is trained."""
