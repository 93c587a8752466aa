r"""Tunes BERT for question answering, evaluates it, predicts with it.

    .venv/bin/python run_squad.py --do_train=true --do_predict=true \
        --do_eval=true --train_file=$SQUAD/train-v1.1.json \
        --predict_file=$SQUAD/dev-v1.1.json \
        --init_checkpoint=$BERT/bert_model.ckpt --learning_rate=3e-4 \
        --num_train_epochs=3 --output_dir=out/squad

All flags of google-research/bert's `run_squad.py` are here too.
"""

import math

import adapter_bert.start_tensorflow  # noqa: F401

from absl import flags, logging

from adapter_bert.errors import UserError
from adapter_bert.tasks.squad import COUNTS, MOST_CANDIDATES, Squad
from adapter_bert.training import flags as run_flags

FLAGS = flags.FLAGS
POSITIVE = (
    "doc_stride",
    "max_query_length",
    "n_best_size",
    "max_answer_length",
)


def define_flags() -> None:
    """Defines the flags of question answering alone, after the shared ones."""
    run_flags.define_flags()
    # So that --help shows them too.
    flags.adopt_module_key_flags(run_flags)
    string, integer = flags.DEFINE_string, flags.DEFINE_integer
    string("train_file", None, "Questions to train on, as train-v1.1.json.")
    string("predict_file", None, "Questions to answer, as dev-v1.1.json.")
    integer(
        "max_seq_length",
        384,
        "Longest window in tokens. --adapter supplies its own default.",
    )
    integer(
        "doc_stride",
        128,
        "Tokens from the start of a window to the next one's.",
    )
    integer(
        "max_query_length",
        64,
        "Longest question in tokens; the rest is cut off.",
    )
    integer(
        "n_best_size", 20, "Answers of a question in nbest_predictions.json."
    )
    integer("max_answer_length", 30, "Longest answer in tokens.")
    flags.DEFINE_bool(
        "version_2_with_negative",
        False,
        "Questions may have no answer, as in SQuAD 2.0.",
    )
    flags.DEFINE_float(
        "null_score_diff_threshold",
        0.0,
        "SQuAD 2.0: a question whose value in null_odds.json is above this "
        "gets no answer.",
    )
    flags.DEFINE_enum(
        "count_steps_in",
        COUNTS[0],
        COUNTS,
        "Unit of an epoch's steps: questions, as published, or windows, of "
        "which a long context has several.",
    )
    flags.DEFINE_bool(
        "verbose_logging", False, "Log every question that is left out."
    )


def task_from_flags() -> Squad:
    """The task that the flags describe.

    Raises:
        UserError: a flag is out of range.
    """
    for name in POSITIVE:
        if FLAGS[name].value < 1:
            raise UserError(f"--{name} is {FLAGS[name].value}, expected >= 1")
    if not math.isfinite(FLAGS.null_score_diff_threshold):
        # JSON cannot hold it.
        raise UserError(
            f"--null_score_diff_threshold is {FLAGS.null_score_diff_threshold},"
            " expected a finite number"
        )
    # More than there are tokens are no candidates, but take memory; the
    # default serves short windows too.
    length = run_flags.max_seq_length()
    most = max(length, FLAGS["n_best_size"].default)
    most = min(most, MOST_CANDIDATES)
    if FLAGS.n_best_size > most:
        raise UserError(
            f"--n_best_size is {FLAGS.n_best_size}, expected at most {most}"
        )
    task = Squad(
        "squad",
        train_file=FLAGS.train_file or "",
        predict_file=FLAGS.predict_file or "",
        **{name: FLAGS[name].value for name in POSITIVE},
        version_2_with_negative=FLAGS.version_2_with_negative,
        null_score_diff_threshold=FLAGS.null_score_diff_threshold,
        count_steps_in=FLAGS.count_steps_in,
        verbose_logging=FLAGS.verbose_logging,
    )
    if length < task.least_length:
        raise UserError(
            f"--max_seq_length is {length}, expected at least "
            f"{task.least_length}, four more than --max_query_length"
        )
    return task


def main() -> None:
    """Runs what the flags describe."""
    logging.set_verbosity(logging.INFO)
    run_flags.run_or_describe(task_from_flags(), FLAGS.predict_batch_size)
