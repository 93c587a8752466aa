"""Silences TensorFlow's C++ notices, which would drown a program's own lines.

An entry point imports it before whatever loads TensorFlow. Set
TF_CPP_MIN_LOG_LEVEL=0 to see the notices.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
