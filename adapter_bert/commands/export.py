r"""Writes trained adapters and their BERT as one model that takes text.

    .venv/bin/adapter-bert export --init_checkpoint=$BERT --library=DIR \
        --output_dir=exported

The folder `exported/1` is a SavedModel. TensorFlow and TensorFlow Serving load
it without this project. With --format=tflite or onnx one task becomes a file of
TensorFlow Lite or ONNX Runtime that takes token ids. docs/export.md tells more.

ONNX needs an environment of its own, which `make onnx` makes.
"""

import dataclasses
from typing import Optional

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert import environments, files
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import LoadedTask, load_task
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, Topic
from adapter_bert.graph import runtimes, saved_model
from adapter_bert.graph.exported import shown_names
from adapter_bert.graph.text_model import TextModel, fault_of
from adapter_bert.library import flags as adapter_flags
from adapter_bert.library.adapter_library import ALL
from adapter_bert.progress import Progress
from adapter_bert.tasks.kinds import KINDS, kind_of
from adapter_bert.training.settings import FLOAT32

SAVED_MODEL = "saved_model"
FORMATS = (SAVED_MODEL, *runtimes.RUNTIMES)
# Names the interpreter of another environment with ONNX.
PYTHON = "ADAPTER_BERT_ONNX"


@dataclasses.dataclass(frozen=True)
class Exported:
    """Describes the exported model."""

    output_dir: str = Topic.TO_DO.setting(
        "",
        "Folder for the model's versions: 1, 2, ...; of tflite and onnx, a new "
        "folder for the model.",
    )
    format: str = Topic.TO_DO.setting(
        SAVED_MODEL,
        "saved_model takes texts and has any number of tasks; tflite and onnx "
        "take token ids and have one task.",
        choices=FORMATS,
    )
    weights: str = Topic.TO_DO.setting(
        FLOAT32,
        "Type of the matrices in a file of tflite or onnx. int8 takes a "
        "quarter of the bytes.",
        choices=tuple(runtimes.LIMITS),
    )
    skip_unsupported: bool = Topic.TO_DO.setting(
        False, "Leave out tasks that cannot be exported, and name them."
    )


SETTINGS = (Exported, adapter_flags.Answering, adapter_flags.Embedding)


def run(bert: Optional[FrozenBert] = None) -> str:
    """Exports what the flags name, with a BERT that may be open already.

    Returns:
        The folder of the model's version, or of the file.
    """
    flags, output_dir = adapter_flags.read_flags(), FLAGS.output_dir
    if not output_dir:
        raise UserError("--output_dir is missing: a folder for the model")
    form = adapter_flags.read_form()
    is_saved_model = FLAGS.format == SAVED_MODEL
    if is_saved_model:
        if FLAGS.weights != FLOAT32:
            raise UserError(
                f"--weights={FLAGS.weights} is for --format=tflite or onnx; "
                "leave it out"
            )
        saved_model.next_version(output_dir)
    else:
        for name in ("compute_dtype", "base_dtype", "adapter_dtype"):
            if getattr(flags, name) != FLOAT32:
                raise UserError(
                    f"--{name} is {getattr(flags, name)}, but --format="
                    f"{FLAGS.format} takes a BERT in float32; leave --{name} "
                    "out (--weights=int8 makes the file small)"
                )
        if form:
            raise UserError(
                f"--format={FLAGS.format} gives no vectors; leave --embeddings "
                f"out, or pass --format={SAVED_MODEL}"
            )
        runtimes.check_packages(FLAGS.format)
        files.check_new(output_dir)
    tasks = flags.task
    if flags.library and not tasks:
        if flags.adapter:
            logging.info(
                "of %s only parts are looked for; --task=all exports its "
                "adapters too",
                flags.library,
            )
        else:
            tasks = [ALL]
    adapters = adapter_flags.named_adapters(flags, tasks)
    if not is_saved_model:
        if len(adapters) > 1:
            raise UserError(
                f"--format={FLAGS.format} takes one task, but {len(adapters)} "
                f"are named: {shown_names(list(adapters))}; name one by --task "
                "or --adapter"
            )
        [(name, (folder, _))] = adapters.items()
        kind = kind_of(adapter_artifact.read_config(folder)["task"])
        computed = [name for name, one in KINDS.items() if one.runtime]
        # A kind that is not built in says so itself.
        if kind in KINDS and kind not in computed:
            raise UserError(
                f"{name} is of the kind {kind}, which cannot be exported with "
                f"--format={FLAGS.format}; expected {', '.join(computed)}"
            )
    bert = bert or adapter_flags.open_bert(flags)
    loaded: dict[str, LoadedTask] = {}
    progress = Progress("load", len(adapters), "adapters")
    length = flags.max_seq_length
    for name, (folder, exchanged) in adapters.items():
        loaded[name] = load_task(bert, folder, length, flags.library, exchanged)
        progress.update(1)
    progress.close()
    if not is_saved_model:
        [(name, task)] = loaded.items()
        logging.info("making a file of %s", FLAGS.format)
        if task.task.novelty:
            logging.warning(
                "%s scores the novelty of texts, which files of %s do not",
                name,
                FLAGS.format,
            )
        difference = runtimes.export(
            bert, name, task, output_dir, FLAGS.format, FLAGS.weights
        )
        logging.info(
            "wrote %s: %s, which differs from TensorFlow by %.1g",
            output_dir,
            name,
            difference,
        )
        return output_dir
    loaded = _supported(loaded)
    logging.info("making the model, number of tasks: %d", len(loaded))
    model = TextModel(
        bert,
        loaded,
        flags.predict_batch_size,
        flags.adapter_dtype,
        form,
    )
    logging.info("writing it, %.0f MB", model.size / 1e6)
    version = saved_model.export(model, bert, loaded, output_dir)
    logging.info("wrote %s: %s", version, ", ".join(loaded)[:200])
    return version


def _supported(loaded: dict[str, LoadedTask]) -> dict[str, LoadedTask]:
    faults = {name: fault_of(name, task) for name, task in loaded.items()}
    supported = {n: task for n, task in loaded.items() if not faults[n]}
    problems = list(filter(None, faults.values()))
    if not supported or (problems and not FLAGS.skip_unsupported):
        raise UserError(
            f"{problems[0]} ({len(problems)} of {len(loaded)} tasks are such); "
            "name other tasks by --task, or pass --skip_unsupported; "
            "`adapter-bert serve --library` answers by all of them"
        )
    for problem in problems:
        logging.warning("left out: %s", problem)
    return supported


def main() -> None:
    """Exports what the flags name."""
    if FLAGS.format == runtimes.ONNX:
        environments.go_on_with(
            runtimes.ONNX_PACKAGES, "export", "onnx", PYTHON
        )
    run()
