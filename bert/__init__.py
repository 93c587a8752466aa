"""What BERT is computed with, and where a method may act upon it."""
