r"""Mutation testing of the core modules.

    make mutants SEED=1 MUTANTS=300

cosmic-ray makes the mutations. Places are drawn uniformly, then one mutation of
each. pytest runs the module's own tests in a copy of the project until one
fails, then all others that name the module. The table goes into
docs/reliability.md, and each survivor into results/mutants.json, where `why` is
to be filled in. `tried.jsonl` in `--output_dir` has the killed mutants; delete
it to begin anew. The exit code is 1 if too few are killed.
"""

import argparse
import ast
import collections
import contextlib
import difflib
import functools
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent import futures
from typing import Any, Dict, List, Sequence, Set, Tuple

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from lab import report
from lab.report import ROOT

PACKAGES = os.path.join(sys.prefix, "mutants")
RESULTS = ROOT / "results" / "mutants.json"
PACKAGE = "adapter_bert"
# The core modules: those that train, answer, read and keep.
CORE = (
    "optimization bert/* methods/* data/* tasks/* checkpoints/* "
    "training/early_stopping training/estimator training/evaluation "
    "training/frozen_outputs training/loop training/multi_worker "
    "training/composition_parts training/prediction "
    "training/process_options training/setup training/strategy "
    "training/training_step training/two_phases "
    "serving/answers serving/joint_answers serving/batching "
    "serving/embeddings serving/exported serving/frozen_bert "
    "serving/graph_answers serving/graph_tokenizer serving/library "
    "serving/trained_task serving/task_tables serving/mixed_hooks "
    "serving/mixed_model serving/predictor serving/http_api "
    "serving/row_stream serving/saved_model serving/text_model "
    "serving/text_windows"
).split()
# They seldom change anything: CPython has one object of each small number, each
# name, and None.
NO_CHANGE = ("Eq_Is", "Is_Eq", "NotEq_IsNot", "IsNot_NotEq")
# Of the mutants that change something, at least so many are to be killed.
GOAL = 0.98
# Seconds after which a test does not end any more, and those that each turn of
# a mutant's tests may take.
PATIENCE, LIMIT = 300, 900.0
# Tests of everything, the last that are run for each module.
OF_ALL = (
    "methods methods_adapters methods_other golden_methods golden_compositions "
    "golden_model golden_features shared_layers tasks from_description sources "
    "run_record composition_parts joint_answers text_model predictor exported "
    "estimator strategy experiment run_classifier run_tasks architecture "
    "list_flags"
).split()
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
OUT_OF_TIME = "out of time"

Found = Dict[str, Any]
Position = Tuple[int, int]


def core_modules() -> List[str]:
    """The paths of the core modules, from the root."""
    found = []
    for pattern in CORE:
        paths = list((ROOT / PACKAGE).glob(f"{pattern}.py"))
        if not paths:
            raise ValueError(f"no core module is called {pattern}")
        found += [p.relative_to(ROOT).as_posix() for p in paths]
    return sorted(path for path in found if not path.endswith("__init__.py"))


def _annotations(source: str) -> Set[Position]:
    """Positions within type annotations."""
    outer = [
        getattr(node, name, None)
        for node in ast.walk(ast.parse(source))
        for name in ("annotation", "returns")
    ]
    return {
        (inner.lineno, inner.col_offset)
        for one in outer
        if one is not None
        for inner in ast.walk(one)
        if hasattr(inner, "lineno")
    }


def _places(source: str) -> Dict[Position, List[Any]]:
    """The mutations of each place: operators' names, numbers of occurrences."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    found: Dict[Position, List[Any]] = collections.defaultdict(list)
    hidden = _annotations(source)
    nodes = list(ast_nodes(get_ast(source)))
    for name in sorted(operator_names()):
        operator = get_operator(name)
        if operator.arguments() or name.endswith(NO_CHANGE):
            continue
        places = (p for n in nodes for p in operator().mutation_positions(n))
        for occurrence, (begin, _) in enumerate(places):
            if begin not in hidden:
                found[begin].append((name, occurrence))
    return found


def draw(seed: int, count: int, packages: str = PACKAGES) -> List[Found]:
    """Draws mutants, no two of one place, with the packages of cosmic-ray.

    Returns:
        `path`, `line`, `operator`, `source` and `change` of each: the mutated
        source, and the lines that it takes away and adds.

    Raises:
        UserError: cosmic-ray is not installed.
    """
    if not os.path.isdir(packages):
        raise UserError(f"no folder {packages}; `make mutants` installs it")
    sys.path.append(packages)
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    sources = {path: (ROOT / path).read_text() for path in core_modules()}
    places = [
        (path, line, mutations)
        for path, source in sources.items()
        for (line, _), mutations in sorted(_places(source).items())
    ]
    print(f"{len(places)} places in {len(sources)} files", file=sys.stderr)
    chance = random.Random(seed)
    chance.shuffle(places)
    found: List[Found] = []
    for path, line, mutations in places:
        if len(found) == count:
            break
        name, occurrence = chance.choice(mutations)
        try:
            source = mutate_code(
                sources[path], get_operator(name)(), occurrence
            )
            ast.parse(source)
        except (AttributeError, SyntaxError):
            # cosmic-ray cannot replace the exceptions of a module, as in
            # `except (OSError, zlib.error)`, and takes `**values` for a power.
            continue
        found.append(
            {
                "path": path,
                "line": line,
                "operator": name.partition("/")[2],
                "source": source,
                "change": _change(sources[path], source),
            }
        )
    return found


def _change(before: str, after: str) -> List[str]:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), n=0, lineterm=""
    )
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@functools.lru_cache(None)
def tests_of(path: str) -> List[List[str]]:
    """The files of tests of a module, in groups that are run one by one.

    First the tests of the module's name; then tests that name the module,
    the shortest first, and tests of everything. No group is empty.
    """
    stem = pathlib.Path(path).stem
    texts = {
        p: p.read_text() for p in sorted((ROOT / "tests").glob("test_*.py"))
    }
    named = re.compile(rf"(?:[.,] ?|import |^    ){stem}\b", re.MULTILINE)
    own = [p for p in texts if p.stem in (f"test_{stem}", f"test_{stem}s")]
    others = [p for p, text in texts.items() if named.search(text)]
    others.sort(key=lambda p: len(texts[p]))
    later = [*others, *(ROOT / "tests" / f"test_{name}.py" for name in OF_ALL)]
    groups = [own, [p for p in dict.fromkeys(later) if p not in own]]
    return [[f"tests/{p.name}" for p in group] for group in groups if group]


def copy_project(folder: pathlib.Path) -> None:
    """Copies all files that git does not ignore."""
    words = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    names = filter(None, os.fsdecode(done.stdout).split("\0"))
    # Deleted files are still git's.
    there = [name for name in names if os.path.lexists(ROOT / name)]
    subprocess.run(
        ["xargs", "-0", "cp", "--parents", "-t", str(folder)],
        cwd=ROOT,
        check=True,
        input=os.fsencode("\0".join(there)),
    )


def run_tests(
    folder: pathlib.Path, tests: Sequence[str], limit: float
) -> Tuple[str, str]:
    """Runs tests in a copy until one fails, for at most `limit` seconds.

    Returns:
        KILLED, SURVIVED or TIMED_OUT; and the test that failed or took too
        long, or OUT_OF_TIME where none has failed in time.

    Raises:
        UserError: pytest cannot run such tests.
    """
    options = ["-x", "-v", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # As `.ci/run`, all but the slow ones.
    options += ["-m", "not slow", "-o", f"faulthandler_timeout={PATIENCE}"]
    options += ["-o", "faulthandler_exit_on_timeout=true"]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    ) as process:
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return SURVIVED, OUT_OF_TIME
        finally:
            # All that the tests have started ends as well.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode in (0, 5):
        return SURVIVED, ""
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if names:
        return KILLED, names[0]
    began = re.findall(r"^(\S+::.*?) (?:PASSED|SKIPPED|$)?", said, re.MULTILINE)
    if "Timeout (" in said:
        return TIMED_OUT, began[-1] if began else ""
    if "file or directory not found" in said:
        raise UserError(f"pytest cannot run {' '.join(tests)}: {said[-500:]}")
    # The tests themselves cannot be read, or the process has died.
    return KILLED, f"pytest ended with {process.returncode}"


def try_mutant(folder: pathlib.Path, mutant: Found, limit: float) -> Found:
    """Runs the tests of a mutant in a copy, which stays as it was.

    Returns:
        All but its source, with `outcome`, `by` and `seconds`.
    """
    began = time.monotonic()
    path = folder / mutant["path"]
    before = path.read_text()
    path.write_text(mutant["source"])
    try:
        for tests in tests_of(mutant["path"]):
            outcome, by = run_tests(folder, tests, limit)
            if outcome != SURVIVED:
                break
    finally:
        path.write_text(before)
    found = {key: value for key, value in mutant.items() if key != "source"}
    seconds = round(time.monotonic() - began, 1)
    return {**found, "outcome": outcome, "by": by, "seconds": seconds}


def try_all(
    mutants: Sequence[Found], tried: pathlib.Path, jobs: int, limit: float
) -> List[Found]:
    """Tries mutants in several copies of the project.

    Args:
        mutants: as drawn.
        tried: file of the outcomes; a mutant that was killed is not tried
            again.
        jobs: copies.
        limit: seconds that each turn of a mutant may take.

    Raises:
        UserError: a test that has killed one fails without it.
    """
    known = {}
    lines = tried.read_text().splitlines() if tried.exists() else ()
    for one in map(json.loads, lines):
        if one["outcome"] != SURVIVED:
            known[key_of(one)] = one
    with tempfile.TemporaryDirectory() as place:
        free = [pathlib.Path(place) / str(number) for number in range(jobs)]
        for folder in free:
            folder.mkdir()
            copy_project(folder)

        def work(mutant: Found) -> Found:
            if key_of(mutant) in known:
                return known[key_of(mutant)]
            folder = free.pop()
            one = try_mutant(folder, mutant, limit)
            free.append(folder)
            print(
                f"{one['path']}:{one['line']} {one['outcome']} "
                f"{one['seconds']:.0f} s {one['by']}",
                file=sys.stderr,
                flush=True,
            )
            with open(tried, "a") as file:
                file.write(json.dumps(one) + "\n")
            return one

        with futures.ThreadPoolExecutor(jobs) as pool:
            found = list(pool.map(work, mutants))
        said = {one["by"] for one in found}
        killers = sorted(by for by in said if by.startswith("tests/"))
        if killers:
            outcome, by = run_tests(free[0], killers, float("inf"))
            if outcome != SURVIVED:
                raise UserError(f"{by}: {outcome} where nothing is changed")
    return found


def key_of(one: Found) -> Tuple[str, Tuple[str, ...]]:
    """The path and change that identify a mutant."""
    return one["path"], tuple(one["change"])


def rows_of(found: Sequence[Found]) -> List[List[str]]:
    """The table: a row for each room, then one for all."""
    by_room: Dict[str, List[Found]] = collections.defaultdict(list)
    for one in found:
        _, room, *inner = one["path"].split("/")
        by_room[f"{room}/" if inner else "other modules"].append(one)
    header = ["room", "mutants", KILLED, TIMED_OUT, SURVIVED, "change nothing"]
    table = [header]
    for name, own in [*sorted(by_room.items()), ("all", list(found))]:
        counts = collections.Counter(one["outcome"] for one in own)
        same = sum(one.get("is_same", False) for one in own)
        numbers = [len(own), counts[KILLED], counts[TIMED_OUT]]
        numbers += [counts[SURVIVED] - same, same]
        table.append([name, *(f"{number:,}" for number in numbers)])
    return table


def share_killed(found: Sequence[Found]) -> float:
    """The share of the mutants that change something."""
    real = [one for one in found if not one.get("is_same")]
    return sum(one["outcome"] != SURVIVED for one in real) / max(len(real), 1)


def keep_reasons(found: Sequence[Found], path: pathlib.Path) -> None:
    """Takes `why` and `is_same` of the same changes over from a file.

    `is_same` says that a change makes no difference to any behaviour.
    """
    kept = json.loads(path.read_text())["survivors"] if path.exists() else ()
    known = {key_of(one): one for one in kept}
    for one in found:
        if one["outcome"] == SURVIVED:
            before = known.get(key_of(one), {})
            one["why"] = before.get("why", "")
            one["is_same"] = before.get("is_same", False)


def main() -> None:
    """Draws and tries mutants, and writes the table.

    Raises:
        UserError: cosmic-ray is not installed, or a test fails by itself.
        SystemExit: too few mutants are killed.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT,
        help="seconds of each turn of a mutant, which then survives",
    )
    parser.add_argument(
        "--packages", help="folder of cosmic-ray", default=PACKAGES
    )
    parser.add_argument("--output_dir", default="out/mutants")
    arguments = parser.parse_args()
    folder = pathlib.Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    mutants = draw(arguments.seed, arguments.mutants, arguments.packages)
    began = time.monotonic()
    tried = folder / "tried.jsonl"
    found = try_all(mutants, tried, arguments.jobs, arguments.limit)
    keep_reasons(found, RESULTS)
    table, share = rows_of(found), share_killed(found)
    print(report.plain(table), end="")
    files.write_json(str(folder / "mutants.json"), found)
    survivors = [one for one in found if one["outcome"] == SURVIVED]
    kept = ("path", "line", "operator", "change", "is_same", "why")
    about = {
        "seed": arguments.seed,
        "mutants": len(found),
        "tensorflow": report.tensorflow(),
        "minutes": round((time.monotonic() - began) / 60),
        "table": table,
        "survivors": [{k: one[k] for k in kept} for one in survivors],
    }
    files.write_json(str(RESULTS), about)
    report.write(
        report.RELIABILITY,
        "mutants",
        f"Seed {about['seed']}, {about['mutants']} mutants, TensorFlow "
        f"{about['tensorflow']}: {share:.1%} of those that change something "
        f"are killed.\n\n{report.markdown(table, '---:')}",
    )
    if share < GOAL:
        raise SystemExit(f"{share:.1%} are killed, of {GOAL:.0%}")


if __name__ == "__main__":
    command_line.run(main)
