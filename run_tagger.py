r"""Tunes BERT to tag words (named entities), evaluates it, predicts with it.

    python run_tagger.py --do_train=true --do_eval=true --do_predict=true \
        --data_dir=$NER --init_checkpoint=$BERT --learning_rate=3e-4 \
        --num_train_epochs=5 --output_dir=out/ner
"""

import start_tensorflow  # noqa: F401

from absl import flags, logging

from runs import flags as run_flags
from tasks import flags as data_flags
from tasks.tagging import tagging_task
from tasks.tagging_files import FORMATS

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
        "The words' column in .conll files, a number from 0, or from -1 at the "
        "end; in .jsonl files their key. Default: 0, or tokens.",
    )
    string("tag_column", None, "The same of the tags. Default: -1, or tags.")
    string(
        "map_tags",
        None,
        "File of types to rename: on each line an old type, a tab, and a new "
        "type or O.",
    )
    flags.DEFINE_enum(
        "eval_split",
        "dev",
        ("dev", "test"),
        "The file that --do_eval scores; test needs tags then.",
    )
    integer("max_seq_length", 128, "Longest window in tokens.")
    integer("eval_batch_size", 8, "Windows evaluated at once.")


def main() -> None:
    """Runs what the flags describe."""
    logging.set_verbosity(logging.INFO)
    task = tagging_task(
        FLAGS.token_column,
        FLAGS.tag_column,
        FLAGS.map_tags or "",
        FLAGS.eval_split,
        data_flags.named_files(FORMATS),
    )
    run_flags.run_or_describe(task, FLAGS.eval_batch_size)


if __name__ == "__main__":
    define_flags()
    run_flags.run_app(main)
