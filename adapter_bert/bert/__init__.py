"""BERT, and the places where a tuning method acts on it."""
