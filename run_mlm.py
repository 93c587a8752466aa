"""Trains adapters on the masked words of plain text.

The program is adapter_bert/commands/run_mlm.py.
"""

from adapter_bert.commands import run

if __name__ == "__main__":
    run("run_mlm")
