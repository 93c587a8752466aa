"""Tagging's entry point: files, both engines, every method, bad input."""

import sys

import numpy as np
import pytest
import refusals
from conftest import (
    ROOT,
    flag_words,
    load_predictor,
    read_json,
    read_json_lines,
    read_lines,
    run_command,
    write_json,
    write_json_lines,
)
from task_files import TAGGED

from adapter_bert.tasks.tagging_files import read_sentences


@pytest.mark.gate
def test_training_learns_the_tiny_sentences(
    tag, ner_flags, tiny_ner, tmp_path, engine
):
    """Predictions are those of the artifact, however they are asked for."""
    tag(**ner_flags, engine=engine, do_eval=True, do_predict=True)
    out = ner_flags["output_dir"]
    results = read_json(out, "eval_results.json")
    assert results["eval_f1"] > 0.9
    assert results["eval_token_accuracy"] > 0.9
    assert results["eval_loss"] < 0.5
    assert {"eval_precision", "eval_recall"} <= set(results)
    assert results["global_step"] == 48
    report = read_lines(out / "eval_types.tsv")
    assert report[0].startswith("type\tentities\tpredicted\tprecision")
    assert [line.split("\t")[:2] for line in report[1:]] == [
        ["ANIMAL", "4"],
        ["THING", "1"],
        ["art-work", "2"],
    ]
    run = read_json(out, "run.json")
    assert run["task"]["name"] == "tagging"
    assert run["task"]["tags"][:3] == ["O", "B-ANIMAL", "I-ANIMAL"]
    config = read_json(out / "adapter", "adapter_config.json")
    assert config["task"] == run["task"]
    predicted = read_sentences(str(out / "test_predictions.conll"))
    sentences = read_sentences(str(tiny_ner / "test.conll"))
    assert predicted.words == sentences.words
    np.testing.assert_array_equal(predicted.starts, sentences.starts)
    predictor = load_predictor(ner_flags["init_checkpoint"], [out / "adapter"])
    answers = predictor(
        "tagging",
        [" ".join(words) for words in sentences.divide(sentences.words)],
    )
    assert [tag for answer in answers for tag in answer["tags"]] == list(
        map(str, predicted.tags)
    )
    ner_flags.update(do_train=False, init_checkpoint=out)
    ner_flags.update(output_dir=tmp_path / "test", eval_split="test")
    tag(**ner_flags, do_eval=True, do_predict=True)
    name = "test_predictions.conll"
    assert read_lines(tmp_path / "test" / name) == read_lines(out / name)
    scores = read_json(tmp_path / "test", "eval_results.json")
    # There one entity has become two.
    assert scores["eval_f1"] < results["eval_f1"]
    assert list(scores["dev_data"]) == ["test"]


@pytest.mark.older_stack
def test_types_are_renamed_and_noted(tag, ner_flags, tmp_path):
    table = tmp_path / "map.tsv"
    table.write_text("ANIMAL\tA\nTHING\tO\nart-work\tO\n")
    flags = {**ner_flags, "num_train_epochs": 1}
    tag(**flags, map_tags=table, do_eval=True)
    run = read_json(flags["output_dir"], "run.json")
    assert run["task"] == {
        "name": "tagging",
        "tags": ["O", "B-A", "I-A"],
        "map_tags": {"ANIMAL": "A", "THING": "O", "art-work": "O"},
        "punctuation_apart": True,
    }
    refusals.check(lambda: tag(**flags), "another configuration: ", "task.tags")
    # A run of before words were cut at punctuation goes on as it began.
    del run["task"]["punctuation_apart"]
    write_json(flags["output_dir"] / "run.json", run)
    tag(**flags, map_tags=table, do_eval=True)
    run = read_json(flags["output_dir"], "run.json")
    adapter = read_json(flags["output_dir"], "adapter", "adapter_config.json")
    for record in (run, adapter):
        assert "punctuation_apart" not in record["task"]
    flags.update(
        do_train=False,
        init_checkpoint=flags["output_dir"],
        output_dir=tmp_path / "eval",
    )
    refusals.check(
        lambda: tag(**flags, do_eval=True),
        "unknown type 'ANIMAL', expected one",
    )


@pytest.mark.older_stack
def test_json_lines_that_are_named(tag, ner_flags, tmp_path):
    """An adapter knows the keys, and tags sentences with no other file."""
    out, again = ner_flags["output_dir"], tmp_path / "again"
    paths = {}
    for flag, name, times in (
        ("train_file", "train.jsonl", 2),
        ("eval_file", "dev.jsonl", 1),
        ("predict_file", "NEW.JSONL", 1),
    ):
        rows = []
        for text in TAGGED * times:
            words, tags = zip(*(pair.split() for pair in text.split("|")))
            row = {"text": words, "id": len(rows)}
            rows.append(row if flag == "predict_file" else {**row, "ner": tags})
        paths[flag] = tmp_path / name
        write_json_lines(paths[flag], rows)
    del ner_flags["data_dir"]
    flags = {**ner_flags, "num_train_epochs": 1, "do_predict": True}
    keys = {"token_column": "text", "tag_column": "ner"}
    tag(**flags, **paths, **keys, do_eval=True)
    assert read_json(out, "run.json")["data_name"] == "train.jsonl"
    values = read_json_lines(out / "test_predictions.jsonl")
    assert [value["id"] for value in values] == [0, 1, 2, 3]
    assert all(len(v["ner"]) == len(v["text"]) for v in values)
    flags.update(do_train=False, output_dir=again)
    del flags["max_seq_length"]
    new = paths["predict_file"]
    tag(**flags, predict_file=new, adapter=out / "adapter")
    assert read_json_lines(again / "test_predictions.jsonl") == values
    # As does a run's folder.
    flags.update(init_checkpoint=out, output_dir=tmp_path / "third")
    tag(**flags, predict_file=new, max_seq_length=24)
    assert read_json_lines(tmp_path / "third/test_predictions.jsonl") == values


def test_files_that_are_not_named_are_missed(tag, ner_flags, tiny_ner):
    del ner_flags["data_dir"]
    ner_flags.update(
        init_checkpoint="/nowhere", predict_file=tiny_ner / "dev.conll"
    )
    refusals.check(lambda: tag(**ner_flags), "--train_file is missing")
    refusals.check(
        lambda: tag(**ner_flags, eval_split="test"),
        "--eval_split=test is for --data_dir",
    )


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_run_that_only_trains_loads_no_scikit_learn(ner_flags):
    """That takes as long as several steps."""
    code = (
        "import sys\n"
        "from adapter_bert.commands import run_tagger\n"
        "from adapter_bert.flags import define\n"
        "define(run_tagger.SETTINGS)(sys.argv)\n"
        "run_tagger.main()\n"
        "print({'seqeval', 'sklearn'} & set(sys.modules))\n"
    )
    flags = {**ner_flags, "num_train_epochs": 0.5}
    done = run_command(
        *(sys.executable, "-c", code), *flag_words(flags), cwd=ROOT, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.real_data
def test_published_layouts_are_read(shared_dir):
    """Lone tabs between sentences, four columns, hyphens in types."""
    folder = shared_dir / "data" / "ner"
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}")
    counts = {}
    for path in sorted(folder.glob("*/*.conll")):
        rows = read_sentences(str(path), keeps_text=True)
        starts = sum(tag.prefix == "B" for tag in rows.tags)
        counts[f"{path.parent.name}/{path.stem}"] = (
            len(rows),
            len(rows.words),
            starts,
        )
    assert counts == {
        "de/dev": (500, 9250, 541),
        "de/test": (1000, 18840, 1184),
        "de/train": (1000, 18896, 1142),
        "wnut17/dev": (1009, 15733, 836),
        "wnut17/test": (1287, 23394, 1079),
        "wnut17/train": (3394, 62730, 1975),
    }
