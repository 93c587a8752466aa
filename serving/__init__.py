"""Many trained tasks upon one BERT that is in memory once."""
