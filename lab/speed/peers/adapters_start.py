"""AdapterHub's `adapters` on PyTorch: a whole program, from files to a score.

    .venv-peer/bin/python adapters_start.py \
        --data_dir=... --model=... --output_dir=... \
        --epochs=1

`lab/speed/start.py` runs it next to `run_classifier.py`. It reads the same
`train.tsv` and `dev.tsv` (columns `sentence1`, `sentence2`, `label`), trains,
evaluates and saves the adapter, as the library's users write it, in batches
that are grouped by length. It runs in the environment of `adapters_worker.py`
and imports nothing else of this project.
"""

import argparse
import csv
import os

import torch
from adapters_worker import FULL_LENGTH, collate, make_model, train_batches
from transformers import BertTokenizerFast, get_linear_schedule_with_warmup

# What Hugging Face's Trainer takes if nothing is said, as run_classifier.py.
EVAL_BATCH_SIZE = 8
LEARNING_RATE = 1e-4
WARMUP = 0.1


def read_table(folder, split):
    """Returns the cells of a split's rows, each a dictionary by column."""
    path = os.path.join(folder, f"{split}.tsv")
    with open(path, encoding="utf-8", newline="") as file:
        return list(
            csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        )


def tokenize(tokenizer, table, labels):
    """Rows as (tokens, segments, label) tensors."""
    encoded = tokenizer(
        [row["sentence1"] for row in table],
        [row["sentence2"] for row in table],
        truncation=True,
        max_length=FULL_LENGTH,
    )
    return [
        (
            torch.tensor(tokens),
            torch.tensor(segments),
            labels.index(row["label"]),
        )
        for tokens, segments, row in zip(
            encoded["input_ids"], encoded["token_type_ids"], table
        )
    ]


def train(model, rows, batch_size, steps):
    """Trains for so many steps, and prints a line after each."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)
    schedule = get_linear_schedule_with_warmup(
        optimizer, int(steps * WARMUP), steps
    )
    batches = train_batches(
        rows, {"batch_size": batch_size, "padding": "grouped"}
    )
    model.train()
    for step in range(1, steps + 1):
        model(**next(batches)).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print(f"step {step}", flush=True)


def evaluate(model, rows):
    """Returns the share of rows whose label is predicted."""
    rows = sorted(rows, key=lambda row: len(row[0]))
    right = 0
    model.eval()
    with torch.inference_mode():
        for first in range(0, len(rows), EVAL_BATCH_SIZE):
            batch = collate(rows[first : first + EVAL_BATCH_SIZE], "dynamic")
            labels = batch.pop("labels")
            right += int((model(**batch).logits.argmax(-1) == labels).sum())
    return right / len(rows)


def main():
    """Trains some steps, or whole epochs which are followed by a score."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--adapter_size", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--cores", type=int, default=torch.get_num_threads())
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int)
    length.add_argument("--epochs", type=int)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.cores)
    tokenizer = BertTokenizerFast.from_pretrained(arguments.model)
    table = read_table(arguments.data_dir, "train")
    labels = sorted({row["label"] for row in table})
    rows = tokenize(tokenizer, table, labels)
    model = make_model(
        {"model": arguments.model, "adapter_size": arguments.adapter_size}
    )
    steps = arguments.steps or (
        len(rows) // arguments.batch_size * arguments.epochs
    )
    train(model, rows, arguments.batch_size, steps)
    if arguments.epochs:
        table = read_table(arguments.data_dir, "dev")
        accuracy = evaluate(model, tokenize(tokenizer, table, labels))
        print(f"accuracy {accuracy:.4f}")
    model.save_adapter(arguments.output_dir, "task")


if __name__ == "__main__":
    main()
