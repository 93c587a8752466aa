"""Accounts of steps by compilers: memory, operations, time by the roofline."""

import dataclasses
import re
from typing import Any, Callable, Optional

from adapter_bert.accelerators.devices import Device

# Raised when steps are counted in another way: older accounts are made anew.
COUNTING = 1
# Shares of the memory that a batch of --fit fills: at first, then if it fails.
FILLS = (0.98, 0.93, 0.85)
# Parts of the run's batch that are compiled if that one or a greater one fails.
HALVES = (2, 4, 8)
# Of XLA's text: a value with its shape, of an array or a tuple; a call of
# cuBLAS with its operands; a dtype and its sizes.
VALUE = re.compile(r"^\s*(?:ROOT )?%?(\S+) = (\(.*?\)|\S+) ", re.MULTILINE)
CALL = re.compile(
    r"^\s*(?:ROOT )?%?(\S+) = (?:\(.*?\)|\S+) custom-call\((.*?)\), "
    r'custom_call_target="__cublas',
    re.MULTILINE,
)
SHAPE = re.compile(r"\b(f32|f16|bf16)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiler's account of a step, for one core, in bytes.

    Attributes:
        reused: of arguments whose place outputs take.
        temporaries: of everything between.
        flops: floating-point operations, counted by `counter`; None of a
            program with loops, since one pass is counted of each.
        moved: what the step reads and writes; counted, or None, alike.
        counter: "the compiler"; or "XLA", for compilers that do not count.
    """

    arguments: int
    reused: int
    outputs: int
    temporaries: int
    code: int
    flops: Optional[float]
    moved: Optional[float]
    counter: str

    @property
    def memory(self) -> int:
        unshared = self.outputs - self.reused
        return self.arguments + unshared + self.temporaries + self.code


def roofline(
    compiled: Compiled, device: Device, dtype: str, rows: int
) -> dict[str, Any]:
    """Gives the time of a step at a device's peak rates; {} without counts.

    Compilers count bytes that stay on the chip too, so a step may take less
    time than that if memory binds it. Communication between cores takes no time
    here. `compiled` is of one core, `rows` of all.

    Source: Williams, Waterman and Patterson 2009, "Roofline".
    """
    if compiled.flops is None:
        return {}
    products = compiled.flops / device.flops[dtype]
    memory = compiled.moved / device.bandwidth
    seconds = max(products, memory)
    return {
        "seconds_at_best": seconds,
        "examples_per_second_at_best": rows / seconds,
        "bound_by": "products" if products > memory else "memory",
    }


def largest_batch(
    memory_of: Callable[[int], Optional[int]], rows: int, unit: int, most: int
) -> Optional[int]:
    """Finds the largest batch that fits, as far as a few compiles tell.

    Memory grows nearly linearly with rows. Twice or half the rows give the
    slope, and the batch that should fill the memory is compiled to confirm it.
    `memory_of` compiles for a number of rows and gives a core's bytes, or None
    if the compiler refuses; `most` are those that it has. Gives `rows`, twice
    as many, or a multiple of `unit`; None if no batch fits.
    """
    measured = {}

    def fits(rows: int) -> bool:
        if rows not in measured:
            measured[rows] = memory_of(rows)
        return measured[rows] is not None and measured[rows] <= most

    def counted() -> list[int]:
        return sorted(n for n, memory in measured.items() if memory is not None)

    if fits(rows):
        fits(2 * rows)
    # The compiler may not even tell how much a batch needs that is too large.
    for part in HALVES:
        smaller = rows // part // unit * unit
        if len(counted()) < 2 and smaller:
            fits(smaller)
    if len(counted()) > 1:
        first, *_, last = counted()
        slope = (measured[last] - measured[first]) / (last - first)
        for fill in FILLS if slope > 0 else ():
            full = first + (fill * most - measured[first]) / slope
            wanted = int(full) // unit * unit
            if wanted > 0 and fits(wanted):
                break
    return max(filter(fits, list(measured)), default=None)


def bytes_of_calls(module: str) -> int:
    """Counts bytes that calls of cuBLAS move, in XLA's text of a module.

    Floats are counted, so not the room in which cuBLAS works.
    """
    shapes = dict(VALUE.findall(module))

    def size(name: str) -> int:
        total = 0
        for dtype, sizes in SHAPE.findall(shapes[name]):
            count = 4 if dtype == "f32" else 2
            for length in filter(None, sizes.split(",")):
                count *= int(length)
            total += count
        return total

    return sum(
        size(name.lstrip("%"))
        for result, operands in CALL.findall(module)
        for name in (result, *operands.split(", "))
    )
