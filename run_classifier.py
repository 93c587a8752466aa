"""Tunes BERT for a text classification task, evaluates it, predicts with it.

The program is adapter_bert/commands/run_classifier.py.
"""

from adapter_bert.commands import run

if __name__ == "__main__":
    run("run_classifier")
