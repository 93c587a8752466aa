"""Records files of `torch.save` and what they hold.

    .venv-peer/bin/python lab/speed/peers/record_torch_files.py \\
        tests/golden/torch_files

Runs in the peers' environment (requirements.txt next to this file). The tables
have all types of numbers, and tensors that are parts of others.
"""

import collections
import os
import sys

import numpy as np
import torch

TYPES = (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool"
).split()


def make_tables():
    """Tables of tensors by the names of their files."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape):
        return torch.randn(shape, generator=generator)

    whole = noise(6, 4)
    tables = {
        "types": {
            name: (3 * noise(2, 3)).to(getattr(torch, name)) for name in TYPES
        },
        "views": {
            "whole": whole,
            "again": whole,
            "transposed": whole.T,
            "part": whole[1:5:2, 1:3],
            "column": whole[:, 2],
            "halves": noise(5, 6).half()[::2].T,
            "upper_halves": noise(5, 6).bfloat16()[1:, ::3].T,
            "scalar": whole[2, 3],
            "empty": whole[:0],
            "no_axis_of_size": noise(0, 7),
        },
        "parameters": collections.OrderedDict(
            torch.nn.Linear(3, 2).state_dict(keep_vars=True)
        ),
        "module": torch.nn.Sequential(
            torch.nn.Linear(4, 3), torch.nn.LayerNorm(3)
        ).state_dict(),
    }
    return tables


def main():
    """Writes each table in both forms, and its values."""
    (folder,) = sys.argv[1:]
    os.makedirs(folder)
    torch.manual_seed(0)
    for name, table in make_tables().items():
        for form, is_zip in (("zip", True), ("older", False)):
            torch.save(
                table,
                os.path.join(folder, f"{name}.{form}.bin"),
                _use_new_zipfile_serialization=is_zip,
            )
        np.savez(
            os.path.join(folder, f"{name}.npz"),
            **{k: v.detach().float().numpy() for k, v in table.items()},
        )


if __name__ == "__main__":
    main()
