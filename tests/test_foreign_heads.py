"""Heads of every kind compute here what they compute there.

What AdapterHub's `adapters` 1.3 and peft 0.21 wrote and computed was recorded
(tests/golden/README.md).
"""

# The fixture `copied` is imported.
# ruff: noqa: F811

import dataclasses
import json
import re
from functools import partial
from shutil import copytree, rmtree

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    RECORDED,
    module_fixture,
    open_bert,
    read_adapter,
    read_json,
)
from exchanged import (
    assert_computes,
    assert_same_files,
    assert_same_values,
    change,
    config_of,
    copied,  # noqa: F401 (a fixture)
    read_examples,
    reader,
    write,
)
from numpy.testing import assert_array_equal
from safetensors.numpy import load_file

from adapter_bert.checkpoints.weights import Weights
from adapter_bert.exchange import (
    adapterhub_heads,
    foreign_adapters,
    foreign_heads,
)
from adapter_bert.exchange.foreign_heads import HeadOptions
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import kinds
from adapter_bert.tasks.masked_lm import Masking
from adapter_bert.tasks.text_task import POOLED
from adapter_bert.training import composition_parts
from lab import exchange

pytestmark = pytest.mark.older_stack

GOLDEN = RECORDED / "exchange_heads"
read = reader(GOLDEN)
LANGUAGES = RECORDED / "exchange_setups"
LANGUAGE = LANGUAGES / "adapterhub" / "language"
HUB, PEFT = foreign_adapters.PROGRAMS
AGAIN = "_again"
CASES = [str(p.relative_to(GOLDEN)) for p in sorted(GOLDEN.glob("*/*/*"))]
OURS = [c for c in CASES if c.startswith("ours") and not c.endswith(AGAIN)]
THEIRS = [case for case in CASES if case not in OURS]
CONFIG, HEAD_CONFIG = "adapter_config.json", adapterhub_heads.CONFIG_FILE
LABELS = exchange.THREE["labels"]
# Method and head of our adapters that are recorded, the last ones for
# AdapterHub's library alone.
WRITTEN = (
    *(("lora", head) for head in exchange.HEADS if head != "3 layers"),
    ("pfeiffer", "3 layers"),
    ("mad_x", kinds.MASKED_LM),
    ("prefix", kinds.TAGGING),
)
NAMED = {
    re.sub(r"\W", "_", f"{method}_{head}"): (number, method, head)
    for number, (method, head) in enumerate(WRITTEN)
}


@module_fixture
def bert(eagerly):
    return open_bert(GOLDEN / "bert")


@module_fixture
def speaker(eagerly):
    """The BERT of the recorded languages."""
    return open_bert(LANGUAGES / "bert")


@pytest.mark.parametrize("case", THEIRS)
def test_golden_heads_of_others_compute_the_same(bert, case):
    # peft's files do not say how many choices there are.
    is_choice = case == "theirs/peft/choice"
    labels = ("first", "second") if is_choice else ()
    artifact = exchange.imported(bert, str(GOLDEN / case), labels)
    assert_computes(bert, artifact, GOLDEN / case)


def test_heads_of_every_kind_are_recorded():
    places = {HUB: [*NAMED], PEFT: [*NAMED][:-3]}
    assert {*OURS} == {f"ours/{p}/{n}" for p, of in places.items() for n in of}


@pytest.mark.parametrize("case", OURS)
def test_golden_heads_that_others_loaded_are_written_and_read_the_same(
    bert, tmp_path, case
):
    """What they computed of them is what is computed here."""
    _, program, name = case.split("/")
    number, method, head = NAMED[name]
    artifact = exchange.random_artifact(
        bert, exchange.method_text(method), exchange.HEADS[head], number
    )
    folder = tmp_path / "written"
    ours = exchange.prepared(bert, artifact)
    foreign_adapters.write(program, str(folder), ours, "")
    assert_same_files(folder, GOLDEN / case)
    assert_computes(bert, artifact, GOLDEN / case)
    back = exchange.imported(bert, str(folder))
    # Files of other programs have no place for pairs, nor for a task's name.
    assert {**artifact.config["task"], "pairs": None} == {
        **back.config["task"],
        "pairs": None,
    }
    for name in back.weights.shapes:
        assert_array_equal(artifact.weights.read(name), back.weights.read(name))


def test_golden_kinds_and_labels_are_those_of_the_files():
    tags = list(exchange.TAGS)
    for case, expected in {
        "theirs/adapterhub/multi_label": {
            "name": "custom",
            "pairs": None,
            "labels": LABELS,
            "multi_label": True,
            "head": {
                "layers": 3,
                "activation": "gelu_erf",
                "pooler": False,
                "bias": True,
            },
        },
        "theirs/adapterhub/static_tagging": {"name": "tagging", "tags": tags},
        "theirs/peft/tagging": {"name": "tagging", "tags": tags},
        "theirs/adapterhub/static_choice": {
            "name": "custom",
            "pairs": None,
            "choices": 2,
        },
        "theirs/peft/masked_lm": {"name": "masked_lm"},
    }.items():
        assert read(case).task == expected


def test_the_number_of_choices_is_told_where_the_files_lack_it():
    task = read("theirs/peft/choice", None, ["a", "b", "c"]).task
    assert task == {"name": "custom", "pairs": None, "choices": 3}


def test_the_kind_of_peft_s_sequences_can_be_told(copied):
    folder = copied("ours/peft/lora_multi_label")
    expected = read(folder).task
    assert (expected["multi_label"], expected["label_threshold"]) == (True, 0.3)
    (folder / "config.json").unlink()
    assert "multi_label" not in read(folder).task
    task = read(folder, None, LABELS, multi_label=True).task
    del expected["label_threshold"]
    assert task == expected


def make_head(kind, outputs=3, **options):
    layer = np.zeros((outputs, 4), np.float32), np.zeros(outputs, np.float32)
    return foreign_heads.make_head(
        kind, [layer], POOLED, {}, HeadOptions(**options), "a file"
    )


@refusals.table(
    {
        "choices that nobody counts": (
            lambda: read("theirs/peft/choice"),
            "0 choices are named of 0",
            "--label",
        ),
        "choices that contradict": (
            lambda: read("theirs/adapterhub/choice", None, ["a", "b", "c"]),
            "3 choices are named of 2",
        ),
        "questions": (
            lambda: make_head(kinds.QUESTIONS),
            "3 out",
            "expected 2",
        ),
        "a number": (
            lambda: make_head(kinds.REGRESSION),
            "3 out",
            "expected 1",
        ),
        "choices": (lambda: make_head(kinds.CHOICE), "3 out", "expected 1"),
        "labels of questions": (
            lambda: make_head(kinds.QUESTIONS, 2, labels=("a",)),
            "leave out --label",
        ),
        "sets of one label": (
            lambda: make_head(kinds.CLASSIFICATION, multi_label=True),
            "leave out --label and --multi_label",
        ),
    }
)
def test_a_kind_has_its_number_of_outputs(call, parts):
    refusals.check(call, *parts)


CHOICE = "theirs/adapterhub/choice", HEAD_CONFIG
LORA = "ours/peft/lora_classification", "config.json"
WORDS = "ours/adapterhub/lora_masked_lm", HEAD_CONFIG


@pytest.mark.parametrize(
    "case, file, values, message",
    [
        (*CHOICE, {"config__label2id": [1, 2]}, "label2id of type dict"),
        (
            *LORA,
            {"architectures": ["BertForTokenClassification"]},
            "of tagging; delete the wrong one",
        ),
        (*LORA, {"id2label": {"0": "a"}}, "expected a number from 0 to 2"),
        (
            *WORDS,
            {"config__activation_function": "relu"},
            "is relu, expected the BERT's, gelu",
        ),
        (*WORDS, {"config__of_tomorrow": 1}, "does not know"),
    ],
)
def test_a_head_that_contradicts_is_refused(
    copied, case, file, values, message
):
    folder = copied(case)
    if file == "config.json":
        values = {"problem_type": None, **values}
    change(folder / file, **values)
    refusals.check(lambda: read(folder), message)


def test_word_embeddings_of_a_head_are_those_of_the_bert(bert):
    case = "theirs/adapterhub/masked_lm"
    artifact = exchange.imported(bert, str(GOLDEN / case))
    assert artifact.config["task"] == {"name": "masked_lm"}
    foreign = read(case)
    assert foreign.words.shape == (40, 16)
    changed = dataclasses.replace(foreign, words=foreign.words + 1e-3)
    refusals.check(
        lambda: foreign_adapters.complete(changed, bert.weights, bert.config),
        "with other word embeddings than",
        "expected the BERT of the adapter",
    )


def test_a_head_of_masked_words_may_be_the_bert_s(bert):
    foreign = read("theirs/peft/masked_lm_of_bert")
    assert not any(name.startswith("cls/") for name in foreign.values)
    whole = foreign_adapters.complete(foreign, bert.weights, bert.config)
    for name in foreign_heads.masked_lm_shapes(bert.config):
        assert_array_equal(whole.values[name], bert.weights.read(name))
    lacking = Weights("a bert", {}, None)
    refusals.check(
        lambda: foreign_adapters.complete(foreign, lacking, bert.config),
        "neither the adapter nor a bert has a head of masked words",
    )


def test_the_table_has_every_field_of_a_head():
    for path in GOLDEN.glob(f"*/{HUB}/*/{HEAD_CONFIG}"):
        described = read_json(path)
        assert set(described) <= set(adapterhub_heads.FILE_FIELDS)
        config = described["config"] or {}
        is_words = config.get("head_type") == "masked_lm"
        fields = adapterhub_heads.HEAD_FIELDS
        if is_words:
            fields = adapterhub_heads.MASKED_LM_FIELDS
        assert set(config) <= set(fields)


def test_one_of_several_adapters_in_a_folder_is_chosen(tmp_path):
    (tmp_path / "README.md").write_text("---\nlibrary_name: adapters\n---\n")
    (tmp_path / ".cache").mkdir()
    first = "theirs/adapterhub/tagging"
    copytree(GOLDEN / first, tmp_path / "one")
    folder, choose = str(tmp_path), foreign_adapters.choose
    assert choose(folder) == str(tmp_path / "one")
    copytree(GOLDEN / "theirs/peft/tagging", tmp_path / "two")
    refusals.check(
        lambda: choose(folder), "holds 2 adapters, my task, two", "--adapter"
    )
    for name, place in {"my task": "one", "one": "one", "two": "two"}.items():
        assert choose(folder, name) == str(tmp_path / place)
    refusals.check(lambda: choose(folder, "three"), "0 are meant")
    # A description that is none.
    (tmp_path / "one" / CONFIG).write_text("[]")
    assert choose(folder) == str(tmp_path / "two")
    # One that lies outside is meant unless another is named.
    copytree(GOLDEN / "theirs/peft/choice", folder, dirs_exist_ok=True)
    assert choose(folder) == folder
    assert choose(folder, "two") == str(tmp_path / "two")
    # As peft saves several: one outside, others in folders.
    rmtree(tmp_path / "one")
    rmtree(tmp_path / "two")
    copytree(GOLDEN / "theirs/peft/choice", tmp_path / "two")
    read_all = partial(
        foreign_adapters.read_all,
        folder,
        config_of(GOLDEN / "bert"),
        labels=["a", "b"],
    )
    assert list(read_all()) == [tmp_path.name]
    assert list(read_all(several=True)) == [tmp_path.name, "two"]
    # Whatever is wrong with a folder without any is told by who reads it.
    assert choose(str(tmp_path / ".cache")) == str(tmp_path / ".cache")


@pytest.mark.parametrize("file", foreign_adapters.COMPOSITIONS)
@pytest.mark.parametrize("place", [".", "a,b"])
def test_compositions_are_refused_and_their_adapters_read(
    tmp_path, speaker, place, file
):
    copytree(LANGUAGES / "fusion_folders", tmp_path, dirs_exist_ok=True)
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / file).write_text("{}")
    refusals.check(
        lambda: foreign_adapters.read_all(str(tmp_path), speaker.config),
        f"holds a composition ({file})",
        "--adapter",
    )
    folder = foreign_adapters.choose(str(tmp_path), "a")
    assert foreign_adapters.read_all(folder, speaker.config)


def test_every_method_of_the_registry_has_arguments_in_the_matrix():
    for name in exchange.METHODS:
        parse(exchange.method_text(name))


@pytest.mark.parametrize(
    "method, head, parts",
    [
        (
            "loreft(2, orthogonal=False)",
            {},
            ["library fails at", "multiple choice"],
        ),
        ("prompt(2)", {}, ["library fails at", "multiple choice"]),
        ("prefix(2, false, gating=true)", {}, ["library fails at"]),
        (
            "lora(rank=2)",
            {"head": exchange.LAYERS},
            ["heads of multiple choice have a bias"],
        ),
    ],
)
def test_choices_that_the_library_fails_at_are_not_written(
    bert, tmp_path, method, head, parts
):
    task = {**exchange.HEADS[kinds.CHOICE], **head}
    artifact = exchange.random_artifact(bert, method, task, 0)
    refusals.check(lambda: write(HUB, tmp_path / "out", artifact), *parts)


def test_golden_languages_without_a_head_have_bert_s(speaker, tmp_path):
    """As the library wrote it, and as it loaded what is written here."""
    ours = exchange.random_artifact(
        speaker,
        "mad_x(13, 3)",
        {"name": "masked_lm", **Masking().describe()},
        15,
    )
    write(HUB, tmp_path / "out", ours, "en", with_head=False)
    recorded = LANGUAGES / "ours" / "language"
    assert_same_files(tmp_path / "out", recorded)
    for folder in (LANGUAGE, recorded):
        artifact = exchange.imported(speaker, str(folder))
        examples = read_examples(folder)
        with np.load(folder / "logits.npz") as file:
            logits = file["logits_0"] if "logits_0" in file else file["logits"]
        logs = tf.nn.log_softmax(logits).numpy()
        gap = exchange.outputs(speaker, artifact, examples) - logs
        mask = examples["input_mask"][..., np.newaxis]
        assert abs(gap * mask).max() < 1e-5 * abs(logs).max()


BERT = f"--init_checkpoint={LANGUAGES / 'bert'}"


def test_a_language_comes_in_and_goes_out_without_a_head(
    call, speaker, tmp_path
):
    shelf, out = tmp_path / "shelf", tmp_path / "out"
    call("import", shelf, LANGUAGE, "--name=en", BERT)
    assert json.loads(call("list", shelf, "--json"))[0]["kind"] == "masked_lm"
    # BERT's own head answers.
    artifact = read_adapter(shelf / "en")
    for name in artifact.weights.shapes:
        if name.startswith("cls/"):
            assert_array_equal(
                artifact.weights.read(name), speaker.weights.read(name)
            )
    stack = composition_parts.find(
        parse("stack(en, pfeiffer(7))"), {}, str(shelf), {}
    )
    assert stack.method == parse("stack({'en': mad_x(13, 3)}, pfeiffer(7))")
    words = "export", shelf, "en", out, "--without_head"
    refusals.check(
        lambda: call(*words, "--to=peft"), "--without_head is for --to=adapter"
    )
    call(*words, "--to=adapterhub")
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "adapter.safetensors",
        "adapter_config.json",
    ]
    assert_same_values(
        *(
            load_file(folder / "adapter.safetensors")
            for folder in (out, LANGUAGE)
        )
    )


def test_adapters_of_one_folder_come_in_by_names(call, tmp_path):
    shelf, folder = tmp_path / "shelf", LANGUAGES / "fusion_folders"
    words = "import", shelf, folder, BERT

    def refuse(*parts, more=()):
        refusals.check(lambda: call(*words, *more), *parts)

    refuse("holds 2 adapters, a, b", "--adapter", more=["--name=both"])
    refuse("1 labels are named", more=["--name=c,d", "--label=x"])
    refuse("adapter 'c' already", more=["--name=c,C"])
    assert call(*words, "--name=c,d.1") == (
        "added c, of adapterhub\nadded d.1, of adapterhub\n"
    )
    refuse("has an adapter 'c' already", more=["--name=e,c"])
    call("verify", shelf, BERT)
    # Names of adapters are not those of folders.
    for name in ("one", "two"):
        copytree(folder / "a", tmp_path / "twice" / name)
    refusals.check(
        lambda: call("import", shelf, tmp_path / "twice", "--name=x,y", BERT),
        "two adapters that are called 'a'",
    )
