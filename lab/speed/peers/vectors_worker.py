"""sentence-transformers' own trainer with peft's LoRA, measured.

Runs in an environment of its own (requirements.txt next to this file) and
imports nothing of this project. `lab/speed/vectors.py` runs this program in
turn with `lab/speed/vectors_worker.py`, and says what the one argument holds.
Users of the library get the same batches, padding and losses. Requests and
answers are as in `lab/speed/worker.py`. The request after the last step
is answered when the vectors of the dev set are written.
"""

import json
import os
import sys
import tempfile
import time

# Nothing is asked of the hub. The libraries read this as they are imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import numpy as np
import peft
import torch
from adapters_worker import answer
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    CoSENTLoss,
    MultipleNegativesRankingLoss,
)
from transformers import PrinterCallback, TrainerCallback


class Meter(TrainerCallback):
    """Counts steps, and waits for the next request."""

    def __init__(self, batch_size):
        """Takes the rows of a step."""
        self.batch_size = batch_size

    def wait(self):
        """Reads a request."""
        self.steps = json.loads(sys.stdin.readline())["steps"]
        self.first = None

    def on_train_begin(self, *args, **kwargs):
        """The model is ready."""
        self.wait()

    def on_step_end(self, args, state, control, **kwargs):
        """The first step after a pause is not measured."""
        step = state.global_step
        if self.first is None:
            self.first, self.began = step, time.perf_counter()
        elif step - self.first >= self.steps:
            seconds = time.perf_counter() - self.began
            count = step - self.first
            answer(examples=count * self.batch_size, seconds=seconds)
            self.wait()


def make_model(options):
    """The BERT with LoRA, as far as the library's users choose."""
    model = SentenceTransformer(options["model"], device="cpu")
    model.max_seq_length = options["max_seq_length"]
    model.add_adapter(
        peft.LoraConfig(
            r=options["rank"],
            lora_alpha=options["alpha"],
            target_modules=["query", "value"],
            task_type="FEATURE_EXTRACTION",
        )
    )
    return model


def main():
    """Trains, as far as the lines on stdin ask, and scores the dev set."""
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["cores"])
    with open(options["rows"]) as file:
        rows = json.load(file)
    model = make_model(options)
    if "score" in rows["train"]:
        loss = CoSENTLoss(model)
    else:
        loss = MultipleNegativesRankingLoss(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SentenceTransformerTrainer(
            model,
            SentenceTransformerTrainingArguments(
                folder,
                max_steps=options["steps"],
                per_device_train_batch_size=options["batch_size"],
                # Each step has as many rows as the meter counts.
                dataloader_drop_last=True,
                learning_rate=options["learning_rate"],
                weight_decay=0.01,
                warmup_ratio=0.1,
                seed=1,
                bf16=options["dtype"] == "bfloat16",
                use_cpu=True,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            datasets.Dataset.from_dict(rows["train"]),
            loss=loss,
            callbacks=[Meter(options["batch_size"])],
        )
        # Answers alone are printed.
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    vectors = [model.encode(rows["dev"][name]) for name in ("text", "match")]
    np.save(options["vectors"], np.stack(vectors, axis=1))
    trained = [p.numel() for p in model.parameters() if p.requires_grad]
    answer(trained=sum(trained))


if __name__ == "__main__":
    main()
