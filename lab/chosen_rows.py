r"""Measures what `adapter-bert select` saves against rows chosen at random.

    .venv/bin/python -m lab.chosen_rows sms=SMSSpamCollection \
        sst2=$GLUE_DIR/SST-2/train.tsv,$GLUE_DIR/SST-2/dev.tsv \
        --init_checkpoint=$(.venv/bin/adapter-bert minilm) --kept=out/chosen

SMS spam's file is the published one, whose every fourth row is held out; of
SST-2 the first 5,000 rows are the pool. The first labelled rows are drawn at
random, the same ones for `random` and `margin`. In each round rows are chosen
and labelled, a model is trained anew on all labelled rows, and scored on the
rows held out. `k_centre` needs no labels, so it chooses all rows at once.

The models are linear heads on frozen layers, as those of `adapter-bert audit`.
With --tuning_method they are adapters, all trained for as many steps. --kept is
a folder for outputs of frozen layers and for `chosen_rows.json`, which gets the
curves; other files or another BERT need another folder. --figure draws all
curves of this file.
"""

import argparse
import json
import pathlib
from typing import Callable, Dict, List, Sequence, Tuple

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
from matplotlib.figure import Figure

from adapter_bert import command_line, files
from adapter_bert.commands import audit, run_classifier, select
from adapter_bert.data.divisions import Texts
from adapter_bert.data.tables import Layout, Rows, read_rows
from adapter_bert.flags import of_keywords
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.tasks import metrics
from adapter_bert.training import out_of_fold, run_from_flags
from lab import flipped_labels

RANDOM, HEADS = "random", "linear heads"
SEEDS = (1, 2, 3)
# Labelled rows at each training.
SIZES = "50,100,150,200,300,400,600,800"
SCORES: Dict[str, Tuple[str, Callable]] = {
    "sms": ("F1 of spam", metrics.f1),
    "sst2": ("accuracy", metrics.accuracy),
}
COLOURS = {
    RANDOM: "#0072B2",
    select.MARGIN: "#E69F00",
    select.K_CENTRE: "#009E73",
}
# Of adapters.
SETTINGS = {
    "task_name": run_classifier.CUSTOM,
    "max_seq_length": flipped_labels.LENGTH,
    "learning_rate": 1e-3,
    "adam_bias_correction": True,
    "num_train_steps": 200,
    "train_batch_size": 16,
    "eval_batch_size": 64,
    "cpu_lanes": 1,
}
# Labelled rows -> probabilities of all rows, float [N, C].
Learn = Callable[[np.ndarray], np.ndarray]
# (rows to choose, rows not labelled, their probabilities) -> chosen rows
Choose = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


def prepare(
    name: str, paths: List[str], kept: pathlib.Path
) -> Tuple[Rows, int]:
    """The rows of the pool, then those held out, and the number of the pool."""
    parts = [flipped_labels.read(name, path, kept) for path in paths]
    if len(parts) == 1:
        [rows] = parts
        held_out = np.arange(len(rows)) % 4 == 3
        parts = [rows.take(~held_out), rows.take(held_out)]
    lines = [
        json.dumps({"text": text, "label": label})
        for part in parts
        for text, label in zip(part.text_a, part.label)
    ]
    path = kept / f"{name}.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return read_rows(str(path), Layout("text", label="label")), len(parts[0])


def learn_heads(vectors: np.ndarray, labels: np.ndarray, seed: int) -> Learn:
    """Linear heads, regularized as those of an audit."""

    def learn(labelled: np.ndarray) -> np.ndarray:
        inputs, own = vectors[labelled], labels[labelled]
        texts = [vector.tobytes() for vector in inputs]
        fold = Texts(texts, own[:, np.newaxis].tolist()).folds(
            flipped_labels.FOLDS, seed
        )
        count = labels.max() + 1
        _, strength = audit.guess(inputs, own, fold, count)
        return audit.fit_head(inputs, own, count, strength)(vectors)

    return learn


def learn_adapters(
    rows: Rows, init_checkpoint: str, method: str, seed: int, kept: str
) -> Learn:
    """Adapters, over frozen layers that are computed once."""
    flags = {
        **SETTINGS,
        "tuning_method": method,
        "seed": seed,
        "train_file": rows.path,
        "init_checkpoint": init_checkpoint,
        "output_dir": kept,
        "frozen_layers_dir": kept,
    }
    with of_keywords(run_classifier.SETTINGS, flags, "chosen_rows"):
        experiment = run_from_flags.experiment_from_flags(
            run_classifier.task_from_flags(), "", SETTINGS["eval_batch_size"]
        )
    task, _ = experiment.task.read("", ["train"])
    trainings = out_of_fold.Trainings(experiment, task, rows, kept)

    def learn(labelled: np.ndarray) -> np.ndarray:
        about = f"{len(labelled)} rows"
        outputs = trainings.predict(labelled, np.arange(len(rows)), about)
        return task.results(outputs)

    return learn


def ways(
    vectors: np.ndarray, first: int, last: int, seed: int
) -> Dict[str, Tuple[np.ndarray, Choose]]:
    """The first rows, and the choice of the next, by each way's name.

    Takes the pool's vectors, and the first and last number of labelled rows.
    """
    order = np.random.default_rng(seed).permutation(len(vectors))
    centres, _ = select.k_centre(vectors, last)

    def in_order(order: np.ndarray) -> Choose:
        return lambda count, rest, _: order[np.isin(order, rest)][:count]

    def margin(count, rest, probabilities):
        return rest[select.least_sure(probabilities, rest, count)[0]]

    return {
        RANDOM: (order[:first], in_order(order)),
        select.MARGIN: (order[:first], margin),
        select.K_CENTRE: (centres[:first], in_order(centres)),
    }


def curve(
    learn: Learn,
    first: np.ndarray,
    choose: Choose,
    sizes: Sequence[int],
    labels: np.ndarray,
    pool: int,
    score: Callable,
) -> List[float]:
    """The scores, in percent, at some numbers of labelled rows."""
    labelled, found = first, []
    for size, following in zip(sizes, [*sizes[1:], sizes[-1]]):
        probabilities = learn(labelled)
        answers = probabilities[pool:].argmax(axis=1)
        found.append(100 * float(score(labels[pool:], answers)))
        rest = np.setdiff1d(np.arange(pool), labelled)
        more = choose(following - size, rest, probabilities[rest])
        labelled = np.concatenate([labelled, more])
    return found


def rows_needed(
    sizes: Sequence[int], scores: Sequence[float], wanted: float
) -> float:
    """Labelled rows at which a curve first reaches a score; NaN if never.

    Between two sizes the curve is a line.
    """
    reached = np.flatnonzero(np.asarray(scores) >= wanted)
    if not len(reached):
        return float("nan")
    around = slice(max(0, reached[0] - 1), reached[0] + 1)
    return float(np.interp(wanted, scores[around], sizes[around]))


def draw(record: dict, path: str) -> None:
    """Means over seeds, with the least and the greatest scores."""
    figure = Figure(figsize=(6 * len(record) + 0.4, 4.2), layout="constrained")
    panels = figure.subplots(1, len(record), squeeze=False)[0]
    for axes, (title, about) in zip(panels, record.items()):
        for way, scores in about["curves"].items():
            colour, sizes = COLOURS[way], about["sizes"]
            low, high = np.min(scores, axis=0), np.max(scores, axis=0)
            axes.plot(
                sizes, np.mean(scores, axis=0), "o-", color=colour, label=way
            )
            axes.fill_between(sizes, low, high, color=colour, alpha=0.15, lw=0)
        axes.set_title(title)
        axes.set_xlabel("labelled rows")
        axes.set_ylabel(f"{about['score']}, %")
        axes.legend()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Measures the named files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--init_checkpoint")
    parser.add_argument("--kept", type=pathlib.Path, required=True)
    parser.add_argument("--tuning_method")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--ways", default=",".join(COLOURS))
    parser.add_argument("--figure")
    asked = parser.parse_args()
    asked.kept.mkdir(parents=True, exist_ok=True)
    record_file = asked.kept / "chosen_rows.json"
    record = json.loads(record_file.read_text()) if record_file.exists() else {}
    sizes, names = list(map(int, asked.sizes.split(","))), asked.ways.split(",")
    for name, paths in (text.split("=", 1) for text in asked.data):
        rows, pool = prepare(name, paths.split(","), asked.kept)
        vectors_file = asked.kept / f"{name}.npy"
        if not vectors_file.exists():
            bert = FrozenBert.open(asked.init_checkpoint)
            found = audit.layer_means(bert, rows, flipped_labels.LENGTH)
            np.save(vectors_file, found)
        vectors = np.load(vectors_file)
        # As `select` has them: of the last layer, of length 1.
        last_layer = vectors[:pool, -vectors.shape[1] // audit.LAYERS :]
        lengths = np.linalg.norm(last_layer, axis=1, keepdims=True)
        labels = np.unique(rows.label, return_inverse=True)[1]
        title, score = SCORES[name]
        curves: Dict[str, List] = {way: [] for way in names}
        for seed in SEEDS:
            if asked.tuning_method:
                learn = learn_adapters(
                    rows,
                    asked.init_checkpoint,
                    asked.tuning_method,
                    seed,
                    str(asked.kept),
                )
            else:
                learn = learn_heads(vectors, labels, seed)
            known = ways(last_layer / lengths, sizes[0], sizes[-1], seed)
            for way in names:
                found = curve(learn, *known[way], sizes, labels, pool, score)
                curves[way].append(found)
        model = asked.tuning_method or HEADS
        record[f"{name}, {model}"] = {
            "score": title,
            "pool": pool,
            "held_out": len(rows) - pool,
            "sizes": sizes,
            "curves": curves,
        }
        files.write_json(str(record_file), record)
        wanted = np.mean(curves[RANDOM], axis=0)[-1]
        for way, scores in curves.items():
            means = np.mean(scores, axis=0)
            shown = " ".join(f"{x:.1f}" for x in means)
            needed = rows_needed(sizes, means, wanted)
            print(f"{name} {way} {shown}: {needed:.0f} rows for {wanted:.1f}")
    if asked.figure:
        draw(record, asked.figure)


if __name__ == "__main__":
    command_line.run(main)
