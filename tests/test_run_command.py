"""The command line of a recorded run."""

import json
import shlex

import pytest
from absl import flags
from absl.testing import flagsaver
from conftest import entry_point
from run_folders import artifact_bytes

from adapter_bert.commands import (
    run_classifier,
    run_mlm,
    run_squad,
    run_tagger,
    run_vectors,
)
from adapter_bert.reports.report_run import read_run
from adapter_bert.reports.run_command import (
    UNRECORDED,
    Unknown,
    command_of,
    is_one_of_several,
)

pytestmark = pytest.mark.older_stack

FLAGS = flags.FLAGS
MODULES = {
    "run_classifier.py": run_classifier,
    "run_squad.py": run_squad,
    "run_tagger.py": run_tagger,
    "run_mlm.py": run_mlm,
    "run_vectors.py": run_vectors,
}


def description(task, data="data", method="head", **more):
    """What `run.json` says of a run."""
    return {
        "base": {"name": "a bert", "fingerprint": "f"},
        "tokenizer": {"do_lower_case": False},
        "method": method,
        "task": task,
        "data_name": data,
        "training": {
            "batch_size": 8,
            "learning_rate": 1e-3,
            "epochs": 2.0,
            "keep_best": "",
            "seed": 3,
            "steps": 10,
            "start": None,
            **more,
        },
        "versions": {"engine": "StrategyEngine", "cpu_lanes": 1},
    }


def write_adapter(folder, task, settings):
    (folder / "adapter").mkdir(parents=True)
    config = {**description(task), "bert_config": {}, "task_settings": settings}
    path = folder / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(config))


def words_of(command, **values):
    """A command line's flags as a shell hands them on."""
    text = command.text
    for name, value in values.items():
        text = text.replace(f'"${name}"', shlex.quote(str(value)))
    python, program, *words = shlex.split(text.replace("\\\n", " "))
    assert (python, program) == (".venv/bin/python", command.program)
    return words


def unknown(command):
    """The shell variables of values that are not known."""
    values = command.flags.values()
    return [one.name for one in values if isinstance(one, Unknown)]


def parsed(command):
    """The flags' values as the entry point reads them."""
    with entry_point(MODULES[command.program]), flagsaver.flagsaver():
        FLAGS(["program", *words_of(command)])
        return {name: FLAGS[name].value for name in command.flags}


@pytest.mark.parametrize("program", MODULES)
def test_flags_that_no_run_records_exist(program):
    with entry_point(MODULES[program]):
        assert set(UNRECORDED[program]) <= set(FLAGS)


SQUAD = {
    "doc_stride": 64,
    "max_query_length": 32,
    "n_best_size": 10,
    "max_answer_length": 20,
    "version_2_with_negative": True,
    "null_score_diff_threshold": -1.5,
}


def test_a_run_of_glue(tmp_path):
    weights = {"not_entailment": 2.5}
    command = command_of(
        tmp_path,
        description(
            {"name": "rte", "labels": ["a", "b"], "pairs": True},
            method="houlsby(size=8, sites='ffn')",
            class_weights=weights,
        ),
    )
    assert command.program == "run_classifier.py"
    found = parsed(command)
    assert found["task_name"] == "rte"
    assert found["tuning_method"] == "houlsby(size=8, sites='ffn')"
    assert json.loads(found["class_weights"]) == weights
    assert (found["learning_rate"], found["seed"]) == (1e-3, 3)
    assert found["do_train"] and not found["do_eval"]
    assert not found["do_lower_case"]
    assert (found["engine"], found["cpu_lanes"]) == ("strategy", 1)
    assert "keep_best" not in found and "adapter" not in found
    assert unknown(command) == ["DATA_DIR", "BERT", "OUTPUT_DIR"]
    assert "called data" in command.flags["data_dir"].meaning


def test_a_calibration(tmp_path):
    run = description({"name": "mrpc", "labels": ["0", "1"], "pairs": True})
    for found in ({}, {"abstain_at": 0.9}):
        (tmp_path / "calibration.json").write_text(json.dumps(found))
        flags_of_run = parsed(command_of(tmp_path, run))
        assert flags_of_run["calibrate"] is True
        assert flags_of_run.get("abstain_at") == found.get("abstain_at")


def test_questions(tmp_path):
    write_adapter(tmp_path, {"name": "squad"}, SQUAD)
    (tmp_path / "eval_results.json").write_text("{}")
    run = description({"name": "squad"}, "train-v2.0.json")
    command = command_of(tmp_path, run)
    assert command.program == "run_squad.py"
    found = parsed(command)
    assert {name: found[name] for name in SQUAD} == SQUAD
    assert found["do_eval"]
    assert {"train_file", "predict_file"} <= set(found)
    assert not {"data_dir", "task_name"} & set(found)


def test_tags(tmp_path):
    (tmp_path / "test_predictions.conll").write_text("")
    task = {"name": "tagging", "tags": ["O", "B-A"], "map_tags": {"x": "A"}}
    command = command_of(tmp_path, description(task))
    assert command.program == "run_tagger.py"
    found = parsed(command)
    assert found["do_predict"] and {"data_dir", "map_tags"} <= set(found)
    named = command_of(tmp_path, description(task, "words.conll"))
    assert {"train_file", "predict_file"} <= set(parsed(named))
    assert "data_dir" not in named.flags


def test_masked_language_modelling(tmp_path):
    own = {"mlm_probability": 0.3, "whole_word_masking": True}
    task = {"name": "masked_lm", **own}
    command = command_of(tmp_path, description(task, "raw.txt"))
    assert command.program == "run_mlm.py"
    found = parsed(command)
    assert {name: found[name] for name in own} == own
    assert "train_file" in found


def test_vectors(tmp_path):
    task = {"name": "vectors", "pooling": "cls", "normalize": True}
    command = command_of(
        tmp_path,
        description(
            {**task, "sizes": [8, 4]}, "STS-B", loss="cosent", temperature=0.1
        ),
    )
    assert command.program == "run_vectors.py"
    found = parsed(command)
    assert (found["pooling"], found["normalize"]) == ("cls", True)
    assert (found["loss"], found["temperature"]) == ("cosent", 0.1)
    assert found["matryoshka_sizes"] == ["8", "4"]
    assert "data_dir" in found


def test_own_tables(tmp_path):
    task = {
        "name": "custom",
        "labels": ["a", "b"],
        "pairs": True,
        "multi_label": True,
        "held_out": {"share": 0.25, "seed": 7},
    }
    settings = {
        "label_column": "right",
        "label_separator": "|",
        "label_threshold": 0.4,
    }
    write_adapter(tmp_path, task, {"columns": ["it's", "b"], **settings})
    (tmp_path / "eval_results.json").write_text("{}")
    # A file may be called in capitals.
    command = command_of(tmp_path, description(task, "OWN.CSV"))
    assert "TRAIN_FILE" in unknown(command)
    assert "data_dir" not in command.flags
    found = parsed(command)
    assert found["text_a_column"] == "it's" and found["text_b_column"] == "b"
    assert {name: found[name] for name in settings} == settings
    assert found["multi_label"]
    assert (found["dev_share"], found["split_seed"]) == (0.25, 7)
    # What was held out is no file.
    assert "train_file" in found and "eval_file" not in found


def test_vectors_of_questions_ask_for_their_file(tmp_path):
    task = {"name": "vectors", "pooling": "mean", "normalize": False}
    command = command_of(tmp_path, description(task, "train-v1.1.json"))
    assert "TRAIN_FILE" in unknown(command)


def test_several_tasks(tmp_path):
    own = {"name": "custom", "held_out": {"share": 0.25, "seed": 7}}
    tasks = {"mnli": {"name": "mnli"}, "own": own}
    task = {"name": "mnli,own", "tasks": tasks}
    write_adapter(
        tmp_path / "tasks" / "own",
        {"name": "custom", "pairs": False},
        {"columns": ["review"], "label_column": "label"},
    )
    together = {"trained_together": ["mnli", "own"]}
    run = description(task, task_sampling="uniform", **together)
    found = parsed(command_of(tmp_path, run))
    assert found["task_name"] == "mnli,custom:own"
    assert found["text_a_column"] == "review"
    assert (found["dev_share"], found["split_seed"]) == (0.25, 7)
    assert found["task_sampling"] == "uniform"
    assert not is_one_of_several(run)
    assert is_one_of_several(description({"name": "mnli"}, **together))


def test_what_a_run_began_with_is_asked_for(tmp_path):
    run = description({"name": "rte"}, start="f")
    assert "ADAPTER" in unknown(command_of(tmp_path, run))
    run["training"]["new_head"] = True
    found = command_of(tmp_path, run)
    assert "init_adapter" in found.flags and "adapter" not in found.flags


@pytest.mark.parametrize(
    "places, library",
    [
        ({"a": "/shelf/a", "b": "/shelf/b"}, "/shelf"),
        ({"a": "/shelf/a", "b": "/other/b"}, "$LIBRARY"),
        ({"a": "/shelf/a"}, "$LIBRARY"),
    ],
)
def test_a_compositions_adapters_are_named_where_they_lay(
    tmp_path, places, library
):
    run = description({"name": "rte"}, method="average(a, b)")
    run["parts"] = {"a": "hash", "b": "hash"}
    (tmp_path / "run.json").write_text(json.dumps({**run, "bert_config": {}}))
    (tmp_path / "places.json").write_text(
        json.dumps({"base": "/models/a b", "parts": places})
    )
    found = parsed(command_of(tmp_path, run))
    assert found["library"] == library
    assert found["init_checkpoint"] == "/models/a b"


@pytest.mark.gate
def test_the_command_comes_to_the_same_bits(classify, tiny_flags, tmp_path):
    tiny_flags.update(
        num_train_epochs=1,
        adam_bias_correction=True,
        warmup_proportion=0.3,
        class_weights='{"bad": 2}',
        tuning_method="houlsby(size=4, sites='ffn')",
        seed=5,
        do_eval=True,
    )
    classify(**tiny_flags)
    folder = tiny_flags["output_dir"]
    command = command_of(folder, read_run(folder))
    assert unknown(command) == ["DATA_DIR", "OUTPUT_DIR"]
    again = tmp_path / "again"
    words = words_of(command, DATA_DIR=tiny_flags["data_dir"], OUTPUT_DIR=again)
    classify(**dict(word[2:].split("=", 1) for word in words))
    assert artifact_bytes(again) == artifact_bytes(folder)
    first, second = (read_run(one) for one in (folder, again))
    assert first == second
