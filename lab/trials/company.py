"""Several processes that are started in one folder, or upon one cache.

Of a training one may run, and the others are refused in a line. Programs that
change a library, or export, wait for one another.
"""

import fcntl
import multiprocessing
import pathlib
import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

from lab.trials import material, references, runs
from lab.trials.references import HALF, WHOLE
from lab.trials.runs import Run
from lab.trials.starts import NEVER, End, Moment
from lab.trials.trials import (
    DIFFERENT,
    LOST,
    SAME,
    Bench,
    Outcome,
    chance_of,
    finish,
)
from lab.trials.trials import about as about_end

TWO = "two"
IN_USE = "is in use by another process"


class Plan(NamedTuple):
    """What the seed says.

    Attributes:
        delays: of the reference's seconds, the share after which each process
            is started.
        killed: the number of the one that is killed, or None.
        share: of the reference's seconds, after which it is.
        state: from which they begin: nothing, half or whole.
        cached: whether they are other runs, which share what frozen layers
            make of the rows; of classification alone.
    """

    delays: List[float]
    killed: Optional[int]
    share: float
    state: str
    cached: bool


def draw(seed: int) -> Plan:
    """What the seed says."""
    chance = chance_of(TWO, seed)
    count = chance.choice((2, 2, 3))
    # The same moment as often as any other.
    is_same = chance.random() < 0.5
    delays = [0.0 if is_same else chance.random() for _ in range(count)]
    killed = chance.randrange(count) if chance.random() < 0.4 else None
    state = chance.choice(("", "", HALF, WHOLE))
    share, is_cached = chance.random(), chance.random() < 0.5
    return Plan(delays, killed, share, state, is_cached)


def run_trial(seed: int, bench: Bench) -> Outcome:
    """Starts several processes at once, and compares what they come to."""
    plan = draw(seed)
    if plan.cached and bench.run.name.startswith("classification"):
        return _cached(plan, bench)
    if not bench.run.trains or plan.state not in bench.reference.states:
        plan = plan._replace(state="")
    bench.begin(plan.state)
    seconds = bench.reference.seconds
    ends = together(plan, seconds, [bench.start] * len(plan.delays))
    note = _about(plan, ends)
    for number, end in enumerate(ends):
        refusal = end.refusal or ""
        is_refused = IN_USE in refusal if bench.run.trains else refusal
        is_killed = number == plan.killed and end.was_killed
        if end.code and not is_refused and not is_killed:
            return Outcome(LOST, f"{note}: {about_end(end)}")
    if not any(end.was_killed for end in ends):
        if all(end.code for end in ends):
            return Outcome(LOST, f"{note}: none has run")
        different = bench.different()
        if different:
            return Outcome(DIFFERENT, f"{note}: {', '.join(different)}")
    return finish(bench, note)


def together(
    plan: Plan, seconds: float, starts: Sequence[Callable[[Moment], End]]
) -> List[End]:
    """Starts processes as a plan says, and waits for their ends.

    Args:
        plan: of the trial.
        seconds: that a run takes alone.
        starts: each starts a program, which is killed at a moment.

    Raises:
        EOFError: a process that watches one of them has failed.
    """
    context = multiprocessing.get_context("fork")

    def watch(number: int, sending: Any) -> None:
        time.sleep(plan.delays[number] * seconds)
        moment = NEVER
        if number == plan.killed:
            moment = Moment(seconds=plan.share * seconds)
        sending.send(starts[number](moment))
        sending.close()

    made = []
    for number in range(len(starts)):
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=watch, args=(number, sending))
        process.start()
        sending.close()
        made.append((process, receiving))
    ends = [receiving.recv() for _, receiving in made]
    for process, _ in made:
        process.join()
    return ends


def _about(plan: Plan, ends: Sequence[End]) -> str:
    """How each of them has ended, in a line."""
    parts = []
    for delay, end in zip(plan.delays, ends):
        said = "ended"
        if end.code:
            said = "was killed" if end.was_killed else "was refused"
        parts.append(f"at {delay:.2f} {said}")
    return f"{plan.state or 'new'}: {'; '.join(parts)}"


def cached_runs(like: Run) -> List[Run]:
    """Runs that share a folder of frozen layers' outputs.

    The first two share a file as well.
    """
    shared = {
        "cache_frozen_layers": True,
        "frozen_layers_dir": "{place}/../frozen",
    }
    engine = like.name.rpartition(" ")[2]
    return [
        runs.training(
            f"cached {number}",
            "run_classifier",
            engine,
            task_name="custom",
            data_dir="{data}/" + material.TABLE,
            tuning_method=method,
            seed=number,
            **shared,
        )
        for number, method in enumerate(("head", "head", "top_layers(k=1)"))
    ]


def _cached(plan: Plan, bench: Bench) -> Outcome:
    """Starts other runs at once that share a cache; then each once more."""
    own = [
        Bench(
            bench.work,
            _reference(bench.work, run),
            bench.place / str(number),
            bench.forked,
        )
        for number, run in enumerate(cached_runs(bench.run))
    ][: len(plan.delays)]
    bench.begin()
    for one in own:
        one.begin()
    seconds = own[0].reference.seconds
    ends = together(plan, seconds, [one.start for one in own])
    note = f"one cache, {_about(plan, ends)}"
    for number, (one, end) in enumerate(zip(own, ends)):
        is_killed = number == plan.killed and end.was_killed
        if end.code and not is_killed:
            return Outcome(LOST, f"{note}: {about_end(end)}")
        different = one.different()
        if different and not is_killed:
            return Outcome(DIFFERENT, f"{note}: {', '.join(different)}")
        outcome = finish(one, note)
        if outcome.what != SAME:
            return outcome
    return Outcome(SAME, note)


def _reference(work: pathlib.Path, run: Run) -> references.Reference:
    """That of a run which only these trials make; made by the first one."""
    with open(work / "references.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (references.folder_of(work, run) / references.ABOUT).exists():
            references.make(work, run)
    return references.read(work, run)
