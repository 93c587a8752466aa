"""Compositions through the entry point, from training to answers."""

from shutil import copytree, rmtree

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    SENTENCES,
    entry_point,
    load_predictor,
    make_flags,
    module_fixture,
    read_adapter,
    read_adapter_config,
    read_json,
    read_json_lines,
    read_lines,
    scores,
    write_json,
    write_lines,
)
from exchanged import change
from numpy.testing import assert_allclose, assert_array_equal
from run_folders import artifact_bytes, saved_step
from safetensors.numpy import load_file
from tiny_artifacts import LIBRARY as PARTS
from tiny_artifacts import (
    make_artifact,
    make_library,
    read_base,
)

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact, part_values, run_record
from adapter_bert.commands import export, run_classifier
from adapter_bert.commands import predict as predict_program
from adapter_bert.methods.registry import parse
from adapter_bert.methods.sparse import DiffPruning

pytestmark = pytest.mark.newer_stack

# As in the data's test.tsv.
TEXTS = [text for text, _ in SENTENCES[:7]]
TEXT = "stack(a, pfeiffer(size=2))"


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


def predicted(folder):
    return np.loadtxt(folder / "test_results.tsv")


def predict(classify, flags, folder, **more):
    """The probabilities by a run that only predicts."""
    classify(**{**flags, "do_train": False, "output_dir": folder, **more})
    return predicted(folder)


def answers(bert, adapter):
    """Probabilities of what the library's predictor says."""
    return scores(load_predictor(bert, {"it": adapter})("it", TEXTS))


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
def test_adapters_stay_and_the_rest_is_as_if_trained_alone(
    classify, flags, library
):
    """Adapters may be named by their folders."""
    del flags["library"]
    text = f"stack('{library / 'a'}', '{library / 'low'}', pfeiffer(size=2))"
    classify(**flags, tuning_method=text)
    values = load_file(flags["output_dir"] / "adapter" / "adapter.safetensors")
    for name in ("a", "low"):
        part = load_file(library / name / "adapter.safetensors")
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
def test_one_that_does_not_hold_its_adapters_finds_them(
    classify, flags, tiny_bert, library, tmp_path
):
    """By their hashes, under whatever names."""
    text = "stack(norms, sparse, bitfit)"
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
    values = load_file(adapter / "adapter.safetensors")
    # A sparse adapter stays one.
    places = [k for k in values if k.endswith("/indices")]
    assert len(places) > 30
    assert all(values[name].size == 5 for name in places)
    # The same, put together by hand.
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


@pytest.mark.parametrize(
    "values, words",
    [
        (
            {"tuning_method": "stack(x)"},
            "'x' is neither  ... has: a, b, ",
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
            {"tuning_method": "stack('..', pfeiffer)"},
            "'..' is neither a trained adapter",
        ),
        (
            {"tuning_method": "stack('/')"},
            "'/' is neither a trained adapter",
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


# Where adapters are found


@module_fixture
def carried(composed):
    """A run whose adapter carries its part."""
    return composed(tuning_method=TEXT)


@module_fixture
def lacking(composed):
    """A run whose adapter names its part alone."""
    return composed(tuning_method=TEXT, carry_parts=False)


@pytest.mark.gate
def test_what_knows_no_pooler_is_a_part_of_what_has_one(
    classify, flags, library, tiny_bert, tmp_path
):
    """A tagger has none; so its own changes have not, nor have its parts'."""
    shelf = tmp_path / "shelf"
    description = {"name": "tagging", "tags": ["O", "B-X", "I-X"]}
    make_artifact(shelf / "tags", tiny_bert, "bitfit", description=description)
    sparse = read_adapter_config(library / "sparse")["sha256"]
    make_artifact(
        shelf / "both",
        tiny_bert,
        "stack({'lang': full}, bitfit)",
        description=description,
        parts={"lang": sparse},
    )
    classify(
        **{**flags, "library": shelf},
        tuning_method="stack(tags, both, pfeiffer(size=2))",
    )
    values = load_file(flags["output_dir"] / "adapter" / "adapter.safetensors")
    for scope in ("parts.tags/", "parts.both/", "parts.both/parts.lang/"):
        held = [n for n in values if n.startswith(f"{scope}changes/")]
        poolers = [n for n in held if "pooler" in n]
        assert poolers and len(poolers) < len(held)
        # The places and the values of no entry: nothing of it has changed.
        assert not any(values[name].size for name in poolers)


@pytest.mark.gate
def test_another_adapter_of_the_same_name_is_exchanged_or_another_run(
    classify, flags, carried, tiny_bert, tmp_path
):
    values = {**flags, "adapter": carried / "adapter"}
    shelf = tmp_path / "shelf"
    make_artifact(shelf / "a", tiny_bert, "pfeiffer(size=4)", seed=77)
    copytree(shelf / "a", shelf / "other")
    scores = {
        name: predict(
            classify,
            {**values, "library": shelf},
            tmp_path / name,
            exchange_part=pair,
        )
        for name, pair in (
            ("same", "a=a"),
            ("folder", f"a={shelf}/a"),
            ("other", "a=other"),
        )
    }
    assert abs(scores["same"] - predicted(carried)).max() > 1e-5
    for name in ("folder", "other"):
        assert_array_equal(scores[name], scores["same"])
    copytree(carried, flags["output_dir"])
    flags["library"] = shelf
    refusals.check(
        lambda: classify(**flags, tuning_method=TEXT),
        "parts.a was ",
        "--output_dir",
    )


@pytest.mark.gate
def test_a_part_that_is_made_of_parts_finds_all_of_them(
    classify, flags, library, tmp_path
):
    """None of them carries what it is made of."""
    shelf = tmp_path / "shelf"
    copytree(library, shelf)
    flags.update(library=shelf, carry_parts=False)
    for text, name in (
        (TEXT, "inner"),
        ("stack(inner, lora(rank=1))", "outer"),
    ):
        classify(**{**flags, "output_dir": tmp_path / name}, tuning_method=text)
        copytree(tmp_path / name / "adapter", shelf / name)
    again = predict(
        classify, flags, tmp_path / "again", adapter=shelf / "outer"
    )
    assert_array_equal(again, predicted(tmp_path / "outer"))


@pytest.mark.gate
def test_what_was_trained_further_is_found_again(
    classify, flags, carried, tmp_path
):
    """Its adapters are those that the first adapter has carried."""
    first, further = carried, tmp_path / "further"
    del flags["library"]
    classify(
        **{**flags, "output_dir": further, "seed": 5}, adapter=first / "adapter"
    )
    expected = predicted(further)
    assert abs(expected - predicted(first)).max() > 0
    [step] = {path.stem for path in further.glob("model.ckpt-*.index")}
    for number, source in enumerate(
        ({"adapter": further / "adapter"}, {"init_checkpoint": further / step})
    ):
        scores = predict(classify, flags, tmp_path / str(number), **source)
        assert_array_equal(scores, expected)
    # Without an adapter that holds it, the library is asked for.
    rmtree(further / "adapter")
    flags["init_checkpoint"] = further / step
    refusals.check(
        lambda: predict(classify, flags, tmp_path / "lost"),
        "needs the adapter a ",
        "--library",
    )
    scores = predict(classify, flags, tmp_path / "shown", library=first)
    assert_array_equal(scores, expected)


@pytest.mark.gate
def test_a_run_finds_what_its_adapter_does_not_carry(
    classify, flags, lacking, library, tmp_path
):
    """Part values come from a library, the adapter or the run's folder."""
    adapter, expected = lacking / "adapter", predicted(lacking)
    moved, shelf = tmp_path / "moved" / "it", tmp_path / "shelf"
    copytree(adapter, moved)
    for name in ("b", "low"):
        copytree(library / name, shelf / name)
    values = {**flags, "library": shelf, "adapter": moved}
    scores = predict(classify, values, tmp_path / "it", exchange_part="a=b")
    assert abs(scores - expected).max() > 1e-5
    del flags["library"]
    refusals.check(
        lambda: predict(classify, flags, tmp_path / "lost", adapter=moved),
        "needs the adapter a (SHA-256 ",
        f"found none such in {moved.parent}",
        "--library",
    )
    copytree(library / "a", moved.parent / "a")
    for number, place in enumerate((adapter, f"{moved}/")):
        folder = tmp_path / str(number)
        scores = predict(classify, flags, folder, adapter=place)
        assert_array_equal(scores, expected)


@pytest.mark.gate
def test_a_name_may_repeat_the_training(
    classify, flags, carried, library, tiny_bert, tmp_path, monkeypatch
):
    """Also the path of the folder, or the shell's."""
    values = {**flags, "adapter": carried / "adapter"}
    monkeypatch.chdir(library / "a")
    for number, name in enumerate((library / "a", ".")):
        text = f"stack('{name}', pfeiffer(size=2))"
        folder = tmp_path / str(number)
        scores = predict(classify, values, folder, tuning_method=text)
        assert_array_equal(scores, predicted(carried))
    other = tmp_path / "other" / "a"
    make_artifact(other, tiny_bert, "pfeiffer(size=4)", seed=77)
    text = f"stack('{other}', pfeiffer(size=2))"
    refusals.check(
        lambda: predict(
            classify, values, tmp_path / "else", tuning_method=text
        ),
        "is not the adapter a of the training",
        f"=a={other}",
    )


def test_two_adapters_of_one_name_are_refused(
    classify, flags, library, tmp_path
):
    copytree(library / "b", tmp_path / "a")
    text = f"stack('{library}/a', '{tmp_path}/a')"
    refusals.check(
        lambda: classify(**flags, tuning_method=text),
        "two adapters are called a; expected",
    )


@pytest.mark.gate
def test_both_phases_train_what_is_beside_diff_pruning(
    classify, flags, one_layer, monkeypatch
):
    seen = []
    flags["bert_config_file"] = one_layer
    original = DiffPruning.second_start

    def second_start(self, names, others, read, first):
        seen.extend(others)
        return original(self, names, others, read, first)

    monkeypatch.setattr(DiffPruning, "second_start", second_start)
    text = "stack(diff_pruning(sparsity=0.02), lora(rank=2))"
    classify(**flags, tuning_method=text)
    assert {"output_weights", "output_bias"} < set(seen)
    assert sum("lora" in name for name in seen) == len(seen) - 2 == 4


def test_an_adapter_without_its_hash_is_none_that_is_looked_for(
    library, tmp_path
):
    shelf = tmp_path / "shelf"
    for name in ("a", "b"):
        copytree(library / name, shelf / name)
    path = shelf / "b" / "adapter_config.json"
    values = read_json(path)
    for name in ("sha256", files.SEAL):
        del values[name]
    write_json(path, values)
    sha256 = read_adapter_config(shelf / "a")["sha256"]
    assert part_values.by_hash([str(shelf)]) == {sha256: (str(shelf / "a"), "")}


@pytest.fixture
def bare(library, tiny_bert, tmp_path):
    """Writes adapters that do not hold their part, alike but for its name."""

    def make(folder, text="stack({'a': pfeiffer(size=4)}, pfeiffer(size=2))"):
        name = text.split("'")[1]
        config = read_adapter_config(library / name)
        make_artifact(
            folder,
            tiny_bert,
            text,
            seed=9,
            parts={name: config["sha256"]},
            carries_parts=False,
        )
        return folder

    return make


@pytest.fixture
def answer(tiny_bert, tmp_path):
    """Returns the answers of `adapter-bert predict`."""
    rows = tmp_path / "rows.txt"
    write_lines(rows, [text for text, _ in SENTENCES])
    output = tmp_path / "answers.jsonl"

    def answer(**values):
        bert = {"init_checkpoint": tiny_bert, "input": rows, "output": output}
        with entry_point(predict_program) as run:
            run(**bert, **values)
        lines = read_json_lines(output)
        return [[*line["scores"].values()] for line in lines]

    return answer


@pytest.fixture
def other(library, tiny_bert):
    """A part of the form of `a` in its library."""
    if not (library / "c").exists():
        make_artifact(library / "c", tiny_bert, "pfeiffer(size=4)", seed=8)
    return "c"


def test_programs_that_answer_find_parts_in_all_places(
    library, bare, answer, other, tiny_bert, tmp_path
):
    adapter = bare(tmp_path / "run" / "adapter")
    refusals.check(
        lambda: answer(adapter=adapter), "needs the adapter a ", "--library"
    )
    answers = answer(adapter=adapter, library=library)
    # As in a library, which needs no flag.
    shelf = tmp_path / "shelf"
    for name, folder in (("a", library / "a"), ("it", adapter)):
        copytree(folder, shelf / name)
    assert answer(adapter=shelf / "it") == answers
    # Runs in place of their adapters.
    copytree(library / "a", tmp_path / "runs" / "first" / "adapter")
    assert answer(adapter=adapter, library=tmp_path / "runs") == answers
    # Where it lay in the training.
    places = {"parts": {"a": str(library / "a")}}
    files.write_json(str(tmp_path / "run" / run_record.PLACES_FILE), places)
    assert answer(adapter=adapter) == answers
    # Also for what is a part itself.
    sha256 = read_adapter_config(adapter)["sha256"]
    outer = tmp_path / "outer" / "adapter"
    make_artifact(
        outer,
        tiny_bert,
        "stack({'in': stack({'a': pfeiffer(size=4)}, pfeiffer(size=2))}, ia3)",
        parts={"in": sha256},
        carries_parts=False,
    )
    assert answer(adapter=outer, library=tmp_path / "run") != answers
    refusals.check(
        lambda: answer(adapter=outer), "needs the adapter in ", "; found none"
    )


def test_parts_are_exchanged_where_texts_are_answered(
    library, bare, answer, other, tmp_path
):
    first = bare(tmp_path / "first")
    text = "stack({'c': pfeiffer(size=4)}, pfeiffer(size=2))"
    second = bare(tmp_path / "second", text)
    values = {"adapter": first, "library": library}
    answers = answer(**values, exchange_part="a=c")
    assert answers == answer(adapter=second, library=library)
    assert answers != answer(**values)
    # The one that is exchanged is not looked for; folders are names too.
    assert answers == answer(adapter=first, exchange_part=f"a={library}/c")
    # Of several adapters those that have it.
    del values["adapter"]
    copytree(library / "a", tmp_path / "shelf" / "plain")
    copytree(library / "c", tmp_path / "shelf" / "c")
    copytree(first, tmp_path / "shelf" / "it")
    both = answer(
        library=tmp_path / "shelf", task="it,plain", exchange_part="a=c"
    )
    assert_allclose(both[::2], answers, atol=1e-6)
    for pair, *parts in (
        ("x=c", "names 'x', but the adapters are made of: a"),
        ("a=x", "'x' is neither a trained adapter nor ", " has: a, b"),
        ("a=b,a=c", "expected OLD=NEW, each OLD once"),
    ):
        more = {"library": library, "exchange_part": pair}
        refusals.check(lambda m=more: answer(adapter=first, **m), *parts)


@pytest.mark.gate
def test_what_is_exchanged_is_exported(
    library, bare, answer, other, tiny_bert, tmp_path
):
    """Of the library nothing else is read; some of it could not be."""
    adapter = bare(tmp_path / "it")
    values = {"adapter": adapter, "library": library, "exchange_part": "a=c"}
    with entry_point(export) as run:
        run(**values, init_checkpoint=tiny_bert, output_dir=tmp_path / "model")
    model = tf.saved_model.load(str(tmp_path / "model" / "1"))
    texts = [text for text, _ in SENTENCES]
    outputs = model.signatures["serving_default"](
        text=tf.constant(texts),
        text_b=tf.constant([""] * len(texts)),
        task=tf.constant(["custom"] * len(texts)),
    )
    assert_allclose(outputs["scores"], answer(**values), atol=1e-6)
