"""What the layers below all that is trained compute, once for each row.

Without dropout these layers give the same in every epoch, and in every run of a
sweep. Their outputs are kept in a file for each set of rows, BERT, number of
layers and dtype, which all such runs share.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from typing import Any, Dict, Iterator, Optional, Tuple

import numpy as np
import tensorflow as tf
from absl import logging

import files
import folder_lock
import task_model
from engines import Job, multi_worker
from errors import UserError
from hooks import layer_of
from input_pipeline import Batch, Features, sorted_batches
from methods.fine_tuning import HeadOnly
from runs.setup import Setup
from task_model import FROZEN_OUTPUTS
from tasks.base import Head
from weights.base import POOLER, choose_initial_values

# Raised with every change of what files hold.
FORMAT = 1
FOLDER = "frozen_layers"
LOCK = "frozen_layers.lock"
# Rows that are computed before they are written.
CHUNK = 2048
GB = 1e9


@dataclasses.dataclass(frozen=True)
class KnownOutputs(Features):
    """Rows of which it is known what frozen layers make of them.

    Attributes:
        inner: the rows.
        outputs: float32, or the bits of bfloat16 as uint16,
            [sum of lengths, D]; or [sequences, D], of their first tokens.
        first_token: whether it is these.
    """

    inner: Features
    outputs: np.ndarray
    first_token: bool

    @classmethod
    def of(
        cls, inner: Features, outputs: np.ndarray, first_token: bool
    ) -> "KnownOutputs":
        """Adds outputs to rows; arguments as the attributes."""
        own = inner.tokens, inner.segments, inner.starts, inner.labels
        return cls(*own, inner, outputs, first_token)

    @property
    def token_labels(self) -> Optional[np.ndarray]:
        """Those of the rows."""
        return self.inner.token_labels

    @property
    def lengths(self) -> np.ndarray:
        """Those of the rows."""
        return self.inner.lengths

    @property
    def row_shape(self) -> Tuple[int, ...]:
        """That of the rows."""
        return self.inner.row_shape

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.inner)

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """Those of the rows."""
        return self.inner.sequences(rows)

    def added(self, length: Optional[int]) -> Dict[str, Tuple[Tuple, type]]:
        """`frozen_outputs`, and what the rows add."""
        width = 1 if self.first_token else length
        shape = *self.row_shape, width, self.outputs.shape[1]
        own = {FROZEN_OUTPUTS: (shape, self.outputs.dtype)}
        return {**self.inner.added(length), **own}

    def finish(
        self, batch: Batch, rows: np.ndarray, step: Optional[int]
    ) -> None:
        """Adds `frozen_outputs`, [B, ..., T or 1, D], zeros in padding."""
        self.inner.finish(batch, rows, step)
        sequences = self.sequences(rows)
        if self.first_token:
            found = self.outputs[sequences][..., np.newaxis, :]
        else:
            mask = batch["input_mask"].astype(bool)
            places = np.arange(mask.shape[-1])
            sources = (self.starts[sequences][..., np.newaxis] + places)[mask]
            shape = *mask.shape, self.outputs.shape[1]
            found = np.zeros(shape, self.outputs.dtype)
            found[mask] = self.outputs[sources]
        batch[FROZEN_OUTPUTS] = found


class _Outputs(Head):
    """Gives what the last layer does, of all tokens or of the first."""

    needs_pooler = False

    def __init__(self, first_token: bool):
        self._first_token = first_token

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"outputs": float32 [B, T or 1, D]}."""
        last = 1 if self._first_token else None
        return {"outputs": sequence_output[:, :last]}

    def loss(self, predictions, features):
        """None: nothing is trained."""
        raise TypeError("the outputs of frozen layers have no loss")


def lowest_layer(table: task_model.ParameterTable, layers: int) -> int:
    """The lowest layer that is not the pretrained BERT's, or may change.

    Args:
        table: every variable.
        layers: L.

    Returns:
        From 0, also if anything acts on embeddings or on all layers, to L, if
        only the head, or BERT's pooler, is trained.
    """
    lowest = layers
    for p in table.parameters:
        is_above = p.group == "head" or p.name.startswith(POOLER)
        if (p.trained or p.is_added) and not is_above:
            lowest = min(lowest, layer_of(p.name) or 0)
    return lowest


def check(setup: Setup) -> None:
    """Compares a run with what its flags say of frozen layers.

    Raises:
        UserError: nothing is frozen below what is trained; another process
            takes part; there is no local folder for the outputs.
    """
    experiment = setup.experiment
    if not setup.keeps_frozen_outputs:
        return
    if not lowest_layer(setup.table, setup.config.num_hidden_layers):
        raise UserError(
            f"--cache_frozen_layers: {setup.method} trains or adds something "
            "in the lowest layer, so that nothing is the same in each epoch; "
            "expected a method of upper layers, as head, top_layers or "
            "houlsby(layers='6-11')"
        )
    if multi_worker.is_cluster():
        raise UserError(
            "--cache_frozen_layers needs one process, but TF_CONFIG names "
            "several"
        )
    if "://" in _folder(experiment):
        raise UserError(
            f"--cache_frozen_layers cannot keep files in {_folder(experiment)};"
            " pass a folder of this machine as --frozen_layers_dir"
        )


def prepare(
    engine: Any, setup: Setup, job: Job, features: Features
) -> Features:
    """The same rows, with what their frozen layers give.

    Args:
        engine: that computes what is not in a file yet.
        setup: found right by `check`.
        job: of the training.
        features: of the training rows.

    Raises:
        UserError: these rows are not the same in each step; the outputs need
            more room than there is, or than the flags allow; a file cannot be
            written or read.
    """
    if not features.are_fixed:
        raise UserError(
            "--cache_frozen_layers: the rows of this task are others in each "
            "step, so that nothing can be kept of them; leave it out"
        )
    lowest = lowest_layer(setup.table, setup.config.num_hidden_layers)
    first_token = (
        lowest == setup.config.num_hidden_layers
        and setup.task.build_head(
            setup.config, lambda *_: None
        ).reads_first_token
    )
    folder = _folder(setup.experiment)
    files.prepare_folder(folder)
    path = os.path.join(
        folder, _key(setup, job, features, lowest, first_token) + ".npy"
    )
    sequences = len(features.starts) - 1
    rows = sequences if first_token else len(features.tokens)
    shape = rows, setup.config.hidden_size
    # numpy itself has no bfloat16: its bits.
    is_half = job.compute_dtype == "bfloat16"
    dtype = np.dtype(np.uint16 if is_half else np.float32)
    with folder_lock.hold(folder, LOCK, wait=True):
        if not os.path.exists(path):
            _check_space(folder, shape[0] * shape[1] * dtype.itemsize, setup)
            with _new_file(path, shape, dtype) as outputs:
                _compute(
                    engine, setup, job, features, lowest, first_token, outputs
                )
            logging.info("outputs of frozen layers are kept in %s", path)
        else:
            logging.info("outputs of frozen layers are taken from %s", path)
    return KnownOutputs.of(features, _open(path, shape, dtype), first_token)


def _folder(experiment: Any) -> str:
    """Where files of outputs are."""
    given = experiment.frozen_layers_dir
    return given or os.path.join(experiment.data_dir, FOLDER)


def _key(
    setup: Setup, job: Job, features: Features, lowest: int, first_token: bool
) -> str:
    """What tells a file from all others."""
    digest = hashlib.sha256()
    about = {
        "format": FORMAT,
        "base": setup.base.fingerprint,
        "config": dataclasses.asdict(setup.config),
        "layers": lowest,
        "dtype": job.compute_dtype,
        "first_token": first_token,
    }
    digest.update(json.dumps(about, sort_keys=True).encode())
    rows = Features(features.tokens, features.segments, features.starts, {})
    digest.update(rows.fingerprint().encode())
    return digest.hexdigest()[:32]


def _check_space(folder: str, needed: int, setup: Setup) -> None:
    """Refuses what is too large.

    Raises:
        UserError: by the flag, or by the disk.
    """
    found = sum(
        entry.stat().st_size
        for entry in os.scandir(folder)
        if entry.name.endswith(".npy")
    )
    allowed = setup.experiment.frozen_layers_gb
    if found + needed > allowed * GB:
        raise UserError(
            f"--cache_frozen_layers needs {needed / GB:.3g} GB in {folder}, "
            f"where {found / GB:.3g} GB are kept already, but "
            f"--frozen_layers_gb allows {allowed:g}; delete files there, or "
            "allow more"
        )
    files.check_disk_space(folder, needed)


@contextlib.contextmanager
def _new_file(path: str, shape: Any, dtype: np.dtype) -> Iterator[np.ndarray]:
    """An array to be filled, which becomes the file at the end."""
    folder = os.path.dirname(path)
    for entry in os.scandir(folder):
        # Of killed processes: whoever writes holds the lock.
        if entry.name.endswith(".npy.new"):
            os.unlink(entry.path)
    written = path + ".new"
    array = np.lib.format.open_memmap(written, "w+", dtype, shape)
    yield array
    array.flush()
    os.replace(written, path)


def _open(path: str, shape: Any, dtype: np.dtype) -> np.ndarray:
    """The array of a file, which stays there.

    Raises:
        UserError: it is damaged.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); delete it to compute it again"
        ) from error
    if (array.shape, array.dtype) != (shape, dtype):
        raise UserError(
            f"{path} holds {array.dtype} {list(array.shape)}, expected "
            f"{dtype} {list(shape)}; delete it to compute it again"
        )
    return array


def _compute(
    engine: Any,
    setup: Setup,
    job: Job,
    features: Features,
    lowest: int,
    first_token: bool,
    outputs: np.ndarray,
) -> None:
    """Fills in the outputs of all sequences of tokens."""
    config = dataclasses.replace(setup.config, num_hidden_layers=lowest)

    def build_head(config, create):
        return _Outputs(first_token)

    table = task_model.list_parameters(config, HeadOnly(), build_head)
    rows = Features(features.tokens, features.segments, features.starts, {})
    with tempfile.TemporaryDirectory() as folder:
        lower = dataclasses.replace(
            job,
            build_model=lambda create: task_model.TaskModel(
                config, HeadOnly(), build_head, create
            ),
            table=table,
            initial_values=choose_initial_values(
                table.parameters, setup.sources.opened.weights, None, job.seed
            ),
            # Without a checkpoint.
            output_dir=folder,
            observes=False,
        )
        size = setup.experiment.predict_batch_size
        with engine.predictor(lower) as predictor:
            for chosen in sorted_batches(rows, CHUNK):
                part = rows.take(chosen)
                found = predictor.predict(part, size, "frozen layers")
                values = found["outputs"]
                if first_token:
                    outputs[chosen] = _stored(values[:, 0], outputs.dtype)
                    continue
                for row, value in zip(chosen, values):
                    first, last = rows.starts[row], rows.starts[row + 1]
                    outputs[first:last] = _stored(
                        value[: last - first], outputs.dtype
                    )


def _stored(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """float32 as it is, or as the bits of bfloat16, in which it was made."""
    if dtype == np.float32:
        return values
    return values.astype(tf.bfloat16.as_numpy_dtype).view(dtype)
