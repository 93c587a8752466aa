"""The flags of programs that answer with trained adapters."""

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from absl import flags

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.serving.library import ALL, AdapterLibrary
from adapter_bert.serving.loaded_task import task_name
from adapter_bert.training.compute_dtype import DTYPES


def named_folders(
    adapters: Sequence[str], library: Optional[str], tasks: List[str]
) -> Dict[str, str]:
    """The adapters' folders, by their names.

    Args:
        adapters: a folder, or NAME=FOLDER, of each.
        library: folder of an adapter library, if any.
        tasks: names of adapters in it, or `ALL` alone; none where it is only
            asked for parts of `adapters`.

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
    if (tasks and not library) or (library and not tasks and not adapters):
        raise UserError(
            "--library and --task go together: --library=DIR --task=all, or "
            "names with commas between them"
        )
    if library and not tasks and not files.is_folder(library):
        raise UserError(
            f"--library is {library}, where there is no folder of adapters"
        )
    if tasks:
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


def exchanged_in(
    folders: Mapping[str, str], pairs: Mapping[str, str]
) -> Dict[str, Dict[str, str]]:
    """Each adapter's new parts by their old names, by the adapter's name.

    Args:
        folders: of the adapters, by name.
        pairs: a part's new adapter by the name of the old one.

    Raises:
        UserError: none of the adapters has such a part; or one is damaged.
    """
    if not pairs:
        return {name: {} for name in folders}
    methods = {
        name: registry.parse(adapter_artifact.read_config(folder)["method"])
        for name, folder in folders.items()
    }
    parts = {
        name: [part.name for part in method.parts if part.name]
        for name, method in methods.items()
    }
    for old in pairs:
        if not any(old in names for names in parts.values()):
            known = ", ".join(
                sorted({x for names in parts.values() for x in names})
            )
            raise UserError(
                f"--exchange_part names {old!r}, but the adapters are made of: "
                f"{known or 'no others'}"
            )
    return {
        name: {old: new for old, new in pairs.items() if old in names}
        for name, names in parts.items()
    }


FLAGS = flags.FLAGS


def define_adapter_flags() -> None:
    """Defines the flags of what answers with trained adapters."""
    string = flags.DEFINE_string
    string(
        "init_checkpoint",
        None,
        "The pretrained BERT that the adapters were trained on, in any form "
        "that run_classifier.py takes.",
    )
    string(
        "bert_config_file",
        None,
        "JSON file of BERT's sizes; default: the one beside the model.",
    )
    string(
        "vocab_file",
        None,
        "File of the vocabulary; default: the one beside the model.",
    )
    flags.DEFINE_multi_string(
        "adapter",
        [],
        "Folder of a trained adapter, or NAME=FOLDER",
    )
    string(
        "library",
        None,
        "Folder of an adapter library, where parts of compositions are looked "
        "for too.",
    )
    flags.DEFINE_list(
        "task", [], "Names of adapters in --library, as mrpc,rte, or all."
    )
    flags.DEFINE_list(
        "exchange_part",
        [],
        "Trained adapters that take the places of others in compositions: "
        "english=german puts german in the place of english.",
    )
    flags.DEFINE_integer(
        "max_seq_length",
        None,
        "Longest input in tokens, the rest is cut off; default: what each "
        "adapter was trained with.",
    )
    flags.DEFINE_integer("predict_batch_size", 32, "Rows computed at once.")
    types = ["float32", "bfloat16"]
    flags.DEFINE_enum(
        "compute_dtype",
        types[0],
        DTYPES,
        "Type of products and activations; auto takes the faster one here.",
    )
    flags.DEFINE_enum(
        "adapter_dtype",
        types[0],
        types,
        "Type in which the adapters of several tasks are kept in memory.",
    )


def check_adapter_flags() -> None:
    """Checks the flags of what answers with trained adapters.

    Raises:
        UserError: one is missing, or its value is too small.
    """
    for name in ("predict_batch_size", "max_seq_length"):
        value = FLAGS[name].value
        if value is not None and value < (3 if name == "max_seq_length" else 1):
            raise UserError(f"--{name} is {value}, which is too small")
    if not FLAGS.init_checkpoint:
        raise UserError(
            "--init_checkpoint is missing: the pretrained BERT that the "
            "adapters were trained upon"
        )
