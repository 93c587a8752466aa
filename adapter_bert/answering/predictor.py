"""Texts in, answers out, by any number of adapters on one BERT.

from adapter_bert.answering.predictor import Predictor

predictor = Predictor.load("bert_base", {"mrpc": "out/mrpc/adapter"})
predictor("mrpc", ("He sat down.", "He took a seat."))
# {"label": "1", "probability": 0.97, "scores": {"0": 0.03, "1": 0.97}}
"""

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import (
    Any,
    Optional,
    Union,
)

from adapter_bert.answering.answers import Answer
from adapter_bert.answering.explanations import check_explained, explain
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.joint_answers import Group, compute, compute_frozen
from adapter_bert.answering.row_stream import CHUNK
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
            by_task = self.answer_all(
                [*tasks.values()],
                [*map(as_row, rows, places)],
                places,
                explains,
            )
            if not isinstance(name, list):
                return by_task[0]
            return [dict(zip(tasks, answers)) for answers in zip(*by_task)]

        if isinstance(texts, (str, tuple)):
            return answer([texts])[0]
        if isinstance(texts, list):
            return answer(texts)
        rows = iter(texts)
        chunks = iter(lambda: list(itertools.islice(rows, CHUNK)), [])
        return itertools.chain.from_iterable(map(answer, chunks))

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

    def answer_each(
        self,
        questions: Sequence[tuple[LoadedTask, TextRow]],
        explains: bool = False,
    ) -> list[Answer]:
        """Answers rows that fit their tasks, in order."""
        groups: dict[tuple[int, int], list[int]] = {}
        for number, (loaded, row) in enumerate(questions):
            groups.setdefault((id(loaded), len(row)), []).append(number)
        answers = self._answer(
            [row for _, row in questions],
            [
                ({key: questions[numbers[0]][0]}, numbers)
                for (key, _), numbers in groups.items()
            ],
            explains,
        )
        return [
            answers[id(loaded), n] for n, (loaded, _) in enumerate(questions)
        ]

    def answer_all(
        self,
        tasks: Sequence[LoadedTask],
        rows: Sequence[TextRow],
        places: Sequence[str] = (),
        explains: bool = False,
    ) -> list[list[Answer]]:
        """Each task's answers, in the order of the rows.

        `places` name the rows in messages; default: `row 1`, ...
        """
        for number, row in enumerate(rows):
            for loaded in tasks:
                where = places[number] if places else f"row {number + 1}"
                check_row(row, loaded, where)
        alike: dict[tuple, dict[int, LoadedTask]] = {}
        for number, loaded in enumerate(tasks):
            # Tokenizers exist once for each BERT and case.
            tokenizer = id(loaded.tokenizer)
            key = loaded.task.reading, tokenizer, loaded.max_seq_length
            alike.setdefault(key, {})[number] = loaded
        # Only a task that takes both texts and pairs has rows of two sizes.
        groups = [
            (some, [n for n, row in enumerate(rows) if len(row) == count])
            for some in alike.values()
            for count in sorted(set(map(len, rows)))
        ]
        answers = self._answer(rows, groups, explains)
        return [
            [answers[task, n] for n in range(len(rows))]
            for task in range(len(tasks))
        ]

    def _answer(
        self,
        rows: Sequence[TextRow],
        alike: Sequence[tuple[Mapping[Any, LoadedTask], Sequence[int]]],
        explains: bool,
    ) -> dict[tuple[Any, int], Answer]:
        """Answers by task and row number.

        `alike` has groups of tasks that read alike, and their rows' numbers.
        """
        if explains:
            for tasks, _ in alike:
                for loaded in tasks.values():
                    check_explained(loaded)
        groups = [
            Group(list(tasks.values()), [rows[n] for n in numbers])
            for tasks, numbers in alike
        ]
        with self._lock:
            self.cut_rows += sum(group.features.cut_rows for group in groups)
        outputs = iter(compute(self._tables, groups, self._batch_size))
        answers = {
            (key, number): Answer(answer)
            for group, (tasks, numbers) in zip(groups, alike)
            for key, loaded in tasks.items()
            for number, answer in zip(
                numbers, group.answers(loaded, next(outputs))
            )
        }
        frozen = compute_frozen(self._bert, groups, self._batch_size)
        for features, (tasks, numbers) in zip(frozen, alike):
            for key, loaded in tasks.items():
                if sketch := loaded.task.novelty:
                    for number, share in zip(numbers, sketch.shares(features)):
                        answers[key, number][NOVELTY] = share
        if explains:
            for tasks, numbers in alike:
                for (key, loaded), n in itertools.product(
                    tasks.items(), numbers
                ):
                    answer = answers[key, n]
                    answer["explanation"] = explain(
                        self._bert, loaded, rows[n], answer, self._batch_size
                    )
        return answers
