"""A cache of the outputs of frozen layers, below everything trained.

Without dropout, these layers compute the same in every epoch and run. Runs
share a file for each set of rows, BERT, number of layers and dtype.
"""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import math
import os
import re
import uuid
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.bert.hooks import layer_of
from adapter_bert.bert.shared_layers import POOLER
from adapter_bert.checkpoints.weights import choose_initial_values
from adapter_bert.data.input_pipeline import Batch, Features, sorted_batches
from adapter_bert.errors import UserError
from adapter_bert.methods.fine_tuning import HeadOnly
from adapter_bert.tasks import task_model
from adapter_bert.tasks.task import Head
from adapter_bert.tasks.task_model import BuildHead
from adapter_bert.training.engines import Engine, check_alone
from adapter_bert.training.extras import Extra
from adapter_bert.training.prediction import RowPredictor
from adapter_bert.training.run import Run
from adapter_bert.training.settings import INT8, Experiment
from adapter_bert.training.setup import Model
from adapter_bert.training.training_step import Job

# The outputs' name among features, next to the rows' other arrays.
FROZEN_OUTPUTS = "frozen_outputs"
# Version of the files' content.
FORMAT = 1
FOLDER = "frozen_layers"
LOCK = "frozen_layers.lock"
# Suffix of temporary files.
UNFINISHED = ".new"
LEFT = r".*\.npy\.\w+" + re.escape(UNFINISHED)
# Tokens of one write.
CHUNK_TOKENS = 65536
# On a TPU each call is a session of its own.
TPU_CHUNK_TOKENS = 2**19
GB = 1e9
# Errors of disks that cannot reserve room.
NOT_RESERVED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def lowest_layer(table: task_model.ParameterTable, layers: int) -> int:
    """Finds the lowest of L layers that differs from BERT's own, or may change.

    It is 0 also if anything acts on embeddings or on all layers, L if only the
    head, or BERT's pooler, is trained.
    """
    lowest = layers if table.hooks.by_values else 0
    for p in table.parameters:
        is_above = p.group == "head" or POOLER.fullmatch(p.name)
        if (p.trained or p.is_added) and not is_above:
            lowest = min(lowest, layer_of(p.name) or 0)
    return lowest


class Around:
    """Rows that are as `inner` but for what a subclass says."""

    def __init__(self, inner: Features):
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)


class KnownOutputs(Around):
    """Rows with the outputs of frozen layers.

    `outputs`, float32 or the bits of bfloat16 as uint16, are of all tokens
    [sum of lengths, D], or of first tokens [sequences, D].
    """

    def __init__(self, inner: Features, outputs: np.ndarray, first_token: bool):
        super().__init__(inner)
        self._outputs, self._first_token = outputs, first_token

    def added(self, length: Optional[int]) -> dict[str, tuple[tuple, type]]:
        width = 1 if self._first_token else length
        shape = *self.row_shape, width, self._outputs.shape[1]
        outputs = {FROZEN_OUTPUTS: (shape, self._outputs.dtype)}
        return {**self.inner.added(length), **outputs}

    def finish(
        self, batch: Batch, rows: np.ndarray, step: Optional[int]
    ) -> None:
        """Adds `frozen_outputs`, [B, ..., T or 1, D], zeros in padding."""
        self.inner.finish(batch, rows, step)
        sequences = self.sequences(rows)
        if self._first_token:
            outputs = self._outputs[sequences][..., np.newaxis, :]
        else:
            mask = batch["input_mask"].astype(bool)
            places = np.arange(mask.shape[-1])
            sources = (self.starts[sequences][..., np.newaxis] + places)[mask]
            shape = *mask.shape, self._outputs.shape[1]
            outputs = np.zeros(shape, self._outputs.dtype)
            outputs[mask] = self._outputs[sources]
        batch[FROZEN_OUTPUTS] = outputs


class UpperLayers(task_model.TaskModel):
    """Computes from the outputs of frozen layers, in batches that have them.

    These are float32 [B, T or 1, D] or the bits of bfloat16 as uint16, below
    the layer `lowest`.
    """

    def __init__(self, lowest: int, *arguments: Any):
        super().__init__(*arguments)
        self._lowest = lowest

    def encode(self, bert, ids, segments, features, context):
        """float32 [B, T or 1, D]."""
        if FROZEN_OUTPUTS not in features:
            return super().encode(bert, ids, segments, features, context)
        outputs = features[FROZEN_OUTPUTS]
        if outputs.dtype == tf.uint16:
            outputs = tf.bitcast(outputs, tf.bfloat16)
        size = outputs.shape[-1]
        outputs = tf.reshape(outputs, [-1, tf.shape(outputs)[-2], size])
        layers = range(self._lowest, bert.config.num_hidden_layers)
        layer_outputs = bert.run_layers(outputs, layers, context)
        return tf.cast(
            layer_outputs[-1] if layer_outputs else outputs, tf.float32
        )


class FrozenHead(Head):
    """Shows what frozen layers compute; it is not trained."""

    needs_pooler = False

    def loss(self, predictions, features):
        raise TypeError("what frozen layers compute has no loss")


class _Outputs(FrozenHead):
    def __init__(self, first_token: bool):
        self._first_token = first_token

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"outputs": float32 [B, T or 1, D]}."""
        last = 1 if self._first_token else None
        return {"outputs": sequence_output[:, :last]}


def check(model: Model, job: Job) -> None:
    """Refuses a run that cannot cache frozen layers."""
    if not model.task.rows_are_fixed:
        raise UserError(
            "--cache_frozen_layers: the rows of this task are others in each "
            "step, so that nothing can be kept of them; leave it out"
        )
    if not lowest_layer(job.table, model.config.num_hidden_layers):
        raise UserError(
            f"--cache_frozen_layers: {model.method} trains or adds "
            "something in the lowest layer, so that nothing is the same in "
            "each epoch; expected a method of upper layers, as head, "
            "top_layers or houlsby(layers='6-11')"
        )
    check_alone("--cache_frozen_layers")
    folder = _folder(model.experiment)
    if "://" in folder:
        raise UserError(
            f"--cache_frozen_layers cannot keep files in {folder};"
            " pass a folder of this machine as --frozen_layers_dir"
        )


class FrozenOutputs(Extra):
    """Trains on outputs of frozen layers, which are computed once."""

    def check(self, run: Run) -> None:
        check(run.model, run.job)

    def reserve(self, run: Run) -> int:
        """Computes the outputs, into a folder that is not the run's own."""
        if not run.is_over:
            self._layers = FrozenLayers(
                run.engine, run.model, run.job, run.features["train"]
            )
        return 0

    def begin(self, run: Run) -> None:
        """Gives the rows their outputs, and the job a model that reads them."""
        if not run.is_over:
            run.features["train"], run.job = self._layers.apply(
                run.features["train"], run.job
            )


def _folder(experiment: Experiment) -> str:
    if experiment.frozen_layers_dir:
        return experiment.frozen_layers_dir
    named = experiment.task.train_file
    beside = os.path.dirname(named) if named else experiment.data_dir
    return os.path.join(beside, FOLDER)


class FrozenLayers:
    """Holds the outputs of frozen layers, from a file or computed into one."""

    def __init__(
        self, engine: Engine, model: Model, job: Job, features: Features
    ):
        """Waits for another process that computes."""
        self._model = model
        layers = model.config.num_hidden_layers
        self._lowest = lowest_layer(job.table, layers)
        head = model.task.build_head(model.config, lambda *_: None)
        self._first_token = self._lowest == layers and head.reads_first_token
        columns = features.tokens, features.segments, features.starts
        rows = Features(*columns, {})
        count = len(rows) if self._first_token else len(rows.tokens)
        self._shape = count, model.config.hidden_size
        # numpy has no bfloat16, so its bits.
        is_half = job.compute_dtype == "bfloat16"
        self._dtype = np.dtype(np.uint16 if is_half else np.float32)
        folder = _folder(model.experiment)
        self.path = os.path.join(folder, f"{self._key(job, rows)}.npy")
        files.prepare_folder(folder)
        # Deletes the temporary files of killed processes.
        with folder_lock.hold(folder, LOCK, wait=True, unfinished=LEFT):
            if os.path.exists(self.path):
                logging.info("frozen layers are taken from %s", self.path)
            else:
                self._check_space(folder)
                with self._new_file() as outputs:
                    self._compute(engine, job, rows, outputs)
                logging.info("frozen layers are kept in %s", self.path)
        self._outputs = self._open()

    def apply(self, features: Features, job: Job) -> tuple[KnownOutputs, Job]:
        """Gives rows their outputs, and a job that computes from these.

        The rows may have other labels now.
        """
        model = self._model
        build_model = functools.partial(
            UpperLayers,
            self._lowest,
            model.config,
            model.method,
            model.task.build_head,
        )
        known = KnownOutputs(features, self._outputs, self._first_token)
        return known, dataclasses.replace(job, build_model=build_model)

    def _key(self, job: Job, rows: Features) -> str:
        hardware = self._model.experiment.hardware
        device = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        about = {
            "format": FORMAT,
            "base": self._model.base.fingerprint,
            "config": dataclasses.asdict(self._model.config),
            "layers": self._lowest,
            "dtype": job.compute_dtype,
            # Devices round differently.
            "device": "TPU" if hardware.use_tpu else device,
            "first_token": self._first_token,
            "rows": rows.fingerprint(),
        }
        if job.quantized:
            about["base_dtype"] = INT8
        text = json.dumps(about, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _check_space(self, folder: str) -> None:
        needed = math.prod(self._shape) * self._dtype.itemsize
        kept = sum(
            entry.stat().st_size
            for entry in os.scandir(folder)
            if entry.name.endswith(".npy")
        )
        allowed = self._model.experiment.frozen_layers_gb
        if kept + needed > allowed * GB:
            raise UserError(
                f"--cache_frozen_layers needs {needed / GB:.3g} GB in "
                f"{folder}, where {kept / GB:.3g} GB are kept already, but "
                f"--frozen_layers_gb allows {allowed:g}; delete files there, "
                "or allow more"
            )
        files.check_disk_space(folder, needed, "--frozen_layers_dir")

    @contextlib.contextmanager
    def _new_file(self) -> Iterator[np.ndarray]:
        # A name of its own, also on a disk without locks.
        written = f"{self.path}.{uuid.uuid4().hex}{UNFINISHED}"
        try:
            with files.writing(self.path):
                array = np.lib.format.open_memmap(
                    written, "w+", self._dtype, self._shape
                )
                _reserve(written)
            yield array
            with files.writing(self.path):
                array.flush()
                files.replace(written, self.path)
        finally:
            # The folder may be gone, or read-only by now.
            with contextlib.suppress(OSError):
                os.unlink(written)

    def _open(self) -> np.ndarray:
        try:
            # Opens neither a pickle nor an archive of several arrays.
            array = np.lib.format.open_memmap(self.path, "r")
            if (array.shape, array.dtype) != (self._shape, self._dtype):
                raise ValueError(f"it holds {array.dtype} {array.shape}")
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.path} cannot be read ({error}); delete it to compute "
                "it again"
            ) from error
        return array

    def _compute(
        self, engine: Engine, job: Job, rows: Features, outputs: np.ndarray
    ) -> None:
        first_token, experiment = self._first_token, self._model.experiment
        use_tpu = experiment.hardware.use_tpu
        most = TPU_CHUNK_TOKENS if use_tpu else CHUNK_TOKENS
        with predictor(
            engine,
            self._model,
            job,
            self._lowest,
            lambda config, create: _Outputs(first_token),
        ) as computing:
            parts = sorted_batches(rows, 1, most)
            for number, chosen in enumerate(parts, 1):
                predicted = computing.predict(
                    rows.take(chosen),
                    experiment.predict_batch_size,
                    f"frozen layers, part {number} of {len(parts)}",
                )
                for row, value in zip(chosen, predicted["outputs"]):
                    place = slice(row, row + 1)
                    if not first_token:
                        place = slice(*rows.starts[row : row + 2])
                    value = value[: place.stop - place.start]
                    if outputs.dtype == np.uint16:
                        # Back to the bits of bfloat16.
                        value = value.astype(tf.bfloat16.as_numpy_dtype)
                        value = value.view(np.uint16)
                    outputs[place] = value


@contextlib.contextmanager
def predictor(
    engine: Engine, model: Model, job: Job, layers: int, build_head: BuildHead
) -> Iterator[RowPredictor]:
    """Computes a head without variables on a BERT's lowest layers."""
    config = dataclasses.replace(model.config, num_hidden_layers=layers)
    made_of = config, HeadOnly(), build_head
    table = task_model.list_parameters(*made_of)
    base = model.opened.weights
    with files.temporary_folder() as folder:
        lower = dataclasses.replace(
            job,
            build_model=functools.partial(task_model.TaskModel, *made_of),
            table=table,
            initial_values=choose_initial_values(
                table.parameters, base, None, job.seed
            ),
            # Holds no checkpoint.
            output_dir=folder,
            observes=False,
        )
        with engine.predictor(lower) as computing:
            yield computing


def _reserve(path: str) -> None:
    """Reserves a mapped file's room; may raise `OSError`.

    On a full disk, a write into a mapped file would end the process.
    """
    if not hasattr(os, "posix_fallocate"):
        # Neither macOS nor Windows has it.
        return
    with open(path, "rb+") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
        except OSError as error:
            if error.errno not in NOT_RESERVED:
                raise
