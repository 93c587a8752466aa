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
