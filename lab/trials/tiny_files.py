"""A BERT of a few kilobytes and data for it, so that a run takes seconds.

The files are drawn from a fixed seed.
"""

import dataclasses
import json
import pathlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from adapter_bert.bert.encoder import BertConfig, list_variables
from adapter_bert.checkpoints.hugging_face import hugging_face_name

# The names of what `make` writes.
BERT = "bert"
TABLE, SCORES, QUESTIONS, TAGS, LINES, SEVERAL = (
    "table",
    "scores",
    "questions.json",
    "tags",
    "lines",
    "several",
)

NOUNS = "cat dog mat film bird house river".split()
WORDS = "the a sat ran is was not slow fast good bad on in out".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD, BAD = "good", "bad"
CONFIG = BertConfig(
    vocab_size=len(SPECIAL) + len(NOUNS) + len(WORDS) + 2,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
)


def make(folder: pathlib.Path) -> None:
    """Writes the BERT, and data for each kind of run.

    Args:
        folder: that is there, and empty.
    """
    chance = random.Random("material")
    write_bert(folder / BERT)
    for name, regression in ((TABLE, False), (SCORES, True)):
        write_table(folder / name, chance, regression)
    for name in ("one", "two"):
        write_table(folder / SEVERAL / name, chance)
    _write_questions(folder / QUESTIONS, chance)
    (folder / TAGS).mkdir()
    for split, count in (("train", 32), ("dev", 8), ("test", 8)):
        text = "\n".join(_tagged(sentence(chance)) for _ in range(count))
        (folder / TAGS / f"{split}.conll").write_text(text)
    (folder / LINES).mkdir()
    for split, count in (("train", 40), ("eval", 8)):
        lines = [" ".join(sentence(chance)) for _ in range(count)]
        (folder / LINES / f"{split}.txt").write_text("\n".join(lines) + "\n")


def write_bert(
    folder: pathlib.Path, config: BertConfig = CONFIG, deviation: float = 0.1
) -> None:
    """Random weights as Hugging Face has them, the vocabulary, the sizes.

    Outputs of a large BERT are chaotic with a larger `deviation` than its
    `initializer_range`: rounding of weights changes a loss in its third digit.
    """
    folder.mkdir()
    words = [*SPECIAL, *NOUNS, *WORDS, ".", "?"]
    words += [f"unused{n}" for n in range(len(words), config.vocab_size)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    sizes = json.dumps(dataclasses.asdict(config))
    (folder / "config.json").write_text(sizes)
    values = {}
    for number, (name, shape) in enumerate(list_variables(config).items()):
        mean = 1.0 if name.endswith("gamma") else 0.0
        value = np.random.default_rng(number).normal(mean, deviation, shape)
        theirs, transposed = hugging_face_name(name)
        value = value.astype(np.float32)
        values[theirs] = np.ascontiguousarray(value.T if transposed else value)
    safetensors.numpy.save_file(values, folder / "model.safetensors")


def sentence(chance: random.Random) -> list[str]:
    """A few words; one of them is a noun."""
    words = chance.choices(WORDS, k=chance.randint(3, 9))
    words.insert(chance.randint(0, len(words)), chance.choice(NOUNS))
    return [*words, "."]


def write_table(
    folder: pathlib.Path,
    chance: random.Random,
    regression: bool = False,
    train_rows: int = 40,
) -> None:
    """Texts with labels, or with numbers, in three splits."""
    folder.mkdir(parents=True)
    for split, count in (("train", train_rows), ("dev", 8), ("test", 8)):
        rows: list[tuple[str, ...]] = [("text", "label")]
        for _ in range(count):
            words = sentence(chance)
            label = GOOD if len(words) % 2 else BAD
            if regression:
                label = str(len(words) / 2)
            rows.append((" ".join(words), label))
        if split == "test":
            rows = [row[:1] for row in rows]
        _write_rows(folder / f"{split}.tsv", rows)


def _write_rows(path: pathlib.Path, rows: Sequence[Sequence[str]]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows))


def _write_questions(path: pathlib.Path, chance: random.Random) -> None:
    """SQuAD's layout; the answer is a noun of the context."""
    paragraphs: list[dict[str, Any]] = []
    for number in range(16):
        words = sentence(chance)
        answer = next(word for word in words if word in NOUNS)
        context = " ".join(words)
        answer_span = {"text": answer, "answer_start": context.index(answer)}
        question = {
            "id": f"q{number}",
            "question": "is the film good ?",
            "answers": [answer_span],
        }
        paragraphs.append({"context": context, "qas": [question]})
    data = [{"title": "soak", "paragraphs": paragraphs}]
    path.write_text(json.dumps({"version": "1.1", "data": data}))


def _tagged(words: Sequence[str]) -> str:
    tags = ["B-NOUN" if word in NOUNS else "O" for word in words]
    return "".join(f"{word} {tag}\n" for word, tag in zip(words, tags))
