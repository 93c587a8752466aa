r"""Pretrains BERT, or an adapter, on masked tokens and next sentences.

    .venv/bin/python run_pretraining.py --do_train=true --do_eval=true \
        --input_file=rows.tfrecord --init_checkpoint=$BERT \
        --num_train_steps=1000 --num_warmup_steps=100 --output_dir=out/domain

`create_pretraining_data.py` makes the rows. All of BERT is trained, unless
--tuning_method says otherwise. Without --init_checkpoint a BERT of the sizes of
--bert_config_file begins with random values.
"""

import dataclasses
import os
import shutil

import adapter_bert.start_tensorflow  # noqa: F401

from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import run_record, sources, written_form
from adapter_bert.errors import UserError
from adapter_bert.flags import FLAGS, POSITIVE, Topic, read
from adapter_bert.tasks.pretraining import Pretraining
from adapter_bert.training import run_from_flags
from adapter_bert.training.settings import METHOD, Experiment, RowFlags, Tuning

# Folder of a run's output for the BERT that it begins with.
INITIAL = "initial"


@dataclasses.dataclass(frozen=True)
class Scoring:
    """Further settings of a run."""

    max_eval_steps: int = Topic.EVALUATION.setting(
        100, "Batches to score; the first rows are taken.", POSITIVE
    )


@dataclasses.dataclass(frozen=True)
class FullTuning(Tuning):
    """As `Tuning`, but all of BERT is trained by default."""

    tuning_method: str = Topic.METHOD.setting("full", METHOD)


SETTINGS = (Pretraining, Scoring, RowFlags, FullTuning, Experiment)


def write_initial(output_dir: str) -> str:
    """Writes a BERT of random values, and returns its folder.

    What a start has left that never began to train is replaced.
    """
    folder = os.path.join(output_dir, INITIAL)
    for name in ("bert_config_file", "vocab_file"):
        if not FLAGS[name].value:
            raise UserError(
                f"--{name} is missing: without --init_checkpoint, a BERT of "
                "the sizes of --bert_config_file with the vocabulary of "
                "--vocab_file begins with random values"
            )
    config = sources.read_config(None, FLAGS.bert_config_file)
    written_form.check_form(config, written_form.GOOGLE)
    tokenizer = sources.read_tokenizer(
        None, config, FLAGS.vocab_file, FLAGS.do_lower_case
    )
    values = {
        name: encoder.initial_values(
            name, one.shape, one.initializer, FLAGS.seed
        )
        for name, one in encoder.declare(config).items()
    }
    files.prepare_folder(output_dir)
    with folder_lock.hold(output_dir):
        index = os.path.join(folder, "bert_model.ckpt.index")
        if files.is_folder(folder) and not files.exists(index):
            raise UserError(
                f"{folder} holds other files than a BERT; choose another "
                "--output_dir"
            )
        shutil.rmtree(folder, ignore_errors=True)
        with files.new_folder(folder) as place:
            written_form.write_model(
                place, written_form.GOOGLE, config, values, {}
            )
            vocabulary = written_form.tokenizer_files(
                FLAGS.vocab_file, tokenizer
            )
            written_form.write_files(place, vocabulary)
    logging.info("a BERT of random values is in %s", folder)
    return folder


def main() -> None:
    """Runs what the flags describe."""
    output_dir = FLAGS.output_dir
    if (
        FLAGS.do_train
        and output_dir
        and not FLAGS.init_checkpoint
        and not FLAGS.describe
        and not run_record.read_run(output_dir)
    ):
        # Rows that are missing are told of before anything is written.
        files.matching(FLAGS.input_file, "--input_file")
        FLAGS.init_checkpoint = write_initial(output_dir)
    most = read(Scoring).max_eval_steps * read(RowFlags).eval_batch_size
    task = read(Pretraining, most_scored=most)
    run_from_flags.run_or_describe(task)
