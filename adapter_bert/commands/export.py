r"""Writes trained adapters and their BERT as one model that takes text.

    .venv/bin/adapter-bert export --init_checkpoint=$BERT --library=DIR \
        --output_dir=exported

The folder `exported/1` is a SavedModel. TensorFlow and TensorFlow Serving load
it without this project. docs/export.md tells more.
"""

import dataclasses
from typing import Dict, Optional

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, Topic
from adapter_bert.progress import Progress
from adapter_bert.serving import flags as adapter_flags
from adapter_bert.serving import saved_model
from adapter_bert.serving.flags import exchanged_in, named_folders
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.library import ALL
from adapter_bert.serving.text_model import TextModel
from adapter_bert.serving.trained_task import LoadedTask, load_task
from adapter_bert.training import composition_parts


@dataclasses.dataclass(frozen=True)
class Exported:
    """The exported model."""

    output_dir: str = Topic.TO_DO.setting(
        "", "Folder for the model's versions: 1, 2, ..."
    )


SETTINGS = (Exported, adapter_flags.Answering, adapter_flags.Embedding)


def run(bert: Optional[FrozenBert] = None) -> str:
    """Exports what the flags name, with a BERT that may be open already.

    Returns:
        The folder of the model's version.

    Raises:
        UserError: something is missing, damaged, or cannot be exported.
    """
    asked, output_dir = adapter_flags.read_flags(), FLAGS.output_dir
    if not output_dir:
        raise UserError("--output_dir is missing: a folder for the model")
    form = adapter_flags.read_form()
    saved_model.next_version(output_dir)
    tasks = asked.task
    if asked.library and not tasks:
        if asked.adapter:
            logging.info(
                "of %s only parts are looked for; --task=all exports its "
                "adapters too",
                asked.library,
            )
        else:
            tasks = [ALL]
    folders = named_folders(asked.adapter, asked.library, tasks)
    exchanged = exchanged_in(
        folders, composition_parts.exchanged(asked.exchange_part)
    )
    bert = bert or adapter_flags.open_bert(asked)
    loaded: Dict[str, LoadedTask] = {}
    progress = Progress("load", len(folders), "adapters")
    for name, folder in folders.items():
        loaded[name] = load_task(
            bert,
            folder,
            asked.max_seq_length,
            asked.library,
            exchanged[name],
        )
        progress.update(1)
    progress.close()
    logging.info("making the model, number of tasks: %d", len(loaded))
    model = TextModel(
        bert, loaded, asked.predict_batch_size, asked.adapter_dtype, form
    )
    logging.info("writing it, %.0f MB", model.size / 1e6)
    version = saved_model.export(model, bert, loaded, output_dir)
    logging.info("wrote %s: %s", version, ", ".join(loaded)[:200])
    return version


def main() -> None:
    """Exports what the flags name."""
    logging.set_verbosity(logging.INFO)
    run()
