"""Records what this version writes, for later versions to read.

    python tests/record_compat.py tests/compat/NAME

NAME is the version's. `test_compat.py` reads all that lies in `tests/compat`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

TEXTS = [
    "the cat sat on the mat .",
    "a slow film , not good",
    "is the dog out ?",
]
ROWS = [
    {
        "text": f"{subject} {verb} {place} .",
        "label": "good" if subject.endswith("cat") else "bad",
        "number": number,
        "b": f"{subject} {place}",
    }
    for number, (subject, verb, place) in enumerate(
        (subject, verb, place)
        for subject in ("the cat", "a dog", "a slow cat", "the bad dog")
        for verb in ("sat", "ran")
        for place in ("on the mat", "in", "out , fast")
    )
]
WORDS = [
    {"tokens": row["text"].split(), "tags": ["B-X", *["O"] * n]}
    for row in ROWS
    for n in [len(row["text"].split()) - 1]
]
QUESTIONS = [
    {
        "id": str(row["number"]),
        "question": "is the cat in ?",
        "context": row["text"],
        "answers": {
            "text": [row["text"].split()[2]],
            "answer_start": [row["text"].find(row["text"].split()[2])],
        },
    }
    for row in ROWS
]
# Name -> rows and settings of a training; one for each kind of task.
RUNS = {
    "classes": (
        ROWS,
        {
            "dev_share": 0.34,
            "calibrate": True,
            "abstain_at": 0.5,
            "tuning_method": "houlsby(size=4)",
            "num_train_epochs": 3,
        },
    ),
    "pairs": (ROWS, {"text_b_column": "b", "tuning_method": "lora(rank=2)"}),
    "numbers": (
        ROWS,
        {
            "label_column": "number",
            "regression": True,
            "tuning_method": "ia3",
        },
    ),
    "sets": (
        [{**row, "label": [row["label"], row["b"]]} for row in ROWS],
        {"multi_label": True, "tuning_method": "prefix(length=2)"},
    ),
    "choices": (
        [{**row, "c": "a dog", "label": row["number"] % 2} for row in ROWS],
        {"choice_columns": ["b", "c"], "tuning_method": "bitfit"},
    ),
    "tags": (WORDS, {"task_name": "tagging", "tuning_method": "compacter(8)"}),
    "questions": (
        QUESTIONS,
        {
            "task_name": "squad",
            "max_query_length": 8,
            "doc_stride": 4,
            "tuning_method": "full",
        },
    ),
    "vectors": (
        ROWS,
        {
            "task_name": "vectors",
            "text_b_column": "b",
            "tuning_method": "pfeiffer(size=4)",
        },
    ),
    "words": (
        TEXTS * 4,
        {"task_name": "masked_lm", "tuning_method": "mad_x(size=4)"},
    ),
    "other": (ROWS, {"tuning_method": "pfeiffer(size=4)"}),
    "sparse": (ROWS, {"tuning_method": "lt_sft(sparsity=0.02)"}),
}
SETTINGS = {
    "num_train_steps": 4,
    "train_batch_size": 8,
    "learning_rate": 3e-3,
    "max_seq_length": 24,
    "cpu_lanes": 1,
}
KILLED = {
    "tuning_method": "houlsby(size=2)",
    "num_train_steps": 400,
    "save_checkpoints_steps": 50,
}
# The runs whose folder is kept; other adapters lie in the library.
KEPT = ("classes", "words")
# What a row of each task is, if it is no text.
ASKED = {
    "pairs": [(text, "a dog") for text in TEXTS],
    "choices": [(text, "a dog", "the cat") for text in TEXTS],
    "questions": [("is the cat in ?", text) for text in TEXTS],
}


def settings_of(name):
    """The settings of a run; steps give way to epochs."""
    settings = {**SETTINGS, **RUNS[name][1]}
    if "num_train_epochs" in settings:
        del settings["num_train_steps"]
    return settings


def train(name, bert, folder):
    """Trains one of `RUNS`."""
    import adapter_bert as ab

    return ab.train(
        bert, RUNS[name][0], output_dir=folder / name, **settings_of(name)
    )


def go_on(bert, folder):
    """The training that was killed, and what ends it."""
    import adapter_bert as ab

    return ab.train(bert, ROWS, output_dir=folder, **{**SETTINGS, **KILLED})


def answers(bert, shelf):
    """The answers of all tasks of a library but masked words, by name."""
    import adapter_bert as ab

    predictor = ab.Predictor(bert, shelf)
    return {
        name: list(predictor.predict(ASKED.get(name, TEXTS), task=name))
        for name in predictor.names
    }


def main():
    """Writes the folder."""
    place = Path(sys.argv[1]).absolute()
    if len(sys.argv) > 2:
        import adapter_bert as ab

        go_on(ab.load_bert(place / "bert"), place / "killed")
        return
    sys.path.insert(0, os.path.dirname(__file__))
    import conftest

    import adapter_bert as ab

    place.mkdir(parents=True)
    config = conftest.tiny_config.__wrapped__()
    values = conftest.tiny_weights.__wrapped__(config)
    (place / "bert").mkdir()
    conftest.write_bert(place / "bert", conftest.TINY_WORDS, config, values)
    bert = ab.load_bert(place / "bert")
    shelf = ab.Library(place / "library")
    for name in RUNS:
        run = train(name, bert, place / "runs")
        if name != "words":
            shelf.add(run.adapter, name=name)
        if name not in KEPT:
            shutil.rmtree(run.output_dir)
    fused = ab.train(
        bert,
        ROWS,
        output_dir=place / "runs" / "fused",
        library=shelf.path,
        **{**SETTINGS, "tuning_method": "fusion(other, vectors)"},
    )
    shelf.add(fused.adapter, name="fused")
    (place / "answers.json").write_text(
        json.dumps(answers(bert, shelf), indent=1)
    )
    words = [sys.executable, __file__, str(place), "go on"]
    process = subprocess.Popen(words)
    while not list((place / "killed").glob("*-100.index")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = place / "ended"
    shutil.copytree(place / "killed", kept)
    ended = go_on(bert, kept)
    shutil.copytree(ended.adapter, place / "ended_adapter")
    shutil.rmtree(kept)


if __name__ == "__main__":
    main()
