"""Proofs that the program suits TPUs and GPUs, on a machine without them."""
