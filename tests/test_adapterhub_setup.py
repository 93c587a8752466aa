"""Compositions go to AdapterHub's setups and come from them.

What `adapters` 1.3 wrote, and what it made of this project's folders after its
`load_adapter_setup`, was recorded from it (tests/golden/README.md).
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import pytest
import safetensors.numpy
from conftest import RECORDED
from exchanged import (
    SETUPS,
    imported_setup,
    our_setups,
    read_examples,
    setup_difference,
    write_setup,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_foreign_adapters import change

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact, foreign_adapters
from adapter_bert.checkpoints.foreign_base import exported
from adapter_bert.commands import library
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import parse
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.training import composition_parts
from lab.exchange import NUMBER, THREE, random_artifact

pytestmark = pytest.mark.older_stack

GOLDEN = RECORDED / "exchange_setups"
THEIRS = [
    f"{place}/{path.name}"
    for place in ("adapterhub", "fusion_folders")
    for path in sorted((GOLDEN / place).iterdir())
]
SETUP, FUSION = "adapter_setup.json", "adapter_fusion_config.json"


@pytest.fixture(scope="module")
def bert(eagerly):
    return FrozenBert.open(str(GOLDEN / "bert"))


@pytest.fixture(scope="module")
def examples():
    return read_examples(GOLDEN)


@pytest.fixture(scope="module")
def artifacts(bert):
    return dict(our_setups(bert))


def compare(bert, several, folder, examples):
    assert setup_difference(bert, several, folder, examples) < 1e-5


@pytest.mark.parametrize("case", THEIRS)
def test_golden_setups_of_the_library_compute_the_same(bert, examples, case):
    folder = GOLDEN / case
    assert foreign_adapters.detect(str(folder)) == "adapterhub"
    found = imported_setup(bert, str(folder))
    assert len(found) == (2 if "parallel" in folder.name[:8] else 1)
    compare(bert, found, folder, examples)


@pytest.mark.parametrize("case", SETUPS)
def test_golden_setups_that_the_library_loaded_are_written_and_read_the_same(
    bert, examples, artifacts, case, tmp_path
):
    """What it computed of them is what is computed here."""
    several, recorded = artifacts[case], GOLDEN / "ours" / case
    folder = tmp_path / "written"
    write_setup(bert, several, str(folder))
    names = {
        path.relative_to(recorded)
        for path in recorded.rglob("*.[js]*")
        if path.is_file()
    }
    written = {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
    assert written == names
    for name in names:
        found, expected = folder / name, recorded / name
        if name.suffix == ".json":
            assert json.loads(found.read_text()) == json.loads(
                expected.read_text()
            )
        else:
            assert_equal_tensors(found, expected)
    compare(bert, several, recorded, examples)
    back = imported_setup(bert, str(folder))
    assert list(back) == list(several)
    compare(bert, back, recorded, examples)


def assert_equal_tensors(found, expected):
    found = safetensors.numpy.load_file(found)
    expected = safetensors.numpy.load_file(expected)
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_method_comes_back_as_it_went(bert, artifacts, tmp_path):
    """The last adapter of a stack, which has the head's name, is trained."""
    for case in ("stack_language", "average", "fusion_first", "average_scaled"):
        [artifact] = artifacts[case].values()
        folder = str(tmp_path / case)
        write_setup(bert, artifacts[case], folder)
        [back] = imported_setup(bert, folder).values()
        method = parse(artifact.config["method"])
        if case == "fusion_first":
            # Layers that are left out have no adapters there.
            method = parse(
                "fusion({'a': houlsby(13, layers='1', layer_norms=False), "
                "'b': houlsby(5, layers='1', layer_norms=False)}, "
                "value=False, penalty=0.0)"
            )
        found = parse(back.config["method"])
        assert [part.name for part in found.parts] == [
            part.name for part in method.parts
        ]
        assert [type(part.method) for part in found.parts] == [
            type(part.method) for part in method.parts
        ]
        assert set(back.weights.shapes) <= set(artifact.weights.shapes)
        for name in back.weights.shapes:
            np.testing.assert_array_equal(
                back.weights.read(name), artifact.weights.read(name)
            )


REFUSED = {
    "average_languages": "acts on what has no mean",
    "average_methods": "expected all of one method",
    "batch_split": "BatchSplit gives each adapter some of a batch's rows",
    "fusion_of_stacks": "Stack is not read here",
    "fusion_parallel": "which would compute it otherwise",
    "glow": "inv_adapter is 'glow'",
    "multi_task": "MultiTask gives each adapter the rows of its task",
    "no_head": "without a head",
    "parallel_languages": "all but single adapters in the layers",
    "parallel_prefix": "all but single adapters in the layers",
    "second_language": "comes after another adapter",
    "split": "Split gives each adapter a part of a text's tokens",
    "stack_lora": "act at the same places",
    "stack_parallel": "Parallel is not read here",
    "stack_parallel_adapters": "act at the same places",
}


def test_golden_setups_that_no_method_computes_are_all_refused():
    assert {path.name for path in (GOLDEN / "refused").iterdir()} == set(
        REFUSED
    )


@pytest.mark.parametrize("case", REFUSED)
def test_golden_setups_that_no_method_computes_are_refused(bert, case):
    with pytest.raises(UserError, match=REFUSED[case]) as caught:
        read(bert, GOLDEN / "refused" / case)
    assert "\n" not in str(caught.value)


def read(bert, folder, *told):
    return foreign_adapters.read_all(str(folder), bert.config, *told)


@pytest.mark.parametrize(
    "method,message",
    [
        ("stack({'a': pfeiffer(4)}, mad_x(4, 4))", "after another adapter"),
        ("stack({'a': lora(2)}, lora(3))", "does not add up what LoRA"),
        ("stack({'a': parallel(4)}, pfeiffer(3))", "at the same places"),
        ("stack(full, pals)", "full in a composition is not exch"),
        ("stack({'a': houlsby(4)}, lora(2))", "trained BERT's LayerNorms"),
        ("stack({'a': bapna(4)})", "bapna in a composition"),
        (
            "average({'a': pfeiffer(4), 'b': lora(2)})",
            "for adapters of one method in the same layers alone",
        ),
        (
            "average({'a': pfeiffer(4), 'b': pfeiffer(3, layers='1')})",
            "for adapters of one method in the same layers alone",
        ),
        (
            "average({'a': stack({'b': pfeiffer(4)}), 'c': lora(2)})",
            "average of .* is not exchanged with AdapterHub's library",
        ),
        ("fusion({'a': parallel(4), 'b': parallel(3)})", "it otherwise"),
        (
            "fusion({'a': pfeiffer(4), 'b': pfeiffer(3, gating=true)})",
            "it otherwise",
        ),
        (
            "fusion({'a': pfeiffer(4), 'b': adapterdrop(1, 'pfeiffer', 4)})",
            "the last of them in all layers of the others",
        ),
        (
            "fusion({'a': pfeiffer(4), 'b': pfeiffer(3, layers='1')})",
            "the last of them in all layers of the others",
        ),
        (
            "fusion({'a': pfeiffer(4, layers='0'), 'b': pfeiffer(3), "
            "'c': pfeiffer(2)}, first=1)",
            "has no adapter from layer 1 on; leave it out",
        ),
        (
            "stack({'m': average({'a': pfeiffer(4), 'b': pfeiffer(3)})}, "
            "prefix(length=2, reparameterize=False))",
            "in the same layers as all others",
        ),
        ("stack({'x': pfeiffer(4)}, pfeiffer(3))", "would be called x; give"),
    ],
)
def test_what_the_library_would_compute_otherwise_is_refused(
    bert, method, message, tmp_path
):
    artifact = random_artifact(bert, method, THREE, 0)
    with pytest.raises(UserError, match=message) as caught:
        write_setup(bert, {"x": artifact}, str(tmp_path / "out"))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "methods,message",
    [
        (["pfeiffer(4)", "lora(2)"], "for adapters of one method"),
        (["mad_x(4, 4)", "pfeiffer(4)"], "all but single adapters"),
        (
            ["stack({'c': pfeiffer(4)}, lora)", "lora"],
            "all but single adapters",
        ),
    ],
)
def test_answers_that_the_library_would_compute_otherwise_are_refused(
    bert, methods, message, tmp_path
):
    several = {
        name: random_artifact(bert, method, THREE, 0)
        for name, method in zip("ab", methods)
    }
    with pytest.raises(UserError, match=message):
        write_setup(bert, several, str(tmp_path / "out"))
    first, second = (exported(one, name) for name, one in several.items())
    with pytest.raises(UserError, match="peft's files hold one adapter"):
        foreign_adapters.write("peft", str(tmp_path), first, "", [second])


@pytest.fixture
def copied(tmp_path):
    """A copy of a recorded folder, whose files may be changed."""

    def copy(case):
        return pathlib.Path(shutil.copytree(GOLDEN / case, tmp_path / "copy"))

    return copy


def single(name):
    return {"type": "single", "children": [name]}


def block(*names, kind="Stack"):
    return {"type": kind, "children": list(map(single, names))}


DEEP = {"type": "Stack", "children": [block("a", "b", kind="Average")]}
DEEP["children"][0]["children"][0] = block("en")
# Case, file, where in it -> values that it may not have, and why.
CONTRADICTIONS = {
    ("stack_language", SETUP, ""): [
        ({"adapter_setup": block("en", "x")}, "names 'x', which is no folder"),
        ({"adapter_setup": block("../en")}, "names '../en', which is no fold"),
        ({"adapter_setup": block()}, "is no block; expected a type and its"),
        (
            {"adapter_setup": block("en", 7)},
            "'single', 'children': .7.. is no blo",
        ),
        ({"adapter_setup": {"type": 7}}, "no adapter_setup.type of type str"),
        ({"adapter_setup": block("en", kind="Sum")}, "Sum is not read here"),
        ({"adapter_setup": DEEP}, "Stack is not read here"),
        (
            {"adapter_setup": {**block("en"), "children": ["en"]}},
            "en is no block",
        ),
        (
            {"adapter_setup": {**block("en", "task"), "reverse": True}},
            "'reverse' is 'True', a field that this version does not know",
        ),
        (
            {"adapter_setup": {**block("en", "task", kind="Parallel"), "x": 1}},
            "'x' is '1', a field that this version does not know",
        ),
        (
            {
                "adapter_setup": {
                    **block("en"),
                    "children": [{**single("en"), "kwargs": {"x": 1}}],
                }
            },
            "single has kwargs {'x': 1}, but the library knows none",
        ),
        (
            {"adapter_setup": block("en", "task", "en")},
            "Stack has en, task, en; expected each of them once",
        ),
        ({"head_setup": 7}, "head_setup is 7, expected the name of a head"),
        ({"head_setup": ["task", "en"]}, "for each of 1 that answer"),
        ({"head_setup": {"type": "BatchSplit"}}, "expected the name of a he"),
        ({"head_setup": "en"}, "without a head"),
        ({"of_tomorrow": 1}, "'of_tomorrow' is '1', a field"),
    ],
    ("stack_language", "en/adapter_config.json", ""): [
        ({"name": "de"}, "lacks the tensor"),
    ],
    ("average", SETUP, "adapter_setup__kwargs__"): [
        ({"weights": [1, 2]}, "expected weights, 3 positive numbers"),
        ({"weights": [1, 2, -3]}, "expected weights, 3 positive numbers"),
        ({"weights": [1, 2, True]}, "expected weights, 3 positive numbers"),
        ({"weights": 7}, "expected weights, 3 positive numbers"),
        ({"normalize_weights": "no"}, "and normalize_weights"),
        ({"of_tomorrow": 7}, "kwargs of Average is .*of_tomorrow"),
    ],
    ("fusion", f"a,b,c/{FUSION}", ""): [
        ({"adapter_names": ["b", "a", "c"]}, r"fuses \['b', 'a', 'c'\], but"),
        ({"hidden_size": 8}, "hidden size 8, expected a bert with 16"),
    ],
    ("fusion", f"a,b,c/{FUSION}", "config__"): [
        ({"key": False}, "key is False: no method of this"),
        ({"query": None}, "query is None: no method of this"),
        ({"temperature": True}, "computes a temperature"),
        ({"residual_before": True}, "computes a residual sum before the at"),
        ({"query_before_ln": True}, "computes queries of what comes before"),
        ({"value": False}, "of no part .*value.weight"),
        ({"of_tomorrow": 7}, "'of_tomorrow' is '7', a field"),
    ],
}


@pytest.mark.parametrize(
    "place, values, message",
    [
        (place, *refused)
        for place, several in CONTRADICTIONS.items()
        for refused in several
    ],
)
def test_a_setup_that_cannot_be_followed_is_one_line(
    bert, copied, place, values, message
):
    case, file, prefix = place
    folder = copied(f"adapterhub/{case}")
    change(folder / file, **{f"{prefix}{k}": v for k, v in values.items()})
    with pytest.raises(UserError, match=message) as caught:
        read(bert, folder)
    assert "\n" not in str(caught.value)


def test_the_fusion_of_the_folder_is_read_whatever_lies_next_to_it(
    bert, copied
):
    folder = copied("fusion_folders")
    shutil.copytree(folder / "a,b", folder / "mine")
    path = folder / "a,b" / "model_adapter_fusion.safetensors"
    tensors = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file({k: v + 1 for k, v in tensors.items()}, path)
    [found] = read(bert, folder / "mine").values()
    [expected] = read(bert, GOLDEN / "fusion_folders" / "a,b").values()
    for name, value in expected.values.items():
        np.testing.assert_array_equal(found.values[name], value)
    change(folder / "mine" / FUSION, adapter_names=["a", "a"])
    with pytest.raises(UserError, match="Fuse has a, a; expected each of th"):
        read(bert, folder / "mine")


def test_two_adapters_of_one_name_are_not_read_together(bert, copied):
    folder = copied("adapterhub/language")
    shutil.copytree(folder, folder / "one")
    for name in ("adapter_config.json", "adapter.safetensors"):
        (folder / name).unlink()
    shutil.copytree(folder / "one", folder / "two")
    with pytest.raises(UserError, match="two adapters that are called 'en'; n"):
        read(bert, folder)


def test_an_adapters_folder_has_its_name(bert, copied):
    folder = copied("adapterhub/stack_language")
    (folder / "en").rename(folder / "de")
    setup = block("de", "task")
    change(folder / SETUP, adapter_setup=setup)
    with pytest.raises(UserError, match="'en', but its folder is called 'de'"):
        read(bert, folder)


def test_weights_that_the_library_does_not_normalize_are_followed(bert, copied):
    """It passes on what the file says of that."""
    folder = copied("adapterhub/average")
    plain = {"weights": [0.5, 1.0, 1.5], "normalize_weights": False}
    change(folder / SETUP, adapter_setup__kwargs=plain)
    [found] = read(bert, folder).values()
    assert (found.method.scale, found.method.weights) == (
        1.0,
        "0.166666666667,0.333333333333,0.5",
    )


def test_a_pooler_is_a_layer_of_a_head_only_with_its_activation(bert):
    shape = {"layers": 2, "activation": "relu", "pooler": True, "bias": True}
    task = {**THREE, "head": shape}
    one = random_artifact(bert, "pfeiffer(4)", task, 0)
    with pytest.raises(UserError, match="its activation is relu, not tanh as"):
        write_setup(bert, {"a": one, "b": one}, "nowhere")


singles = st.sampled_from(["en", "task", "x", "", "..", 7, None]).map(single)
singles |= st.sampled_from([7, None, "en", {}, []])
kinds = ["Stack", "Average", "Fuse", "Parallel", "Split", "single", "x", 7]


def of_blocks(inner):
    """A block of others, or what is none."""
    return st.fixed_dictionaries(
        {
            "type": st.sampled_from(kinds),
            "children": st.lists(inner, max_size=3) | st.none(),
        },
        optional={"kwargs": st.sampled_from([None, 7, {"weights": "x"}])},
    )


inner = singles | of_blocks(singles)
blocks = of_blocks(inner | of_blocks(inner))


@given(setup=blocks, head=st.sampled_from(["task", "x", None, True, 7, ["a"]]))
@settings(max_examples=60, deadline=None)
def test_any_setup_is_read_or_refused_in_one_line(
    bert, tmp_path_factory, setup, head
):
    folder = pathlib.Path(tmp_path_factory.mktemp("setup"))
    for name in ("en", "task"):
        (folder / name).symlink_to(
            GOLDEN / "adapterhub" / "stack_language" / name
        )
    content = {"adapter_setup": setup, "head_setup": head}
    (folder / SETUP).write_text(json.dumps(content))
    try:
        assert read(bert, folder)
    except UserError as error:
        assert "\n" not in str(error)


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs a command within this process, and gives what it printed."""

    def call(*arguments):
        command = ["library", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        library.main()
        return capsys.readouterr().out

    return call


BERT = f"--init_checkpoint={GOLDEN / 'bert'}"


def test_several_that_answer_come_in_and_go_out_together(call, tmp_path):
    shelf, out = tmp_path / "shelf", tmp_path / "out"
    folder = GOLDEN / "adapterhub" / "parallel"
    with pytest.raises(UserError, match="holds 2 adapters, a, b, but --name"):
        call("import", shelf, folder, "--name=both", BERT)
    with pytest.raises(UserError, match="holds 2 heads; leave out --label"):
        call("import", shelf, folder, "--name=c,d", BERT, "--label=x")
    with pytest.raises(UserError, match="--name is c,C; expected another"):
        call("import", shelf, folder, "--name=c,C", BERT)
    said = call("import", shelf, folder, "--name=c,d.1", BERT)
    assert said == "added c, of adapterhub\nadded d.1, of adapterhub\n"
    with pytest.raises(UserError, match="has an adapter 'c' already"):
        call("import", shelf, folder, "--name=e,c", BERT)
    call("verify", shelf, BERT)
    words = "export", shelf, "c,d.1", out, "--to=adapterhub"
    with pytest.raises(UserError, match="mixes up in Parallel; pass --init"):
        call(*words)
    call(*words, "--base_model=b/b", BERT)
    written = json.loads((out / SETUP).read_text())
    assert written["adapter_setup"] == block("c", "d_1", kind="Parallel")
    assert written["head_setup"] == ["c", "d_1"]
    card = (out / "README.md").read_text()
    assert "model.load_adapter_setup('out'" in card and "| d_1 |" in card
    # Adapters of two BERTs do not answer together.
    other = shelf / "c" / "adapter_config.json"
    content = json.loads(other.read_text())
    whole = other.read_text()
    del content[files.SEAL]
    content["base"]["fingerprint"] = "0" * 64
    other.write_text(json.dumps(content))
    with pytest.raises(UserError, match="c,d.1 are of 2 BERTs; expected ada"):
        call("export", shelf, "c,d.1", tmp_path / "x", "--to=adapterhub")
    other.write_text(whole)
    # So do folders of adapters without a setup.
    (out / SETUP).unlink()
    said = call("import", tmp_path / "other", out, "--name=a,b", BERT)
    assert said.count("added") == 2


def test_a_composition_comes_in_and_goes_out(call, tmp_path):
    shelf, out = tmp_path / "shelf", tmp_path / "out"
    for case in ("stack_fusion", "language", "parallel"):
        name = {"parallel": "--name=one,two"}.get(case, f"--name={case}")
        call("import", shelf, GOLDEN / "adapterhub" / case, name, BERT)
    call("verify", shelf, BERT)
    shown = json.loads(call("show", shelf, "stack_fusion"))["adapter_config"]
    assert set(shown["parts"]) == {"en", "a-b"} and shown["carries_parts"]
    call("export", shelf, "stack_fusion", out, "--to=adapterhub")
    assert (out / "a,b" / FUSION).exists()
    bare = "export", shelf, "stack_fusion", tmp_path / "bare", "--without_head"
    call(*bare, "--to=adapterhub")
    written = json.loads((tmp_path / "bare" / SETUP).read_text())
    assert written["head_setup"] is None
    assert not list((tmp_path / "bare").rglob("head_config.json"))
    shutil.rmtree(tmp_path / "bare")
    assert "load_adapter_setup('out'" in (out / "README.md").read_text()
    with pytest.raises(UserError, match="stack is not written for peft"):
        call("export", shelf, "stack_fusion", tmp_path / "x", "--to=peft")
    # A composition that names its parts.
    found = composition_parts.find(
        parse("fusion(one, two)"), {}, str(shelf), {}
    )
    bert = FrozenBert.open(str(GOLDEN / "bert"))
    artifact = random_artifact(bert, str(found.method), NUMBER, 0)
    described = json.loads((shelf / "one" / "adapter_config.json").read_text())
    kept = {
        name: artifact.weights.read(name)
        for name in artifact.weights.shapes
        if not name.startswith("parts.")
    }
    config = {
        **{key: described[key] for key in ("tokenizer", "versions")},
        **artifact.config,
        "parts": dict(found.hashes),
        "carries_parts": False,
    }
    adapter_artifact.write(str(tmp_path), config, kept)
    call("add", shelf, tmp_path, "--name=bare")
    call("export", shelf, "bare", tmp_path / "bare", "--to=adapterhub")
    assert_equal_tensors(
        tmp_path / "bare" / "one" / "adapter.safetensors",
        renamed(tmp_path, shelf, "one"),
    )


def renamed(tmp_path, shelf, name):
    """The part as the library has it when it is exported alone."""
    place = tmp_path / f"alone_{name}"
    artifact = adapter_artifact.read(str(shelf / name))
    foreign_adapters.write(
        "adapterhub", str(place), exported(artifact, name), ""
    )
    return place / "adapter.safetensors"


def test_a_language_comes_in_and_goes_out_without_a_head(
    call, tmp_path, caplog
):
    shelf, out = tmp_path / "shelf", tmp_path / "out"
    folder = GOLDEN / "adapterhub" / "language"
    call("import", shelf, folder, "--name=en", BERT)
    assert json.loads(call("list", shelf, "--json"))[0]["kind"] == "masked_lm"
    # BERT's own head answers.
    artifact = adapter_artifact.read(str(shelf / "en"))
    bert = FrozenBert.open(str(GOLDEN / "bert"))
    for name in artifact.weights.shapes:
        if name.startswith("cls/"):
            np.testing.assert_array_equal(
                artifact.weights.read(name), bert.weights.read(name)
            )
    found = composition_parts.find(
        parse("stack(en, pfeiffer(7))"), {}, str(shelf), {}
    )
    assert found.method == parse("stack({'en': mad_x(13, 3)}, pfeiffer(7))")
    words = "export", shelf, "en", out, "--without_head"
    with pytest.raises(UserError, match="--without_head is for --to=adapter"):
        call(*words, "--to=peft")
    call(*words, "--to=adapterhub")
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "adapter.safetensors",
        "adapter_config.json",
    ]
    assert_equal_tensors(
        out / "adapter.safetensors", folder / "adapter.safetensors"
    )
