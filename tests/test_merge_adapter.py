"""Merging adapters into a plain BERT, as a user does."""

import json
import shutil
import sys

import numpy as np
import pytest
import safetensors.numpy
from conftest import own_lines, run_process
from tiny_artifacts import CLASSIFICATION, LENGTH, make_artifact, read_base

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact, google, sources
from adapter_bert.checkpoints.hugging_face import kind_of_head
from adapter_bert.commands import convert
from adapter_bert.commands import merge as merge_command
from adapter_bert.errors import UserError
from adapter_bert.serving.predictor import Predictor
from adapter_bert.tasks import TASKS
from adapter_bert.tasks.restored import kind_of, restore_task

TASK = restore_task(CLASSIFICATION, {}, "")

pytestmark = pytest.mark.newer_stack


def train(classify, flags, method, folder, **more):
    """Trains and predicts; the adapter's folder."""
    values = {k: v for k, v in flags.items() if k != "adapter_size"}
    values.update(more, output_dir=folder, do_predict=True)
    classify(**values, tuning_method=method)
    return folder / "adapter"


def merge(flags, target, *adapters, check=True, more=()):
    return run_process(
        f"--init_checkpoint={flags['init_checkpoint']}",
        *(f"--adapter={folder}" for folder in adapters),
        f"--output_dir={target}",
        *more,
        program="merge",
        check=check,
    )


def predict(classify, flags, bert, folder):
    """Probabilities of a plain BERT with a trained head."""
    values = {k: v for k, v in flags.items() if k != "adapter_size"}
    values.update(
        init_checkpoint=bert,
        output_dir=folder,
        do_train=False,
        do_predict=True,
        tuning_method="head",
    )
    classify(**values)
    return np.loadtxt(folder / "test_results.tsv")


@pytest.mark.gate
def test_a_merged_bert_predicts_what_bert_and_adapter_did(
    classify, tiny_flags, tmp_path
):
    for number, method in enumerate(("lora(rank=2)", "ia3", "lt_sft(0.1)")):
        run, target = tmp_path / f"{number}", tmp_path / f"merged-{number}"
        adapter = train(classify, tiny_flags, method, run)
        done = merge(tiny_flags, target, adapter)
        assert done.stdout.startswith("the merged BERT is ")
        actual = predict(classify, tiny_flags, target, tmp_path / f"p{number}")
        expected = np.loadtxt(run / "test_results.tsv")
        np.testing.assert_allclose(actual, expected, atol=1e-5, err_msg=method)


def test_a_merged_head_is_as_a_training_would_have_it(tiny_bert, tmp_path):
    """Of a table, whose labels are sorted."""
    base, *_ = read_base(tiny_bert)
    folder = tmp_path / "good first"
    described = {**CLASSIFICATION, "labels": ["good", "bad"]}
    make_artifact(folder, tiny_bert, "lora(rank=2)", TASK, described)
    values = merge_command.merge(base, [str(folder)], [1.0])["values"]
    kept = adapter_artifact.read(str(folder)).weights
    for name in ("output_weights", "output_bias"):
        np.testing.assert_array_equal(values[name], kept.read(name)[::-1])
    # Of another program, whose head is another one.
    folder = tmp_path / "two layers"
    described = {**CLASSIFICATION, "head": {"layers": 2, "pooler": False}}
    task = restore_task(described, {}, "")
    make_artifact(folder, tiny_bert, "lora(rank=2)", task, described)
    with pytest.raises(UserError, match="a head of another form, {'layers': 2"):
        merge_command.merge(base, [str(folder)], [1.0])
    # Of two adapters no head is kept.
    merge_command.merge(base, [str(folder)] * 2, [0.5, 0.5])


SEQUENCES = "BertForSequenceClassification"
KINDS = [
    (
        {"name": "custom", "labels": ["good", "bad"], "pairs": False},
        (SEQUENCES, "single_label_classification"),
        ["bad", "good"],
    ),
    (
        {"name": "mnli", "labels": list(TASKS["mnli"].labels), "pairs": True},
        (SEQUENCES, "single_label_classification"),
        list(TASKS["mnli"].labels),
    ),
    (
        {"name": "custom", "labels": ["b", "a"], "multi_label": True},
        (SEQUENCES, "multi_label_classification"),
        ["a", "b"],
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
    tiny_bert, tmp_path, described, kind, labels
):
    base, *_ = read_base(tiny_bert)
    task = restore_task(described, {}, "")
    make_artifact(tmp_path / "a", tiny_bert, "lora(rank=2)", task, described)
    found = merge_command.merge(base, [str(tmp_path / "a")], [1.0])
    head = found["head"]
    assert head["architectures"] == [kind[0]]
    assert head.get("problem_type") == kind[1]
    assert list(head.get("id2label", {}).values()) == labels
    assert head.get("num_labels", 0) == len(labels)
    assert head.get("label2id", {}) == {n: i for i, n in enumerate(labels)}
    # Where it was written, and again in Hugging Face's form.
    for form in (convert.GOOGLE, convert.HUGGING_FACE):
        place = tmp_path / form
        place.mkdir()
        convert.write_model(str(place), form, **found)
        opened = sources.open_init_checkpoint(str(place))
        assert opened.head == head
        unnamed = labels == ["LABEL_0"]
        assert opened.labels == (() if unnamed else tuple(labels))
        assert kind_of_head(opened.head) == kind_of(described)


@pytest.fixture
def merged(tiny_bert, tmp_path, monkeypatch):
    """Flags of a run on a BERT with an adapter of a task merged into it."""

    def make(described):
        place, folder = tmp_path / "adapter", tmp_path / "merged"
        task = restore_task(described, {}, "")
        make_artifact(place, tiny_bert, "lora(rank=2)", task, described)
        flags = {"init_checkpoint": tiny_bert, "adapter": place}
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        monkeypatch.setattr(
            sys, "argv", ["merge", *arguments, f"--output_dir={folder}"]
        )
        merge_command.main()
        return {
            "init_checkpoint": folder,
            "tuning_method": "head",
            "max_seq_length": LENGTH,
            "cpu_lanes": 1,
            "output_dir": tmp_path / "out",
        }

    return make


def test_a_merged_bert_answers_for_its_labels_alone(
    classify, merged, tiny_bert, tiny_data, tmp_path
):
    flags = merged({**CLASSIFICATION, "labels": ["good", "bad"]})
    flags["task_name"] = "custom"
    # Without a row that has a label.
    texts = tiny_data / "test.tsv"
    classify(**flags, predict_file=texts, do_predict=True)
    adapter = {"it": str(tmp_path / "adapter")}
    predictor = Predictor.load(str(tiny_bert), adapter)
    rows = texts.read_text().splitlines()[1:]
    expected = [predictor("it", row)["scores"] for row in rows]
    np.testing.assert_allclose(
        np.loadtxt(tmp_path / "out" / "test_results.tsv"),
        [[scores["bad"], scores["good"]] for scores in expected],
        atol=1e-5,
    )
    for name in ("train", "dev"):
        lines = "text\tlabel\n" + "a cat\tno\na dog\tyes\n" * 2
        (tmp_path / f"{name}.tsv").write_text(lines)
    flags["output_dir"] = tmp_path / "no"
    named = {"eval_file": tmp_path / "dev.tsv"}
    for more, message in (
        ({}, r"\('bad', 'good'\), expected .*\('no', 'yes'\)"),
        (named, "unknown label 'no', expected one of bad, good"),
        ({"multi_label": True}, "of classification .*expected of multi-label"),
        ({"data_dir": tiny_data, "multi_label": True}, "of classification"),
    ):
        data = {} if named is more else {"data_dir": tmp_path}
        with pytest.raises(UserError, match=message):
            classify(**{**flags, **data, **more}, do_eval=True)
    assert not (tmp_path / "no" / "eval_results.txt").exists()


@pytest.mark.parametrize(
    "described",
    [
        {"name": "custom", "regression": True, "pairs": False},
        {"name": "custom", "labels": ["O", "B-PER"], "pairs": False},
    ],
)
def test_a_head_of_another_kind_is_none(
    classify, merged, tiny_bert, tmp_path, described
):
    """Although it has as many outputs, and these have the same names."""
    flags = merged(described)
    rows = "text\tc\td\tlabel\na cat\ta\tb\t0\na dog\ta\tb\t1\n"
    (tmp_path / "dev.tsv").write_text(rows)
    flags.update(task_name="custom", eval_file=tmp_path / "dev.tsv")
    with pytest.raises(UserError, match="expected of multiple choice"):
        classify(**flags, choice_columns="c,d", do_eval=True)


def test_a_merged_tagger_tags_without_tags(tag, merged, tmp_path):
    flags = merged({"name": "tagging", "tags": ["O", "B-PER", "I-PER"]})
    for name, text in (("a", "a\ncat\n\n"), ("b", "a B-LOC\ncat O\n\n")):
        (tmp_path / f"{name}.conll").write_text(text)
    tag(**flags, predict_file=tmp_path / "a.conll", do_predict=True)
    assert (tmp_path / "out" / "test_predictions.conll").exists()
    flags["output_dir"] = tmp_path / "no"
    with pytest.raises(UserError, match="LOC"):
        tag(**flags, eval_file=tmp_path / "b.conll", do_eval=True)


def test_a_vocabulary_may_lie_elsewhere(tiny_bert, tmp_path, monkeypatch):
    bert, words = tmp_path / "bert", tmp_path / "words.txt"
    shutil.copytree(tiny_bert, bert)
    (bert / "vocab.txt").rename(words)
    make_artifact(tmp_path / "a", tiny_bert, "lora(rank=2)", TASK)
    arguments = [
        "merge_adapter",
        f"--init_checkpoint={bert}",
        f"--adapter={tmp_path / 'a'}",
        f"--output_dir={tmp_path / 'merged'}",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(UserError, match="--vocab_file"):
        merge_command.main()
    assert not (tmp_path / "merged").exists()
    monkeypatch.setattr(sys, "argv", [*arguments, f"--vocab_file={words}"])
    merge_command.main()
    written = tmp_path / "merged" / "vocab.txt"
    assert written.read_bytes() == words.read_bytes()


@pytest.mark.gate
def test_changes_of_two_tasks_add_up(
    classify, tiny_flags, tiny_weights, tmp_path
):
    adapters = [
        train(
            classify,
            {**tiny_flags, "num_train_epochs": 1},
            "lt_sft(0.1)",
            tmp_path / f"{seed}",
            seed=seed,
        )
        for seed in (1, 2)
    ]
    merge(tiny_flags, tmp_path / "both", *adapters)
    for number, adapter in enumerate(adapters):
        merge(tiny_flags, tmp_path / f"one-{number}", adapter)
    both, first, second = (
        google.open_tensorflow(str(tmp_path / name / "bert_model.ckpt"))
        for name in ("both", "one-0", "one-1")
    )
    moved = 0
    for name, base in tiny_weights.items():
        change = (first.read(name) - base) + (second.read(name) - base)
        np.testing.assert_allclose(both.read(name), base + change, atol=1e-6)
        moved += np.any(first.read(name) != base)
    assert moved


@pytest.mark.gate
def test_what_cannot_be_merged_is_one_line(classify, tiny_flags, tmp_path):
    flags = {**tiny_flags, "num_train_epochs": 1}
    adapter = train(classify, flags, "houlsby(size=4)", tmp_path / "run")
    done = merge(tiny_flags, tmp_path / "merged", adapter, check=False)
    assert done.returncode == 1
    (line,) = own_lines(done.stderr)
    assert "houlsby adds computation to BERT" in line
    assert not (tmp_path / "merged").exists()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "vocab.txt").touch()
    done = merge(tiny_flags, tmp_path / "there", adapter, check=False)
    assert "holds a BERT's vocab.txt" in own_lines(done.stderr)[0]
    config = adapter / "adapter_config.json"
    values = json.loads(config.read_text())
    values["base"]["fingerprint"] = "0" * 64
    del values[files.SEAL]
    config.write_text(json.dumps(values))
    done = merge(tiny_flags, tmp_path / "merged", adapter, check=False)
    assert "another BERT" in own_lines(done.stderr)[0]


@pytest.mark.gate
def test_adapters_are_averaged(tiny_bert, tmp_path):
    folders = [tmp_path / name for name in "abc"]
    texts = ("houlsby(size=4)",) * 2 + ("houlsby(size=5)",)
    for seed, (folder, text) in enumerate(zip(folders, texts)):
        make_artifact(folder, tiny_bert, text, TASK, seed=seed)
    flags, mean = {"init_checkpoint": tiny_bert}, tmp_path / "mean"
    more = ["--average", "--weights=3,1"]
    done = merge(flags, mean, *folders[:2], more=more)
    assert done.stdout == f"the averaged adapter is {mean}\n"
    first, second, found = (
        safetensors.numpy.load_file(folder / "adapter.safetensors")
        for folder in (*folders[:2], mean)
    )
    assert set(found) == set(first)
    for name, value in found.items():
        expected = 0.75 * first[name] + 0.25 * second[name]
        np.testing.assert_allclose(value, expected, atol=1e-6)
    answer = Predictor.load(str(tiny_bert), {"it": str(mean)})("it", "a cat")
    assert set(answer["scores"]) == {"bad", "good"}
    # Nothing is written over.
    path = mean / "adapter.safetensors"
    before = path.read_bytes()
    done = merge(flags, mean, *folders[:2], check=False, more=["--average"])
    assert done.returncode == 1
    (line,) = own_lines(done.stderr)
    assert f"{mean} holds an adapter; choose another folder" in line
    assert path.read_bytes() == before
    for more, adapters, words in (
        (["--average"], folders, "only adapters with one method, one task"),
        (["--average", "--weights=1,0"], folders[:2], "expected 2 positive"),
        (["--weights=1"], folders[:2], "'1', expected 2 numbers"),
        (["--weights=1,x"], folders[:2], "expected 2 numbers"),
    ):
        done = merge(flags, tmp_path / "no", *adapters, check=False, more=more)
        assert done.returncode == 1
        (line,) = own_lines(done.stderr)
        assert words in line
    assert not (tmp_path / "no").exists()


def rewrite(folder, change):
    """Writes an adapter again, with what `change` makes of it."""
    config = adapter_artifact.read_config(str(folder))
    path = folder / "adapter.safetensors"
    config, values = change(config, safetensors.numpy.load_file(path))
    adapter_artifact.write(str(folder), config, values)


def test_the_mean_of_few_changes_is_few_changes(tiny_bert, tmp_path):
    base, _, _ = read_base(tiny_bert)
    text = "lt_sft(sparsity=0.1)"
    name = "bert/pooler/dense/kernel"
    folders = [tmp_path / "a", tmp_path / "b"]
    for number, folder in enumerate(folders):
        make_artifact(folder, tiny_bert, text, TASK, trained_with=text)

        def change(config, values, at=number):
            kept = {k: v for k, v in values.items() if "bert/" not in k}
            kept[f"{name}/indices"] = np.array([at, 5], np.int32)
            kept[f"{name}/values"] = np.array([1.0, 2.0 + at], np.float32)
            return config, kept

        rewrite(folder, change)
    mean = tmp_path / "mean"
    # Not 1 when rounded: entries must not move by it.
    more = ["--average", "--weights=0.3,0.7"]
    merge({"init_checkpoint": tiny_bert}, mean, *folders, more=more)
    found = safetensors.numpy.load_file(mean / "adapter.safetensors")
    assert found[f"{name}/indices"].tolist() == [0, 1, 5]
    first, second = base.read(name).ravel()[:2]
    np.testing.assert_allclose(
        found[f"{name}/values"],
        [0.3 + 0.7 * first, 0.3 * second + 0.7, 2.7],
        rtol=1e-5,
    )
    assert {k for k in found if k.startswith("bert/")} == {
        f"{name}/indices",
        f"{name}/values",
    }


def test_parts_stay_as_they_are_and_have_to_be_the_same(tiny_bert, tmp_path):
    folders = [tmp_path / name for name in "abc"]
    part = np.array([0.1, 0.7, 1.3], np.float32)
    for seed, folder in enumerate(folders):
        make_artifact(folder, tiny_bert, "pfeiffer(size=2)", TASK, seed=seed)

        def change(config, values, sha="1" if seed < 2 else "2"):
            config.update(parts={"en": sha * 64}, carries_parts=True)
            return config, {**values, "parts.en/x": part}

        rewrite(folder, change)
    flags, mean = {"init_checkpoint": tiny_bert}, tmp_path / "mean"
    more = ["--average", "--weights=0.3,0.7"]
    merge(flags, mean, *folders[:2], more=more)
    found = safetensors.numpy.load_file(mean / "adapter.safetensors")
    np.testing.assert_array_equal(found["parts.en/x"], part)
    done = merge(flags, tmp_path / "no", *folders, check=False, more=more[:1])
    assert done.returncode == 1
    assert "the same parts have a mean" in own_lines(done.stderr)[0]


@pytest.mark.gate
def test_changes_are_weighed(tiny_bert, tmp_path):
    base, _, _ = read_base(tiny_bert)
    for seed in range(2):
        folder = tmp_path / f"{seed}"
        make_artifact(folder, tiny_bert, "lora(rank=2)", TASK, seed=seed)
        merge({"init_checkpoint": tiny_bert}, tmp_path / f"m{seed}", folder)
    folders = [tmp_path / "0", tmp_path / "1"]
    merge(
        {"init_checkpoint": tiny_bert},
        tmp_path / "both",
        *folders,
        more=["--weights=2,-0.5"],
    )
    first, second, both = (
        google.open_tensorflow(str(tmp_path / name / "bert_model.ckpt"))
        for name in ("m0", "m1", "both")
    )
    name = "bert/encoder/layer_0/attention/self/query/kernel"
    pretrained = base.read(name)
    expected = (
        pretrained
        + 2 * (first.read(name) - pretrained)
        - 0.5 * (second.read(name) - pretrained)
    )
    np.testing.assert_allclose(both.read(name), expected, atol=1e-5)
