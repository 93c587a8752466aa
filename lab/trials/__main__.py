"""Kills, starves and damages runs, cuts their power, and tells what is lost.

    .venv/bin/python -m lab.trials --minutes=60
    .venv/bin/python -m lab.trials --only=kill --seed=123

docs/reliability.md says what is tried. The folder `--output_dir` has the table
and the seed of every trial (`soak.json`) at the end, and what each trial that
failed has left. The exit code is 1 if there was any such trial.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import platform
import shutil
import tempfile
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Optional,
    Sequence,
    Tuple,
)

import adapter_bert.start_tensorflow  # noqa: F401

import tensorflow as tf

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from adapter_bert.training import cpu_cores
from lab.trials import (
    clock,
    company,
    damage,
    kills,
    material,
    power,
    references,
    report,
    runs,
    starts,
    surroundings,
    system_calls,
)
from lab.trials import trials as of_trials
from lab.trials.trials import Bench, Outcome

# Which trials are made, one after the other: those of damage are the cheapest.
TURNS = (
    damage.DAMAGE,
    kills.WRITE,
    damage.DAMAGE,
    kills.KILL,
    damage.DAMAGE,
    kills.FULL,
    damage.DAMAGE,
    power.POWER,
    damage.DAMAGE,
    surroundings.PERMISSION,
    surroundings.VANISHED,
    clock.CLOCK,
    company.TWO,
)


def _turns(only: Optional[str]) -> Sequence[str]:
    """What is done to runs, one after the other: all that can be, if None."""
    if only:
        return (only,)
    try:
        system_calls.check()
    except UserError as error:
        report.say(f"{error}; they are left out")
        return [turn for turn in TURNS if turn != power.POWER]
    return TURNS


def run_trial(
    only: str, seed: int, work: pathlib.Path, place: pathlib.Path
) -> Outcome:
    """Makes the trial of a seed.

    Args:
        only: what is done to the run.
        seed: by which the run is chosen, and all else.
        work: the soak's folder, with the reference of the run.
        place: folder of the trial.
    """
    forked = bool((seed // len(runs.RUNS)) % of_trials.UNFORKED)
    reference = references.read(work, of_trials.run_of(seed))
    bench = Bench(work, reference, place, forked)
    if only == damage.DAMAGE:
        outcome = damage.run_trial(seed, bench)
    elif only in surroundings.KINDS:
        outcome = surroundings.run_trial(only, seed, bench)
    elif only == clock.CLOCK:
        outcome = clock.run_trial(seed, bench)
    elif only == company.TWO:
        outcome = company.run_trial(seed, bench)
    elif only == power.POWER:
        outcome = power.run_trial(seed, bench)
    else:
        outcome = kills.run_trial(only, seed, bench)
    return outcome._replace(is_forked=forked, kills=bench.kills)


def _in_forks(
    jobs: int,
    work: Callable[[Any], None],
    items: Iterable[Any],
    until: float = float("inf"),
) -> None:
    """Does work on items in several processes, each item in one of them.

    Args:
        jobs: processes.
        work: what is done.
        items: may be endless.
        until: of the clock, after which nothing is begun.

    Raises:
        UserError: one of the processes has failed.
    """
    context = multiprocessing.get_context("fork")
    next_number = context.Value("q", 0)

    def take_items() -> None:
        for number, item in enumerate(items):
            with next_number.get_lock():
                if number < next_number.value:
                    continue
                next_number.value = number + 1
            if time.monotonic() > until:
                return
            work(item)

    with starts.forks(jobs, take_items) as made:
        for process in made:
            process.join()
        if any(process.exitcode for process in made):
            raise UserError("the soak itself has failed; see above")


def _each_run(
    jobs: int,
    make: Callable[[pathlib.Path, runs.Run], None],
    done: str,
    work: pathlib.Path,
    here: Sequence[runs.Run],
) -> None:
    """Does with each kind of run what trials stand on, and says how far it is.

    Args:
        jobs: processes.
        make: what is done, with the soak's folder and the kind of run.
        done: what a run is then, for the line that says so.
        work: the soak's folder.
        here: the kinds of runs.

    Raises:
        UserError: it has failed for one of them.
    """

    def make_one(item: Tuple[int, runs.Run]) -> None:
        number, run = item
        make(work, run)
        report.say(f"{number} of {len(here)}, {run.name}: {done}")

    _in_forks(jobs, make_one, list(enumerate(here, 1)))


def soak(
    work: pathlib.Path,
    jobs: int,
    only: Optional[str],
    first_seed: int,
    count: float,
    seconds: float,
) -> None:
    """Makes references and trials; `trials-*.jsonl` tell what they come to.

    Args:
        work: an empty folder.
        jobs: trials at a time.
        only: what is done to the runs; None for all in turn.
        first_seed: of the trials.
        count: of the trials, at most.
        seconds: after which none is begun.
    """
    here = runs.here()
    if count == 1:
        here = [r for r in here if r == of_trials.run_of(first_seed)]
    report.say(f"{len(here)} kinds of runs are left alone first")
    (work / "data").mkdir()
    material.make(work / "data")
    starts.preload(runs.PROGRAMS)
    # Nothing of TensorFlow may run in this process, whose forks would hang.
    _in_forks(1, runs.make_adapters, [work / "data"])
    _each_run(jobs, references.make, "left alone", work, here)
    turns = _turns(only)
    if power.POWER in turns:
        report.say("each kind of run is recorded")
        _each_run(jobs, power.record, "recorded", work, here)
    until = time.monotonic() + seconds

    def make_trial(number: int) -> None:
        seed = first_seed + number
        if of_trials.run_of(seed) not in here:
            return
        # Another one for the same run at the next time.
        turn = turns[(number + number // len(runs.RUNS)) % len(turns)]
        place = work / f"trial-{turn}-{seed}"
        before = time.monotonic()
        outcome = run_trial(turn, seed, work, place)
        if outcome.what in of_trials.FAULTS:
            report.say(
                f"--only={turn} --seed={seed}: {outcome.what}: {outcome.note}"
            )
        else:
            shutil.rmtree(place)
        line = {
            "only": turn,
            "seed": seed,
            "run": of_trials.run_of(seed).name,
            **outcome._asdict(),
            "seconds": round(time.monotonic() - before, 3),
        }
        with open(work / f"trials-{os.getpid()}.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        if number % 100 == 99:
            minutes = (until - time.monotonic()) / 60
            report.say(
                f"{number + 1} seeds, {max(minutes, 0):.0f} minutes left"
            )

    _in_forks(jobs, make_trial, range(int(count)), until)


def _about(
    arguments: argparse.Namespace, found: List[report.Trial]
) -> Dict[str, Any]:
    """What the numbers depend on."""
    return {
        "tried": arguments.only or report.ALL,
        "processor": cpu_cores.name(),
        "cores": cpu_cores.count(),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "minutes": arguments.minutes,
        "seeds": [found[0]["seed"], found[-1]["seed"]],
        "kills": sum(trial["kills"] for trial in found),
    }


def _parse() -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UserError: it asks for nothing, or for what there is not; or the file
            of earlier soaks is none.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", choices=tuple(report.COLUMNS))
    parser.add_argument("--seed", type=int, help="of the one trial to make")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--output_dir", default="out/soak")
    parser.add_argument(
        "--add_to",
        type=pathlib.Path,
        help="file of JSON with earlier soaks, as results/soak.json; the "
        "table in docs/reliability.md is that of all",
    )
    arguments = parser.parse_args()
    if arguments.minutes <= 0 or arguments.jobs < 1:
        raise UserError(
            f"--minutes={arguments.minutes:g} --jobs={arguments.jobs} tries "
            "nothing; expected more than 0"
        )
    if arguments.only == power.POWER:
        system_calls.check()
    if arguments.add_to:
        report.read_soaks(arguments.add_to)
    if arguments.seed is not None:
        if not arguments.only:
            raise UserError("--seed needs --only, which says what is tried")
        run = of_trials.run_of(arguments.seed)
        if run not in runs.here():
            raise UserError(
                f"--seed={arguments.seed} is a run of {run.name}, which "
                f"TensorFlow {tf.__version__} cannot make"
            )
    return arguments


def main() -> None:
    """Does what the command line says.

    Raises:
        UserError: it asks for nothing, or a run fails that is left alone.
        SystemExit: a trial has lost something.
    """
    arguments = _parse()
    folder = pathlib.Path(arguments.output_dir).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="work-", dir=folder))
    is_one = arguments.seed is not None
    first_seed = arguments.seed if is_one else int(time.time())
    count = 1 if is_one else 1e9
    seconds = 60 * arguments.minutes
    soak(work, arguments.jobs, arguments.only, first_seed, count, seconds)
    found = report.read(work)
    about = _about(arguments, found)
    counts = report.count(found)
    files.write_json(str(folder / "soak.json"), {**about, "trials": found})
    print(report.plain(report.rows(counts)), end="")
    if is_one:
        print(found[0]["what"], found[0]["note"])
    if arguments.add_to:
        report.add(arguments.add_to, about, counts)
    faults = [t for t in found if t["what"] in of_trials.FAULTS]
    if faults:
        raise SystemExit(f"{len(faults)} trials failed; {work} has their files")
    shutil.rmtree(work)


if __name__ == "__main__":
    command_line.run(main)
