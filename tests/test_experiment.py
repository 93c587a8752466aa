"""The order of things in a run, and what ends one."""

import json
import shutil
import types
from unittest import mock

import numpy as np
import pytest
import safetensors.numpy
from conftest import (
    SENTENCES,
    TINY_WORDS,
    entry_point,
    make_flags,
    write_table,
)

from adapter_bert.bert import onednn
from adapter_bert.checkpoints.weights import Base
from adapter_bert.commands import run_classifier
from adapter_bert.data.input_pipeline import Features
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import parse
from adapter_bert.optimization import Schedule
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.squad import Squad
from adapter_bert.tasks.text_task import TextTask
from adapter_bert.training import experiment, loop
from adapter_bert.training.settings import Training

pytestmark = pytest.mark.older_stack


def test_known_outputs_are_taken_however_few_there_are(tmp_path):
    """Their truth is their number of rows."""
    few, taken = Features.from_rows([], {}), []
    some = types.SimpleNamespace
    options = mock.MagicMock(batch_size=1, learning_rate=1.0)
    loop.run_steps(
        some(
            is_chief=False,
            train=lambda job, course, _: taken.append(course.features),
        ),
        some(
            experiment=some(training=options),
            task=some(plan=lambda *_: None),
        ),
        some(output_dir=str(tmp_path), table=some(method="")),
        Features.from_rows([([1], [0])], {}),
        Schedule(1e-3, 1, 0),
        0,
        train=few,
    )
    assert len(few) == 0 and taken[0] is few


@pytest.fixture
def short(tiny_flags):
    """Flags of a training of a single epoch."""
    tiny_flags.update(num_train_epochs=1)
    return tiny_flags


@pytest.fixture(scope="module")
def over(tiny_bert, tiny_data, tmp_path_factory):
    """The folder of such a training, which no test changes."""
    out = tmp_path_factory.mktemp("over") / "out"
    with entry_point(run_classifier) as run:
        run(**{**make_flags(tiny_bert, tiny_data, out), "num_train_epochs": 1})
    return out


@pytest.fixture
def begun(short, over):
    """Its flags, with a copy in their folder."""
    shutil.copytree(over, short["output_dir"])
    return short


@pytest.fixture
def spoiled(tiny_bert, tmp_path):
    """Makes a tiny BERT with a value instead of a word's embedding."""

    def make(word, value):
        folder = tmp_path / "spoiled"
        shutil.copytree(tiny_bert, folder)
        values = safetensors.numpy.load_file(folder / "model.safetensors")
        name = "embeddings.word_embeddings.weight"
        values[name] = values[name].copy()
        values[name][TINY_WORDS.index(word)] = value
        safetensors.numpy.save_file(values, folder / "model.safetensors")
        return folder

    return make


def forbid(monkeypatch, owner, name):
    """Fails the test where something is called."""

    def fail(*arguments):
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(owner, name, fail)


@pytest.mark.gate
def test_the_job_says_what_is_kept_narrow_and_how_much_is_predicted(
    classify, short, monkeypatch
):
    made = []
    original = experiment.make_job

    def make_job(*arguments):
        made.append(original(*arguments))
        return made[-1]

    monkeypatch.setattr(experiment, "make_job", make_job)
    classify(**short, compute_dtype="bfloat16", predict_batch_tokens=77)
    assert made[0].predict_tokens == 77
    name = "bert/encoder/layer_0/output/dense/kernel"
    assert made[0].dtype_of(name) == "bfloat16"
    assert made[0].dtype_of("bert/embeddings/word_embeddings") == "float32"


# What contradicts the folder's run


@pytest.mark.gate
def test_settings_are_compared_before_data_are_read(
    classify, begun, monkeypatch, spoiled
):
    forbid(monkeypatch, TextTask, "read")
    for change, words in (
        ({"learning_rate": 1e-4}, "training.learning_rate was 0.003, now"),
        ({"num_train_epochs": 2}, "training.epochs was 1.0, now 2.0"),
        ({"train_batch_size": 4}, "training.batch_size was 8, now 4"),
        ({"seed": 9}, "training.seed was 1, now 9"),
        ({"max_seq_length": 9}, "training.max_seq_length was 24, now 9"),
        ({"compute_dtype": "bfloat16"}, "training.compute_dtype was"),
        ({"adapter_size": 8}, "size=4"),
        ({"text_b_column": "second"}, "task.pairs was False, now True"),
        ({"init_checkpoint": spoiled("not", 1.0)}, "base.fingerprint was"),
    ):
        with pytest.raises(UserError, match="another configuration") as caught:
            classify(**{**begun, **change})
        assert words in str(caught.value)


def test_labels_and_checkpoints_are_looked_at_before_texts_are_tokenized(
    classify, begun, tmp_path, monkeypatch
):
    forbid(monkeypatch, TextTask, "featurize")
    folder = tmp_path / "more"
    folder.mkdir()
    rows = [*SENTENCES, ("the cat", "no idea")]
    write_table(folder / "train.tsv", rows)
    with pytest.raises(UserError, match="task.labels was .*'no idea'"):
        classify(**{**begun, "data_dir": folder})
    data = begun["output_dir"] / "model.ckpt-5.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:2000])
    with pytest.raises(UserError, match="damaged or incomplete"):
        classify(**begun)


def test_other_data_is_refused_before_training(
    classify, begun, tmp_path, monkeypatch
):
    write_table(tmp_path / "train.tsv", SENTENCES * 6)
    begun["data_dir"] = tmp_path
    forbid(monkeypatch, experiment, "_train")
    with pytest.raises(UserError, match="training.data was"):
        classify(**begun)


# What is kept of the data


@pytest.mark.gate
def test_rows_are_let_go_when_they_are_tokenized(classify, short, monkeypatch):
    tokenize, left = experiment._tokenize, {}

    def watched(setup, rows):
        assert list(rows) == ["train", "dev", "test"]
        features = tokenize(setup, rows)
        assert list(features) == ["train", "dev", "test"]
        left.update(rows)
        return features

    monkeypatch.setattr(experiment, "_tokenize", watched)
    classify(**short, do_eval=True, do_predict=True)
    assert list(left) == ["dev", "test"]
    assert left["test"].text_a is None
    # Those of labelled rows are told again: which were hardest.
    assert len(left["dev"].text_a) == 8


def test_the_predicted_files_questions_are_kept_alone(
    answer, squad_flags, monkeypatch
):
    tokenize, left = experiment._tokenize, {}

    def watched(setup, rows):
        features = tokenize(setup, rows)
        left.update(rows)
        return features

    monkeypatch.setattr(experiment, "_tokenize", watched)
    squad_flags["num_train_epochs"] = 1
    answer(**squad_flags, do_predict=True)
    assert {split: len(rows) for split, rows in left.items()} == {"test": 16}


# Outputs that are no numbers


def test_outputs_that_are_no_numbers_end_the_run_in_one_line(
    classify, short, tmp_path, spoiled
):
    trained = [row for row in SENTENCES if "film" not in row[0]]
    write_table(tmp_path / "train.tsv", trained * 5)
    write_table(tmp_path / "dev.tsv", trained)
    write_table(tmp_path / "test.tsv", [row[:1] for row in SENTENCES], ["text"])
    short.update(data_dir=tmp_path, init_checkpoint=spoiled("film", np.inf))
    classify(**short)
    bad = len(SENTENCES) - len(trained)
    # Not even the results of the dev set, which are numbers, are written.
    before = sorted(short["output_dir"].rglob("*"))
    short["do_train"] = False
    with pytest.raises(
        UserError, match=f"^test: .* outputs for {bad} of 8 rows are infinite"
    ):
        classify(**short, do_eval=True, do_predict=True)
    assert sorted(short["output_dir"].rglob("*")) == before
    classify(**short, do_eval=True)
    content = (short["output_dir"] / "eval_results.json").read_text()
    json.loads(content, parse_constant=pytest.fail)


@pytest.mark.gate
def test_answers_that_are_no_numbers_end_the_run_in_one_line(
    answer, squad_flags, tmp_path, spoiled, monkeypatch
):
    squad_flags["num_train_epochs"] = 1
    answer(**squad_flags)
    base = spoiled("mat", np.nan)
    forbid(monkeypatch, Squad, "decode")
    # Which the folder takes for its own.
    run = json.loads((squad_flags["output_dir"] / "run.json").read_text())
    bert = Base(str(base), run["base"]["fingerprint"])
    monkeypatch.setattr("adapter_bert.training.setup.identify", lambda *_: bert)
    squad_flags.update(do_train=False, init_checkpoint=base)
    with pytest.raises(
        UserError, match="^test: .* for 4 of 16 rows are infinite"
    ):
        answer(**squad_flags, do_predict=True)
    assert not (squad_flags["output_dir"] / "predictions.json").exists()


def test_the_flags_of_a_training_reach_it(classify, short, monkeypatch):
    """Else `run.json` would tell of a training that was not made."""
    seen = []

    class Stopped(Exception):
        pass

    def stop(engine, setup, job, record, features, schedule, *_):
        seen.extend((setup, job, schedule))
        raise Stopped

    monkeypatch.setattr(experiment, "_train", stop)
    with pytest.raises(Stopped):
        classify(
            **short,
            gradient_accumulation_steps=2,
            adam_bias_correction=True,
            use_xla=True,
            recompute="layers",
            warmup_proportion=0.4,
            adapter_init_scale=0.5,
        )
    setup, job, schedule = seen
    assert (job.parts, job.adam_bias_correction) == (2, True)
    assert (job.use_xla, job.length) == (True, 24)
    # There is no accelerator.
    assert (job.recompute_layers, job.for_accelerator) == (True, False)
    assert setup.model.method == parse("houlsby(size=4, init_scale=0.5)")
    # Two of five steps.
    assert (schedule.num_train_steps, schedule.num_warmup_steps) == (5, 2)
    assert schedule.learning_rate == short["learning_rate"]


def test_large_batches_are_divided_and_kernels_chosen(
    classify, short, monkeypatch
):
    """By the rows of a part that the flags ask for."""
    seen = []

    class Stopped(Exception):
        pass

    def stop(engine, setup, job, *_):
        seen.append(job)
        raise Stopped

    monkeypatch.setattr(experiment, "_train", stop)
    for xla in (False, True):
        with pytest.raises(Stopped):
            classify(
                **{**short, "train_batch_size": 384, "cpu_lanes": 2},
                gradient_accumulation_steps=2,
                use_xla=xla,
            )
    plain, compiled = seen
    assert (plain.lanes, plain.parts, compiled.parts) == (2, 2 * 3, 2)
    assert plain.use_onednn == onednn.is_available("float32")
    assert not compiled.use_onednn


def test_layers_are_recomputed_under_a_compiler_alone(classify, short):
    with pytest.raises(UserError, match="--recompute=layers works under XLA"):
        classify(**short, recompute="layers")
    assert not short["output_dir"].exists()


@pytest.mark.parametrize(
    "rows, steps, warmup",
    # 100 * 0.29 is 28.999999999999996 in binary.
    [(46, 115, 33), (40, 100, 29)],
)
def test_no_step_is_lost(rows, steps, warmup):
    how = Training(batch_size=10, epochs=25.0, warmup_proportion=0.29)
    setup = types.SimpleNamespace(
        experiment=types.SimpleNamespace(training=how),
        task=custom_task(),
        model=types.SimpleNamespace(learning_rate=1.0),
    )
    features = Features.from_rows([([1], [0])] * rows, {})
    schedule = loop.make_schedule(setup, features)
    assert (schedule.num_train_steps, schedule.num_warmup_steps) == (
        steps,
        warmup,
    )


def test_rows_that_are_cut_are_counted(classify, short, caplog):
    classify(**{**short, "max_seq_length": 8}, do_eval=True, do_predict=True)
    lengths = [len(text.split()) + 2 for text, _ in SENTENCES]
    expected = {"train": 5, "dev": 1, "test": 1}
    sizes = {"train": lengths, "dev": lengths, "test": lengths[:7]}
    for split, times in expected.items():
        expected[split] *= sum(length > 8 for length in sizes[split])
        count = times * len(sizes[split])
        assert (
            f"{split}: {expected[split]} of {count} examples are cut "
            "(--max_seq_length)"
        ) in caplog.text
    run = json.loads((short["output_dir"] / "run.json").read_text())
    assert run["cut_rows"] == expected
    adapter = short["output_dir"] / "adapter" / "adapter_config.json"
    assert "cut_rows" not in json.loads(adapter.read_text())


def test_several_workers_do_not_stop_early(classify, short, monkeypatch):
    """The chief alone would know that the training is over."""

    class TwoWorkers:
        can_pause, shards, workers = True, 1, 2

        def __init__(self, hardware):
            pass

        def check_devices(self):
            pass

    monkeypatch.setattr(
        experiment, "choose_engine", lambda name: (TwoWorkers, "a test")
    )
    with pytest.raises(UserError, match="--early_stopping needs one process"):
        classify(**short, do_eval=True, early_stopping=2)
