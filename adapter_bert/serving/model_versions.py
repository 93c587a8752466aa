"""Versions of a model that is served, of which some come and some go.

Source: TensorFlow Serving, "Configuration". A version that is new in the folder
of an exported model is loaded and answers rows before requests get there. The
version before goes when all of its requests have ended.
"""

import abc
import dataclasses
import gc
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import (
    Callable,
    NamedTuple,
    Optional,
)

from absl import logging

from adapter_bert.errors import UserError
from adapter_bert.serving.exported import (
    ExportedModel,
    no_version,
    shown_names,
    versions_in,
)
from adapter_bert.serving.live_library import LiveLibrary, log_left_out
from adapter_bert.serving.served import ServedExport, ServedModel

# States of a version, in TensorFlow Serving's words.
LOADING, AVAILABLE, UNLOADING, END = "LOADING", "AVAILABLE", "UNLOADING", "END"


class VersionState(NamedTuple):
    """A version's state.

    Attributes:
        error: why it could not be loaded; else empty.
    """

    version: str
    state: str
    error: str = ""


@dataclasses.dataclass(frozen=True)
class VersionPolicy:
    """The versions of a folder that are served.

    Attributes:
        latest: as many of the newest; None for all.
        specific: these alone, if there are any.
    """

    latest: Optional[int] = 1
    specific: tuple[str, ...] = ()

    def choose(self, versions: Sequence[str]) -> list[str]:
        """Those to serve of a folder's versions, both from old to new."""
        if self.specific:
            return [one for one in versions if one in self.specific]
        return list(versions)[-self.latest if self.latest else None :]


class ModelVersions(abc.ABC):
    """The versions of a model that answer.

    Attributes:
        labels: versions by another name.
    """

    labels: Mapping[str, str] = {}

    @property
    @abc.abstractmethod
    def served(self) -> Mapping[str, ServedModel]:
        """Those that answer, by number, from old to new; never empty."""

    @abc.abstractmethod
    def states(self) -> list[VersionState]:
        """States from new to old."""

    @property
    @abc.abstractmethod
    def left_out(self) -> Mapping[str, str]:
        """Why a task or a version cannot be served, by name or number."""

    @abc.abstractmethod
    def look(self) -> None:
        """Looks for changes; raises UserError if there is nothing to see."""


class LibraryVersion(ModelVersions):
    """A library, whose version stays while its tasks come and go."""

    def __init__(self, model: LiveLibrary):
        self._model = model

    @property
    def served(self):
        return {self._model.version: self._model}

    def states(self):
        return [VersionState(self._model.version, AVAILABLE)]

    @property
    def left_out(self):
        return self._model.left_out

    def look(self):
        self._model.look()


def load_export(folder: str, version: str) -> ServedModel:
    """A version that has answered a row of each task; raises UserError."""
    exported = ExportedModel(folder, version)
    exported.warm_up()
    return ServedExport(exported)


class VersionFolder(ModelVersions):
    """The versions of an exported model that a policy chooses.

    Attributes:
        policy: may be set; the next look follows.
    """

    def __init__(
        self,
        folder: str,
        policy: VersionPolicy,
        labels: Mapping[str, str],
        load: Callable[[str, str], ServedModel] = load_export,
    ):
        """Loads the versions; raises UserError if one cannot be.

        Args:
            folder: holds a folder for each version.
            policy: chooses some.
            labels: versions by another name.
            load: gives a version, ready to answer.
        """
        self.folder, self.policy, self.labels = folder, policy, labels
        self._load = load
        # Replaced, never changed, since other threads read it.
        self._served: dict[str, ServedModel] = {}
        self._states: dict[str, VersionState] = {}
        # Versions that may have requests still.
        self._leaving: dict[str, weakref.ref[ServedModel]] = {}
        # What the files of a version looked like that could not be loaded.
        self._refused: dict[str, Sequence[object]] = {}
        found = versions_in(folder)
        wanted = policy.choose(found)
        lacking = sorted(set(policy.specific) - set(found), key=int)
        if lacking or not wanted:
            known = shown_names(found) or "none"
            raise UserError(
                f"{folder} holds no version {', '.join(lacking)}; there are: "
                f"{known}"
                if lacking
                else no_version(folder)
            )
        for version in wanted:
            self._add(version, load(folder, version))

    @property
    def served(self):
        return self._served

    def states(self):
        states = dict(self._states)
        return [states[one] for one in sorted(states, key=int, reverse=True)]

    @property
    def left_out(self):
        states = dict(self._states)
        return {
            one: found.error for one, found in states.items() if found.error
        }

    def look(self):
        """Loads versions that are new, and lets others go.

        One that cannot be loaded is logged and left out, and tried again when
        its files change. The last version that answers stays.
        """
        found = versions_in(self.folder)
        wanted = self.policy.choose(found)
        for version in set(self.left_out) - set(wanted):
            self._tell(version, END)
            self._refused.pop(version, None)
        for version in wanted:
            if version not in self._served:
                self._try(version)
        if set(wanted) & set(self._served):
            for version in set(self._served) - set(wanted):
                self._drop(version)
        self._see_leaving()
        if not found:
            raise UserError(f"{self.folder} holds no version any more")

    def _tell(self, version: str, state: str, error: str = "") -> None:
        told = VersionState(version, state, error)
        self._states = {**self._states, version: told}

    def _try(self, version: str) -> None:
        """Loads a version, if its files are others than those refused."""
        seen = look_of(os.path.join(self.folder, version))
        if self._refused.get(version) == seen:
            return
        before = self._states.get(version)
        if not (before and before.error):
            self._tell(version, LOADING)
        try:
            model = self._load(self.folder, version)
        except Exception as error:  # noqa: BLE001 - what answers goes on.
            self._refused[version] = seen
            reason = log_left_out(
                f"version {version}", error, before.error if before else ""
            )
            self._tell(version, END, reason)
            return
        self._refused.pop(version, None)
        self._add(version, model)

    def _add(self, version: str, model: ServedModel) -> None:
        served = {**self._served, version: model}
        self._served = {one: served[one] for one in sorted(served, key=int)}
        self._leaving.pop(version, None)
        self._tell(version, AVAILABLE)
        logging.info("%s: version %s answers", self.folder, version)

    def _drop(self, version: str) -> None:
        self._leaving[version] = weakref.ref(self._served[version])
        self._served = {n: x for n, x in self._served.items() if n != version}
        self._tell(version, UNLOADING)
        logging.info("%s: version %s goes", self.folder, version)

    def _see_leaving(self) -> None:
        """Ends versions that have no request any more."""
        if not self._leaving:
            return
        # What TensorFlow has loaded refers to itself.
        gc.collect()
        for version, model in list(self._leaving.items()):
            if model() is None:
                del self._leaving[version]
                self._tell(version, END)
                logging.info("%s: version %s has gone", self.folder, version)


def look_of(folder: str) -> list[object]:
    """Name, size and time of each file in a folder."""
    found: list[object] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            try:
                state = os.stat(path)
            except OSError:
                # It goes just now.
                continue
            found.append((path, state.st_size, state.st_mtime_ns))
    return found
