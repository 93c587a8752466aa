"""Curves of a training, from TensorBoard's event files."""

import pathlib

from tensorboard.backend.event_processing.event_accumulator import (
    TENSORS,
    EventAccumulator,
)
from tensorboard.util import tensor_util

Curve = list[tuple[int, float]]


def read_curves(folder: pathlib.Path) -> dict[str, Curve]:
    """Returns the scalars of a folder's event files by name, as (step, value).

    A repeated step has its last value. A file's damaged end is left out.
    """
    if not any(folder.glob("*tfevents*")):
        return {}
    # 0: no sampling.
    events = EventAccumulator(str(folder), size_guidance={TENSORS: 0})
    events.Reload()
    curves = {}
    for name in events.Tags()[TENSORS]:
        by_step = {
            event.step: float(tensor_util.make_ndarray(event.tensor_proto))
            for event in events.Tensors(name)
        }
        curves[name] = sorted(by_step.items())
    return curves
