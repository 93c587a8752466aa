"""GLUE's tasks on files in the published layouts."""

import numpy as np
import pytest
from task_files import make_rows, read, refusal

from adapter_bert.tasks import metrics
from adapter_bert.tasks.kinds import GLUE, TASKS, get_task

pytestmark = pytest.mark.older_stack

MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
STS_B = (
    "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\t"
    "sentence1\tsentence2"
)
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\t"
    "sentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
    "sentence1\tsentence2"
)
PAIR = "index\tsentence1\tsentence2"
# Files with the published headers and columns: task -> split -> lines.
PUBLISHED = {
    "cola": {
        "train": ["gj04\t1\t\ta b .", "gj04\t0\t*\tc d ."],
        "dev": ["gj04\t0\t*\ta b ."],
        "test": ["index\tsentence", "0\ta b ."],
    },
    "sst-2": {
        "train": ["sentence\tlabel", "a b \t1", "c d \t0"],
        "dev": ["sentence\tlabel", "a b\t0"],
        "test": ["index\tsentence", "0\ta b ."],
    },
    "mrpc": {
        "train": [MRPC, '1\t70\t71\ta "b\tc d', "0\t72\t73\te f\tg h"],
        "dev": [MRPC, "0\t70\t71\ta b\tc d"],
        "test": [
            "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
            "0\t70\t71\ta b\tc d",
        ],
    },
    "sts-b": {
        "train": [
            f"{STS_B}\tscore",
            "0\tmain\tMSRvid\t2012\t1\tnone\tnone\ta b\tc d\t5.000",
            "1\tmain\tMSRvid\t2012\t4\tnone\tnone\te f\tg h\t3.800",
        ],
        "dev": [
            f"{STS_B}\tscore",
            "0\tmain\tMSRvid\t2012\t1\tnone\tnone\ta b\tc d\t0.000",
        ],
        "test": [STS_B, "0\tmain\tMSRvid\t2012\t1\tnone\tnone\ta b\tc d"],
    },
    "qqp": {
        "train": [
            QQP,
            "133273\t213221\t213222\ta b?\tc d?\t1",
            "402555\t536040\t536041\te f?",
            "360472\t364011\t490273\te f?\tg h?\t0",
        ],
        "dev": [QQP, "1\t2\t3\ta b?\tc d?\t0"],
        "test": ["id\tquestion1\tquestion2", "0\ta b?\tc d?"],
    },
    "mnli": {
        "train": [
            f"{MNLI}\tlabel1\tgold_label",
            "0\t31193\t31193n\tg\tp\tp\tp\tp\ta b\tc d\tneutral\tneutral",
            "1\t1\t1e\tg\tp\tp\tp\tp\te f\tg h\tneutral\tentailment",
        ],
        "dev_matched": [
            f"{MNLI}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
            "0\t6\t6e\tg\tp\tp\tp\tp\ta b\tc d\tneutral\tneutral\tneutral\t"
            "neutral\tneutral\tcontradiction",
        ],
        "test_matched": [MNLI, "0\t3\t3\tg\tp\tp\tp\tp\ta b\tc d"],
    },
    "qnli": {
        "train": [
            "index\tquestion\tsentence\tlabel",
            "0\ta b\tc d\tentailment",
            "1\te f\tg h\tnot_entailment",
        ],
        "dev": [
            "index\tquestion\tsentence\tlabel",
            "0\ta b\tc d\tnot_entailment",
        ],
        "test": ["index\tquestion\tsentence", "0\ta b\tc d"],
    },
    "rte": {
        "train": [
            f"{PAIR}\tlabel",
            "0\ta b\tc d\tnot_entailment",
            "1\te f\tg h\tentailment",
        ],
        "dev": [f"{PAIR}\tlabel", "0\ta b\tc d\tnot_entailment"],
        "test": [PAIR, "0\ta b\tc d"],
    },
    "wnli": {
        "train": [f"{PAIR}\tlabel", "0\ta b\tc d\t1", "1\te f\tg h\t0"],
        "dev": [f"{PAIR}\tlabel", "0\ta b\tc d\t0"],
        "test": [PAIR, "0\ta b\tc d"],
    },
    "ax": {
        "diagnostic-full": [
            "Lexical Semantics\tPredicate-Argument Structure\tLogic\t"
            "Knowledge\tDomain\tPremise\tHypothesis\tLabel",
            "\t\tNegation\t\tNews\ta b\tc d\tcontradiction",
        ],
        "diagnostic": [PAIR, "0\ta b\tc d"],
    },
}
PUBLISHED["mnli"]["dev_mismatched"] = PUBLISHED["mnli"]["dev_matched"]
PUBLISHED["mnli"]["test_mismatched"] = PUBLISHED["mnli"]["test_matched"]
# Labels of the training rows above, and of the dev row.
LABELS = {
    "cola": "1 0 0",
    "sst-2": "1 0 0",
    "mrpc": "1 0 0",
    "sts-b": "5.000 3.800 0.000",
    "qqp": "1 0 0",
    "mnli": "neutral entailment contradiction",
    "qnli": "entailment not_entailment not_entailment",
    "rte": "not_entailment entailment not_entailment",
    "wnli": "1 0 0",
    "ax": "contradiction",
}


@pytest.fixture
def published(tmp_path):
    """Writes a task's files and returns the folder."""

    def write(name):
        for split, lines in PUBLISHED[name].items():
            text = "\n".join(lines) + "\n"
            (tmp_path / f"{split}.tsv").write_text(text)
        return str(tmp_path)

    return write


def test_all_of_glue_is_there():
    assert PUBLISHED.keys() == GLUE.keys() <= set(TASKS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read(name, published):
    folder, task = published(name), get_task(name)
    labels = []
    for split in PUBLISHED[name]:
        rows = read(task, folder, split)
        assert rows.text_a[0].startswith("a ")
        assert (rows.text_b is None) == (name in ("cola", "sst-2"))
        assert rows.text_b is None or rows.text_b[0].startswith("c d")
        if split in dict(task.test_splits).values():
            assert rows.label is None and len(rows) == 1
            continue
        labels += rows.label[: 2 if split == "train" else 1]
    assert " ".join(labels).startswith(LABELS[name])


# Of each file that has a header, and of those of CoLA that have none.
SPLITS = [(name, split) for name in PUBLISHED for split in PUBLISHED[name]]


def is_headless(name, split):
    return name == "cola" and split != "test"


@pytest.mark.parametrize("name, split", SPLITS)
@pytest.mark.parametrize(
    "first", ["", "Sentence1\tSentence2\tLabel\n", "sentence1,label\n"]
)
def test_a_file_without_its_header_is_refused(
    published, tmp_path, name, split, first
):
    folder, path = published(name), tmp_path / f"{split}.tsv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(first + "".join(lines[not is_headless(name, split) :]))
    if is_headless(name, split) and not first:
        assert read(get_task(name), folder, split)
        return
    message = refusal(read, get_task(name), folder, split)
    problem = "found" if is_headless(name, split) else "no column is named"
    assert message.startswith(f"{path}:1: {problem}")


def test_the_broken_rows_of_qqp_are_left_out_and_counted(published, caplog):
    """One question of the published file has a line break in it."""
    folder = published("qqp")
    with open(f"{folder}/train.tsv", "a") as file:
        file.write('5\t6\t7\ti j?\n"\tk l?\t0\n8\t9\t10\tm?\tn?\t1\n')
    rows = read(get_task("qqp"), folder, "train")
    assert rows.text_a == ["a b?", "e f?", "m?"]
    assert "3 rows with fewer or more columns" in caplog.text


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_files_of_the_corpus_itself_are_read_as_mrpc(published, split):
    """With its byte-order mark and line ends; its test file has labels."""
    folder, lines = published("mrpc"), PUBLISHED["mrpc"]["train"]
    with open(f"{folder}/{split}.tsv", "wb") as file:
        file.write(("\ufeff" + "\r\n".join(lines) + "\r\n").encode())
    rows = read(get_task("mrpc"), folder, split)
    assert rows.text_a == ['a "b', "e f"] and rows.text_b == ["c d", "g h"]


TWO, ENTAILMENT = ("0", "1"), ("entailment", "not_entailment")
THREE = ("contradiction", "entailment", "neutral")


@pytest.mark.parametrize(
    "name, labels, scores",
    [
        ("cola", TWO, ("matthews_correlation", "accuracy")),
        ("sst-2", TWO, ("accuracy",)),
        ("mrpc", TWO, ("accuracy", "f1")),
        ("sts-b", None, ("pearson", "spearman")),
        ("qqp", TWO, ("accuracy", "f1")),
        ("mnli", THREE, ("accuracy",)),
        ("qnli", ENTAILMENT, ("accuracy",)),
        ("rte", ENTAILMENT, ("accuracy",)),
        ("wnli", TWO, ("accuracy",)),
        ("ax", THREE, ("matthews_correlation",)),
    ],
)
def test_labels_and_metrics_are_those_of_glue(name, labels, scores):
    """Labels have the numbers of google-research/bert's classes."""
    task = get_task(name)
    assert getattr(task, "labels", None) == labels
    assert task.metrics == scores and set(scores) <= set(metrics.METRICS)


def test_the_diagnostic_set_is_answered_by_what_was_trained_on_mnli(published):
    task, mnli = get_task("ax"), get_task("mnli")
    description = {**mnli.describe(), "name": "mnli"}
    assert task.restore(description, "head") == task
    assert mnli.restore(description, "head") == mnli
    other = refusal(mnli.restore, {**description, "name": "ax"}, "head")
    assert "not on mnli" in other
    message = refusal(read, task, published("ax"), "train")
    assert "train mnli and pass that" in message


@pytest.mark.parametrize("score", ["5.1", "-0.1", "nan", ""])
def test_scores_outside_the_scale_are_refused(published, score):
    folder, task = published("sts-b"), get_task("sts-b")
    line = f"0\tmain\tf\t2012\t1\tnone\tnone\ta b\tc d\t{score}"
    with open(f"{folder}/dev.tsv", "w") as file:
        file.write(f"{PUBLISHED['sts-b']['dev'][0]}\n{line}\n")
    message = refusal(read, task, folder, "dev")
    assert "dev.tsv:2: the score is" in message and "from 0 to 5" in message


def test_scores_are_written_within_the_scale(tmp_path):
    task = get_task("sts-b")
    rows = make_rows("a", "b", "c")
    scores = np.array([-0.25, 2.71828, 5.5], np.float32)
    results, path = task.write_predictions(
        str(tmp_path), rows, {"scores": scores}
    )
    assert np.loadtxt(results).tolist() == pytest.approx(scores.tolist())
    assert open(path).read() == (
        "index\tprediction\n0\t0.000\n1\t2.718\n2\t5.000\n"
    )


ROWS = {
    "MRPC": (3668, 408, 1725),
    "CoLA": (8551, 1043, 1063),
    "SST-2": (67349, 872, 1821),
    "STS-B": (5749, 1500, None),
    "RTE": (2490, 277, 3000),
    "WNLI": (635, 71, 146),
}


@pytest.mark.real_data
@pytest.mark.parametrize("name", ROWS)
def test_real_files_are_read_whole(shared_dir, tokenizer, name):
    task, folder = get_task(name), str(shared_dir / "data" / "glue" / name)
    labels = getattr(task, "labels", None)
    for split, count in zip(("train", "dev", "test"), ROWS[name]):
        if count is None:
            continue
        rows = read(task, folder, split)
        assert len(rows) == len(set(rows.lines.tolist())) == count
        assert all(text.strip() for text in rows.text_a)
        assert (rows.text_b is None) == (task.labelled.text_b is None)
        if split == "test":
            assert rows.label is None
        elif labels:
            assert set(rows.label) == set(labels)
    first = rows.take(np.arange(len(rows)) < 5)
    assert len(task.featurize(first, tokenizer, 16)) == 5
