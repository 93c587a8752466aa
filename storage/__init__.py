"""How files are read, written whole, and kept."""
