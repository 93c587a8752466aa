"""A library: trained adapters on one BERT, each in a named folder.

`LIBRARY/<name>/` holds an adapter as a run writes it, and `library_entry.json`
with its date and its run's scores. A process that changes a library holds the
lock, writes into a hidden folder and renames that folder. The next process
deletes what killed processes left.
"""

import contextlib
import dataclasses
import datetime
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.checkpoints import adapter_artifact, part_values, run_record
from adapter_bert.checkpoints.adapter_artifact import INDICES, VALUES, Artifact
from adapter_bert.data.tables import READERS, ending_of
from adapter_bert.errors import UserError
from adapter_bert.exchange import foreign_adapters
from adapter_bert.methods import registry
from adapter_bert.tasks import task_model
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.kinds import (
    ANSWERLESS,
    RERANK,
    TAGGING,
    VECTORS,
    kind_of,
)
from adapter_bert.tasks.tagging_files import FORMATS

ENTRY_FILE = "library_entry.json"
ENTRY = {
    "added?": str,
    "scores?": dict,
    "scores?.*": float,
    "data?": dict,
    "data?.*": str,
}
LOCK_FILE = ".lock"
# Beginning of the names of hidden folders with unfinished work.
UNFINISHED = ".unfinished-"
# Stands for all adapters.
ALL = "all"
# Tasks whose names do not tell the data, and endings of data files.
OWN_DATA = ("custom", TAGGING, VECTORS, RERANK, *ANSWERLESS)
DATA_ENDS = (*READERS, *FORMATS, ".txt")
# Endings of pickles.
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@dataclasses.dataclass(frozen=True)
class Entry:
    """An adapter of a library, as lists show it.

    Attributes:
        kind: by `adapter_bert.tasks.kinds.kind_of`.
        labels: labels or tags, in the order of the logits.
        parameters: number of values in the adapter.
        bytes: size of the weights' file.
        scores: the run's evaluation by metric, the main metric first.
        data: SHA-256 of the scored data, by split.
        added: date and time, UTC, ISO 8601; "" if it was copied by hand.
        base: name of its BERT's folder.
        base_fingerprint: SHA-256 of its BERT.
    """

    name: str
    task: str
    kind: str
    labels: list[str]
    method: str
    parameters: int
    bytes: int
    scores: dict[str, float]
    data: dict[str, str]
    added: str
    base: str
    base_fingerprint: str


class AdapterLibrary:
    """Adapters in a folder, which several processes may change at once."""

    def __init__(self, path: str, create: bool = False):
        """Opens a local folder, with `create` a new one."""
        if "://" in path:
            raise UserError(
                f"the library {path} is not on a local disk, where alone "
                "processes can wait for one another"
            )
        if create:
            files.prepare_folder(path)
        if not files.is_folder(path):
            raise UserError(
                f"there is no library {path}; expected a folder of adapters, "
                "which adapter-bert library add makes"
            )
        self.path = path
        self._passed_over: set[str] = set()

    def names(self) -> list[str]:
        """Lists all adapters in order, damaged ones too.

        Links out of the library, and folders of adapters with names that
        `check_name` refuses, are passed over with a warning.
        """
        real = os.path.realpath(self.path)
        return [x for x in files.names(self.path) if self._is_adapter(x, real)]

    def _is_adapter(self, name: str, real: str) -> bool:
        folder = os.path.join(self.path, name)
        if name.startswith(".") or not os.path.isdir(folder):
            return False
        if os.path.dirname(os.path.realpath(folder)) != real:
            self._pass_over(name, "is a link out of the library")
        elif _is_name(name):
            return True
        elif os.path.exists(os.path.join(folder, adapter_artifact.CONFIG_FILE)):
            self._pass_over(name, "has a name that no adapter can have")
        return False

    def _pass_over(self, name: str, why: str) -> None:
        if name not in self._passed_over:
            self._passed_over.add(name)
            logging.warning(
                "%s is passed over: it %s; `adapter-bert library add` copies "
                "an adapter into the library",
                ascii(os.path.join(self.path, name)),
                why,
            )

    def check_removed(self, names: Iterable[str]) -> None:
        """Refuses to take adapters that are out of sight for removed ones.

        A disk that goes away leaves an empty folder. A loss of rights leaves
        names that lead nowhere.
        """
        lock = os.path.join(self.path, LOCK_FILE)
        for name in names:
            files.exists(os.path.join(self.path, name))
        if not (self.names() or files.exists(lock)):
            raise UserError(
                f"the library {self.path} is empty, without {LOCK_FILE} too, "
                "as if its disk were away; bring it back, or start the server "
                "again if all adapters were removed"
            )

    def folder(self, name: str) -> str:
        """Gives an adapter's folder, which holds no links."""
        folder = self._place(name)
        for file in files.names(folder):
            path = os.path.join(folder, file)
            # A link may lead to anything; a library writes none.
            if os.path.islink(path):
                raise UserError(
                    f"{path} is a link, expected a file; remove the adapter, "
                    "and add it again"
                )
        return folder

    def _place(self, name: str) -> str:
        # Without a look at all others, which may be thousands.
        real = os.path.realpath(self.path)
        if not (_is_name(name) and self._is_adapter(name, real)):
            listed = ", ".join(self.names())[:200] or "none"
            raise UserError(
                f"the library {self.path} has no adapter {name!r}; it has: "
                f"{listed}"
            )
        return os.path.join(self.path, name)

    def answering(self) -> list[str]:
        """Lists the adapters that answer texts, or are damaged."""
        names = []
        for name in self.names():
            try:
                if self.entry(name).kind in ANSWERLESS:
                    logging.info("%s is passed over: it answers no texts", name)
                    continue
            except UserError:
                # Another process may have removed it by now.
                if name not in self.names():
                    continue
            names.append(name)
        return names

    def entry(self, name: str) -> Entry:
        """Describes an adapter without its weights."""
        folder = self.folder(name)
        config = adapter_artifact.read_config(folder)
        path = os.path.join(folder, ENTRY_FILE)
        added = files.read_optional(path, "an adapter's entry", ENTRY)
        task = config["task"]
        weights = os.path.join(folder, adapter_artifact.WEIGHTS_FILE)
        return Entry(
            name=name,
            task=task["name"],
            kind=kind_of(task),
            labels=list(map(str, task.get("labels") or task.get("tags") or ())),
            method=config["method"],
            parameters=config.get("parameters", {}).get("kept", 0),
            bytes=files.size(weights),
            scores=added.get("scores") or {},
            data=added.get("data") or {},
            added=added.get("added", ""),
            base=config["base"].get("name", ""),
            base_fingerprint=config["base"]["fingerprint"],
        )

    def add(self, folder: str, name: Optional[str] = None) -> str:
        """Copies an adapter, or a run's adapter, into the library.

        The name, by default `default_name`, is returned. What has this name
        already stays if it is the same adapter, and gets the run's scores.
        """
        folder = _find_artifact(folder)
        artifact = check(folder)
        name = default_name(artifact.config) if name is None else name
        check_name(name)
        scores, data = _read_scores(folder, artifact.config)
        with self._changing() as unfinished:
            if name in self.names() and _are_same(
                check(self.folder(name)).config, artifact.config
            ):
                if scores:
                    path = os.path.join(self.folder(name), ENTRY_FILE)
                    entry = files.read_optional(
                        path, "an adapter's entry", ENTRY
                    )
                    entry.update(scores=scores, data=data)
                    files.write_sealed(path, entry)
                return name
            self._check_new(name, artifact)
            os.mkdir(unfinished)
            copy_adapter(folder, unfinished)
            now = datetime.datetime.now(datetime.timezone.utc)
            added = now.isoformat(timespec="seconds")
            files.write_sealed(
                os.path.join(unfinished, ENTRY_FILE),
                {"added": added, "scores": scores, "data": data},
            )
            # Name, checks and scores belong to the first reading.
            if adapter_artifact.read_config(folder) != artifact.config:
                raise UserError(
                    f"{folder} was replaced while it was copied; start the "
                    "same command again"
                )
            adapter_artifact.read(unfinished)
            self._move(unfinished, os.path.join(self.path, name))
        try:
            part_values.check_parts(os.path.join(self.path, name))
        except UserError as error:
            logging.warning("%s cannot be used yet: %s", name, error)
        return name

    def remove(self, name: str, force: bool = False) -> None:
        """Deletes an adapter, with `force` also one that others need."""
        with self._changing() as unfinished:
            needing = ", ".join(self._needing(name))[:200]
            if needing and not force:
                raise UserError(
                    f"{name} is a part of {needing}, which cannot be used "
                    "without it; remove that first, or pass --force"
                )
            if needing:
                logging.warning(
                    "without %s these cannot be used any more: %s",
                    name,
                    needing,
                )
            self._move(self._place(name), unfinished)

    def _needing(self, name: str) -> list[str]:
        gone = set(part_values.by_hash([self.path])) - set(
            part_values.by_hash([self.path], without=self._place(name))
        )
        needing = []
        for other in self.names():
            # A damaged adapter's parts are unknown.
            with contextlib.suppress(UserError):
                config = adapter_artifact.read_config(self.folder(other))
                needed = part_values.lacking(config).values()
                if other != name and not gone.isdisjoint(needed):
                    needing.append(other)
        return needing

    def rename(self, name: str, new_name: str) -> None:
        """Renames an adapter."""
        check_name(new_name)
        with self._changing():
            folder = self._place(name)
            others = [other for other in self.names() if other != name]
            self.check_free(new_name, others)
            self._move(folder, os.path.join(self.path, new_name))

    def _move(self, folder: str, new: str) -> None:
        os.rename(folder, new)
        files.sync(self.path)

    def _check_new(self, name: str, artifact: Artifact) -> None:
        names = self.names()
        self.check_free(name, names)
        config = artifact.config
        for other in names:
            try:
                entry = adapter_artifact.read_config(self.folder(other))
            except UserError:
                # `verify` reports damaged adapters.
                continue
            base, new_base = entry["base"], config["base"]
            if base["fingerprint"] != new_base["fingerprint"]:
                raise UserError(
                    f"the adapter is for another BERT ({new_base.get('name')}, "
                    f"fingerprint {new_base['fingerprint'][:12]}) than those "
                    f"of the library {self.path} ({base.get('name')}, "
                    f"{base['fingerprint'][:12]}); expected one BERT for all; "
                    "choose another library"
                )
            if _are_same(entry, config):
                raise UserError(
                    f"the library {self.path} has this adapter already: it is "
                    f"called {other!r}; adapter-bert library rename gives it "
                    "another name"
                )

    def check_free(self, name: str, names: list[str]) -> None:
        """Refuses a name of another, whatever its capital letters."""
        for other in names:
            if other.lower() == name.lower():
                raise UserError(
                    f"the library {self.path} has an adapter {other!r} "
                    "already (capital letters make no other name); pass "
                    "another --name, or remove that one"
                )

    @contextlib.contextmanager
    def _changing(self) -> Iterator[str]:
        left = re.escape(UNFINISHED) + ".*"
        with folder_lock.hold(self.path, LOCK_FILE, True, left):
            unfinished = os.path.join(
                self.path, f"{UNFINISHED}{uuid.uuid4().hex}"
            )
            try:
                with files.writing(self.path):
                    yield unfinished
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)


def _are_same(entry: dict[str, Any], config: dict[str, Any]) -> bool:
    # A calibration is among the settings.
    same = ("sha256", "method", "task", "task_settings")
    return all(entry.get(key) == config.get(key) for key in same)


def copy_adapter(folder: str, new: str) -> None:
    """Copies an adapter's weights and description into another folder."""
    for file in (adapter_artifact.WEIGHTS_FILE, adapter_artifact.CONFIG_FILE):
        content = files.read_bytes(os.path.join(folder, file), "a file")
        files.write_bytes(os.path.join(new, file), content)


def default_name(config: dict[str, Any]) -> str:
    """Gives the task's name, or a valid name of the user's data but `train`."""
    task = config["task"]["name"]
    name = config.get("data_name") or ""
    if ending_of(name) in DATA_ENDS:
        name = os.path.splitext(name)[0]
    if task in OWN_DATA and name != "train" and _is_name(name):
        return name
    return task


def _is_name(name: str) -> bool:
    return bool(files.NAME.fullmatch(name)) and name.lower() != ALL


def check_name(name: str) -> None:
    """Refuses what no adapter's folder may be called."""
    if not _is_name(name):
        raise UserError(
            f"{name[:120]!r} cannot be an adapter's name; expected up to 100 "
            "letters, digits, dots, dashes and underscores, a letter or a "
            f"digit first, and not {ALL!r}; pass another --name"
        )


def check(folder: str) -> Artifact:
    """Reads an adapter, and compares its weights with its description."""
    artifact = adapter_artifact.read(folder)
    config, source = artifact.config, artifact.weights.source
    bert = run_record.bert_config(config, source)
    method = registry.parse(config["method"])
    task = restore_task(config["task"], config.get("task_settings", {}), source)
    table = task_model.list_parameters(bert, method, task.build_head)
    expected = {p.name: p.shape for p in table.trained}
    parts = {p.name: p.shape for p in table.parameters if p.group == "parts"}
    if config.get("carries_parts"):
        expected.update(parts)
    of_bert = {p.name for p in table.trained if not p.is_added}
    shapes = dict(artifact.weights.shapes)
    changed = {n[: -len(INDICES)] for n in shapes if n.endswith(INDICES)}
    if changed <= of_bert | set(parts):
        # Only changed entries are stored, and of BERT's own perhaps none.
        for name in changed:
            shapes.pop(name + INDICES)
            shapes.pop(name + VALUES, None)
        left_out = changed | (of_bert if changed & of_bert else set())
        expected = {n: s for n, s in expected.items() if n not in left_out}
    for name in sorted(set(expected) | set(shapes)):
        if expected.get(name) != shapes.get(name):
            raise UserError(
                f"{source}: {name} has the shape {shapes.get(name)}, but "
                f"{config['method']} on this task has {expected.get(name)} "
                "(None: no such variable)"
            )
    for name in shapes:
        if not np.isfinite(artifact.weights.read(name)).all():
            raise UserError(f"{source}: {name} holds what is no finite number")
    return artifact


def _find_artifact(folder: str) -> str:
    program = foreign_adapters.detect(folder)
    if program:
        raise UserError(
            f"{folder} is an adapter of {program}'s; `adapter-bert library "
            "import` takes it in"
        )
    adapter = part_values.adapter_in(folder)
    place = adapter or folder
    if not files.is_folder(place):
        raise UserError(f"there is no folder {folder}")
    names = sorted(files.listed(place))
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles and adapter_artifact.WEIGHTS_FILE not in names:
        raise UserError(
            f"{os.path.join(place, pickles[0])} is a pickle, which can run any "
            f"program when it is read; expected {adapter_artifact.WEIGHTS_FILE}"
        )
    if not adapter:
        raise UserError(
            f"{folder} holds no adapter: {adapter_artifact.CONFIG_FILE} is "
            "missing"
        )
    return adapter


def _read_scores(
    folder: str, config: dict[str, Any]
) -> tuple[dict[str, float], dict[str, str]]:
    """Reads a run's scores, and SHA-256 of the scored data; {} without a run.

    Scores of other weights than the adapter's do not count.
    """
    run = os.path.dirname(os.path.abspath(folder))
    if not files.exists(os.path.join(run, run_record.RUN_FILE)):
        return {}, {}
    results = run_record.read_results(run)
    step = config.get("checkpoint", "").rpartition("-")[2]
    if str(results.get("global_step")) != step:
        return {}, {}
    return run_record.scores_in(results), results.get("dev_data") or {}
