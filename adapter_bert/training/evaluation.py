"""Answers for the splits of a run, and scores on the dev sets."""

from collections.abc import Iterable

from adapter_bert.tasks.task import ScoresAndData
from adapter_bert.training.extras import Answers, Run
from adapter_bert.training.prediction import RowPredictor, check_finite


def answer(run: Run, predictor: RowPredictor, splits: Iterable[str]) -> Answers:
    """Gives the task's answers for some splits."""
    answers = Answers({}, {}, predictor)
    for name in splits:
        outputs, features = {}, run.features[name]
        how = run.experiment.predict_batch_size, "predict"
        # A split that is both is evaluated.
        if name in dict(run.dev).values():
            how = run.experiment.eval_batch_size, "eval"
        # No rows if no context has a token.
        if len(features):
            outputs = predictor.predict(features, *how)
            check_finite(outputs, name)
        answers.shown[name] = {
            key: outputs.pop(key)
            for key in run.model.method.observes
            if key in outputs
        }
        answers.by_split[name] = run.task.decode(
            run.rows[name], features, outputs
        )
    return answers


def score(run: Run, answers: Answers) -> dict[str, ScoresAndData]:
    """Gives the result of `Task.score_tables` for the dev splits."""
    return run.task.score_tables(
        {
            suffix: run.task.evaluate(
                run.rows[name], run.features[name], answers.by_split[name]
            )
            for suffix, name in run.dev
        },
        fingerprints(run),
    )


def fingerprints(run: Run) -> dict[str, str]:
    """Gives the fingerprint of each dev split's rows."""
    return {name: run.features[name].fingerprint() for _, name in run.dev}
