"""Proofs for TPUs and GPUs: without one, and where one is."""
