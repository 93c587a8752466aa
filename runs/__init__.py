"""One run, from flags to files."""
