"""`run_squad.py` by BERT's names."""

import gzip
import json

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from conftest import write_json
from graphs import initialize, names, session, small_config

from adapter_bert.upstream import run_squad, tokenization

pytestmark = pytest.mark.older_stack


def read(path):
    content = path.read_bytes()
    return json.loads(
        gzip.decompress(content) if path.suffix == ".gz" else content
    )


@pytest.fixture
def flag():
    """Defines and parses a flag, as a program does."""
    defined = []

    def define(name, value):
        flags.DEFINE_bool(name, value, "")
        defined.append(name)
        flags.FLAGS(["program"])

    yield define
    flags.FLAGS.remove_flag_values(defined)
    flags.FLAGS.unparse_flags()


def windows_of(path, is_training, recorded, pretrained_dir):
    examples = run_squad.read_squad_examples(str(path), is_training)
    features = []
    run_squad.convert_examples_to_features(
        examples,
        tokenization.FullTokenizer(str(pretrained_dir / "vocab.txt")),
        recorded["max_seq_length"],
        recorded["doc_stride"],
        recorded["max_query_length"],
        is_training,
        features.append,
    )
    return examples, features


def check_windows(features, recorded):
    assert len(features) == len(recorded)
    for number, (window, expected) in enumerate(zip(features, recorded)):
        fields = dict(vars(window))
        count = expected["input_mask"]
        assert fields.pop("unique_id") == 1000000000 + number
        assert sum(fields.pop("input_mask")) == count
        for name in ("input_ids", "segment_ids"):
            assert fields.pop(name)[:count] == expected[name][:count]
        for name in ("token_to_orig_map", "token_is_max_context"):
            of = {str(k): v for k, v in fields.pop(name).items()}
            assert of == expected[name]
        assert fields == {name: expected[name] for name in fields}


@pytest.mark.pretrained
@pytest.mark.parametrize("version", [1, 2])
def test_golden_windows_and_answers(
    golden_dir, pretrained_dir, tmp_path, flag, version
):
    if version == 2:
        flag("version_2_with_negative", True)
    folder = golden_dir / f"squad_v{version}"
    recorded = read(folder / "features.json.gz")
    # A training takes one answer.
    content = read(folder / "input.json")
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                del qa["answers"][1:]
    train = tmp_path / "train.json"
    write_json(train, content)
    _, features = windows_of(train, True, recorded, pretrained_dir)
    check_windows(features, recorded["train"])
    path = folder / "input.json"
    examples, features = windows_of(path, False, recorded, pretrained_dir)
    check_windows(features, recorded["eval"])

    logits = np.load(folder / "logits.npz")
    results = [
        run_squad.RawResult(window.unique_id, start.tolist(), end.tolist())
        for window, start, end in zip(features, logits["start"], logits["end"])
    ]
    paths = [tmp_path / name for name in ("answers", "nbest", "null_odds")]
    run_squad.write_predictions(
        examples, features, results, 20, 30, True, *map(str, paths)
    )
    assert read(paths[0]) == read(folder / "predictions.json")
    answers, expected = read(paths[1]), read(folder / "nbest.json.gz")
    assert list(answers) == list(expected)
    for name, rows in expected.items():
        for x, y in zip(answers[name], rows, strict=True):
            assert abs(x.pop("probability") - y.pop("probability")) < 1e-6
            assert x == y
    if version == 2:
        assert read(paths[2]) == read(folder / "null_odds.json")


def test_final_text():
    find = run_squad.get_final_text
    assert find("steve smith", "Steve Smith's", True) == "Steve Smith"
    assert find("a caf", "x caf\u00e9", True) == "x caf\u00e9"
    assert find("cafe", "the Caf\u00e9.", True) == "Caf\u00e9"


def test_questions_that_are_refused(tmp_path):
    question = {"id": "q", "question": "who ?", "answers": []}
    paragraph = {"context": "a cat", "qas": [question]}
    path = tmp_path / "train.json"
    write_json(path, {"data": [{"paragraphs": [paragraph]}]})
    with pytest.raises(ValueError, match="'q' has 0 answers"):
        run_squad.read_squad_examples(str(path), True)
    [example] = run_squad.read_squad_examples(str(path), False)
    assert (
        str(example) == "qas_id: q, question_text: who ?, doc_tokens: [a cat]"
    )


@pytest.mark.parametrize("length, stride", [(5, 1), (4, 1), (6, 0), (6, -1)])
def test_windows_that_would_never_end(length, stride):
    class Words:
        tokenize = staticmethod(str.split)

    example = run_squad.SquadExample("q", "who ?", ["a", "cat"])
    message = f"is {length} and doc_stride is {stride}, expected at least 6"
    with pytest.raises(ValueError, match=message):
        run_squad.convert_examples_to_features(
            [example], Words(), length, stride, 64, False, list
        )


def test_feature_writer(tmp_path):
    # Trainings of other tests leave determinism on, which asks for a seed.
    tf.random.set_seed(1)
    path = str(tmp_path / "windows.tf_record")
    writer = run_squad.FeatureWriter(path, is_training=True)
    ids = [1, 2, 3, 0]
    window = run_squad.InputFeatures(
        7, 0, 0, [], {}, {}, ids, [1, 1, 1, 0], [0, 0, 1, 0], 1, 2, False
    )
    writer.process_feature(window)
    writer.process_feature(window)
    writer.close()
    assert writer.num_features == 2
    make = run_squad.input_fn_builder(path, 4, True, drop_remainder=True)
    batch = next(iter(make({"batch_size": 3})))
    assert batch["input_ids"].numpy().tolist() == [ids] * 3
    assert batch["end_positions"].numpy().tolist() == [2] * 3


def test_create_model():
    with session() as opened:
        ids = tf.ones([3, 5], tf.int32)
        logits = run_squad.create_model(
            small_config(), False, ids, ids, 0 * ids, False, "bitfit"
        )
        head = {"cls/squad/output_weights", "cls/squad/output_bias"}
        variables = names(tf.compat.v1.get_collection("head"))
        assert variables == head
        initialize(opened)
        assert [x.shape for x in opened.run(logits)] == [(3, 5), (3, 5)]


def test_flags_that_do_not_fit(flag):
    check = run_squad.validate_flags_or_throw
    with pytest.raises(ValueError, match="expected one of do_train"):
        check(small_config())
    flag("do_train", True)
    with pytest.raises(ValueError, match="do_train needs train_file"):
        check(small_config())
    flag("train_file", True)
    with pytest.raises(ValueError, match="max_seq_length is 384"):
        check(small_config())
    check(small_config(max_position_embeddings=512))
