"""`library suggest`: adapters ranked as beginnings of a training."""

import json
import types

import numpy as np
import pytest
import refusals
from conftest import module_fixture, write_table
from numpy.random import default_rng
from task_files import make_rows
from tiny_artifacts import make_artifact

from adapter_bert.answering.trained_task import load_task
from adapter_bert.commands import library as program
from adapter_bert.library import suggestion
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.methods.new_words import with_new_words
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.custom import custom_task
from adapter_bert.training import experiment as experiments
from adapter_bert.training import saved_steps

pytestmark = pytest.mark.newer_stack

METHOD = "houlsby(size=4)"
WORDS = ("the", "cat", "sat", "on", "mat", "a", "dog", "ran", "fast", "slow")


def texts(count, seed):
    """Different texts of words in any order."""
    rng = default_rng(seed)
    shuffled = {" ".join(rng.permutation(WORDS)[:5]) for _ in range(2 * count)}
    return sorted(shuffled)[:count]


def by_word(some, word):
    """Rows whose label says whether a text has a word."""
    return [(text, "good" if word in text.split() else "bad") for text in some]


@module_fixture
def taught(tiny_bert, tmp_path_factory):
    """A library with two adapters of one task."""
    place = tmp_path_factory.mktemp("taught")
    shelf = AdapterLibrary(str(place / "shelf"), create=True)
    for seed, name in enumerate(("cats", "mats")):
        make_artifact(place / name, tiny_bert, METHOD, seed=seed)
        shelf.add(str(place / name), name)
    return shelf


def learned(rows, **settings):
    return custom_task(**settings).complete(rows).learn(rows)


def test_features_that_tell_the_labels_are_first(taught, bert, monkeypatch):
    """Of equals BERT alone is before adapters, which have their names' order.

    Features come in parts.
    """
    sentences, labels = map(list, zip(*by_word(texts(40, 2), "cat")))
    rows = make_rows(*sentences, label=labels)
    noise = default_rng(1).normal(size=(40, 4))
    telling = noise + 3 * (np.array(labels) == "good")[:, np.newaxis]
    sha256 = load_task(bert, taught.folder("mats"), None).sha256

    class Known:
        def __init__(self, bert, loaded, max_seq_length):
            assert max_seq_length == 24
            is_mats = loaded and loaded.sha256 == sha256
            self.features = telling if is_mats else noise

        def stream(self, some):
            assert list(some) == [(text,) for text in sentences]
            yield from (self.features[:30], self.features[30:])

    monkeypatch.setattr(suggestion, "Embedder", Known)
    ranked = suggestion.rank(bert, taught, learned(rows), rows, 24)
    assert [c.name for c in ranked] == ["mats", None, "cats"]
    assert ranked[0].logme > ranked[1].logme == ranked[2].logme
    assert ranked[0].method.startswith("houlsby(")
    assert ranked[0].task == "custom" and ranked[1].method is None


def test_pairs_and_numbers_are_ranked_too(taught, bert):
    some = texts(8, 1)
    numbers = [str(number / 4) for number in range(8)]
    rows = make_rows(*some, text_b=some[::-1], label=numbers)
    task = learned(rows, text_b_column="other", regression=True)
    ranked = suggestion.rank(bert, taught, task, rows, 24)
    assert len(ranked) == 3 and np.isfinite([c.logme for c in ranked]).all()


def test_what_no_training_begins_with_is_passed_over(
    taught, bert, tiny_bert, tmp_path, caplog, shelf
):

    def refused(library, *parts):
        refusals.check(
            lambda: suggestion.load_candidates(bert, library),
            *(library.path, *parts),
        )

    refused(shelf, "it is empty")
    words = str(with_new_words(parse(METHOD), 2))
    for name, text in (("head", "head"), ("words", words)):
        make_artifact(tmp_path / name, tiny_bert, text)
        shelf.add(str(tmp_path / name), name)
    refused(shelf, "holds a head alone")
    assert not caplog.text
    make_artifact(tmp_path / "good", tiny_bert, METHOD)
    shelf.add(str(tmp_path / "good"), "good")
    assert list(suggestion.load_candidates(bert, shelf)) == ["good"]
    assert "head is passed over: " in caplog.text
    assert "reads words of its own task" in caplog.text
    alien = AdapterLibrary(str(tmp_path / "alien"), create=True)
    base = {"name": "alien", "fingerprint": "0" * 64}
    make_artifact(tmp_path / "other", tiny_bert, METHOD, base=base)
    alien.add(str(tmp_path / "other"), "other")
    refused(alien, "was trained on another BERT")


def test_drawn_rows_keep_their_order_and_follow_the_seed():
    rows = make_rows(*map(str, range(50)))
    drawn = suggestion.draw(rows, 10, 1)
    numbers = list(map(int, drawn.text_a))
    assert len(numbers) == 10 and numbers == sorted(numbers)
    assert suggestion.draw(rows, 10, 1).text_a == drawn.text_a
    assert suggestion.draw(rows, 10, 2).text_a != drawn.text_a
    assert len(suggestion.draw(rows, 99, 1)) == 50


@pytest.mark.gate
def test_the_command_ranks_and_measures_the_saving(
    taught, tiny_bert, tmp_path, run_main, capsys, monkeypatch
):
    for name, seed in (("train", 3), ("dev", 4)):
        write_table(tmp_path / f"{name}.tsv", by_word(texts(60, seed), "cat"))
    arguments = (
        "suggest",
        taught.path,
        f"--init_checkpoint={tiny_bert}",
        f"--train_file={tmp_path / 'train.tsv'}",
        "--max_seq_length=24",
        "--rows=50",
    )
    run_main(program, *arguments)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "task", "method", "LogME"]
    names = [line.split()[0] for line in lines]
    assert sorted(names) == ["-", "cats", "mats"]
    scores = [float(line.split()[-1]) for line in lines]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 3
    assert any("BERT alone" in line for line in lines)
    first = next(name for name in names if name != "-")
    begun = []

    def run(experiment):
        begun.append(experiment.init_adapter)
        return experiments.run(experiment)

    monkeypatch.setattr(
        saved_steps, "experiments", types.SimpleNamespace(run=run)
    )
    dev = f"--eval_file={tmp_path / 'dev.tsv'}"
    run_main(program, *arguments, dev, "--try_steps=4", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["rows"] == 50
    named = [candidate["name"] or "-" for candidate in report["candidates"]]
    assert named == names
    saved = report["saved_steps"]
    assert saved["adapter"] == first and saved["metric"] == "accuracy"
    steps = ["1", "2", "3", "4"]
    assert list(saved["from_nothing"]) == list(saved["from_adapter"]) == steps
    assert begun == ["", taught.folder(first)]


def test_no_training_begins_with_a_composition_alone(
    taught, tiny_bert, tmp_path, run_main, monkeypatch
):
    ranked = [
        suggestion.Candidate("x", 0.5, "t", "stack('y', lora(rank=2))"),
        suggestion.Candidate(None, 0.4),
    ]
    monkeypatch.setattr(suggestion, "rank", lambda *_: ranked)
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    for path in (train, dev):
        write_table(path, TWO)
    words = f"--init_checkpoint={tiny_bert} --train_file={train}"
    words += f" --eval_file={dev} --try_steps=1"
    call = "suggest", taught.path, *words.split()
    refusals.check(lambda: run_main(program, *call), "are compositions")


TWO = [("a", "x"), ("b", "y")]
BAD = {
    "empty": ([], "", "holds no rows"),
    "label": ([("a", "x")] * 4, "", "only the label 'x'"),
    "drawn": ([("a", "x")] * 9 + TWO, "--rows=1", "more --rows"),
    "column": (TWO, "--text_a_column=message", "'message'"),
    "number": (TWO, "--regression=true", "expected a number"),
    "dev": (TWO, "--try_steps=3", "--eval_file"),
    "steps": (TWO, "--eval_file=dev.tsv", "--try_steps"),
    "id": (TWO, "--id_column=x", "--id_column is for predictions"),
    "length": (TWO, "--max_seq_length=999", "--max_seq_length is 999"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line(
    taught, tiny_bert, tmp_path, run_main, case
):
    rows, flag, part = BAD[case]
    path = tmp_path / "rows.tsv"
    write_table(path, rows)
    words = f"--init_checkpoint={tiny_bert} --train_file={path} {flag}"
    call = "suggest", taught.path, *words.split()
    refusals.check(lambda: run_main(program, *call), part)
