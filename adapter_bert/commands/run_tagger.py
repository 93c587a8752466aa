r"""Tunes BERT to tag words (named entities), evaluates it, predicts with it.

    .venv/bin/python run_tagger.py --do_train=true --do_eval=true \
        --do_predict=true --data_dir=$NER --init_checkpoint=$BERT \
        --learning_rate=3e-4 --num_train_epochs=5 --output_dir=out/ner
"""

import dataclasses

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert.flags import Topic, read
from adapter_bert.tasks.tagging import tagging_task
from adapter_bert.tasks.tagging_files import FORMATS, WordColumns
from adapter_bert.training import run_from_flags
from adapter_bert.training.settings import WITH_ROWS, PredictedFlags


@dataclasses.dataclass(frozen=True)
class Sentences(PredictedFlags):
    """Sentences with tags."""

    eval_split: str = Topic.DATA.setting(
        "dev",
        "Split that --do_eval scores; the test file needs tags for this.",
        choices=("dev", "test"),
    )
    map_tags: str = Topic.DATA.setting(
        "",
        "File that renames entity types: each line holds an old type, a tab, "
        "and a new type or O.",
    )


SETTINGS = (Sentences, WordColumns, *WITH_ROWS)


def main() -> dict[str, float]:
    """Does what the flags say; results as `run_or_describe` gives them."""
    sentences = read(Sentences)
    task = tagging_task(
        run_from_flags.read_recorded(WordColumns),
        sentences.map_tags,
        sentences.eval_split,
        run_from_flags.named_files(FORMATS),
    )
    return run_from_flags.run_or_describe(task)
