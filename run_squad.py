"""Tunes BERT for question answering, evaluates it, predicts with it.

The program is adapter_bert/commands/run_squad.py.
"""

from adapter_bert.commands import run

if __name__ == "__main__":
    run("run_squad")
