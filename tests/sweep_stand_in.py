"""A small sweep whose runs are a stand-in's, for the tests of sweeps."""

import os
import subprocess
import sys
import time
from collections import Counter

from conftest import ROOT, SENTENCES, read_lines, run_command, write_table

SCRIPTS = ROOT / "scripts"
SMALL = {
    "TASKS": "RTE SST-2",
    "SIZES": "2 4",
    "RATES": "1e-3",
    "EPOCHS": "1",
    "SEEDS": "1",
}
# In the place of Python: has COMMANDS run what is no run, appends to `runs`,
# fails where `fail` names the run, waits for the file `go` where `slow` does,
# and writes what a run writes; more by the program `finish`, if there is one.
STAND_IN = """#!/usr/bin/env bash
case $3 in
  grid_status | paper | baseline | ablate) exec ${{COMMANDS:-{python}}} "$@" ;;
esac
for argument; do
  case $argument in --output_dir=*) out=${{argument#*=}} ;; esac
done
echo "$out" >> {folder}/runs
share='import os; print(*sorted(os.sched_getaffinity(0)), sep=",")'
# A line in one piece, since two jobs write at once.
echo "$({python} -c "$share")" >> {folder}/cores
echo "${{CUDA_VISIBLE_DEVICES-all}}" >> {folder}/gpus
if grep -qsF "$out" {folder}/fail; then
  echo 'error: the data is missing' >&2
  echo 'a notice of TensorFlow' >&2
  exit 1
fi
if grep -qsF "$out" {folder}/slow; then
  echo "I1121 15:53:31.1 139 progress.py:55] train: 64/80 examples"
  until [ -e {folder}/go ]; do sleep 0.1; done
fi
echo '{{}}' > "$out/eval_results.json"
if [ -e {folder}/finish ]; then {folder}/finish "$out" "$@"; fi
"""


class Sweep:
    """A sweep over two tasks and two sizes, with a stand-in for Python."""

    def __init__(self, folder):
        self.folder = folder
        self.out = folder / "out"
        stand_in = folder / "python"
        stand_in.write_text(
            STAND_IN.format(python=sys.executable, folder=folder)
        )
        stand_in.chmod(0o755)
        for task in SMALL["TASKS"].split():
            (folder / "glue" / task).mkdir(parents=True)
        self.environment = {
            **os.environ,
            **SMALL,
            "PYTHON": str(stand_in),
            "BERT": str(folder),
            "GLUE_DIR": str(folder / "glue"),
        }

    def start(self, *arguments, **environment):
        return subprocess.Popen(
            [SCRIPTS / "sweep_glue.sh", self.out, *arguments],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments, **environment):
        process = self.start(*arguments, **environment)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(
            arguments, process.returncode, output, errors
        )

    def succeed(self, *arguments, **environment):
        """Runs the sweep, which must succeed."""
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done

    def refused(self, *arguments, **environment):
        """The errors of a sweep, which must fail."""
        done = self.run(*arguments, **environment)
        assert done.returncode == 1
        return done.stderr

    def run_script(self, name, *arguments, **environment):
        """Runs another script of grids, whose axes are its own."""
        return run_command(
            SCRIPTS / name,
            self.out,
            *arguments,
            env=self.own_environment(environment),
        )

    def own_environment(self, changes):
        """The environment of another script."""
        others = {k: v for k, v in os.environ.items() if k not in SMALL}
        return {
            **others,
            "PYTHON": self.environment["PYTHON"],
            "BERT": str(self.folder),
            **{k: str(v) for k, v in changes.items()},
        }

    def rows(self, done=None):
        """The rows of the grid, after what has written it has gone well."""
        assert not done or done.returncode == 0, done.stderr
        return read_lines(self.out / "grid.tsv")

    def add_tasks(self, *tasks):
        """Gives tasks of GLUE files without rows."""
        for task in tasks:
            folder = self.folder / "glue" / task
            folder.mkdir(exist_ok=True)
            for name in ("train", "dev"):
                (folder / f"{name}.tsv").write_text("sentence\tlabel\n")

    def name(self, name):
        """The folder of a run."""
        return self.out / "runs" / name

    def started(self):
        """Folders of the runs that were started, in order."""
        path = self.folder / "runs"
        return read_lines(path) if path.exists() else []

    def mark(self, kind, *names):
        """Says which runs are to fail or to be slow."""
        lines = "".join(f"{self.name(name)}\n" for name in names)
        (self.folder / kind).write_text(lines)


def counts(text):
    """The numbers of the table of states that are not 0."""
    lines = text[text.index("state") :].splitlines()[1:7]
    pairs = map(str.split, lines)
    return Counter({state: int(n) for state, n in pairs if n != "0"})


RUNS = [
    f"{task}/houlsby{size}-lr1e-3-epochs1-seed1"
    for task in ("RTE", "SST-2")
    for size in (2, 4)
]


def wait_for(condition, seconds=60):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


# Flags of real runs on the tiny BERT.
TINY = ("--", "--max_seq_length=24", "--save_checkpoints_steps=5")


def make_real(sweep, tiny_bert):
    """Gives a sweep real runs over two tiny tasks, a thing of seconds."""
    words = {"good": "entailment", "bad": "not_entailment"}
    pairs = [
        (str(i), text, "the cat", words[label])
        for i, (text, label) in enumerate(SENTENCES * 5)
    ]
    singles = [(text, str(int(x == "good"))) for text, x in SENTENCES * 5]
    names = ("index", "sentence1", "sentence2", "label")
    for split in ("train", "dev"):
        write_table(sweep.folder / f"glue/RTE/{split}.tsv", pairs, names)
        write_table(
            sweep.folder / f"glue/SST-2/{split}.tsv",
            singles,
            ("sentence", "label"),
        )
    sweep.environment.update(PYTHON=sys.executable, BERT=str(tiny_bert))
    return sweep
