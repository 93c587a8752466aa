r"""Draws mutations of the core modules, and writes the mutated sources.

    PYTHONPATH=.venv/mutants .venv/bin/python -m lab.trials.mutations \
        --seed=1 --mutants=300

cosmic-ray knows what can be mutated and how. A place is drawn, of all places
alike, then one of its mutations. Each line of stdout is one, as JSON.
"""

import argparse
import ast
import collections
import json
import pathlib
import random
import sys
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What trains, answers, reads and keeps; not what speaks to people.
CORE = (
    "optimization.py",
    "bert/*.py",
    "methods/*.py",
    "data/*.py",
    "tasks/*.py",
    "checkpoints/*.py",
    "training/[!fhrs]*.py",
    "training/strategy.py",
    "serving/[!f]*.py",
    "serving/frozen_bert.py",
)
# They are tested as programs.
NOT_CORE = ("__init__", "beam", "bulk", "data_flags", "experiment")
# They change nothing where they can be used: CPython has one object of each
# small number and each name, and nothing else is None.
NO_CHANGE = ("Eq_Is", "Is_Eq", "NotEq_IsNot", "IsNot_NotEq")

Position = Tuple[int, int]


def paths() -> List[str]:
    """The core modules, from the root."""
    return sorted(
        path.relative_to(ROOT).as_posix()
        for pattern in CORE
        for path in (ROOT / "adapter_bert").glob(pattern)
        if path.stem not in NOT_CORE
    )


def _annotations(source: str) -> Set[int]:
    """Lines and columns of all that is within annotations, as one number."""
    found = []
    for node in ast.walk(ast.parse(source)):
        found.append(getattr(node, "annotation", None))
        found.append(getattr(node, "returns", None))
    return {
        _number((inner.lineno, inner.col_offset))
        for outer in found
        if outer is not None
        for inner in ast.walk(outer)
        if hasattr(inner, "lineno")
    }


def _number(position: Position) -> int:
    line, column = position
    return line * 1000 + column


def _operators() -> Iterator[Tuple[str, Any]]:
    for name in operator_names():
        operator = get_operator(name)
        if not operator.arguments() and not name.endswith(NO_CHANGE):
            yield name, operator()


def places(source: str) -> Dict[Position, List[Tuple[str, int]]]:
    """Of each place in a source its mutations: operators and occurrences."""
    found: Dict[Position, List[Tuple[str, int]]] = collections.defaultdict(list)
    hidden = _annotations(source)
    nodes = list(ast_nodes(get_ast(source)))
    for name, operator in _operators():
        occurrence = 0
        for node in nodes:
            for begin, _ in operator.mutation_positions(node):
                if _number(begin) not in hidden:
                    found[begin].append((name, occurrence))
                occurrence += 1
    return found


def _named(
    source: str,
) -> Iterator[Tuple[str, Position, List[Tuple[str, int]]]]:
    """Each place with a name that it keeps when other lines change."""
    lines = source.splitlines()
    seen: Dict[str, int] = collections.Counter()
    for position, mutations in sorted(places(source).items()):
        line, column = position
        name = f"{column} of {lines[line - 1]}"
        yield f"{name} ({seen[name]})", position, mutations
        seen[name] += 1


def draw(seed: int, count: int) -> Iterator[Dict[str, Any]]:
    """Draws mutations, no two of one place.

    Each place has a chance of its own, so that a change of the code draws no
    other mutations in the lines that stay.

    Returns:
        Of each `path`, `line`, `operator`, `occurrence` and `source`, the
        mutated one.
    """
    sources = {path: (ROOT / path).read_text() for path in paths()}
    everything = [
        (random.Random(f"{seed}/{path}/{name}"), path, position, mutations)
        for path, source in sources.items()
        for name, position, mutations in _named(source)
    ]
    print(f"{len(everything)} places in {len(sources)} files", file=sys.stderr)
    drawn = 0
    for chance, path, (line, _), mutations in sorted(
        everything, key=lambda place: place[0].random()
    ):
        name, occurrence = chance.choice(mutations)
        if drawn == count:
            return
        source = _mutated(sources[path], name, occurrence)
        if source is not None and _is_python(source):
            drawn += 1
            yield {
                "path": path,
                "line": line,
                "operator": name.partition("/")[2],
                "occurrence": occurrence,
                "source": source,
            }


def _mutated(source: str, name: str, occurrence: int) -> Optional[str]:
    """The source with one mutation, or None where cosmic-ray has none."""
    try:
        return mutate_code(source, get_operator(name)(), occurrence)
    except AttributeError:
        # A module's exception, as in `except (OSError, zlib.error)`, is no
        # name that its ExceptionReplacer could replace.
        return None


def _is_python(source: str) -> bool:
    """Whether it compiles; `**values` is taken for a power."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=300)
    arguments = parser.parse_args()
    for mutation in draw(arguments.seed, arguments.mutants):
        print(json.dumps(mutation))
