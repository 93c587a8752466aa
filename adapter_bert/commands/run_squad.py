r"""Tunes BERT for question answering, evaluates it, predicts with it.

    .venv/bin/python run_squad.py --do_train=true --do_predict=true \
        --do_eval=true --train_file=$SQUAD/train-v1.1.json \
        --predict_file=$SQUAD/dev-v1.1.json \
        --init_checkpoint=$BERT/bert_model.ckpt --learning_rate=3e-4 \
        --num_train_epochs=3 --output_dir=out/squad

All flags of google-research/bert's `run_squad.py` are here too.
"""

import dataclasses

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert.errors import UserError
from adapter_bert.flags import Topic
from adapter_bert.tasks.squad import MOST_CANDIDATES, Squad
from adapter_bert.training import run_from_flags
from adapter_bert.training.settings import OF_ALL


@dataclasses.dataclass(frozen=True)
class Windows:
    """Further settings of a run."""

    max_seq_length: int = Topic.DATA.setting(
        384,
        "Longest window in tokens. --adapter, or a run that is evaluated, "
        "supplies its own default.",
    )


SETTINGS = (Squad, Windows, *OF_ALL)


def task_from_flags() -> Squad:
    """Returns the task that the flags describe."""
    task = run_from_flags.read_recorded(Squad)
    length = run_from_flags.max_seq_length()
    # More than there are tokens are no candidates, but take memory; the
    # default serves short windows too.
    most = min(max(length, Squad.n_best_size), MOST_CANDIDATES)
    if task.n_best_size > most:
        raise UserError(
            f"--n_best_size is {task.n_best_size}, expected at most {most}"
        )
    if length < task.least_length:
        raise UserError(
            f"--max_seq_length is {length}, expected at least "
            f"{task.least_length}, four more than --max_query_length"
        )
    return task


def main() -> dict[str, float]:
    """Does what the flags say; results as `run_or_describe` gives them."""
    return run_from_flags.run_or_describe(task_from_flags())
