"""BERT's own Python API, over the encoder, methods and optimizer here.

Signatures are the published ones, without types, since programs hand in tensors
and tokenizers of their own; docstrings say what is expected.
"""
