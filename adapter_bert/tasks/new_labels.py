"""Classification by a trained adapter that learns further labels.

The rows of its head's last layer keep their bits. Those of new labels begin
with means of features, as in weight imprinting (Qi et al. 2018, "Low-Shot
Learning with Imprinted Weights", section 3.2). Without rows of old labels, the
old adapter's answers to the new rows are learned too: Li and Hoiem 2017,
"Learning without Forgetting", section 3.
"""

import dataclasses
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from adapter_bert import files
from adapter_bert.data.divisions import number_texts
from adapter_bert.data.tables import (
    READERS,
    check_file,
    list_labels,
    read_rows,
    spelled,
)
from adapter_bert.errors import UserError
from adapter_bert.tasks.task import with_values
from adapter_bert.tasks.text_classification import (
    ClassificationHead,
    TextClassification,
    check_one_label,
)
from adapter_bert.tasks.text_task import divide

# Of the logits of both models; the paper's, equation 3.
TEMPERATURE = 2.0
# Factor of the distillation's loss; the paper's, section 3.
DISTILL_WEIGHT = 1.0
# The logit of a label that a row's label does not compete with.
OUT_OF_QUESTION = -1e9
# Among features, the logits of the old adapter, float32 [B, old labels].
OLD_LOGITS = "old_logits"
# Among predictions, the inputs of the head's last layer, float32 [B, D].
FEATURES = "features"
WEIGHTS, BIAS = "output_weights", "output_bias"


class NewLabelsHead(ClassificationHead):
    """A classifier's head whose first rows are not trained."""

    # Decay would change the old rows.
    undecayed = (WEIGHTS, BIAS)
    shows_features = False

    def __init__(self, old: int, distill_weight: float, *arguments: Any):
        super().__init__(*arguments)
        self._old, self._distill_weight = old, distill_weight

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"logits": float32 [B, C], `FEATURES`}."""
        features = self.read(bert, sequence_output, context)
        logits = self.logits(
            features, self._keep_old(self.weights), self._keep_old(self.bias)
        )
        return {"logits": logits, FEATURES: features}

    def _keep_old(self, variable: Optional[tf.Variable]):
        if variable is None:
            return None
        old, new = variable[: self._old], variable[self._old :]
        return tf.concat([tf.stop_gradient(old), new], axis=0)

    def select(self, predictions):
        if self.shows_features:
            return predictions
        return {"logits": predictions["logits"]}

    def loss(self, predictions, features):
        """Cross entropies in nats, float32 [B]: of labels, of old answers.

        With old answers a label competes with labels of its own age alone, as
        in the paper, where old and new tasks have heads of their own. Otherwise
        a shift of all logits to new labels would learn most.
        """
        if OLD_LOGITS not in features:
            return super().loss(predictions, features)
        logits = predictions["logits"]
        is_old = tf.range(tf.shape(logits)[1]) < self._old
        label_is_old = features["label_ids"] < self._old
        competes = tf.equal(label_is_old[:, tf.newaxis], is_old)
        competing = tf.where(competes, logits, OUT_OF_QUESTION)
        losses = super().loss({"logits": competing}, features)
        return losses + self._distill_weight * (
            tf.nn.softmax_cross_entropy_with_logits(
                tf.nn.softmax(features[OLD_LOGITS] / TEMPERATURE),
                logits[:, : self._old] / TEMPERATURE,
            )
        )


@dataclasses.dataclass(frozen=True)
class NewLabels(TextClassification):
    """A classification task that adds labels to a trained adapter's.

    `old_labels` are the first of `labels`. Rows of `replay_file` have old ones,
    and join the training rows, and of held out rows the dev rows.
    """

    old_labels: tuple[str, ...] = ()
    replay_file: str = ""
    distill_weight: float = DISTILL_WEIGHT

    def check_files(self, data_dir, splits):
        super().check_files(data_dir, splits)
        if not self.replay_file:
            return
        check_file("--replay_file", self.replay_file, READERS)
        for split, name in ("train", "training"), ("dev", "eval"):
            path = split in splits and self.find(data_dir, split)
            if isinstance(path, str) and files.is_same(self.replay_file, path):
                raise UserError(
                    f"--replay_file is {self.replay_file}, which is the {name} "
                    "file too; name a file of other rows with old labels, or "
                    "leave it out"
                )

    def restore(self, description, source):
        trained = super().restore(description, source)
        return dataclasses.replace(
            trained, labels=None, old_labels=trained.labels
        )

    def complete(self, train):
        labels = {
            spelled(label, self.old_labels) or label
            for label in self.labels_in(train)
        }
        if labels <= {*self.old_labels}:
            raise UserError(
                f"{train.path}: every label of the column "
                f"{self.labelled.label!r} is one of the adapter's, "
                f"{list_labels(self.old_labels)}; --extend_labels expects rows "
                "of a new label"
            )
        task = self.with_labels(labels.union(self.old_labels), train.path)
        new = (x for x in task.labels if x not in self.old_labels)
        return dataclasses.replace(task, labels=(*self.old_labels, *new))

    def read(self, data_dir, splits):
        if not self.replay_file or "train" not in splits:
            return super().read(data_dir, splits)
        both = ("train", "dev") if self.held_out else ("train",)
        task, rows = super().read(data_dir, dict.fromkeys((*splits, *both)))
        replayed = task._check(read_rows(self.replay_file, self.labelled))
        if not {*self.old_labels} & {*replayed.label}:
            raise UserError(
                f"--replay_file: {self.replay_file} has no row of an old label "
                f"({list_labels(self.old_labels)}); name a file that has, or "
                "leave it out"
            )
        divided = {"train": replayed}
        if self.held_out:
            sets = task.strata(replayed)
            divided = divide(replayed, task.held_out, replayed.texts, sets)
            # A text of the file is on the side on which it is replayed.
            parts = [of[split] for of in (divided, rows) for split in both]
            numbers = number_texts(x for part in parts for x in part.texts)
            is_dev = np.repeat([False, True] * 2, list(map(len, parts)))
            side = dict(zip(numbers[: len(replayed)], is_dev))
            is_dev = np.array([*map(side.get, numbers, is_dev)])
            is_dev = is_dev[len(replayed) :]
            of_file = rows["train"].followed_by(rows["dev"])
            rows["train"] = of_file.take(~is_dev)
            rows["dev"] = of_file.take(is_dev)
        return task, {
            split: rows[split].followed_by(divided[split])
            if split in divided
            else rows[split]
            for split in splits
        }

    def learn(self, rows):
        for label in self.labels[len(self.old_labels) :]:
            if label not in rows.label:
                raise UserError(
                    f"no training row has the new label {label!r}; raise "
                    "--max_train_examples"
                )
        if self.replay_file and not {*self.old_labels} & {*rows.label}:
            raise UserError(
                "no training row has an old label, and rows of --replay_file "
                "follow the others; raise --max_train_examples"
            )
        return super().learn(rows)

    def build_head(self, config, create):
        return NewLabelsHead(
            len(self.old_labels),
            self.distill_weight,
            len(self.labels),
            config,
            create,
            self.head,
            self.class_weights,
        )

    def begin_from(self, trained):
        """Adds zeros for rows of new labels to the adapter's values."""
        more = len(self.labels) - len(self.old_labels)
        values = {}
        for name in (WEIGHTS, BIAS):
            if name in trained.shapes:
                old = trained.read(name)
                new = np.zeros((more, *old.shape[1:]), np.float32)
                values[name] = np.concatenate([old, new])
        return with_values(trained, values)

    @property
    def training_settings(self):
        return {
            **super().training_settings,
            "extend_labels": True,
            "replays": bool(self.replay_file),
            "distill_weight": self.distill_weight,
        }


def imprint(
    features: np.ndarray,
    labels: np.ndarray,
    logits: np.ndarray,
    weights: np.ndarray,
    old: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Makes the first rows of new labels in a head's last layer.

    A row of weights is the mean of its label's features, as long as an old row
    is on average. The bias gives the label's rows, on average, the same logit
    as their best old label. Takes float32 features [N, D], logits [N, C] and
    weights [C, D], the `old` labels first, and labels, int [N]. Returns float32
    weights [C - old, D] and biases [C - old].
    """
    length = np.linalg.norm(weights[:old].astype(np.float64), axis=1).mean()
    best = logits[:, :old].max(axis=1).astype(np.float64)
    rows, biases = [], []
    for label in range(old, len(weights)):
        has_label = labels == label
        mean = features[has_label].mean(axis=0, dtype=np.float64)
        row = mean * length / np.linalg.norm(mean)
        rows.append(row)
        biases.append(best[has_label].mean() - row @ mean)
    return np.float32(rows), np.float32(biases)


def forgetting(
    labels: np.ndarray,
    begun: np.ndarray,
    after: np.ndarray,
    old: int,
) -> dict[str, dict[str, Any]]:
    """Makes the content of `forgetting.json`: accuracies on dev rows.

    Takes labels, int [N], and logits before (`begun`, of the imprinted head)
    and `after` training, float32 [N, C]. Gives the `rows` of `old_labels` and
    `new_labels`, and accuracies among all labels, `imprinted` and `after`; None
    without rows. Old labels also have those among the old ones, `before` (the
    old adapter's) and `after_among_old`.
    """
    is_old = labels < old

    def accuracy(logits: np.ndarray, rows: np.ndarray) -> Optional[float]:
        right = logits[rows].argmax(axis=1) == labels[rows]
        return float(right.mean()) if right.size else None

    return {
        "old_labels": {
            "rows": int(is_old.sum()),
            "before": accuracy(begun[:, :old], is_old),
            "imprinted": accuracy(begun, is_old),
            "after": accuracy(after, is_old),
            "after_among_old": accuracy(after[:, :old], is_old),
        },
        "new_labels": {
            "rows": int((~is_old).sum()),
            "imprinted": accuracy(begun, ~is_old),
            "after": accuracy(after, ~is_old),
        },
    }


def extend_labels(
    task: Any, replay_file: str, distill_weight: Optional[float]
) -> NewLabels:
    """Adds the labels of a task's training file to an adapter's.

    None as weight is the default, 0 with a `replay_file`.
    """
    check_one_label(task, "extend_labels")
    if task.labels is not None:
        raise UserError(
            f"--extend_labels adds the labels of your own files, but "
            f"{task.name} has the labels {list_labels(task.labels)}; pass "
            "--task_name=custom and the columns of your files"
        )
    if replay_file and distill_weight is not None:
        raise UserError(
            f"--distill_weight={distill_weight:g} is for trainings without old "
            "rows, but --replay_file has some; leave one of them out"
        )
    if distill_weight is None:
        distill_weight = 0.0 if replay_file else DISTILL_WEIGHT
    return NewLabels(
        **vars(task), replay_file=replay_file, distill_weight=distill_weight
    )
