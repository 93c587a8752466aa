r"""Tunes BERT on raw text by masked language modelling, and evaluates it.

    .venv/bin/python run_mlm.py --do_train=true --do_eval=true \
        --train_file=raw.txt --eval_file=dev.txt --init_checkpoint=$BERT \
        --num_train_epochs=3 --output_dir=out/domain
"""

import dataclasses

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, POSITIVE, Topic, read
from adapter_bert.tasks.masked_lm import MaskedLM, Masking
from adapter_bert.training import run_from_flags


@dataclasses.dataclass(frozen=True)
class MlmBatches:
    """Further settings of a run."""

    max_seq_length: int = Topic.DATA.setting(
        128,
        "Longest row in tokens; a longer line makes several rows. --adapter "
        "supplies its own default.",
    )
    eval_batch_size: int = Topic.EVALUATION.setting(
        8, "Rows evaluated at once.", POSITIVE
    )


SETTINGS = (MaskedLM, MlmBatches, *run_from_flags.SETTINGS)


def run() -> dict[str, float]:
    """Does what the flags say; results as `run_or_describe` gives them."""
    if FLAGS.do_predict:
        raise UserError(
            "--do_predict: a masked language model answers nothing; pass "
            "--do_eval to score it"
        )
    task = read(MaskedLM, masking=read(Masking, seed=FLAGS.seed))
    return run_from_flags.run_or_describe(
        task, read(MlmBatches).eval_batch_size
    )


def main() -> None:
    """Runs what the flags describe."""
    logging.set_verbosity(logging.INFO)
    run()
