"""Takes over a trained method, parts of compositions, new words."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from adapter_bert import files
from adapter_bert.bert.encoder import WORD_EMBEDDINGS
from adapter_bert.checkpoints import run_record, sources
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.methods.base import TuningMethod
from adapter_bert.training.settings import Experiment

# How many labels or columns the log names.
SHOWN = 10


def method_of(experiment: Experiment, trained: Artifact) -> TuningMethod:
    """Gives the method of trained values, as the flags continue it."""
    source, description = trained.weights.source, trained.config
    # A training's result may have the form of another method.
    kept = registry.parse(description["method"])
    text = description.get("trained_with") or description["method"]
    method = registry.parse(text)
    for argument in experiment.named_arguments:
        if not experiment.named_method and not hasattr(method, argument):
            raise UserError(
                f"{source} was trained with {method}, which has no {argument}; "
                "leave out its flag"
            )
    arguments = {
        f.name: getattr(method, f.name) for f in dataclasses.fields(method)
    }
    wanted = registry.parse(
        experiment.named_method or text.split("(")[0],
        {**arguments, **experiment.named_arguments},
    )
    if kept.new_words:
        from adapter_bert.methods import new_words

        wanted = new_words.with_new_words(wanted, kept.new_words)
    if wanted.parts:
        from adapter_bert.training import composition_parts

        wanted = composition_parts.by_name(
            wanted, method, description.get("parts") or {}
        )
    if wanted == method:
        if experiment.do_train and kept != method:
            raise UserError(
                f"{source} holds what {method} came to, in the form of {kept}; "
                f'pass --tuning_method="{kept}" to train that further'
            )
        return kept
    if not wanted.fits(kept):
        raise UserError(
            f"{source} was trained with {method}, but --tuning_method and its "
            f"flags say {wanted}"
        )
    return wanted


def find_parts(
    experiment: Experiment, trained: Optional[Artifact], method: TuningMethod
) -> tuple[Any, list[str]]:
    """Finds a composition's parts, and folders in which others may lie."""
    from adapter_bert.training import composition_parts

    place = experiment.adapter or experiment.init_adapter
    if not place and trained is not None:
        place = trained.weights.source
    around = place and os.path.dirname(files.absolute(place))
    places: dict[str, str] = {}
    for folder in filter(None, (experiment.output_dir, around)):
        places.update(run_record.places_of_parts(folder))
    parts = composition_parts.find(
        method,
        experiment.exchange_part,
        experiment.library,
        places,
        trained and trained.config,
    )
    folders = {around, experiment.library}
    folders.update(map(os.path.dirname, places.values()))
    return parts, sorted(folders - {""})


def begin_words(model: Any, base: Weights) -> Weights:
    """Adds first values of a model's new words to the base's."""
    from adapter_bert.data.added_tokens import content_of
    from adapter_bert.methods import new_words

    tokens = model.tokenizer.new_tokens
    plain = sources.read_tokenizer(
        model.opened,
        model.config,
        model.experiment.vocab_file,
        model.experiment.do_lower_case,
    )
    pieces = plain.encode_words([*map(content_of, tokens)])
    shape = len(tokens), model.config.embedding_width

    def read(name: str) -> np.ndarray:
        if name != new_words.NEW_WORDS:
            return base.read(name)
        return new_words.first_rows(base.read(WORD_EMBEDDINGS), pieces)

    shapes = {**base.shapes, new_words.NEW_WORDS: shape}
    return dataclasses.replace(base, shapes=shapes, read=read)


def supplied(
    description: Mapping[str, Any], length: int, is_adapter: bool
) -> str:
    """Lists the settings that a training's description supplies, for the log.

    `length` is the longest input of this run in tokens, which an adapter
    supplies too.
    """
    task, settings = description["task"], description.get("task_settings", {})
    lines = [f"task {task['name']}"]
    for key, names in (
        ("labels", task.get("labels") or task.get("tags")),
        ("columns", settings.get("columns")),
    ):
        if names and isinstance(names, list):
            shown = json.dumps(names[:SHOWN], ensure_ascii=False)[1:-1]
            more = len(names) - SHOWN
            lines.append(f"{key} {shown}{f' and {more} more' * (more > 0)}")
    lines.append(
        f"method {description.get('trained_with') or description['method']}"
    )
    base = description["base"]
    about = [f"BERT {base.get('name', '')} {base['fingerprint'][:8]}"]
    lower_case = description["tokenizer"].get("do_lower_case")
    if lower_case is not None:
        about.append("lower case" if lower_case else "upper and lower case")
    trained_length = description.get("training", {}).get("max_seq_length")
    if is_adapter and trained_length == length:
        lines.append(f"--max_seq_length={length}")
    elif trained_length:
        here = "" if trained_length == length else f", not {length} as here"
        about.append(f"--max_seq_length={trained_length}{here}")
    return f"{', '.join(lines)} (trained with {', '.join(about)})"
