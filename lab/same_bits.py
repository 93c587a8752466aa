"""Compares the files that a fixed list of runs writes in two checkouts.

    .venv/bin/python -m lab.same_bits --before=../before --after=.

Each run (`lab/trials/runs.py`: every kind of task on both engines, library,
export; and here every tuning method, prediction, merging) is done in both
checkouts with this environment. All files that do not tell of a process must
be equal bit for bit: checkpoints, adapters, scores, predictions, exports. The
exit code is 1 if one differs.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

from adapter_bert import command_line, files
from adapter_bert.methods import registry
from adapter_bert.progress import Progress
from lab.devices.runs import with_arguments
from lab.trials import runs, tiny_files
from lab.trials.runs import OUT, SOURCE, TRAINED, ProgramRun

# These need other adapters, several tasks, or new words.
OF_OTHERS = {"average", "fusion", "new_words", "per_task", "stack", "union"}
METHODS = (
    *map(with_arguments, sorted(registry.METHODS.keys() - OF_OTHERS)),
    "prefix(length=2, inner_size=4)",
)
BERT = "--init_checkpoint={data}/" + tiny_files.BERT
INPUT = "text.txt"


def more_runs() -> list[ProgramRun]:
    """Runs of every method, of prediction, and of merging."""
    trainings = [
        runs.training(
            method,
            "run_classifier",
            "strategy",
            **runs.table(tiny_files.TABLE),
            tuning_method=method,
            do_predict=True,
            compute_dtype="bfloat16" if number % 2 else "float32",
            gradient_accumulation_steps=1 + number % 2,
            num_train_epochs=1,
        )
        for number, method in enumerate(METHODS)
    ]
    predict = (
        BERT,
        "--library={data}/" + runs.SHELF,
        "--task=all",
        "--input={data}/" + INPUT,
        "--output={place}/" + OUT + "/answers.jsonl",
    )
    convert = (
        BERT,
        "--to=hugging_face",
        "--output_dir={place}/" + OUT + "/new",
    )
    return [
        *trainings,
        ProgramRun("prediction", "predict", predict, trains=False),
        ProgramRun(
            "conversion", "convert", convert, {SOURCE: TRAINED}, trains=False
        ),
    ]


def result_of(
    checkout: pathlib.Path,
    run: ProgramRun,
    data: pathlib.Path,
    place: pathlib.Path,
) -> runs.Contents:
    """A digest of each file that a run in a checkout has written.

    Raises:
        RuntimeError: the run fails.
    """
    run.begin(data, place)
    done = subprocess.run(
        [sys.executable, "-m", "adapter_bert", *run.command(data, place)],
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{checkout}, {run.name}: {done.stderr[-2000:]}")
    return run.result(place)


def main() -> None:
    """Does all runs in both checkouts, and prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=pathlib.Path, required=True)
    parser.add_argument("--after", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="part of the runs' names")
    parser.add_argument("--output", help="where a JSON of the result goes")
    arguments = parser.parse_args()
    sides = arguments.before.resolve(), arguments.after.resolve()
    chosen = [
        r for r in (*runs.here(), *more_runs()) if arguments.only in r.name
    ]
    digests = {}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        data = work / "data"
        data.mkdir()
        tiny_files.make(data)
        runs.make_adapters(data)
        (data / INPUT).write_text("the cat sat\nthe dog ran fast\n")
        progress = Progress("compare", len(chosen), "runs")
        for number, run in enumerate(chosen):
            before, after = (
                result_of(side, run, data, work / f"{number}-{name}")
                for name, side in zip(("before", "after"), sides)
            )
            digests[run.name] = {
                "files": len(after),
                "different": runs.differences(before, after),
            }
            progress.update(1)
        progress.close()
    different = {
        k: v["different"] for k, v in digests.items() if v["different"]
    }
    for name, paths in different.items():
        print(f"{name}: {', '.join(paths)}")
    count = sum(run["files"] for run in digests.values())
    print(f"{len(digests)} runs, {count} files, {len(different)} runs differ")
    if arguments.output:
        files.write_json(arguments.output, digests)
    if different:
        raise SystemExit(1)


if __name__ == "__main__":
    with command_line.run():
        main()
