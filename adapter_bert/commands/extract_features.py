r"""Writes BERT's hidden states of texts, as google-research/bert does.

    .venv/bin/python extract_features.py --input_file=texts.txt \
        --output_file=states.jsonl --init_checkpoint=$BERT --layers=-1,-2

The input has a text on each line, or two with ` ||| ` between them. The output
has a JSON object for each line, with the values of every token. --adapter names
a trained adapter that acts on BERT.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.answering.embeddings import (
    TOKENS,
    VectorForm,
    vector_function,
)
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import LoadedTask, load_task
from adapter_bert.checkpoints import sources
from adapter_bert.checkpoints.bert_flags import BertFiles, LetterCase
from adapter_bert.data.tokenization import (
    FullTokenizer,
    TextTokenizer,
    in_chunks,
    make_row,
)
from adapter_bert.errors import UserError
from adapter_bert.flags import POSITIVE, Topic, read
from adapter_bert.progress import Progress
from adapter_bert.upstream import extract_features as upstream
from adapter_bert.upstream import records


@dataclasses.dataclass(frozen=True)
class Extraction(LetterCase, BertFiles):
    """Says what is read, computed and written."""

    REQUIRED = ("input_file", "output_file", "init_checkpoint")
    input_file: str = Topic.DATA.setting(
        "", "Texts, one on a line, or two with ` ||| ` between them."
    )
    output_file: str = Topic.TO_DO.setting(
        "", "File for the hidden states: a JSON object for each line."
    )
    layers: str = Topic.TO_DO.setting(
        "-1,-2,-3,-4",
        "Layers whose outputs are written: 0 is the first, -1 the last.",
    )
    max_seq_length: int = Topic.DATA.setting(
        128, "Longest input in tokens; the rest is cut off."
    )
    batch_size: int = Topic.EVALUATION.setting(
        32, "Texts computed at once.", POSITIVE
    )
    adapter: str = Topic.METHOD.setting(
        "",
        "Folder of a trained adapter that acts on BERT; it says the "
        "letters' case.",
    )
    use_one_hot_embeddings: bool = Topic.HARDWARE.setting(
        False, "Of no effect: words are looked up, with the same numbers."
    )
    use_tpu: bool = Topic.HARDWARE.setting(
        False, "Refused if true: this program runs on a GPU or the CPU."
    )
    master: str = Topic.HARDWARE.setting(
        "", "Of no effect: the address of a TPU, in published commands."
    )
    num_tpu_cores: int = Topic.HARDWARE.setting(
        8, "Of no effect: the cores of a TPU, in published commands.", POSITIVE
    )


SETTINGS = (Extraction,)


def _read_layers(text: str, count: int) -> list[int]:
    try:
        numbers = [*map(int, text.split(","))]
    except ValueError:
        numbers = []
    if not numbers or not all(-count <= n < count for n in numbers):
        raise UserError(
            f"--layers is {text}, expected numbers from -{count} to "
            f"{count - 1} with commas between them"
        )
    return numbers


def _make_compute(
    bert: FrozenBert, task: Optional[LoadedTask], layers: Sequence[int]
) -> Callable[..., list[np.ndarray]]:
    """Makes a function of ids, mask and segments, int32 [B, T] each.

    It gives each layer's states, float32 [B, T, D].
    """
    form = VectorForm(TOKENS, tuple(layers))
    function = vector_function(bert, task, form).get_concrete_function()
    values = task.values.get() if task else {}

    def compute(ids, mask, segments):
        batch = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
        batch["row"] = np.arange(len(ids))
        batch = {name: tf.constant(x, tf.int32) for name, x in batch.items()}
        vectors = function(values, batch)["vectors"].numpy()
        return np.split(vectors, len(layers), axis=-1)

    return compute


def _features(
    examples: Sequence[upstream.InputExample],
    length: int,
    tokenizer: TextTokenizer,
) -> list[upstream.InputFeatures]:
    features, cut = [], 0
    firsts = in_chunks(tokenizer.encode_ids, (e.text_a for e in examples))
    seconds = in_chunks(
        tokenizer.encode_ids, (e.text_b or "" for e in examples)
    )
    for example, a, b in zip(examples, firsts, seconds):
        ids, segments = make_row(a, b or None, tokenizer, length)
        between = tokenizer.between_count if b else 0
        cut += len(a) + len(b) + 2 + between > length
        rows = records.pad(length, ids, [1] * len(ids), segments)
        tokens = [tokenizer.names[number] for number in ids]
        features.append(
            upstream.InputFeatures(example.unique_id, tokens, *rows)
        )
    if cut:
        logging.warning(
            "%d of %d lines have more than --max_seq_length=%d tokens and were "
            "cut",
            cut,
            len(examples),
            length,
        )
    return features


def _lines(
    features: Sequence[upstream.InputFeatures],
    compute: Any,
    layers: Sequence[int],
    batch_size: int,
) -> Iterator[bytes]:
    progress = Progress("extract", len(features), "texts")
    for first in range(0, len(features), batch_size):
        batch = features[first : first + batch_size]
        # Padding changes no value.
        length = max(len(row.tokens) for row in batch)
        outputs = compute(
            *(
                np.array([getattr(row, name)[:length] for row in batch])
                for name in ("input_ids", "input_mask", "input_type_ids")
            )
        )
        for row, *of_layers in zip(batch, *outputs):
            yield (upstream.json_line(row, layers, of_layers) + "\n").encode()
        progress.update(len(batch))
    progress.close()


def main() -> None:
    """Writes the file that the flags describe."""
    flags = read(Extraction)
    if flags.use_tpu:
        raise UserError(
            "--use_tpu=true is for training programs; extract_features.py "
            "runs on a GPU or the CPU: leave --use_tpu out"
        )
    bert = FrozenBert.open(
        flags.init_checkpoint, flags.bert_config_file, flags.vocab_file
    )
    layers = _read_layers(flags.layers, bert.config.num_hidden_layers)
    task = None
    if flags.adapter:
        task = load_task(bert, flags.adapter, None)
    tokenizer = task.tokenizer if task else bert.tokenizer(flags.do_lower_case)
    if not isinstance(tokenizer, FullTokenizer):
        raise UserError(
            f"{flags.init_checkpoint} has no word pieces, expected a BERT, "
            "whose word pieces the output names"
        )
    sources.check_length(flags.max_seq_length, 5, bert.config, tokenizer)
    features = _features(
        upstream.examples_of(
            files.read_lines(flags.input_file, "the texts", "\n")
        ),
        flags.max_seq_length,
        tokenizer,
    )
    compute = _make_compute(bert, task, layers)
    files.write_parts(
        flags.output_file,
        _lines(features, compute, layers, flags.batch_size),
    )
