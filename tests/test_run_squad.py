"""Question answering's entry point: published commands, files, bad input."""

import pytest
from absl import flags
from conftest import read_json, run_process
from task_files import squad_file
from test_run_classifier import PUBLISHED_FLAGS
from test_sources import google_bert  # noqa: F401 (a fixture)

FLAGS = flags.FLAGS


def test_flags_have_berts_names_and_defaults(answer):
    expected = {
        **PUBLISHED_FLAGS,
        "train_file": "",
        "predict_file": "",
        "max_seq_length": 384,
        "doc_stride": 128,
        "max_query_length": 64,
        "n_best_size": 20,
        "max_answer_length": 30,
        "verbose_logging": False,
        "version_2_with_negative": False,
        "null_score_diff_threshold": 0.0,
    }
    assert {name: FLAGS[name].default for name in expected} == expected


@pytest.mark.gate
def test_the_published_command_of_squad_1_works(
    tmp_path,
    tiny_squad,
    engine,
    google_bert,  # noqa: F811
):
    out = tmp_path / "squad_base"
    done = run_process(
        f"--vocab_file={google_bert}/vocab.txt",
        f"--bert_config_file={google_bert}/bert_config.json",
        f"--init_checkpoint={google_bert}/bert_model.ckpt",
        "--do_train=True",
        f"--train_file={tiny_squad}/v1.json",
        "--do_predict=True",
        f"--predict_file={tiny_squad}/v1.json",
        "--train_batch_size=12",
        "--learning_rate=3e-5",
        "--num_train_epochs=2.0",
        # The tiny model has fewer positions than the published 384.
        "--max_seq_length=32",
        "--max_query_length=10",
        "--doc_stride=128",
        f"--output_dir={out}/",
        f"--engine={engine}",
        "--tuning_method=houlsby",
        "--adapter_size=4",
        program="run_squad.py",
    )
    assert "**** Total Trainable Parameters = " in done.stderr
    # 16 questions in batches of 12, twice, rounded down.
    assert (out / "model.ckpt-2.index").exists()
    assert "2 steps counted in questions, 2 counted in windows" in done.stderr
    ids = [f"q{i}" for i in range(16)]
    assert list(read_json(out, "predictions.json")) == ids
    assert list(read_json(out, "nbest_predictions.json")) == ids
    assert not (out / "null_odds.json").exists()


@pytest.mark.gate
@pytest.mark.newer_stack
def test_squad_2_learns_when_there_is_no_answer(
    answer, squad_flags, tiny_squad
):
    squad_flags.update(
        train_file=tiny_squad / "v2.json",
        predict_file=tiny_squad / "v2.json",
        version_2_with_negative=True,
        num_train_epochs=50,
        tuning_method="full",
        learning_rate=3e-3,
    )
    del squad_flags["adapter_size"]
    answer(**squad_flags, do_eval=True, do_predict=True)
    out = squad_flags["output_dir"]
    results = read_json(out, "eval_results.json")
    assert results["eval_total"] == 32 and results["eval_NoAns_total"] == 16
    assert results["eval_HasAns_f1"] > 90 and results["eval_NoAns_f1"] > 90
    assert results["eval_best_f1"] >= results["eval_f1"]
    odds = read_json(out, "null_odds.json")
    predictions = read_json(out, "predictions.json")
    assert list(odds) == list(predictions)
    for name, text in predictions.items():
        assert (odds[name] > 0) == (text == "")
    # A threshold above all odds leaves no question without an answer.
    squad_flags.update(do_train=False, null_score_diff_threshold=1e6)
    answer(**squad_flags, do_predict=True)
    assert all(read_json(out, "predictions.json").values())
    # Elsewhere the adapter brings the training's settings.
    again, adapter = out.parent / "again", out / "adapter"
    for name in read_json(adapter, "adapter_config.json")["task_settings"]:
        squad_flags.pop(name, None)
    del squad_flags["tuning_method"]
    for named in ({"adapter": adapter}, {"init_checkpoint": out}):
        squad_flags.update(named, output_dir=again / str(*named))
        answer(**squad_flags, do_predict=True)
        made = read_json(squad_flags["output_dir"], "predictions.json")
        assert made == predictions
        squad_flags.pop("adapter", None)


@pytest.mark.gate
@pytest.mark.older_stack
def test_an_empty_context_and_a_long_question_get_a_result(
    answer, squad_flags, tmp_path
):
    squad_flags["predict_file"] = squad_file(
        tmp_path / "odd.json",
        [
            ("empty", "", "is the cat on ?", None),
            ("blank", " \n ", "is the cat on ?", None),
            ("long", "the cat sat on the mat", "cat " * 500, "mat"),
        ],
    )
    squad_flags["num_train_epochs"] = 1
    # A file in which no context has a token makes no windows at all.
    nothing = squad_file(tmp_path / "no.json", [("empty", "", "is it ?", None)])
    squad_flags["version_2_with_negative"] = True
    answer(**squad_flags, do_predict=True)
    predictions = read_json(squad_flags["output_dir"], "predictions.json")
    assert list(predictions) == ["empty", "blank", "long"]
    assert predictions["empty"] == predictions["blank"] == ""
    squad_flags.update(do_train=False, predict_file=nothing)
    answer(**squad_flags, do_predict=True, do_eval=True)
    assert read_json(squad_flags["output_dir"], "predictions.json") == {
        "empty": ""
    }
