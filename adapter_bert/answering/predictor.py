"""Texts in, answers out, by any number of adapters on one BERT.

from adapter_bert.answering.predictor import Predictor

predictor = Predictor.load("bert_base", {"mrpc": "out/mrpc/adapter"})
predictor("mrpc", ("He sat down.", "He took a seat."))
# {"label": "1", "probability": 0.97, "scores": {"0": 0.03, "1": 0.97}}
"""

import itertools
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from adapter_bert.answering.answers import Answer
from adapter_bert.answering.explanations import check_explained, explain
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.joint_answers import Group, compute, compute_frozen
from adapter_bert.answering.row_stream import chunks
from adapter_bert.answering.task_tables import MixedBert
from adapter_bert.answering.trained_task import (
    LoadedTask,
    TextRow,
    as_row,
    check_row,
    load_task,
    task_name,
)
from adapter_bert.errors import UserError
from adapter_bert.tasks.novelty import NOVELTY

# One task's answer, or the answers of several tasks by name.
OneOrAll = Union[Answer, dict[str, Answer]]


class Predictor:
    """Answers with any number of adapters on one BERT, in common batches.

    Threads may call, add and remove at the same time. Truncated rows are
    counted in `cut_rows`.
    """

    def __init__(
        self,
        bert: FrozenBert,
        batch_size: int = 32,
        max_seq_length: Optional[int] = None,
        adapter_dtype: str = "float32",
        library: str = "",
    ):
        """Starts without adapters.

        Inputs have up to `max_seq_length` tokens, by default each adapter's;
        `adapter_dtype` is of mixed adapters in memory. Missing parts are looked
        for in the folder `library`.
        """
        self._bert = bert
        self._batch_size = batch_size
        self._max_seq_length = max_seq_length
        self._library = library
        self._loaded: dict[str, LoadedTask] = {}
        self._tables = MixedBert(bert, adapter_dtype)
        self._lock = threading.Lock()
        self.cut_rows = 0

    @classmethod
    def load(
        cls,
        bert: str,
        adapters: Union[Mapping[str, str], Iterable[str]] = (),
        **options: Any,
    ) -> "Predictor":
        """Opens a BERT and adapters; folders alone get their tasks' names."""
        predictor = cls(FrozenBert.open(bert), **options)
        if not isinstance(adapters, Mapping):
            folders = list(adapters)
            names = list(map(task_name, folders))
            for name in names:
                if names.count(name) > 1:
                    raise UserError(
                        f"two adapters are of the task {name}; give each a "
                        "name, as first=FOLDER"
                    )
            adapters = dict(zip(names, folders))
        for name, folder in adapters.items():
            predictor.add(folder, name)
        return predictor

    @property
    def names(self) -> list[str]:
        """Names of the loaded tasks."""
        return list(self._loaded)

    def task(self, name: str) -> LoadedTask:
        """Finds a loaded task."""
        loaded = self._loaded.get(name)
        if loaded is None:
            names = ", ".join(self.names)[:200] or "none"
            raise UserError(f"no adapter is called {name!r}; loaded: {names}")
        return loaded

    def add(
        self,
        folder: str,
        name: Optional[str] = None,
        exchanged: Optional[Mapping[str, str]] = None,
    ) -> str:
        """Loads an adapter, or replaces the one of this name, which it returns.

        `exchanged` are adapters in the places of parts, by the parts' names.
        """
        loaded = self.open(folder, exchanged)
        name = name or loaded.task.name
        with self._lock:
            # A new dictionary: other threads may be reading the old one.
            self._loaded = {**self._loaded, name: loaded}
        return name

    def open(
        self, folder: str, exchanged: Optional[Mapping[str, str]] = None
    ) -> LoadedTask:
        """Loads an adapter for `answer_each`, under no name."""
        loaded = load_task(
            self._bert, folder, self._max_seq_length, self._library, exchanged
        )
        if not loaded.task.answers_texts:
            raise UserError(
                f"{folder} was trained on the task {loaded.task.name}, which "
                "answers no texts; expected an adapter of a task that does"
            )
        return loaded

    def remove(self, name: str) -> None:
        """Unloads an adapter."""
        with self._lock:
            self.task(name)
            self._loaded = {
                n: loaded for n, loaded in self._loaded.items() if n != name
            }

    def __call__(
        self,
        name: Union[str, list[str]],
        texts: Union[str, TextRow, list, Iterable],
        explains: bool = False,
    ) -> Union[OneOrAll, list[OneOrAll], Iterator[OneOrAll]]:
        """Answers texts.

        Args:
            name: a task, or a list of tasks.
            texts: a row (a text, or a tuple of texts), a list of rows, or an
                iterable of rows, which is read `CHUNK` at a time. For tagging
                a row in a list may be a list of words.
            explains: adds an `explanation` to each answer.

        Returns:
            An answer, a list, or an iterator of answers; for a list of names
            a dictionary of answers by name in place of each.
        """
        names = name if isinstance(name, list) else [name]
        if not names:
            raise UserError("no task is named")
        tasks = {n: self.task(n) for n in names}
        numbers = itertools.count(1)

        def answer(rows: Sequence) -> list[OneOrAll]:
            places = [f"row {next(numbers)}" for _ in rows]
            made = list(map(as_row, rows, places))
            by_task = self.answer_all([*tasks.values()], made, places, explains)
            if not isinstance(name, list):
                return by_task[0]
            return [dict(zip(tasks, answers)) for answers in zip(*by_task)]

        if isinstance(texts, (str, tuple)):
            return answer([texts])[0]
        if isinstance(texts, list):
            return answer(texts)
        return itertools.chain.from_iterable(map(answer, chunks(texts)))

    def ask(
        self,
        questions: Sequence[tuple[str, Union[str, TextRow, list[str]]]],
        explains: bool = False,
    ) -> list[Answer]:
        """Answers (task name, row) pairs in order; rows are as in calls."""
        tasks: dict[str, LoadedTask] = {}
        rows = []
        for number, (name, texts) in enumerate(questions):
            if name not in tasks:
                tasks[name] = self.task(name)
            where = f"row {number + 1}"
            row = as_row(texts, where)
            check_row(row, tasks[name], where)
            rows.append((tasks[name], row))
        return self.answer_each(rows, explains)

    def answer_all(
        self,
        tasks: Sequence[LoadedTask],
        rows: Sequence[TextRow],
        places: Sequence[str],
        explains: bool = False,
    ) -> list[list[Answer]]:
        """Each task's answers, in the order of the rows.

        `places` name the rows in messages.
        """
        for row, where in zip(rows, places):
            for loaded in tasks:
                check_row(row, loaded, where)
        questions = [(loaded, row) for loaded in tasks for row in rows]
        answers = iter(self.answer_each(questions, explains, True))
        return [list(itertools.islice(answers, len(rows))) for _ in tasks]

    def answer_each(
        self,
        questions: Sequence[tuple[LoadedTask, TextRow]],
        explains: bool = False,
        shares_texts: bool = False,
    ) -> list[Answer]:
        """Answers rows that fit their tasks, in order.

        With `shares_texts` tasks that read the same rows alike share tokens,
        and batches with the tasks of as many others.
        """
        # Only a task that takes both texts and pairs has rows of two sizes.
        by_task: dict[tuple[int, int], list[int]] = {}
        for number, (loaded, row) in enumerate(questions):
            by_task.setdefault((id(loaded), len(row)), []).append(number)
        groups: dict[Hashable, Group] = {}
        for numbers in by_task.values():
            loaded = questions[numbers[0]][0]
            rows = tuple(questions[n][1] for n in numbers)
            key: Hashable = id(loaded), len(rows[0])
            if shares_texts:
                # Tokenizers exist once for each BERT and case.
                tokenizer = id(loaded.tokenizer), loaded.max_seq_length
                key = loaded.task.reading or id(loaded), tokenizer, rows
            group = groups.setdefault(key, Group([], rows))
            group.tasks.append(loaded)
            group.numbers.append(numbers)
            if explains:
                check_explained(loaded)
        cut_rows = sum(one.features.cut_rows for one in groups.values())
        with self._lock:
            self.cut_rows += cut_rows
        several = list(groups.values())
        outputs = iter(compute(self._tables, several, self._batch_size))
        frozen = compute_frozen(self._bert, several, self._batch_size)
        answers = [Answer()] * len(questions)
        for group, features in zip(several, frozen):
            for loaded, numbers in zip(group.tasks, group.numbers):
                made = map(Answer, group.answers(loaded, next(outputs)))
                for number, answer in zip(numbers, made):
                    answers[number] = answer
                if sketch := loaded.task.novelty:
                    for number, share in zip(numbers, sketch.shares(features)):
                        answers[number][NOVELTY] = share
        if explains:
            for (loaded, row), answer in zip(questions, answers):
                answer["explanation"] = explain(
                    self._bert, loaded, row, answer, self._batch_size
                )
        return answers
