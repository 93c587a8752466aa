"""Prints some questions of a SQuAD file with predicted and right answers.

.venv/bin/python -m scripts.internal.show_answers \\
    dev.json predictions.json COUNT
"""

import json
import sys

import command_line


def main(squad_file, predictions_file, count):
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
        print(f"  answered: {predictions[qa['id']]}")
        print(f"  right:    {right}")


if __name__ == "__main__":
    command_line.run(lambda: main(*sys.argv[1:]))
