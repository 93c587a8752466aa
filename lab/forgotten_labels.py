r"""Measures what an adapter forgets when it learns new labels.

    .venv/bin/python -m lab.forgotten_labels --data=DATA --kept=out/forgotten \
        --init_checkpoint=$(.venv/bin/adapter-bert minilm)

The task is to name the corpus that the first words of a text are from. Old
labels are `review` (SST-2), `message` (SMS spam), `news` (the first sentences
of MRPC) and `example` (CoLA), new ones `question` and `paragraph` (SQuAD's).
DATA has `glue/SST-2/train.tsv` and the like, `sms_spam/SMSSpamCollection` and
`squad/train-v1.1.json`; --squad and --sms name other files. Each seed draws
rows, trains an adapter on the old labels, and then adds the new ones in several
ways. An upper bound is trained on all rows from the start. --kept is a folder
for the runs, which go on where they were interrupted. Prints a table, and
writes `forgotten_labels.json` into this folder.
"""

import argparse
import json
import pathlib
import shutil
from typing import Any, Dict, List

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

import adapter_bert
from adapter_bert import command_line, files
from adapter_bert.data.tables import Layout, read_rows

OLD = {
    "review": ("glue/SST-2/train.tsv", Layout("sentence")),
    "message": ("", Layout(1, header=False)),
    "news": ("glue/MRPC/train.tsv", Layout(3)),
    "example": ("glue/CoLA/train.tsv", Layout(3, header=False)),
}
NEW = ("question", "paragraph")
SEEDS = (1, 2, 3)
# Of each label.
TRAINED, MEASURED, REPLAYED = 200, 100, 25
# Of each text.
WORDS = 10
SETTINGS = {
    "tuning_method": "houlsby(size=64)",
    "max_seq_length": 32,
    "num_train_epochs": 5,
    "learning_rate": 1e-3,
}
# A smaller rate forgets less.
RATE = 3e-4
WAYS: Dict[str, Dict[str, Any]] = {
    "all replayed": {"replay_file": "old.jsonl"},
    "replayed, balanced": {
        "replay_file": "replay.jsonl",
        "class_weights": "balanced",
    },
    "replayed": {"replay_file": "replay.jsonl"},
    "distilled": {},
    "neither": {"distill_weight": 0.0},
}


def first_words(texts: List[str]) -> List[str]:
    """The first words of each long enough text, each once, in order."""
    split = (text.split() for text in texts)
    return [*{" ".join(w[:WORDS]): 0 for w in split if len(w) >= WORDS}]


def read(data: pathlib.Path, sms: str, squad: str, kept: pathlib.Path) -> dict:
    """The beginnings of all texts, by label."""
    # SMS spam's name has no ending.
    table = kept / "sms.tsv"
    shutil.copyfile(sms or data / "sms_spam" / "SMSSpamCollection", table)
    found = {}
    for label, (path, layout) in OLD.items():
        rows = read_rows(str(data / path if path else table), layout)
        found[label] = first_words(rows.text_a)
    path = pathlib.Path(squad or data / "squad" / "train-v1.1.json")
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    paragraphs = [one for of in articles for one in of["paragraphs"]]
    found["question"] = first_words(
        [asked["question"] for one in paragraphs for asked in one["qas"]]
    )
    found["paragraph"] = first_words([one["context"] for one in paragraphs])
    return found


def write_rows(texts: dict, seed: int, folder: pathlib.Path) -> None:
    """Draws the rows of a seed: `old`, `new`, `replay`, `all` and dev sets."""
    rng = np.random.default_rng(seed)
    splits: Dict[str, List[Dict[str, str]]] = {}
    for label, own in texts.items():
        order = rng.permutation(len(own))[: TRAINED + MEASURED]
        rows = [{"text": own[place], "label": label} for place in order]
        train, dev = rows[:TRAINED], rows[TRAINED:]
        age = "new" if label in NEW else "old"
        for split, more in (
            (age, train),
            ("all", train),
            (f"{age}_dev", dev),
            ("dev", dev),
            ("replay", train[:REPLAYED] if age == "old" else []),
        ):
            splits.setdefault(split, []).extend(more)
    for split, rows in splits.items():
        lines = (json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text("".join(lines))


def measure(bert: Any, texts: dict, seed: int, folder: pathlib.Path) -> dict:
    """The accuracies of a seed, by how the new labels were learned."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(texts, seed, folder)

    def train(name: str, rows: str, dev: str, **more: Any) -> Any:
        return adapter_bert.train(
            bert,
            str(folder / f"{rows}.jsonl"),
            str(folder / f"{dev}.jsonl"),
            output_dir=str(folder / name),
            seed=seed,
            **{**SETTINGS, **more},
        )

    old = train("old", "old", "old_dev")
    found: Dict[str, Any] = {}
    for way, more in WAYS.items():
        if "replay_file" in more:
            path = str(folder / more["replay_file"])
            more = {**more, "replay_file": path}
        run = train(
            way,
            "new",
            "dev",
            adapter=old,
            extend_labels=True,
            learning_rate=RATE,
            **more,
        )
        written = pathlib.Path(run.output_dir) / "forgetting.json"
        of = json.loads(written.read_text())
        found["old adapter"] = {"old": of["old_labels"]["before"]}
        for name, when in (("imprinted", "imprinted"), (way, "after")):
            found[name] = {
                "old": of["old_labels"][when],
                "new": of["new_labels"][when],
            }
        found[way]["among_old"] = of["old_labels"]["after_among_old"]
    whole = train("all", "all", "dev")
    found["all rows"] = {
        age: adapter_bert.evaluate(
            bert, whole, str(folder / f"{age}_dev.jsonl")
        )["accuracy"]
        for age in ("old", "new")
    }
    return found


def main() -> None:
    """Measures all seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--sms", default="")
    parser.add_argument("--squad", default="")
    parser.add_argument("--init_checkpoint", required=True)
    parser.add_argument("--kept", type=pathlib.Path, required=True)
    asked = parser.parse_args()
    asked.kept.mkdir(parents=True, exist_ok=True)
    texts = read(asked.data, asked.sms, asked.squad, asked.kept)
    bert = adapter_bert.load_bert(asked.init_checkpoint)
    by_seed = [
        measure(bert, texts, seed, asked.kept / str(seed)) for seed in SEEDS
    ]
    results: Dict[str, Any] = {}
    for way, scores in by_seed[0].items():
        results[way] = {
            age: [found[way][age] for found in by_seed] for age in scores
        }
        for age, values in results[way].items():
            shown = " ".join(f"{x:.3f}" for x in values)
            print(f"{way}, {age}: {np.mean(values):.3f} ({shown})")
    files.write_json(str(asked.kept / "forgotten_labels.json"), results)


if __name__ == "__main__":
    command_line.run(main)
