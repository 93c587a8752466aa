"""The adapters that a command line names."""

from typing import Dict, List, Optional, Sequence, Tuple

from errors import UserError
from serving.library import ALL, AdapterLibrary
from serving.loaded_task import task_name
from storage import files


def named_folders(
    adapters: Sequence[str], library: Optional[str], tasks: List[str]
) -> Dict[str, str]:
    """The adapters' folders, by their names.

    Args:
        adapters: a folder, or NAME=FOLDER, of each.
        library: folder of an adapter library, if any.
        tasks: names of adapters in it, or `ALL` alone.

    Raises:
        UserError: none is named, two have one name, or the library lacks one.
    """
    found: List[Tuple[str, str]] = []
    for text in adapters:
        name, separator, folder = text.partition("=")
        # A folder may have an equals sign in its own name.
        if not separator or files.exists(text):
            name, folder = task_name(text), text
        found.append((name, folder))
    if bool(library) != bool(tasks):
        raise UserError(
            "--library and --task go together: --library=DIR --task=all, or "
            "names with commas between them"
        )
    if library:
        shelf = AdapterLibrary(library)
        names = shelf.answering() if tasks == [ALL] else tasks
        if not names:
            raise UserError(
                f"the library {library} holds no adapters that answer texts"
            )
        found += [(name, shelf.folder(name)) for name in names]
    if not found:
        raise UserError(
            "no adapter is named; pass --adapter=FOLDER, or --library=DIR and "
            "--task"
        )
    names = [name for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"two adapters are called {name!r}; name them: "
                f"--adapter=first=FOLDER --adapter=second=FOLDER"
            )
    return dict(found)
