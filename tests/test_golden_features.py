"""Features of recorded and published GLUE files."""

# The fixture `tokenizer` is imported.
# ruff: noqa: F811

import pytest
from conftest import read_json
from task_files import read
from test_golden_squad import tokenizer  # noqa: F401 (a fixture)

from adapter_bert.tasks.kinds import get_task

pytestmark = pytest.mark.older_stack


@pytest.fixture(
    params=["golden", pytest.param("real", marks=pytest.mark.real_data)]
)
def places(request):
    """Folders of recorded features, and of the data that they are of."""
    if request.param == "golden":
        folder = request.getfixturevalue("golden_dir") / "classifier_features"
        return folder, folder
    shared = request.getfixturevalue("shared_dir")
    recordings = shared / "golden_real_text" / "classifier_features"
    return recordings, shared / "data" / "glue"


@pytest.mark.pretrained
@pytest.mark.parametrize("name", ["MRPC", "CoLA"])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_golden_features(places, tokenizer, name, split):
    recordings, data = places
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
