"""Writes the small data sets of the guides: tickets.csv, new.csv and data/.

    adapter-bert sample [--output_dir=FOLDER]

tickets.csv has 640 labelled messages of customers (ticket, message, queue),
new.csv 110 without labels. data/README.md tells where all come from.
"""

import csv
import dataclasses
import importlib.metadata
import io
import pathlib
from collections.abc import Iterator, Sequence

from adapter_bert import command_line, flag_page
from adapter_bert.errors import UserError
from adapter_bert.flags import Topic


@dataclasses.dataclass(frozen=True)
class Folder:
    """Names the folder of the files."""

    output_dir: str = Topic.TO_DO.setting(
        ".", "Folder for the files; default: this one."
    )


FOLDERS = "customer_intents", "same_meaning", "short_articles"
COLUMNS = "ticket", "message", "queue"


def _place() -> pathlib.Path:
    """Finds data/ of a checkout, or of the installed package."""
    if (command_line.ROOT / "pyproject.toml").exists():
        return command_line.ROOT / "data"
    for file in importlib.metadata.files("adapter-bert-tf") or ():
        if file.parts[-3:] == ("adapter_bert", "data", "README.md"):
            return pathlib.Path(file.locate()).parent
    raise UserError(
        "the installed package has no data; install adapter-bert-tf again"
    )


def _table(
    place: pathlib.Path,
    splits: Sequence[str],
    columns: Sequence[str],
    first: int,
) -> bytes:
    """A table of what customers want; `first` is the first row's number."""
    table = io.StringIO(newline="")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(columns)
    for split in splits:
        path = place / "customer_intents" / f"{split}.tsv"
        _, *lines = path.read_text("utf-8").splitlines()
        for number, line in enumerate(lines, first):
            writer.writerow([number, *line.split("\t")][: len(columns)])
        first += len(lines)
    return table.getvalue().encode()


def contents() -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of each file."""
    place = _place()
    yield "tickets.csv", _table(place, ("train", "dev"), COLUMNS, 1001)
    yield "new.csv", _table(place, ("test",), COLUMNS[:2], 2001)
    paths = [place / "README.md"]
    for folder in FOLDERS:
        paths += sorted(
            filter(pathlib.Path.is_file, (place / folder).iterdir())
        )
    for path in paths:
        name = path.relative_to(place.parent).as_posix()
        yield name, path.read_bytes()


def main() -> None:
    """Writes the files; those that are there must be the same."""
    options, _ = flag_page.read_command_line(Folder, __doc__)
    folder = pathlib.Path(options.output_dir)
    try:
        for name, content in contents():
            path = folder / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                print(path)
            elif path.read_bytes() != content:
                raise UserError(
                    f"{path} is there, with another content; move it away, or "
                    "name another folder"
                )
    except OSError as error:
        raise UserError(
            f"cannot read or write {error.filename}: {error.strerror}"
        ) from error
