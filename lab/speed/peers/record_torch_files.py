"""Records files of `torch.save` and what they hold.

    .venv-peer/bin/python lab/speed/peers/record_torch_files.py \\
        tests/golden/torch_files

Runs in the peers' environment (requirements.txt next to this file). The tables
have all types of numbers, and tensors that are parts of others. `bert` is a
whole model of transformers', as it saved them in `pytorch_model.bin`.
"""

import collections
import os
import sys

import numpy as np
import torch
import transformers

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
    tables["bert"] = bert()
    return tables


def bert():
    """The state of a BERT with its pretrained heads, and a buffer of before."""
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=6,
    )
    model = transformers.BertForPreTraining(config)
    state = model.state_dict()
    # The head's matrix is that of the words, and is here once more.
    words = state["bert.embeddings.word_embeddings.weight"]
    assert state["cls.predictions.decoder.weight"].data_ptr() == (
        words.data_ptr()
    )
    place = torch.arange(config.max_position_embeddings)[None]
    return {"bert.embeddings.position_ids": place, **state}


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
