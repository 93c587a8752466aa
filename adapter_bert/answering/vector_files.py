"""Files of vectors, written while the vectors are computed.

A `.npy` file is NumPy's float32 [N, D]. A line of a `.tsv` file has a vector's
numbers, and a line of a `.jsonl` file an object: `vector`, or of each token
`tokens` and `vectors`. Numbers have the fewest digits that give a float32 back.
"""

import io
import json
from collections.abc import Iterable, Iterator
from typing import Callable, Optional

import numpy as np

from adapter_bert import files
from adapter_bert.answering.embeddings import TOKENS, VectorForm, Vectors
from adapter_bert.data.tables import ending_of
from adapter_bert.errors import UserError

NPY, JSON_LINES, TSV = ".npy", ".jsonl", ".tsv"


def check_path(path: str, form: VectorForm) -> None:
    """Refuses a file's ending that cannot hold such vectors; "" is stdout."""
    ending = ending_of(path) if path else JSON_LINES
    if ending not in (NPY, JSON_LINES, TSV):
        raise UserError(
            f"--output {path} ends in {ending or 'nothing'}, expected .npy, "
            ".jsonl or .tsv for vectors"
        )
    if form.pooling == TOKENS and ending != JSON_LINES:
        raise UserError(
            f"--output {path} ends in {ending}, but vectors of tokens are "
            "written as JSON Lines; name it .jsonl"
        )


def needs_count(path: str) -> bool:
    """True if the number of rows must be known before the first vector."""
    return bool(path) and ending_of(path) == NPY


def lines(vectors: Vectors) -> str:
    """Makes JSON Lines of some rows' vectors."""
    if isinstance(vectors, np.ndarray):
        return "".join(f'{{"vector": {_list(row)}}}\n' for row in vectors)
    return "".join(
        f'{{"tokens": {json.dumps(tokens, ensure_ascii=False)}, '
        f'"vectors": [{", ".join(map(_list, rows))}]}}\n'
        for tokens, rows in vectors
    )


def write(
    path: str, chunks: Iterable[Vectors], width: int, count: Optional[int]
) -> None:
    """Writes a file, which appears when all of it is written.

    Vectors have `width` entries; `count` is of rows, if a file `needs_count`.
    """
    encode: dict[str, Callable[[Iterable[Vectors]], Iterator[bytes]]] = {
        NPY: lambda some: _npy(path, some, width, count),
        JSON_LINES: lambda some: (lines(chunk).encode() for chunk in some),
        TSV: lambda some: (_table(chunk).encode() for chunk in some),
    }
    files.write_parts(path, encode[ending_of(path)](chunks))


def _npy(
    path: str, chunks: Iterable[np.ndarray], width: int, count: int
) -> Iterator[bytes]:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": "<f4", "fortran_order": False, "shape": (count, width)},
    )
    yield header.getvalue()
    written = 0
    for chunk in chunks:
        written += len(chunk)
        yield chunk.astype("<f4", copy=False).tobytes()
    if written != count:
        raise UserError(
            f"{path}: the input had {count} rows at first and {written} then; "
            "run again when no program writes it"
        )


def _table(vectors: np.ndarray) -> str:
    return "".join("\t".join(map(str, row)) + "\n" for row in vectors)


def _list(row: np.ndarray) -> str:
    return f"[{', '.join(map(str, row))}]"
