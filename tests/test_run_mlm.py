"""Masked language modelling's entry point: files, resumption, refusals."""

import math

import pytest
import refusals
from conftest import (
    TINY_WORDS,
    flag_words,
    program_fixture,
    read_adapter,
    read_json,
    run_process,
    write_json,
)
from test_masked_lm import (  # noqa: F401 (one is a fixture)
    HEAD,
    pretrained,
    random_head,
)
from test_methods_runs import without_size

from adapter_bert.commands import run_mlm
from adapter_bert.tasks.masked_lm import WORD_EMBEDDINGS, MaskedLM

model_text = program_fixture(run_mlm)


def repeated_words(folder):
    """A file of lines of one word each, of 18 words in all."""
    words = [word for word in TINY_WORDS if word.isalpha()]
    # So many have to be guessed among by whoever reads no neighbours.
    assert len(words) == 18
    path = folder / "repeated.txt"
    path.write_text("".join(" ".join([word] * 20) + "\n" for word in words * 5))
    return path


@pytest.mark.gate
@pytest.mark.older_stack
def test_a_run_writes_all_its_files(text_flags, tiny_config):
    """As a user starts it."""
    path = repeated_words(text_flags["output_dir"].parent)
    flags = {**text_flags, "num_train_epochs": 20}
    flags.update(train_file=path, eval_file=path)
    done = run_process(*flag_words(flags), "--do_eval", program="run_mlm.py")
    out = text_flags["output_dir"]
    scores = read_json(out, "eval_results.json")
    assert set(scores) >= {"eval_perplexity", "eval_accuracy", "eval_loss"}
    # Whoever does not read the line around a masked word has 18.
    assert scores["eval_perplexity"] < 11 and scores["eval_accuracy"] > 0.2
    assert scores["eval_perplexity"] == pytest.approx(
        math.exp(scores["eval_loss"])
    )
    run = read_json(out, "run.json")
    assert run["task"] == {
        "name": "masked_lm",
        "mlm_probability": 0.15,
        "whole_word_masking": False,
    }
    assert run["training"]["examples"] == 90
    assert len(run["training"]["data"]) == 64
    held = read_adapter(out / "adapter")
    names = set(held.weights.shapes)
    assert {name for name in names if name.startswith(HEAD)} == set(
        random_head(tiny_config)
    )
    assert WORD_EMBEDDINGS not in names
    assert "1800 tokens in 90 rows" in done.stderr
    assert not list(out.rglob("*tmp*"))


def test_a_pretrained_head_is_evaluated_untrained(
    model_text,
    text_flags,
    pretrained,  # noqa: F811
    tmp_path,
):
    """With a method that adds nothing, and without one of them refused."""
    flags = {
        **without_size(text_flags),
        "tuning_method": "bitfit",
        "do_train": False,
        "do_eval": True,
    }
    scores = []
    for layout in ("google", "hugging_face"):
        out = tmp_path / layout
        flags.update(init_checkpoint=pretrained / layout, output_dir=out)
        if layout == "google":
            # The other's config says what its `gelu` is.
            flags["bert_config_file"] = tmp_path / "config.json"
            config = read_json(pretrained / layout, "config.json")
            config["hidden_act"] = "gelu_erf"
            write_json(flags["bert_config_file"], config)
        model_text(**flags)
        scores.append(read_json(out, "eval_results.json")["eval_loss"])
        flags.pop("bert_config_file", None)
    assert scores[0] == scores[1]
    flags["init_checkpoint"] = text_flags["init_checkpoint"]
    refusals.check(
        lambda: model_text(**{**flags, "output_dir": tmp_path / "none"}),
        "holds no trained head",
    )


def test_rows_that_change_cannot_be_kept(model_text, text_flags, monkeypatch):
    """Known before the text is tokenized."""
    monkeypatch.setattr(MaskedLM, "featurize", None)
    flags = {**without_size(text_flags), "tuning_method": "head"}
    refusals.check(
        lambda: model_text(**flags, cache_frozen_layers=True),
        "rows of this task are others in each",
    )
