r"""Tunes BERT to tag words (named entities), evaluates it, predicts with it.

    .venv/bin/python run_tagger.py --do_train=true --do_eval=true \
        --do_predict=true --data_dir=$NER --init_checkpoint=$BERT \
        --learning_rate=3e-4 --num_train_epochs=5 --output_dir=out/ner
"""

from typing import Any, Dict, Mapping, Optional

import adapter_bert.start_tensorflow  # noqa: F401

from absl import flags, logging

from adapter_bert.tasks.restored import tagging_columns
from adapter_bert.tasks.tagging import NAME, tagging_task
from adapter_bert.tasks.tagging_files import FORMATS
from adapter_bert.training import data_flags
from adapter_bert.training import flags as run_flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of tagging alone, after the shared ones."""
    run_flags.define_flags()
    # So that --help shows them too.
    flags.adopt_module_key_flags(run_flags)
    string, integer = flags.DEFINE_string, flags.DEFINE_integer
    data_flags.define_data_flags(
        "Folder with train, dev and test as .conll or .jsonl.",
        "A .conll or .jsonl file",
    )
    flags.adopt_module_key_flags(data_flags)
    string(
        "token_column",
        None,
        "The words' column in .conll files, a number from 0, or from -1 at "
        "the end; their key in .jsonl files. Default: 0, or tokens.",
    )
    string("tag_column", None, "The tags' column or key. Default: -1, or tags.")
    string(
        "map_tags",
        None,
        "File that renames entity types: each line holds an old type, a tab, "
        "and a new type or O.",
    )
    flags.DEFINE_enum(
        "eval_split",
        "dev",
        ("dev", "test"),
        "Split that --do_eval scores; the test file needs tags for this.",
    )
    integer(
        "max_seq_length",
        128,
        "Longest window in tokens. --adapter supplies its own default.",
    )
    integer("eval_batch_size", 8, "Windows evaluated at once.")


def _columns(
    trained: Optional[Mapping[str, Any]],
) -> Dict[str, Optional[str]]:
    """Where words and tags are: as flags say, or else as an adapter does."""
    known: Dict[str, str] = {}
    if trained and trained["task"]["name"] == NAME:
        known = tagging_columns(
            trained.get("task_settings", {}), f"the adapter {FLAGS.adapter}"
        )
    return {
        name: FLAGS[name].value or known.get(name)
        for name in ("token_column", "tag_column")
    }


def main() -> None:
    """Runs what the flags describe."""
    logging.set_verbosity(logging.INFO)
    columns = _columns(run_flags.adapter_description())
    task = tagging_task(
        columns["token_column"],
        columns["tag_column"],
        FLAGS.map_tags or "",
        FLAGS.eval_split,
        data_flags.named_files(FORMATS),
    )
    run_flags.run_or_describe(task, FLAGS.eval_batch_size)
