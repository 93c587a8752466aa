"""Many adapters on one BERT, as `adapters` and `peft` compute a mixed batch.

    .venv-peer/bin/python lab/speed/peers/serving_worker.py make FOLDER \\
        VOCABULARY
    .venv-peer/bin/python lab/speed/peers/serving_worker.py OPTIONS

Runs in the peers' environment (requirements.txt beside this file) and imports
nothing of this project; `lab/speed/serving.py` calls it. `make` writes a
BERT-base with random weights. With options, JSON, it holds a model with
adapters and measures at each line on stdin: rows of one task, and rows of a
random mix. No head is computed, which is to the peers' advantage.
"""

import json
import os
import shutil
import sys
import time

import adapters
import numpy as np
import peft
import torch
import transformers
from adapters import BatchSplit, DoubleSeqBnConfig
from transformers import BertConfig, BertModel


def make(folder, vocabulary):
    """Writes a BERT of the base's size."""
    transformers.set_seed(1)
    BertModel(BertConfig()).save_pretrained(folder)
    shutil.copy(vocabulary, os.path.join(folder, "vocab.txt"))


class AdapterHub:
    """Houlsby's adapters, mixed by `BatchSplit`."""

    def __init__(self, options):
        """Makes a model with as many adapters as asked for."""
        self.model = BertModel.from_pretrained(options["model"])
        adapters.init(self.model)
        for number in range(options["count"]):
            size = options["sizes"][number % len(options["sizes"])]
            factor = self.model.config.hidden_size / (size + 0.5)
            config = DoubleSeqBnConfig(
                reduction_factor=factor, non_linearity="gelu_new"
            )
            self.model.add_adapter(f"task{number}", config=config)

    def compute(self, ids, tasks):
        """Computes rows [B, T], of tasks [B] in rising order."""
        mask = torch.ones_like(ids)
        numbers, counts = np.unique(tasks, return_counts=True)
        names = [f"task{number}" for number in numbers]
        self.model.active_adapters = (
            BatchSplit(*names, batch_sizes=counts.tolist())
            if len(names) > 1
            else names[0]
        )
        self.model(input_ids=ids, attention_mask=mask)


class Peft:
    """LoRA, mixed by `adapter_names`."""

    def __init__(self, options):
        """Makes a model with as many adapters as asked for."""
        model = BertModel.from_pretrained(options["model"])
        for number in range(options["count"]):
            rank = options["sizes"][number % len(options["sizes"])]
            config = peft.LoraConfig(
                r=rank, lora_alpha=rank, target_modules=["query", "value"]
            )
            if number:
                self.model.add_adapter(f"task{number}", config)
            else:
                self.model = peft.get_peft_model(model, config, "task0")
        self.model.eval()

    def compute(self, ids, tasks):
        """Computes rows [B, T], of tasks [B]."""
        mask = torch.ones_like(ids)
        names = [f"task{number}" for number in tasks]
        if len(set(names)) == 1:
            self.model.set_adapter(names[0])
            self.model(input_ids=ids, attention_mask=mask)
        else:
            self.model(input_ids=ids, attention_mask=mask, adapter_names=names)


def resident_memory():
    """Bytes that this process occupies now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main():
    """Makes a model, or measures as far as the lines on stdin ask."""
    if sys.argv[1] == "make":
        make(*sys.argv[2:])
        return
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["cores"])
    library = {"adapterhub": AdapterHub, "peft": Peft}[options["library"]]
    peer = library(options)
    peer.model.eval()
    rng = np.random.default_rng(0)
    shape = options["batches"], options["batch_size"]

    def seconds(tasks):
        ids = torch.from_numpy(
            rng.integers(1000, 20000, (*shape, options["tokens"]))
        )
        began = time.perf_counter()
        with torch.inference_mode():
            for of_batch, chosen in zip(ids, tasks):
                peer.compute(of_batch, np.sort(chosen))
        return time.perf_counter() - began

    for _ in sys.stdin:
        mixed = np.stack(
            [
                rng.choice(
                    options["count"], shape[1], shape[1] > options["count"]
                )
                for _ in range(shape[0])
            ]
        )
        ones = rng.integers(0, options["count"], (shape[0], 1))
        found = {
            "one": seconds(np.tile(ones, (1, shape[1]))),
            "mixed": seconds(mixed),
        }
        found = {way: shape[0] * shape[1] / s for way, s in found.items()}
        found["memory_bytes"] = resident_memory()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
