"""Tasks: rows of data, heads over BERT, scores and answers."""
