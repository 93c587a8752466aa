r"""Tunes BERT on raw text by masked language modelling, and evaluates it.

    .venv/bin/python run_mlm.py --do_train=true --do_eval=true \
        --train_file=raw.txt --eval_file=dev.txt --init_checkpoint=$BERT \
        --num_train_epochs=3 --output_dir=out/domain
"""

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert.flags import FLAGS, read
from adapter_bert.tasks.masked_lm import MaskedLM, Masking
from adapter_bert.training import run_from_flags
from adapter_bert.training.settings import WITH_ROWS

SETTINGS = (MaskedLM, *WITH_ROWS)


def main() -> dict[str, float]:
    """Does what the flags say; results as `run_or_describe` gives them."""
    task = read(MaskedLM, masking=read(Masking, seed=FLAGS.seed))
    return run_from_flags.run_or_describe(task)
