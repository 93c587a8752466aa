"""One page of HTML about a run, or about the runs of a sweep.

    .venv/bin/adapter-bert report FOLDER [--earlier=RUN] [--output=PAGE.html]

FOLDER is the folder of one run, or holds the folders of many. The page needs no
network and no other file. The page of a run has its scores next to those of one
label for all rows, of the paper and of an earlier run where they are known; its
curves, confusions, hardest examples, the norms of its adapter, its time and its
memory, its command line, and folded its configuration. The page of a sweep has
its settings, the best setting of each task, and scores over parameters. The
page says what a run lacks.
"""

import dataclasses
import os
import pathlib

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert import files, flag_page
from adapter_bert.checkpoints import run_record
from adapter_bert.errors import UserError
from adapter_bert.flags import Topic
from adapter_bert.reports.html_page import GENERATOR, page
from adapter_bert.reports.report_run import sections_of_run
from adapter_bert.reports.report_sweep import sections_of_sweep

# A report names its generator within so many bytes.
BEGINNING = 400


def write_report(folder: str, output: str, earlier: str = "") -> None:
    """Writes the page of a run or a sweep, over an earlier report.

    Args:
        folder: of the run or the sweep.
        output: the page.
        earlier: folder of a run to compare a run's scores to, or "".
    """
    place = pathlib.Path(folder)
    if not place.is_dir():
        raise UserError(f"{folder} is no folder of a run or of runs")
    if files.exists(output):
        beginning = files.read_bytes(output, "the page")[:BEGINNING]
        if GENERATOR.encode() not in beginning:
            raise UserError(
                f"{output} is there and is no report of this program; choose "
                "another --output, or delete the file"
            )
    is_run = (place / run_record.RUN_FILE).exists()
    if is_run:
        other = pathlib.Path(earlier) if earlier else None
        title, sections = sections_of_run(place, other)
    elif earlier:
        raise UserError(
            f"{folder} is no run, whose scores --earlier could stand next to; "
            "name the folder of one run"
        )
    else:
        title, sections = sections_of_sweep(place)
    files.write_bytes(output, page(title, sections))


@dataclasses.dataclass(frozen=True)
class Report:
    """Names the report, and the run that this one is compared to."""

    earlier: str = Topic.TO_DO.setting(
        "", "A run of the same task, to compare to."
    )
    output: str = Topic.TO_DO.setting(
        "", "The page; default: FOLDER/report.html."
    )


def main() -> None:
    """Writes the page that the arguments name; raises as `write_report`."""
    options, [folder] = flag_page.read_command_line(Report, __doc__, ["FOLDER"])
    output = options.output or os.path.join(folder, "report.html")
    write_report(folder, output, options.earlier)
    print(f"the report is {output}")
