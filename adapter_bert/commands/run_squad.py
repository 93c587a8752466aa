r"""Tunes BERT for question answering, evaluates it, predicts with it.

    .venv/bin/python run_squad.py --do_train=true --do_predict=true \
        --do_eval=true --train_file=$SQUAD/train-v1.1.json \
        --predict_file=$SQUAD/dev-v1.1.json \
        --init_checkpoint=$BERT/bert_model.ckpt --learning_rate=3e-4 \
        --num_train_epochs=3 --output_dir=out/squad

All flags of google-research/bert's `run_squad.py` are here too.
"""

import dataclasses
import math
from typing import Dict

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, POSITIVE, Range, Topic, read
from adapter_bert.tasks.squad import COUNTS, MOST_CANDIDATES, Squad
from adapter_bert.training import flags as run_flags


@dataclasses.dataclass(frozen=True)
class Questions:
    """Questions and answers."""

    train_file: str = Topic.DATA.setting(
        "", "Questions to train on, as train-v1.1.json."
    )
    predict_file: str = Topic.DATA.setting(
        "", "Questions to answer, as dev-v1.1.json."
    )
    max_seq_length: int = Topic.DATA.setting(
        384, "Longest window in tokens. --adapter supplies its own default."
    )
    doc_stride: int = Topic.DATA.setting(
        Squad.doc_stride,
        "Tokens from the start of a window to the next one's.",
        POSITIVE,
    )
    max_query_length: int = Topic.DATA.setting(
        Squad.max_query_length,
        "Longest question in tokens; the rest is cut off.",
        POSITIVE,
    )
    version_2_with_negative: bool = Topic.DATA.setting(
        Squad.version_2_with_negative,
        "Questions may have no answer, as in SQuAD 2.0.",
    )
    verbose_logging: bool = Topic.DATA.setting(
        Squad.verbose_logging, "Log every question that is left out."
    )
    count_steps_in: str = Topic.TRAINING.setting(
        Squad.count_steps_in,
        "Unit of an epoch's steps: questions, as published, or windows, of "
        "which a long context has several.",
        choices=COUNTS,
    )
    n_best_size: int = Topic.EVALUATION.setting(
        Squad.n_best_size,
        "Answers of a question in nbest_predictions.json.",
        POSITIVE,
    )
    max_answer_length: int = Topic.EVALUATION.setting(
        Squad.max_answer_length, "Longest answer in tokens.", POSITIVE
    )
    null_score_diff_threshold: float = Topic.EVALUATION.setting(
        Squad.null_score_diff_threshold,
        "SQuAD 2.0: a question whose value in null_odds.json is above this "
        "gets no answer.",
        # JSON holds no other.
        Range(math.isfinite, "expected a finite number"),
    )


SETTINGS = (Questions, *run_flags.SETTINGS)


def task_from_flags() -> Squad:
    """The task that the flags describe.

    Raises:
        UserError: a flag is out of range.
    """
    own = vars(read(Questions)).copy()
    del own["max_seq_length"]
    length = run_flags.max_seq_length()
    # More than there are tokens are no candidates, but take memory; the
    # default serves short windows too.
    most = min(max(length, Questions.n_best_size), MOST_CANDIDATES)
    if own["n_best_size"] > most:
        raise UserError(
            f"--n_best_size is {own['n_best_size']}, expected at most {most}"
        )
    task = Squad("squad", **own)
    if length < task.least_length:
        raise UserError(
            f"--max_seq_length is {length}, expected at least "
            f"{task.least_length}, four more than --max_query_length"
        )
    return task


def run() -> Dict[str, float]:
    """Does what the flags say; results and errors as of `run_or_describe`."""
    return run_flags.run_or_describe(
        task_from_flags(), FLAGS.predict_batch_size
    )


def main() -> None:
    """Runs what the flags describe."""
    logging.set_verbosity(logging.INFO)
    run()
