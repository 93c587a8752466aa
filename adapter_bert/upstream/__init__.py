"""BERT's own Python API, over the encoder, tokenizer and optimizer here."""
