"""Starts an adapter that learns new labels, and measures what it forgets."""

import dataclasses
import functools
import os
from typing import Any

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.data.tables import list_labels
from adapter_bert.errors import UserError
from adapter_bert.tasks import new_labels, task_model
from adapter_bert.tasks.new_labels import BIAS, FEATURES, OLD_LOGITS, WEIGHTS
from adapter_bert.training.engines import check_alone
from adapter_bert.training.extras import Extra
from adapter_bert.training.prediction import check_finite
from adapter_bert.training.run import Answers, Run

FORGETTING_FILE = "forgetting.json"


class Imprinting(Extra):
    """Gives the head rows of new labels, and measures the old ones' loss."""

    def check(self, run: Run) -> None:
        if run.model.method.parts:
            raise UserError(
                "--extend_labels is for an adapter of one method, but "
                f"{run.model.trained.weights.source} is the composition "
                f"{str(run.model.method)[:200]}; pass another --adapter"
            )
        check_alone("--extend_labels")

    def begin(self, run: Run) -> None:
        """Begins with the head's new rows; with distillation old logits too."""
        task, model = run.task, run.model
        old = len(task.old_labels)
        logging.info(
            "new labels: %s; old labels, whose rows stay: %s",
            list_labels(task.labels[old:]),
            list_labels(task.old_labels),
        )

        def build_head(config: Any, create: Any) -> new_labels.NewLabelsHead:
            head = task.build_head(config, create)
            head.shows_features = True
            return head

        shown = dataclasses.replace(
            run.job,
            build_model=functools.partial(
                task_model.TaskModel, model.config, model.method, build_head
            ),
            # Settings that may change while a run goes on change no bits.
            predict_tokens=0,
        )
        features, values = run.features["train"], run.job.first_trained_values()
        with run.engine.predictor(shown) as predictor:
            # The folder may hold checkpoints.
            predictor.load(values)
            outputs = predictor.predict(
                features, run.experiment.training.batch_size, "old adapter"
            )
        check_finite(outputs, "train")
        logits = outputs["logits"]
        imprinted = new_labels.imprint(
            outputs[FEATURES],
            features.labels["label_ids"],
            logits,
            values[WEIGHTS],
            old,
        )
        run.job = run.job.beginning_with(
            {
                # A head of another program may have no bias.
                name: np.concatenate([values[name][:old], rows])
                for name, rows in zip((WEIGHTS, BIAS), imprinted)
                if name in values
            }
        )
        if task.distill_weight:
            labels = {**features.labels, OLD_LOGITS: logits[:, :old]}
            run.features["train"] = dataclasses.replace(features, labels=labels)

    def end(self, run: Run, answers: Answers) -> None:
        if not run.dev:
            return
        ((_, name),) = run.dev
        answers.predictor.load(run.job.first_trained_values())
        begun = run.answer_splits(answers.predictor, [name])
        measured = new_labels.forgetting(
            run.features[name].answer_labels["label_ids"],
            begun.by_split[name]["logits"],
            answers.by_split[name]["logits"],
            len(run.task.old_labels),
        )
        files.write_json(os.path.join(run.folder, FORGETTING_FILE), measured)
        of_old, of_new = measured["old_labels"], measured["new_labels"]
        if of_old["rows"]:
            logging.info(
                "accuracy on %d dev rows of old labels: %.4f before, %.4f "
                "after (%.4f among old labels alone)",
                of_old["rows"],
                of_old["before"],
                of_old["after"],
                of_old["after_among_old"],
            )
        else:
            logging.warning(
                "no dev row has an old label, so nothing tells how much the "
                "adapter has forgotten; add such rows to the dev file"
            )
        if of_new["rows"]:
            logging.info(
                "accuracy on %d dev rows of new labels: %.4f",
                of_new["rows"],
                of_new["after"],
            )
