"""How a training's steps did on the dev set, and which was the best.

`dev_scores.json` holds the scores of each step that was evaluated while a task
was trained. Where the best step is kept, `best.ckpt-<step>` beside it has what
was trained by then; that is what the run has come to.
"""

import dataclasses
import os
import re
from typing import Dict, List, Mapping, Optional

import numpy as np
import tensorflow as tf

from adapter_bert import files
from adapter_bert.checkpoints import training_state
from adapter_bert.checkpoints.google import read_whole
from adapter_bert.errors import UserError

# A step in the file; Python refuses numbers of thousands of digits.
STEP = re.compile("[0-9]{1,18}")
SCORES_FILE = "dev_scores.json"
BEST = "best.ckpt"
BEST_FILE = re.compile(r"best\.ckpt-(\d{1,18})\.(index|data-\d+-of-\d+)")
# Of all others more is better.
LESS_IS_BETTER = ("loss", "perplexity")

Scores = Dict[str, float]


@dataclasses.dataclass(frozen=True)
class DevScores:
    """What a training's evaluations came to.

    Attributes:
        keep_best: the score by which the best step is chosen, or "".
        by_step: the scores of each step that was evaluated.
    """

    keep_best: str
    by_step: Mapping[int, Scores]

    @property
    def best_step(self) -> Optional[int]:
        """The first of the steps with the best score, if one is kept."""
        if not self.keep_best or not self.by_step:
            return None
        # A dev set beside the first adds its suffix: loss_mismatched.
        sign = -1 if self.keep_best.split("_")[0] in LESS_IS_BETTER else 1
        return max(
            sorted(self.by_step),
            key=lambda step: sign * self.by_step[step][self.keep_best],
        )

    def count_since_best(self, step: int) -> int:
        """How many evaluations up to `step` have not bettered the best."""
        past = {s: of for s, of in self.by_step.items() if s <= step}
        best = dataclasses.replace(self, by_step=past).best_step
        return sum(s > best for s in past) if past else 0

    def add(self, step: int, scores: Scores) -> "DevScores":
        """The same with one more."""
        by_step = {**self.by_step, step: scores}
        return dataclasses.replace(self, by_step=by_step)


def read(output_dir: str) -> Optional[DevScores]:
    """What a folder holds, or None.

    Raises:
        UserError: the file is damaged.
    """
    path = os.path.join(output_dir, SCORES_FILE)
    if not files.exists(path):
        return None
    what = "the dev scores of a training"
    found = files.read_object(path, what, {"keep_best": str, "scores": dict})
    keep_best, by_step = found["keep_best"], {}
    for step, scores in found["scores"].items():
        if (
            not STEP.fullmatch(step)
            or not isinstance(scores, dict)
            or not all(type(value) in (int, float) for value in scores.values())
            or keep_best
            and keep_best not in scores
        ):
            raise UserError(f"{path} is not {what}: step {step[:20]}")
        by_step[int(step)] = scores
    return DevScores(keep_best, by_step)


def write(
    output_dir: str, scores: DevScores, values: Mapping[str, np.ndarray]
) -> None:
    """Writes all scores, of which the last may have been added now.

    `values` are what is trained by now, by name; kept if the step is the best.

    Raises:
        UserError: they cannot be written.
    """
    best = scores.best_step
    is_best = best is not None and best == max(scores.by_step)
    if is_best:
        training_state.save_tensors(
            _prefix(output_dir, best),
            {**values, "global_step": np.int64(best)},
        )
    # The weights come first: what is said to be the best is there.
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
    """Deletes what is kept of steps that are not the best, if one is.

    Raises:
        UserError: it cannot be deleted.
    """
    if scores.best_step is None:
        return
    for name in _kept(output_dir):
        if not name.startswith(f"{BEST}-{scores.best_step}."):
            path = os.path.join(output_dir, name)
            try:
                tf.io.gfile.remove(path)
            except tf.errors.OpError as error:
                raise UserError(
                    f"cannot delete {path}: {error.message}"
                ) from error


def best_checkpoint(output_dir: str) -> Optional[str]:
    """The checkpoint of the best step, where that is kept; or None.

    Raises:
        UserError: it is damaged, or it is not known which it is.
    """
    if not output_dir:
        return None
    # A training that goes on may put a better one in its place meanwhile.
    return files.read_newest(
        lambda: read(output_dir),
        lambda scores: _checkpoint_of(output_dir, scores),
    )


def _checkpoint_of(
    output_dir: str, scores: Optional[DevScores]
) -> Optional[str]:
    """As `best_checkpoint`, by scores that were read."""
    if scores is None or scores.best_step is None:
        kept = _kept(output_dir)
        if scores is None and kept:
            raise UserError(
                f"{output_dir} holds {kept[0]}, but no {SCORES_FILE}, which "
                "says of which step it is; copy that again, or choose another "
                "--output_dir"
            )
        return None
    path = _prefix(output_dir, scores.best_step)
    if not files.exists(f"{path}.index"):
        raise UserError(
            f"{path} is not there any more, the best of a training; copy it "
            "again, or choose another --output_dir"
        )
    read_whole(path)
    return path


def _prefix(output_dir: str, step: int) -> str:
    return os.path.join(output_dir, f"{BEST}-{step}")


def _kept(output_dir: str) -> List[str]:
    """Names of the files of such checkpoints."""
    if not files.is_folder(output_dir):
        return []
    return sorted(filter(BEST_FILE.fullmatch, files.listed(output_dir)))
