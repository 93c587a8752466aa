"""What a run opens: model, vocabulary, rate; whether they fit together."""

import functools
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import refusals
from conftest import TINY_WORDS, read_json, write_json
from numpy.testing import assert_array_equal
from safetensors.numpy import load_file, save_file
from test_sources import google_bert  # noqa: F401 (a fixture)
from tiny_artifacts import make_artifact

from adapter_bert.checkpoints import adapter_artifact, sources
from adapter_bert.data.divisions import HeldOut
from adapter_bert.data.tables import Layout
from adapter_bert.errors import UserError
from adapter_bert.methods.composition import Composition
from adapter_bert.methods.registry import METHODS, parse
from adapter_bert.tasks.text_classification import TextClassification
from adapter_bert.training import experiment as run_experiment
from adapter_bert.training import extras, setup
from adapter_bert.training.settings import Experiment, Hardware, Training

TRAINING = Training(batch_size=8, epochs=1.0)


@pytest.fixture
def experiment(tiny_bert, tmp_path):
    """A training with labels that no file has to be read for."""
    return Experiment(
        task=TextClassification(
            "tiny",
            labels=("bad", "good"),
            labelled=Layout("text", None, "label"),
            unlabelled=Layout("text"),
        ),
        method=parse("houlsby(size=4)"),
        named_method=None,
        named_arguments={},
        training=TRAINING,
        hardware=Hardware(),
        data_dir="",
        output_dir=str(tmp_path / "out"),
        init_checkpoint=str(tiny_bert),
        max_seq_length=24,
        do_train=True,
        eval_batch_size=8,
    )


def opened(experiment, **changes):
    return setup.open_model(replace(experiment, **changes))


def copy_of(tiny_bert, tmp_path, **keys):
    """The tiny BERT with other keys in its config."""
    folder = tmp_path / "copy"
    shutil.copytree(tiny_bert, folder)
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, **keys})
    return folder


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
def test_hugging_faces_weights_mean_its_gelu_whatever_the_config_says(
    experiment,
    tiny_bert,
    google_bert,  # noqa: F811
    tmp_path,
    act,
):
    folder = copy_of(tiny_bert, tmp_path, hidden_act=act)
    activation = opened(
        experiment, init_checkpoint=str(folder)
    ).config.hidden_act
    assert activation == ("gelu_erf" if act == "gelu" else act)
    # Google's names next to the same config mean Google's.
    activation = opened(
        experiment,
        init_checkpoint=str(google_bert),
        bert_config_file=str(folder / "config.json"),
    )
    assert activation.config.hidden_act == act


def test_the_rate_is_the_methods_own_unless_one_is_given(experiment):
    method = experiment.method
    assert opened(experiment).learning_rate == method.learning_rate == 3e-4
    training = replace(TRAINING, learning_rate=0.5)
    assert opened(experiment, training=training).learning_rate == 0.5


def test_every_method_has_a_rate_of_its_own():
    for method in METHODS.values():
        # A composition has the one of its parts.
        if not issubclass(method, Composition):
            assert 1e-6 < method.learning_rate < 1e-1
    assert METHODS["fusion"].learning_rate == 5e-5
    # google-research/bert's default.
    assert METHODS["full"].learning_rate == 5e-5


def test_a_model_may_have_more_entries_than_the_vocabulary(
    experiment, tiny_bert, tmp_path
):
    """As models do whose size of the vocabulary was rounded up."""
    padded = len(TINY_WORDS) + 34
    folder = copy_of(tiny_bert, tmp_path, vocab_size=padded)
    weights = load_file(folder / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    weights[name] = np.pad(weights[name], [[0, 34], [0, 0]])
    save_file(weights, folder / "model.safetensors")
    model = opened(experiment, init_checkpoint=str(folder))
    assert model.config.vocab_size == padded
    folder.joinpath("vocab.txt").write_text("\n".join(TINY_WORDS[:-1]))
    experiment = replace(experiment, init_checkpoint=str(folder))
    too_many = len(TINY_WORDS) + sources.MAX_VOCABULARY_PADDING
    config = read_json(folder / "config.json")
    config["vocab_size"] = too_many
    write_json(folder / "config.json", config)
    with pytest.raises(UserError, match=f"29 entries.*says {too_many};"):
        opened(experiment)


# The second has capitals, the third a script without cases.
CASED = [*TINY_WORDS[:-1], "The"]
CASELESS = [*TINY_WORDS[:5], *map(chr, range(0x4E00, 0x4E19))]


@pytest.mark.parametrize(
    "words, lower, way_out",
    [
        (TINY_WORDS, True, None),
        (TINY_WORDS, False, "--do_lower_case=true"),
        (CASED, False, None),
        (CASED, True, "--do_lower_case=false"),
        (CASED, None, None),
        (CASELESS, True, None),
        (CASELESS, False, None),
    ],
)
def test_lower_casing_has_to_fit_the_vocabulary(
    experiment, tmp_path, words, lower, way_out
):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(words), encoding="utf-8")

    def call():
        return opened(experiment, vocab_file=str(path), do_lower_case=lower)

    if way_out is None:
        assert lower in (None, call().tokenizer.do_lower_case)
    else:
        refusals.check(call, "the vocabulary", f"pass {way_out}")


def test_the_flag_counts_only_where_it_is_named(
    classify, tiny_flags, monkeypatch
):
    seen = []
    monkeypatch.setattr(
        run_experiment, "run", lambda e: seen.append(e.do_lower_case)
    )
    classify(**tiny_flags)
    classify(**tiny_flags, do_lower_case=True)
    classify(**tiny_flags, do_lower_case=False)
    assert seen == [None, True, False]


def begun(experiment, **changes):
    """The model and the job of a run of the experiment's task."""
    model = opened(experiment, **changes)
    engine = SimpleNamespace(
        shards=1, lanes=1, workers=1, has_accelerators=False
    )
    return model, setup.make_job(engine, model)


NLI = {"name": "custom", "labels": ["a", "b", "c"], "pairs": True}


@pytest.mark.newer_stack
@pytest.mark.parametrize("text", ["lora(rank=2)", "layernorm"])
def test_a_training_begins_with_an_adapter_but_for_its_head(
    experiment, tiny_bert, tmp_path, text
):
    folder, other = tmp_path / "adapter", tmp_path / "other"
    _, values = make_artifact(folder, tiny_bert, text, description=NLI)
    make_artifact(other, tiny_bert, text, description=NLI, seed=1)
    model, start = begun(experiment, init_adapter=str(folder))
    assert model.method == parse(text)
    assert model.task.labels == ("bad", "good")
    _, plain = begun(experiment, method=parse(text))
    for p in start.table.trained:
        source = plain.initial_values[p.name]()
        if p.group != "head":
            assert (source != values[p.name]).any()
            source = values[p.name]
        assert_array_equal(start.initial_values[p.name](), source)
    _, another = begun(experiment, init_adapter=str(other))
    assert len({start.start, plain.start, another.start}) == 3
    record = setup.describe_settings(model, start)
    assert record["training"]["start"] == start.start
    assert record["training"]["new_head"] is True


def test_a_training_may_hold_out_rows_that_its_adapter_has_learned(
    experiment, tiny_bert, tmp_path, caplog
):
    """A calibration of its own labels is left out without a warning."""
    held_out = {"share": 0.25, "seed": 1}
    description = {**NLI, "held_out": held_out}
    folder = str(tmp_path / "adapter")
    make_artifact(
        tmp_path / "adapter", tiny_bert, "ia3", description=description
    )
    adapter_artifact.change_settings(folder, {"calibration": {}})
    for seed, warns in ((1, False), (7, True)):
        task = replace(experiment.task, held_out=HeldOut(0.25, seed))
        model = opened(experiment, task=task, init_adapter=folder)
        for extra in extras.of(model):
            extra.check(SimpleNamespace(model=model, experiment=experiment))
        assert ("held out other rows" in caplog.text) == warns
    assert "trained on before" not in caplog.text


OTHER = {"base": {"name": "other", "fingerprint": "0" * 64}}


@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "text, about, changes, part",
    [
        ("head", {}, {}, "holds nothing but a head"),
        ("lora(2)", {}, {"named_method": "houlsby"}, "--tuning_method"),
        ("lora(2)", OTHER, {}, "was trained on another BERT"),
    ],
)
def test_an_adapter_that_no_training_begins_with_is_refused(
    experiment, tiny_bert, tmp_path, text, about, changes, part
):
    folder = tmp_path / "adapter"
    make_artifact(folder, tiny_bert, text, description=NLI, **about)
    refusals.check(
        lambda: begun(experiment, init_adapter=str(folder), **changes), part
    )


@pytest.mark.newer_stack
def test_another_adapter_or_no_training_is_refused(
    classify, tiny_flags, tiny_bert, tmp_path
):
    folder = tmp_path / "adapter"
    make_artifact(folder, tiny_bert, "lora(rank=2)")
    tiny_flags["init_adapter"] = folder
    for change, part in (
        ({"adapter": folder}, "exclude each other"),
        ({"do_train": False}, "without --do_train or --describe"),
    ):
        call = functools.partial(classify, **{**tiny_flags, **change})
        refusals.check(call, part)
