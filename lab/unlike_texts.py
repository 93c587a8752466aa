r"""Measures how well novelty tells one task's texts from another's.

    .venv/bin/python -m lab.unlike_texts --glue=$GLUE_DIR \
        --sms=SMSSpamCollection --kept=out/unlike \
        --init_checkpoint=$(.venv/bin/adapter-bert minilm)

An adapter is trained for each task, with `--score_novelty`. It answers dev rows
of its own task, and those of each other task in the form of its own: of a pair
the first text, or two single texts as a pair. The area under the ROC curve
(AUROC) is the share of pairs of an own row and another one in which the other
one scores higher: 0.5 by chance. Beside novelty stands 1 less the probability
of the answer (Hendrycks and Gimpel 2017), where a task has labels. SMS spam has
no dev set: every fifth row is one. --kept is a folder of the runs, which go on
where they ended. Prints a table, and writes `unlike.json` into this folder.
"""

import argparse
import pathlib
import shutil
from typing import Any, Dict, List, Optional, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
from sklearn.metrics import roc_auc_score

import adapter_bert
from adapter_bert import command_line, files
from adapter_bert.data.tables import Layout, Rows, read_rows

LAYOUTS = {
    "SST-2": Layout("sentence", label="label"),
    "CoLA": Layout(3, label=1, header=False),
    "MRPC": Layout(3, 4, label=0),
    "RTE": Layout(1, 2, label=3),
    "STS-B": Layout(7, 8, label=9),
    "SMS spam": Layout(1, label=0, header=False),
}
REGRESSION = ("STS-B",)
TRAIN_ROWS, DEV_ROWS = 2000, 400
TRAINING = {
    "tuning_method": "houlsby(layers='3-5')",
    "max_seq_length": 64,
    "num_train_epochs": 2,
    "learning_rate": 1e-3,
    "seed": 1,
    "score_novelty": True,
}
Texts = List[Tuple[str, ...]]


def read(
    name: str, glue: pathlib.Path, sms: pathlib.Path, kept: pathlib.Path
) -> Tuple[Rows, Rows]:
    """Training rows and dev rows of a task."""
    if name == "SMS spam":
        # Its name has no ending.
        table = kept / "sms.tsv"
        shutil.copyfile(sms, table)
        rows = read_rows(str(table), LAYOUTS[name])
        is_dev = np.arange(len(rows)) % 5 == 0
        found = rows.take(~is_dev), rows.take(is_dev)
    else:
        train, dev = (
            read_rows(str(glue / name / f"{split}.tsv"), LAYOUTS[name])
            for split in ("train", "dev")
        )
        found = train, dev
    train, dev = (
        rows.take(np.arange(len(rows)) < most)
        for rows, most in zip(found, (TRAIN_ROWS, DEV_ROWS))
    )
    return train, dev


def texts_of(rows: Rows, pairs: bool) -> Texts:
    """The texts of rows, each one text or a pair."""
    if not pairs:
        return [(text,) for text in rows.text_a]
    if rows.text_b:
        return list(zip(rows.text_a, rows.text_b))
    return list(zip(rows.text_a[::2], rows.text_a[1::2]))


def measure(
    name: str,
    data: Dict[str, Tuple[Rows, Rows]],
    bert: adapter_bert.Bert,
    kept: pathlib.Path,
) -> Dict[str, Dict[str, Optional[float]]]:
    """AUROC against each other task, by the score's name and the task's."""
    train, _ = data[name]
    pairs = train.text_b is not None
    settings: Dict[str, Any] = {**TRAINING}
    if pairs:
        settings["text_b_column"] = "text_b"
    run = adapter_bert.train(
        bert,
        [
            (*texts, label)
            for texts, label in zip(texts_of(train, pairs), train.label)
        ],
        regression=name in REGRESSION,
        output_dir=str(kept / name),
        **settings,
    )
    predictor = adapter_bert.Predictor(bert, run)
    answers = {
        task: list(predictor.predict(texts_of(dev, pairs)))
        for task, (_, dev) in data.items()
    }
    found: Dict[str, Dict[str, Optional[float]]] = {"novelty": {}}
    scores = {"novelty": lambda answer: answer["novelty"]}
    if name not in REGRESSION:
        found["probability"] = {}
        scores["probability"] = lambda answer: 1 - answer["probability"]
    for other in data:
        if other == name:
            continue
        both = answers[name] + answers[other]
        is_other = np.arange(len(both)) >= len(answers[name])
        for kind, score in scores.items():
            area = roc_auc_score(is_other, list(map(score, both)))
            found[kind][other] = float(area)
    return found


def main() -> None:
    """Measures all tasks against one another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--glue", type=pathlib.Path, required=True)
    parser.add_argument("--sms", type=pathlib.Path, required=True)
    parser.add_argument("--init_checkpoint", required=True)
    parser.add_argument("--kept", type=pathlib.Path, required=True)
    asked = parser.parse_args()
    asked.kept.mkdir(parents=True, exist_ok=True)
    data = {
        name: read(name, asked.glue, asked.sms, asked.kept) for name in LAYOUTS
    }
    bert = adapter_bert.load_bert(asked.init_checkpoint)
    results = {}
    print("| adapter, score |", " | ".join(LAYOUTS), "| mean |")
    for name in LAYOUTS:
        results[name] = measure(name, data, bert, asked.kept)
        for score, areas in results[name].items():
            shown = [
                f"{areas[other]:.3f}" if other in areas else ""
                for other in LAYOUTS
            ]
            mean = np.mean(list(areas.values()))
            row = " | ".join([f"{name}, {score}", *shown, f"{mean:.3f}"])
            print(f"| {row} |", flush=True)
        files.write_json(str(asked.kept / "unlike.json"), results)


if __name__ == "__main__":
    command_line.run(main)
