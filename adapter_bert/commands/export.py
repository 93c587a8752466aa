r"""Writes trained adapters and their BERT as one model that takes text.

    .venv/bin/adapter-bert export --init_checkpoint=$BERT --library=DIR \
        --output_dir=exported

The folder `exported/1` is a SavedModel. TensorFlow and TensorFlow Serving load
it without this project. docs/export.md tells more.
"""

from typing import Dict

import adapter_bert.start_tensorflow  # noqa: F401

from absl import flags, logging

from adapter_bert.errors import UserError
from adapter_bert.progress import Progress
from adapter_bert.serving import flags as adapter_flags
from adapter_bert.serving import saved_model
from adapter_bert.serving.flags import exchanged_in, named_folders
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.library import ALL
from adapter_bert.serving.loaded_task import LoadedTask, load_task
from adapter_bert.serving.text_model import TextModel
from adapter_bert.training import parts

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags."""
    adapter_flags.define_adapter_flags()
    flags.adopt_module_key_flags(adapter_flags)
    flags.DEFINE_string(
        "output_dir", None, "Folder for the model's versions: 1, 2, ..."
    )


def main() -> None:
    """Exports what the flags name."""
    logging.set_verbosity(logging.INFO)
    adapter_flags.check_adapter_flags()
    if not FLAGS.output_dir:
        raise UserError("--output_dir is missing: a folder for the model")
    saved_model.next_version(FLAGS.output_dir)
    tasks = FLAGS.task
    if FLAGS.library and not tasks:
        if FLAGS.adapter:
            logging.info(
                "of %s only parts are looked for; --task=all exports its "
                "adapters too",
                FLAGS.library,
            )
        else:
            tasks = [ALL]
    folders = named_folders(FLAGS.adapter, FLAGS.library, tasks)
    exchanged = exchanged_in(folders, parts.exchanged(FLAGS.exchange_part))
    bert = FrozenBert.open(
        FLAGS.init_checkpoint,
        FLAGS.bert_config_file or "",
        FLAGS.vocab_file or "",
        FLAGS.compute_dtype,
    )
    loaded: Dict[str, LoadedTask] = {}
    progress = Progress("load", len(folders), "adapters")
    for name, folder in folders.items():
        loaded[name] = load_task(
            bert,
            folder,
            FLAGS.max_seq_length,
            FLAGS.library or "",
            exchanged[name],
        )
        progress.update(1)
    progress.close()
    logging.info("making the model, number of tasks: %d", len(loaded))
    model = TextModel(
        bert, loaded, FLAGS.predict_batch_size, FLAGS.adapter_dtype
    )
    logging.info("writing it, %.0f MB", model.size / 1e6)
    version = saved_model.export(model, bert, loaded, FLAGS.output_dir)
    logging.info("wrote %s: %s", version, ", ".join(loaded)[:200])
