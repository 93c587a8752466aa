r"""Measures `adapter-bert library suggest` by leaving each task out.

    .venv/bin/python -m lab.suggested_adapters cola=$GLUE_DIR/CoLA/train.tsv \
        mrpc=$GLUE_DIR/MRPC/train.tsv rte=$GLUE_DIR/RTE/train.tsv \
        sst2=$GLUE_DIR/SST-2/train.tsv stsb=$GLUE_DIR/STS-B/train.tsv \
        sms=SMSSpamCollection rotten=rotten_tomatoes/train.tsv \
        --kept=out/suggested \
        --init_checkpoint=$(.venv/bin/adapter-bert minilm)

Of each file 2,000 rows train an adapter, and 250 other rows are the dev set.
Then each task is trained on the first 200 of its 2,000 rows, from nothing and
from each other task's adapter. The regret of a choice is the best of these dev
scores less the score of what was chosen. `suggest` sees the same 200 rows.
--kept is a folder that keeps trainings and scores, so the program goes on where
it was stopped. Prints a table, and writes `suggested.json` into this folder.
"""

import argparse
import itertools
import pathlib
import shutil
from typing import Dict, List

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import command_line, files
from adapter_bert.data.tables import Layout, SplitFiles, read_rows
from adapter_bert.methods import registry
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.library import AdapterLibrary
from adapter_bert.serving.suggestion import rank
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.task import cell, write_table
from adapter_bert.tasks.text_task import TextTask
from adapter_bert.training import experiment as experiments
from adapter_bert.training.settings import Experiment, Training

LAYOUTS = {
    "cola": Layout(3, label=1, header=False),
    "mrpc": Layout("#1 String", "#2 String", label="Quality"),
    "sst2": Layout("sentence", label="label"),
    "rte": Layout("sentence1", "sentence2", label="label"),
    "stsb": Layout("sentence1", "sentence2", label="score"),
    "sms": Layout(1, label=0, header=False),
    "rotten": Layout(1, label=0, header=False),
}
# From the corpus with the most rows to the one with the fewest.
BY_SIZE = ("sst2", "cola", "rotten", "stsb", "sms", "mrpc", "rte")
NUMBERS = "stsb"
METHOD = "houlsby(size=64)"
# Rows of an adapter's training, of a target's, and of each dev set.
MANY, FEW, DEV = 2000, 200, 250
# In tokens.
LENGTH = 64
SEED = 1
OF_MANY = {"batch_size": 32, "epochs": 2.0}
OF_FEW = {"batch_size": 16, "epochs": 3.0}
SHARED = {"learning_rate": 1e-3, "adam_bias_correction": True, "seed": SEED}
# In place of an adapter.
NOTHING = "nothing"


def divide(name: str, path: str, kept: pathlib.Path) -> None:
    """Writes a corpus's rows `many`, `few` and `dev` as tables of one form."""
    # SMS spam's name has no ending.
    copy = kept / f"{name}.tsv"
    shutil.copyfile(path, copy)
    rows = read_rows(str(copy), LAYOUTS[name])
    order = np.random.default_rng(SEED).permutation(len(rows))
    texts = [x for x in (rows.text_a, rows.text_b) if x is not None]
    header = ("text", "text_b")[: len(texts)]
    for part, first, last in (
        ("many", 0, MANY),
        ("few", 0, FEW),
        ("dev", MANY, MANY + DEV),
    ):
        table = [
            (*(cell(text[row]) for text in texts), rows.label[row])
            for row in order[first:last]
        ]
        path = str(kept / f"{name}_{part}.tsv")
        write_table(path, [(*header, "label"), *table])


def task_of(name: str, kept: pathlib.Path, train: str) -> TextTask:
    """The task of a corpus on its rows `many` or `few`."""
    return custom_task(
        text_b_column="text_b" if LAYOUTS[name].text_b is not None else None,
        regression=name == NUMBERS,
        split_files=SplitFiles(
            str(kept / f"{name}_{train}.tsv"), str(kept / f"{name}_dev.tsv")
        ),
    )


def train(
    task: TextTask,
    init_checkpoint: str,
    output_dir: pathlib.Path,
    length: Dict[str, float],
    init_adapter: str = "",
) -> float:
    """Trains, and gives the dev score at the end.

    It is macro F1, of numbers Pearson's correlation.
    """
    method = registry.parse(METHOD)
    found = experiments.run(
        Experiment(
            task,
            method,
            METHOD,
            {},
            max_seq_length=LENGTH,
            eval_batch_size=32,
            do_train=True,
            do_eval=True,
            output_dir=str(output_dir),
            init_checkpoint=init_checkpoint,
            init_adapter=init_adapter,
            # Trainings that follow one another share the process.
            engine="strategy",
            compute_dtype="bfloat16",
            training=Training(**length, **SHARED),
        )
    )
    return found["eval_macro_f1" if task.chooses_one else "eval_pearson"]


def tau(first: List[float], second: List[float]) -> float:
    """Kendall's rank correlation (tau-a)."""
    pairs = list(itertools.combinations(range(len(first)), 2))
    return float(
        np.mean(
            [
                np.sign(first[i] - first[j]) * np.sign(second[i] - second[j])
                for i, j in pairs
            ]
        )
    )


def summarize(scores: Dict[str, float], logme: Dict[str, float]) -> dict:
    """The regrets of choices for one target, and the rank correlation.

    Both arguments are by start, of which `NOTHING` is one.
    """
    best = max(scores.values())
    suggested = max(logme, key=logme.__getitem__)
    biggest = next(name for name in BY_SIZE if name in scores)
    return {
        "scores": scores,
        "logme": logme,
        "suggested": suggested,
        "regret": {
            "suggested": best - scores[suggested],
            "random": best - float(np.mean(list(scores.values()))),
            "biggest": best - scores[biggest],
            NOTHING: best - scores[NOTHING],
        },
        "tau": tau([*logme.values()], [scores[name] for name in logme]),
    }


def measure(
    corpora: Dict[str, str], init_checkpoint: str, kept: pathlib.Path
) -> dict:
    """For each target a summary, as of `summarize`."""
    scores_file = str(kept / "scores.json")
    known = {}
    if files.exists(scores_file):
        known = files.read_object(scores_file, "scores", {})
    library = AdapterLibrary(str(kept / "shelf"), create=True)
    for name, path in corpora.items():
        divide(name, path, kept)
    for name in corpora:
        if name not in library.names():
            own = task_of(name, kept, "many")
            train(own, init_checkpoint, kept / name, OF_MANY)
            library.add(str(kept / name), name)
    for target in corpora:
        own = task_of(target, kept, "few")
        of_target = known.setdefault(target, {})
        for start in (NOTHING, *corpora):
            if start in (target, *of_target):
                continue
            folder = "" if start == NOTHING else library.folder(start)
            with files.temporary_folder() as place:
                run = pathlib.Path(place) / "run"
                of_target[start] = train(
                    own, init_checkpoint, run, OF_FEW, folder
                )
            files.write_json(scores_file, known)
            print(f"{target} from {start}: {of_target[start]:.4f}", flush=True)
    bert = FrozenBert.open(init_checkpoint)
    found = {}
    for target in corpora:
        own, rows = task_of(target, kept, "few").read("", ["train"])
        few = rows["train"]
        ranked = rank(bert, library, own.learn(few), few, LENGTH)
        logme = {c.name or NOTHING: c.logme for c in ranked}
        logme.pop(target)
        found[target] = summarize(known[target], logme)
    return found


def main() -> None:
    """Measures the named files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpora", nargs="+")
    parser.add_argument("--init_checkpoint", required=True)
    parser.add_argument("--kept", type=pathlib.Path, required=True)
    asked = parser.parse_args()
    asked.kept.mkdir(parents=True, exist_ok=True)
    corpora = dict(text.split("=", 1) for text in asked.corpora)
    found = measure(corpora, asked.init_checkpoint, asked.kept)
    files.write_json(str(asked.kept / "suggested.json"), found)
    for target, about in found.items():
        regrets = " ".join(
            f"{choice} {regret:.3f}"
            for choice, regret in about["regret"].items()
        )
        print(
            f"{target}: {about['suggested']}; regrets: {regrets}; "
            f"tau {about['tau']:.2f}"
        )


if __name__ == "__main__":
    command_line.run(main)
