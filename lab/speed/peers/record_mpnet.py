"""Records what transformers and sentence-transformers compute with MPNet.

    .venv-peer/bin/python lab/speed/peers/record_mpnet.py MODEL MRPC_FOLDER \
        tests/golden/mpnet.npz

Runs in the peers' environment (requirements.txt next to this file) and imports
nothing of this project. MODEL is the folder that `adapter-bert mpnet` prints.
The texts are the first ones of 200 pairs of MRPC's dev set. Outputs are
recorded as products with a few random directions, as they would be large.
"""

import pathlib
import sys

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer

COUNT, WIDTH = 200, 768
# Directions of hidden states and of vectors.
HIDDEN, VECTORS = 4, 32


def main():
    """Writes ids, hidden states of all tokens and vectors of all texts."""
    model, folder, target = sys.argv[1:]
    lines = (pathlib.Path(folder) / "dev.tsv").read_text("utf-8-sig")
    rows = [line.split("\t") for line in lines.split("\n")[1 : 1 + COUNT]]
    texts = [row[3] for row in rows]
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((WIDTH, HIDDEN + VECTORS))
    directions = (directions / WIDTH**0.5).astype(np.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    bert = transformers.AutoModel.from_pretrained(model).eval()
    ids, hidden = [], []
    with torch.no_grad():
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt")
            ids.append(inputs["input_ids"][0].numpy())
            found = bert(**inputs).last_hidden_state[0].numpy()
            hidden.append(found @ directions[:, :HIDDEN])
    vectors = SentenceTransformer(model, device="cpu").encode(texts)
    np.savez_compressed(
        target,
        directions=directions,
        ids=np.concatenate(ids).astype(np.int32),
        lengths=np.array(list(map(len, ids)), np.int32),
        hidden=np.concatenate(hidden),
        vectors=vectors @ directions[:, HIDDEN:],
    )


if __name__ == "__main__":
    main()
