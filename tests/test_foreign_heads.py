"""Heads of every kind, and old files, compute here what they compute there.

What AdapterHub's `adapters` 1.3 and peft 0.21 wrote and computed was recorded
(tests/golden/README.md).
"""

import json
import pathlib
import shutil

import numpy as np
import pytest
import safetensors.numpy
from conftest import RECORDED
from exchanged import read_examples

from adapter_bert.bert import encoder
from adapter_bert.checkpoints import (
    adapterhub_heads,
    foreign_adapters,
    foreign_fields,
    foreign_heads,
)
from adapter_bert.checkpoints.foreign_base import exported
from adapter_bert.checkpoints.foreign_heads import Told
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import parse
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.tasks import kinds
from adapter_bert.tasks.text_task import POOLED
from lab import exchange

pytestmark = pytest.mark.older_stack

GOLDEN = RECORDED / "exchange_heads"
HUB, PEFT = foreign_adapters.PROGRAMS
THEIRS = sorted(
    str(path.relative_to(GOLDEN))
    for place in ("theirs/*/*", "ours/*/*_again")
    for path in GOLDEN.glob(place)
)
CONFIG, HEAD_CONFIG = "adapter_config.json", adapterhub_heads.CONFIG_FILE
LABELS = exchange.THREE["labels"]


@pytest.fixture(scope="module")
def bert(eagerly):
    return FrozenBert.open(str(GOLDEN / "bert"))


@pytest.fixture(scope="module")
def examples():
    return read_examples(GOLDEN)


@pytest.fixture(scope="module")
def cases(bert, tmp_path_factory):
    """Ours, written again: their folder, program, kind of head, artifact."""
    folder, made, refused = tmp_path_factory.mktemp("written"), {}, set()
    for number, (method, head) in enumerate(WRITTEN):
        for program in foreign_adapters.PROGRAMS:
            artifact = exchange.random_artifact(
                bert,
                exchange.method_text(method),
                exchange.HEADS[head],
                number,
            )
            name = f"{method}_{head}".replace(" ", "_").replace("-", "_")
            place = f"ours/{program}/{name}"
            ours = exchange.prepared(bert, artifact)
            try:
                foreign_adapters.write(program, str(folder / place), ours, "")
            except UserError:
                refused.add((program, method, head))
                continue
            made[place] = folder / place, program, head, artifact
    assert refused == {
        (PEFT, "pfeiffer", "3 layers"),
        (PEFT, "mad_x", kinds.MASKED_LM),
        (PEFT, "prefix", kinds.TAGGING),
    }
    return made


# (Method, head) of our adapters that are recorded.
WRITTEN = (
    *(("lora", head) for head in exchange.HEADS if head != "3 layers"),
    ("pfeiffer", "3 layers"),
    ("mad_x", kinds.MASKED_LM),
    ("prefix", kinds.TAGGING),
)
OURS = sorted(
    str(path.relative_to(GOLDEN))
    for path in GOLDEN.glob("ours/*/*")
    if not path.name.endswith("_again")
)


@pytest.mark.parametrize("case", THEIRS)
def test_golden_heads_of_others_compute_the_same(bert, examples, case):
    folder = str(GOLDEN / case)
    # peft's files do not say how many choices there are.
    is_choice = case == "theirs/peft/choice"
    labels = ("first", "second") if is_choice else ()
    artifact = exchange.imported(bert, folder, labels)
    assert exchange.difference(bert, artifact, folder, examples) < 1e-5


@pytest.mark.parametrize("case", OURS)
def test_golden_heads_that_others_loaded_are_written_and_read_the_same(
    bert, examples, cases, case
):
    """What they computed of them is what is computed here."""
    recorded = GOLDEN / case
    written, *_, artifact = cases[case]
    for path in recorded.glob("*.json"):
        found = json.loads((written / path.name).read_text())
        assert found == json.loads(path.read_text())
    for path in recorded.glob("*.safetensors"):
        found = safetensors.numpy.load_file(written / path.name)
        expected = safetensors.numpy.load_file(path)
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
    place = str(recorded)
    assert exchange.difference(bert, artifact, place, examples) < 1e-5
    back = exchange.imported(bert, str(written))
    before, after = artifact.config["task"], back.config["task"]
    # Files of other programs have no place for these.
    lost = {"pairs", "name" if before["name"] == "sts-b" else "pairs"}
    assert {k: v for k, v in after.items() if k not in lost} == {
        k: v for k, v in before.items() if k not in lost
    }
    for name in back.weights.shapes:
        np.testing.assert_array_equal(
            artifact.weights.read(name), back.weights.read(name)
        )


def test_the_recordings_have_all_kinds_both_ways(cases):
    assert OURS == sorted(cases)
    for program in foreign_adapters.PROGRAMS:
        known = {head for _, its, head, _ in cases.values() if its == program}
        wanted = set(exchange.HEADS) - {"3 layers"}
        assert wanted <= known
        for kind in ("tagging", "choice", "masked_lm"):
            assert any(
                case.startswith(f"theirs/{program}/{kind}") for case in THEIRS
            )


def read(case, *told, **more):
    content = json.loads((GOLDEN / "bert" / "config.json").read_text())
    names = encoder.BertConfig.__dataclass_fields__
    config = encoder.BertConfig(
        **{
            **{k: v for k, v in content.items() if k in names},
            # What Hugging Face means by its `gelu`.
            "hidden_act": "gelu_erf",
        }
    )
    return foreign_adapters.read(str(GOLDEN / case), config, *told, **more)


@pytest.fixture
def copied(tmp_path):
    """A copy of a recorded adapter, whose files may be changed."""

    def copy(case):
        return pathlib.Path(shutil.copytree(GOLDEN / case, tmp_path / "copy"))

    return copy


def change(path, **values):
    """Changes values of a JSON file; None deletes one."""
    content = json.loads(path.read_text())
    for name, value in values.items():
        *parents, last = name.split("__")
        part = content
        for parent in parents:
            part = part[parent]
        part[last] = value
        if value is None:
            del part[last]
    path.write_text(json.dumps(content))


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
    with pytest.raises(UserError, match="0 choices are named of 0, .*--label"):
        read("theirs/peft/choice")
    task = read("theirs/peft/choice", None, ["a", "b", "c"]).task
    assert task == {"name": "custom", "pairs": None, "choices": 3}
    with pytest.raises(UserError, match="3 choices are named of 2"):
        read("theirs/adapterhub/choice", None, ["a", "b", "c"])


@pytest.mark.parametrize("label2id", [5, [{}, {}], [1, 2]])
def test_choices_are_numbered_by_their_names(copied, label2id):
    folder = copied("theirs/adapterhub/choice")
    change(folder / HEAD_CONFIG, config__label2id=label2id)
    with pytest.raises(UserError, match="label2id is .*, expected a number f"):
        read(folder)


def test_the_kind_of_peft_s_sequences_can_be_told(copied):
    folder = copied("ours/peft/lora_multi_label")
    expected = read(folder).task
    assert (expected["multi_label"], expected["label_threshold"]) == (True, 0.3)
    (folder / "config.json").unlink()
    assert "multi_label" not in read(folder).task
    found = read(folder, None, LABELS, multi_label=True).task
    del expected["label_threshold"]
    assert found == expected
    with pytest.raises(UserError, match="one of tagging; leave out --multi_l"):
        read("theirs/peft/tagging", multi_label=True)


def test_a_threshold_is_a_share(copied):
    folder = copied("ours/adapterhub/lora_multi_label")
    change(folder / HEAD_CONFIG, label_threshold=1.5)
    with pytest.raises(UserError, match="label_threshold is 1.5, .*below 1"):
        read(folder)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"architectures": ["BertForTokenClassification"]}, "of tagging; del"),
        ({"id2label": {"0": "a"}}, "expected a number from 0 to 2"),
        ({"id2label": 7}, "no id2label of type dict"),
    ],
)
def test_a_model_s_config_that_contradicts_is_refused(copied, values, message):
    folder = copied("ours/peft/lora_classification")
    change(folder / "config.json", problem_type=None, **values)
    with pytest.raises(UserError, match=message):
        read(folder)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"layers": 3}, "layers is 3, expected 2: only BERT's own"),
        ({"layer_norm": False}, "layer_norm is False, expected True"),
        ({"vocab_size": 41}, "vocab_size is 41, expected 40"),
        ({"activation_function": "relu"}, "is relu, expected the BERT's, gelu"),
        ({"of_tomorrow": 1}, "does not know"),
    ],
)
def test_another_head_of_masked_words_is_refused(copied, values, message):
    folder = copied("ours/adapterhub/lora_masked_lm")
    change(
        folder / HEAD_CONFIG, **{f"config__{k}": v for k, v in values.items()}
    )
    with pytest.raises(UserError, match=message):
        read(folder)


def test_word_embeddings_of_a_head_are_those_of_the_bert(copied, bert):
    case = "theirs/adapterhub/masked_lm"
    found = exchange.imported(bert, str(GOLDEN / case))
    assert found.config["task"] == {"name": "masked_lm"}
    foreign = read(case)
    assert foreign.words.shape == (40, 16)
    other = foreign.words + np.float32(1e-3)
    changed = foreign_adapters.Foreign(
        foreign.method, foreign.task, foreign.values, {}, other
    )
    with pytest.raises(
        UserError, match="with other word embeddings than .*exp"
    ):
        foreign_adapters.complete(changed, bert.weights, bert.config)


def test_a_head_of_masked_words_may_be_the_bert_s(bert):
    foreign = read("theirs/peft/masked_lm_of_bert")
    assert not any(name.startswith("cls/") for name in foreign.values)
    whole = foreign_adapters.complete(foreign, bert.weights, bert.config)
    names = foreign_heads.masked_lm_shapes(bert.config)
    for name in names:
        np.testing.assert_array_equal(
            whole.values[name], bert.weights.read(name)
        )
    lacking = exchange.Weights("a bert", {}, None)
    with pytest.raises(UserError, match="neither the adapter nor a bert has a"):
        foreign_adapters.complete(foreign, lacking, bert.config)


LAYER = [(np.zeros((3, 4), np.float32), np.zeros(3, np.float32))]


@pytest.mark.parametrize(
    "kind, message",
    [
        (kinds.QUESTIONS, "a head of questions has 3 outputs, expected 2"),
        (kinds.REGRESSION, "a head of regression has 3 outputs, expected 1"),
        (kinds.CHOICE, "a head of multiple choice has 3 outputs, expected 1"),
    ],
)
def test_a_kind_has_its_number_of_outputs(kind, message):
    with pytest.raises(UserError, match=message):
        foreign_heads.make_head(kind, LAYER, POOLED, {}, Told(), "a file")


def test_the_table_has_every_field_of_a_head():
    for path in GOLDEN.glob(f"*/{HUB}/*/{HEAD_CONFIG}"):
        described = json.loads(path.read_text())
        assert set(described) <= set(foreign_fields.HUB_FILE)
        own = described["config"] or {}
        is_words = own.get("head_type") == "masked_lm"
        known = foreign_fields.HUB_HEAD
        if is_words:
            known = foreign_fields.HUB_MASKED_LM
        assert set(own) <= set(known)


def test_golden_files_of_2020_are_read():
    found = read("theirs/adapterhub/first_version")
    assert found.method.name == "mad_x"
    # The older name of the approximation.
    assert found.method.nonlinearity == "gelu"
    assert found.task["labels"] == LABELS


def test_an_invertible_adapter_that_a_task_adapter_lacks_is_left_out(
    copied, monkeypatch
):
    """As the library does it: the files of 2020 name one in each."""
    folder = copied("ours/adapterhub/pfeiffer_3_layers")
    change(
        folder / CONFIG,
        config__inv_adapter="nice",
        config__inv_adapter_reduction_factor=2,
    )
    with pytest.raises(UserError, match="lacks .*invertible_adapters"):
        read(folder)
    change(folder / CONFIG, type="text_task")
    assert read(folder).method == read(GOLDEN / folder).method
    assert read(folder).method.name == "pfeiffer"


def test_one_of_several_adapters_in_a_folder_is_chosen(tmp_path):
    (tmp_path / "README.md").write_text("---\nlibrary_name: adapters\n---\n")
    (tmp_path / ".cache").mkdir()
    first = "theirs/adapterhub/tagging"
    shutil.copytree(GOLDEN / first, tmp_path / "one")
    folder, choose = str(tmp_path), foreign_adapters.choose
    assert choose(folder) == str(tmp_path / "one")
    shutil.copytree(GOLDEN / "theirs/peft/tagging", tmp_path / "two")
    with pytest.raises(
        UserError, match="holds 2 adapters, my task, two; 2 are meant; name"
    ):
        choose(folder)
    for name, place in {"my task": "one", "one": "one", "two": "two"}.items():
        assert choose(folder, name) == str(tmp_path / place)
    with pytest.raises(UserError, match="0 are meant"):
        choose(folder, "three")
    # A description that is none, next to a setup.
    (tmp_path / "two" / CONFIG).write_text("[]")
    (tmp_path / "two" / "adapter_setup.json").write_text("{}")
    assert choose(folder, "two") == str(tmp_path / "two")
    shutil.rmtree(tmp_path / "two")
    shutil.copytree(GOLDEN / "theirs/peft/tagging", tmp_path / "two")
    # One that lies outside is meant unless another is named.
    shutil.copytree(GOLDEN / "theirs/peft/choice", folder, dirs_exist_ok=True)
    assert choose(folder) == folder
    assert choose(folder, "two") == str(tmp_path / "two")
    # Whatever is wrong with a folder without any is told by who reads it.
    assert choose(str(tmp_path / ".cache")) == str(tmp_path / ".cache")


def test_every_method_of_the_registry_has_arguments_in_the_matrix():
    for name in exchange.METHODS:
        parse(exchange.method_text(name))


@pytest.mark.parametrize(
    "text", ["loreft(2)", "prompt(2)", "prefix(2, false, gating=true)"]
)
def test_choices_that_the_library_fails_at_are_not_written(
    bert, tmp_path, text
):
    task = exchange.HEADS[kinds.CHOICE]
    artifact = exchange.random_artifact(bert, text, task, 0)
    with pytest.raises(UserError, match="library fails at .* of multiple choi"):
        foreign_adapters.write(
            HUB, str(tmp_path / "out"), exported(artifact, "x"), ""
        )


def test_a_head_without_a_bias_is_not_written_where_heads_have_one(
    bert, tmp_path
):
    task = {**exchange.HEADS[kinds.CHOICE], "head": exchange.LAYERS}
    artifact = exchange.random_artifact(bert, "lora(rank=2)", task, 0)
    with pytest.raises(UserError, match="heads of multiple choice have a bias"):
        foreign_adapters.write(
            HUB, str(tmp_path / "out"), exported(artifact, "x"), ""
        )
