"""Flags of the programs that answer with trained adapters."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Optional

from adapter_bert import files
from adapter_bert.answering.embeddings import POOLINGS, TRAINED, VectorForm
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import task_name
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.checkpoints.bert_flags import BertFiles
from adapter_bert.errors import UserError
from adapter_bert.flags import POSITIVE, Declared, Topic, at_least, read
from adapter_bert.library.adapter_library import ALL, AdapterLibrary
from adapter_bert.methods import registry
from adapter_bert.training import composition_parts
from adapter_bert.training.settings import (
    BASE_DTYPES,
    BFLOAT16,
    DTYPES,
    FLOAT32,
)


def split_name(text: str) -> tuple[str, str]:
    """Splits NAME=PATH; a path alone has the name ""."""
    name, separator, path = text.partition("=")
    # A path may have an equals sign of its own.
    if not name or not separator or files.exists(text):
        return "", text
    return name, path


def named_folders(
    adapters: Sequence[str], library: Optional[str], tasks: list[str]
) -> dict[str, str]:
    """Finds the adapters' folders, by their names.

    `adapters` are folders or NAME=FOLDER; `tasks` names of adapters in the
    library, or `ALL` alone, none where it is only asked for parts of
    `adapters`.
    """
    named: list[tuple[str, str]] = []
    for text in adapters:
        name, folder = split_name(text)
        named.append((name or task_name(folder), folder))
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
        named += [(name, shelf.folder(name)) for name in names]
    if not named:
        raise UserError(
            "no adapter is named; pass --adapter=FOLDER, or --library=DIR and "
            "--task"
        )
    names = [name for name, _ in named]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{name!r} is named twice; leave one out, or name them apart: "
                "--adapter=first=FOLDER --adapter=second=FOLDER"
            )
    return dict(named)


def exchanged_in(
    folders: Mapping[str, str], pairs: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Each adapter's new parts by their old names, by the adapter's name.

    `pairs` has a part's new adapter by the old one's name.
    """
    if not pairs:
        return {name: {} for name in folders}
    parts = {
        name: [
            part.name
            for part in registry.parse(
                adapter_artifact.read_config(folder)["method"]
            ).parts
            if part.name
        ]
        for name, folder in folders.items()
    }
    all_parts = sorted({part for names in parts.values() for part in names})
    for old in pairs:
        if old not in all_parts:
            raise UserError(
                f"--exchange_part names {old!r}, but the adapters are made of: "
                f"{', '.join(all_parts) or 'no others'}"
            )
    return {
        name: {old: new for old, new in pairs.items() if old in names}
        for name, names in parts.items()
    }


@dataclasses.dataclass(frozen=True)
class OneBert(BertFiles):
    """A BERT with a library of adapters, and how they are computed."""

    library: str = Topic.METHOD.setting(
        "",
        "Folder of an adapter library, where parts of compositions are looked "
        "for too.",
    )
    max_seq_length: Optional[int] = Topic.DATA.setting(
        None,
        "Longest input in tokens, the rest is cut off; default: each "
        "adapter's, without one the BERT's.",
        at_least(3),
    )
    predict_batch_size: int = Topic.EVALUATION.setting(
        32,
        "Rows computed at once.",
        POSITIVE,
    )
    compute_dtype: str = Topic.HARDWARE.setting(
        FLOAT32,
        "Type of products and activations; auto takes the faster one here.",
        choices=DTYPES,
    )
    base_dtype: str = Topic.HARDWARE.setting(
        FLOAT32,
        "Type in which BERT's matrices are kept in memory. int8 takes a "
        "quarter of the bytes.",
        choices=BASE_DTYPES,
    )
    adapter_dtype: str = Topic.HARDWARE.setting(
        FLOAT32,
        "Type in which the adapters of several tasks are kept in memory.",
        choices=(FLOAT32, BFLOAT16),
    )


@dataclasses.dataclass(frozen=True)
class Answering(OneBert):
    """Adapters that answer, named one by one."""

    adapter: list[str] = Topic.METHOD.setting(
        [], "Folder of a trained adapter, or NAME=FOLDER", repeated=True
    )
    task: list[str] = Topic.METHOD.setting(
        [], "Names of adapters in --library, as mrpc,rte, or all."
    )
    exchange_part: list[str] = Topic.METHOD.setting(
        [],
        "Trained adapters that take the places of others in compositions: "
        "english=german puts german in the place of english.",
    )


def named_adapters(
    flags: Answering, tasks: Optional[list[str]] = None
) -> dict[str, tuple[str, dict[str, str]]]:
    """Finds the named adapters: folders and exchanged parts, by their names.

    `tasks` take the place of the flag's.
    """
    names = flags.task if tasks is None else tasks
    folders = named_folders(flags.adapter, flags.library, names)
    exchanged = exchanged_in(
        folders, composition_parts.exchanged(flags.exchange_part)
    )
    return {name: (folders[name], exchanged[name]) for name in folders}


def open_bert(
    settings: OneBert, do_lower_case: Optional[bool] = None
) -> FrozenBert:
    """Opens the BERT that the flags name."""
    return FrozenBert.open(
        settings.init_checkpoint,
        settings.bert_config_file,
        settings.vocab_file,
        settings.compute_dtype,
        do_lower_case,
        settings.base_dtype,
    )


@dataclasses.dataclass(frozen=True)
class Embedding:
    """Vectors of texts."""

    embeddings: Optional[str] = Topic.EVALUATION.setting(
        None,
        "Vectors of texts: cls (the first token's hidden states), mean (over "
        "all tokens), tokens (of each token), trained (as the adapter was "
        "trained, or as the BERT's folder of sentence-transformers says).",
        choices=(*POOLINGS, TRAINED),
    )
    layers: list[str] = Topic.EVALUATION.setting(
        ["-1"],
        "Layers whose outputs make a vector of --embeddings, side by side, as "
        "-1,-2: 0 is the first, -1 the last.",
        needs=("embeddings",),
    )
    normalize: Optional[bool] = Topic.EVALUATION.setting(
        None,
        "Whether vectors of --embeddings get the length 1; default: as trained "
        "vectors were, else no.",
        needs=("embeddings",),
    )
    vector_size: Optional[int] = Topic.EVALUATION.setting(
        None,
        "Keep so many first entries of a vector of --embeddings; an adapter "
        "must have been trained for the size. Default: all entries.",
        POSITIVE,
        needs=("embeddings",),
    )
    prompt: Optional[str] = Topic.EVALUATION.setting(
        None,
        "Text before each text whose vector --embeddings makes, or the name of "
        "a prompt that the adapter or the BERT's folder has, as query. "
        "Default: that of trained vectors, else none.",
        needs=("embeddings",),
    )


def read_form() -> Optional[VectorForm]:
    """Reads the form of vectors, or None if none are asked for."""
    settings = read(Embedding)
    if settings.embeddings is None:
        return None
    try:
        layers = tuple(map(int, settings.layers))
    except ValueError as error:
        raise UserError(
            f"--layers is {','.join(settings.layers)}, expected numbers with "
            "commas between them, as -1,-2"
        ) from error
    return VectorForm(
        settings.embeddings,
        layers,
        settings.normalize,
        settings.vector_size,
        settings.prompt,
    )


def read_flags(declaring: type[Declared] = Answering) -> Declared:
    """Reads the flags of what answers with trained adapters, `OneBert`."""
    settings = read(declaring)
    if not settings.init_checkpoint:
        raise UserError(
            "--init_checkpoint is missing: the pretrained BERT that the "
            "adapters were trained on"
        )
    return settings
