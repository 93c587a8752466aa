"""One run, from its settings to its files."""
