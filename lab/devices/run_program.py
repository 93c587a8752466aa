"""Runs programs of `adapter-bert compile --program` where a device is.

    python run_program.py PROGRAM.npz... --json=FILE

Needs JAX and NumPy, neither TensorFlow nor this project: copy this file to the
device's machine, together with the programs. JAX compiles each program for its
first device. A training starts from the file's values, or from those that its
rule draws, and each step gets what the step before gave. The file has losses,
trained values and their norms from a CPU. The device's are compared with them,
and steps are timed. Numbers that are not finite agree with nothing. The table
goes to stdout; FILE takes a run of each program, and keeps those that it has of
other programs or devices. The exit code is 1 if a program could not be run, or
gave other values than the CPU.

`make_programs.sh` makes programs of three sizes of BERT, two dtypes, training
and prediction. `run.sh` runs them here and in PyTorch (`peer.py`), into one
FILE. These are all files that the device's machine needs:

    run.sh  run_program.py  peer.py  programs/*.npz

Set JAX_PLATFORMS=cpu to run on the CPU of a machine with a device.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import time
import uuid
import zipfile
import zlib

import numpy as np

FORMAT = "adapter-bert program 1"
RESULTS = "adapter-bert device runs 1"
# Steps before those that are timed.
WARM_UP = 3
# Tolerances of `_difference`, by the dtype of products. A TPU multiplies
# float32 in bfloat16.
TOLERANCES = {
    "float32": {"loss": 1e-3, "values": 0.02, "norms": 0.02},
    "bfloat16": {"loss": 0.05, "values": 0.3, "norms": 0.3},
}


class Refused(Exception):
    """Input that cannot be used; the message is one line."""


class Program:
    """A file of `adapter-bert compile --program`.

    Attributes:
        path: of the file.
        about: JSON's values that tell of the program.
    """

    def __init__(self, path):
        """Reads the whole file.

        Raises:
            Refused: the file is missing, damaged, or is no program.
        """
        self.path = path
        try:
            with np.load(path, allow_pickle=False) as saved:
                self._arrays = {name: saved[name] for name in saved.files}
            self.about = json.loads(self._arrays["description"].tobytes())
            form = self.about["format"]
        except OSError as error:
            raise Refused(
                f"cannot read {path}: {error.strerror or error}"
            ) from error
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise Refused(
                f"{path} is damaged, or no file of adapter-bert compile "
                "--program; copy or make it again"
            ) from error
        if form != FORMAT:
            raise Refused(
                f"{path} is of the format {form!r}, expected {FORMAT!r}; make "
                "it by the checkout that this file is of"
            )

    @property
    def is_training(self):
        """Tells whether steps change values."""
        return self.about["step"] == "training"

    def group(self, name):
        """Returns the arrays whose names begin so."""
        start = f"{name}/"
        return {
            key[len(start) :]: value
            for key, value in self._arrays.items()
            if key.startswith(start)
        }

    def values(self):
        """Frozen and trained values to start from, by name.

        Raises:
            Refused: they are others than those that the CPU started from.
        """
        tensors = []
        for group in ("frozen", "trained"):
            stored = self.group(group)
            values = {}
            for name, about in self.about[group].items():
                if self.about["values"] == "seed":
                    values[name] = draw(name, about)
                else:
                    values[name] = stored[name].view(dtype_of(about))
            tensors.append(values)
        crc = 0
        for values in tensors:
            for value in values.values():
                crc = zlib.crc32(np.ascontiguousarray(value).tobytes(), crc)
        if crc != self.about["checksum"]:
            raise Refused(
                f"{self.path}: its values have the CRC-32 {crc}, expected "
                f"{self.about['checksum']}; make the program again"
            )
        return tensors

    def load(self):
        """Returns the function that the file holds, of JAX's arrays.

        Raises:
            Refused: this JAX cannot read it.
        """
        from jax import export

        content = bytearray(self._arrays["program"].tobytes())
        try:
            return export.deserialize(content).call
        except Exception as error:
            raise Refused(
                f"{self.path}: this JAX {version('jax')} cannot read a program "
                f"of JAX {self.about['jax']}: {first_line(error)}"
            ) from error


def first_line(error):
    """Finds the first line of an exception's text; its class without one."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def version(package):
    """Returns the installed version of a package."""
    import importlib.metadata

    return importlib.metadata.version(package)


def dtype_of(about):
    """NumPy's dtype of an array, whose bfloat16 is of JAX's package."""
    if about["dtype"] == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(about["dtype"])


def draw(name, about):
    """An array as `adapter_bert/accelerators/program.py` draws it."""
    chance = np.random.RandomState(zlib.crc32(name.encode()))
    values = chance.random_sample(about["shape"]) - 0.5
    values = values * (12**0.5 * about["deviation"]) + about["mean"]
    return values.astype(np.float32).astype(dtype_of(about))


def sample(value, count):
    """`count` evenly spaced values of an array, after its norm, float32."""
    flat = np.asarray(value).astype(np.float32).ravel()
    norm = np.sqrt(np.square(flat, dtype=np.float64).sum())
    return np.append(np.float32(norm), flat[places(flat.size, count)])


def places(size, count):
    """Evenly spaced places of a flat array."""
    return np.arange(count) * size // count


def measure(program, steps, device):
    """Compiles a program, runs it, and compares and times its steps.

    Args:
        program: to run.
        steps: number of steps, at least those that the CPU did.
        device: of JAX.

    Returns:
        JSON's values.

    Raises:
        Refused: the program cannot be read.
        RuntimeError: the device fails.
    """
    import jax

    # As the program was made.
    jax.config.update("jax_enable_x64", True)
    recorded = program.group("recorded")
    frozen, trained = program.values()
    arguments = [frozen, program.group("batch")]
    if program.is_training:
        slots = dict(program.about["slots"])
        zeros = {
            name: np.zeros(trained[of].shape, np.float32)
            for name, of in slots.items()
        }
        arguments = [frozen, trained, zeros, arguments[1], np.int64(0)]
    call = jax.jit(
        program.load(), donate_argnums=tuple(program.about["donated"])
    )
    arguments = jax.device_put(arguments, device)
    began = time.perf_counter()
    run = call.lower(*arguments).compile()
    costs = {"compile_seconds": time.perf_counter() - began}
    memory = run.memory_analysis()
    if memory is not None:
        costs["temporary_bytes"] = memory.temp_size_in_bytes
    losses, outputs, seconds = _steps(
        program, run, arguments, steps, len(recorded.get("loss", ()))
    )
    median = statistics.median(seconds[WARM_UP:] or seconds)
    costs.update(
        steps=steps,
        seconds=median,
        rows_per_second=program.about["rows"] / median,
        **_compare(recorded, losses, outputs, trained),
    )
    return costs


def _steps(program, run, arguments, steps, compared):
    """Losses, samples of outputs after `compared` steps, seconds of steps."""
    import jax

    losses, outputs, seconds = [], None, []
    counts = {
        name: len(value) - 1
        for name, value in program.group("recorded").items()
    }
    for number in range(1, steps + 1):
        began = time.perf_counter()
        results = jax.block_until_ready(run(*arguments))
        seconds.append(time.perf_counter() - began)
        if program.is_training:
            loss, *state, done = results
            arguments = [arguments[0], *state, arguments[3], done]
            losses.append(float(loss))
        if number == (compared or 1):
            values = state[0] if program.is_training else results
            outputs = {n: sample(x, counts[n]) for n, x in values.items()}
    return losses, outputs, seconds


def _compare(recorded, losses, outputs, trained):
    errors = {}
    if losses:
        errors["losses"] = [x if np.isfinite(x) else None for x in losses]
        errors["losses_of_cpu"] = recorded["loss"].tolist()
    numbers = {
        **{f"the CPU's {name}": value for name, value in recorded.items()},
        "a loss": losses,
        **outputs,
    }
    wrong = [n for n, value in numbers.items() if not np.isfinite(value).all()]
    if wrong:
        return {**errors, "reason": f"{wrong[0]} is not finite"}
    return {
        **errors,
        "difference": _difference(recorded, losses, outputs, trained),
    }


def _difference(recorded, losses, outputs, trained):
    """How far finite numbers are from the CPU's record.

    Returns:
        Of a training, `loss`: the largest difference of a loss; `values`: the
        norm of the difference of sampled values, as a share of the norm of
        their change; `norms`: the norm of the differences of arrays' norms, as
        a share of the norm of the whole change, which is estimated from the
        samples. Of a prediction, `values`: the largest difference of a sampled
        number, as a share of the largest; `norms`: as of a training, as a share
        of the norm of all numbers.
    """
    expected = {n: x.astype(np.float64) for n, x in recorded.items()}
    loss = expected.pop("loss", None)
    right = list(expected.values())
    apart = [outputs[name] - value for name, value in expected.items()]
    values = np.concatenate([x[1:] for x in apart])
    norms = np.array([x[0] for x in apart])
    if loss is None:
        whole = np.concatenate([x[1:] for x in right])
        return {
            "values": _share(np.max(np.abs(values)), np.max(np.abs(whole))),
            "norms": _share(
                np.linalg.norm(norms), np.linalg.norm([x[0] for x in right])
            ),
        }
    changes = {
        name: (value - sample(trained[name], len(value) - 1))[1:]
        for name, value in expected.items()
    }
    change = np.linalg.norm(np.concatenate([*changes.values()]))
    # Each sampled value stands for others of its array.
    squares = [
        np.square(x).mean() * trained[name].size for name, x in changes.items()
    ]
    return {
        "loss": float(np.max(np.abs(losses[: len(loss)] - loss))),
        "values": _share(np.linalg.norm(values), change),
        "norms": _share(np.linalg.norm(norms), np.sqrt(np.sum(squares))),
    }


def _share(part, whole):
    """A share of a whole; all of it where the whole is 0."""
    return float(part / whole) if whole else float(part > 0)


def tolerance(program, device):
    """Returns the tolerances of a program on a device of JAX."""
    is_tpu = device.platform == "tpu"
    return TOLERANCES["bfloat16" if is_tpu else program.about["dtype"]]


def name_of(program):
    """Returns the name of a program among results: its file's."""
    return os.path.splitext(os.path.basename(program.path))[0]


def summary_of(program):
    """Returns the name and the figures of a program, for results."""
    keys = "program", "step", "method", "dtype", "rows", "length"
    return {"name": name_of(program), **{k: program.about[k] for k in keys}}


def read_runs(path):
    """Returns the runs of a file of results; none if there is no file.

    Raises:
        Refused: it is no file of results.
    """
    if not os.path.exists(path):
        return []
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if content["format"] == RESULTS:
            return content["runs"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise Refused(f"{path} is no file of results; choose another --json")


def write_run(path, run):
    """Puts a run into a file of results, instead of one of the same.

    The file is written under a temporary name and renamed.

    Raises:
        Refused: the file cannot be read or written.
    """
    keys = "name", "runner", "device"
    same = [run[key] for key in keys]
    runs = [r for r in read_runs(path) if [r[key] for key in keys] != same]
    content = {"format": RESULTS, "runs": [*runs, run]}
    temporary = f"{path}.tmp-{uuid.uuid4().hex}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from error


def _device():
    """JAX's first device.

    Raises:
        Refused: JAX is missing, or finds none.
    """
    try:
        import jax

        return jax.devices()[0]
    except ImportError as error:
        raise Refused(f"JAX is missing ({error}); install it") from error
    except (RuntimeError, AssertionError) as error:
        # The latter where the plugin of JAX_PLATFORMS finds no driver.
        raise Refused(
            f"JAX finds no device ({first_line(error)}); install its plugin "
            "and driver, or set JAX_PLATFORMS=cpu"
        ) from error


def _run(path, steps):
    """A program's run, as JSON's values."""
    program = Program(path)
    device = _device()
    recorded = len(program.group("recorded").get("loss", ()))
    try:
        record = {
            **summary_of(program),
            "runner": "jax",
            "device": device.device_kind,
            "versions": {name: version(name) for name in ("jax", "jaxlib")},
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(),
            **measure(program, max(steps, recorded), device),
            "tolerance": tolerance(program, device),
        }
    except RuntimeError as error:
        # Also of XLA, whose errors have no name that all versions of JAX know.
        raise Refused(
            f"{path}: the device fails: {first_line(error)}"
        ) from error
    record["agrees"] = "reason" not in record and all(
        x <= record["tolerance"][name]
        for name, x in record["difference"].items()
    )
    return record


def line(run):
    """A line of the table."""
    apart = run.get("difference", {})
    loss, values, norms = (
        f"{apart[name]:.1e}" if name in apart else "-"
        for name in ("loss", "values", "norms")
    )
    agrees = {True: "yes", False: "NO", None: "-"}[run.get("agrees")]
    return (
        f"{run['name']:28} {run['runner']:16} {run['compile_seconds']:8.1f} "
        f"{run['seconds'] * 1e3:10.2f} {run['rows_per_second']:10.1f} "
        f"{loss:>8} {values:>8} {norms:>8} {agrees:>6}"
    )


HEAD = (
    f"{'program':28} {'runner':16} {'compiled':>8} {'ms a step':>10} "
    f"{'rows/s':>10} {'loss +-':>8} {'values':>8} {'norms':>8} {'agrees':>6}"
)


def arguments_of(description):
    """Returns the arguments of a runner of programs.

    Raises:
        Refused: there would be no step, or --json is no file of results.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("programs", nargs="+", metavar="PROGRAM.npz")
    parser.add_argument("--json", required=True, metavar="FILE")
    parser.add_argument(
        "--steps",
        type=int,
        default=40,
        help="steps to run; JAX runs all steps that the CPU recorded, even if "
        "fewer are asked for; default: %(default)s",
    )
    options = parser.parse_args()
    if options.steps < 1:
        raise Refused(f"--steps is {options.steps}, expected >= 1")
    read_runs(options.json)
    return options


def run(main):
    """Runs a runner's `main`, whose refusals are one line on stderr."""
    try:
        main()
    except Refused as error:
        sys.exit(f"error: {error}")


def main():
    """Runs the programs; see the file's description.

    Raises:
        Refused: arguments, or the file of results.
        SystemExit: a program failed, or gave other values than the CPU.
    """
    arguments = arguments_of(__doc__)
    failures = 0
    print(HEAD, flush=True)
    for path in arguments.programs:
        try:
            record = _run(path, arguments.steps)
            write_run(arguments.json, record)
        except Refused as error:
            failures += 1
            print(f"error: {error}", file=sys.stderr, flush=True)
            continue
        failures += not record["agrees"]
        print(line(record), flush=True)
        if "reason" in record:
            print(f"error: {path}: {record['reason']}", file=sys.stderr)
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    run(main)
