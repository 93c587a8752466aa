"""Makes GLUE's MRPC of the published corpus and GLUE's list of dev pairs.

    .venv/bin/adapter-bert make_mrpc FETCHED FOLDER

FETCHED holds msr_paraphrase_train.txt, msr_paraphrase_test.txt (label, id, id,
text, text) and mrpc_dev_ids.tsv (id, id); FOLDER gets train.tsv, dev.tsv and
test.tsv.
"""

import pathlib
import sys


def read_rows(path: pathlib.Path) -> list[list[str]]:
    """Cells of each line, the published corpus's Windows line ends dropped."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        sys.exit(f"error: cannot read {path}: {error.strerror}")
    return [line.strip().split("\t") for line in lines if line.strip()]


def main() -> None:
    """Writes the three files."""
    if len(sys.argv) != 3:
        sys.exit("usage: adapter-bert make_mrpc FETCHED FOLDER")
    fetched, folder = map(pathlib.Path, sys.argv[1:])

    def write(name: str, rows: list[list[str]]) -> None:
        text = "".join("\t".join(row) + "\n" for row in rows)
        (folder / name).write_bytes(text.encode())

    header, *rows = read_rows(fetched / "msr_paraphrase_train.txt")
    dev_ids = set(map(tuple, read_rows(fetched / "mrpc_dev_ids.tsv")))
    dev = [row for row in rows if tuple(row[1:3]) in dev_ids]
    if len(dev) != len(dev_ids):
        sys.exit(f"error: {len(dev)} of {len(dev_ids)} dev pairs were found")
    write("dev.tsv", [header, *dev])
    train = [row for row in rows if tuple(row[1:3]) not in dev_ids]
    write("train.tsv", [header, *train])
    rows = read_rows(fetched / "msr_paraphrase_test.txt")[1:]
    write(
        "test.tsv",
        [
            ["index", *header[1:]],
            *([str(i), *row[1:]] for i, row in enumerate(rows)),
        ],
    )
