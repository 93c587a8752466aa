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

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Optional

import adapter_bert.start_tensorflow  # noqa: F401

import pandas
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams

from adapter_bert import files, flags
from adapter_bert.flags import Topic
from adapter_bert.reports.baselines import find_baselines
from adapter_bert.reports.collect_runs import (
    GLUE,
    GLUE_COLUMNS,
    NONE,
    OMITTED,
    SQUAD,
    TITLES,
    Output,
    check_one_bert,
    choose,
    find_runs,
    notice,
    of_usual_scale,
    read_arguments,
    replace_results,
    settings_of,
    show_score,
)

NO_BERT = "no BERT"
CHOSEN = "chosen and shown on dev sets, among the settings with most seeds"
MEAN = "mean ± standard error (seeds)"
# Rows of the best setting of a kind; other kinds have their own names.
ROWS = {
    **TITLES,
    "houlsby": f"{TITLES['houlsby']}, best size",
    "top_layers": f"{TITLES['top_layers']}, best number",
}
# Scores without BERT, by task and score.
Baselines = Mapping[str, Mapping[str, float]]
# A column's title, its task and score.
Columns = Sequence[tuple[str, str, str]]


def to_markdown(title: str, table: pandas.DataFrame) -> str:
    """Writes a pipe table."""
    rows = table.reset_index().to_numpy().tolist()
    lines = ["", *table], ["---"] * (1 + len(table.columns)), *rows
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{title}\n\n{body}\n"


def to_latex(title: str, table: pandas.DataFrame) -> str:
    """Writes a tabular between booktabs' rules."""
    rows = table.reset_index().to_numpy().tolist()
    header, *rows = (
        " & ".join(map(_latex, row)) + r" \\" for row in (["", *table], *rows)
    )
    columns = "l" + "r" * len(table.columns)
    lines = [
        f"% {title}",
        rf"\begin{{tabular}}{{{columns}}}",
        *(r"\toprule", header, r"\midrule", *rows, r"\bottomrule"),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex(cell: str) -> str:
    for character in r"%_&#${}":
        cell = cell.replace(character, "\\" + character)
    cell = cell.replace("^", r"\^{}").replace("~", r"\~{}")
    return cell.replace("±", r"$\pm$").replace("×", r"$\times$")


def parameters(kept: float, bert: float) -> str:
    """Writes a number of parameters and its share of BERT's."""
    return f"{kept:,.0f} ({kept / bert:.2%})"


def score_table(
    chosen: pandas.DataFrame,
    columns: Columns,
    shared: Columns,
    baselines: Baselines = (),
) -> pandas.DataFrame:
    """Makes a table of texts of chosen settings, and of baselines if any.

    Args:
        chosen: settings; `row` names the row of each.
        columns: those of scores.
        shared: columns that the mean and the parameters are over: of all
            tasks as multiples of BERT, and the mean share of a task. A row
            that lacks one of them has neither.
        baselines: a row.

    Returns:
        Columns, `mean`, `parameters`, `of a task`.
    """
    rows = [
        {"task": t, "row": NO_BERT} for _, t, _ in columns if t in baselines
    ]
    for row in rows:
        scores = baselines[row["task"]].items()
        row.update((f"mean {name}", score) for name, score in scores)
    ranks = dict(zip(ROWS, range(len(ROWS))))
    chosen = chosen.sort_values(
        "kind",
        kind="stable",
        key=lambda kinds: kinds.map(ranks).fillna(len(ranks)),
    )
    chosen = pandas.concat([pandas.DataFrame(rows), chosen])
    table = pandas.DataFrame(index=chosen.row.unique())
    means, shares = table.copy(), table.copy()
    for title, task, score in columns:
        of_task = chosen[chosen.task == task].drop_duplicates("row")
        of_task = of_task.set_index("row")
        table[title] = of_task.apply(show_score, axis=1, score=score)
        if (title, task, score) in shared:
            means[title] = of_task.get(f"mean {score}", float("nan"))
            shares[task] = of_task.kept / of_task.bert
    # Full fine-tuning keeps no shared model.
    full = chosen[chosen.family == "full"].row
    total = shares.sum(axis=1, skipna=False, min_count=1) + ~table.index.isin(
        full
    )
    for title, values, form in (
        ("mean", means.mean(axis=1, skipna=False), "{:.1f}"),
        ("parameters", total, "{:.2f}×"),
        ("of a task", 100 * shares.mean(axis=1, skipna=False), "{:.2f}%"),
    ):
        table[title] = values.map(form.format, na_action="ignore")
    return table.astype(object).fillna(NONE)


def glue_table(
    settings: pandas.DataFrame, fixed_size: int, baselines: Baselines
) -> Optional[pandas.DataFrame]:
    """Table 1: a row for each kind of tuning, and one of baselines, if any.

    None without GLUE.
    """
    settings = settings[settings.task.isin(GLUE)]
    if settings.empty:
        return None
    check_one_bert(settings)
    columns = [x for x in GLUE_COLUMNS if x[1] in set(settings.task)]
    usual = of_usual_scale(settings)
    fixed = usual[(usual.kind == "houlsby") & (usual["size"] == fixed_size)]
    name = f"adapters, size {fixed_size}"
    candidates = [usual.assign(row=usual.kind.replace(ROWS))]
    if len(fixed):
        candidates.append(fixed.assign(row=name))
    chosen = choose(pandas.concat(candidates, ignore_index=True), "row")
    # As in the paper, means are without WNLI.
    rows = chosen.groupby("task").row.nunique()
    shared = [
        x for x in columns if x[1] != OMITTED and rows[x[1]] == rows.max()
    ]
    table = score_table(chosen, columns, shared, baselines)
    *scores, mean, parameters, share = table
    return table[[parameters, share, *scores, mean]]


def other_table(
    settings: pandas.DataFrame, baselines: Baselines
) -> Optional[pandas.DataFrame]:
    """Table 2: a row for each other task, and a column of baselines, if any.

    None without other tasks.
    """
    settings = settings[~settings.task.isin([*GLUE, *SQUAD, "ax"])]
    if settings.empty:
        return None
    check_one_bert(settings)
    settings = settings.assign(row=settings.kind.replace(ROWS))
    columns = _main_columns(settings)
    chosen = choose(of_usual_scale(settings), "row")
    return score_table(chosen, columns, columns, baselines).T


def _main_columns(settings: pandas.DataFrame) -> Columns:
    firsts = settings.drop_duplicates("task")
    return [*zip(firsts.task, firsts.task, firsts.main)]


def squad_table(settings: pandas.DataFrame) -> Optional[pandas.DataFrame]:
    """Makes a row for each method with its size; None without SQuAD."""
    rows = {}
    for task, exact in zip(SQUAD, ("exact_match", "exact")):
        for _, chosen in choose(
            settings[settings.task == task], "title"
        ).iterrows():
            name = chosen.title + ("" if task == SQUAD[0] else ", SQuAD 2.0")
            rows[name] = {
                "of a task": parameters(chosen.kept, chosen.bert),
                "learning rate": f"{chosen.rate:g}",
                "epochs": f"{chosen.epochs:g}",
                "exact match": show_score(chosen, exact),
                "F1": show_score(chosen, "f1"),
            }
    return pandas.DataFrame.from_dict(rows, "index") if rows else None


def methods_table(settings: pandas.DataFrame) -> Optional[pandas.DataFrame]:
    """Makes a row for each method and size that was run on all tasks but SQuAD.

    Methods with most parameters come first. Processor time is of one run of
    each task, memory the greatest of them; both only if no run was resumed.
    None without such a method.
    """
    settings = settings[~settings.task.isin(SQUAD)]
    if settings.empty:
        return None
    check_one_bert(settings)
    columns = _main_columns(settings)
    more, kept = {}, {}
    chosen = choose(settings, "title")
    for method, same in chosen.groupby("title", sort=False):
        lacks = [task for _, task, _ in columns if task not in set(same.task)]
        if lacks:
            lacks = ", ".join(lacks)
            notice(f"{method} is left out of `methods`, for it lacks {lacks}")
            continue
        kept[method] = same.kept.mean()
        costs = [next(filter(None, cost), None) for cost in same.cost]
        seconds = memory = NONE
        if all(costs):
            costs = pandas.DataFrame(costs)
            seconds = f"{costs.processor_seconds.sum() / 60:.1f} min"
            if costs.peak_memory_bytes.notna().all():
                memory = f"{costs.peak_memory_bytes.max() / 2**30:.2f} GiB"
        rates = ", ".join(dict.fromkeys(f"{rate:g}" for rate in same.rate))
        share = parameters(kept[method], same.bert.iloc[0])
        more[method] = rates, share, seconds, memory
    if not kept:
        return None
    titles = [(f"{task} ({score})", task, score) for task, _, score in columns]
    shared = [x for x in titles if x[1] != OMITTED or len(titles) == 1]
    chosen = chosen[chosen.title.isin(kept)]
    table = score_table(chosen.assign(row=chosen.title), titles, shared)
    table = table.drop(columns=["parameters", "of a task"])
    rates, shares, seconds, memories = zip(*map(more.get, table.index))
    table.insert(0, "learning rate", rates)
    table.insert(1, "parameters of a task", shares)
    table["processor time, all tasks"] = seconds
    table["peak memory"] = memories
    return table.loc[sorted(kept, key=lambda x: (kept[x], x), reverse=True)]


def settings_json(settings: pandas.DataFrame) -> list[dict]:
    """Lists all settings with all scores of every seed."""
    return [
        {
            "task": setting["task"],
            "method": setting["method"],
            "learning_rate": setting["rate"],
            "epochs": setting["epochs"],
            "kept": setting["kept"],
            "bert": setting["bert"],
            "conditions": json.loads(setting["conditions"]),
            "costs": setting["cost"],
            "seeds": {
                str(seed): {k: round(v, 4) for k, v in scores.items()}
                for seed, scores in zip(setting["seed"], setting["scores"])
            },
        }
        for setting in settings.to_dict("records")
    ]


def hparams_files(runs: pandas.DataFrame) -> dict[str, bytes]:
    """Writes a trial of each run, for TensorBoard's HParams, by file."""
    contents = {}
    with files.temporary_folder() as scratch:
        for number, run in enumerate(runs.to_dict("records")):
            folder = pathlib.Path(scratch) / f"{number}"
            writer = tf.summary.create_file_writer(str(folder))
            with writer.as_default():
                hparams.hparams(
                    {
                        "task": run["task"],
                        "method": run["method"],
                        "learning_rate": run["rate"],
                        "epochs": run["epochs"],
                        "seed": run["seed"],
                        "parameters": run["kept"],
                    },
                    trial_id=str(run["folder"]),
                )
                tf.summary.scalar("score", run["scores"][run["main"]], 0)
            writer.close()
            for path in folder.iterdir():
                contents[f"hparams/{number}/{path.name}"] = path.read_bytes()
    return contents


@dataclasses.dataclass(frozen=True)
class Tables(Output):
    """Says what tables show."""

    fixed_size: int = Topic.TO_DO.setting(
        64, "Adapter size of the third row of Table 1.", flags.POSITIVE
    )


def main() -> None:
    """Writes all tables, and deletes its earlier ones."""
    options, folders = read_arguments(Tables, __doc__)
    runs = find_runs(folders)
    settings = settings_of(runs)
    baselines = find_baselines(folders, runs)
    contents, texts = {}, []
    for name, title, table in (
        (
            "glue",
            f"GLUE, {CHOSEN}; {MEAN}; parameters and means are over the "
            "columns that all rows have, without WNLI",
            glue_table(settings, options.fixed_size, baselines),
        ),
        (
            "other",
            f"Other tasks, {CHOSEN}; {MEAN}",
            other_table(settings, baselines),
        ),
        ("squad", f"SQuAD, chosen by F1; {MEAN}", squad_table(settings)),
        (
            "methods",
            f"Methods that were run on every task, {CHOSEN}; {MEAN}",
            methods_table(settings),
        ),
    ):
        if table is not None:
            texts.append(to_markdown(title, table))
            contents[f"{name}.md"] = texts[-1].encode()
            contents[f"{name}.tex"] = to_latex(title, table).encode()
            contents[f"{name}.csv"] = table.to_csv(index_label="").encode()
    contents["settings.json"] = files.json_text(
        settings_json(settings)
    ).encode()
    contents.update(hparams_files(runs))
    replace_results(options.output_dir, "summarize", contents)
    print(*texts, sep="\n")
    print(f"tables of {len(runs)} runs are in {options.output_dir}")
