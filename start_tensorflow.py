"""Loads TensorFlow, quickly and quietly.

An entry point imports it before whatever else loads TensorFlow. Set
TF_CPP_MIN_LOG_LEVEL=0 to see TensorFlow's own C++ notices, which would drown a
program's lines.

Importing TensorFlow takes a third to nearly a half less time without Keras,
which no model here uses, and without searching for garbage among what is being
loaded, all of which stays. `tf.keras` is loaded when somebody asks for it.
"""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# TensorFlow loads Keras at once, unless it is told to take one that is not
# installed.
KERAS_CHOICE = "TF_USE_LEGACY_KERAS"


def _load() -> None:
    chosen = os.environ.get(KERAS_CHOICE)
    os.environ.setdefault(KERAS_CHOICE, "1")
    gc.disable()
    try:
        import tensorflow  # noqa: F401
    finally:
        if chosen is None:
            del os.environ[KERAS_CHOICE]
        # What is there by now is never searched again.
        gc.freeze()
        gc.enable()


_load()
