"""A folder into which a script writes its results anew each time.

What the script has written there it replaces and deletes, nothing else: a
list of its files lies beside them.
"""

import os
import pathlib
from typing import Dict, Set

from errors import UserError
from storage import files


def replace_results(
    folder: str, script: str, contents: Dict[str, bytes]
) -> None:
    """Writes all results of a script, and deletes its earlier ones.

    Args:
        folder: a local folder, made if need be.
        script: its name, which the list of its files is called by.
        contents: by path below the folder.

    Raises:
        UserError: a file of that name is not the script's, or the folder
            cannot be written; nothing is changed then.
    """
    root = pathlib.Path(folder)
    list_path = root / f"files_of_{script}.json"
    old = _read_list(list_path) if list_path.exists() else set()
    for name in contents:
        if (root / name).exists() and name not in old:
            raise UserError(
                f"{root / name} is there and was not written by {script} (it "
                f"is not in {list_path}); choose another --output_dir, or "
                "delete the file"
            )
    files.prepare_folder(folder)
    # First of all, so that after a kill too every file of the script's is
    # known.
    files.write_json(str(list_path), sorted(old | set(contents)))
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(str(root / name), content)
    for name in old - set(contents):
        (root / name).unlink(missing_ok=True)
        parent = (root / name).parent
        while parent != root and parent.is_dir() and not os.listdir(parent):
            parent.rmdir()
            parent = parent.parent
    files.write_json(str(list_path), sorted(contents))


def _read_list(path: pathlib.Path) -> Set[str]:
    """The files of a script.

    Raises:
        UserError: it is no list of files within the folder.
    """
    names = files.read_json(str(path), "the list of files")
    if not isinstance(names, list) or not all(
        isinstance(name, str)
        and not pathlib.PurePath(name).is_absolute()
        and ".." not in pathlib.PurePath(name).parts
        for name in names
    ):
        raise UserError(
            f"{path} is no list of files of this program; choose another "
            "--output_dir"
        )
    return set(names)
