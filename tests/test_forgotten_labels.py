"""`lab.forgotten_labels`: the rows of its task."""

import json

import pytest
from conftest import write_table

from lab import forgotten_labels

pytestmark = pytest.mark.newer_stack


def test_texts_are_first_words_each_once(monkeypatch):
    monkeypatch.setattr(forgotten_labels, "WORDS", 2)
    texts = ["a  b c", "one", "d e", "a b d"]
    assert forgotten_labels.first_words(texts) == ["a b", "d e"]


def test_published_files_are_read_by_label(tmp_path, monkeypatch):
    monkeypatch.setattr(forgotten_labels, "WORDS", 1)
    for name in ("SST-2", "MRPC", "CoLA"):
        (tmp_path / "glue" / name).mkdir(parents=True)
    glue = tmp_path / "glue"
    header = ("sentence", "label")
    write_table(glue / "SST-2" / "train.tsv", [("review", "1")], header)
    row = ("1", "2", "3", "news", "other")
    write_table(glue / "MRPC" / "train.tsv", [row], row)
    row = ("c", "1", "", "example")
    write_table(glue / "CoLA" / "train.tsv", [row], None)
    (tmp_path / "sms").write_text("ham\tmessage\n")
    squad = tmp_path / "squad.json"
    paragraph = {"context": "paragraph", "qas": [{"question": "question"}]}
    squad.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    found = forgotten_labels.read(
        tmp_path, str(tmp_path / "sms"), str(squad), tmp_path
    )
    assert found == {label: [label] for label in found}
    assert [*found] == [*forgotten_labels.OLD, *forgotten_labels.NEW]


def test_rows_are_drawn_by_the_seed_and_measured_apart(tmp_path, monkeypatch):
    for name, count in (("TRAINED", 6), ("MEASURED", 3), ("REPLAYED", 2)):
        monkeypatch.setattr(forgotten_labels, name, count)
    labels = (*forgotten_labels.OLD, *forgotten_labels.NEW)
    texts = {x: [f"{x} {n}" for n in range(20)] for x in labels}

    def draw(seed):
        forgotten_labels.write_rows(texts, seed, tmp_path)
        return {
            path.stem: [
                json.loads(line)["text"]
                for line in path.read_text().splitlines()
            ]
            for path in tmp_path.glob("*.jsonl")
        }

    rows = draw(1)
    assert {name: len(own) for name, own in rows.items()} == {
        "old": 24,
        "new": 12,
        "all": 36,
        "replay": 8,
        "old_dev": 12,
        "new_dev": 6,
        "dev": 18,
    }
    assert {*rows["old"], *rows["new"]} == {*rows["all"]}
    assert not {*rows["all"]} & {*rows["dev"]}
    assert {*rows["replay"]} < {*rows["old"]}
    assert draw(2) != rows and draw(1) == rows
