"""Programs in the shapes of BERT's public forks, plain and with adapters.

They are in `forks/`. Each takes a tuning method by one argument.
"""

import re
import sys
from shutil import copy

import pytest
from conftest import (
    ROOT,
    SENTENCES,
    TINY_WORDS,
    cells,
    flag_words,
    module_fixture,
    read_json,
    run_command,
    run_process,
    write_json,
    write_lines,
)
from task_files import TAGGED, conll, put
from test_sources import save_tensorflow

pytestmark = [pytest.mark.older_stack, pytest.mark.gate]

METHOD = "houlsby(size=4)"
# What each method trains of BERT, and adds to it.
TRAINED = {None: r"bert/.*", METHOD: r"bert/.*/(adapters|LayerNorm)/.*"}
RUN = """
import importlib, json, sys, traceback
data, bert, out, *programs = sys.argv[1:]
results = {}
for name in programs:
    for number, method in enumerate((None, "houlsby(size=4)")):
        try:
            main = importlib.import_module(name).main
            result = main(data, bert, f"{out}/{name}{number}", method)
        except Exception:
            result = traceback.format_exc()
        results[f"{name} {method}"] = result
json.dump(results, open(f"{out}/results.json", "w"))
"""


@module_fixture
def google_bert(tmp_path_factory, tiny_config, tiny_weights):
    """The tiny BERT as Google publishes one."""
    folder = tmp_path_factory.mktemp("google_bert")
    write_lines(folder / "vocab.txt", TINY_WORDS)
    write_json(folder / "bert_config.json", vars(tiny_config))
    save_tensorflow(folder / "bert_model.ckpt", tiny_weights)
    return folder


@module_fixture
def data(tmp_path_factory, tiny_data):
    folder = tmp_path_factory.mktemp("forks_data")
    put(folder / "tags.txt", conll(TAGGED))
    write_lines(folder / "texts.txt", [text for text, _ in SENTENCES])
    copy(tiny_data / "train.tsv", folder)
    pairs = [
        f"{a}\t{b}\t{float(x == y)}\n"
        for a, x in SENTENCES[:3]
        for b, y in SENTENCES[3:6]
    ]
    put(folder / "pairs.tsv", "".join(pairs))
    return folder


@module_fixture
def run(tmp_path_factory, google_bert, data):
    """What the programs return, from one process of their own."""
    out = tmp_path_factory.mktemp("forks")
    names = ("ner_crf", "feature_service", "notebook", "siamese")
    run_command(
        *(sys.executable, "-c", RUN, data, google_bert, out, *names),
        check=True,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'forks'}"},
    )
    results = read_json(out / "results.json")

    def result(name, method):
        one = results[f"{name} {method}"]
        assert isinstance(one, dict), one
        return one

    return result


EVERY_METHOD = pytest.mark.parametrize("method", TRAINED, ids=str)


def check_trained(names, method, *heads):
    of_adapters = {name for name in names if name not in heads}
    assert set(heads) <= set(names) and of_adapters
    assert all(re.fullmatch(TRAINED[method], name) for name in of_adapters)
    # The plain program trains adapters no more than the other one BERT.
    assert any("/adapters/" in name for name in of_adapters) == bool(method)
    assert any("/kernel" in name for name in of_adapters) != bool(method)


@EVERY_METHOD
def test_named_entities_with_a_crf(run, method):
    result = run("ner_crf", method)
    check_trained(result["trained"], method, "crf/weights", "crf/transitions")
    assert result["accuracy"] > 0.6


@EVERY_METHOD
def test_a_service_of_vectors(run, method, data):
    result = run("feature_service", method)
    check_trained(result["trained"], method)
    assert len(result["vectors"]) == len(SENTENCES)
    assert len(result["vectors"][0]) == 16


def test_fresh_adapters_change_vectors_little(run):
    plain, adapted = (
        run("feature_service", method)["vectors"] for method in TRAINED
    )
    assert plain != adapted
    differences = [
        abs(x - y) for a, b in zip(plain, adapted) for x, y in zip(a, b)
    ]
    assert max(differences) < 1e-2


@EVERY_METHOD
def test_a_notebook_s_classifier(run, method):
    result = run("notebook", method)
    check_trained(result["trained"], method, "output_weights", "output_bias")
    assert result["loss"] < 0.8


@EVERY_METHOD
def test_similarity_of_two_models_that_share_variables(run, method):
    result = run("siamese", method)
    check_trained(result["trained"], method)
    before, after = result["losses"]
    assert after < 0.8 * before


def test_a_new_task(google_bert, tiny_data, tmp_path):
    out = tmp_path / "out"
    flags = {
        "task_name": "Reviews",
        "data_dir": tiny_data,
        "init_checkpoint": google_bert / "bert_model.ckpt",
        "output_dir": out,
        "do_train": "true",
        "do_eval": "true",
        "do_predict": "true",
        "max_seq_length": 16,
        "train_batch_size": 8,
        "num_train_epochs": 1,
        "cpu_lanes": 1,
        "tuning_method": METHOD,
    }
    run_process(
        *flag_words(flags),
        program="tests/forks/new_task.py",
        env={"PYTHONPATH": str(ROOT)},
    )
    scores = read_json(out / "eval_results.json")
    assert "eval_accuracy" in scores
    adapter = read_json(out / "adapter" / "adapter_config.json")
    assert adapter["task"]["labels"] == ["good", "bad"]
    predicted = cells(out / "test_predictions.tsv")
    assert [row[0] for row in predicted[:2]] == ["id", "test-1"]
