r"""Tunes BERT on raw text by masked language modelling, and evaluates it.

    .venv/bin/python run_mlm.py --do_train=true --do_eval=true \
        --train_file=raw.txt --eval_file=dev.txt --init_checkpoint=$BERT \
        --num_train_epochs=3 --output_dir=out/domain
"""

import adapter_bert.start_tensorflow  # noqa: F401

from absl import flags, logging

from adapter_bert.errors import UserError
from adapter_bert.tasks.masked_lm import masked_lm_task
from adapter_bert.training import flags as run_flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of masked language modelling, after the shared ones."""
    run_flags.define_flags()
    # So that --help shows them too.
    flags.adopt_module_key_flags(run_flags)
    string, integer = flags.DEFINE_string, flags.DEFINE_integer
    string("train_file", None, "Text to train on, one sentence per line.")
    string("eval_file", None, "Text to evaluate on, one sentence per line.")
    integer(
        "max_seq_length",
        128,
        "Longest row in tokens; a longer line makes several rows. --adapter "
        "supplies its own default.",
    )
    integer("eval_batch_size", 8, "Rows evaluated at once.")
    flags.DEFINE_float(
        "mlm_probability", 0.15, "Share of the tokens that are masked, 0 to 1."
    )
    flags.DEFINE_bool(
        "whole_word_masking",
        False,
        "Mask all tokens of a word or none of them.",
    )


def main() -> None:
    """Runs what the flags describe."""
    logging.set_verbosity(logging.INFO)
    if FLAGS.do_predict:
        raise UserError(
            "--do_predict: a masked language model answers nothing; pass "
            "--do_eval to score it"
        )
    task = masked_lm_task(
        FLAGS.train_file or "",
        FLAGS.eval_file or "",
        FLAGS.mlm_probability,
        FLAGS.whole_word_masking,
        FLAGS.seed,
    )
    run_flags.run_or_describe(task, FLAGS.eval_batch_size)
