"""The command line that repeats a recorded run."""

import dataclasses
import json
import os
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact, run_record
from adapter_bert.data.added_tokens import NEW
from adapter_bert.data.tables import READERS, ending_of
from adapter_bert.errors import UserError
from adapter_bert.flags import declared
from adapter_bert.tasks.from_description import custom_arguments
from adapter_bert.tasks.kinds import (
    MASKED_LM,
    PRETRAINING,
    QUESTIONS,
    TAGGING,
    VECTORS,
    kind_of,
)
from adapter_bert.tasks.novelty import NOVELTY
from adapter_bert.tasks.tagging_files import FORMATS
from adapter_bert.training.engines import ENGINES
from adapter_bert.training.settings import Experiment

CLASSIFIER = "run_classifier.py"
PROGRAMS = {
    QUESTIONS: "run_squad.py",
    TAGGING: "run_tagger.py",
    MASKED_LM: "run_mlm.py",
    PRETRAINING: "run_pretraining.py",
    VECTORS: "run_vectors.py",
}
CUSTOM = "custom"
# Flags by their names in `training` and `versions` of `run.json`.
TRAINING = {
    **{
        field.name: flag
        for flag, about, field in declared([Experiment])
        if about.recorded
    },
    "max_seq_length": "max_seq_length",
    "task_sampling": "task_sampling",
    "class_weights": "class_weights",
    "extend_labels": "extend_labels",
    "distill_weight": "distill_weight",
    "loss": "loss",
    "temperature": "temperature",
    "two_adapters": "two_adapters",
}
VERSIONS = {
    "devices": "num_devices",
    "cpu_lanes": "cpu_lanes",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "use_xla": "use_xla",
}
# Flags by their names in `task`, of the tasks that have some.
OF_TASKS = {
    MASKED_LM: {
        "mlm_probability": "mlm_probability",
        "whole_word_masking": "whole_word_masking",
    },
    VECTORS: {
        "pooling": "pooling",
        "normalize": "normalize",
        "sizes": "matryoshka_sizes",
    },
}
# Flags that no run records, by program.
CUTS = ("max_train_examples", "max_eval_examples")
UNRECORDED = {
    CLASSIFIER: (*CUTS, "id_column"),
    "run_squad.py": (*CUTS, "count_steps_in"),
    "run_tagger.py": (*CUTS, "token_column", "tag_column", "eval_split"),
    "run_mlm.py": CUTS,
    "run_vectors.py": (
        *CUTS,
        "task_name",
        "text_a_column",
        "text_b_column",
        "negative_column",
        "score_column",
        "header",
        "corpus_file",
        "corpus_id_column",
        "corpus_text_column",
    ),
    "run_pretraining.py": (*CUTS, "max_predictions_per_seq", "max_eval_steps"),
}


class Unknown(NamedTuple):
    """A value that the run does not record, as a variable of the shell."""

    name: str
    meaning: str


@dataclasses.dataclass(frozen=True)
class Command:
    """The command line of a program: values by the flags' names."""

    program: str
    flags: Mapping[str, Union[str, Unknown]]

    @property
    def text(self) -> str:
        """The command for a shell, a flag on each line."""
        words = [f".venv/bin/python {self.program}"]
        for name, value in self.flags.items():
            if isinstance(value, Unknown):
                value = f'"${value.name}"'
            elif "'" in value and not set(value) & set('"$`\\!'):
                # Easier to read than the escapes of shlex.
                value = f'"{value}"'
            else:
                value = shlex.quote(value)
            words.append(f"--{name}={value}")
        return " \\\n  ".join(words)


def is_one_of_several(run: Mapping[str, Any]) -> bool:
    """Whether a description is of one task of a run of several."""
    return "trained_together" in run["training"] and "tasks" not in run["task"]


def command_of(folder: pathlib.Path, run: Mapping[str, Any]) -> Command:
    """The command line of a run, from its output folder and `run.json`."""
    task, training = run["task"], run["training"]
    versions = run.get("versions") or {}
    program = PROGRAMS.get(kind_of(task), CLASSIFIER)
    found: dict[str, Any] = {}
    config = _adapter_config(folder, task)
    if program == CLASSIFIER:
        found["task_name"] = ",".join(
            f"{CUSTOM}:{name}" if one.get("name") == CUSTOM else name
            for name, one in task.get("tasks", {task["name"]: {}}).items()
        )
    trains = "steps" in training
    evaluates = (folder / "eval_results.json").exists()
    predicts = any(
        any(folder.glob(f"{where}{name}"))
        for where in ("", "tasks/*/")
        for name in ("test_*", "predictions.json")
    )
    found.update(_data(program, run, evaluates, predicts))
    try:
        found["init_checkpoint"] = run_record.place_of_base(str(folder))
    except UserError:
        name = run["base"].get("name")
        meaning = "the pretrained model" + f", called {name}" * bool(name)
        found["init_checkpoint"] = Unknown("BERT", meaning)
    found["do_lower_case"] = run["tokenizer"].get("do_lower_case")
    if training.get("start") or not trains:
        flag = "init_adapter" if training.get("new_head") else "adapter"
        found[flag] = Unknown(
            "ADAPTER", "the folder of the trained adapter that it began with"
        )
    if run["tokenizer"].get(NEW):
        found["new_tokens"] = Unknown("NEW_TOKENS", "the file of new words")
    found.update(_parts(folder, run, config))
    found["tuning_method"] = run["method"]
    found["do_train"], found["do_eval"] = trains, evaluates
    found["do_predict"] = predicts
    found.update({flag: training.get(k) for k, flag in TRAINING.items()})
    if training.get("replays"):
        del found["distill_weight"]
        found["replay_file"] = Unknown(
            "REPLAY_FILE", "the file of rows with old labels"
        )
    found.update(_calibration(folder))
    of_task = OF_TASKS.get(task["name"], {})
    found.update({flag: task.get(k) for k, flag in of_task.items()})
    found.update(_settings(task, config))
    classes = {path.partition(":")[2]: name for name, path in ENGINES.items()}
    found["engine"] = classes.get(versions.get("engine"))
    found.update({flag: versions.get(k) for k, flag in VERSIONS.items()})
    found["output_dir"] = Unknown("OUTPUT_DIR", "a new folder")
    flags = {k: _text(v) for k, v in found.items() if v not in (None, "")}
    return Command(program, flags)


def _text(value: Any) -> Union[str, Unknown]:
    if isinstance(value, Unknown):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _adapter_config(
    folder: pathlib.Path, task: Mapping[str, Any]
) -> Optional[dict[str, Any]]:
    """The adapter's description; of several tasks, a custom one's."""
    folders = [folder]
    for name, one in task.get("tasks", {}).items():
        if one.get("name") == CUSTOM:
            folders.append(folder / "tasks" / name)
    for place in map(str, folders):
        artifact = os.path.join(place, "adapter")
        if files.is_folder(artifact):
            return adapter_artifact.read_config(artifact)
    return None


def _data(
    program: str, run: Mapping[str, Any], evaluates: bool, predicts: bool
) -> dict[str, Any]:
    """The flags of the data, whose place no run records."""
    name = run_record.data_name(run)
    called = f", which was called {name}" if name else ""
    ending = ending_of(name)
    endings = {
        CLASSIFIER: READERS,
        "run_vectors.py": (*READERS, ".json"),
        "run_tagger.py": FORMATS,
    }.get(program)
    task = run["task"]
    # Several tasks share the flags; tasks with a dev set hold nothing out.
    together = (task, *task.get("tasks", {}).values())
    held_out = next(filter(None, (t.get("held_out") for t in together)), {})
    found: dict[str, Any] = {
        "dev_share": held_out.get("share"),
        "split_seed": held_out.get("seed"),
    }
    if endings is not None and ending not in endings:
        found["data_dir"] = Unknown(
            "DATA_DIR", f"the folder of the data{called}"
        )
        return found
    train_flag = "train_file"
    if program == PROGRAMS[PRETRAINING]:
        train_flag = "input_file"
    found[train_flag] = Unknown("TRAIN_FILE", f"the training file{called}")
    # Questions are evaluated on what is predicted.
    is_squad = program == "run_squad.py"
    if evaluates and not held_out and not is_squad:
        found["eval_file"] = Unknown(
            "EVAL_FILE", "the file that it was evaluated on"
        )
    if predicts or evaluates and is_squad:
        found["predict_file"] = Unknown(
            "PREDICT_FILE", "the file that it answered"
        )
    return found


def _parts(
    folder: pathlib.Path,
    run: Mapping[str, Any],
    config: Optional[Mapping[str, Any]],
) -> dict[str, Any]:
    """The flags of a composition's trained adapters."""
    if not run.get("parts"):
        return {}
    places = run_record.places_of_parts(str(folder))
    splits = {name: os.path.split(path) for name, path in places.items()}
    libraries = {at for name, (at, last) in splits.items() if last == name}
    library: Any = Unknown(
        "LIBRARY", "the folder of the adapters that the method names"
    )
    if len(libraries) == 1 and set(places) == set(run["parts"]):
        library = libraries.pop()
    carries = (config or {}).get("carries_parts")
    return {"library": library, "carry_parts": carries}


def _calibration(folder: pathlib.Path) -> dict[str, Any]:
    """The flags of a run's calibration."""
    path = folder / "calibration.json"
    if not path.exists():
        return {}
    found = files.read_object(
        str(path), "a run's calibration", {"abstain_at?": float}
    )
    return {"calibrate": True, "abstain_at": found.get("abstain_at")}


def _settings(
    task: Mapping[str, Any], config: Optional[Mapping[str, Any]]
) -> dict[str, Any]:
    """How rows were read and answered, by the adapter's description."""
    found: dict[str, Any] = {}
    if task.get("map_tags"):
        found["map_tags"] = Unknown("MAP_TAGS", "the file of renamed types")
    settings = (config or {}).get("task_settings") or {}
    if NOVELTY in settings:
        found["score_novelty"] = True
    if task["name"] == "squad":
        found.update(settings)
    if config and config["task"]["name"] == CUSTOM:
        arguments = custom_arguments(
            config["task"], settings, "the adapter's description"
        )
        found.update({k: v for k, v in arguments.items() if v not in ([], ())})
    return found
