"""Predicts with several adapters, in a process that has trained none.

.venv/bin/python tests/predict_adapters.py '[{"adapter": ..., ...}, ...]'
"""

import json
import sys

from conftest import entry_point

from adapter_bert.commands import run_classifier

with entry_point(run_classifier) as run:
    for flags in json.loads(sys.argv[1]):
        run(**flags)
