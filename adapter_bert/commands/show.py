"""Prints answers and scores for people, in scripts and guides.

    .venv/bin/adapter-bert predict ... | .venv/bin/adapter-bert show labels
    .venv/bin/adapter-bert show answers dev.json predictions.json COUNT
    .venv/bin/adapter-bert show table model.safetensors out/task1 ...

`labels` prints the label of each answer that it reads, and its probability.
`answers` prints COUNT questions of a SQuAD file with predicted and right
answers. `table` prints score, trained parameters and file sizes of runs.
"""

import json
import os
import sys


def show_labels():
    """Prints a line for each answer of `adapter-bert predict` on stdin."""
    for line in sys.stdin.buffer:
        answer = json.loads(line)
        label = answer["label"] or "no label"
        print(f"  answered: {label} ({answer['probability']:.3f})")


def show_answers(squad_file, predictions_file, count):
    """Prints `count` questions, spread evenly over the file."""
    with open(squad_file) as file:
        articles = json.load(file)["data"]
    with open(predictions_file) as file:
        predictions = json.load(file)
    questions = [
        qa
        for article in articles
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    for qa in questions[:: max(1, len(questions) // int(count))][: int(count)]:
        right = " | ".join(answer["text"] for answer in qa["answers"])
        print(f"\n{qa['question']}")
        print(f"  answered: {predictions[str(qa['id'])]}")
        print(f"  right:    {right}")


def show_table(model_file, *run_folders):
    """Prints one row for each run, with the full model's size."""
    model_size = os.path.getsize(model_file)
    print(
        f"\n{'task':<18}{'dev score':>16}{'trained parameters':>28}"
        f"{'adapter file':>16}{'full model':>14}"
    )
    for folder in run_folders:
        with open(os.path.join(folder, "run.json")) as file:
            parameters = json.load(file)["parameters"]
        with open(os.path.join(folder, "eval_results.json")) as file:
            results = json.load(file)
        names = "accuracy", "f1", "micro_f1", "pearson", "ndcg_at_10", "loss"
        name = next(x for x in names if f"eval_{x}" in results)
        value = results[f"eval_{name}"]
        # Of questions in percent.
        score = f"{name} {value:{'.1f' if value > 1 else '.3f'}}"
        adapter = os.path.join(folder, "adapter", "adapter.safetensors")
        share = parameters["trained"] / parameters["total"]
        trained = f"{parameters['trained']:,} ({share:.1%})"
        print(
            f"{os.path.basename(folder):<18}{score:>16}{trained:>28}"
            f"{os.path.getsize(adapter) / 1e6:>13.1f} MB"
            f"{model_size / 1e6:>11.1f} MB"
        )


def main():
    """Prints what the command line names."""
    topics = {
        "labels": show_labels,
        "answers": show_answers,
        "table": show_table,
    }
    what, *arguments = sys.argv[1:] or [""]
    if what not in topics:
        sys.exit(
            f"error: show takes one of {', '.join(topics)}, found {what!a}"
        )
    try:
        topics[what](*arguments)
    except (
        ArithmeticError,
        KeyError,
        OSError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        sys.exit(f"error: show {what}: {error}")
