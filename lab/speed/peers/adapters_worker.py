"""AdapterHub's `adapters`, or peft, measured as `lab/speed/worker.py` is.

Runs in an environment of its own (requirements.txt next to this file) and
imports nothing of this project. The training is what the library's users
write: an adapter after each sublayer, AdamW, gradients clipped to norm 1,
autocast for bfloat16. Fewer variables are trained than by the paper's recipe
(no LayerNorm), as is this library's way. An MPNet, which `adapters` lacks, has
peft's LoRA.
"""

import json
import sys
import time

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    MPNetForSequenceClassification,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

FULL_LENGTH = 128
# The number of padding's token, where it is not 0.
MPNET_PADDING = 1


def read_rows(path):
    """Rows as (tokens, segments, label) tensors."""
    with np.load(path) as saved:
        cuts = saved["starts"][1:-1]
        tokens = np.split(saved["tokens"].astype(np.int64), cuts)
        segments = np.split(saved["segments"].astype(np.int64), cuts)
        return [
            (torch.from_numpy(t), torch.from_numpy(s), int(label))
            for t, s, label in zip(tokens, segments, saved["labels"])
        ]


def make_mpnet(options):
    """MPNet with LoRA at queries and values, as our method has by default."""
    from peft import LoraConfig, TaskType, get_peft_model

    model = MPNetForSequenceClassification.from_pretrained(
        options["model"], num_labels=2
    )
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=options["lora_rank"],
        lora_alpha=options["lora_rank"],
        target_modules=["q", "v"],
    )
    return get_peft_model(model, config)


def make_model(options):
    """BERT with adapters of the asked-for size, ready to train them."""
    import adapters
    from adapters import DoubleSeqBnConfig

    if options["model"]:
        model = BertForSequenceClassification.from_pretrained(
            options["model"], num_labels=2
        )
    else:
        torch.manual_seed(1)
        sizes = dict(options["config"])
        sizes["hidden_act"] = {"gelu": "gelu_new", "gelu_erf": "gelu"}[
            sizes["hidden_act"]
        ]
        model = BertForSequenceClassification(BertConfig(**sizes))
    adapters.init(model)
    config = DoubleSeqBnConfig(
        reduction_factor=model.config.hidden_size / options["adapter_size"],
        non_linearity="gelu",
    )
    model.add_adapter("task", config=config)
    model.train_adapter("task")
    return model


def collate(rows, padding, is_mpnet=False):
    """Pads rows to the longest, or to the full length."""
    tokens, segments, labels = zip(*rows)
    if padding == "full":
        blank = torch.zeros(FULL_LENGTH, dtype=torch.int64)
        tokens, segments = (*tokens, blank), (*segments, blank)
    ids = pad_sequence(
        tokens, batch_first=True, padding_value=is_mpnet * MPNET_PADDING
    )[: len(rows)]
    kinds = pad_sequence(segments, batch_first=True)[: len(rows)]
    lengths = torch.tensor([len(t) for t in tokens[: len(rows)]])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    batch = {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.tensor(labels),
    }
    return batch if is_mpnet else {**batch, "token_type_ids": kinds}


def train_batches(rows, options):
    """Shuffled batches for ever."""
    size, padding = options["batch_size"], options["padding"]
    generator = torch.Generator().manual_seed(1)
    while True:
        if padding == "grouped":
            order = list(
                LengthGroupedSampler(
                    size,
                    lengths=[len(t) for t, _, _ in rows],
                    generator=generator,
                )
            )
        else:
            order = torch.randperm(len(rows), generator=generator).tolist()
        for first in range(0, len(rows) - size + 1, size):
            chosen = [rows[i] for i in order[first : first + size]]
            yield collate(chosen, padding, "lora_rank" in options)


def answer(**values):
    """Prints one measurement."""
    with open("/proc/self/status") as file:
        peak = next(line for line in file if line.startswith("VmHWM"))
    values["peak_bytes"] = int(peak.split()[1]) * 1024
    print(json.dumps(values), flush=True)


def main():
    """Trains or predicts, as far as the lines on stdin ask."""
    options = json.loads(sys.argv[1])
    is_mpnet = "lora_rank" in options
    rows = read_rows(options["rows"])
    model = (make_mpnet if is_mpnet else make_model)(options)
    torch.set_num_threads(options["cores"])
    autocast = torch.autocast(
        "cpu", torch.bfloat16, enabled=options["dtype"] == "bfloat16"
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    batches = train_batches(rows, options)

    def train_step():
        batch = next(batches)
        with autocast:
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(loss)
        return batch["input_ids"].shape

    def predict_all():
        size = options["batch_size"]
        shapes = []
        with torch.inference_mode(), autocast:
            for first in range(0, len(rows), size):
                if first == size:
                    began = time.perf_counter()
                chosen = rows[first : first + size]
                batch = collate(chosen, options["padding"], is_mpnet)
                del batch["labels"]
                model(**batch).logits.float().numpy()
                shapes.append(batch["input_ids"].shape)
        return time.perf_counter() - began, shapes[1:]

    model.train(options["kind"] == "train")
    for line in sys.stdin:
        if options["kind"] == "train":
            train_step()
            began = time.perf_counter()
            steps = json.loads(line)["steps"]
            shapes = [train_step() for _ in range(steps)]
            seconds = time.perf_counter() - began
        else:
            seconds, shapes = predict_all()
        answer(
            examples=sum(b for b, _ in shapes),
            seconds=seconds,
            tokens=sum(b * t for b, t in shapes),
        )


if __name__ == "__main__":
    main()
