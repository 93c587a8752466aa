"""The order of things in a run, and what ends one."""

import functools
import json
from shutil import copytree
from unittest import mock

import numpy as np
import pytest
import refusals
from conftest import (
    SENTENCES,
    TINY_WORDS,
    entry_point,
    make_flags,
    module_fixture,
    read_json,
    write_table,
)
from safetensors.numpy import load_file, save_file

from adapter_bert.bert import onednn
from adapter_bert.commands import run_classifier
from adapter_bert.data.input_pipeline import Features
from adapter_bert.methods.registry import parse
from adapter_bert.optimization import Schedule
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.text_task import TextTask
from adapter_bert.training import engines, experiment
from adapter_bert.training.run import make_schedule
from adapter_bert.training.settings import Training
from adapter_bert.training.strategy import StrategyEngine

pytestmark = pytest.mark.older_stack


@pytest.fixture
def short(tiny_flags):
    """Flags of a training of a single epoch."""
    tiny_flags.update(num_train_epochs=1)
    return tiny_flags


@module_fixture
def over(tiny_bert, tiny_data, tmp_path_factory):
    """The folder of such a training, which no test changes."""
    out = tmp_path_factory.mktemp("over") / "out"
    with entry_point(run_classifier) as run:
        run(**{**make_flags(tiny_bert, tiny_data, out), "num_train_epochs": 1})
    return out


@pytest.fixture
def begun(short, over):
    """Its flags, with a copy in their folder."""
    copytree(over, short["output_dir"])
    return short


@pytest.fixture
def spoiled(tiny_bert, tmp_path):
    """Makes a tiny BERT with a value instead of a word's embedding."""

    def make(word, value):
        folder = tmp_path / "spoiled"
        copytree(tiny_bert, folder)
        values = load_file(folder / "model.safetensors")
        name = "embeddings.word_embeddings.weight"
        values[name] = values[name].copy()
        values[name][TINY_WORDS.index(word)] = value
        save_file(values, folder / "model.safetensors")
        return folder

    return make


def forbid(monkeypatch, owner, name):
    """Fails the test where something is called."""

    def fail(*arguments):
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(owner, name, fail)


class Stopped(Exception):
    """The run has come to its training."""


@pytest.fixture
def stopped(monkeypatch):
    """Runs a program as far as the training; gives what that takes."""
    seen = []

    def stop(run):
        seen.append(run)
        raise Stopped

    def run(program, **flags):
        monkeypatch.setattr(experiment, "_train", stop)
        with pytest.raises(Stopped):
            program(**flags)
        return seen.pop()

    return run


# What contradicts the folder's run


@pytest.mark.gate
def test_settings_are_compared_before_data_are_read(
    classify, begun, monkeypatch, spoiled
):
    forbid(monkeypatch, TextTask, "read")
    for part, change in {
        "training.epochs was 1.0": {"num_train_epochs": 2},
        "training.batch_size was 8": {"train_batch_size": 4},
        "training.max_seq_length was 24": {"max_seq_length": 9},
        "training.compute_dtype was": {"compute_dtype": "bfloat16"},
        "task.pairs was False": {"text_b_column": "second"},
        "base.fingerprint was": {"init_checkpoint": spoiled("not", 1.0)},
    }.items():
        call = functools.partial(classify, **{**begun, **change})
        refusals.check(call, "another configuration", part)


def test_labels_and_checkpoints_are_looked_at_before_texts_are_tokenized(
    classify, begun, tmp_path, monkeypatch
):
    forbid(monkeypatch, TextTask, "featurize")
    write_table(tmp_path / "train.tsv", [*SENTENCES, ("the cat", "no idea")])
    refusals.check(
        lambda: classify(**{**begun, "data_dir": tmp_path}),
        "task.labels was",
        "'no idea'",
    )
    data = begun["output_dir"] / "model.ckpt-5.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:2000])
    refusals.check(lambda: classify(**begun), "damaged or incomplete")


def test_an_adapter_is_not_replaced_by_what_begins_with_it(
    classify, short, over
):
    out = short["output_dir"]
    for changes in (
        {"adapter": out / "adapter"},
        {"init_adapter": out / "adapter"},
        {"tuning_method": f"stack('{out}/adapter', lora(rank=2))"},
    ):
        copytree(over / "adapter", out / "adapter", dirs_exist_ok=True)
        flags = {**short, **changes}
        del flags["adapter_size"]
        refusals.check(
            functools.partial(classify, **flags), "would replace", "output_dir"
        )


def test_a_repeated_run_keeps_the_versions_of_its_beginning(classify, begun):
    path = begun["output_dir"] / "run.json"
    before = read_json(path)["versions"]
    classify(**begun, gradient_accumulation_steps=2)
    assert read_json(path)["versions"] == before


def test_other_data_is_refused_before_training(
    classify, begun, tmp_path, monkeypatch
):
    write_table(tmp_path / "train.tsv", SENTENCES * 6)
    begun["data_dir"] = tmp_path
    forbid(monkeypatch, experiment, "_train")
    refusals.check(lambda: classify(**begun), "training.data was")


# What is kept of the data


def test_rows_are_let_go_when_they_are_tokenized(stopped, classify, short):
    run = stopped(classify, **short, do_eval=True, do_predict=True)
    assert list(run.features) == ["train", "dev", "test"]
    assert list(run.rows) == ["dev", "test"]
    assert run.rows["test"].text_a is None
    # Those of labelled rows are told again: which were hardest.
    assert len(run.rows["dev"].text_a) == 8


def test_the_predicted_files_questions_are_kept_alone(
    stopped, answer, squad_flags
):
    run = stopped(answer, **squad_flags, do_predict=True)
    assert {split: len(rows) for split, rows in run.rows.items()} == {
        "test": 16
    }


# Outputs that are no numbers


def test_outputs_that_are_no_numbers_end_the_run_in_one_line(
    classify, short, tmp_path, spoiled, monkeypatch
):
    """Before they are decoded, which may not be able to."""
    decoded, decode = [], TextTask.decode

    def note(task, rows, *arguments):
        decoded.append(len(rows))
        return decode(task, rows, *arguments)

    monkeypatch.setattr(TextTask, "decode", note)
    trained = [row for row in SENTENCES if "film" not in row[0]]
    write_table(tmp_path / "train.tsv", trained * 5)
    write_table(tmp_path / "dev.tsv", trained)
    write_table(tmp_path / "test.tsv", [row[:1] for row in SENTENCES], ["text"])
    short.update(data_dir=tmp_path, init_checkpoint=spoiled("film", np.inf))
    classify(**short)
    bad = len(SENTENCES) - len(trained)
    # Not even the results of the dev set, which are numbers, are written.
    before = sorted(short["output_dir"].rglob("*"))
    short.update(do_train=False, do_eval=True)
    refusals.check(
        lambda: classify(**short, do_predict=True),
        "test: ",
        f"outputs for {bad} of 8 rows are infinite",
    )
    assert sorted(short["output_dir"].rglob("*")) == before
    assert decoded == [len(trained)]
    classify(**short)
    content = (short["output_dir"] / "eval_results.json").read_text()
    json.loads(content, parse_constant=pytest.fail)


def test_the_flags_of_a_training_reach_it(stopped, classify, short):
    """Else `run.json` would tell of a training that was not made."""
    run = stopped(
        classify,
        **short,
        gradient_accumulation_steps=2,
        adam_bias_correction=True,
        use_xla=True,
        recompute="layers",
        warmup_proportion=0.4,
        adapter_init_scale=0.5,
        compute_dtype="bfloat16",
        predict_batch_tokens=77,
    )
    job = run.job
    assert (job.parts, job.adam_bias_correction) == (2, True)
    assert (job.use_xla, job.length) == (True, 24)
    assert job.predict_tokens == 77
    # Frozen kernels are kept narrow.
    name = "bert/encoder/layer_0/output/dense/kernel"
    assert job.dtype_of(name) == "bfloat16"
    assert job.dtype_of("bert/embeddings/word_embeddings") == "float32"
    # There is no accelerator.
    assert (job.recompute_layers, job.for_accelerator) == (True, False)
    assert run.model.method == parse("houlsby(size=4, init_scale=0.5)")
    # Two of five steps.
    assert run.schedule == Schedule(short["learning_rate"], 5, 2)


@pytest.mark.parametrize("xla", [False, True])
def test_large_batches_are_divided_and_kernels_chosen(
    stopped, classify, short, xla
):
    """By the rows of a part that the flags ask for."""
    short.update(train_batch_size=384, cpu_lanes=2, use_xla=xla)
    job = stopped(classify, **short, gradient_accumulation_steps=2).job
    assert (job.lanes, job.parts) == (2, 2 if xla else 2 * 3)
    available = onednn.is_available("float32") and not xla
    assert job.use_onednn == available


def test_layers_are_recomputed_under_a_compiler_alone(classify, short):
    refusals.check(
        lambda: classify(**short, recompute="layers"),
        "--recompute=layers",
        "XLA",
    )
    assert not short["output_dir"].exists()


def test_no_step_is_lost():
    """100 * 0.29 is 28.999999999999996 in binary."""
    how = Training(batch_size=10, epochs=25.0, warmup_proportion=0.29)
    model = mock.MagicMock(task=custom_task(), learning_rate=1.0)
    model.experiment.training = how
    features = Features.from_rows([([1], [0])] * 40, {})
    assert make_schedule(model, features) == Schedule(1.0, 100, 29)


def test_rows_that_are_cut_are_counted(classify, short, caplog):
    classify(**{**short, "max_seq_length": 8}, do_eval=True, do_predict=True)
    lengths = [len(text.split()) + 2 for text, _ in SENTENCES]
    cut = {}
    for split, times, most in (("train", 5, 8), ("dev", 1, 8), ("test", 1, 7)):
        cut[split] = times * sum(length > 8 for length in lengths[:most])
        count = f"{split}: {cut[split]} of {times * most} examples are cut"
        way = "(--max_seq_length); --window_stride=N reads them whole"
        assert f"{count} {way}" in caplog.text
    out = short["output_dir"]
    assert read_json(out / "run.json")["cut_rows"] == cut
    adapter = read_json(out / "adapter/adapter_config.json")
    assert "cut_rows" not in adapter


def test_several_workers_do_not_stop_early(classify, short, monkeypatch):
    """The chief alone would know that the training is over."""
    monkeypatch.setattr(engines, "is_cluster", lambda: True)
    monkeypatch.setattr(
        experiment, "choose_engine", lambda _: (StrategyEngine, "")
    )
    monkeypatch.setattr(StrategyEngine, "check_devices", lambda _: None)
    short.update(do_eval=True, early_stopping=2)
    refusals.check(
        lambda: classify(**short), "--early_stopping needs one process"
    )
