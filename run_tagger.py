"""Tunes BERT for tagging, evaluates it, predicts with it.

The program is adapter_bert/commands/run_tagger.py.
"""

from adapter_bert.commands.run_tagger import command

if __name__ == "__main__":
    command()
