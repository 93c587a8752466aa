"""Scores to judge a run's scores by.

They are the scores of a constant answer, of the paper, and of an earlier run.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas

from adapter_bert import files
from adapter_bert.checkpoints import run_record
from adapter_bert.errors import UserError
from adapter_bert.reports import collect_runs
from adapter_bert.tasks.metrics import METRICS

# Scores of adapters and of full fine-tuning, of GLUE's tasks as fractions.
# Source: Houlsby et al. 2019, table 1, BERT-large on the test sets, adapters of
# each task's best size; its column of Spearman's correlation holds the
# leaderboard's Pearson. QNLI's files have been replaced since. SQuAD 1.1:
# section 3.5, the dev set.
PAPER = {
    "cola": {"matthews_correlation": (0.595, 0.605)},
    "sst-2": {"accuracy": (0.940, 0.949)},
    "mrpc": {"f1": (0.895, 0.893)},
    "sts-b": {"pearson": (0.869, 0.876)},
    "qqp": {"f1": (0.718, 0.721)},
    "mnli": {"accuracy": (0.849, 0.867), "accuracy_mismatched": (0.851, 0.859)},
    "rte": {"accuracy": (0.715, 0.701)},
    "squad": {"f1": (90.4, 90.7)},
}


# More rows than a cell of a confusion matrix can have are a damaged file's.
MOST_ROWS = 10**7


class Known(NamedTuple):
    """Scores by name, and where they are from.

    Attributes:
        title: of a table's column.
        meaning: a sentence.
        scores: as text, by the score's name.
    """

    title: str
    meaning: str
    scores: Mapping[str, str]


def read_table(path: pathlib.Path) -> list[list[str]]:
    """Returns the rows of a TSV file, its header first."""
    text = files.read_text(str(path), "the table")
    # `splitlines` would split at other characters too.
    rows = [line.split("\t") for line in text.rstrip("\n").split("\n")]
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise UserError(
                f"{path}:{number}: {len(row)} cells, expected {len(rows[0])} "
                "as in the header; evaluate the run again"
            )
    return rows


def tables_of(
    folder: pathlib.Path, name: str
) -> Iterator[tuple[pathlib.Path, str]]:
    """Finds a folder's tables of a name, and the dev set's suffix of each."""
    for path in sorted(folder.glob(f"{name}*.tsv")):
        yield path, path.stem[len(name) :].lstrip("_")


def read_confusion(path: pathlib.Path) -> pandas.DataFrame:
    """Reads the rows of each right label (index) that were given each label."""
    header, *rows = read_table(path)
    labels = header[1:]
    try:
        if [row[0] for row in rows] != labels:
            raise ValueError("expected rows and columns of the same labels")
        counts = [list(map(int, row[1:])) for row in rows]
        if not all(0 <= n <= MOST_ROWS for row in counts for n in row):
            raise ValueError(f"expected numbers up to {MOST_ROWS:,}")
    except ValueError as error:
        raise UserError(
            f"{path} is no confusion matrix: {error}; evaluate the run again"
        ) from error
    return pandas.DataFrame(counts, labels, labels)


def of_one_answer(folder: pathlib.Path, scores: Mapping[str, float]) -> Known:
    """Scores of the dev set's most frequent label, given to every row.

    Empty without a confusion matrix.
    """
    texts = {}
    for path, suffix in tables_of(folder, "eval_confusion"):
        counts = read_confusion(path).sum(axis=1).to_numpy()
        labels = np.repeat(np.arange(len(counts)), counts)
        answers = np.full_like(labels, np.argmax(counts))
        for name, metric in METRICS.items():
            full = f"{name}_{suffix}" if suffix else name
            if full in scores and len(labels):
                texts[full] = f"{metric(labels, answers):.4f}"
    return Known(
        "one label for all",
        "“One label for all” gives all rows the dev set's most frequent label.",
        texts,
    )


def of_the_paper(run: Mapping[str, Any], results: Mapping[str, Any]) -> Known:
    """Gets the paper's scores of GLUE's tasks and SQuAD 1.1; empty for others.

    Takes `run.json` and `eval_results.json`.
    """
    name, scores = run["task"]["name"], run_record.scores_in(results)
    # SQuAD 2.0 and trainings on other questions are of the same name.
    is_other = name == "squad" and run.get("data_name") != "train-v1.1.json"
    pairs = {} if is_other else PAPER.get(name, {})
    return Known(
        "paper: adapters / full",
        "The paper's scores (Houlsby et al. 2019) are of adapters and of full "
        "fine-tuning: of BERT-large on GLUE's test sets, with adapters of "
        "each task's best size; of SQuAD on the dev set.",
        {
            one: " / ".join(f"{value:.4g}" for value in pair)
            for one, pair in pairs.items()
            if one in scores
        },
    )


def of_an_earlier_run(
    folder: pathlib.Path, task: Mapping[str, Any], results: Mapping[str, Any]
) -> Known:
    """Returns the scores of a run of the same task on the same dev set.

    Args:
        folder: of the earlier run.
        task, results: `task` of `run.json`, and `eval_results.json`, of the
            run to be judged.
    """
    run = files.read_object(
        str(folder / run_record.RUN_FILE),
        "the earlier run's description",
        run_record.DESCRIPTION,
    )
    earlier = files.read_object(
        str(folder / run_record.RESULTS_FILE),
        "the earlier run's scores",
        collect_runs.RESULTS,
    )
    if run["task"]["name"] != task["name"]:
        raise UserError(
            f"{folder} is a run of the task {run['task']['name']}, expected "
            f"{task['name']}; name another run by --earlier"
        )
    if earlier["dev_data"] != results["dev_data"]:
        raise UserError(
            f"{folder} was scored on other dev rows, so its scores cannot be "
            "compared; name another run by --earlier"
        )
    scores = run_record.scores_in(results)
    texts: dict[str, str] = {}
    for name, value in run_record.scores_in(earlier).items():
        if name in scores:
            texts[name] = f"{value:.4f} ({scores[name] - value:+.4f} since)"
    return Known(
        "earlier run",
        f"The earlier run is {folder.resolve().name}, {run['method']}; “since” "
        "is what this run has more.",
        texts,
    )
