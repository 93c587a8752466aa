"""XNLI: a training file of one language, dev and test files of all."""

import numpy as np
import pytest
from task_files import put, read, refusal

from adapter_bert.tasks.kinds import get_task
from adapter_bert.tasks.xnli import XNLI
from adapter_bert.upstream.run_classifier import XnliProcessor

pytestmark = pytest.mark.older_stack

PAIRS = (
    "language\tgold_label\tsentence1_binary_parse\tsentence2_binary_parse\t"
    "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tpromptID\n"
)


def line(language, label, a, b):
    return "\t".join((language, label, *"....", a, b, "7")) + "\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "multinli").mkdir()
    put(
        tmp_path / "multinli" / "multinli.train.zh.tsv",
        "premise\thypo\tlabel\na\tb\tcontradictory\nc\td\tneutral\n",
    )
    rows = line("ar", "neutral", "x", "y") + line("zh", "entailment", "e", "f")
    put(tmp_path / "xnli.dev.tsv", PAIRS + rows)
    put(tmp_path / "xnli.test.tsv", PAIRS + rows)
    return tmp_path


def test_rows_of_the_language(folder):
    task = get_task("XNLI")
    task.check_files(str(folder), ["train", "xnli.dev", "xnli.test"])
    train = read(task, folder, "train")
    assert train.text_a == ["a", "c"] and train.text_b == ["b", "d"]
    assert train.label == ["contradiction", "neutral"]
    dev, test = (read(task, folder, f"xnli.{x}") for x in ("dev", "test"))
    assert (dev.text_a, dev.text_b) == (test.text_a, test.text_b)
    assert (dev.text_a, dev.text_b, dev.label) == (["e"], ["f"], ["entailment"])
    assert test.label is None and np.array_equal(dev.lines, [2])


def test_upstream_s_processor_reads_the_same(folder):
    processor = XnliProcessor()
    for examples, split in (
        (processor.get_train_examples(str(folder)), "train"),
        (processor.get_dev_examples(str(folder)), "xnli.dev"),
    ):
        rows = read(XNLI, folder, split)
        assert [
            (example.text_a, example.text_b, example.label)
            for example in examples
        ] == list(zip(rows.text_a, rows.text_b, rows.label))
    assert tuple(processor.get_labels()) == XNLI.labels


def test_files_that_are_refused(folder):
    put(folder / "xnli.dev.tsv", PAIRS + line("ar", "neutral", "x", "y"))
    assert "no rows of language zh" in refusal(read, XNLI, folder, "xnli.dev")
    (folder / "multinli" / "multinli.train.zh.tsv").unlink()
    assert "there is no" in refusal(
        XNLI.check_files, str(folder), ["train", "xnli.dev"]
    )
