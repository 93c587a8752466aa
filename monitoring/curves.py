"""Curves for TensorBoard: scalars by step, in a file of events.

TensorBoard's own writer makes a folder anew that is gone, tells of a write that
has failed from another thread, and leaves the order of a run's files, by which
curves are put together, to the clock.
"""

import functools
import os
import re
import socket
import time
from typing import Iterator

import numpy as np
import tensorflow as tf

from errors import UserError
from storage import files

EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d{1,18})\..*")
# What TensorBoard asks for, of <tensorboard/plugins/scalar/metadata.py>.
PLUGIN = "scalars"
FILE_VERSION = "brain.Event:2"


class Curves:
    """A new file of events in a folder, to be read after all that are there.

    Attributes:
        path: of the file.
    """

    def __init__(self, folder: str):
        """Makes the folder, if need be, and the file.

        Raises:
            UserError: they cannot be written.
        """
        files.prepare_folder(folder)
        # Greater than any name there, also if the clock has gone back.
        numbers = [int(time.time()), *_numbers(folder)]
        self.path = os.path.join(
            folder,
            f"events.out.tfevents.{max(numbers):010d}.{socket.gethostname()}"
            f".{os.getpid()}",
        )
        self._writing = functools.partial(
            files.writing, f"the curves {self.path}"
        )
        with self._writing():
            self._writer = tf.io.TFRecordWriter(self.path)
        self._write(file_version=FILE_VERSION)
        self.flush()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Adds a point to a curve.

        Raises:
            UserError: it cannot be written.
        """
        metadata = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
        metadata.plugin_data.plugin_name = PLUGIN
        summary = tf.compat.v1.Summary()
        summary.value.add(
            tag=name,
            tensor=tf.make_tensor_proto(np.float32(value)),
            metadata=metadata,
        )
        self._write(step=step, summary=summary)

    def flush(self) -> None:
        """Has other programs see all points.

        Raises:
            UserError: they cannot be written.
        """
        with self._writing():
            self._writer.flush()

    def close(self) -> None:
        """Ends the file.

        Raises:
            UserError: it cannot be written.
        """
        with self._writing():
            self._writer.close()

    def _write(self, **parts) -> None:
        event = tf.compat.v1.Event(wall_time=time.time(), **parts)
        with self._writing():
            self._writer.write(event.SerializeToString())


def _numbers(folder: str) -> Iterator[int]:
    """One more than the number of each file of events in a folder.

    Raises:
        UserError: it cannot be read.
    """
    try:
        names = tf.io.gfile.listdir(folder)
    except tf.errors.OpError as error:
        raise UserError(f"cannot read {folder}: {error.message}") from error
    for name in names:
        match = EVENT_FILE.fullmatch(name)
        if match:
            yield int(match[1]) + 1
