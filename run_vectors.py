"""Trains adapters for vectors of texts.

The program is adapter_bert/commands/run_vectors.py.
"""

from adapter_bert.commands import run

if __name__ == "__main__":
    run("run_vectors")
