"""Loads TensorFlow, quickly and quietly.

An entry point imports it before whatever else loads TensorFlow. Without Keras,
which is loaded when somebody asks for it, and without searching for garbage,
it takes a third to nearly a half less time. TF_CPP_MIN_LOG_LEVEL=0 shows
TensorFlow's own C++ notices.
"""

import contextlib
import gc
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# 0 where somebody wants to see all that TensorFlow says.
LEVEL = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# TensorFlow loads Keras at once, unless it is told to take one that is not
# installed.
KERAS_CHOICE = "TF_USE_LEGACY_KERAS"


# What TensorFlow 2.21 prints while it is loaded, whatever the level, where the
# processor has instructions for neural networks.
NOTICES = re.compile(
    rb"(?:I\d{4} \d\d:|WARNING: All log messages before absl::InitializeLog).*"
)


@contextlib.contextmanager
def without_notices(
    notices: "re.Pattern[bytes]" = NOTICES,
) -> Iterator[None]:
    """Keeps stderr back, then prints the lines that are no mere notices.

    At the level 0 all is printed.
    """
    if LEVEL == "0":
        yield
        return
    try:
        stderr = os.dup(2)
    except OSError:
        # There is none.
        yield
        return
    try:
        file = tempfile.TemporaryFile()
    except OSError:
        # Without a disk that can be written they are seen.
        os.close(stderr)
        yield
        return
    with file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            for line in file:
                if not notices.match(line):
                    os.write(2, line)


def _load() -> None:
    chosen = os.environ.get(KERAS_CHOICE)
    os.environ.setdefault(KERAS_CHOICE, "1")
    collects = gc.isenabled()
    gc.disable()
    try:
        with without_notices():
            import tensorflow
        keras = importlib.util.find_spec("keras")
        if chosen is None and keras and hasattr(tensorflow, "__path__"):
            # Where `import tensorflow.keras` finds Keras 2.
            folder = os.path.join(os.path.dirname(keras.origin), "api", "_v2")
            tensorflow.__path__.insert(0, folder)
    finally:
        if chosen is None:
            del os.environ[KERAS_CHOICE]
        if "adapter_bert.api" not in sys.modules:
            # What is there by now is never searched again. A caller's objects
            # would never be freed.
            gc.freeze()
        if collects:
            gc.enable()


_load()
