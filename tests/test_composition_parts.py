"""Where the adapters of a composition are found, through the entry points."""

# Fixtures are arguments of the same names.
# ruff: noqa: F811

from shutil import copytree, rmtree

import pytest
import refusals
import tensorflow as tf
from conftest import (
    SENTENCES,
    entry_point,
    load_predictor,
    module_fixture,
    read_adapter_config,
    read_json,
    read_json_lines,
    write_json,
)
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file
from test_composition_runs import (  # noqa: F401 (three are fixtures)
    composed,
    flags,
    library,
    predict,
    predicted,
)
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert import files
from adapter_bert.checkpoints import part_values, run_record
from adapter_bert.commands import export
from adapter_bert.commands import predict as predict_program
from adapter_bert.methods.sparse import DiffPruning
from adapter_bert.tasks.from_description import restore_task

pytestmark = pytest.mark.newer_stack
TEXT = "stack(a, pfeiffer(size=2))"


@module_fixture
def carried(composed):
    """A run whose adapter carries its part."""
    return composed(tuning_method=TEXT)


@module_fixture
def lacking(composed):
    """A run whose adapter names its part alone."""
    return composed(tuning_method=TEXT, carry_parts=False)


@pytest.mark.gate
def test_a_checkpoint_is_evaluated_with_the_adapters_of_then(
    classify, flags, carried, tmp_path
):
    [step] = {path.stem for path in carried.glob("model.ckpt-*.index")}
    del flags["library"], flags["init_checkpoint"]
    place = carried / step
    again = predict(classify, flags, tmp_path / "again", init_checkpoint=place)
    assert_array_equal(again, predicted(carried))


@pytest.mark.gate
def test_another_adapter_of_the_same_name_is_another_run(
    classify, flags, carried, library, tiny_bert, tmp_path
):
    shelf = copytree(library, tmp_path / "shelf")
    rmtree(shelf / "a")
    task = restore_task(CLASSIFICATION, {}, "")
    make_artifact(shelf / "a", tiny_bert, "pfeiffer(size=4)", task, seed=9)
    copytree(carried, flags["output_dir"])
    flags["library"] = shelf
    refusals.check(
        lambda: classify(**flags, tuning_method=TEXT),
        "parts.a was ",
        "--output_dir",
    )


@pytest.mark.gate
def test_what_knows_no_pooler_is_a_part_of_what_has_one(
    classify, flags, library, tiny_bert, tmp_path
):
    """A tagger has none; so its own changes have not, nor have its parts'."""
    shelf = tmp_path / "shelf"
    description = {"name": "tagging", "tags": ["O", "B-X", "I-X"]}
    task = restore_task(description, {}, "")
    make_artifact(shelf / "tags", tiny_bert, "bitfit", task, description)
    sparse = read_adapter_config(library / "sparse")["sha256"]
    make_artifact(
        shelf / "both",
        tiny_bert,
        "stack({'lang': full}, bitfit)",
        task,
        description,
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
def test_an_adapter_of_the_same_name_is_exchanged_too(
    classify, flags, carried, tiny_bert, tmp_path
):
    values = {**flags, "adapter": carried / "adapter"}
    task = restore_task(CLASSIFICATION, {}, "")
    shelf = tmp_path / "shelf"
    make_artifact(shelf / "a", tiny_bert, "pfeiffer(size=4)", task, seed=77)
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
    classify, flags, lacking, library, tiny_bert, tmp_path
):
    """Where it was trained, or beside it; what is exchanged is not needed."""
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
    predictor = load_predictor(tiny_bert, [adapter])
    assert predictor("custom", "the cat")["label"] in CLASSIFICATION["labels"]


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
    task = restore_task(CLASSIFICATION, {}, "")
    make_artifact(other, tiny_bert, "pfeiffer(size=4)", task, seed=77)
    text = f"stack('{other}', pfeiffer(size=2))"
    refusals.check(
        lambda: predict(
            classify, values, tmp_path / "else", tuning_method=text
        ),
        "is not the adapter a of the training",
        f"=a={other}",
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("stack('..', pfeiffer)", "'..' is neither a trained adapter"),
        ("stack('/')", "'/' is neither a trained adapter"),
        ("fusion(a, sst-2)", "quotation marks, as in stack"),
        ("stack('{0}/a', '{1}/a')", "two adapters are called a; expected"),
    ],
)
def test_odd_names_are_refused(
    classify, flags, library, tmp_path, text, message
):
    copytree(library / "b", tmp_path / "a")
    text = text.format(library, tmp_path)
    refusals.check(lambda: classify(**flags, tuning_method=text), message)


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
            restore_task(CLASSIFICATION, {}, ""),
            seed=9,
            parts={name: config["sha256"]},
            carries_parts=False,
        )
        return folder

    return make


@pytest.fixture
def answer(tiny_bert, tmp_path):
    """What `adapter-bert predict` answers with some flags."""
    rows = tmp_path / "rows.txt"
    rows.write_text("".join(f"{text}\n" for text, _ in SENTENCES))
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
        task = restore_task(CLASSIFICATION, {}, "")
        make_artifact(
            library / "c", tiny_bert, "pfeiffer(size=4)", task, seed=8
        )
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
    task = restore_task(CLASSIFICATION, {}, "")
    sha256 = read_adapter_config(adapter)["sha256"]
    outer = tmp_path / "outer" / "adapter"
    make_artifact(
        outer,
        tiny_bert,
        "stack({'in': stack({'a': pfeiffer(size=4)}, pfeiffer(size=2))}, ia3)",
        task,
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
