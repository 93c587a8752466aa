"""`run.json`: a folder's run goes on, another run is refused."""

import json
from copy import deepcopy

import pytest
import refusals
import tensorflow as tf
from conftest import read_json, write_json

from adapter_bert.checkpoints import run_record
from adapter_bert.checkpoints.weights import Base
from adapter_bert.errors import UserError
from adapter_bert.training import from_trained

BASE = Base("/models/bert/model.safetensors", "abc")
RECORD = {
    "base": {"name": "bert", "fingerprint": "abc"},
    "tokenizer": {"vocabulary": "ghi", "do_lower_case": True},
    "method": "Houlsby(64)",
    "task": {"name": "mrpc", "labels": ["0", "1"]},
    "bert_config": {"hidden_size": 16, "hidden_dropout_prob": 0.1},
    "training": {"learning_rate": 3e-4, "seed": 0, "data": "def"},
    "parameters": {"total": 1000, "trained": 10},
    "versions": run_record.versions(),
}


def changed(place, value):
    """The record with another value, its place as in `task.labels`."""
    record = deepcopy(RECORD)
    *parents, name = place.split(".")
    parent = record
    for key in parents:
        parent = parent[key]
    parent[name] = value
    return record


@pytest.fixture
def folder(tmp_path):
    """A folder with a run."""
    run_record.write(str(tmp_path), RECORD, BASE)
    return tmp_path


def refusal(folder, record, do_train=True):
    with pytest.raises(UserError) as raised:
        run_record.check(str(folder), record, do_train)
    assert str(folder) in str(raised.value)
    assert "--output_dir" in str(raised.value)
    return str(raised.value)


def test_the_record_is_json_without_the_place_of_the_base(folder):
    """That is in a file of its own."""
    assert read_json(folder / "run.json") == RECORD
    assert run_record.place_of_base(str(folder)) == BASE.path


@pytest.mark.parametrize("do_train", [False, True])
def test_any_run_fits_an_empty_folder_and_the_same_run_its_own(
    tmp_path, do_train
):
    for folder in (tmp_path, tmp_path / "missing"):
        run_record.check(str(folder), RECORD, do_train)
    run_record.write(str(tmp_path), RECORD, BASE)
    run_record.check(str(tmp_path), deepcopy(RECORD), do_train)


@pytest.mark.parametrize(
    "place, value",
    [
        ("base.fingerprint", "xyz"),
        ("tokenizer.vocabulary", "xyz"),
        ("tokenizer.do_lower_case", False),
        ("method", "Houlsby(8)"),
        ("task.name", "cola"),
        ("task.labels", ["1", "0"]),
        ("bert_config.hidden_size", 32),
        ("bert_config.new_option", True),
        # Only the old run has it.
        ("bert_config.hidden_dropout_prob", None),
    ],
)
@pytest.mark.parametrize("do_train", [False, True])
def test_another_model_or_task_is_refused(folder, place, value, do_train):
    before = RECORD
    for key in place.split("."):
        before = before.get(key)
    record = changed(place, value)
    # All that differs is named, of a training also its settings.
    record["training"]["learning_rate"] = 1e-3
    message = refusal(folder, record, do_train)
    assert f"{place} was {before!r}, now {value!r}" in message
    rate = "training.learning_rate was 0.0003, now 0.001"
    assert (rate in message) == do_train
    assert ("fingerprint" in message) == (place == "base.fingerprint")


def test_a_partial_record_is_compared_by_what_it_has(folder):
    partial = deepcopy(RECORD)
    del partial["task"]["labels"], partial["training"]["data"]
    del partial["versions"], partial["parameters"]
    for do_train in (False, True):
        run_record.check(str(folder), partial, do_train, partial=True)
    partial["training"]["seed"] = 1
    run_record.check(str(folder), partial, False, partial=True)
    refusals.check(
        lambda: run_record.check(str(folder), partial, True, partial=True),
        "seed was 0, now 1; choose",
    )
    partial["task"]["name"] = "cola"
    refusals.check(
        lambda: run_record.check(str(folder), partial, False, partial=True),
        "task.name was 'mrpc', now 'cola';",
    )


@pytest.mark.parametrize(
    "place, value", [("base.name", "elsewhere"), ("parameters.total", 1)]
)
def test_places_and_counts_may_differ(folder, place, value):
    run_record.check(str(folder), changed(place, value), do_train=True)


@pytest.mark.parametrize("content", [None, "{}", "[]", '{"base": 5}'])
def test_a_lost_place_is_one_line_that_says_what_to_pass(folder, content):
    (folder / "places.json").unlink()
    if content:
        (folder / "places.json").write_text(content)
    refusals.check(
        lambda: run_record.place_of_base(str(folder)),
        "was called bert",
        "--init_checkpoint",
    )


@pytest.mark.parametrize("command", ["text", [5], [["--seed=1"]]])
def test_a_damaged_command_is_none(folder, command):
    assert run_record.command_of(str(folder)) == []
    place = folder / "places.json"
    place.write_text(json.dumps({"command": command}))
    assert run_record.command_of(str(folder)) == []


@pytest.mark.parametrize("do_train", [False, True])
def test_checkpoints_of_another_program_are_refused(tmp_path, do_train):
    tf.train.Checkpoint(value=tf.Variable(1.0)).save(str(tmp_path / "model"))
    assert "run.json" in refusal(tmp_path, RECORD, do_train)


@pytest.mark.parametrize("content", ["\x00", "{}", "[]", '{"task": 1}'])
def test_a_record_without_a_run_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    words = "run.json" + " is not the run.s description" * (content != "\x00")
    with pytest.raises(UserError, match=words):
        run_record.check(str(tmp_path), RECORD, True)


@pytest.mark.parametrize("hub", ["", "org/bert", "hf:org/bert;ls", "hf:a/../b"])
def test_a_bert_s_name_at_the_hub_is_one(folder, hub):
    """Messages and cards tell it to be passed on."""
    path = folder / run_record.RUN_FILE
    write_json(path, changed("base.hub", hub))
    refusals.check(
        lambda: run_record.read_description(str(path), "the run's description"),
        "run.json: base.hub: ",
        " names no repo",
    )


def test_two_names_of_one_activation_are_the_same(folder):
    """As a config of Hugging Face's that says gelu_new for Google's gelu."""
    old = changed("bert_config.hidden_act", "gelu")
    run_record.write(str(folder), old, BASE)
    new = changed("bert_config.hidden_act", "gelu_new")
    run_record.check(str(folder), new, True)
    other = changed("bert_config.hidden_act", "gelu_erf")
    assert "hidden_act was 'gelu', now 'gelu_erf'" in refusal(folder, other)


def test_a_run_of_before_a_field_was_there_goes_on(folder):
    """With the field's default, or where the head does not read the field.

    A missing pooler is in the fingerprint.
    """
    for name, value, task in (
        ("tie_word_embeddings", True, {"name": "masked_lm"}),
        ("tie_word_embeddings", False, {"name": "mrpc"}),
        ("choice_activation", "tanh", {"name": "mrpc"}),
        ("pooler", False, {"name": "mrpc"}),
        ("layer_norm_eps", 1e-12, {"name": "mrpc"}),
    ):
        old = changed("task", task)
        run_record.write(str(folder), old, BASE)
        old["bert_config"][name] = value
        run_record.check(str(folder), old, True)


@pytest.mark.parametrize(
    "field, value, task",
    [
        ("tie_word_embeddings", False, {"name": "masked_lm"}),
        ("tie_word_embeddings", False, {"name": "pretraining"}),
        ("choice_activation", "tanh", {"name": "custom", "choices": 2}),
        ("layer_norm_eps", 1e-5, {"name": "mrpc"}),
    ],
)
def test_a_field_of_today_that_the_head_reads_is_a_difference(
    folder, field, value, task
):
    old = changed("task", task)
    run_record.write(str(folder), old, BASE)
    old["bert_config"][field] = value
    assert f"{field} was None, now {value!r}" in refusal(folder, old)


@pytest.mark.parametrize("place", ["task", "task.tasks.a"])
def test_vectors_of_before_prompts_were_read_go_on_without_one(folder, place):
    old = changed("task", {"name": "vectors", "tasks": {"a": {"name": "b"}}})
    run_record.write(str(folder), old, BASE)
    new = deepcopy(old)
    form = new["task"]["tasks"]["a"] if place != "task" else new["task"]
    form.update(prompts={"query": "q: "}, similarity_fn_name="cosine")
    run_record.check(str(folder), new, True)
    form["default_prompt_name"] = "query"
    difference = f"{place}.default_prompt_name was None, now 'query'"
    assert difference in refusal(folder, new)


def test_the_log_tells_what_an_adapter_supplies():
    line = from_trained.supplied(RECORD, 64, True)
    assert line == (
        'task mrpc, labels "0", "1", method Houlsby(64) '
        "(trained with BERT bert abc, lower case)"
    )
    record = changed("training.max_seq_length", 128)
    record["task"]["labels"] = list(map(str, range(12)))
    record["task_settings"] = {"columns": ["a b"]}
    record["tokenizer"]["do_lower_case"] = False
    line = from_trained.supplied(record, 64, True)
    assert '"8", "9" and 2 more, columns "a b", method' in line
    assert "upper and lower case, --max_seq_length=128, not 64 as here" in line
    line = from_trained.supplied(record, 128, True)
    assert "method Houlsby(64), --max_seq_length=128 (trained with" in line
    # A training's checkpoint does not supply it.
    line = from_trained.supplied(record, 128, False)
    assert line.endswith("upper and lower case, --max_seq_length=128)")
    record["task"] = {"name": "squad"}
    assert "labels" not in from_trained.supplied(record, 128, True)


def test_other_versions_are_warned_of(folder, caplog):
    record = changed("versions.tensorflow", "2.99")
    run_record.check(str(folder), record, True)
    difference = f"versions.tensorflow was {tf.__version__} when this run began"
    assert f"{difference}, now 2.99: bits may differ" in caplog.text


@pytest.mark.parametrize(
    "place, value, other",
    [
        ("training.adam_bias_correction", False, True),
        ("training.keep_best", "", "f1"),
        ("training.early_stopping", 0, 2),
        ("training.cache_frozen_layers", False, True),
        ("training.num_warmup_steps", None, 0),
    ],
)
def test_what_older_runs_do_not_say_is_what_they_did(
    folder, place, value, other
):
    run_record.check(str(folder), changed(place, value), True)
    message = refusal(folder, changed(place, other))
    assert f"{place} was None, now {other!r}" in message
