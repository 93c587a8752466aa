"""`create_pretraining_data.py`: BERT's names, and the program."""

import gzip
import json
import random
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import module_fixture, program_fixture
from task_files import put, refusal

from adapter_bert import files
from adapter_bert.commands import create_pretraining_data as program
from adapter_bert.upstream import create_pretraining_data as names
from adapter_bert.upstream.tokenization import FullTokenizer

pytestmark = pytest.mark.older_stack

SHAPES = {
    "input_ids": tf.io.FixedLenFeature([16], tf.int64),
    "input_mask": tf.io.FixedLenFeature([16], tf.int64),
    "segment_ids": tf.io.FixedLenFeature([16], tf.int64),
    "masked_lm_positions": tf.io.FixedLenFeature([4], tf.int64),
    "masked_lm_ids": tf.io.FixedLenFeature([4], tf.int64),
    "masked_lm_weights": tf.io.FixedLenFeature([4], tf.float32),
    "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
}


@module_fixture
def recorded(golden_dir):
    path = golden_dir / "pretraining.json.gz"
    if not path.exists():
        pytest.skip(f"{golden_dir} has no recording of rows for pretraining")
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.fixture
def raw(recorded, tmp_path):
    """Arguments of the program for the recorded text."""
    vocabulary = "\n".join(recorded["vocabulary"]) + "\n"
    return {
        "input_file": put(tmp_path / "raw.txt", recorded["text"]),
        "vocab_file": put(tmp_path / "vocab.txt", vocabulary),
        "output_file": tmp_path / "rows.tfrecord",
        "max_seq_length": 16,
        "max_predictions_per_seq": 4,
        "dupe_factor": 2,
    }


create = program_fixture(program)


def read(path):
    return [
        {k: v.numpy().tolist() for k, v in row.items()}
        for row in tf.data.TFRecordDataset(str(path)).map(
            lambda row: tf.io.parse_single_example(row, SHAPES)
        )
    ]


@pytest.mark.parametrize("number", range(4))
def test_rows_are_those_of_the_published_program(recorded, raw, number):
    case = dict(recorded["cases"][number])
    expected, seed = case.pop("instances"), case.pop("random_seed")
    made = names.create_training_instances(
        [str(raw["input_file"])],
        FullTokenizer(str(raw["vocab_file"])),
        rng=random.Random(seed),
        **case,
    )
    assert [
        [
            " ".join(row.tokens),
            sum(row.segment_ids),
            row.masked_lm_positions,
            " ".join(row.masked_lm_labels),
            row.is_random_next,
        ]
        for row in made
    ] == expected
    first, second = made[0].segment_ids, str(made[0])
    assert first == sorted(first)
    assert second.startswith(f"tokens: {' '.join(made[0].tokens)}\nsegment")


def test_files_hold_the_rows_in_turn(create, raw, tmp_path):
    create(**raw)
    rows = read(raw["output_file"])
    paths = [tmp_path / name for name in "abc"]
    create(**raw | {"output_file": ",".join(map(str, paths))})
    assert [read(path) for path in paths] == [rows[n::3] for n in range(3)]
    made = names.create_training_instances(
        [str(raw["input_file"])],
        tokenizer := FullTokenizer(str(raw["vocab_file"])),
        16,
        2,
        0.1,
        0.15,
        4,
        random.Random(12345),
    )
    assert len(rows) == len(made)
    for row, instance in zip(rows, made):
        length, count = len(instance.tokens), len(instance.masked_lm_labels)
        ids = tokenizer.convert_tokens_to_ids(instance.tokens)
        labels = tokenizer.convert_tokens_to_ids(instance.masked_lm_labels)
        assert row["input_ids"] == ids + [0] * (16 - length)
        assert row["input_mask"] == [1] * length + [0] * (16 - length)
        assert row["masked_lm_ids"] == labels + [0] * (4 - count)
        assert row["masked_lm_weights"] == [1.0] * count + [0.0] * (4 - count)
        assert row["next_sentence_labels"] == [instance.is_random_next]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("raw.txt", "vocab.txt", "rows.tfrecord", "a", "b", "c")
    }


def test_patterns_and_the_case_of_letters(create, raw, tmp_path):
    create(**raw)
    expected = read(raw["output_file"])
    first, second = raw["input_file"].read_text().split("\n\n", 1)
    for name, text in ("1.part", f"{first}\n\n"), ("2.part", second):
        put(tmp_path / name, text)
    create(**raw | {"input_file": tmp_path / "*.part"})
    assert read(raw["output_file"]) == expected


def test_the_vocabulary_is_read_as_by_other_programs(create, raw, tmp_path):
    """Its rules and its case, as `tokenizer_config.json` or its words say."""
    assert "--do_lower_case=true" in refusal(
        lambda: create(**raw, do_lower_case=False)
    )
    rules = tmp_path / "tokenizer_config.json"
    put(rules, json.dumps({"do_lower_case": False}))
    assert "--do_lower_case=true" in refusal(lambda: create(**raw))
    put(rules, json.dumps({"strip_accents": False}))
    words = raw["vocab_file"].read_text()
    put(raw["vocab_file"], words + "\u00e9\n")
    put(raw["input_file"], "\u00c9 \u00c9 \u00c9\n\n\u00c9\n")
    create(**raw, masked_lm_prob=0.0)
    number = len(words.split())
    assert any(
        number in (*row["input_ids"], *row["masked_lm_ids"])
        for row in read(raw["output_file"])
    )
    rules.unlink()
    put(raw["vocab_file"], f"{words}The\nA\nCat\nDog\n")
    put(raw["input_file"], "Cat Cat Cat\n\nDog\n")
    create(**raw)
    assert read(raw["output_file"])
    assert "--do_lower_case=false" in refusal(
        lambda: create(**raw, do_lower_case=True)
    )


def test_lines_that_no_row_holds_are_counted(create, raw, caplog):
    word = raw["vocab_file"].read_text().split()[-1].removeprefix("##")
    put(raw["input_file"], f"{word}\n{'a ' * 13}\n{'a ' * 14}\n\n{word}\n")
    create(**raw)
    [message] = [r.getMessage() for r in caplog.records if "lines" in r.msg]
    assert "1 of 4 lines" in message and "--max_seq_length=16" in message


def test_what_a_killed_program_leaves_is_no_row_file(
    create, raw, tmp_path, monkeypatch
):
    left = []

    def stop(*arguments):
        left.extend(arguments[-1])
        for path in left:
            put(Path(path), "half")
        raise KeyboardInterrupt

    monkeypatch.setattr(names, "write_instance_to_example_files", stop)
    monkeypatch.setattr(tf.io.gfile, "remove", lambda path: None)
    with pytest.raises(KeyboardInterrupt):
        create(**raw)
    assert all(Path(path).parent == tmp_path for path in left) and left
    put(tmp_path / "rows.1", "whole")
    for pattern in "rows*", "*rows*":
        paths = files.matching(str(tmp_path / pattern), "--input_file")
        assert paths == [str(tmp_path / "rows.1")]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input_file": ""}, "--input_file is missing"),
        ({"input_file": "none.txt"}, "no file is called 'none.txt'"),
        ({"output_file": ""}, "--output_file is missing"),
        ({"output_file": "a,a"}, "expected different names"),
        ({"vocab_file": "none"}, "none, which does not exist"),
        ({"max_seq_length": 4}, "expected >= 5"),
    ],
)
def test_bad_input(create, raw, changed, message):
    assert message in refusal(lambda: create(**raw | changed))
    assert not raw["output_file"].exists()


def test_texts_and_vocabularies_without_what_is_needed(create, raw, tmp_path):
    empty = put(tmp_path / "empty.txt", "\n\n")
    error = refusal(lambda: create(**raw | {"input_file": empty}))
    assert "holds no token that the vocabulary knows" in error
    lacking = put(tmp_path / "lacking.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    error = refusal(lambda: create(**raw | {"vocab_file": lacking}))
    assert "lacks [MASK]" in error
    # That of an MPNet has BERT's special tokens too.
    words = f"<s>\n<pad>\n</s>\n<mask>\n{raw['vocab_file'].read_text()}"
    other = put(tmp_path / "mpnet.txt", words)
    error = refusal(lambda: create(**raw | {"vocab_file": other}))
    assert "mpnet.txt" in error and "<s>" in error
