r"""Tunes BERT on raw text by masked language modelling, and evaluates it.

    .venv/bin/python run_mlm.py --do_train=true --do_eval=true \
        --train_file=raw.txt --eval_file=dev.txt --init_checkpoint=$BERT \
        --num_train_epochs=3 --output_dir=out/domain
"""

import dataclasses
from typing import Dict

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, POSITIVE, Topic, read
from adapter_bert.tasks.masked_lm import masked_lm_task
from adapter_bert.training import flags as run_flags


@dataclasses.dataclass(frozen=True)
class RawText:
    """Text, and which of its words are masked."""

    train_file: str = Topic.DATA.setting(
        "", "Text to train on, one sentence per line."
    )
    eval_file: str = Topic.DATA.setting(
        "", "Text to evaluate on, one sentence per line."
    )
    max_seq_length: int = Topic.DATA.setting(
        128,
        "Longest row in tokens; a longer line makes several rows. --adapter "
        "supplies its own default.",
    )
    mlm_probability: float = Topic.DATA.setting(
        0.15, "Share of the tokens that are masked, 0 to 1."
    )
    whole_word_masking: bool = Topic.DATA.setting(
        False, "Mask all tokens of a word or none of them."
    )
    eval_batch_size: int = Topic.EVALUATION.setting(
        8, "Rows evaluated at once.", POSITIVE
    )


SETTINGS = (RawText, *run_flags.SETTINGS)


def run() -> Dict[str, float]:
    """Does what the flags say; results and errors as of `run_or_describe`."""
    if FLAGS.do_predict:
        raise UserError(
            "--do_predict: a masked language model answers nothing; pass "
            "--do_eval to score it"
        )
    own = read(RawText)
    task = masked_lm_task(
        own.train_file,
        own.eval_file,
        own.mlm_probability,
        own.whole_word_masking,
        FLAGS.seed,
    )
    return run_flags.run_or_describe(task, own.eval_batch_size)


def main() -> None:
    """Runs what the flags describe."""
    logging.set_verbosity(logging.INFO)
    run()
