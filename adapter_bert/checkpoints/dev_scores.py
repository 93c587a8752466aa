"""The dev scores of a training's steps, and the best of these.

`dev_scores.json` holds the scores of each step that was evaluated in a
training. With `--keep_best`, `best.ckpt-<step>` next to it has the variables of
the best step, which are the run's result.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Optional

import numpy as np
import tensorflow as tf

from adapter_bert import files, folder_lock
from adapter_bert.checkpoints import training_state
from adapter_bert.checkpoints.google import read_whole
from adapter_bert.errors import UserError

# A step in the file; Python refuses numbers of thousands of digits.
STEP = re.compile("[0-9]{1,18}")
SCORES_FILE = "dev_scores.json"
DESCRIPTION = {
    "keep_best": str,
    "scores": dict,
    "scores.*": dict,
    "scores.*.*": float,
}
BEST = "best.ckpt"
# All other scores are better if greater.
LESS_IS_BETTER = "loss", "perplexity", "masked_lm_loss", "next_sentence_loss"

Scores = dict[str, float]


@dataclasses.dataclass(frozen=True)
class DevScores:
    """Holds the scores of a training's evaluations.

    Attributes:
        keep_best: name of the score that chooses the best step, or "".
        by_step: the scores of each step that was evaluated.
    """

    keep_best: str
    by_step: Mapping[int, Scores]

    @property
    def best_step(self) -> Optional[int]:
        """Finds the first step with the best score, if the best is kept."""
        if not self.keep_best or not self.by_step:
            return None
        # Another dev set adds its suffix: loss_mismatched.
        sign = -1 if self.keep_best.startswith(LESS_IS_BETTER) else 1
        return max(
            sorted(self.by_step),
            key=lambda step: sign * self.by_step[step][self.keep_best],
        )

    def count_since_best(self, step: int) -> int:
        """Evaluations up to `step` since the best one."""
        past = {s: of for s, of in self.by_step.items() if s <= step}
        best = dataclasses.replace(self, by_step=past).best_step
        return sum(s > best for s in past) if past else 0

    def add(self, step: int, scores: Scores) -> "DevScores":
        return dataclasses.replace(self, by_step={**self.by_step, step: scores})


def read(output_dir: str) -> Optional[DevScores]:
    """Reads the scores in a folder; None if there are none."""
    path = os.path.join(output_dir, SCORES_FILE)
    if not files.exists(path):
        return None
    what = "the dev scores of a training"
    record = files.read_object(path, what, DESCRIPTION)
    keep_best, by_step = record["keep_best"], {}
    for step, scores in record["scores"].items():
        if not STEP.fullmatch(step) or keep_best and keep_best not in scores:
            raise UserError(f"{path} is not {what}: step {step[:20]}")
        by_step[int(step)] = scores
    return DevScores(keep_best, by_step)


def write(
    output_dir: str, scores: DevScores, values: Mapping[str, np.ndarray]
) -> None:
    """Writes all scores, and the values of the last step if it is the best.

    `values` are the trained variables by name.
    """
    best = scores.best_step
    is_best = best is not None and best == max(scores.by_step)
    if is_best:
        training_state.save_tensors(
            os.path.join(output_dir, f"{BEST}-{best}"),
            {**values, "global_step": np.int64(best)},
        )
    # Weights first, so that the best step that the scores name is there.
    files.write_sealed(
        os.path.join(output_dir, SCORES_FILE),
        {
            "keep_best": scores.keep_best,
            "best_step": best,
            "scores": {
                str(s): scores.by_step[s] for s in sorted(scores.by_step)
            },
        },
    )
    if is_best:
        forget_others(output_dir, scores)


def forget_others(output_dir: str, scores: DevScores) -> None:
    """Deletes checkpoints of steps that are not the best, if one is."""
    if scores.best_step is None:
        return
    for name, step in training_state.checkpoint_files(output_dir, BEST):
        if step != scores.best_step:
            with files.writing(output_dir):
                tf.io.gfile.remove(os.path.join(output_dir, name))


def best_checkpoint(output_dir: str) -> Optional[str]:
    """Finds the checkpoint of the best step, if it is kept; else None."""
    if not output_dir:
        return None

    def find(scores: Optional[DevScores]) -> Optional[str]:
        kept = list(training_state.checkpoint_files(output_dir, BEST))
        if kept and scores is None:
            raise UserError(
                f"{output_dir} holds {kept[0][0]}, but no {SCORES_FILE}, which "
                "names its step; copy that again, or choose another "
                "--output_dir"
            )
        if scores is None or scores.best_step is None:
            return None
        path = os.path.join(output_dir, f"{BEST}-{scores.best_step}")
        if not files.exists(f"{path}.index"):
            raise UserError(
                f"{path} is not there any more, the best of a training; copy "
                "it again, or choose another --output_dir"
            )
        read_whole(path)
        return path

    return folder_lock.read_beside_writer(lambda: read(output_dir), find)
