"""From files of rows to batches of token ids."""
