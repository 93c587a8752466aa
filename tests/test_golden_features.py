"""Features of recorded and published GLUE files."""

import pytest
from conftest import module_fixture, read_json
from task_files import read

from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.tasks.kinds import get_task

pytestmark = pytest.mark.older_stack

EVERY_SPLIT = pytest.mark.parametrize("split", ["train", "dev", "test"])


@module_fixture
def pretrained_tokenizer(pretrained_dir):
    return FullTokenizer(str(pretrained_dir / "vocab.txt"))


# Golden features


def check_recorded_features(recordings, data, name, split, tokenizer):
    recorded = read_json(recordings / f"{name}_{split}.json")
    task = get_task(name)
    assert list(task.labels) == recorded["labels"]
    rows = read(task, data / name, split)
    features = task.featurize(rows, tokenizer, recorded["max_seq_length"])
    assert len(rows) == len(features) == recorded["n_examples"]
    assert recorded["features"]
    for row, expected in enumerate(recorded["features"], recorded["first"]):
        part = slice(features.starts[row], features.starts[row + 1])
        assert features.tokens[part].tolist() == expected["input_ids"], row
        assert features.segments[part].tolist() == expected["segment_ids"], row
        assert f"{split}-{rows.lines[row]}" == expected["guid"]
        if split != "test":
            label = features.labels["label_ids"][row]
            assert label == expected["label_id"], row
    assert ("label_ids" in features.labels) == (split != "test")


@pytest.mark.pretrained
@pytest.mark.parametrize("name", ["MRPC", "CoLA"])
@EVERY_SPLIT
def test_golden_features(golden_dir, pretrained_tokenizer, name, split):
    folder = golden_dir / "classifier_features"
    check_recorded_features(folder, folder, name, split, pretrained_tokenizer)


@pytest.mark.real_data
@pytest.mark.pretrained
@pytest.mark.parametrize("name", ["MRPC", "CoLA"])
@EVERY_SPLIT
def test_golden_real_text_features(
    shared_dir, pretrained_tokenizer, name, split
):
    recorded = shared_dir / "golden_real_text" / "classifier_features"
    data = shared_dir / "data" / "glue"
    check_recorded_features(recorded, data, name, split, pretrained_tokenizer)


# Published files


@pytest.mark.real_data
@pytest.mark.parametrize(
    "folder, counts",
    [
        ("MRPC", (3668, 408, 1725)),
        ("CoLA", (8551, 1043, 1063)),
        ("SST-2", (67349, 872, 1821)),
        ("RTE", (2490, 277, 3000)),
    ],
)
def test_all_rows_of_published_files_are_read(shared_dir, folder, counts):
    task = get_task(folder)
    data_dir = str(shared_dir / "data" / "glue" / folder)
    for split, count in zip(("train", "dev", "test"), counts):
        rows = read(task, data_dir, split)
        assert len(rows) == len(set(rows.lines.tolist())) == count
        assert all(text.strip() for text in rows.text_a)
        assert (rows.text_b is None) == (task.labelled.text_b is None)
        if split == "test":
            assert rows.label is None
        else:
            assert set(rows.label) == set(task.labels)
