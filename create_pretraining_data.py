"""Makes rows for pretraining: masked tokens and next sentences.

The program is adapter_bert/commands/create_pretraining_data.py. Imported, this
module has the names of adapter_bert/upstream/create_pretraining_data.py.
"""

if __name__ == "__main__":
    from adapter_bert.commands import run

    run("create_pretraining_data")
else:
    from adapter_bert.upstream.create_pretraining_data import *  # noqa: F403
