"""`extract_features.py`: BERT's names, and the program."""

from shutil import copytree

import numpy as np
import pytest
from conftest import (
    open_bert,
    program_fixture,
    read_json_lines,
    trained_task,
    write_json,
)
from numpy.testing import assert_allclose
from task_files import put, refusal
from tiny_artifacts import make_artifact

from adapter_bert.answering.embeddings import embed
from adapter_bert.commands import extract_features as program
from adapter_bert.upstream import extract_features

pytestmark = pytest.mark.newer_stack

LINES = "the cat sat\nis the dog in ? ||| a dog ran out !\n\ngood film ,\n"


extract = program_fixture(program)


@pytest.fixture
def flags(tiny_bert, tmp_path):
    return {
        "input_file": put(tmp_path / "in.txt", LINES),
        "output_file": tmp_path / "out.jsonl",
        "init_checkpoint": tiny_bert,
        "layers": "-1,0",
        "max_seq_length": 12,
        "batch_size": 3,
    }


def read(flags):
    return read_json_lines(flags["output_file"])


def test_texts_and_pairs(tmp_path, tokenizer):
    path = put(tmp_path / "in.txt", LINES)
    examples = extract_features.read_examples(str(path))
    assert [(e.unique_id, e.text_a, e.text_b) for e in examples[:2]] == [
        (0, "the cat sat", None),
        (1, "is the dog in ?", "a dog ran out !"),
    ]
    features = extract_features.convert_examples_to_features(
        examples, 12, tokenizer
    )
    # The longer text lost a token.
    tokens = "[CLS] is the dog in ? [SEP] a dog ran out [SEP]".split()
    assert features[1].tokens == tokens
    assert features[1].input_type_ids == [0] * 7 + [1] * 5
    assert features[2].tokens == ["[CLS]", "[SEP]"]
    assert features[0].input_mask == [1] * 5 + [0] * 7
    make = extract_features.input_fn_builder(features, 12)
    batch = next(iter(make({"batch_size": 8})))
    assert batch["unique_ids"].numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("with_adapter", [False, True])
def test_states_of_texts(extract, flags, tiny_bert, tmp_path, with_adapter):
    bert, task = open_bert(tiny_bert), None
    if with_adapter:
        flags["adapter"] = tmp_path / "adapter"
        make_artifact(flags["adapter"], tiny_bert, "houlsby(size=4)")
        task = trained_task(bert, flags["adapter"])
    extract(**flags)
    lines = read(flags)
    assert [line["linex_index"] for line in lines] == [0, 1, 2, 3]
    rows = ["the cat sat", ("is the dog in ?", "a dog ran out !"), ""]
    expected = embed(
        bert,
        rows,
        task=task,
        pooling="tokens",
        layers=(-1, 0),
        max_seq_length=12,
    )
    for line, (tokens, vectors) in zip(lines, expected):
        assert [x["token"] for x in line["features"]] == tokens
        for token, vector in zip(line["features"], vectors):
            assert list(token) == ["token", "layers"]
            assert [x["index"] for x in token["layers"]] == [-1, 0]
            values = np.concatenate([x["values"] for x in token["layers"]])
            assert np.array_equal(values, values.round(6))
            assert_allclose(values, vector, atol=2e-6)


def test_lines_are_read_as_by_other_programs(
    extract, flags, tiny_bert, tmp_path, caplog
):
    """By the rules of the tokenizer's files; those that are cut are counted."""
    folder = tmp_path / "bert"
    copytree(tiny_bert, folder)
    rules = {"truncation_side": "left", "model_input_names": ["input_ids"]}
    write_json(folder / "tokenizer_config.json", rules)
    changed = {"init_checkpoint": folder, "max_seq_length": 6}
    extract(**flags | changed)
    lines = read(flags)
    tokens = [[t["token"] for t in line["features"]] for line in lines]
    assert tokens[1] == "[CLS] in ? [SEP] ! [SEP]".split()
    [message] = [r.getMessage() for r in caplog.records if "lines" in r.msg]
    assert "1 of 4 lines" in message
    plain = tmp_path / "plain"
    copytree(tiny_bert, plain)
    put(flags["input_file"], "cat ||| dog\n")
    extract(**flags | changed)
    first = read(flags)
    extract(**flags | changed | {"init_checkpoint": plain})
    assert read(flags) != first


def test_pairs_of_an_mpnet_are_counted_with_both_separators(
    extract, flags, golden_dir, caplog
):
    put(flags["input_file"], "the cat ||| a dog\nthe cat ||| a\n")
    folder = golden_dir / "architectures" / "mpnet"
    extract(**flags | {"init_checkpoint": folder, "max_seq_length": 7})
    assert "</s> </s> a </s>" in " ".join(
        token["token"] for token in read(flags)[0]["features"]
    )
    [message] = [r.getMessage() for r in caplog.records if "lines" in r.msg]
    assert "1 of 2 lines" in message


def test_flags_of_published_commands(extract, flags):
    extract(**flags)
    plain = flags["output_file"].read_bytes()
    published = {
        "use_one_hot_embeddings": True,
        "master": "grpc://10.0.0.2:8470",
        "num_tpu_cores": 32,
    }
    extract(**flags, use_tpu=False, **published)
    assert flags["output_file"].read_bytes() == plain
    message = refusal(lambda: extract(**flags, use_tpu=True, **published))
    assert "runs on a GPU or the CPU: leave --use_tpu out" in message


def test_flags_that_are_refused(extract, flags, tmp_path, roberta_folder):
    def refused(**changes):
        return refusal(lambda: extract(**{**flags, **changes}))

    assert "--layers is 0,2" in refused(layers="0,2")
    assert "--layers is top" in refused(layers="top")
    assert "--input_file is missing" in refused(input_file="")
    assert "nothing.txt" in refused(input_file=tmp_path / "nothing.txt")
    assert "has only 32 positions" in refused(max_seq_length=33)
    assert "has no word pieces" in refused(init_checkpoint=roberta_folder)
    del flags["layers"]
    assert "--layers is -1,-2,-3,-4, expected numbers from -2" in refused()
    assert not flags["output_file"].exists()
