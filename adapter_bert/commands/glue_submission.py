"""Makes the zip file for GLUE's leaderboard; glue_submission.sh says how."""

import pathlib
import sys
import zipfile

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert.errors import UserError
from adapter_bert.tasks.kinds import get_task
from adapter_bert.tasks.text_regression import TextRegression

PREDICTIONS = "test_predictions.tsv"
# Rows of the published test sets with one file.
ROWS = {
    "CoLA": 1063,
    "SST-2": 1821,
    "MRPC": 1725,
    "STS-B": 1379,
    "QQP": 390965,
    "QNLI": 5463,
    "RTE": 3000,
    "WNLI": 146,
    "AX": 1104,
}
# File of the zip -> task, file of the run, rows.
FILES = {
    **{f"{task}.tsv": (task, PREDICTIONS, n) for task, n in ROWS.items()},
    "MNLI-m.tsv": ("MNLI", PREDICTIONS, 9796),
    "MNLI-mm.tsv": ("MNLI", "test_predictions_mismatched.tsv", 9847),
}
HEADER = "index\tprediction"
# Houlsby et al. leave WNLI out; the commonest class of its training set.
WNLI_MAJORITY = "0"


def check(path: pathlib.Path, task: str, rows: int) -> str:
    """Reads a file of predictions and checks it.

    Returns:
        The file's text.
    """
    text = path.read_text(encoding="utf-8")
    header, *lines = text.splitlines() or [""]
    if header != HEADER:
        raise UserError(f"{path}:1: found {header[:80]!r}, expected {HEADER!r}")
    if len(lines) != rows:
        raise UserError(
            f"{path} has {len(lines)} predictions, expected {rows}: those of "
            f"GLUE's whole test set of {task}"
        )
    declared = get_task(task)
    for place, line in enumerate(lines):
        where = f"{path}:{place + 2}"
        index, _, label = line.partition("\t")
        if index != str(place):
            raise UserError(f"{where}: found index {index!r}, expected {place}")
        declared.check_label(label, where)
        if isinstance(declared, TextRegression) and "." not in label:
            raise UserError(f"{where}: found {label!r}, expected as in 3.250")
    return text


def write_zip(runs: pathlib.Path, target: pathlib.Path) -> None:
    """Writes the zip file of all tasks."""
    if not runs.is_dir():
        raise UserError(f"{runs} is no folder of runs")
    # Names of tasks in any case of letters; of several the first.
    folders = {x.name.lower(): x for x in sorted(runs.iterdir(), reverse=True)}
    contents, missing = {}, []
    for name, (task, file, rows) in FILES.items():
        path = folders.get(task.lower(), runs / task) / file
        if path.exists():
            contents[name] = check(path, task, rows)
            print(f"{name}: {rows} predictions of {path}")
        elif task == "WNLI":
            lines = [f"{i}\t{WNLI_MAJORITY}" for i in range(rows)]
            contents[name] = "\n".join([HEADER, *lines]) + "\n"
            print(f"{name}: no run, so {WNLI_MAJORITY} throughout, as a guess")
        else:
            missing.append(str(path))
    if missing:
        raise UserError(
            f"missing {', '.join(missing)}; run run_classifier.py with "
            "--do_predict=true for them, AX with MNLI's model"
        )
    part = target.with_name(target.name + ".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in contents.items():
            archive.writestr(name, text)
    part.replace(target)
    print(f"{target} has all {len(FILES)} files")


def main() -> None:
    """Writes what the command line names."""
    if len(sys.argv) != 3:
        sys.exit("usage: scripts/glue_submission.sh RUNS ZIP")
    try:
        write_zip(*map(pathlib.Path, sys.argv[1:]))
    except BrokenPipeError:  # Of what it prints.
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(str(error)) from error
