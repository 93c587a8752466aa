"""Measurements and trials of the product; no user needs them."""
