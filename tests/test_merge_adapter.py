"""Merging adapters into a plain BERT, and several into one."""

import shutil

import numpy as np
import pytest
import refusals
from conftest import (
    load_predictor,
    open_checkpoint,
    read_adapter,
    read_adapter_config,
    read_json,
    read_lines,
    write_lines,
)
from exchanged import change
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file
from tiny_artifacts import CLASSIFICATION, LENGTH, read_base

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact, google, written_form
from adapter_bert.checkpoints.hugging_face import kind_of_head
from adapter_bert.commands import convert as convert_command
from adapter_bert.commands import merge as merge_command
from adapter_bert.tasks.kinds import TASKS, kind_of

# Has `make`.
pytest_plugins = ["library_folders"]
pytestmark = pytest.mark.newer_stack


@pytest.fixture
def merge(tiny_bert, run_main, capsys):
    """Merges adapters within this process; what is printed."""

    def run(target, *adapters, more=(), bert=tiny_bert):
        run_main(
            merge_command,
            f"--init_checkpoint={bert}",
            *(f"--adapter={folder}" for folder in adapters),
            f"--output_dir={target}",
            *more,
        )
        return capsys.readouterr().out

    return run


@pytest.fixture
def add(tiny_bert):
    """Arguments of `write_model` of adapters that are added up."""
    base, *_ = read_base(tiny_bert)

    def sum_of(*folders):
        artifacts = merge_command.read_all(base, list(map(str, folders)))
        return merge_command.add(base, artifacts, [1.0] * len(folders))

    return sum_of


LORA = "lora(rank=2)"


def test_a_merged_head_keeps_the_order_of_its_labels(add, make):
    """As the `DataProcessor` has them, by which BERT's program reads it."""
    described = {**CLASSIFICATION, "labels": ["good", "bad"]}
    folder = make("good first", LORA, description=described)
    values = add(folder)["values"]
    kept = read_adapter(folder).weights
    for name in ("output_weights", "output_bias"):
        assert_array_equal(values[name], kept.read(name))
    # Of another program, whose head is another one.
    described = {**CLASSIFICATION, "head": {"layers": 2, "pooler": False}}
    folder = make("two layers", LORA, description=described)
    refusals.check(lambda: add(folder), "a head of another form, {'layers': 2")
    # Of two adapters no head is kept.
    add(folder, folder)


SEQUENCES = "BertForSequenceClassification"
KINDS = [
    (
        {"name": "custom", "labels": ["good", "bad"], "pairs": False},
        (SEQUENCES, "single_label_classification"),
        ["good", "bad"],
    ),
    (
        {"name": "mnli", "labels": list(TASKS["mnli"].labels), "pairs": True},
        (SEQUENCES, "single_label_classification"),
        list(TASKS["mnli"].labels),
    ),
    (
        {
            "name": "custom",
            "labels": ["b", "a"],
            "multi_label": True,
            "label_threshold": 0.7,
        },
        (SEQUENCES, "multi_label_classification"),
        ["b", "a"],
    ),
    (
        {"name": "custom", "regression": True, "pairs": False},
        (SEQUENCES, "regression"),
        ["LABEL_0"],
    ),
    (
        {"name": "custom", "choices": 2, "pairs": False},
        ("BertForMultipleChoice", None),
        [],
    ),
    (
        {"name": "tagging", "tags": ["O", "B-PER", "I-PER"]},
        ("BertForTokenClassification", None),
        ["O", "B-PER", "I-PER"],
    ),
    ({"name": "squad"}, ("BertForQuestionAnswering", None), []),
    ({"name": "masked_lm"}, ("BertForMaskedLM", None), []),
]


@pytest.mark.parametrize("described, kind, labels", KINDS)
def test_a_merged_bert_keeps_labels_and_kind(
    add, make, tmp_path, described, kind, labels, caplog
):
    model = add(make("a", LORA, description=described))
    is_lost = "label_threshold" in described
    assert ("pass --label_threshold=0.7 with it" in caplog.text) == is_lost
    head = model["head"]
    assert head["architectures"] == [kind[0]]
    assert head.get("problem_type") == kind[1]
    assert list(head.get("id2label", {}).values()) == labels
    assert head.get("num_labels", 0) == len(labels)
    assert head.get("label2id", {}) == {n: i for i, n in enumerate(labels)}
    # Where it was written, and again in Hugging Face's form.
    for form in (written_form.GOOGLE, written_form.HUGGING_FACE):
        place = tmp_path / form
        place.mkdir()
        written_form.write_model(str(place), form, **model)
        opened = open_checkpoint(place)
        assert opened.head == head
        unnamed = labels == ["LABEL_0"]
        assert opened.labels == (() if unnamed else tuple(labels))
        assert kind_of_head(opened.head) == kind_of(described)


@pytest.fixture
def merged(merge, make, tmp_path):
    """Flags of a run on a BERT with an adapter of a task merged into it."""

    def flags(described):
        folder = tmp_path / "merged"
        printed = merge(folder, make(text=LORA, description=described))
        assert printed == f"the merged BERT is {folder}/bert_model.ckpt\n"
        return {
            "init_checkpoint": folder,
            "tuning_method": "head",
            "max_seq_length": LENGTH,
            "cpu_lanes": 1,
            "output_dir": tmp_path / "out",
        }

    return flags


def test_a_merged_bert_answers_as_bert_and_adapter(
    classify, merged, tiny_bert, tiny_data, tmp_path
):
    flags = merged({**CLASSIFICATION, "labels": ["good", "bad"]})
    flags["task_name"] = "custom"
    # Without a row that has a label.
    texts = tiny_data / "test.tsv"
    classify(**flags, predict_file=texts, do_predict=True)
    adapter = {"it": str(tmp_path / "adapter")}
    predictor = load_predictor(tiny_bert, adapter)
    rows = read_lines(texts)[1:]
    expected = [predictor("it", row)["scores"] for row in rows]
    assert_allclose(
        np.loadtxt(tmp_path / "out" / "test_results.tsv"),
        [[scores["good"], scores["bad"]] for scores in expected],
        atol=1e-5,
    )


def test_a_merged_bert_answers_for_its_labels_alone(
    classify, merged, tiny_data, tmp_path
):
    """Another kind of head is none, although it has as many outputs."""
    flags = merged({**CLASSIFICATION, "labels": ["good", "bad"]})
    flags["task_name"] = "custom"
    for name in ("train", "dev"):
        lines = "text\tlabel\n" + "a cat\tno\na dog\tyes\n" * 2
        (tmp_path / f"{name}.tsv").write_text(lines)
    folder = {"data_dir": tmp_path}
    for more, *parts in (
        (folder, "('good', 'bad'), expected", "('no', 'yes')"),
        (
            {"eval_file": tmp_path / "dev.tsv"},
            "unknown label 'no', expected one of good, bad",
        ),
        (
            {"data_dir": tiny_data, "multi_label": True},
            "of classification",
            "expected of multi-label",
        ),
    ):
        refusals.check(
            lambda m=more: classify(**flags, **m, do_eval=True), *parts
        )
    assert not (tmp_path / "out" / "eval_results.txt").exists()


def test_a_merged_tagger_tags_without_tags(tag, merged, tmp_path):
    flags = merged({"name": "tagging", "tags": ["O", "B-PER", "I-PER"]})
    for name, text in (("a", "a\ncat\n\n"), ("b", "a B-LOC\ncat O\n\n")):
        (tmp_path / f"{name}.conll").write_text(text)
    tag(**flags, predict_file=tmp_path / "a.conll", do_predict=True)
    assert (tmp_path / "out" / "test_predictions.conll").exists()
    flags.update(output_dir=tmp_path / "no", eval_file=tmp_path / "b.conll")
    refusals.check(lambda: tag(**flags, do_eval=True), "LOC")


def test_a_vocabulary_may_lie_elsewhere(merge, make, tiny_bert, tmp_path):
    bert, words = tmp_path / "bert", tmp_path / "words.txt"
    shutil.copytree(tiny_bert, bert)
    (bert / "vocab.txt").rename(words)
    adapter, target = make(text=LORA), tmp_path / "merged"
    refusals.check(lambda: merge(target, adapter, bert=bert), "--vocab_file")
    assert not target.exists()
    merge(target, adapter, bert=bert, more=[f"--vocab_file={words}"])
    assert (target / "vocab.txt").read_bytes() == words.read_bytes()


def test_a_merged_bert_has_the_tokens_of_its_adapters(
    merge, make, tiny_bert, tmp_path, run_main
):
    adapter, target = make(text=LORA), tmp_path / "merged"
    words = tmp_path / "words.txt"
    lines = read_lines(tiny_bert / "vocab.txt")
    write_lines(words, [*lines[:5], *lines[:4:-1]])
    convert = f"--init_checkpoint={tiny_bert}", "--to=google"
    convert += "--activation=gelu", f"--adapter={adapter}"
    for more, part in (
        (f"--vocab_file={words}", "another vocabulary"),
        ("--bert_config_file=/none", "leave out --bert_config_file"),
    ):
        refusals.check(lambda x=more: merge(target, adapter, more=[x]), part)
        refusals.check(
            lambda x=more: run_main(
                convert_command, *convert, f"--output_dir={target}", x
            ),
            part,
        )
    assert not target.exists()


def test_googles_form_has_one_epsilon(merge, make, tiny_bert, tmp_path):
    bert, target = tmp_path / "bert", tmp_path / "merged"
    shutil.copytree(tiny_bert, bert)
    change(bert / "config.json", layer_norm_eps=1e-5)
    merge(target, make(text=LORA, bert=bert), bert=bert)
    assert read_json(target / "config.json")["layer_norm_eps"] == 1e-5


def test_what_cannot_be_merged_is_refused(merge, make, tmp_path):
    adapter, target = make(), tmp_path / "merged"

    def refuse(*parts, to=target):
        refusals.check(lambda: merge(to, adapter), *parts)

    refuse("houlsby adds computation to BERT")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "vocab.txt").touch()
    refuse("holds a BERT's vocab.txt", to=tmp_path / "there")
    change(
        adapter / "adapter_config.json",
        base__fingerprint="0" * 64,
        **{files.SEAL: None},
    )
    refuse("another BERT")
    shutil.rmtree(adapter)
    layer = {"in_features": 16, "out_features": 4, "bias": False}
    layer["activation"] = "tanh"
    described = {"name": "vectors", "pooling": "mean", "normalize": True}
    make(text=LORA, description={**described, "dense": [layer]})
    refuse("dense layers", "--to=sentence_transformers")
    assert not target.exists()


def test_adapters_are_averaged(merge, make, tiny_bert, tmp_path):
    folders = [
        make(str(seed), f"houlsby(size={size})", seed=seed)
        for seed, size in enumerate((4, 4, 5))
    ]
    mean, both = tmp_path / "mean", folders[:2]
    printed = merge(mean, *both, more=["--average", "--weights=3,1"])
    assert printed == f"the averaged adapter is {mean}\n"
    first, second, averaged = (
        load_file(folder / "adapter.safetensors") for folder in (*both, mean)
    )
    assert set(averaged) == set(first)
    for name, value in averaged.items():
        expected = 0.75 * first[name] + 0.25 * second[name]
        assert_allclose(value, expected, atol=1e-6)
    answer = load_predictor(tiny_bert, {"it": mean})("it", "a cat")
    assert set(answer["scores"]) == {"bad", "good"}
    # Nothing is written over.
    path = mean / "adapter.safetensors"
    before = path.read_bytes()
    for to, more, adapters, message in (
        (mean, [], both, f"{mean} holds an adapter; choose an"),
        (tmp_path / "no", [], folders, "one method with the same arguments"),
        (tmp_path / "no", ["--weights=1,0"], both, "expected 2 positive"),
        (tmp_path / "no", ["--weights=1,x"], both, "expected 2 positive"),
    ):
        more = ["--average", *more]
        refusals.check(
            lambda t=to, a=adapters, m=more: merge(t, *a, more=m), message
        )
    assert path.read_bytes() == before
    assert not (tmp_path / "no").exists()


def rewrite(folder, edit):
    """Writes an adapter again, with what `edit` makes of it."""
    config = read_adapter_config(folder)
    path = folder / "adapter.safetensors"
    config, values = edit(config, load_file(path))
    adapter_artifact.write(str(folder), config, values)


def test_the_mean_of_few_changes_is_few_changes(
    merge, make, tiny_bert, tmp_path
):
    base, _, _ = read_base(tiny_bert)
    text = "lt_sft(sparsity=0.1)"
    name = "bert/pooler/dense/kernel"
    folders = [make(name, text, trained_with=text) for name in "ab"]
    for number, folder in enumerate(folders):

        def edit(config, values, at=number):
            kept = {k: v for k, v in values.items() if "bert/" not in k}
            kept[f"{name}/indices"] = np.array([at, 5], np.int32)
            kept[f"{name}/values"] = np.array([1.0, 2.0 + at], np.float32)
            return config, kept

        rewrite(folder, edit)
    mean = tmp_path / "mean"
    # Not 1 when rounded: entries must not move by it.
    more = ["--average", "--weights=0.3,0.7"]
    merge(mean, *folders, more=more)
    averaged = load_file(mean / "adapter.safetensors")
    assert averaged[f"{name}/indices"].tolist() == [0, 1, 5]
    first, second = base.read(name).ravel()[:2]
    assert_allclose(
        averaged[f"{name}/values"],
        [0.3 + 0.7 * first, 0.3 * second + 0.7, 2.7],
        rtol=1e-5,
    )
    assert {k for k in averaged if k.startswith("bert/")} == {
        f"{name}/indices",
        f"{name}/values",
    }


def test_parts_stay_as_they_are_and_have_to_be_the_same(merge, make, tmp_path):
    folders = [
        make(str(seed), "pfeiffer(size=2)", seed=seed) for seed in range(3)
    ]
    part = np.array([0.1, 0.7, 1.3], np.float32)
    for seed, folder in enumerate(folders):

        def edit(config, values, sha="1" if seed < 2 else "2"):
            config.update(parts={"en": sha * 64}, carries_parts=True)
            return config, {**values, "parts.en/x": part}

        rewrite(folder, edit)
    mean = tmp_path / "mean"
    merge(mean, *folders[:2], more=["--average", "--weights=0.3,0.7"])
    averaged = load_file(mean / "adapter.safetensors")
    assert_array_equal(averaged["parts.en/x"], part)
    refusals.check(
        lambda: merge(tmp_path / "no", *folders, more=["--average"]),
        "only adapters with the same parts can",
    )


@pytest.mark.parametrize("method", [LORA, "lt_sft(0.1)"])
@pytest.mark.parametrize("weights", ["", "2,-0.5"])
def test_changes_are_weighed_and_added(
    merge, make, tiny_weights, tmp_path, method, weights
):
    folders = [make(name, method, seed=ord(name)) for name in "ab"]
    for folder in folders:
        merge(tmp_path / f"m{folder.name}", folder)
    merge(tmp_path / "both", *folders, more=[f"--weights={weights}"])
    first, second, both = (
        google.open_tensorflow(str(tmp_path / name / "bert_model.ckpt"))
        for name in ("ma", "mb", "both")
    )
    times = (2, -0.5) if weights else (1, 1)
    moved = 0
    for name, base in tiny_weights.items():
        changes = first.read(name) - base, second.read(name) - base
        expected = base + times[0] * changes[0] + times[1] * changes[1]
        assert_allclose(both.read(name), expected, atol=1e-5)
        moved += np.any(changes[0])
    assert moved
