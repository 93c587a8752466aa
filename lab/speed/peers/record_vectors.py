"""Records losses of vectors, by sentence-transformers' formulas in torch.

    .venv-peer/bin/python lab/speed/peers/record_vectors.py \
        tests/golden/vectors.npz

Runs in the peer's environment (requirements.txt next to this file), and imports
nothing of this project. The formulas are those of the library's
`MultipleNegativesRankingLoss`, `CoSENTLoss` and `MatryoshkaLoss`, written out.
The library itself is not called.
"""

import sys

import numpy as np
import torch
from torch.nn import functional

TEMPERATURES = 0.05, 0.7
SIZES = 24, 8, 5


def cosines(a, b):
    """`util.cos_sim`: [A, D], [B, D] -> [A, B]."""
    return functional.normalize(a, dim=1) @ functional.normalize(b, dim=1).T


def multiple_negatives(vectors, scale):
    """Each text's match among all matches and negatives."""
    anchors, *others = vectors.unbind(1)
    scores = cosines(anchors, torch.cat(others)) * scale
    return functional.cross_entropy(scores, torch.arange(len(scores)))


def cosent(vectors, labels, scale):
    """Pairs of pairs in the wrong order."""
    a, b = (functional.normalize(x, dim=1) for x in vectors.unbind(1))
    scores = (a * b).sum(dim=1) * scale
    scores = scores[:, None] - scores[None, :]
    kept = (labels[:, None] < labels[None, :]).float()
    scores = scores - (1 - kept) * 1e12
    return torch.logsumexp(torch.cat([torch.zeros(1), scores.view(-1)]), dim=0)


def main():
    """Records into the file that the one argument names."""
    torch.manual_seed(0)
    triples = torch.randn(7, 3, SIZES[0])
    labels = torch.tensor([0.0, 5.0, 2.5, 2.5, 1.0, 4.8, 0.0])
    recorded = {"triples": triples.numpy(), "scores": labels.numpy()}
    for temperature in TEMPERATURES:
        scale = 1 / temperature
        losses = {
            "pairs": lambda x, s=scale: multiple_negatives(x[:, :2], s),
            "triples": lambda x, s=scale: multiple_negatives(x, s),
            "cosent": lambda x, s=scale: cosent(x[:, :2], labels, s),
            "matryoshka": lambda x, s=scale: sum(
                multiple_negatives(x[..., :size], s) for size in SIZES
            ),
        }
        for name, loss in losses.items():
            vectors = triples.clone().requires_grad_()
            value = loss(vectors)
            value.backward()
            key = f"{name}/{temperature}"
            recorded[f"{key}/loss"] = value.detach().numpy()
            recorded[f"{key}/gradient"] = vectors.grad.numpy()
    np.savez_compressed(sys.argv[1], **recorded)


if __name__ == "__main__":
    main()
