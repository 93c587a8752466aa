"""The user's own files, named one by one."""

import csv

import numpy as np
import pytest
import refusals
from absl import flags as absl_flags
from absl.testing import flagsaver
from conftest import (
    ROOT,
    SENTENCES,
    cells,
    flag_words,
    read_json,
    write_json_lines,
)
from task_files import refusal

from adapter_bert.commands import run_classifier
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.tasks.text_regression import TextRegression
from adapter_bert.training import run_from_flags

pytestmark = pytest.mark.older_stack

# Any table that is there.
OWN_TABLE = ROOT / "data" / "customer_intents" / "dev.tsv"


@pytest.fixture
def tickets(tmp_path):
    """A table as a ticket system exports it."""
    path = tmp_path / "tickets.csv"
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["ticket", "label", "message"])
        for number in range(5):
            for row, (text, label) in enumerate(SENTENCES):
                table.writerow([f"T{number}{row}", label, f"{text},\n{text}"])
    return path


@pytest.fixture
def own_flags(tiny_flags, tickets):
    """Flags of a small training on that table."""
    del tiny_flags["data_dir"]
    return {
        **tiny_flags,
        "train_file": tickets,
        "text_a_column": "message",
        "dev_share": 0.25,
    }


@pytest.mark.gate
def test_one_file_is_trained_on_and_new_rows_are_predicted(
    classify, own_flags, tiny_bert, tmp_path
):
    """The second command has the adapter, the rows, and nothing else."""
    new = tmp_path / "new.jsonl"
    rows = [
        {"ticket": f"N{row}", "message": f"{text},\n{text}"}
        for row, (text, _) in enumerate(SENTENCES)
    ]
    write_json_lines(new, rows)
    classify(**own_flags, predict_file=new, do_predict=True)
    out = own_flags["output_dir"]
    run = read_json(out / "run.json")
    assert run["data_name"] == "tickets.csv"
    assert run["training"]["examples"] == 30
    classify(
        adapter=out / "adapter",
        predict_file=new,
        init_checkpoint=tiny_bert,
        do_predict=True,
        id_column="ticket",
        output_dir=tmp_path / "new",
    )
    before, after = (
        np.loadtxt(folder / "test_results.tsv")
        for folder in (out, tmp_path / "new")
    )
    np.testing.assert_allclose(after, before, atol=1e-6)
    header, *rows = cells(tmp_path / "new" / "test_predictions.tsv")
    assert header == ["id", "label", "probability"]
    assert [row[:2] for row in rows] == [
        [f"N{number}", ("bad", "good")[place]]
        for number, place in enumerate(before.argmax(axis=1))
    ]


@pytest.mark.gate
def test_a_warning_tells_that_other_rows_are_held_out(
    classify, own_flags, tickets, tmp_path, caplog
):
    """A file with more rows is divided anew."""
    out = own_flags["output_dir"]
    classify(**own_flags, do_eval=True)
    scored = {**own_flags, "do_train": False, "do_eval": True}
    new = {"adapter": out / "adapter", "output_dir": tmp_path / "new"}
    ways = {**scored, **new}, scored
    for flags in ways:
        classify(**flags)
    told = "held out other rows"
    assert told not in caplog.text
    with open(tickets, "a", newline="") as file:
        csv.writer(file).writerows([["T", "good", f"new {n}"] for n in "12345"])
    for flags in ways:
        caplog.clear()
        classify(**flags)
        assert told in caplog.text


@pytest.mark.gate
def test_files_of_a_folder_and_the_same_ones_named_are_one_run(
    classify, tiny_flags, tiny_data, caplog
):
    classify(**tiny_flags, do_eval=True, do_predict=True)
    out = tiny_flags["output_dir"]
    paths = [out / name for name in ("eval_results.json", "test_results.tsv")]
    before = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    del tiny_flags["data_dir"]
    tiny_flags.update(
        train_file=tiny_data / "train.tsv",
        eval_file=tiny_data / "dev.tsv",
        predict_file=tiny_data / "test.tsv",
    )
    with caplog.at_level("INFO", logger="absl"):
        classify(**tiny_flags, do_eval=True, do_predict=True)
    assert "already trained to step 20" in caplog.text
    assert [path.read_bytes() for path in paths] == before


def test_labels_come_from_the_training_file(classify, own_flags, capsys):
    del own_flags["output_dir"], own_flags["do_train"]
    classify(**own_flags, describe=True)
    assert "head" in capsys.readouterr().out
    del own_flags["train_file"]
    refusals.check(
        lambda: classify(**own_flags, describe=True),
        "pass --train_file or --data_dir, or",
    )


@refusals.table(
    {
        "folder": (
            {"data_dir": "/none"},
            "--train_file and --data_dir exclude",
        ),
        "missing": (
            {"train_file": "/no.csv"},
            "--train_file is /no.csv, which do",
        ),
        "missing in a folder": (
            {"train_file": None, "data_dir": ROOT},
            "there is no",
            "/train.tsv and no",
        ),
        "not a table": (
            {"eval_file": ROOT / "LICENSE"},
            "LICENSE, expected the ending",
        ),
        "declared task": (
            {"task_name": "mrpc", "text_a_column": None, "dev_share": None},
            "are for --task_name=custom; the files of mrpc are in --data_dir",
        ),
        "no file to predict": (
            {"do_predict": True},
            "--predict_file is missing: the rows to predict",
        ),
        "no file to score": (
            {"dev_share": None, "do_eval": True},
            "--eval_file is missing: the rows to evaluate on",
        ),
        "no file to train on": (
            {"train_file": None, "predict_file": OWN_TABLE, "dev_share": None},
            "--train_file is missing: the rows to train on",
        ),
        "nothing at all": (
            {"train_file": None},
            "--data_dir is missing: ",
            "named",
        ),
    }
)
def test_what_cannot_be_read_is_refused_before_bert_is(
    classify, own_flags, call, parts
):
    flags = {**own_flags, "init_checkpoint": "/nowhere", **call}
    refusals.check(lambda: classify(**flags), *parts)
    assert not own_flags["output_dir"].exists()


# What an adapter alone tells


@pytest.mark.gate
def test_an_adapter_of_sets_of_labels_reads_files_without_a_header(
    classify, tiny_flags, tmp_path, caplog
):
    table = tmp_path / "SETS.CSV"
    table.write_text(
        "".join(
            f'{label}{";long" * (len(text) > 20)},"{text}"\n'
            for text, label in SENTENCES
        )
    )
    del tiny_flags["data_dir"]
    classify(
        **{**tiny_flags, "num_train_epochs": 1},
        train_file=table,
        header=False,
        label_column=0,
        text_a_column=1,
        multi_label=True,
        label_separator=";",
    )
    out = tiny_flags["output_dir"]
    for name, value in (("eval", table), ("predict", table)):
        classify(
            adapter=out / "adapter",
            init_checkpoint=tiny_flags["init_checkpoint"],
            output_dir=tmp_path / name,
            **{f"{name}_file": value, f"do_{name}": True},
        )
        [message] = [line for line in caplog.messages if "supplies" in line]
        assert 'task custom, labels "bad", "good", "long"' in message
        assert "adapter.safetensors supplies without flags" in message
        assert ", --max_seq_length=24 (trained with BERT" in message
        caplog.clear()
    scores = read_json(tmp_path / "eval" / "eval_results.json")
    assert "eval_micro_f1" in scores
    header, *rows = cells(tmp_path / "predict" / "test_predictions.tsv")
    assert header[2:] == [
        "probability_bad",
        "probability_good",
        "probability_long",
    ]
    assert len(rows) == len(SENTENCES)


def trained(task_name="custom", **settings):
    """What an adapter says of its training on labels."""
    task = {"name": task_name, "labels": ["a", "b"], "pairs": False}
    return {"task": task, "task_settings": settings}


def task_of(classify, description, **values):
    """The task that flags and an adapter's description mean."""
    with flagsaver.flagsaver():
        names = flag_words(values)
        absl_flags.FLAGS(["run_classifier.py", *names])
        return run_classifier.task_from_flags(description)


def test_flags_come_before_what_an_adapter_tells(classify):
    description = trained(columns=["message"], label_column="queue")
    task = task_of(classify, description)
    assert type(task) is TextClassification
    assert task.labelled.text_a == "message" == task.columns[0]
    assert task.labelled.label == "queue"
    task = task_of(classify, description, text_a_column="body")
    assert task.unlabelled.text_a == "body"
    assert task.labelled.label == "queue"
    description = trained(label_columns=["cat", "dog"])
    description["task"]["multi_label"] = True
    layout = task_of(classify, description).labelled
    assert layout.label_columns == ("cat", "dog")
    # A cell of all labels in their place.
    layout = task_of(classify, description, label_column="all").labelled
    assert layout.label == "all" and not layout.label_columns


@pytest.mark.parametrize(
    "training, passed, expected",
    [
        ({"max_seq_length": 24}, {}, 24),
        ({"max_seq_length": None}, {}, 128),
        # The default, but given.
        ({"max_seq_length": 24}, {"max_seq_length": 128}, 128),
        (None, {}, 128),
        (
            {"max_seq_length": 0},
            {},
            "--adapter=a: training.max_seq_length is 0, expected at least 3",
        ),
        (
            {"max_seq_length": 24},
            {"max_seq_length": 2},
            "--max_seq_length is 2, expected at least 3",
        ),
    ],
)
def test_an_adapter_supplies_its_length(
    classify, monkeypatch, training, passed, expected
):
    description = None if training is None else {"training": training}
    monkeypatch.setattr(
        run_from_flags, "adapter_description", lambda: description
    )
    with flagsaver.flagsaver():
        names = flag_words(passed)
        absl_flags.FLAGS(["run_classifier.py", "--adapter=a", *names])
        if isinstance(expected, str):
            assert refusal(run_from_flags.max_seq_length) == expected
        else:
            assert run_from_flags.max_seq_length() == expected


@pytest.mark.parametrize(
    "passed, expected",
    [
        ({"output_dir": "out"}, 24),
        ({"init_checkpoint": "out/model.ckpt-3", "output_dir": "new"}, 24),
        ({"output_dir": "out", "max_seq_length": 128}, 128),
        ({"init_checkpoint": "minilm", "output_dir": "new"}, 128),
        # It is compared with the folder's.
        ({"output_dir": "out", "do_train": True}, 128),
    ],
)
def test_a_run_that_is_evaluated_supplies_its_length(
    classify, monkeypatch, passed, expected
):
    runs = dict.fromkeys(("out", "."), {"training": {"max_seq_length": 24}})
    monkeypatch.setattr(run_from_flags.run_record, "read_run", runs.get)
    with flagsaver.flagsaver():
        absl_flags.FLAGS(["run_classifier.py", *flag_words(passed)])
        assert run_from_flags.max_seq_length() == expected


def test_another_kind_of_labels_is_left_to_the_comparison(classify):
    description = trained(label_separator=";", label_threshold=0.25)
    description["task"]["multi_label"] = True
    task = task_of(classify, description)
    assert (task.separator, task.threshold) == (";", 0.25)
    task = task_of(classify, description, label_threshold=0.9)
    assert task.threshold == 0.9
    # A flag that says the same changes nothing.
    assert task_of(classify, description, multi_label=True).separator == ";"
    assert task_of(classify, description, regression=False).separator == ";"
    task = task_of(classify, description, regression=True)
    assert type(task) is TextRegression
    assert "was trained on the task custom" in refusal(
        task.restore, description["task"], "head"
    )
    # One that is denied changes no other.
    description = trained()
    description["task"]["regression"] = True
    task = task_of(classify, description, multi_label=False)
    assert type(task) is TextRegression


def test_a_declared_task_is_that_of_the_adapter(classify):
    assert task_of(classify, trained("cola")).name == "cola"
    # The user's own files may hold its rows.
    task = task_of(classify, trained("cola"), task_name="custom")
    assert task.labelled.text_a == "text"
    assert "--predict_file are for --task_name=custom" in refusal(
        lambda: task_of(classify, trained("cola"), predict_file=OWN_TABLE)
    )
    # One of another program is unknown.
    assert "unknown task 'tagging'" in refusal(
        lambda: task_of(classify, trained("tagging"), adapter="x")
    )
