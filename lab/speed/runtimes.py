r"""Compares files of other runtimes with the exported model: bytes and speed.

    .venv-onnx/bin/python -m lab.speed.runtimes MODEL mrpc=DATA=ADAPTER \
        [--rows=64] [--rounds=5]

The adapter answers the dev set of its task in the folder DATA, from texts to
labels, by the SavedModel and by files in float32 and int8, which take turns in
one process with a thread for each core. Prints a table for docs/export.md.
"""

import argparse
import os
import time
from typing import Callable, Dict, List, Sequence

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf
import tokenizers

from adapter_bert import command_line, files
from adapter_bert.errors import UserError
from adapter_bert.serving import runtimes, saved_model
from adapter_bert.serving.exported import ExportedModel, Row
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.text_model import TextModel
from adapter_bert.serving.trained_task import load_task
from lab import report
from lab.speed import measuring
from lab.speed.base_dtype import read_rows, share

# Rows that are asked at once.
BATCHES = (1, 32)
SAVED_MODEL = "SavedModel"

# Texts or pairs -> probabilities, float32 [N, L].
Ask = Callable[[Sequence], np.ndarray]


def load_file(folder: str, form: str) -> Ask:
    """A folder of `runtimes.export`, asked with the library's tokenizer."""
    path = os.path.join(folder, runtimes.RUNTIMES[form].file)
    if form == runtimes.TFLITE:
        # Else it takes one thread.
        interpreter = tf.lite.Interpreter(path, num_threads=os.cpu_count())
        runner = interpreter.get_signature_runner()
    else:
        run = runtimes.RUNTIMES[form].load(path)

        def runner(**batch):
            return run(batch)

    tokenizer = tokenizers.Tokenizer.from_file(
        os.path.join(folder, runtimes.TOKENIZER)
    )
    tokenizer.enable_padding()

    def ask(texts):
        rows = tokenizer.encode_batch(
            [x if len(x) > 1 else x[0] for x in texts]
        )
        return runner(
            input_ids=np.array([row.ids for row in rows], np.int32),
            input_mask=np.array([r.attention_mask for r in rows], np.int32),
            segment_ids=np.array([row.type_ids for row in rows], np.int32),
        )["scores"]

    return ask


def load_saved_model(folder: str, name: str) -> Ask:
    """A folder of `saved_model.export`."""
    model = ExportedModel(folder)

    def ask(texts):
        rows = [
            Row(*(t.encode() for t in (*x, "")[:2]), name.encode())
            for x in texts
        ]
        return np.array([answer["scores"] for answer in model.answers(rows)])

    return ask


def bytes_in(folder: str) -> int:
    """Bytes of all files in a folder."""
    return sum(
        files.size(os.path.join(place, name))
        for place, _, names in os.walk(folder)
        for name in names
    )


def answer_all(ask: Ask, texts: Sequence, batch: int) -> np.ndarray:
    """Probabilities of all rows, so many at once."""
    places = range(0, len(texts), batch)
    return np.concatenate([ask(texts[n : n + batch]) for n in places])


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("adapter")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    name, *folders = arguments.adapter.split("=")
    if len(folders) != 2:
        raise UserError(f"{arguments.adapter}: expected TASK=DATA=ADAPTER")
    data, adapter = folders
    texts, right = read_rows(name, data)
    bert = FrozenBert.open(arguments.model)
    task = load_task(bert, adapter, None)
    labels = task.task.labels
    asks: Dict[str, Ask] = {}
    sizes: Dict[str, int] = {}
    with files.temporary_folder() as place:
        folder = os.path.join(place, "saved_model")
        model = TextModel(bert, {name: task}, max(BATCHES))
        saved_model.export(model, bert, {name: task}, folder)
        asks[SAVED_MODEL] = load_saved_model(folder, name)
        sizes[SAVED_MODEL] = bytes_in(folder)
        for form, runtime in runtimes.RUNTIMES.items():
            for weights in runtimes.LIMITS:
                kind = f"{runtime.name}, {weights}"
                folder = os.path.join(place, f"{form}_{weights}")
                runtimes.export(bert, name, task, folder, form, weights)
                asks[kind] = load_file(folder, form)
                sizes[kind] = bytes_in(folder)
        found = {
            kind: answer_all(ask, texts, max(BATCHES))
            for kind, ask in asks.items()
        }
        rates = {
            batch: _rates(asks, texts, batch, arguments) for batch in BATCHES
        }
    own, size = found[SAVED_MODEL], sizes[SAVED_MODEL]
    chosen = {k: [labels[n] for n in x.argmax(1)] for k, x in found.items()}
    table = [
        [
            "model",
            "MB",
            "of the SavedModel",
            "largest difference",
            "equal labels",
            "right",
            *(
                f"{what}, {batch} at once"
                for batch in BATCHES
                for what in ("rows/s", "ratio")
            ),
        ]
    ]
    for kind, scores in found.items():
        cells = [kind, f"{sizes[kind] / 1e6:.1f}", f"{sizes[kind] / size:.2f}"]
        cells += [
            f"{np.abs(scores - own).max():.1g}",
            f"{share(chosen[kind], chosen[SAVED_MODEL]):.2%}",
            f"{share(chosen[kind], right):.2%}",
        ]
        for of_kinds in rates.values():
            ratio = measuring.ratio(of_kinds[kind], of_kinds[SAVED_MODEL])
            cells += [
                measuring.cell(measuring.spread(of_kinds[kind])),
                measuring.ratio_cell(ratio),
            ]
        table.append(cells)
    print(f"{name}: {len(texts)} rows of the dev set")
    print(report.markdown(table))


def _rates(
    asks: Dict[str, Ask],
    texts: Sequence,
    batch: int,
    arguments: argparse.Namespace,
) -> Dict[str, List[float]]:
    """Rows a second of each model in each round."""
    some = texts[: arguments.rows]
    found: Dict[str, List[float]] = {kind: [] for kind in asks}
    for number in range(arguments.rounds + 1):
        for kind, ask in asks.items():
            began = time.perf_counter()
            answer_all(ask, some, batch)
            seconds = time.perf_counter() - began
            # The first is a warm-up.
            if number:
                found[kind].append(len(some) / seconds)
    return found


if __name__ == "__main__":
    command_line.run(main)
