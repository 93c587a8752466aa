"""Runs whose steps are shown to suit accelerators, on a tiny BERT.

Every tuning method trains and predicts with one head, every head with the
default method, in float32 and bfloat16.
"""

import contextlib
import dataclasses
import importlib
import pathlib
import random
import tempfile
import unittest.mock
from collections.abc import Iterator, Mapping
from typing import Any

from adapter_bert.bert import onednn
from adapter_bert.bert.config import BertConfig
from adapter_bert.keywords import of_keywords
from adapter_bert.methods.registry import METHODS
from adapter_bert.training import engines
from adapter_bert.training.settings import OPERATIONS
from lab import random_adapters
from lab.trials import tiny_files


def _sized(layers: int, width: int) -> BertConfig:
    """BERT's own sizes; its MiniLM has heads of half the width."""
    return BertConfig(
        vocab_size=30522,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // (32 if width == 384 else 64),
        intermediate_size=4 * width,
    )


DEFAULT = "houlsby"
CLASSIFICATION, CLASSIFY = "classification", "run_classifier"
DTYPES = ("float32", "bfloat16")
TRAINING, PREDICTION = "training", "prediction"
STEPS = (TRAINING, PREDICTION)
# Name of the engine that ends a run.
ENGINE = "taken"
# Arguments that fit a BERT of two layers of 16.
ARGUMENTS = {
    "adapterdrop": "first=1",
    "average": "one, two",
    "compacter": "size=8, n=4",
    "fusion": "one, two",
    "pals": "size=6, heads=2",
    "per_task": "houlsby",
    "stack": "houlsby, lora",
    "union": "houlsby, lora",
    "top_layers": "1",
}
# Trained parts of compositions.
PARTS = {"one": "pfeiffer(size=4)", "two": "pfeiffer(size=2)"}
TINY = "tiny"
# Rows and tokens of a batch, sizes of the BERT.
SIZES = {
    TINY: (8, 24, tiny_files.CONFIG),
    "MiniLM": (32, 128, _sized(6, 384)),
    "BERT-base": (32, 128, _sized(12, 768)),
    "BERT-large": (32, 384, _sized(24, 1024)),
}
LABEL_SETS, CHOICES, SHELF = "label_sets", "choices", "shelf"
NEW_WORDS = "new_words"


def _table(name: str, **flags: Any) -> dict[str, Any]:
    return {"task_name": "custom", "data_dir": f"{{data}}/{name}", **flags}


SEVERAL = {
    "task_name": "custom:one,custom:two",
    "data_dir": "{data}/" + tiny_files.SEVERAL,
}
QUESTIONS = "{data}/" + tiny_files.QUESTIONS
LINES = "{data}/" + tiny_files.LINES
# Kind of task -> its program, the program's flags.
HEADS: dict[str, Any] = {
    CLASSIFICATION: (CLASSIFY, _table(tiny_files.TABLE)),
    "regression": (CLASSIFY, _table(tiny_files.SCORES, regression=True)),
    "sets of labels": (CLASSIFY, _table(LABEL_SETS, multi_label=True)),
    "multiple choice": (
        CLASSIFY,
        _table(CHOICES, choice_columns=["first", "second"]),
    ),
    "several tasks": (CLASSIFY, SEVERAL),
    "questions": (
        "run_squad",
        {
            "train_file": QUESTIONS,
            "predict_file": QUESTIONS,
            "max_query_length": 8,
            "doc_stride": 4,
        },
    ),
    "tagging": ("run_tagger", {"data_dir": "{data}/" + tiny_files.TAGS}),
    "masked words": (
        "run_mlm",
        {
            "train_file": LINES + "/train.txt",
            "eval_file": LINES + "/eval.txt",
        },
    ),
}


@dataclasses.dataclass(frozen=True)
class DeviceRun:
    """A run of one program.

    Attributes:
        method: as `--tuning_method` has it.
        head: of `HEADS`.
        dtype: of products.
        step: of `STEPS`.
        bert: of `SIZES`.
        cores: that share the batch.
        recompute: as `--recompute` has it.
    """

    method: str = DEFAULT
    head: str = CLASSIFICATION
    dtype: str = DTYPES[0]
    step: str = TRAINING
    bert: str = TINY
    cores: int = 1
    recompute: str = OPERATIONS

    @property
    def program(self) -> str:
        """Returns the program's name."""
        return HEADS[self.head][0]

    @property
    def settings(self) -> Mapping[str, Any]:
        """Returns the run's flags, with `{data}` for the folder of `make`."""
        flags = dict(HEADS[self.head][1])
        if self.method.startswith("per_task"):
            flags = SEVERAL
        if self.method == NEW_WORDS:
            flags["new_tokens"] = f"{{data}}/{NEW_WORDS}.txt"
        rows, length, _ = SIZES[self.bert]
        return {
            **flags,
            # A prediction takes the place of the training that it follows.
            "do_train": True,
            "init_checkpoint": "{data}/" + folder_of(self.bert),
            "library": "{data}/" + SHELF,
            "tuning_method": self.method,
            "compute_dtype": self.dtype,
            "recompute": self.recompute,
            "max_seq_length": length,
            "train_batch_size": rows,
            "learning_rate": 1e-3,
            # Accelerators have no lanes.
            "cpu_lanes": 1,
        }


def folder_of(bert: str) -> str:
    """Returns the folder of a BERT of `SIZES`, in the folder of the data."""
    return tiny_files.BERT if bert == TINY else bert


def with_arguments(method: str) -> str:
    """A method as the tiny BERT takes it."""
    arguments = ARGUMENTS.get(method)
    return f"{method}({arguments})" if arguments else method


def runs() -> list[DeviceRun]:
    """Every method with one head, then every other head with one method."""
    kinds = [(with_arguments(method), CLASSIFICATION) for method in METHODS]
    kinds += [(DEFAULT, head) for head in HEADS if head != CLASSIFICATION]
    return [
        DeviceRun(*kind, dtype, step)
        for kind in kinds
        for dtype in DTYPES
        for step in STEPS
    ]


def make(folder: pathlib.Path) -> None:
    """Writes the BERT, data for each head, and parts of compositions.

    Args:
        folder: that is there, and empty.
    """
    tiny_files.make(folder)
    (folder / f"{NEW_WORDS}.txt").write_text("zebra\n")
    chance = random.Random("devices")
    for name, header in (
        (LABEL_SETS, ("text", "label")),
        (CHOICES, ("text", "first", "second", "label")),
    ):
        (folder / name).mkdir()
        for split in ("train", "dev", "test"):
            rows = [header]
            for _ in range(16):
                words = [" ".join(tiny_files.sentence(chance)) for _ in header]
                label = chance.choice(("good", "bad", "good|bad"))
                if name == CHOICES:
                    label = chance.choice(header[1:3])
                rows.append((*words[:-1], label))
            if split == "test":
                rows = [row[:-1] for row in rows]
            text = "".join("\t".join(row) + "\n" for row in rows)
            (folder / name / f"{split}.tsv").write_text(text)
    for seed, (name, method) in enumerate(PARTS.items()):
        random_adapters.make_artifact(
            folder / SHELF / name, folder / tiny_files.BERT, method, seed=seed
        )


@contextlib.contextmanager
def with_flags(
    run: DeviceRun, data: pathlib.Path, engine: type, **others: Any
) -> Iterator[Any]:
    """A context in which the run's program finds its flags.

    Args:
        run: the run.
        data: folder of `make`, which gets a BERT of the run's size.
        engine: the class that takes the place of the run's engine.
        others: further flags.

    Yields:
        The program's module, whose `main` is to be called.
    """
    bert = data / folder_of(run.bert)
    if not bert.exists():
        tiny_files.write_bert(bert, SIZES[run.bert][2])
    engines.ENGINES[ENGINE] = f"{engine.__module__}.{engine.__name__}"
    module = importlib.import_module(f"adapter_bert.commands.{run.program}")
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            name: value.format(data=data) if isinstance(value, str) else value
            for name, value in run.settings.items()
        }
        flags.update(engine=ENGINE, output_dir=f"{folder}/out", **others)
        # Only processors have the kernels of oneDNN.
        without = unittest.mock.patch.object(
            onednn, "is_available", lambda dtype: False
        )
        with without, of_keywords(module.SETTINGS, flags, run.program):
            yield module
