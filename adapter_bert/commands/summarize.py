"""Tables of a sweep's scores, in the forms of Houlsby et al. 2019.

    .venv/bin/adapter-bert summarize RUNS... --output_dir=OUT

A row is the setting (size, learning rate, epochs) with the best mean dev score
over seeds, for each task and kind of tuning, with its standard error. OUT gets
these tables, each as .md, .tex and .csv:

    glue      Table 1: GLUE, with total and trained parameters
    other     Table 2: every other task, and without BERT
    squad     question answering (section 3.5)
    methods   every method with its size that was run on every task but SQuAD:
              scores, parameters, cost

OUT also gets settings.json, all settings with all scores, and hparams/, the
runs for TensorBoard's HParams.
"""

import csv
import dataclasses
import io
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Optional

import adapter_bert.start_tensorflow  # noqa: F401

import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams

from adapter_bert import files
from adapter_bert.reports.baselines import Baseline, find_baselines
from adapter_bert.reports.collect_runs import (
    GLUE,
    GLUE_COLUMNS,
    OMITTED,
    SQUAD,
    TITLES,
    ScoredRun,
    SeedGroup,
    best,
    by_kind,
    by_method,
    check_one_bert,
    find_runs,
    group_by_task,
    main_score,
    notice,
    replace_results,
    runs_parser,
)

NONE = "-"
NO_BERT = "no BERT"
CHOSEN = "chosen and shown on dev sets, among the settings with most seeds"
MEAN = "mean ± standard error (seeds)"


@dataclasses.dataclass(frozen=True)
class TextTable:
    """A table of texts; rows have as many cells as the header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

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


def kinds(seed_groups: Iterable[SeedGroup]) -> dict[str, list[SeedGroup]]:
    """Seed groups by kind, in the order of the tables."""
    groups = by_kind(seed_groups)
    first = [kind for kind in TITLES if kind in groups]
    return {kind: groups[kind] for kind in dict.fromkeys((*first, *groups))}


def title_of(kind: str) -> str:
    """Returns the row or column of the best setting of a kind."""
    title = TITLES.get(kind, kind)
    ending = {"houlsby": ", best size", "top_layers": ", best number"}
    return title + ending.get(kind, "")


def show(seed_group: Optional[SeedGroup], score: str) -> str:
    """Mean, standard error and number of seeds."""
    if seed_group is None or score not in seed_group.runs[0].scores:
        return NONE
    error, count = seed_group.error(score), len(seed_group.runs)
    return f"{seed_group.mean(score):.1f}" + (
        "" if error is None else f" ± {error:.1f} ({count})"
    )


def mean(values: Sequence[float]) -> str:
    """Returns the mean of scores, if there are any."""
    return f"{sum(values) / len(values):.1f}" if values else NONE


def parameters(chosen: Sequence[SeedGroup]) -> tuple[str, str]:
    """Parameters of all tasks as multiples of BERT, and their mean share."""
    shares = [s.runs[0].kept / s.runs[0].bert for s in chosen]
    if not shares:
        return NONE, NONE
    # Full fine-tuning keeps no shared model.
    shared = 0 if chosen[0].method.name == "full" else 1
    share = sum(shares) / len(shares)
    return f"{shared + sum(shares):.2f}×", f"{100 * share:.2f}%"


def show_baselines(
    baselines: dict[str, Baseline], scores: Iterable[tuple[str, str]]
) -> list[str]:
    """Returns the score without BERT of each (task, score)."""
    return [
        f"{baselines[task].scores[score]:.1f}"
        if task in baselines and score in baselines[task].scores
        else NONE
        for task, score in scores
    ]


def mean_of_baselines(
    baselines: dict[str, Baseline], scores: Sequence[tuple[str, str]]
) -> str:
    """Returns the mean over (task, score), if all have a baseline."""
    if any(task not in baselines for task, _ in scores):
        return NONE
    return mean([baselines[task].scores[score] for task, score in scores])


def glue_table(
    by_task: dict[str, list[SeedGroup]],
    fixed_size: int,
    baselines: dict[str, Baseline],
) -> Optional[TextTable]:
    """Table 1: a row for each kind of tuning, and one of baselines, if any.

    None without GLUE.
    """
    check_one_bert({t: s for t, s in by_task.items() if t in GLUE})
    columns = [(t, s) for _, t, s in GLUE_COLUMNS if t in by_task]
    if not columns:
        return None
    # Settings of a task are chosen by its first score.
    tasks = dict(reversed(columns))
    rows: dict[str, dict[str, SeedGroup]] = {}
    for task in dict(columns):
        for kind, seed_groups in kinds(by_task[task]).items():
            names = {title_of(kind): seed_groups}
            if kind == "houlsby":
                names[f"adapters, size {fixed_size}"] = [
                    s for s in seed_groups if s.method.size == fixed_size
                ]
            for name, candidates in names.items():
                chosen = best(candidates, tasks[task])
                if chosen:
                    rows.setdefault(name, {})[task] = chosen
    # As in the paper, means are without WNLI.
    shared = [
        (task, score)
        for task, score in columns
        if task != OMITTED and all(task in row for row in rows.values())
    ]
    cells = []
    if any(task in baselines for task in tasks):
        baseline_rows = show_baselines(baselines, columns)
        average = mean_of_baselines(baselines, shared)
        cells.append((NO_BERT, NONE, NONE, *baseline_rows, average))
    for name, chosen in rows.items():
        cells.append(
            (
                name,
                *parameters([chosen[task] for task in dict(shared)]),
                *(show(chosen.get(task), score) for task, score in columns),
                mean([chosen[task].mean(score) for task, score in shared]),
            )
        )
    titles = [title for title, task, _ in GLUE_COLUMNS if task in by_task]
    return TextTable(
        f"GLUE, {CHOSEN}; {MEAN}; parameters and means are over the columns "
        "that all rows have, without WNLI",
        ("", "parameters", "of a task", *titles, "mean"),
        tuple(cells),
    )


def other_table(
    by_task: dict[str, list[SeedGroup]], baselines: dict[str, Baseline]
) -> Optional[TextTable]:
    """Table 2: a row for each other task, and a column of baselines, if any.

    None without other tasks.
    """
    tasks = [t for t in by_task if t not in GLUE | {*SQUAD, "ax"}]
    if not tasks:
        return None
    check_one_bert({task: by_task[task] for task in tasks})
    scores = {task: main_score(by_task[task]) for task in tasks}
    chosen = {
        task: {
            kind: best(seed_groups, scores[task])
            for kind, seed_groups in kinds(by_task[task]).items()
        }
        for task in tasks
    }
    names = dict.fromkeys(
        kind for by_kind in chosen.values() for kind in by_kind
    )
    columns = [["", *tasks, "mean", "parameters", "of a task"]]
    if any(task in baselines for task in tasks):
        baseline_rows = show_baselines(baselines, scores.items())
        average = mean_of_baselines(baselines, list(scores.items()))
        columns.append([NO_BERT, *baseline_rows, average, NONE, NONE])
    for name in names:
        groups = [chosen[task].get(name) for task in tasks]
        cells = [show(s, scores[t]) for t, s in zip(tasks, groups)]
        ends = [NONE, NONE, NONE]
        # Means over fewer tasks cannot be compared.
        if all(groups):
            means = [s.mean(scores[t]) for t, s in zip(tasks, groups)]
            ends = [mean(means), *parameters(groups)]
        columns.append([title_of(name), *cells, *ends])
    header, *rows = zip(*columns)
    return TextTable(f"Other tasks, {CHOSEN}; {MEAN}", header, tuple(rows))


def squad_table(by_task: dict[str, list[SeedGroup]]) -> Optional[TextTable]:
    """A row for each method with its size; None without SQuAD."""
    rows = []
    for task in (task for task in SQUAD if task in by_task):
        # Its name in SQuAD 1.1 or 2.0.
        exact = "exact_match" if task == SQUAD[0] else "exact"
        for method, seed_groups in by_method(by_task[task]).items():
            chosen = best(seed_groups, "f1")
            run = chosen.runs[0]
            rows.append(
                (
                    method if task == SQUAD[0] else f"{method}, SQuAD 2.0",
                    f"{run.kept:,} ({run.kept / run.bert:.2%})",
                    f"{run.rate:g}",
                    f"{run.epochs:g}",
                    show(chosen, exact),
                    show(chosen, "f1"),
                )
            )
    if not rows:
        return None
    return TextTable(
        f"SQuAD, chosen by F1; {MEAN}",
        ("", "of a task", "learning rate", "epochs", "exact match", "F1"),
        tuple(rows),
    )


def methods_table(by_task: dict[str, list[SeedGroup]]) -> Optional[TextTable]:
    """A row for each method and size that was run on all tasks but SQuAD.

    Methods with most parameters come first. Processor time is of one run of
    each task, memory the greatest of them; both only if no run was resumed.
    None without such a method.
    """
    by_task = {task: s for task, s in by_task.items() if task not in SQUAD}
    check_one_bert(by_task)
    scores = {task: main_score(same) for task, same in by_task.items()}
    methods: dict[str, dict[str, SeedGroup]] = {}
    for task, seed_groups in by_task.items():
        for method, same in by_method(seed_groups).items():
            chosen = best(same, scores[task])
            if chosen:
                methods.setdefault(method, {})[task] = chosen
    rows = []
    for method, chosen in methods.items():
        lacks = ", ".join(task for task in by_task if task not in chosen)
        if lacks:
            notice(f"{method} is left out of `methods`, for it lacks {lacks}")
            continue
        runs = [chosen[task].runs[0] for task in by_task]
        kept = sum(run.kept for run in runs) / len(runs)
        costs = [
            next((run.cost for run in chosen[task].runs if run.cost), None)
            for task in by_task
        ]
        took = memory = NONE
        if all(costs):
            seconds = sum(cost["processor_seconds"] for cost in costs)
            took = f"{seconds / 60:.1f} min"
            most = max(cost["peak_memory_bytes"] for cost in costs)
            memory = f"{most / 2**30:.2f} GiB"
        cells = (
            method,
            ", ".join(dict.fromkeys(f"{run.rate:g}" for run in runs)),
            f"{kept:,.0f} ({kept / runs[0].bert:.2%})",
            *(show(chosen[task], score) for task, score in scores.items()),
            mean(
                [
                    chosen[task].mean(score)
                    for task, score in scores.items()
                    if task != OMITTED or len(by_task) == 1
                ]
            ),
            took,
            memory,
        )
        rows.append((kept, cells))
    if not rows:
        return None
    return TextTable(
        f"Methods that were run on every task, {CHOSEN}; {MEAN}",
        (
            "",
            "learning rate",
            "parameters of a task",
            *(f"{task} ({score})" for task, score in scores.items()),
            "mean",
            "processor time, all tasks",
            "peak memory",
        ),
        tuple(cells for _, cells in sorted(rows, reverse=True)),
    )


def settings_json(by_task: dict[str, list[SeedGroup]]) -> list[dict]:
    """All settings with all scores of every seed."""
    settings = []
    for task, seed_groups in by_task.items():
        for runs in (seed_group.runs for seed_group in seed_groups):
            seeds = {
                str(run.seed): {k: round(v, 4) for k, v in run.scores.items()}
                for run in runs
            }
            settings.append(
                {
                    "task": task,
                    "method": str(runs[0].method),
                    "learning_rate": runs[0].rate,
                    "epochs": runs[0].epochs,
                    "kept": runs[0].kept,
                    "bert": runs[0].bert,
                    "conditions": json.loads(runs[0].conditions),
                    "costs": [run.cost for run in runs],
                    "seeds": seeds,
                }
            )
    return settings


def hparams_files(runs: Iterable[ScoredRun]) -> dict[str, bytes]:
    """A trial of each run, for TensorBoard's HParams, by file."""
    contents = {}
    with files.temporary_folder() as scratch:
        for number, run in enumerate(runs):
            folder = pathlib.Path(scratch) / f"{number}"
            writer = tf.summary.create_file_writer(str(folder))
            with writer.as_default():
                hparams.hparams(
                    {
                        "task": run.task,
                        "method": str(run.method),
                        "learning_rate": run.rate,
                        "epochs": run.epochs,
                        "seed": run.seed,
                        "parameters": run.kept,
                    },
                    trial_id=str(run.folder),
                )
                score = main_score([SeedGroup((run,))])
                tf.summary.scalar("score", run.scores[score], 0)
            writer.close()
            for path in folder.iterdir():
                contents[f"hparams/{number}/{path.name}"] = path.read_bytes()
    return contents


def main() -> None:
    """Writes all tables, and deletes its earlier ones."""
    parser = runs_parser(__doc__, "tables")
    parser.add_argument(
        "--fixed_size",
        type=int,
        default=64,
        help="adapter size of Table 1's third row; default: %(default)s",
    )
    arguments = parser.parse_args()
    runs = find_runs(arguments.runs)
    by_task = group_by_task(runs)
    baselines = find_baselines(arguments.runs, runs)
    contents = {}
    tables = {
        "glue": glue_table(by_task, arguments.fixed_size, baselines),
        "other": other_table(by_task, baselines),
        "squad": squad_table(by_task),
        "methods": methods_table(by_task),
    }
    tables = {name: table for name, table in tables.items() if table}
    for name, table in tables.items():
        contents[f"{name}.md"] = table.to_markdown().encode()
        contents[f"{name}.tex"] = table.to_latex().encode()
        contents[f"{name}.csv"] = table.to_csv().encode()
    contents["settings.json"] = files.json_text(settings_json(by_task)).encode()
    contents.update(hparams_files(runs))
    replace_results(arguments.output_dir, "summarize", contents)
    for table in tables.values():
        print(table.to_markdown())
    print(f"tables of {len(runs)} runs are in {arguments.output_dir}")
