"""Pretrains BERT, or an adapter, on masked tokens and next sentences.

The program is adapter_bert/commands/run_pretraining.py.
"""

from adapter_bert.commands import run

if __name__ == "__main__":
    run("run_pretraining")
