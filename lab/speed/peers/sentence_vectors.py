"""Writes vectors of a file's texts by sentence-transformers into folders.

    .venv-peer/bin/python lab/speed/peers/sentence_vectors.py \\
        TEXTS BASE FOLDER...

Runs in the peers' environment (requirements.txt next to this file). BASE is the
BERT of folders that hold an adapter of peft alone.
"""

import json
import os
import sys

# Nothing is asked of the hub. The library reads this as it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
from sentence_transformers import SentenceTransformer

if __name__ == "__main__":
    path, base, *folders = sys.argv[1:]
    with open(path) as file:
        texts = json.load(file)
    for folder in folders:
        path = os.path.join(folder, "adapter_config.json")
        if os.path.exists(path):
            with open(path) as file:
                described = json.load(file)
            described["base_model_name_or_path"] = base
            with open(path, "w") as file:
                json.dump(described, file)
        model = SentenceTransformer(folder, device="cpu")
        np.save(os.path.join(folder, "vectors.npy"), model.encode(texts))
