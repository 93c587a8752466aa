"""Writes a step as one file, which JAX runs without TensorFlow.

The file is NumPy's `.npz`: the step as `jax.export` serializes it, a batch,
the values to start from or the rule that draws them, and losses and values
that steps on a CPU gave. `lab/devices/run_program.py` reads it.
"""

import io
import json
import sys
import time
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from adapter_bert import files
from adapter_bert.accelerators.compilers import export_step, jax
from adapter_bert.accelerators.step import Arrays, Step
from adapter_bert.errors import UserError

FORMAT = "adapter-bert program 1"
# Figures of `compile` that the file repeats.
TOLD = ("device", "program", "step", "method", "dtype", "rows", "length")
# Values to start from: the run's own, or drawn by `draw`.
RUN, SEED = VALUES = ("run", "seed")
# Most values of an array that are recorded, evenly spaced.
SAMPLE = 256
# Seconds between lines of progress.
INTERVAL = 10.0
# Arguments of a training, in their order, and those whose memory outputs take.
GROUPS = ("frozen", "trained", "slots", "batch", "done")
DONATED = (1, 2)


def check(step: Step, steps: int) -> None:
    """Refuses a step that `write` would refuse."""
    if step.cores > 1:
        raise UserError(
            f"--program is of one core, found {step.cores}; leave it out, or "
            "pass --cores=1"
        )
    most = step.schedule.num_train_steps if step.schedule else steps
    if not 1 <= steps <= most:
        raise UserError(
            f"--record_steps is {steps}, expected 1 to {most}, the run's "
            "steps; --num_train_epochs makes more"
        )


def write(
    path: str,
    step: Step,
    account: Mapping[str, Any],
    source: str,
    steps: int,
) -> None:
    """Computes some steps of one core on the CPU, and writes the file.

    `account` has the values of `TOLD`; `source` of values is one of `VALUES`.
    """
    is_training = step.schedule is not None
    groups = dict(zip(GROUPS, step.values()))
    about = {}
    for group in ("frozen", "trained"):
        about[group] = {n: _about(x) for n, x in groups[group].items()}
        if source == SEED:
            groups[group] = {n: draw(n, a) for n, a in about[group].items()}
    model = step.job.build_model(
        lambda name, shape, make: np.broadcast_to(np.float32(0), shape)
    )
    exported = export_step(step)
    arguments = [groups["frozen"], step.batch]
    if is_training:
        arguments = [*groups.values(), step.batch, np.int64(0)]
    record = _record(exported, arguments, steps if is_training else 1)
    description = {
        **account,
        "format": FORMAT,
        "bert": vars(model.bert.config),
        "arguments": GROUPS if is_training else ("frozen", "batch"),
        "donated": DONATED if is_training else (),
        "values": source,
        **about,
        # The name of each slot, and of the variable that it is of.
        "slots": [(n, n.rpartition("/")[0]) for n in groups["slots"]],
        "checksum": checksum(groups["frozen"], groups["trained"]),
        "jax": jax.__version__,
    }
    content = {
        "description": _bytes(json.dumps(description).encode()),
        "program": _bytes(exported.serialize()),
        **{f"batch/{name}": value for name, value in step.batch.items()},
        **{f"recorded/{name}": value for name, value in record.items()},
    }
    if source == RUN:
        content.update(
            (f"{group}/{name}", _plain(value))
            for group in about
            for name, value in groups[group].items()
        )
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **content)
    buffer.seek(0)
    files.write_parts(path, iter(lambda: buffer.read(2**24), b""))


def draw(name: str, about: Mapping[str, Any]) -> np.ndarray:
    """Draws an array with mean and spread of another, by its name alone.

    Numbers are uniform, by the Mersenne Twister of NumPy's `RandomState`,
    whose stream NumPy keeps, with the CRC-32 of the name as seed. `about` has
    `shape`, `dtype`, `mean` and `deviation`.
    """
    chance = np.random.RandomState(zlib.crc32(name.encode()))
    drawn = chance.random_sample(about["shape"]) - 0.5
    drawn = drawn * (12**0.5 * about["deviation"]) + about["mean"]
    return drawn.astype(np.float32).astype(getattr(jax.numpy, about["dtype"]))


def checksum(*groups: Mapping[str, np.ndarray]) -> int:
    """Gives the CRC-32 of arrays in their order."""
    total = 0
    for values in groups:
        for value in values.values():
            total = zlib.crc32(_plain(value).tobytes(), total)
    return total


def sample(value: Any) -> np.ndarray:
    """Gives an array's norm, then evenly spaced values, float32 [1 + n]."""
    flat = np.asarray(value, np.float32).ravel()
    count = min(SAMPLE, flat.size)
    places = np.arange(count) * flat.size // count
    norm = np.sqrt(np.square(flat, dtype=np.float64).sum())
    return np.append(np.float32(norm), flat[places])


def _about(value: np.ndarray) -> dict[str, Any]:
    wide = value.astype(np.float64)
    return {
        "shape": value.shape,
        "dtype": value.dtype.name,
        "mean": float(wide.mean()),
        "deviation": float(wide.std()),
    }


def _record(exported: Any, arguments: list[Any], steps: int) -> Arrays:
    """Gives losses, float32 [steps], and samples of the last step's values."""
    _tell("the CPU compiles the program for its record")
    is_training = len(arguments) == len(GROUPS)
    run = jax.jit(exported.call, donate_argnums=DONATED if is_training else ())
    arguments = jax.device_put(arguments)
    if not is_training:
        return _samples(run(*arguments))
    frozen, *state, batch, done = arguments
    losses, last_line = [], time.monotonic()
    for number in range(1, steps + 1):
        loss, *state, done = run(frozen, *state, batch, done)
        losses.append(np.float32(loss))
        _check(f"loss of step {number}", losses[-1])
        if number in (1, steps) or time.monotonic() > last_line + INTERVAL:
            last_line = time.monotonic()
            _tell(f"the CPU's record: step {number}/{steps}, loss {loss:.4f}")
    return {"loss": np.array(losses), **_samples(state[0])}


def _samples(values: Mapping[str, Any]) -> Arrays:
    samples = {name: sample(value) for name, value in values.items()}
    for name, value in samples.items():
        _check(name, value)
    return samples


def _check(name: str, value: np.ndarray) -> None:
    if not np.isfinite(value).all():
        raise UserError(
            f"the CPU's {name} is not finite, so no device can be compared "
            "with this CPU; lower --learning_rate, or pass other --values"
        )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _plain(value: np.ndarray) -> np.ndarray:
    """Gives an array of a dtype that NumPy has: bfloat16 as its bits."""
    return value.view(np.uint16) if value.dtype.itemsize == 2 else value


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)
