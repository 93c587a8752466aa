"""Files that are damaged between two starts of a run."""

import pathlib
from typing import NamedTuple

from lab.trials.references import HALF, WHOLE, Reference
from lab.trials.runs import FIRST_PHASE, PASSING, digests
from lab.trials.trials import (
    DIFFERENT,
    LOST,
    REFUSED,
    SAME,
    Bench,
    Outcome,
    about,
    chance_of,
)

DAMAGE = "damage"
HOW = ("cut", "flipped", "emptied", "deleted", "zeroed")


class Plan(NamedTuple):
    """What is damaged, drawn from a seed.

    Attributes:
        half: whether the run had been killed on its way.
        any: whether it may be a file that only tells of a process.
        file: which one, as a share of all.
        how: of `HOW`.
        place: within the file, as a share of its size.
        bit: of the byte there.
    """

    half: bool
    any: bool
    file: float
    how: str
    place: float
    bit: int


def draw(seed: int) -> Plan:
    """What the seed says."""
    chance = chance_of(DAMAGE, seed)
    return Plan(
        chance.random() < 0.25,
        chance.random() < 0.05,
        chance.random(),
        chance.choice(HOW),
        chance.random(),
        chance.randrange(8),
    )


def do(path: pathlib.Path, plan: Plan) -> str:
    """Damages a file, and says how."""
    content = bytearray(path.read_bytes())
    place = int(plan.place * len(content))
    if plan.how == "deleted":
        path.unlink()
        return "deleted"
    if plan.how == "emptied" or not content:
        path.write_bytes(b"")
        return "emptied"
    if plan.how == "cut":
        path.write_bytes(content[:place])
        return f"cut after {place} bytes"
    if plan.how == "zeroed":
        # As a file system may leave what had not reached the disk.
        path.write_bytes(content[:place] + bytes(len(content) - place))
        return f"zeros after {place} bytes"
    content[place] ^= 1 << plan.bit
    path.write_bytes(content)
    return f"bit {plan.bit} of byte {place} flipped"


def state_of(plan: Plan, reference: Reference) -> str:
    """From where a run goes on: nothing where it cannot be run again."""
    if not reference.run.trains:
        return ""
    return HALF if plan.half and HALF in reference.states else WHOLE


def run_trial(seed: int, bench: Bench) -> Outcome:
    """Damages a file of a run, and runs it again."""
    plan = draw(seed)
    state = state_of(plan, bench.reference)
    bench.begin(state)
    before = digests(bench.place)
    files = sorted(n for n in before if plan.any or not PASSING.fullmatch(n))
    name = files[int(plan.file * len(files))]
    if name in bench.run.optional and plan.how == "deleted":
        plan = plan._replace(how="emptied")
    note = f"{state or 'source'}: {name} {do(bench.place / name, plan)}"
    end = bench.start()
    if end.code == 0 and bench.run.check:
        end = bench.check()
    if end.refusal is not None:
        # What the damage was done to may be made anew, or given up.
        after = digests(bench.place)
        changed = [
            other
            for other, digest in before.items()
            if after.get(other) != digest
            and other != name
            and not PASSING.fullmatch(other)
        ]
        if changed:
            return Outcome(
                LOST, f"{note}: refused, but changed {', '.join(changed)}"
            )
        return Outcome(REFUSED, f"{note}: {about(end)}")
    if end.code:
        return Outcome(LOST, f"{note}: {about(end)}")
    # What came before a method of two phases is not read when that is over.
    different = bench.different(FIRST_PHASE if bench.run.trains else "")
    if different:
        return Outcome(DIFFERENT, f"{note}: {', '.join(different)}")
    return Outcome(SAME, note)
