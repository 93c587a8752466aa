"""Prints the label of each answer that it reads, and its probability.

.venv/bin/python predict.py ... | \\
    .venv/bin/python -m scripts.internal.show_label
"""

import json
import sys

import command_line


def main():
    """Prints a line for each line of stdin, an answer of `predict.py`."""
    for line in sys.stdin.buffer:
        answer = json.loads(line)
        print(f"  answered: {answer['label']} ({answer['probability']:.3f})")


if __name__ == "__main__":
    command_line.run(main)
