"""`run.json`: the description of a folder's run, and the refusal of others.

`run.json` holds what is true on every machine; `places.json` holds paths of
this machine, which a run needs to go on, and the flags that started it.
"""

import contextlib
import os
import platform
import re
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files, flags
from adapter_bert.bert.config import BertConfig
from adapter_bert.checkpoints import training_state
from adapter_bert.checkpoints.weights import HUB, Base
from adapter_bert.data.added_tokens import NEW, NewToken, check_new_tokens
from adapter_bert.errors import UserError
from adapter_bert.methods import registry

RUN_FILE = "run.json"
BASELINE_FILE = "baseline.json"
PLACES_FILE = "places.json"
RESULTS_FILE = "eval_results.json"
# The keys of a description, for `files.read_object`.
DESCRIPTION = {
    "method": str,
    "trained_with?": str,
    "checkpoint?": str,
    "sha256?": str,
    "base": dict,
    "base.fingerprint": str,
    "base.name?": str,
    "base.hub?": str,
    "data_name?": str,
    "task": dict,
    "task.name": str,
    "task.kind?": str,
    "task.labels?": list,
    "task.tags?": list,
    "task.held_out?": dict,
    "task.held_out?.share": float,
    "task.held_out?.seed": int,
    "task_settings?": dict,
    "parts?": dict,
    "parts?.*": str,
    "carries_parts?": bool,
    "tokenizer": dict,
    "bert_config": dict,
    "training?": dict,
    "training?.max_seq_length?": int,
    "parameters?": dict,
    "versions?": dict,
}
PLACES = {
    "base?": str,
    "parts?": dict,
    "parts?.*": str,
    "command?": list,
    "command?.[]": str,
}
RESULTS = {
    "global_step": int,
    "eval_*": float,
    "dev_data?": dict,
    "dev_data?.*": str,
}

# Two runs are the same if they agree in these; `training` only counts for a
# run that trains.
IDENTITY = ("base", "tokenizer", "method", "parts", "task", "bert_config")
# A difference in how long a run trains.
LONGER = re.compile(r"training\.(num_train_steps|epochs|steps) ")


def versions() -> dict[str, str]:
    """Lists the versions that a run's numbers may depend on."""
    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
    }


def read_description(path: str, what: str) -> dict[str, Any]:
    """Reads `run.json` or `adapter_config.json`.

    A key that is null is left out.
    """
    description = files.read_object(path, what, DESCRIPTION)
    hub = description["base"].get("hub")
    if hub is not None:
        from adapter_bert.checkpoints import hugging_face_hub

        # People pass the name on, as messages and cards tell.
        try:
            hugging_face_hub.parse(hub)
        except UserError as error:
            raise UserError(f"{path}: base.hub: {error}") from error
    return {
        key: value for key, value in description.items() if value is not None
    }


def as_recorded(path: str, recorded: Optional[str]) -> str:
    """Adds the commit of an earlier record to a repository's name.

    `recorded` is `hf:ORG/NAME[/FOLDER]@COMMIT`, or None. A name with a revision
    and another repository stay as they are, and so does what is none.
    """
    if not recorded or not path.startswith(HUB):
        return path
    from adapter_bert.checkpoints import hugging_face_hub

    named = hugging_face_hub.parse(path)
    commit = hugging_face_hub.parse(recorded).revision
    if named.revision or named.at(commit) != recorded:
        return path
    logging.info("%s: the commit of its record, %s", path, recorded)
    return recorded


def read_run(output_dir: str) -> Optional[dict[str, Any]]:
    """Reads `run.json` of the run that a folder holds, or gives None."""
    path = os.path.join(output_dir, RUN_FILE)
    if not output_dir or not files.exists(path):
        return None
    return read_description(path, "the run's description")


def read_results(
    output_dir: str, keys: Mapping[str, Any] = RESULTS
) -> dict[str, Any]:
    """Reads `eval_results.json`, with these keys; {} without the file."""
    path = os.path.join(output_dir, RESULTS_FILE)
    return files.read_optional(path, "a run's scores", keys)


def scores_in(results: Mapping[str, Any]) -> dict[str, float]:
    """Gives the scores of `eval_results.json`, by name without `eval_`."""
    return {
        key.removeprefix("eval_"): value
        for key, value in results.items()
        if key.startswith("eval_")
    }


def new_tokens(description: dict[str, Any], path: str) -> list[NewToken]:
    """Reads a task's own tokens in a description that lies at `path`."""
    tokens = description["tokenizer"].get(NEW)
    tokens = [] if tokens is None else check_new_tokens(tokens, path)
    method = registry.parse(description["method"])
    if method.new_words != len(tokens):
        raise UserError(
            f"{path} has {len(tokens)} new tokens, but its method {method} "
            f"{method.new_words}; copy the adapter again"
        )
    return tokens


def bert_config(description: dict[str, Any], path: str) -> BertConfig:
    """Reads the config in a description that lies at `path`."""
    try:
        return BertConfig(**description["bert_config"])
    except TypeError as error:
        raise UserError(
            f"{path}: bert_config is none of this program: {error}"
        ) from error


def write(
    output_dir: str,
    record: dict[str, Any],
    base: Base,
    parts: Optional[Mapping[str, str]] = None,
) -> None:
    """Writes `run.json`, and `places.json` of the BERT and parts' folders."""
    places: dict[str, Any] = {
        "base": base.hub or base.path,
        "command": flags.command_line(),
    }
    if parts:
        places["parts"] = dict(parts)
    files.write_json(os.path.join(output_dir, PLACES_FILE), places)
    files.write_json(os.path.join(output_dir, RUN_FILE), record)


def place_of_base(run_dir: str) -> str:
    """Gives the path of a run's pretrained model."""
    place = _read_places(run_dir).get("base")
    if not place:
        run_file = os.path.join(run_dir, RUN_FILE)
        run = read_description(run_file, "the run's description")
        raise UserError(
            f"{os.path.join(run_dir, PLACES_FILE)} does not say where the BERT "
            f"lies that {run_dir} was trained on (its folder was called "
            f"{run['base'].get('name')}); pass that as --init_checkpoint, "
            "to scripts/ablate.sh as BERT"
        )
    return place


def places_of_parts(run_dir: str) -> dict[str, str]:
    """Reads the folders of the adapters in a run's method, by name."""
    return _read_places(run_dir).get("parts") or {}


def command_of(run_dir: str) -> list[str]:
    """Reads the flags that started a run; empty if it records none."""
    return _read_places(run_dir).get("command") or []


def _read_places(run_dir: str) -> dict[str, Any]:
    path = os.path.join(run_dir, PLACES_FILE)
    with contextlib.suppress(UserError):
        return files.read_object(path, "the places of a run", PLACES)
    return {}


def name_of_data(place: str) -> str:
    """Names the last part of the path of a run's data, "" without one."""
    return place and os.path.basename(os.path.normpath(files.absolute(place)))


def check(
    output_dir: str,
    record: dict[str, Any],
    do_train: bool,
    partial: bool = False,
) -> None:
    """Refuses a folder that holds another run than `record`.

    A `partial` record lacks keys that the data will add; these are not
    compared.
    """
    old = read_run(output_dir)
    if old is None:
        if training_state.holds_checkpoints(output_dir):
            raise UserError(
                f"{output_dir} holds checkpoints of another program (no "
                f"{RUN_FILE}); choose another --output_dir"
            )
        return
    from adapter_bert.checkpoints.differences import differences_of

    keys = IDENTITY + (("training",) if do_train else ())
    differences = [
        f"{name} was {before!r}, now {now!r}"
        for key in keys
        for name, before, now in differences_of(key, old, record, partial)
    ]
    if differences:
        way = ""
        if any(map(LONGER.match, differences)):
            way = (
                f"; to train {output_dir}/adapter on, pass it there as "
                "--init_adapter, or as --init_checkpoint the BERT into which "
                "`adapter-bert merge` writes it, with its heads"
            )
        raise UserError(
            f"{output_dir} holds a run with another configuration: "
            f"{'; '.join(differences)}; choose another --output_dir{way}"
        )
    if partial:
        return
    for name, before, now in differences_of("versions", old, record):
        logging.warning(
            "%s was %s when this run began, now %s: bits may differ",
            name,
            before,
            now,
        )
