"""The folder name under which many programs import BERT's modules."""
