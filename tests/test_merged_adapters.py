"""One adapter of several: heads, tasks, files, and the command."""

# The fixture `merge` is imported.
# ruff: noqa: F811

import numpy as np
import pytest
import refusals
from conftest import load_predictor, read_adapter_config
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file
from test_merge_adapter import merge  # noqa: F401 (a fixture)
from tiny_artifacts import CLASSIFICATION, make_artifact, read_base

from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.checkpoints.merged_adapters import merge_adapters
from adapter_bert.methods.weighted_sums import WeightedSum

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def adapters(tiny_bert, tmp_path):
    """Makes adapters of a method, one for each description of a task."""

    def make(*descriptions, text="houlsby(size=4)"):
        folders = []
        for seed, described in enumerate(descriptions):
            folder = tmp_path / f"a{seed}"
            more = {"trained_with": text}
            make_artifact(
                folder, tiny_bert, text, None, described, seed, **more
            )
            folders.append(str(folder))
        return folders

    return make


@pytest.fixture
def merged(tiny_bert):
    """Merges adapters of the tiny BERT."""
    base, *_ = read_base(tiny_bert)

    def run(folders, weights, head_of=""):
        how = WeightedSum("linear")
        return merge_adapters(base, folders, weights, how, head_of)

    return run


def stored(folder):
    """The values of an adapter's file."""
    return load_file(f"{folder}/adapter.safetensors")


def test_the_command_writes_an_adapter_that_answers(
    adapters, merge, tiny_bert, tmp_path
):
    folders = adapters(CLASSIFICATION, CLASSIFICATION, text="lora(rank=2)")
    target = tmp_path / "new"
    flags = "--by=dare_ties_svd --density=0.5 --weights=0.75,0.5 --rank=3"
    printed = merge(target, *folders, more=flags.split())
    assert printed == f"the merged adapter is {target}\n"
    config = read_adapter_config(target)
    assert config["method"].startswith("lora(rank=3, alpha=3.0")
    assert "trained_with" not in config
    hashes = [read_adapter_config(f)["sha256"] for f in folders]
    assert config["merged"] == {
        "by": "dare_ties_svd",
        "density": 0.5,
        "rank": 3,
        "adapters": [
            {"sha256": hashes[0], "weight": 0.75},
            {"sha256": hashes[1], "weight": 0.5},
        ],
    }
    # In one batch with the adapters that it is of.
    names = {"new": str(target), "a": folders[0]}
    predictor = load_predictor(tiny_bert, names)
    assert set(predictor("new", "a cat")["scores"]) == {"bad", "good"}


def test_heads_have_a_mean_by_the_names_of_labels(adapters, merged):
    others = {**CLASSIFICATION, "labels": ["good", "bad"]}
    folders = adapters(CLASSIFICATION, others)
    description, values = merged(folders, [1.0, 3.0])
    one, other = map(stored, folders)
    assert description["task"] == CLASSIFICATION
    for name in ("output_weights", "output_bias"):
        assert_allclose(
            values[name], 0.25 * one[name] + 0.75 * other[name][::-1], atol=1e-6
        )
    # Other values are added up.
    name = next(n for n in one if n.endswith("weights1"))
    assert_allclose(values[name], one[name] + 3.0 * other[name], atol=1e-6)


def test_tags_are_reordered_too(adapters, merged):
    tags = ["O", "B-PER", "I-PER"]
    folders = adapters(
        {"name": "tagging", "tags": tags},
        {"name": "tagging", "tags": tags[1:] + tags[:1]},
    )
    _, values = merged(folders, [1.0, 1.0])
    one, other = (stored(folder)["output_bias"] for folder in folders)
    assert_allclose(
        values["output_bias"], (one + np.roll(other, 1)) / 2, atol=1e-6
    )


THREE = {"name": "custom", "labels": ["a", "b", "c"], "pairs": False}


@pytest.mark.parametrize(
    "other, weights, message",
    [
        (THREE, [1.0, 1.0], "only heads of one task, with the same labels in"),
        ({**CLASSIFICATION, "labels": ["bad", "ok"]}, [1.0, 1.0], "--head_of"),
        ({**CLASSIFICATION, "pairs": True}, [1.0, 1.0], "only heads of one"),
        (CLASSIFICATION, [1.0, 0.0], "weights that are not positive; pass"),
    ],
)
def test_heads_without_a_mean_are_refused_or_chosen(
    adapters, merged, other, weights, message
):
    folders = adapters(CLASSIFICATION, other)
    refusals.check(lambda: merged(folders, weights), message)
    for folder, task in zip(folders, (CLASSIFICATION, other)):
        description, values = merged(folders, weights, head_of=folder)
        assert description["task"] == task
        kept = stored(folder)
        head = [name for name in kept if not name.startswith("bert/")]
        assert head
        for name in head:
            assert_array_equal(values[name], kept[name])


def test_an_adapter_without_a_head_may_be_subtracted(adapters, merged):
    described = {"name": "vectors", "pooling": "mean", "normalize": True}
    [folder] = adapters(described)
    _, values = merged([folder], [-1.0])
    # Of BERT's own values their changes are subtracted.
    added = {n: x for n, x in stored(folder).items() if "/adapters/" in n}
    assert added
    for name, value in added.items():
        assert_array_equal(values[name], -value)


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--density=0.5", "--density is for an adapter made of several; pass"),
        ("--by=linear --head_of=x", "--head_of is 'x', expected one of"),
        ("--by=ties --average", "--average and --by exclude each other"),
        ("--by=linear --rank=4", "--rank means nothing with --by=linear"),
        ("--by=cat --density=1", "--density means nothing with --by=cat"),
        ("--average --seed=1", "--seed means nothing with --by=average"),
        (
            "--by=linear --majority_sign=total",
            "--majority_sign means nothing with",
        ),
        ("--by=mean", "--by=mean: value should be one of"),
        ("--by=dare_linear --density=1 --seed=-1", "--seed is -1, exp"),
        ("--by=svd --rank=0", "--rank is 0, exp"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    adapters, merge, tmp_path, flags, message
):
    folders = adapters(CLASSIFICATION, CLASSIFICATION)
    target = tmp_path / "new"
    refusals.check(lambda: merge(target, *folders, more=flags.split()), message)
    assert not target.exists()


def test_adapters_that_do_not_fit_together_are_refused(
    adapters, merged, tiny_bert, tmp_path
):
    [folder] = adapters(CLASSIFICATION)
    config, values = read_adapter_config(folder), stored(folder)
    for number, (change, less, message) in enumerate(
        (
            ({"tokenizer": {}}, "", "only adapters with the same tokenizer"),
            ({}, "weights1", "lacks the variable bert/"),
            ({"method": "pfeiffer(size=4)"}, "", "expected one method with"),
        )
    ):
        other = tmp_path / f"other{number}"
        other.mkdir()
        kept = {
            k: v for k, v in values.items() if not less or not k.endswith(less)
        }
        adapter_artifact.write(str(other), {**config, **change}, kept)
        refusals.check(
            lambda o=str(other): merged([folder, o], [1.0, 1.0]), message
        )
