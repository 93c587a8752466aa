"""Engines that end the runs of the matrix with a step."""

from typing import Any, Callable

from adapter_bert.accelerators.step import Step, StepEngine, StepTaken
from adapter_bert.progress import TrainingProgress
from adapter_bert.training.engines import Course
from adapter_bert.training.training_step import Job
from lab.devices import runs


class PredictionStep(StepEngine):
    """Ends a run with a step of the prediction after its training."""

    def train(
        self, job: Job, course: Course, progress: TrainingProgress
    ) -> None:
        """Ends the run; raises StepTaken."""
        runs.predict(self, job, course)


def taken(run: Callable[[], Any]) -> Step:
    """The step with which a run ends."""
    try:
        run()
    except StepTaken as end:
        return end.step
    raise AssertionError("the run ends with a step")
