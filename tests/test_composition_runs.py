"""Compositions through the entry point, from training to answers."""

from shutil import copytree, rmtree

import numpy as np
import pytest
import refusals
from conftest import (
    SENTENCES,
    entry_point,
    load_predictor,
    make_flags,
    module_fixture,
    read_adapter,
    read_adapter_config,
    read_json,
    read_lines,
)
from exchanged import change
from numpy.testing import assert_allclose, assert_array_equal
from run_folders import artifact_bytes, saved_step
from safetensors.numpy import load_file
from tiny_artifacts import (
    CLASSIFICATION,
    make_library,
    read_base,
)
from tiny_artifacts import LIBRARY as PARTS

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.commands import run_classifier
from adapter_bert.library.adapter_library import check
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.from_description import restore_task

pytestmark = pytest.mark.newer_stack

# As in the data's test.tsv.
TEXTS = [text for text, _ in SENTENCES[:7]]
TASK = restore_task(CLASSIFICATION, {}, "")


@module_fixture
def library(tiny_bert, tmp_path_factory):
    return make_library(tmp_path_factory.mktemp("library"), tiny_bert)


def composing(flags, library):
    """Flags of a small training of a composition, from those of another."""
    del flags["adapter_size"]
    more = {"num_train_epochs": 1, "library": library, "do_predict": True}
    return {**flags, **more}


@pytest.fixture
def flags(tiny_flags, library):
    """Flags which a test may change."""
    return composing(tiny_flags, library)


@module_fixture
def composed(tiny_bert, tiny_data, library, tmp_path_factory):
    """Trains in a folder that no test changes, and returns the folder."""

    def compose(**more):
        folder = tmp_path_factory.mktemp("composed") / "out"
        flags = make_flags(tiny_bert, tiny_data, folder)
        with entry_point(run_classifier) as run:
            run(**composing(flags, library), **more)
        return folder

    return compose


@module_fixture
def fused(composed):
    """A run of five steps."""
    return composed(
        tuning_method="fusion(a, b)", do_eval=True, save_checkpoints_steps=2
    )


@pytest.mark.gate
def test_a_library_takes_compositions(classify, flags, fused, shelf):
    classify(**flags, tuning_method="stack(sparse, bitfit)")
    for name, folder in (("it", flags["output_dir"]), ("fused", fused)):
        shelf.add(str(folder), name)
        assert check(shelf.folder(name)).config["carries_parts"]
    # A sparse adapter stays one.
    values = load_file(flags["output_dir"] / "adapter" / "adapter.safetensors")
    places = [k for k in values if k.endswith("/indices")]
    assert len(places) > 30
    assert all(values[name].size == 5 for name in places)


def predicted(folder):
    return np.loadtxt(folder / "test_results.tsv")


def predict(classify, flags, folder, **more):
    """The probabilities by a run that only predicts."""
    classify(**{**flags, "do_train": False, "output_dir": folder, **more})
    return predicted(folder)


def answers(bert, adapter):
    """Probabilities of what the library's predictor says."""
    predictor = load_predictor(bert, {"it": adapter})
    return np.array(
        [list(row["scores"].values()) for row in predictor("it", TEXTS)]
    )


@pytest.mark.gate
def test_a_fusion_trains_shows_its_attention_and_is_answered_alone(
    classify, flags, fused
):
    shown = read_json(fused / "fusion_attention.json")
    assert shown["adapters"] == ["a", "b"]
    assert shown["places"] == [[0, "ffn"], [1, "ffn"]]
    assert_allclose(np.sum(shown["weights"], axis=1), 1, atol=1e-5)
    table = read_lines(fused / "fusion_attention.tsv")
    assert table[0] == "layer\tsublayer\ta\tb" and len(table) == 3
    assert (fused / "fusion_attention.png").read_bytes()[:4] == b"\x89PNG"
    run = read_json(fused / "run.json")
    for name in "ab":
        part = read_adapter_config(flags["library"] / name)
        assert run["parts"][name] == part["sha256"]
    del flags["library"]
    again = predict(
        classify, flags, flags["output_dir"], adapter=fused / "adapter"
    )
    assert_array_equal(again, predicted(fused))


@pytest.mark.gate
def test_sparse_changes_and_an_adapter_together_can_be_read_again(
    classify, flags
):
    classify(
        **flags, tuning_method="stack(lt_sft(sparsity=0.02), pfeiffer(size=2))"
    )
    folder = flags["output_dir"]
    # As a shell completes it.
    place = f"{folder}/adapter/"
    again = predict(classify, flags, folder.parent / "again", adapter=place)
    assert_array_equal(again, predicted(folder))


@pytest.mark.gate
def test_adapters_stay_and_the_rest_is_as_if_trained_alone(classify, flags):
    classify(**flags, tuning_method="stack(a, low, pfeiffer(size=2))")
    path = flags["output_dir"] / "adapter" / "adapter.safetensors"
    values = load_file(path)
    for name in ("a", "low"):
        part = load_file(flags["library"] / name / "adapter.safetensors")
        held = [k for k in values if k.startswith(f"parts.{name}/")]
        assert held
        for key in held:
            original = part[key[len(f"parts.{name}/") :]]
            assert_array_equal(values[key], original)
    trained = {k for k in values if not k.startswith("parts.")}
    assert trained == {
        "output_weights",
        "output_bias",
        *(
            f"bert/encoder/layer_{layer}/output/adapters/{name}"
            for layer in range(2)
            for name in ("weights1", "biases1", "weights2", "biases2")
        ),
    }


@pytest.mark.gate
@pytest.mark.parametrize(
    "text", ["stack(norms, sparse, bitfit)", "fusion(a, b)"]
)
def test_one_that_does_not_hold_its_adapters_finds_them(
    classify, flags, tiny_bert, library, fused, text, tmp_path
):
    """By their hashes, under whatever names."""
    whole = fused / "adapter"
    if "fusion" not in text:
        classify(**flags, tuning_method=text)
        whole = flags["output_dir"] / "adapter"
    again = tmp_path / "without"
    classify(
        **{**flags, "output_dir": again, "carry_parts": False},
        tuning_method=text,
    )
    small = again / "adapter"
    size = (small / "adapter.safetensors").stat().st_size
    assert size < (whole / "adapter.safetensors").stat().st_size
    expected = answers(tiny_bert, whole)
    # Its run tells where they lay.
    assert_array_equal(answers(tiny_bert, small), expected)
    alone = tmp_path / "far" / "alone"
    copytree(small, alone)
    refusals.check(
        lambda: answers(tiny_bert, alone), "needs the adapter ", "add it to the"
    )
    shelf = tmp_path / "shelf"
    copytree(library, shelf)
    for name in PARTS:
        (shelf / name).rename(shelf / f"old-{name}")
    copytree(small, shelf / "it")
    assert_array_equal(answers(tiny_bert, shelf / "it"), expected)
    # As the run itself does, with the library of then.
    predict(classify, flags, tmp_path / "p", adapter=small)


@pytest.mark.gate
def test_an_exchanged_language_is_what_answers(
    classify, flags, tiny_bert, library, tmp_path
):
    classify(**flags, tuning_method="stack(a, sparse, pfeiffer(size=2))")
    adapter = flags["output_dir"] / "adapter"
    kept, exchanged, back = (
        predict(
            classify,
            {**flags, "adapter": adapter},
            tmp_path / f"exchanged_{pairs}",
            exchange_part=pairs,
        )
        for pairs in ("", "a=b,sparse=norms", "a=a,sparse=sparse")
    )
    assert abs(exchanged - kept).max() > 1e-5
    assert_array_equal(back, kept)
    # The same, put together by hand.
    values = load_file(adapter / "adapter.safetensors")
    for name in [name for name in values if name.startswith("parts.")]:
        del values[name]
    base, _, _ = read_base(tiny_bert)
    for part in ("b", "norms"):
        weights = read_adapter(library / part).weights
        for name in weights.shapes:
            if name in base.shapes:
                change = weights.read(name) - base.read(name)
                values[f"parts.{part}/changes/{name}"] = change
            elif name.startswith("bert/"):
                values[f"parts.{part}/{name}"] = weights.read(name)
    config = read_adapter_config(adapter)
    config["method"] = config["trained_with"] = (
        f"stack({{'b': {parse(PARTS['b'])}, 'norms': {parse(PARTS['norms'])}}},"
        " pfeiffer(size=2))"
    )
    config["parts"] = {"b": "", "norms": ""}
    by_hand = tmp_path / "by_hand"
    by_hand.mkdir()
    adapter_artifact.write(str(by_hand), config, values)
    assert_allclose(answers(tiny_bert, by_hand), exchanged, atol=1e-6)


@pytest.mark.gate
def test_a_killed_fusion_goes_on_with_the_same_bits(classify, flags, fused):
    cut = copytree(fused, flags["output_dir"])
    rmtree(cut / "adapter")
    for path in cut.glob("model.ckpt-*"):
        if not path.name.startswith("model.ckpt-2."):
            path.unlink()
    assert saved_step(cut) == 2
    # The library's place is remembered.
    del flags["library"]
    classify(**flags, tuning_method="fusion(a, b)")
    assert artifact_bytes(cut) == artifact_bytes(fused)


def test_adapters_may_be_named_by_their_folders(classify, flags, library):
    text = f"stack('{library / 'a'}', '{library / 'low'}')"
    del flags["library"]
    classify(**flags, tuning_method=text)
    config = read_adapter_config(flags["output_dir"] / "adapter")
    assert set(config["parts"]) == {"a", "low"}


@pytest.mark.parametrize(
    "values, words",
    [
        (
            {"tuning_method": "stack(c)"},
            "'c' is neither  ... has: a, b, low, no",
        ),
        ({"tuning_method": "stack()"}, "has no parts; expected names"),
        ({"tuning_method": "stack(stack(a))"}, "made of parts itself"),
        ({"tuning_method": "fusion(a)"}, "fusion takes two or more adapters"),
        (
            {"tuning_method": "fusion(a, low)"},
            "low is an adapter of lora, a of",
        ),
        (
            {"tuning_method": "stack({'a': pfeiffer(size=5)})"},
            "was trained with pfeiffer(size=4",
        ),
        (
            {"tuning_method": "stack(a)", "exchange_part": "b=a"},
            "names 'b', but stack is made of these adapters: a",
        ),
        (
            {"tuning_method": "stack(a)", "exchange_part": "a"},
            "has 'a', expected OLD=NEW",
        ),
        (
            {"tuning_method": "stack(a)", "library": "/nowhere"},
            "/nowhere, where there is no folder of adapters",
        ),
        (
            {"tuning_method": "stack(a)", "library": ""},
            "'a' is neither  ... ; pass the folder that holds it as --library",
        ),
        (
            {"tuning_method": "pfeiffer", "exchange_part": "a=b"},
            "made of these adapters: none",
        ),
    ],
)
def test_what_cannot_be_composed_is_refused(classify, flags, values, words):
    refusals.check(
        lambda: classify(**{**flags, **values}), *words.split(" ... ")
    )
    assert not flags["output_dir"].exists()


WAYS = {
    "plain": {},
    # Parts of a batch draw the dropout of the head anew.
    "parts": {"gradient_accumulation_steps": 4},
    "xla": {"use_xla": True},
    "bfloat16": {"compute_dtype": "bfloat16"},
}
FAR = {"parts": 2e-3, "xla": 1e-4, "bfloat16": 2e-2}


@pytest.mark.gate
@pytest.mark.parametrize(
    "text,others",
    [
        ("fusion(a, b)", ("parts", "bfloat16")),
        ("stack(norms, low, pals(size=6, heads=2))", ("xla",)),
    ],
)
def test_parts_of_a_batch_and_other_arithmetic_train_the_same(
    classify, flags, still_bert, tmp_path, text, others
):
    losses = {}
    for name in ("plain", *others):
        folder = tmp_path / name
        classify(
            **{**flags, "output_dir": folder, "init_checkpoint": still_bert},
            tuning_method=text,
            do_eval=True,
            **WAYS[name],
        )
        results = read_json(folder / "eval_results.json")
        losses[name] = results["eval_loss"]
    for name in others:
        expected = pytest.approx(losses["plain"], abs=FAR[name])
        assert losses[name] == expected, name


def test_an_adapter_of_another_bert_is_refused(
    classify, flags, library, tmp_path
):
    shelf = tmp_path / "shelf"
    copytree(library, shelf)
    change(
        shelf / "a" / "adapter_config.json",
        base__fingerprint="0" * 64,
        **{files.SEAL: None},
    )
    flags["library"] = shelf
    refusals.check(
        lambda: classify(**flags, tuning_method="stack(a, pfeiffer)"),
        "trained on another BERT",
    )


def test_a_composition_is_described_without_weights(classify, flags, capsys):
    """Of which there are none."""
    bert = flags.pop("init_checkpoint")
    for name in ("output_dir", "do_train", "do_predict"):
        del flags[name]
    classify(
        **flags,
        bert_config_file=bert / "config.json",
        tuning_method="fusion(a, b)",
        describe=True,
    )
    printed = capsys.readouterr().out
    assert "parts" in printed
    assert "**** Total Trainable Parameters" in printed
