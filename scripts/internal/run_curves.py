"""The curves of a run, from its event files."""

import pathlib
from typing import Dict, List, Tuple

from tensorboard.backend.event_processing.event_accumulator import (
    TENSORS,
    EventAccumulator,
)
from tensorboard.util import tensor_util

EVENT_FILES = "*tfevents*"

Curve = List[Tuple[int, float]]


def read_curves(folder: pathlib.Path) -> Dict[str, Curve]:
    """The scalars of a folder's event files by name, as (step, value).

    Of a step that was done again, after a run was killed, the last value
    counts. A file's damaged end is left out, as TensorBoard does.
    """
    if not any(folder.glob(EVENT_FILES)):
        return {}
    # 0 keeps all.
    events = EventAccumulator(str(folder), size_guidance={TENSORS: 0})
    events.Reload()
    found = {}
    for name in events.Tags()[TENSORS]:
        by_step = {
            event.step: float(tensor_util.make_ndarray(event.tensor_proto))
            for event in events.Tensors(name)
        }
        found[name] = sorted(by_step.items())
    return found
