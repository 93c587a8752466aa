"""Several tasks that are learned together, each with its own head.

The tasks share what the tuning method trains. Each batch is of one task, drawn
with a probability that grows with its number of rows.

Sources: Stickland and Murray 2019 (PALs), on the sampling of tasks, and their
code, `run_multi_task.py`; Pfeiffer et al. 2021 (AdapterFusion), section 2.2.2,
which calls such adapters MT-A.
"""

import dataclasses
import hashlib
import os
import re
import statistics
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig, CreateVariable
from adapter_bert.data.input_pipeline import Features, Texts, TrainPlan
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError
from adapter_bert.tasks.task import Head, Task, scoped, unscoped, with_suffix
from adapter_bert.tasks.text_task import TextTask

# Tasks are drawn in proportion to a power of their number of rows. The exponent
# is a function of the epoch, from 1, and the last epoch.
SAMPLINGS: dict[str, Callable[[int, int], float]] = {
    "annealed": lambda epoch, last: 1 - 0.8 * (epoch - 1) / max(1, last - 1),
    "proportional": lambda epoch, last: 1.0,
    "square_root": lambda epoch, last: 0.5,
    "uniform": lambda epoch, last: 0.0,
}


def of_one_task(features: Features, number: int) -> Texts:
    """Makes batches of a task's rows hold its number among the tasks."""
    rows = features.tokens, features.segments, features.starts
    ids = np.full(len(features), number, np.int32)
    return Texts(*rows, features.labels, features.cut_rows, {"task_ids": ids})


@dataclasses.dataclass(frozen=True)
class JoinedFeatures(Texts):
    """Rows of several tasks, task by task; `counts` are rows by task.

    Labels are those of all tasks, zeros where a row is of another one.
    """

    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def join(cls, features: Mapping[str, Features]) -> "JoinedFeatures":
        of_tasks = list(features.values())
        *firsts, count = np.cumsum([0, *(len(one.tokens) for one in of_tasks)])
        starts = [one.starts[:-1] + n for one, n in zip(of_tasks, firsts)]
        counts = {name: len(one) for name, one in features.items()}
        ids = np.arange(len(counts), dtype=np.int32)
        ids = np.repeat(ids, list(counts.values()))
        labels = {}
        for number, (task, one) in enumerate(features.items()):
            for name, values in sorted(one.labels.items()):
                shape = len(ids), *values.shape[1:]
                of_all = labels[scoped(task, name)] = np.zeros(
                    shape, values.dtype
                )
                of_all[ids == number] = values
        return cls(
            np.concatenate([one.tokens for one in of_tasks]),
            np.concatenate([one.segments for one in of_tasks]),
            np.concatenate([*starts, [count]]),
            labels,
            sum(one.cut_rows for one in of_tasks),
            {"task_ids": ids},
            counts,
        )

    @property
    def firsts(self) -> np.ndarray:
        """int64 [tasks], the first row of each task."""
        return np.cumsum([0, *self.counts.values()])[:-1]

    def fingerprint(self):
        plain = dataclasses.replace(self, labels={})
        digest = hashlib.sha256(Features.fingerprint(plain).encode())
        for number, task in enumerate(self.counts):
            for name, of_all in self.labels.items():
                if name.startswith(scoped(task, "")):
                    values = of_all[self.columns["task_ids"] == number]
                    digest.update(f"{name} {len(values)}\0".encode())
                    digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()


def as_predicted(features: Features) -> Features:
    """Makes a training's rows fit a prediction, of one task at a time."""
    if not isinstance(features, JoinedFeatures):
        return features
    return of_one_task(features.unlabelled(), 0)


def choose_tasks(
    counts: Mapping[str, int],
    sampling: str,
    batch_size: int,
    num_steps: int,
    seed: int,
) -> np.ndarray:
    """Draws the task of every batch: int64 [num_steps], places in `counts`.

    `counts` are rows by task. An epoch is as many batches as hold all rows. A
    task that was never drawn gets one batch of the one that was drawn most.
    """
    rows = np.array(list(counts.values()), np.float64)
    drawn = np.random.default_rng([seed, 2]).random(num_steps)
    epochs = np.arange(num_steps) * batch_size // sum(counts.values()) + 1
    chosen = np.empty(num_steps, np.int64)
    numbers, starts = np.unique(epochs, return_index=True)
    for epoch, start, end in zip(numbers, starts, [*starts[1:], num_steps]):
        shares = rows ** SAMPLINGS[sampling](int(epoch), int(epochs[-1]))
        edges = np.cumsum(shares / shares.sum())[:-1]
        steps = slice(start, end)
        chosen[steps] = np.searchsorted(edges, drawn[steps], side="right")
    _give_each_task(chosen, list(counts))
    return chosen


def _give_each_task(chosen: np.ndarray, names: Sequence[str]) -> None:
    drawn = np.bincount(chosen, minlength=len(names))
    missing = np.flatnonzero(drawn == 0)
    for task in missing:
        common = drawn.argmax()
        if drawn[common] < 2:
            logging.warning(
                "%d steps give these tasks no batch, so their heads stay "
                "untrained: %s; raise --num_train_epochs",
                len(chosen),
                ", ".join(names[n] for n in np.flatnonzero(drawn == 0)),
            )
            return
        steps = np.flatnonzero(chosen == common)
        chosen[steps[len(steps) // 2]] = task
        drawn[task] += 1
        drawn[common] -= 1


class MultiTaskPlan:
    """Plans batches of several tasks; each one's plan advances when drawn."""

    def __init__(
        self,
        features: JoinedFeatures,
        sampling: str,
        batch_size: int,
        num_steps: int,
        seed: int,
        pool_batches: int,
    ):
        self._sampling = sampling
        self._firsts = features.firsts
        self.tasks = choose_tasks(
            features.counts, sampling, batch_size, num_steps, seed
        )
        # Earlier batches of the same task.
        self._places = np.empty(num_steps, np.int64)
        self._plans = []
        lengths = np.split(features.lengths, self._firsts[1:])
        for number, name in enumerate(features.counts):
            steps = np.flatnonzero(self.tasks == number)
            self._places[steps] = np.arange(len(steps))
            # No two tasks are shuffled alike.
            task_seed = seed ^ zlib.crc32(name.encode())
            sizes = batch_size, len(steps), task_seed, pool_batches
            self._plans.append(TrainPlan(lengths[number], *sizes))

    def __repr__(self) -> str:
        return f"MultiTaskPlan({self._sampling}, {self._plans})"

    def rows(self, step: int) -> np.ndarray:
        """int64 [batch size], the rows of the batch of `step` (from 0)."""
        task = self.tasks[step]
        return self._firsts[task] + self._plans[task].rows(self._places[step])


# The mean of the main scores of all tasks.
MEAN = "mean"
# Within the run's folder: the folders of each task's files.
FOLDER = "tasks"
# Names of folders, variables and scores are made of it.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclasses.dataclass(frozen=True)
class RowsByTask:
    """Rows of several tasks in training, of one task in other splits."""

    by_task: Mapping[str, Any]

    def __len__(self) -> int:
        return sum(map(len, self.by_task.values()))

    @property
    def only(self) -> tuple[str, Any]:
        [pair] = self.by_task.items()
        return pair


class MultiTaskHead(Head):
    """Heads of several tasks, all computed for each row.

    One graph for all tasks is worth computing small heads in vain. Only the
    loss of a row's own task counts, so the other heads' gradients are zero.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        config: BertConfig,
        create: CreateVariable,
    ):
        """Creates each task's variables under `tasks.<name>/`."""

        def scope(task: str) -> CreateVariable:
            return lambda name, *more: create(scoped(task, name), *more)

        self.heads = {
            name: task.build_head(config, scope(name))
            for name, task in tasks.items()
        }
        self.needs_pooler = any(h.needs_pooler for h in self.heads.values())
        self.reads_first_token = all(
            h.reads_first_token for h in self.heads.values()
        )

    def __call__(self, bert, sequence_output, context):
        """Each head's arrays [B, ...] as `tasks.<name>/<name of the array>`."""
        return {
            scoped(task, name): value
            for task, head in self.heads.items()
            for name, value in head(bert, sequence_output, context).items()
        }

    def loss(self, predictions, features):
        losses = []
        for number, (name, head) in enumerate(self.heads.items()):
            mine = unscoped(name, predictions), unscoped(name, features)
            losses_of_head = head.loss(*mine)
            is_of_head = tf.equal(features["task_ids"], number)
            losses.append(tf.where(is_of_head, losses_of_head, 0.0))
        return tf.add_n(losses)


@dataclasses.dataclass(frozen=True)
class MultiTask(Task[RowsByTask]):
    """Several tasks over tables of texts.

    A task's data are in the folder of its name, in any case of letters. Splits,
    suffixes and scores carry its name: `mrpc/dev`, `f1_mrpc`. Files of a task
    alone are in `tasks/<name>`, as its own run would write them. Each task
    answers texts, all together do not.
    """

    tasks: Mapping[str, TextTask]
    sampling: str

    answers_texts = False

    dev_splits = property(lambda self: self._splits("dev_splits"))
    test_splits = property(lambda self: self._splits("test_splits"))

    def _splits(self, kind: str):
        return tuple(
            (with_suffix(name, suffix), f"{name}/{split}")
            for name, task in self.tasks.items()
            for suffix, split in getattr(task, kind)
        )

    def describe(self):
        return {
            "tasks": {
                name: task.describe_named() for name, task in self.tasks.items()
            }
        }

    def restore(self, description, source):
        described = description.get("tasks")
        if (
            not isinstance(described, dict)
            or set(described) != set(self.tasks)
            or not all(
                isinstance(one, dict) and isinstance(one.get("name"), str)
                for one in described.values()
            )
        ):
            raise UserError(
                f"{source} was trained on {description['name']}, not on "
                f"{self.name} together; pass the --task_name that it was "
                "trained with"
            )
        return self._with(
            lambda name, task: task.restore(described[name], source)
        )

    def _with(self, change: Callable[[str, TextTask], TextTask]) -> "MultiTask":
        return dataclasses.replace(
            self, tasks={n: change(n, task) for n, task in self.tasks.items()}
        )

    def check_files(self, data_dir, splits):
        for name, task in self.tasks.items():
            folder = find_folder(data_dir, name)
            task.check_files(folder, list(_wanted(name, task, splits)))

    def read(self, data_dir, splits):
        tasks, rows = {}, {}
        for name, task in self.tasks.items():
            wanted = _wanted(name, task, splits)
            tasks[name], task_rows = task.read(
                find_folder(data_dir, name), list(wanted)
            )
            for split, joined in wanted.items():
                rows.setdefault(joined, {})[name] = task_rows[split]
        return (
            dataclasses.replace(self, tasks=tasks),
            {split: RowsByTask(rows[split]) for split in splits},
        )

    def first(self, rows: RowsByTask, count):
        items = rows.by_task.items()
        return RowsByTask({n: self.tasks[n].first(x, count) for n, x in items})

    def learn(self, rows: RowsByTask):
        return self._with(lambda name, task: task.learn(rows.by_task[name]))

    def go_on(self, description, source):
        described = description.get("tasks")
        if not isinstance(described, dict):
            described = {}
        objects = {
            name: x for name, x in described.items() if isinstance(x, dict)
        }
        return self._with(
            lambda name, task: task.go_on(objects.get(name, {}), source)
        )

    @property
    def training_settings(self):
        names = list(self.trained_together)
        return {"trained_together": names, "task_sampling": self.sampling}

    @property
    def score_names(self):
        return (
            MEAN,
            *(
                with_suffix(name, with_suffix(task_name, suffix))
                for task_name, task in self.tasks.items()
                for suffix, _ in task.dev_splits
                for name in task.score_names
            ),
        )

    @property
    def dev_score_names(self):
        return self.score_names

    @property
    def members(self):
        return {_folder(name): task for name, task in self.tasks.items()}

    @property
    def trained_together(self):
        return tuple(self.tasks)

    def summarize(self, rows: RowsByTask):
        if len(rows.by_task) == 1:
            name, task_rows = rows.only
            return self.tasks[name].summarize(task_rows)
        return ", ".join(f"{n} {len(x):,}" for n, x in rows.by_task.items())

    @property
    def least_length(self):
        return max(task.least_length for task in self.tasks.values())

    def featurize(
        self, rows: RowsByTask, tokenizer: TextTokenizer, max_seq_length
    ):
        features: dict[str, Features] = {
            name: self.tasks[name].featurize(
                task_rows, tokenizer, max_seq_length
            )
            for name, task_rows in rows.by_task.items()
        }
        if len(features) > 1:
            return JoinedFeatures.join(features)
        [(name, of_task)] = features.items()
        return of_one_task(of_task, list(self.tasks).index(name))

    def keep(self, rows: RowsByTask):
        items = rows.by_task.items()
        return RowsByTask({name: self.tasks[name].keep(x) for name, x in items})

    def build_head(self, config, create):
        return MultiTaskHead(self.tasks, config, create)

    def plan(self, features, batch_size, num_steps, seed, pool_batches):
        sizes = batch_size, num_steps, seed, pool_batches
        plan = MultiTaskPlan(features, self.sampling, *sizes)
        counts = ", ".join(
            f"{name} {(plan.tasks == number).sum():,}"
            for number, name in enumerate(features.counts)
        )
        how = "batches of each task (%s sampling): %s"
        logging.info(how, self.sampling, counts)
        return plan

    def decode(self, rows: RowsByTask, features, outputs):
        name, task_rows = rows.only
        return self.tasks[name].decode(
            task_rows, features, unscoped(name, outputs)
        )

    def evaluate(self, rows: RowsByTask, features, predictions):
        name, task_rows = rows.only
        return self.tasks[name].evaluate(task_rows, features, predictions)

    def score_tables(self, scores, data):
        """Makes each task's table, and the run's with `mean` and all scores.

        `mean` is over each task's main score on its first dev set.
        """
        named, everything = super().score_tables(scores, data)[""]
        mains, tables = [], {}
        for name, task in self.tasks.items():
            task_scores = {
                suffix: scores[with_suffix(name, suffix)]
                for suffix, _ in task.dev_splits
            }
            seen = {s: data[f"{name}/{s}"] for _, s in task.dev_splits}
            mains.append(next(iter(task_scores.values()))[task.score_names[0]])
            tables[_folder(name)] = task.score_tables(task_scores, seen)[""]
        named = {MEAN: statistics.fmean(mains), **named}
        return {"": (named, everything), **tables}

    def write_report(
        self, output_dir, rows: RowsByTask, features, predictions, suffix=""
    ):
        name, task_rows = rows.only
        place = os.path.join(output_dir, _folder(name))
        # Of `mnli_x` the task's own suffix is `x`.
        more = task_rows, features, predictions, suffix[len(name) + 1 :]
        return self.tasks[name].write_report(place, *more)

    def write_predictions(
        self, output_dir, rows: RowsByTask, predictions, suffix=""
    ):
        name, task_rows = rows.only
        place = os.path.join(output_dir, _folder(name))
        more = task_rows, predictions, suffix[len(name) + 1 :]
        return self.tasks[name].write_predictions(place, *more)


def _wanted(name: str, task: Task, splits: Sequence[str]) -> dict[str, str]:
    """Maps a task's own splits to their names among `splits`."""
    names = {"train": "train"}
    for _, split in (*task.dev_splits, *task.test_splits):
        names[split] = f"{name}/{split}"
    return {
        split: joined for split, joined in names.items() if joined in splits
    }


def _folder(name: str) -> str:
    return os.path.join(FOLDER, name)


def find_folder(data_dir: str, name: str) -> str:
    """Finds the folder of a task's data, in any case of letters."""
    if not data_dir:
        return ""
    folders = files.folders(data_dir)
    matches = [folder for folder in folders if folder.lower() == name.lower()]
    if len(matches) != 1:
        there = "no folder"
        if matches:
            there = f"the folders {' and '.join(matches)}"
        raise UserError(
            f"{data_dir} holds {there} for the task {name}; with several "
            "tasks, --data_dir must hold a folder for each, this one called "
            f"{name} in any case of letters"
        )
    return os.path.join(data_dir, matches[0])


def multi_task(tasks: Sequence[tuple[str, Task]], sampling: str) -> MultiTask:
    """Joins at least two tasks, by the names of their folders."""
    seen = set()
    for name, task in tasks:
        if not NAME.fullmatch(name):
            raise UserError(
                f"--task_name has the folder {name[:120]!r}; expected custom: "
                "and letters, digits, dots, dashes and underscores, a letter "
                "or a digit first, as custom:reviews"
            )
        if not isinstance(task, TextTask) or task.labelled.choices:
            raise UserError(
                f"the task {name} has choices, and cannot be trained together "
                "with others"
            )
        if task.trained_as:
            raise UserError(
                f"the task {name} has no training set; train {task.trained_as} "
                "instead, whose adapter answers it"
            )
        # The names of its splits; MNLI has two.
        splits = task.dev_splits
        suffixes = {with_suffix(name, suffix).lower() for suffix, _ in splits}
        if suffixes & seen:
            raise UserError(f"--task_name names {min(suffixes & seen)} twice")
        seen |= suffixes
    names = dict(sorted(tasks))
    return MultiTask(",".join(names), tasks=names, sampling=sampling)
