"""The models that a server has, by the names that clients use."""

import gc
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import (
    Any,
    Callable,
    NamedTuple,
    Optional,
    Union,
)

from absl import logging

from adapter_bert.errors import UserError
from adapter_bert.serving.model_versions import (
    ModelVersions,
    VersionFolder,
    VersionPolicy,
    VersionState,
    look_of,
)
from adapter_bert.serving.served import ServedModel
from adapter_bert.serving.shadow import Shadow


class ModelEntry(NamedTuple):
    """A model of a file of models.

    Attributes:
        folder: that of its versions.
        labels: versions by another name.
    """

    name: str
    folder: str
    policy: VersionPolicy
    labels: Mapping[str, str]


class NotServed(Exception):
    """There is no such model, version or label, in words for the client."""


class ServedModels:
    """Models by name, which a thread brings up to date.

    Attributes:
        models: by name, the first one first. Replaced, never changed, since
            other threads read it.
        shadow: what a model is compared with.
    """

    def __init__(
        self,
        models: Mapping[str, ModelVersions],
        shadow: Optional[Shadow] = None,
    ):
        self.models: dict[str, ModelVersions] = dict(models)
        self.shadow = shadow
        self._read: Optional[Callable[[], Sequence[ModelEntry]]] = None
        self._looking = threading.Lock()
        # The last problem that the log has.
        self._told = ""
        # Entries that could not be loaded, what their files looked like, and
        # why.
        self._refused: dict[str, tuple[Any, str]] = {}
        # Versions of models that have gone, and may have requests still.
        self._leaving: list[weakref.ref[ServedModel]] = []

    @classmethod
    def of_file(
        cls, read: Callable[[], Sequence[ModelEntry]]
    ) -> "ServedModels":
        """The models of a file, which may change.

        Args:
            read: `model_config.read_config` of the file.
        """
        made = cls({one.name: _folder(one) for one in read()})
        made._read = read
        return made

    def find(self, name: str) -> ModelVersions:
        """The model of a name; raises NotServed."""
        models = self.models
        if name not in models:
            known = ", ".join(map(repr, models))
            raise NotServed(f"no model {name[:80]!r}; there is {known}")
        return models[name]

    def states(
        self, name: str, version: str = "", label: str = ""
    ) -> list[VersionState]:
        """States of a version, by default of all; raises NotServed."""
        model = self.find(name)
        version = _number(name, model, version, label)
        found = [one for one in model.states() if version in ("", one.version)]
        if not found:
            raise NotServed(f"no version {version[:20]} of {name!r}")
        return found

    def version(
        self, name: str, version: str = "", label: str = ""
    ) -> ServedModel:
        """A version that answers, by default the newest; raises NotServed."""
        model = self.find(name)
        version = _number(name, model, version, label)
        served = model.served
        version = version or list(served)[-1]
        if version not in served:
            raise NotServed(
                f"no version {version[:20]} of {name!r}; there is "
                f"{', '.join(served)}"
            )
        return served[version]

    def look(self) -> None:
        """Looks for changes of all models, and for other models."""
        problems = []
        with self._looking:
            try:
                self._look_at_file()
            except UserError as error:
                problems.append(error)
            self._see_leaving()
            looking: list[Union[ModelVersions, Shadow]] = [
                *self.models.values()
            ]
            # Behind the model that it is compared with.
            if self.shadow:
                looking.append(self.shadow)
            for model in looking:
                try:
                    model.look()
                except UserError as error:
                    problems.append(error)
        if problems:
            raise problems[0]

    def _look_at_file(self) -> None:
        """Takes models in and leaves them out as the file has them."""
        if not self._read:
            return
        problem = ""
        models: dict[str, ModelVersions] = {}
        refused, self._refused = self._refused, {}
        for entry in self._read():
            model = self.models.get(entry.name)
            if isinstance(model, VersionFolder) and (
                model.folder == entry.folder
            ):
                model.policy, model.labels = entry.policy, entry.labels
                models[entry.name] = model
                continue
            seen = entry, look_of(entry.folder)
            before, reason = refused.get(entry.name, (None, ""))
            if seen != before:
                try:
                    models[entry.name] = _folder(entry)
                    logging.info("added the model %s", entry.name)
                    continue
                except UserError as error:
                    reason = str(error)
            problem = reason
            self._refused[entry.name] = seen, reason
            if model:
                models[entry.name] = model
        for name in set(self.models) - set(models):
            logging.info("removed the model %s", name)
        # One that answers is better than none.
        models = models or self.models
        self._leaving += [
            weakref.ref(version)
            for model in self.models.values()
            if model not in models.values()
            for version in model.served.values()
        ]
        self.models = models
        if problem:
            raise UserError(problem)

    def _see_leaving(self) -> None:
        """Frees what has gone and has no request any more."""
        if self._leaving:
            # What TensorFlow has loaded refers to itself.
            gc.collect()
        self._leaving = [one for one in self._leaving if one()]

    def watch(self, seconds: float) -> None:
        """Looks every so many seconds, in a thread."""

        def run() -> None:
            while True:
                time.sleep(seconds)
                try:
                    self.look()
                    self._told = ""
                except UserError as error:
                    if self._told != str(error):
                        logging.warning("%s", error)
                    self._told = str(error)
                except Exception:  # noqa: BLE001 - what is loaded goes on.
                    logging.exception("cannot look for changes")

        threading.Thread(target=run, name="watch", daemon=True).start()


def _number(name: str, model: ModelVersions, version: str, label: str) -> str:
    """A version's number, "" for any; raises NotServed for no label."""
    if not label:
        return version
    if label not in model.labels:
        raise NotServed(f"no label {label[:80]!r} of {name!r}")
    return model.labels[label]


def _folder(entry: ModelEntry) -> VersionFolder:
    return VersionFolder(entry.folder, entry.policy, entry.labels)
