"""Fault injection: kills and damages runs, cuts their power, checks the result.

    .venv/bin/python -m lab.trials --minutes=60
    .venv/bin/python -m lab.trials --only=kill --seed=123

results/reliability.md lists the faults. `--output_dir` gets every trial with
its seed (`soak.json`), and the files of each failed trial. The exit code is 1
if a trial failed.
"""

import argparse
import functools
import json
import multiprocessing
import pathlib
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import Any, Callable, Optional

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from lab import report
from lab.trials import faults, power_cuts, runs, strace, tiny_files, trial
from lab.trials.faults import DAMAGE
from lab.trials.trial import DIFFERENT, FAULTS, LOST, REFUSED, Bench, Plan

TRIALS = {**faults.TRIALS, power_cuts.POWER: power_cuts.cut_power}
# The column of each kind of trial.
COLUMNS = {
    faults.KILL: "killed",
    faults.WRITE: "killed while it writes",
    faults.FULL: "a write fails",
    DAMAGE: "a file is damaged",
    power_cuts.POWER: "power cut",
    faults.PERMISSION: "a right is missing",
    faults.VANISHED: "a folder vanishes",
    faults.CLOCK: "the clock is wrong",
    faults.TWO: "several at once",
}
# Trials of damage are the cheapest, and come between the others.
TURNS = (
    *(
        turn
        for only in [*COLUMNS][:5]
        if only != DAMAGE
        for turn in (DAMAGE, only)
    ),
    *[*COLUMNS][5:],
)
ALL = "all"

Trial = dict[str, Any]


def say(text: str) -> None:
    """Prints progress."""
    print(text, file=sys.stderr, flush=True)


def turns_of(only: Optional[str]) -> list[str]:
    """Returns the kinds of trials in turn; all that can run here, if None."""
    if only:
        return [only]
    try:
        strace.check()
    except UserError as error:
        say(f"{error}; they are left out")
        return [turn for turn in TURNS if turn != power_cuts.POWER]
    return [*TURNS]


def make_trial(work: pathlib.Path, only: str, seed: int) -> Trial:
    """Runs one trial in the soak's folder."""
    began = time.monotonic()
    run = runs.of_seed(seed)
    place = work / f"trial-{only}-{seed}"
    bench = Bench(work, trial.read_reference(work, run), place)
    outcome = TRIALS[only](Plan.draw(only, seed), bench)
    if outcome.what not in FAULTS:
        shutil.rmtree(place)
    return {
        "only": only,
        "seed": seed,
        "run": run.name,
        **outcome._asdict(),
        "kills": bench.kills,
        "seconds": round(time.monotonic() - began, 3),
    }


def in_processes(
    jobs: int, calls: Iterable[Callable[[], Any]], until: float = float("inf")
) -> Iterator[Any]:
    """Yields results of functions in the order of their ends.

    Args:
        jobs: processes.
        calls: the functions; may be endless.
        until: `time.monotonic()` after which no call is started.
    """
    left = iter(calls)
    context = multiprocessing.get_context("fork")
    with futures.ProcessPoolExecutor(jobs, context) as pool:
        waiting = {pool.submit(call) for _, call in zip(range(jobs), left)}
        while waiting:
            done, waiting = futures.wait(
                waiting, return_when=futures.FIRST_COMPLETED
            )
            for one in done:
                if time.monotonic() < until:
                    waiting |= {
                        pool.submit(call) for _, call in zip(range(1), left)
                    }
                yield one.result()


def soak(
    work: pathlib.Path,
    jobs: int,
    only: Optional[str],
    seeds: Iterable[int],
    seconds: float,
) -> Iterator[Trial]:
    """Makes references, then trials, in an empty folder.

    Args:
        work: the folder.
        jobs: trials at a time.
        only: the kind of trials; None for all in turn.
        seeds: of the trials.
        seconds: after which no trial is started.
    """
    here, turns = runs.here(), turns_of(only)
    if isinstance(seeds, list):
        here = [runs.of_seed(seed) for seed in seeds]
    data = work / trial.DATA
    data.mkdir()
    tiny_files.make(data)
    say(f"{len(here)} kinds of runs are left alone first")
    runs.make_adapters(data)
    makers = [trial.make_reference]
    if power_cuts.POWER in turns:
        say("then each is recorded")
        makers.append(power_cuts.record)
    for make in makers:
        made = [functools.partial(make, work, run) for run in here]
        for number, _ in enumerate(in_processes(jobs, made), 1):
            say(f"{number} of {len(here)}: {make.__name__}")
    trials = (
        # Another kind for the same run at the next time.
        functools.partial(
            make_trial,
            work,
            turns[(n + n // len(runs.RUNS)) % len(turns)],
            seed,
        )
        for n, seed in enumerate(seeds)
        if runs.of_seed(seed) in here
    )
    yield from in_processes(jobs, trials, time.monotonic() + seconds)


def count(trials: Iterable[Trial]) -> Counter:
    """Counts outcomes by kind of run and kind of trial."""
    return Counter((t["run"], t["only"], t["what"]) for t in trials)


def rows(counts: Counter) -> list[list[str]]:
    """Returns the table: a row for each kind of run, then one for all."""
    names = [run.name for run in runs.RUNS]
    ordered = [n for n in names if any(n == name for name, *_ in counts)]
    ends = (LOST, DIFFERENT, REFUSED)
    table = [["kind of run", "trials", *COLUMNS.values(), *ends]]
    for name in (*ordered, ALL):
        by: Counter = Counter()
        for (run, only, what), number in counts.items():
            if name in (ALL, run):
                by.update({"trials": number, only: number, what: number})
        keys = ("trials", *COLUMNS, *ends)
        table.append([name, *(f"{by[key]:,}" for key in keys)])
    return table


def read_soaks(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the soaks of a file; none if it is missing."""
    if not path.exists():
        return []
    try:
        soaks = json.loads(path.read_text())
        is_list = isinstance(soaks, list)
        is_list = is_list and all(isinstance(s["counts"], list) for s in soaks)
    except (OSError, ValueError, TypeError, KeyError):
        is_list = False
    if not is_list:
        raise UserError(f"{path} is no file of soaks, as --add_to writes it")
    return soaks


def add(path: pathlib.Path, about: dict[str, Any], counts: Counter) -> None:
    """Adds a soak to a file of soaks, and writes the page's table of all."""
    counts_of_kind = [
        [*kind, number] for kind, number in sorted(counts.items())
    ]
    soaks = [*read_soaks(path), {**about, "counts": counts_of_kind}]
    files.write_json(str(path), soaks)
    together: Counter = Counter()
    lines = []
    for soak in soaks:
        together.update({tuple(k): n for *k, n in soak["counts"]})
        kills = f" with {soak['kills']:,} kills" if soak.get("kills") else ""
        lines.append(
            f"- {soak['tried']}: {sum(n for *_, n in soak['counts']):,} trials"
            f"{kills} in {soak['minutes']:.0f} minutes on {soak['cores']} "
            f"cores ({soak['processor']}), TensorFlow {soak['tensorflow']}; "
            f"seeds {soak['seeds'][0]} to {soak['seeds'][1]}\n"
        )
    table = report.markdown(rows(together), "---:")
    report.write(report.RELIABILITY, "soak", f"{''.join(lines)}\n{table}")


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", choices=tuple(COLUMNS))
    parser.add_argument("--seed", type=int, help="of the one trial to make")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--output_dir", default="out/soak")
    parser.add_argument(
        "--add_to",
        type=pathlib.Path,
        help="file of JSON with earlier soaks, as results/soak.json; the "
        "table in results/reliability.md has all",
    )
    arguments = parser.parse_args()
    if arguments.minutes <= 0 or arguments.jobs < 1:
        raise UserError(
            f"--minutes={arguments.minutes:g} --jobs={arguments.jobs} tries "
            "nothing; expected more than 0"
        )
    if arguments.only == power_cuts.POWER:
        strace.check()
    if arguments.add_to:
        read_soaks(arguments.add_to)
    if arguments.seed is not None:
        if not arguments.only:
            raise UserError("--seed needs --only, which says what is tried")
        run = runs.of_seed(arguments.seed)
        if run not in runs.here():
            raise UserError(
                f"--seed={arguments.seed} is a run of {run.name}, which "
                f"TensorFlow {report.tensorflow()} cannot make"
            )
    return arguments


def main() -> None:
    """Makes the trials that the command line asks for.

    Raises:
        SystemExit: a trial has lost something.
    """
    arguments = parse_arguments()
    folder = pathlib.Path(arguments.output_dir).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="work-", dir=folder))
    first = int(time.time())
    seeds: Iterable[int] = range(first, first + 10**9)
    if arguments.seed is not None:
        seeds = [arguments.seed]
    seconds = 60 * arguments.minutes
    trials: list[Trial] = []
    for one in soak(work, arguments.jobs, arguments.only, seeds, seconds):
        trials.append(one)
        line = "--only={only} --seed={seed}: {what}: {note}".format(**one)
        if one["what"] in FAULTS or arguments.seed is not None:
            say(line)
        elif len(trials) % 100 == 0:
            say(f"{len(trials)} trials; {line}")
    trials.sort(key=lambda one: one["seed"])
    environment = report.environment()
    about = {
        "tried": arguments.only or ALL,
        **environment["machine"],
        **environment["versions"],
        "minutes": arguments.minutes,
        "seeds": [trials[0]["seed"], trials[-1]["seed"]],
        "kills": sum(one["kills"] for one in trials),
    }
    files.write_json(str(folder / "soak.json"), {**about, "trials": trials})
    print(report.plain(rows(count(trials))), end="")
    if arguments.add_to:
        add(arguments.add_to, about, count(trials))
    failed = [one for one in trials if one["what"] in FAULTS]
    if failed:
        raise SystemExit(f"{len(failed)} trials failed; {work} has their files")
    shutil.rmtree(work)


if __name__ == "__main__":
    with command_line.run():
        main()
