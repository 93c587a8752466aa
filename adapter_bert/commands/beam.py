"""Answers large inputs with a model of `adapter-bert export`, on Apache Beam.

    .venv-beam/bin/python -m adapter_bert beam --model=exported \\
        --input='rows*.jsonl' --output=answers --task=mrpc \\
        --direct_num_workers=4 --direct_running_mode=multi_processing

All other flags are Beam's. docs/predict.md tells more.
"""

import argparse
import os

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from adapter_bert.graph import beam, bulk_rows
from adapter_bert.graph.exported import ExportedModel, Tasks, shown_names
from adapter_bert.tasks.kinds import KINDS

# Wildcards of patterns, which no output may have.
WILD = "*?[]{}"


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Parses this program's flags, and separates Beam's."""
    parser = command_line.Parser(
        prog=".venv-beam/bin/python -m adapter_bert beam",
        description=__doc__.split("\n")[0],
        epilog="All other flags are Apache Beam's.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", required=True, help="the --output_dir of adapter-bert export"
    )
    parser.add_argument(
        "--input",
        required=True,
        help="pattern of files of rows, as 'rows*.jsonl'; a file of another "
        "ending holds one row per line, with a tab between the texts of a pair",
    )
    parser.add_argument(
        "--output",
        required=True,
        help="path with which the names of the files of answers begin",
    )
    parser.add_argument(
        "--task",
        default="",
        help="names of the tasks that answer every row, as mrpc,rte, or all; "
        "default: the key task of each row",
    )
    parser.add_argument(
        "--batch_size",
        type=int,
        default=128,
        help="rows that the model computes at once; default: %(default)s",
    )
    flags, others = parser.parse_known_args()
    if flags.batch_size < 1:
        raise UserError(f"--batch_size is {flags.batch_size}, expected more")
    if not os.path.basename(flags.output) or set(WILD) & set(flags.output):
        raise UserError(
            f"--output is {flags.output!r}, expected what the names of files "
            "begin with"
        )
    for before, flag in zip([None, *others], others):
        # A word may be the value of the flag before.
        is_value = before and before.startswith("--") and "=" not in before
        if not flag.startswith("--") and not is_value:
            raise UserError(f"unexpected: {flag}")
    return flags, others


def check_output(output: str) -> None:
    """Refuses an output that is there, or cannot be written."""
    for name in (output, output + beam.REFUSED):
        pattern = beam.written(name)
        matches = beam.matching(pattern)
        if matches:
            raise UserError(
                f"{matches[0].path} is there already; delete {pattern}, or "
                "choose another --output"
            )
    if "://" not in output:
        files.prepare_folder(os.path.dirname(output))


def check_input(pattern: str, has_tasks: bool) -> None:
    """Checks the input's files."""
    matches = beam.matching(pattern)
    if not matches:
        raise UserError(f"no file matches --input {pattern}")
    for path, size in ((file.path, file.size_in_bytes) for file in matches):
        if bulk_rows.ending(path) in bulk_rows.TABLES:
            raise UserError(
                f"--input {path} is a table, whose first line names the "
                "columns of all others; make it a .jsonl file, or without "
                "such a line a .txt file with tabs between texts"
            )
        if not has_tasks and not bulk_rows.is_json_lines(path):
            raise UserError(
                f"the rows of --input {path} name no task, as those of a "
                ".jsonl file may; pass --task"
            )
        compression = bulk_rows.compression(path)
        if compression in bulk_rows.UNCHECKED:
            raise UserError(
                f"--input {path} ends with {compression}, and such a file that "
                "is cut short cannot be told; compress it as one of "
                f"{', '.join(bulk_rows.COMPRESSED)}"
            )
        if compression and not size:
            raise UserError(
                f"--input {path} is empty, which no compressed file is; write "
                "it again, or leave it out"
            )


def tasks_named(flag: str, tasks: Tasks) -> list[str]:
    """Finds the tasks of `--task`."""
    names = list(tasks) if flag == "all" else flag.split(",") if flag else []
    shown = shown_names(list(tasks))
    for name in names:
        if name not in tasks:
            raise UserError(f"unknown task {name!r}; there are: {shown}")
    for name in names or tasks:
        if tasks[name]["kind"] not in KINDS:
            raise UserError(
                f"the task {name} gives {tasks[name]['kind']}, which cannot "
                "be told here; leave it out by --task"
            )
    return list(dict.fromkeys(names))


def main() -> None:
    """Answers the flags' rows; ends in an error if some are refused."""
    flags, others = parse()
    options = beam.options_of(others)
    pattern, output = map(files.absolute, (flags.input, flags.output))
    check_output(output)
    check_input(pattern, bool(flags.task))
    # Finds damages before the job; workers load the model again.
    model = ExportedModel(flags.model)
    job = beam.BeamJob(
        input=pattern,
        output=output,
        model=files.absolute(flags.model),
        version=model.version,
        tasks=model.tasks,
        names=tasks_named(flags.task, model.tasks),
        batch_size=flags.batch_size,
    )
    del model
    answered, refused = beam.run(job, options)
    print(f"answered {answered}, refused {refused}")
    refusals = output + beam.REFUSED
    if beam.matching(beam.written(refusals)):
        raise UserError(
            f"refused {refused}; {refusals}-*{beam.ENDING} tells why"
        )
