"""Tables of what a sweep came to, in the forms of Houlsby et al. 2019.

    python -m scripts.summarize RUNS... --output_dir=OUT

Of each task and kind of tuning, the setting (size, learning rate, epochs) with
the best mean score over seeds is chosen, on the dev set, and shown with its
standard error. Writes into OUT, each as .md, .tex and .csv:

    glue      Table 1: GLUE, with total and trained parameters
    other     Table 2: every other classification task
    squad     question answering (section 3.5)

as well as settings.json, all settings with all scores, and hparams/, the runs
for TensorBoard's HParams.
"""

import argparse
import csv
import dataclasses
import io
import os
import pathlib
import shutil
import sys
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402
from tensorboard.plugins.hparams import api as hparams  # noqa: E402

import files  # noqa: E402
from errors import UserError  # noqa: E402
from scripts.collect_runs import (  # noqa: E402
    GLUE_COLUMNS,
    Run,
    Setting,
    best,
    find_runs,
    group,
    main_score,
    with_default_start,
)

GLUE_TASKS = {task for _, task, _ in GLUE_COLUMNS}
NONE = "-"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        title: what it shows.
        header: of the columns.
        rows: as many cells as the header has.
    """

    title: str
    header: Tuple[str, ...]
    rows: Tuple[Tuple[str, ...], ...]

    def to_markdown(self) -> str:
        """A pipe table."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{self.title}\n\n{body}\n"

    def to_latex(self) -> str:
        """A tabular between booktabs' rules."""
        lines = [
            rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
            r"\toprule",
            " & ".join(map(_latex, self.header)) + r" \\",
            r"\midrule",
            *(" & ".join(map(_latex, row)) + r" \\" for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join([f"% {self.title}", *lines]) + "\n"

    def to_csv(self) -> str:
        """Comma-separated, with the header."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [self.header, *self.rows]
        )
        return text.getvalue()


def _latex(cell: str) -> str:
    for character in r"%_&#":
        cell = cell.replace(character, "\\" + character)
    return cell.replace("±", r"$\pm$").replace("×", r"$\times$")


def kinds(settings: Iterable[Setting]) -> Dict[str, List[Setting]]:
    """Settings by the kind of tuning, in the tables' order.

    Other initial scales than the default are no part of the choice.
    """
    found: Dict[str, List[Setting]] = {}
    for setting in settings:
        found.setdefault(setting.method.name, []).append(setting)
    found = {kind: with_default_start(same) for kind, same in found.items()}
    order = ["full", "houlsby", "top_layers"]
    return dict(
        sorted(
            found.items(),
            key=lambda item: order.index(item[0]) if item[0] in order else 9,
        )
    )


def show(setting: Optional[Setting], score: str) -> str:
    """Mean, standard error and number of seeds."""
    if setting is None or score not in setting.runs[0].scores:
        return NONE
    error, count = setting.error(score), len(setting.runs)
    return f"{setting.mean(score):.1f}" + (
        "" if error is None else f" ± {error:.1f} ({count})"
    )


def parameters(chosen: Sequence[Setting]) -> Tuple[str, str]:
    """Parameters of all tasks as multiples of BERT, and trained per task."""
    shares = [s.runs[0].trained / s.runs[0].bert for s in chosen]
    if not shares:
        return NONE, NONE
    # Full fine-tuning keeps no shared model.
    shared = 0 if chosen[0].method.name == "full" else 1
    mean = sum(shares) / len(shares)
    return f"{shared + sum(shares):.2f}×", f"{100 * mean:.2f}%"


def glue_table(
    groups: Dict[str, List[Setting]], fixed_size: int
) -> Optional[Table]:
    """Table 1: a row for each kind of tuning; None without GLUE."""
    columns = [column for column in GLUE_COLUMNS if column[1] in groups]
    if not columns:
        return None
    # In the columns' order, with the score by which a task is chosen.
    tasks = {}
    for _, task, score in columns:
        tasks.setdefault(task, score)
    rows: Dict[str, Dict[str, Setting]] = {}
    for task, score in tasks.items():
        for kind, settings in kinds(groups[task]).items():
            names = {kind: settings}
            if kind == "houlsby":
                names = {
                    "adapters, best size": settings,
                    f"adapters, size {fixed_size}": [
                        s for s in settings if s.method.size == fixed_size
                    ],
                }
            elif kind == "full":
                names = {"full fine-tuning": settings}
            elif kind == "top_layers":
                names = {"top layers, best number": settings}
            for name, candidates in names.items():
                chosen = best(candidates, score)
                if chosen:
                    rows.setdefault(name, {})[task] = chosen
    # Means and parameters are over what every row has.
    shared = [c for c in columns if all(c[1] in row for row in rows.values())]
    shared_tasks = dict.fromkeys(task for _, task, _ in shared)
    cells = []
    for name, chosen in rows.items():
        means = [chosen[task].mean(score) for _, task, score in shared]
        cells.append(
            (
                name,
                *parameters([chosen[task] for task in shared_tasks]),
                *(show(chosen.get(task), score) for _, task, score in columns),
                f"{sum(means) / len(means):.1f}" if means else NONE,
            )
        )
    titles = [title for title, _, _ in columns]
    return Table(
        "GLUE, dev sets (chosen on dev among the settings with most seeds); "
        "mean ± standard error (seeds); parameters and means are over the "
        "columns that all rows have",
        ("", "parameters", "trained", *titles, "mean"),
        tuple(cells),
    )


def other_table(groups: Dict[str, List[Setting]]) -> Optional[Table]:
    """Table 2: a row for each other task; None without one."""
    tasks = [t for t in groups if t not in GLUE_TASKS | {"squad", "ax"}]
    if not tasks:
        return None
    titles = {
        "full": "full fine-tuning",
        "top_layers": "top layers, best number",
        "houlsby": "adapters, best size",
    }
    names = list(kinds(s for task in tasks for s in groups[task]))
    scores = {task: main_score(groups[task]) for task in tasks}
    chosen: Dict[str, Dict[str, Setting]] = {
        task: {
            kind: best(settings, scores[task])
            for kind, settings in kinds(groups[task]).items()
        }
        for task in tasks
    }
    rows = [
        (task, *(show(chosen[task].get(name), scores[task]) for name in names))
        for task in tasks
    ]
    means, counts, shares = ["mean"], ["parameters"], ["trained"]
    for name in names:
        settings = [
            chosen[task][name] for task in tasks if chosen[task].get(name)
        ]
        if len(settings) == len(tasks):
            values = [s.mean(scores[t]) for t, s in zip(tasks, settings)]
            means.append(f"{sum(values) / len(values):.1f}")
        else:
            means.append(NONE)
        total, share = parameters(settings)
        counts.append(total)
        shares.append(share)
    return Table(
        "Other tasks, dev sets (chosen on dev among the settings with most "
        "seeds); mean ± standard error (seeds)",
        ("", *(titles.get(name, name) for name in names)),
        (*rows, tuple(means), tuple(counts), tuple(shares)),
    )


def squad_table(groups: Dict[str, List[Setting]]) -> Optional[Table]:
    """A row for each method with its size; None without SQuAD."""
    if "squad" not in groups:
        return None
    methods: Dict[str, List[Setting]] = {}
    for setting in groups["squad"]:
        two = "HasAns_f1" in setting.runs[0].scores
        name = f"{setting.method}{', SQuAD 2.0' if two else ''}"
        methods.setdefault(name, []).append(setting)
    rows = []
    for method, settings in methods.items():
        chosen = best(settings, "f1")
        run = chosen.runs[0]
        # SQuAD 1.1's name of it, or 2.0's.
        exact = "exact_match" if "exact_match" in run.scores else "exact"
        rows.append(
            (
                method,
                f"{run.trained:,} ({run.trained / run.bert:.2%})",
                f"{run.rate:g}",
                f"{run.epochs:g}",
                show(chosen, exact),
                show(chosen, "f1"),
            )
        )
    return Table(
        "SQuAD (settings chosen by F1); mean ± standard error (seeds)",
        ("", "trained", "learning rate", "epochs", "exact match", "F1"),
        tuple(rows),
    )


def settings_json(groups: Dict[str, List[Setting]]) -> List[Dict]:
    """All settings with all scores of every seed."""
    return [
        {
            "task": task,
            "method": str(setting.method),
            "learning_rate": setting.runs[0].rate,
            "epochs": setting.runs[0].epochs,
            "trained": setting.runs[0].trained,
            "bert": setting.runs[0].bert,
            "seeds": {
                str(run.seed): {
                    name: round(value, 4) for name, value in run.scores.items()
                }
                for run in setting.runs
            },
        }
        for task, settings in groups.items()
        for setting in settings
    ]


def write_hparams(runs: Iterable[Run], folder: str) -> None:
    """A trial of each run, for TensorBoard's HParams."""
    for number, run in enumerate(runs):
        writer = tf.summary.create_file_writer(
            os.path.join(folder, f"{number}")
        )
        with writer.as_default():
            hparams.hparams(
                {
                    "task": run.task,
                    "method": str(run.method),
                    "learning_rate": run.rate,
                    "epochs": run.epochs,
                    "seed": run.seed,
                    "trained_parameters": run.trained,
                },
                trial_id=str(run.folder),
            )
            score = main_score([Setting((run,))])
            tf.summary.scalar("score", run.scores[score], 0)
        writer.close()


def main() -> None:
    """Reads the runs and writes all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="folders with runs below")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument(
        "--fixed_size", type=int, default=64, help="of Table 1's third row"
    )
    arguments = parser.parse_args()
    try:
        write_all(arguments.runs, arguments.output_dir, arguments.fixed_size)
    except UserError as error:
        sys.exit(f"error: {error}")


def write_all(folders: Sequence[str], output: str, fixed_size: int) -> None:
    """Writes all tables, and takes away those of earlier runs.

    Raises:
        UserError: there are no runs, or nothing can be written.
    """
    runs = find_runs(folders)
    groups = group(runs)
    files.prepare_folder(output, 0)
    out = pathlib.Path(output)
    for name, table in (
        ("glue", glue_table(groups, fixed_size)),
        ("other", other_table(groups)),
        ("squad", squad_table(groups)),
    ):
        for ending, form in (
            ("md", Table.to_markdown),
            ("tex", Table.to_latex),
            ("csv", Table.to_csv),
        ):
            path = out / f"{name}.{ending}"
            if table:
                files.write_text(str(path), form(table))
            else:
                path.unlink(missing_ok=True)
        if table:
            print(table.to_markdown())
    files.write_json(str(out / "settings.json"), settings_json(groups))
    shutil.rmtree(out / "hparams", ignore_errors=True)
    write_hparams(runs, str(out / "hparams"))
    print(f"tables of {len(runs)} runs are in {out}")


if __name__ == "__main__":
    main()
