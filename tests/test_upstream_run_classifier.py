"""`run_classifier.py` by BERT's names; a program's own processors."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver
from conftest import ROOT, read_json, run_command
from graphs import initialize, names, session, small_config, trained
from numpy.testing import assert_allclose
from task_files import refusal

from adapter_bert.commands.run_classifier import task_from_flags
from adapter_bert.tasks.from_processor import processor_task
from adapter_bert.upstream import run_classifier, tokenization

pytestmark = pytest.mark.older_stack

v1 = tf.compat.v1
PROCESSORS = {
    "MRPC": run_classifier.MrpcProcessor,
    "CoLA": run_classifier.ColaProcessor,
}


def examples_of(processor, folder, split):
    return getattr(processor, f"get_{split}_examples")(str(folder))


@pytest.mark.pretrained
@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_golden_features(golden_dir, pretrained_dir, tmp_path, name, split):
    folder = golden_dir / "classifier_features"
    recorded = read_json(folder / f"{name}_{split}.json")
    tokenizer = tokenization.FullTokenizer(str(pretrained_dir / "vocab.txt"))
    processor = PROCESSORS[name]()
    assert processor.get_labels() == recorded["labels"]
    examples = examples_of(processor, folder / name, split)
    length = recorded["max_seq_length"]
    arguments = (examples, processor.get_labels(), length, tokenizer)
    converted = run_classifier.convert_examples_to_features(*arguments)
    assert len(converted) == len(examples) == recorded["n_examples"]
    for row, expected in enumerate(recorded["features"], recorded["first"]):
        count = len(expected["input_ids"])
        features, example = converted[row], examples[row]
        padding = [0] * (length - count)
        assert features.input_ids == expected["input_ids"] + padding
        assert features.segment_ids == expected["segment_ids"] + padding
        assert features.input_mask == [1] * count + padding
        assert features.label_id == expected["label_id"]
        assert example.guid == expected["guid"]
    path = str(tmp_path / "features.tf_record")
    run_classifier.file_based_convert_examples_to_features(*arguments, path)
    by_file = run_classifier.file_based_input_fn_builder(
        path, length, is_training=False, drop_remainder=False
    )
    in_memory = run_classifier.input_fn_builder(
        converted, length, is_training=False, drop_remainder=False
    )
    params = {"batch_size": 4}
    for x, y in zip(by_file(params), in_memory(params)):
        for key, value in y.items():
            assert x[key].dtype == tf.int32
            assert np.array_equal(x[key], value)


def test_mnli_s_columns(tmp_path):
    cells = [str(n) for n in range(12)]
    lines = [cells, [*cells[:-1], "neutral"]]
    text = "".join("\t".join(line) + "\n" for line in lines)
    for name in ("train", "dev_matched", "test_matched"):
        (tmp_path / f"{name}.tsv").write_text(text)
    processor = run_classifier.MnliProcessor()
    for split, guid, label in (
        ("train", "train-0", "neutral"),
        ("dev", "dev_matched-0", "neutral"),
        ("test", "test-0", "contradiction"),
    ):
        [example] = examples_of(processor, tmp_path, split)
        assert vars(example) == {
            "guid": guid,
            "text_a": "8",
            "text_b": "9",
            "label": label,
        }


def test_a_program_s_own_columns(tmp_path):
    class Own(run_classifier.MrpcProcessor):
        def _create_examples(self, lines, set_type):
            return [
                run_classifier.InputExample(set_type, *line) for line in lines
            ]

    (tmp_path / "train.tsv").write_text("a\tb\t1\n")
    [example] = Own().get_train_examples(tmp_path)
    assert list(vars(example).values()) == ["train", "a", "b", "1"]


def test_padding_and_cuts():
    vocab = {word: n for n, word in enumerate("[CLS] [SEP] a b c".split())}

    class Words:
        tokenize = staticmethod(str.split)

        def convert_tokens_to_ids(self, tokens):
            return [vocab[token] for token in tokens]

    convert = run_classifier.convert_single_example
    example = run_classifier.InputExample("1", "a b c", "c b a", "y")
    features = convert(0, example, ["x", "y"], 7, Words())
    # The second text gives way first where both are equally long.
    assert features.input_ids == [0, 2, 3, 1, 4, 3, 1]
    assert features.segment_ids == [0, 0, 0, 0, 1, 1, 1]
    assert features.label_id == 1 and features.is_real_example
    padding = run_classifier.PaddingInputExample()
    features = convert(0, padding, ["x", "y"], 7, Words())
    assert features.input_ids == [0] * 7 and not features.is_real_example


@pytest.mark.gate
def test_create_model():
    config = small_config(hidden_dropout_prob=0.0)
    with session() as opened:
        ids = tf.ones([3, 5], tf.int32)
        loss, losses, logits, probabilities = run_classifier.create_model(
            config, False, ids, ids, 0 * ids, tf.constant([0, 1, 1]), 2, False,
            tuning_method="lora(rank=2)",
        )  # fmt: skip
        head = {"output_weights", "output_bias"}
        assert names(v1.get_collection("head")) == head
        lora = {n for n in names(v1.global_variables()) if "/lora_" in n}
        assert lora and trained() == lora | head
        initialize(opened)
        loss, losses, logits, probabilities = opened.run(
            [loss, losses, logits, probabilities]
        )
        assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-6)
        expected = -np.log(probabilities[[0, 1, 2], [0, 1, 1]])
        assert_allclose(losses, expected, rtol=1e-5)
        assert_allclose(loss, losses.mean(), rtol=1e-6)
        assert logits.shape == (3, 2)


class Reviews(run_classifier.DataProcessor):
    """A task of a program's own, over the tiny BERT's sentences."""

    def _read(self, data_dir, split):
        [header, *lines] = self._read_tsv(f"{data_dir}/{split}.tsv")
        return [
            run_classifier.InputExample(
                f"{split}-{n}", line[0], None, (line[1:] or ["bad"])[0]
            )
            for n, line in enumerate(lines)
        ]

    def get_train_examples(self, data_dir):
        return self._read(data_dir, "train")

    def get_dev_examples(self, data_dir):
        return self._read(data_dir, "dev")

    def get_test_examples(self, data_dir):
        return self._read(data_dir, "test")

    def get_labels(self):
        return ["good", "bad"]


def test_processors_that_are_refused(tiny_data, tmp_path):
    class Mixed(Reviews):
        def get_dev_examples(self, data_dir):
            examples = super().get_dev_examples(data_dir)
            examples[0].text_b = "a cat"
            return examples

        def get_test_examples(self, data_dir):
            return []

    for processor, folder, split, part in (
        (Reviews(), tmp_path, "dev", "Reviews.get_dev_examples cannot read"),
        (Mixed(), tiny_data, "dev", "pairs and single texts"),
        (Mixed(), tiny_data, "test", "gives no examples"),
    ):
        assert part in refusal(processor_task, processor, str(folder), [split])


def processor_of(labels, **changes):
    """A processor whose third example has other attributes."""

    class Changed(Reviews):
        def _read(self, data_dir, split):
            examples = super()._read(data_dir, split)
            for name, value in changes.items():
                setattr(examples[2], name, value)
            # As generators of programs give them.
            return iter(examples)

        def get_labels(self):
            return labels

    return Changed()


@pytest.mark.parametrize(
    "changes, expected",
    [
        (
            {"text_a": "d\u00e9j\u00e0 vu".encode()},
            ("d\u00e9j\u00e0 vu", "good", "dev-2"),
        ),
        ({"label": b"bad", "guid": b"x\ty"}, (None, "bad", "x y")),
        ({"label": 1.0, "guid": None}, (None, "1", "2")),
        ({"label": True, "guid": 7}, (None, "1", "7")),
        ({"label": 1}, (None, "1", "dev-2")),
    ],
)
def test_examples_are_read_as_bert_reads_them(tiny_data, changes, expected):
    processor = processor_of(["good", 1, b"bad", "good"], **changes)
    task = processor_task(processor, str(tiny_data), ["dev"])
    assert task.labels == ("good", "1", "bad")
    rows = task.read(str(tiny_data), ["dev"])[1]["dev"]
    text = expected[0] or rows.text_a[2]
    assert len(rows) > 3 and rows.text_b is None
    assert (rows.text_a[2], rows.label[2], rows.row_id[2]) == (
        text,
        *expected[1:],
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"text_a": None}, "text_a of the example 'dev-2' is None"),
        ({"text_b": float("nan")}, "text_b of the example 'dev-2' is nan, a f"),
        ({"label": float("nan")}, "1 examples without a label, as 'dev-2'"),
        ({"label": None}, "dev_examples gives 1 examples without a label"),
    ],
)
def test_examples_that_are_none(tiny_data, changes, message):
    processor = processor_of(["good", "bad"], **changes)
    assert message in refusal(
        processor_task, processor, str(tiny_data), ["dev"]
    )


@pytest.mark.parametrize(
    "flags, message",
    [
        ({}, "--task_name is missing; expected one of reviews, stars, cola"),
        (
            {"task_name": "review"},
            "unknown task 'review'; expected one of reviews, stars, cola",
        ),
        ({"task_name": "mrpc,Reviews"}, "unknown task 'Reviews'"),
    ],
)
def test_errors_name_a_program_s_own_tasks(classify, flags, message):
    processors = {"Reviews": Reviews, "stars": Reviews}
    with flagsaver.flagsaver(**flags):
        assert message in refusal(task_from_flags, None, processors)


@pytest.mark.parametrize(
    "name",
    [
        "bert/run_classifier",
        "bert/run_squad",
        "bert/extract_features",
        "extract_features",
        "create_pretraining_data",
    ],
)
def test_programs_by_their_names(name):
    done = run_command(
        *(sys.executable, ROOT / f"{name}.py"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert re.search(r"^error: .* is missing", done.stderr, re.M), done.stderr


IMPORTS = """
import tensorflow as tf
before = (tf.executing_eagerly(), tf.config.get_visible_devices(),
          tf.compat.v1.resource_variables_enabled(),
          tf.config.optimizer.get_experimental_options())
import modeling, tokenization, optimization
import run_classifier, run_squad, extract_features
import bert.modeling
from bert import run_classifier as own, run_squad as own_squad
from bert.tokenization import FullTokenizer, _is_control
from adapter_bert.upstream import run_classifier as installed
after = (tf.executing_eagerly(), tf.config.get_visible_devices(),
         tf.compat.v1.resource_variables_enabled(),
         tf.config.optimizer.get_experimental_options())
assert before == after
assert bert.modeling.BertModel is modeling.BertModel
assert own.InputExample is run_classifier.InputExample
assert own.main is run_classifier.main is installed.main
assert FullTokenizer is tokenization.FullTokenizer
run_classifier._truncate_seq_pair, extract_features.read_examples
run_squad._compute_softmax, own_squad.write_predictions, modeling.gelu
optimization.create_optimizer
"""


def test_modules_of_the_root_change_no_behaviour_of_tensorflow():
    subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, check=True)
