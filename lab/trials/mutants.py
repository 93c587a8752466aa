r"""Has tests run upon mutants of the core modules, and tells which survive.

    make mutants SEED=1 MUTANTS=300

Each mutant is one change in a copy of the project, drawn from the seed
(`mutations.py`). The module's own tests are run upon it until one fails,
then all others that import the module. The table goes into docs/reliability.md,
and each survivor into results/mutants.json, where `why` is for whoever looks at
it. `tried.jsonl` in `--output_dir` keeps what was killed; delete it to begin
anew. The exit code is 1 if too few are killed.
"""

import argparse
import ast
import collections
import concurrent.futures
import difflib
import functools
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import tensorflow as tf

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from lab.trials import report
from lab.trials.mutant_tests import KILLED, SURVIVED, TIMED_OUT
from lab.trials.starts import ROOT

PACKAGES = os.path.join(sys.prefix, "mutants")
RESULTS = ROOT / "results" / "mutants.json"
# Of the mutants that change something, at least so many are to be killed.
GOAL = 0.95
# Seconds after which a test does not end any more, and those that each turn of
# a mutant's tests may take.
PATIENCE, LIMIT = 300.0, 900.0
# What looks at a package's modules without importing them.
OF_ALL = ("architecture",)
OF_MODEL = ("roberta", "golden_model", "golden_features", "experiment")
OF_PACKAGE = {
    "adapter_bert": OF_MODEL,
    "adapter_bert.bert": OF_MODEL,
    "adapter_bert.data": OF_MODEL,
    "adapter_bert.training": (
        "estimator",
        "strategy",
        "experiment",
        "run_classifier",
    ),
    "adapter_bert.methods": (
        "list_flags",
        "methods",
        "methods_adapters",
        "methods_other",
        "shared_layers",
        "golden_methods",
        "golden_compositions",
        "composition",
    ),
    "adapter_bert.serving": ("asking", "text_model", "predictor", "exported"),
    "adapter_bert.tasks": ("tasks", "restored", "run_tasks", "golden_features"),
    "adapter_bert.checkpoints": (
        "sources",
        "run_record",
        "composition_parts",
        "run_classifier",
    ),
}

Found = Dict[str, Any]


class Runner:
    """A copy of the project, and a process that runs tests in it."""

    def __init__(self, folder: pathlib.Path):
        """Makes the copy, of all that git does not ignore."""
        names = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        # What is deleted here is still git's.
        there = [
            name
            for name in names.split(b"\0")
            if name and os.path.lexists(os.path.join(os.fsencode(ROOT), name))
        ]
        subprocess.run(
            ["xargs", "-0", "cp", "--parents", "-t", str(folder)],
            cwd=ROOT,
            check=True,
            input=b"\0".join(there),
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lab.trials.mutant_tests"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def ask(self, **request: Any) -> Found:
        """Has tests run; see `lab/trials/mutant_tests.py`.

        Raises:
            UserError: the process has ended.
        """
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UserError("what runs the tests has ended; see above")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


class Runners:
    """Several of them, each of which does one thing at a time."""

    def __init__(self, folder: pathlib.Path, count: int):
        """Makes them in a folder."""
        self._free: queue.Queue[Runner] = queue.Queue()
        self._pool = concurrent.futures.ThreadPoolExecutor(count)
        for number in range(count):
            place = folder / str(number)
            place.mkdir()
            self._free.put(Runner(place))
        self._count = count

    def ask_all(self, requests: Sequence[Dict[str, Any]], note: Any) -> None:
        """Asks all; `note` gets each request's number and answer."""

        def ask(number: int) -> None:
            runner = self._free.get()
            try:
                note(number, runner.ask(**requests[number]))
            finally:
                self._free.put(runner)

        list(self._pool.map(ask, range(len(requests))))

    def close(self) -> None:
        """Ends them."""
        for _ in range(self._count):
            self._free.get().close()
        self._pool.shutdown()


def tests_of(path: str) -> List[List[str]]:
    """The files of tests of a module.

    Args:
        path: of the module, from the root.

    Returns:
        Of the module's name; those that import it, the shortest first, and
        those of its package. Only groups that hold any.
    """
    package, _, stem = path[: -len(".py")].replace("/", ".").rpartition(".")
    module = f"{package}.{stem}" if package else stem
    known = _test_files()
    groups: List[List[str]] = [[stem] if stem in known else []]
    others = [
        name
        for name, file in known.items()
        if name.startswith(f"{stem}_") or module in file.imported
    ]
    others.sort(key=lambda name: known[name].size)
    later = dict.fromkeys([*OF_ALL, *others, *OF_PACKAGE[package]])
    groups.append([name for name in later if name not in groups[0]])
    return [
        [f"tests/test_{name}.py" for name in group] for group in groups if group
    ]


class TestFile(NamedTuple):
    """A file of tests.

    Attributes:
        size: of its text.
        imported: what it imports, as dotted names of modules and of what
            they hold.
    """

    size: int
    imported: Set[str]


@functools.lru_cache(None)
def _test_files() -> Dict[str, TestFile]:
    """All, by what is between `test_` and `.py`."""
    found = {}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        text = path.read_text()
        imported = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
                imported.update(f"{node.module}.{a.name}" for a in node.names)
        found[path.stem[len("test_") :]] = TestFile(len(text), imported)
    return found


def draw(seed: int, count: int, packages: str = PACKAGES) -> List[Found]:
    """Has mutations drawn, by a process that has cosmic-ray.

    Raises:
        UserError: it is not installed.
    """
    if not os.path.isdir(packages):
        raise UserError(f"no folder {packages}; `make mutants` installs it")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "soak.mutations",
            f"--seed={seed}",
            f"--mutants={count}",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": packages},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def change_of(mutant: Found) -> List[str]:
    """The lines that a mutant takes away and adds."""
    lines = difflib.unified_diff(
        (ROOT / mutant["path"]).read_text().splitlines(),
        mutant["source"].splitlines(),
        n=0,
        lineterm="",
    )
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def try_all(
    runners: Runners,
    mutants: Sequence[Found],
    tried: pathlib.Path,
    limit: float = LIMIT,
) -> List[Found]:
    """What each mutant comes to.

    All have their first group of tests run, then those that survive the
    second.

    Args:
        runners: that run tests.
        mutants: as drawn.
        tried: file of what is known; a mutant is not tried again that has
            been killed.
        limit: seconds that each turn of a mutant may take.

    Returns:
        Of each what was drawn but the source, its `change`, and what
        `lab/trials/mutant_tests.py` tells.

    Raises:
        UserError: a test that has killed one fails without it.
    """
    found = [
        {
            **{k: v for k, v in mutant.items() if k != "source"},
            "change": change_of(mutant),
            "outcome": SURVIVED,
            "by": "",
            "seconds": 0.0,
        }
        for mutant in mutants
    ]
    known = _killed_before(tried)
    for one in found:
        one.update(known.get(_key(one), {}))
    for turn in (0, 1):
        left = [
            (number, tests[turn])
            for number, tests in enumerate(tests_of(m["path"]) for m in mutants)
            if found[number]["outcome"] == SURVIVED and tests[turn:]
        ]

        def note(place: int, answer: Found, left: Any = left) -> None:
            one = found[left[place][0]]
            one.update(answer, seconds=one["seconds"] + answer["seconds"])
            report.say(
                f"{one['path']}:{one['line']} {one['outcome']} "
                f"{one['seconds']:.0f} s {one['by']}"
            )
            with open(tried, "a") as file:
                file.write(json.dumps(one) + "\n")

        requests = [
            {
                "path": mutants[number]["path"],
                "source": mutants[number]["source"],
                "tests": tests,
                "patience": PATIENCE,
                "limit": limit,
            }
            for number, tests in left
        ]
        report.say(f"{len(requests)} mutants, turn {turn + 1}")
        runners.ask_all(requests, note)
    _confirm(runners, found)
    return found


def _key(one: Found) -> Tuple[str, int, Tuple[str, ...]]:
    """By which a mutant is known again."""
    return one["path"], one["line"], tuple(one["change"])


def _killed_before(tried: pathlib.Path) -> Dict[Any, Found]:
    """What killed which mutants, of a file of such."""
    known = {}
    if tried.exists():
        for line in tried.read_text().splitlines():
            one = json.loads(line)
            if one["outcome"] != SURVIVED:
                names = ("outcome", "by", "seconds")
                known[_key(one)] = {name: one[name] for name in names}
    return known


def _confirm(runners: Runners, found: Sequence[Found]) -> None:
    """Runs the tests that have killed mutants without these.

    Raises:
        UserError: one fails.
    """
    killers = sorted({one["by"] for one in found if "::" in one["by"]})
    if not killers:
        return

    def note(number: int, answer: Found) -> None:
        if answer["outcome"] != SURVIVED:
            raise UserError(
                f"{answer['by']}: {answer['outcome']} where nothing is changed"
            )

    runners.ask_all(
        [
            {
                "path": found[0]["path"],
                "source": (ROOT / found[0]["path"]).read_text(),
                "tests": killers,
                "patience": PATIENCE,
                "limit": float("inf"),
            }
        ],
        note,
    )


def rows_of(found: Sequence[Found]) -> List[List[str]]:
    """The table: a row for each package, then one for all."""
    by_package: Dict[str, List[Found]] = collections.defaultdict(list)
    for one in found:
        package, _, inner = one["path"].partition("/")
        by_package[f"{package}/" if inner else "other modules"].append(one)
    table = [
        ["package", "mutants", KILLED, TIMED_OUT, SURVIVED, "change nothing"]
    ]
    for name, own in [*sorted(by_package.items()), (report.ALL, list(found))]:
        counts = collections.Counter(one["outcome"] for one in own)
        same = sum(one.get("is_same", False) for one in own)
        numbers = [len(own), counts[KILLED], counts[TIMED_OUT]]
        numbers += [counts[SURVIVED] - same, same]
        table.append([name, *(f"{number:,}" for number in numbers)])
    return table


def share_killed(found: Sequence[Found]) -> float:
    """Of the mutants that change something."""
    real = [one for one in found if not one.get("is_same")]
    return sum(one["outcome"] != SURVIVED for one in real) / max(len(real), 1)


def keep_reasons(found: Sequence[Found], path: pathlib.Path) -> None:
    """Takes `why` and `is_same` of the same changes over from a file.

    `is_same` says that a change makes no difference to any behaviour.
    """
    known = {}
    if path.exists():
        for one in json.loads(path.read_text())["survivors"]:
            known[one["path"], tuple(one["change"])] = one
    for one in found:
        if one["outcome"] == SURVIVED:
            before = known.get((one["path"], tuple(one["change"])), {})
            one["why"] = before.get("why", "")
            one["is_same"] = before.get("is_same", False)


def main() -> None:
    """Does what the command line says.

    Raises:
        UserError: what draws mutants is not installed, or a test fails by
            itself.
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
    with tempfile.TemporaryDirectory() as place:
        runners = Runners(pathlib.Path(place), arguments.jobs)
        found = try_all(
            runners, mutants, folder / "tried.jsonl", arguments.limit
        )
        runners.close()
    keep_reasons(found, RESULTS)
    table = rows_of(found)
    print(report.plain(table), end="")
    files.write_json(str(folder / "mutants.json"), found)
    about = {
        "seed": arguments.seed,
        "mutants": len(found),
        "tensorflow": tf.__version__,
        "minutes": round((time.monotonic() - began) / 60),
    }
    survivors = [one for one in found if one["outcome"] == SURVIVED]
    kept = ("path", "line", "operator", "change", "is_same", "why")
    files.write_json(
        str(RESULTS),
        {
            **about,
            "table": table,
            "survivors": [{k: one[k] for k in kept} for one in survivors],
        },
    )
    share = share_killed(found)
    report.write_page(
        f"Seed {about['seed']}, {about['mutants']} mutants, TensorFlow "
        f"{about['tensorflow']}: {share:.1%} of those that change something "
        f"are killed.\n\n{report.markdown_table(table)}",
        "mutants",
    )
    if share < GOAL:
        raise SystemExit(f"{share:.1%} are killed, of {GOAL:.0%}")


if __name__ == "__main__":
    command_line.run(main)
