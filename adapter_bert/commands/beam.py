"""Answers large inputs with a model of `adapter-bert export`, on Apache Beam.

    .venv-beam/bin/python -m adapter_bert beam --model=exported \\
        --input='rows*.jsonl' --output=answers --task=mrpc \\
        --direct_num_workers=4 --direct_running_mode=multi_processing

All other flags are Beam's. docs/predict.md tells more.
"""

import dataclasses
import os

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert import files
from adapter_bert.errors import UserError
from adapter_bert.flag_page import read_command_line
from adapter_bert.flags import POSITIVE, Range, Topic
from adapter_bert.graph import beam, bulk_rows
from adapter_bert.graph.exported import ExportedModel, Tasks, shown_names

# Wildcards of patterns, which no output may have.
WILD = "*?[]{}"


@dataclasses.dataclass(frozen=True)
class Answering:
    """Names the rows, and the model that answers them."""

    REQUIRED = ("model", "input", "output")
    model: str = Topic.TO_DO.setting(
        "", "The --output_dir of adapter-bert export."
    )
    input: str = Topic.DATA.setting(
        "",
        "Pattern of files of rows, as 'rows*.jsonl'; a file of another ending "
        "holds one row per line, with a tab between the texts of a pair.",
    )
    output: str = Topic.DATA.setting(
        "",
        "Path with which the names of the files of answers begin.",
        Range(
            lambda path: os.path.basename(path) and not set(WILD) & set(path),
            "expected what the names of files begin with",
        ),
    )
    task: str = Topic.METHOD.setting(
        "",
        "Names of the tasks that answer every row, as mrpc,rte, or all; "
        "default: the key task of each row.",
    )
    batch_size: int = Topic.EVALUATION.setting(
        128, "Rows that the model computes at once.", POSITIVE
    )


def parse() -> tuple[Answering, list[str]]:
    """Parses this program's flags, and separates Beam's."""
    settings, others = read_command_line(Answering, __doc__, None)
    for before, flag in zip([None, *others], others):
        # A word may be the value of the flag before.
        is_value = before and before.startswith("--") and "=" not in before
        if not flag.startswith("--") and not is_value:
            raise UserError(f"unexpected: {flag}")
    return settings, others


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
                f"--input {path} is a table or JSON, whose lines are no "
                "texts; make it a .jsonl file, or a .txt file with tabs "
                "between texts and no line of names"
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
    return list(dict.fromkeys(names))


def main() -> None:
    """Answers the rows; ends in an error if some are refused."""
    settings, others = parse()
    options = beam.options_of(others)
    pattern, output = map(files.absolute, (settings.input, settings.output))
    check_output(output)
    check_input(pattern, bool(settings.task))
    # Finds damages before the job; workers load the model again.
    model = ExportedModel(settings.model)
    job = beam.BeamJob(
        input=pattern,
        output=output,
        model=files.absolute(settings.model),
        version=model.version,
        tasks=model.tasks,
        names=tasks_named(settings.task, model.tasks),
        batch_size=settings.batch_size,
    )
    del model
    answered, refused = beam.run(job, options)
    print(f"answered {answered}, refused {refused}")
    refusals = output + beam.REFUSED
    if beam.matching(beam.written(refusals)):
        raise UserError(
            f"refused {refused}; {refusals}-*{beam.ENDING} tells why"
        )
