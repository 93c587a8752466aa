"""A library of adapters that is served while it changes.

A thread looks at the library's folder. A new or replaced adapter is loaded, and
answers a row, before it answers requests; so its graph is traced while the
others go on. A row keeps the adapter that it was accepted for, so no request is
lost when a task goes.
"""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from absl import logging

from adapter_bert.answering.answers import Answer, output_fields, to_outputs
from adapter_bert.answering.explanations import check_explained, fault_of
from adapter_bert.answering.predictor import Predictor
from adapter_bert.answering.trained_task import LoadedTask, check_row, describe
from adapter_bert.answering.trained_task import TextRow as Texts
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.errors import UserError, first_line
from adapter_bert.graph.exported import (
    CHOICES,
    EMBED,
    EMBEDDING,
    SIGNATURE,
    TEXTS,
    Row,
    example,
    problem,
)
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.server.shelf import ANSWER, EXPLAIN, Question, Shelf
from adapter_bert.tasks import kinds

# Inputs. The second axis of the outputs `labels` and `scores` is as long as the
# most labels of a served task; `tokens` and `tags` as long as the most words of
# a request's rows; `vector` has none if no row has a vector.
OF_TEXTS = dict.fromkeys(TEXTS, kinds.TEXT)
INPUTS = {**OF_TEXTS, CHOICES: kinds.TEXTS}
# Files of an adapter that are loaded.
FILES = (adapter_artifact.CONFIG_FILE, adapter_artifact.WEIGHTS_FILE)
# Each file's inode, size and times, or None without the file.
State = tuple[Optional[tuple[int, ...]], ...]


class LiveTask(NamedTuple):
    """A task of the library in memory.

    Attributes:
        description: of `describe`.
        state: of its files when it was loaded.
    """

    loaded: LoadedTask
    description: Mapping[str, Any]
    state: State


class LiveLibrary(Shelf):
    """A library's tasks that answer texts, as the folder has them."""

    # A library has no versions; each answer names its adapter.
    version = "1"

    def __init__(self, library: AdapterLibrary, predictor: Predictor):
        """Loads the tasks; `predictor` has none of its own."""
        self._library, self._predictor = library, predictor
        # Replaced, never changed, since other threads read it.
        self._tasks: dict[str, LiveTask] = {}
        self.left_out: dict[str, str] = {}
        self._states: dict[str, State] = {}
        self._looking = threading.Lock()
        # The last problem that the log has.
        self._logged = ""
        self.look()

    @property
    def tasks(self):
        return {name: task.description for name, task in self._tasks.items()}

    @property
    def signatures(self):
        """Signatures of answers, and of vectors if a task gives them."""
        of_tasks = [task["kind"] for task in self.tasks.values()]
        outputs = {"adapter": kinds.TEXT, **output_fields(of_tasks)}
        signatures = {SIGNATURE: _described(INPUTS, outputs)}
        if kinds.VECTORS in of_tasks:
            vectors = {EMBEDDING: kinds.NUMBERS}
            signatures[EMBED] = _described(OF_TEXTS, vectors)
        return signatures

    def watch(self, seconds: float) -> None:
        """Looks every so many seconds, in a thread."""

        def run() -> None:
            while True:
                time.sleep(seconds)
                try:
                    self.look()
                    self._logged = ""
                except UserError as error:
                    if self._logged != str(error):
                        logging.warning("%s", error)
                    self._logged = str(error)
                except Exception:  # noqa: BLE001 - what is loaded goes on.
                    logging.exception("cannot look for changes")

        threading.Thread(target=run, name="watch", daemon=True).start()

    def look(self) -> None:
        """Loads new and replaced adapters; those missing twice go.

        An adapter that cannot be loaded is logged and left out; if it replaces
        a served one, that goes on.
        """
        with self._looking:
            self._look()

    def _look(self) -> None:
        names = self._library.names()
        states = {name: self._state(name) for name in names}
        gone = sorted(set(self._tasks) - set(names))
        if gone:
            self._library.check_removed(gone)
        # One that is removed and added again answers meanwhile.
        for name in [n for n in gone if n not in self._states]:
            self._tasks = {n: t for n, t in self._tasks.items() if n != name}
            logging.info("removed %s", name)
        is_changed, self._states = states != self._states, states
        self.left_out = {
            name: why for name, why in self.left_out.items() if name in states
        }
        for name, state in states.items():
            served = self._tasks.get(name)
            if served and served.state == state:
                self.left_out.pop(name, None)
                continue
            # The part that an adapter lacks may have come.
            if is_changed or name not in self.left_out:
                self._load(name, state)

    def _load(self, name: str, state: State) -> None:
        try:
            folder = self._library.folder(name)
            loaded = self._predictor.open(folder)
            self._warm_up(loaded, folder)
        except Exception as error:  # noqa: BLE001 - what answers goes on.
            # A failed read may pass, and is tried again at the next look.
            if isinstance(error.__cause__ or error, OSError):
                self._states = {**self._states, name: ()}
            # It may have gone by now.
            if name in self._library.names():
                self._leave_out(name, error)
            return
        self.left_out.pop(name, None)
        done = "replaced" if name in self._tasks else "added"
        task = LiveTask(loaded, describe(name, loaded), state)
        self._tasks = {**self._tasks, name: task}
        logging.info("%s %s, adapter %s", done, name, loaded.sha256[:12])

    def _leave_out(self, name: str, error: Exception) -> None:
        traceback, reason = None, str(error)
        if not isinstance(error, UserError):
            traceback, reason = error, first_line(error)
        if reason != self.left_out.get(name):
            logging.warning(
                "%s is left out: %s", name, reason, exc_info=traceback
            )
        self.left_out[name] = reason

    def _warm_up(self, loaded: LoadedTask, folder: str) -> None:
        rows = [(loaded, _example(loaded))]
        self._predictor.answer_each(rows)
        if not loaded.can_mix:
            return
        served = [task.loaded for task in self._tasks.values()]
        mixing = (other for other in served if other.can_mix)
        # The first has a copy of itself next to it, so that the next one of
        # its kind finds a traced graph.
        other = next(mixing, None) or self._predictor.open(folder)
        rows.append((other, _example(other)))
        self._predictor.answer_each(rows)

    def _state(self, name: str) -> State:
        folder = os.path.join(self._library.path, name)
        return tuple(_stat(os.path.join(folder, file)) for file in FILES)

    def accept(self, row, kind=ANSWER):
        name = row.task.decode("utf-8", "replace")
        tasks = self._tasks
        task = tasks.get(name)
        some = {name: task} if task else tasks
        described = {n: one.description for n, one in some.items()}
        fault = problem(described, row)
        if fault:
            raise UserError(fault)
        if kind == EMBED and task.description["kind"] != kinds.VECTORS:
            raise UserError(
                f"the task {name} gives answers, and no vectors; ask a task of "
                f"the kind {kinds.VECTORS}, or export it with --embeddings"
            )
        if kind == EXPLAIN:
            check_explained(task.loaded, name)
        texts = _texts(row, task.loaded)
        check_row(texts, task.loaded, f"the task {name}")
        return Question(name, task, texts, kind)

    def compute(self, questions):
        results = self._predictor.answer_each(
            [(question.of.loaded, question.row) for question in questions],
            explains=any(one.kind == EXPLAIN for one in questions),
        )
        return [
            answer["vector"] if question.kind == EMBED else answer
            for question, answer in zip(questions, results)
        ]

    def explained(self):
        tasks = self._tasks.items()
        return [name for name, task in tasks if not fault_of(task.loaded)]

    def count_tokens(self, questions):
        """Counts tokens that are read, special ones and a prompt's too."""
        loaded = questions[0].of.loaded
        rows = loaded.task.make_rows([question.row for question in questions])
        features = loaded.task.featurize(
            rows, loaded.tokenizer, loaded.max_seq_length
        )
        return int(features.lengths.sum())

    def outputs(self, questions, results):
        served = [task.description for task in self._tasks.values()]
        # A task that has gone since may have more labels.
        served += [question.of.description for question in questions]
        labels = max((len(t.get("labels", ())) for t in served), default=0)
        tasks = [question.of.description for question in questions]
        return [
            {"adapter": question.of.loaded.sha256, **outputs}
            for question, outputs in zip(
                questions, to_outputs(tasks, results, labels)
            )
        ]

    def answer(self, question, result):
        return Answer(adapter=question.of.loaded.sha256, **result)


def _stat(path: str) -> Optional[tuple[int, ...]]:
    with contextlib.suppress(OSError):
        stat = os.stat(path)
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
    return None


def _described(
    inputs: Mapping[str, kinds.Field], outputs: Mapping[str, kinds.Field]
) -> dict[str, Any]:
    """A signature as JSON of TensorFlow's `SignatureDef`."""
    described = {
        side: {
            name: {
                "name": name,
                "dtype": field.dtype,
                "tensor_shape": {"dim": [{"size": "-1"}] * field.axes},
            }
            for name, field in members.items()
        }
        for side, members in (("inputs", inputs), ("outputs", outputs))
    }
    return {**described, "method_name": "tensorflow/serving/predict"}


def _texts(row: Row, loaded: LoadedTask) -> Texts:
    def decode(text: Any) -> Any:
        if isinstance(text, tuple):
            return tuple(map(decode, text))
        return text.decode("utf-8", "ignore")

    texts = [row.text]
    # An empty second text is one where a task needs two.
    if row.text_b or min(loaded.numbers_of_texts) - len(row.choices) > 1:
        texts.append(row.text_b)
    return tuple(map(decode, [*texts, *row.choices]))


def _example(loaded: LoadedTask) -> Texts:
    return _texts(example(describe("", loaded)), loaded)
